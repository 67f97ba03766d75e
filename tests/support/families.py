"""Small random checkpoints of every family but LLaVA's, laid out on disk as the published ones are.

The layouts are those of ``llava-hf/llava-onevision-qwen2-0.5b-ov-hf``, ``OpenGVLab/InternVL3-1B-hf``,
``HuggingFaceM4/Idefics3-8B-Llama3``, ``HuggingFaceTB/SmolVLM2-2.2B-Instruct``, ``Qwen/Qwen2-VL-7B-Instruct``,
``Qwen/Qwen2.5-VL-7B-Instruct``, ``Qwen/Qwen3-VL-8B-Instruct``, ``Qwen/Qwen3-VL-30B-A3B-Instruct`` and
``google/gemma-3-4b-it``, as transformers describes them, and those of six language models. Only the sizes are small.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, PreTrainedModel

from specllava.models.families import family_of
from support.checkpoints import TEXT, spelling, write
from support.models import seeded

FamilyName = Literal[
    "llava_onevision", "internvl", "idefics3", "smolvlm", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "gemma3",
    "qwen3_vl_moe",
]
TextName = Literal["llama", "mistral", "qwen2", "qwen3", "gemma3_text", "phi3"]
TokensName = FamilyName | Literal["mistral"]
FAMILIES: tuple[FamilyName, ...] = get_args(FamilyName)
TEXTS: tuple[TextName, ...] = get_args(TextName)
WORDS = 320  # pieces of the vocabulary: 256 bytes and what is learnt from a text
CONTEXT = 2048
QWEN = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
QWEN_VL = (*QWEN, "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>")
QWENS: tuple[FamilyName, ...] = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe")
QWEN3S: tuple[FamilyName, ...] = QWENS[2:]
ROWS = tuple(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7))


@dataclass(frozen=True)
class Kind:
    """What is published with a family: tokens, processor, template."""

    first: tuple[str, ...]  # special tokens in front of the words
    last: tuple[str, ...]  # and behind them
    image: str
    bos: str | None
    eos: str
    tokenizer: str
    processor: str
    image_processor: str
    template: str
    named: tuple[tuple[str, str], ...] = ()  # special tokens that the tokenizer knows by a name


PARTS = (
    "{% for content in message['content'] %}{% if content['type'] == 'image' %}IMAGE"
    "{% else %}{{ content['text'] }}{% endif %}{% endfor %}"
)
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n" + PARTS + "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TURNS = (
    "{% for message in messages %}{{ message['role'] | capitalize }}{% if message['content'][0]['type'] == 'image' %}"
    "{{ ':' }}{% else %}{{ ': ' }}{% endif %}" + PARTS.replace("IMAGE", "<image>") + "<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
MODEL = (
    "{{ bos_token }}{% for message in messages %}<start_of_turn>"
    "{{ 'model' if message['role'] == 'assistant' else message['role'] }}\n"
    + PARTS.replace("IMAGE", "<start_of_image>")
    + "<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
VISION = CHATML.replace("IMAGE", "<|vision_start|><|image_pad|><|vision_end|>")
ASSISTANT = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
)
KINDS: dict[TokensName, Kind] = {
    "llava_onevision": Kind(
        (), (*QWEN, "<image>", "<video>"), "<image>", None, "<|im_end|>", "Qwen2Tokenizer", "LlavaOnevisionProcessor",
        "LlavaOnevisionImageProcessor", CHATML.replace("IMAGE", "<image>\n"),
    ),
    "internvl": Kind(
        (), (*QWEN, "<img>", "</img>", "<IMG_CONTEXT>", "<video>"), "<IMG_CONTEXT>", None, "<|im_end|>",
        "Qwen2Tokenizer", "InternVLProcessor", "GotOcr2ImageProcessorFast", CHATML.replace("IMAGE", "<IMG_CONTEXT>\n"),
        (("start_image_token", "<img>"), ("end_image_token", "</img>"), ("context_image_token", "<IMG_CONTEXT>"),
         ("video_token", "<video>")),
    ),
    "mistral": Kind(  # of language models alone
        ("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "<pad>"), (), "", "<s>", "</s>", "LlamaTokenizerFast", "", "", ""
    ),
    "idefics3": Kind(
        (), ("<|begin_of_text|>", "<|end_of_text|>", "<fake_token_around_image>", "<image>", "<end_of_utterance>"),
        "<image>", "<|begin_of_text|>", "<end_of_utterance>", "PreTrainedTokenizerFast", "Idefics3Processor",
        "Idefics3ImageProcessor", "{{ bos_token }}" + TURNS,
    ),
    "smolvlm": Kind(
        ("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        ("<global-img>", *ROWS, "<fake_token_around_image>", "<image>", "<end_of_utterance>"), "<image>",
        "<|im_start|>", "<end_of_utterance>", "GPT2Tokenizer", "SmolVLMProcessor", "SmolVLMImageProcessor",
        "<|im_start|>" + TURNS,
    ),
    **{
        name: Kind((), QWEN_VL, "<|image_pad|>", None, "<|im_end|>", "Qwen2Tokenizer", processor, images, template)
        for name, processor, images, template in (
            ("qwen2_vl", "Qwen2VLProcessor", "Qwen2VLImageProcessor", ASSISTANT + VISION),
            ("qwen2_5_vl", "Qwen2_5_VLProcessor", "Qwen2VLImageProcessor", ASSISTANT + VISION),
            ("qwen3_vl", "Qwen3VLProcessor", "Qwen2VLImageProcessorFast", VISION),
            ("qwen3_vl_moe", "Qwen3VLProcessor", "Qwen2VLImageProcessorFast", VISION),
        )
    },
    "gemma3": Kind(
        ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>"),
        ("<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<end_of_image>", "<image_soft_token>"),
        "<image_soft_token>", "<bos>", "<end_of_turn>", "GemmaTokenizer", "Gemma3Processor", "Gemma3ImageProcessor",
        MODEL,
        (("boi_token", "<start_of_image>"), ("eoi_token", "<end_of_image>"), ("image_token", "<image_soft_token>")),
    ),
}  # fmt: skip
# Fields of a processor's files of which each decides slots or pixels.
AGREEMENTS: dict[FamilyName, tuple[str, ...]] = {
    "llava_onevision": ("num_image_tokens", "size"), "internvl": ("image_seq_length", "size"),
    "idefics3": ("image_seq_len", "max_image_size"), "smolvlm": ("image_seq_len", "max_image_size"),
    "gemma3": ("image_seq_length", "size"),
} | dict.fromkeys(QWENS, ("patch_size", "temporal_patch_size", "merge_size"))  # fmt: skip


@dataclass(frozen=True)
class TextKind:
    """What is published with a language model."""

    tokens: TokensName  # whose special tokens it has
    template: str  # over messages whose contents are texts
    fields: tuple[tuple[str, Any], ...] = ()  # of the configuration, beside the sizes


WINDOW = 12  # of the sliding layers of small language models and of Gemma 3: every prompt with a picture is longer
TEXT_CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TEXT_KINDS: dict[TextName, TextKind] = {
    "llama": TextKind("idefics3", (
        "{{ bos_token }}{% for message in messages %}{{ message['role'] + ': ' + message['content'] | trim"
        " + '<end_of_utterance>' }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    )),
    "mistral": TextKind("mistral", (
        "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
        "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% else %}{{ message['content'] + eos_token }}{% endif %}"
        "{% endfor %}"
    ), (("sliding_window", WINDOW),)),
    "qwen2": TextKind("qwen2_vl", TEXT_CHATML),
    "qwen3": TextKind("qwen3_vl", TEXT_CHATML),
    "gemma3_text": TextKind("gemma3", (  # whose content may be a text or a list of parts
        "{{ bos_token }}{% for message in messages %}{{ '<start_of_turn>' + ('model' if message['role'] == 'assistant'"
        " else message['role']) + '\n' }}{% if message['content'] is string %}{{ message['content'] | trim }}"
        "{% endif %}{{ '<end_of_turn>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
    )),
    "phi3": TextKind("mistral", (  # which writes no beginning, though the tokenizer has one
        "{% for message in messages %}{{ message['role'] + '\n' + message['content'] + '</s>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant\n' }}{% endif %}"
    ), (("sliding_window", WINDOW), ("pad_token_id", 2))),
}  # fmt: skip


@cache
def token_ids(family: TokensName) -> dict[str, int]:
    kind = KINDS[family]
    behind = len(kind.first) + WORDS
    return {token: number for number, token in enumerate(kind.first)} | {
        token: behind + number for number, token in enumerate(kind.last)
    }


@dataclass(frozen=True)
class Layout:
    """Sizes of a checkpoint: decoder, tower, rows of the embeddings behind the last token."""

    layers: int = 2
    hidden: int = 48
    heads: int = 4
    kv_heads: int = 2
    vision: int = 32
    side: int = 28
    patch: int = 7
    scale: int = 2  # patches on a side that become one slot
    padding: int = 24
    tied: bool = False
    window: int = 0  # of the decoder's last layer, where the family has sliding windows; 0 for full attention


SPEAKER = Layout(layers=1, hidden=32, heads=2, kv_heads=1, padding=8)  # of a language model that a draft is made of


def text_fields(family: TokensName, layout: Layout) -> dict[str, Any]:
    """The decoder's part of ``config.json``."""
    qwens = {"llava_onevision": "qwen2", "internvl": "qwen2"} | {name: f"{name}_text" for name in QWEN3S}
    flat = {"qwen2_vl": "qwen2_vl", "qwen2_5_vl": "qwen2_5_vl"}  # whose fields lie beside the tower's
    others = {"mistral": "mistral", "gemma3": "gemma3_text"}
    kind = (qwens | flat | others).get(family, "llama")
    fields: dict[str, Any] = {
        "hidden_size": layout.hidden, "intermediate_size": 2 * layout.hidden, "max_position_embeddings": CONTEXT,
        "model_type": kind, "num_attention_heads": layout.heads, "num_hidden_layers": layout.layers,
        "num_key_value_heads": layout.kv_heads, "tie_word_embeddings": layout.tied or family == "gemma3",
        "vocab_size": WORDS + len(KINDS[family].first) + len(KINDS[family].last) + layout.padding,
    }  # fmt: skip
    if kind == "mistral":  # whose heads are not as wide as the hidden state over their number
        fields |= {"head_dim": 16, "sliding_window": None, "rope_theta": 1e9}
    if family == "gemma3":  # likewise; every second layer slides, and the others' rotary angles are scaled
        fields |= {
            "head_dim": 16, "query_pre_attn_scalar": 16, "rope_local_base_freq": 1e4, "rope_theta": 1e6,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": layout.window or WINDOW,
            "sliding_window_pattern": 2,
        }  # fmt: skip
    if kind == "qwen2" or family in flat:
        fields |= {"use_sliding_window": False, "max_window_layers": layout.layers, "rope_theta": 1e6}
    if family in flat and layout.window:
        fields |= {"use_sliding_window": True, "max_window_layers": layout.layers - 1, "sliding_window": layout.window}
    if family in QWEN3S:  # whose heads, too, have a width of their own
        fields |= {"head_dim": 16, "rope_theta": 5e6}
    if family == "qwen3_vl_moe":
        fields |= {
            "decoder_sparse_step": 1, "mlp_only_layers": [], "moe_intermediate_size": layout.hidden // 2 + 1,
            "norm_topk_prob": True, "num_experts": layout.heads + 3, "num_experts_per_tok": 2,
        }  # fmt: skip
    if family in QWENS:
        ids = token_ids(family)
        fields |= {"bos_token_id": ids["<|endoftext|>"], "eos_token_id": ids["<|im_end|>"]}
        pairs = fields.get("head_dim", layout.hidden // layout.heads) // 2
        side = pairs // 3  # of the pairs of numbers that are rotated together, in height and in width
        rope: dict[str, Any] = {"mrope_section": [pairs - 2 * side, side, side]}
        fields["rope_scaling"] = rope | (
            {"rope_type": "default", "mrope_interleaved": True} if family in QWEN3S else {"type": "mrope"}
        )
    return fields


def config_fields(family: FamilyName, layout: Layout) -> dict[str, Any]:
    """A published ``config.json`` with small sizes."""
    ids, image = token_ids(family), token_ids(family)[KINDS[family].image]
    vision: dict[str, Any] = {
        "hidden_size": layout.vision, "image_size": layout.side, "intermediate_size": 2 * layout.vision,
        "num_attention_heads": 2, "num_hidden_layers": 2, "patch_size": layout.patch,
    }  # fmt: skip
    fields = {
        "architectures": [f"{family}ForConditionalGeneration"], "model_type": family,
        "text_config": text_fields(family, layout), "tie_word_embeddings": layout.tied or family == "gemma3",
        "torch_dtype": "float16", "vision_config": vision,
    }  # fmt: skip
    match family:
        case "llava_onevision":
            vision |= {"model_type": "siglip_vision_model", "vision_use_head": False}
            fields |= {
                "image_grid_pinpoints": grid(layout), "image_token_index": image, "projector_hidden_act": "gelu",
                "use_image_newline_parameter": True, "video_token_index": ids["<video>"],
                "vision_aspect_ratio": ASPECT, "vision_feature_layer": -1, "vision_feature_select_strategy": "full",
            }  # fmt: skip
        case "internvl":
            vision |= {"model_type": "internvl_vision", "norm_type": "layer_norm", "use_mean_pooling": True}
            vision |= {name: [vision[name]] * 2 for name in ("image_size", "patch_size")}
            fields |= {
                "downsample_ratio": 1 / layout.scale, "image_seq_length": slots(layout), "image_token_id": image,
                "projector_hidden_act": "gelu", "vision_feature_layer": -1,
                "vision_feature_select_strategy": "default",
            }  # fmt: skip
        case "gemma3":
            vision |= {"model_type": "siglip_vision_model", "vision_use_head": False}
            fields |= {
                "boi_token_index": ids["<start_of_image>"], "eoi_token_index": ids["<end_of_image>"],
                "image_token_index": image, "mm_tokens_per_image": slots(layout),
            }  # fmt: skip
        case "qwen2_vl" | "qwen2_5_vl" | "qwen3_vl" | "qwen3_vl_moe":
            fields = fields | qwen_fields(family, layout)
        case _:
            vision |= {"model_type": family if family == "idefics3" else "smolvlm_vision"}
            fields |= {"image_token_id": image, "scale_factor": layout.scale, "pad_token_id": ids[KINDS[family].eos]}
    return fields


def qwen_fields(family: FamilyName, layout: Layout) -> dict[str, Any]:
    """What a Qwen's ``config.json`` has besides."""
    ids = token_ids(family)
    vision: dict[str, Any] = {
        "depth": 2, "model_type": family, "num_heads": 2, "patch_size": layout.patch,
        "spatial_merge_size": layout.scale, "temporal_patch_size": 2,
    }  # fmt: skip
    match family:
        case "qwen2_vl":
            vision |= {"embed_dim": layout.vision, "hidden_size": layout.hidden, "mlp_ratio": 2}
        case "qwen2_5_vl":
            vision |= {"hidden_act": "silu", "fullatt_block_indexes": [1]}
            vision |= {"window_size": 2 * layout.scale * layout.patch}
        case _:
            deep = list(range(min(2, layout.layers)))
            vision |= {"deepstack_visual_indexes": deep, "num_position_embeddings": 16}
    if family != "qwen2_vl":
        vision |= {"hidden_size": layout.vision, "intermediate_size": 2 * layout.vision}
        vision |= {"out_hidden_size": layout.hidden}
    names = {"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>"}
    names |= {f"vision_{end}_token_id": f"<|vision_{end}|>" for end in ("start", "end")}
    own: dict[str, Any] = {"vision_config": vision} | {name: ids[token] for name, token in names.items()}
    if family in QWEN3S:
        return own
    return text_fields(family, layout) | own | {"model_type": family, "text_config": None}


ASPECT = "anyres_max_2"  # as anyres_max_9: more tiles are shrunk to as many patches
def grid(layout: Layout) -> list[list[int]]:
    return [[layout.side * high, layout.side * wide] for high in (1, 2, 3) for wide in (1, 2, 3)]


def slots(layout: Layout) -> int:
    return (layout.side // layout.patch // layout.scale) ** 2


@cache
def pieces(also: str = "") -> Tokenizer:
    """A byte-level BPE learnt from a little text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        [TEXT, also], trainers.BpeTrainer(vocab_size=WORDS, initial_alphabet=alphabet, show_progress=False)
    )
    assert tokenizer.get_vocab_size() == WORDS
    return tokenizer


@cache
def spelled() -> Tokenizer:
    """A sentencepiece-like BPE with byte fallback, as Gemma's: spaces are letters, and no word begins with one more."""
    raw = json.loads(spelling())
    words = sorted(raw["model"]["vocab"], key=raw["model"]["vocab"].get)[3 : 3 + WORDS]  # behind <unk>, <s> and </s>
    raw["model"]["vocab"] = {word: number for number, word in enumerate(words)}
    raw["model"]["merges"] = [pair for pair in raw["model"]["merges"] if "".join(pair) in raw["model"]["vocab"]]
    raw["model"]["unk_token"], raw["added_tokens"], raw["post_processor"] = None, [], None
    tokenizer = Tokenizer.from_str(json.dumps(raw))
    assert tokenizer.get_vocab_size() == WORDS
    return tokenizer


def write_tokenizer(directory: Path, family: TokensName, also: str = "") -> None:
    """Tokenizer files: words between the special tokens.

    Args:
        also: more text to learn pieces from, for a tokenizer that differs.
    """
    kind, ids = KINDS[family], token_ids(family)
    words = spelled() if kind.tokenizer == "GemmaTokenizer" else pieces(also)
    raw = json.loads(words.to_str())
    raw["model"]["vocab"] = {token: number for token, number in ids.items() if token in kind.first} | {
        piece: number + len(kind.first) for piece, number in raw["model"]["vocab"].items()
    }
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    raw["added_tokens"] = [{"id": number, "content": token, **flags} for token, number in ids.items()]
    tokenizer = Tokenizer.from_str(json.dumps(raw))
    if words is pieces(also):
        tokenizer.decoder = decoders.ByteLevel()
    raw = json.loads(tokenizer.to_str())
    if kind.tokenizer in ("LlamaTokenizerFast", "PreTrainedTokenizerFast"):  # as Llama 3's and Mistral's: begin by bos
        raw["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": kind.bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {kind.bos: {"id": kind.bos, "ids": [ids[kind.bos or ""]], "tokens": [kind.bos]}},
        }
    write(directory / "tokenizer.json", raw)
    special = {"eos_token": kind.eos, "pad_token": kind.eos} | ({"bos_token": kind.bos} if kind.bos else {})
    added = {
        str(one["id"]): {name: value for name, value in one.items() if name != "id"} for one in raw["added_tokens"]
    }
    fields = {
        "added_tokens_decoder": added, "clean_up_tokenization_spaces": False, "extra_special_tokens": dict(kind.named),
        "model_max_length": CONTEXT, "processor_class": kind.processor, "tokenizer_class": kind.tokenizer,
    }  # fmt: skip
    write(directory / "tokenizer_config.json", fields | special)


def write_processor(directory: Path, family: FamilyName, layout: Layout) -> None:
    kind, side = KINDS[family], layout.side
    images: dict[str, Any] = {
        "do_convert_rgb": True, "do_normalize": True, "do_rescale": True, "do_resize": True,
        "image_mean": [0.5, 0.5, 0.5], "image_processor_type": kind.image_processor, "image_std": [0.5, 0.5, 0.5],
        "processor_class": kind.processor, "rescale_factor": 0.00392156862745098, "resample": 3,
    }  # fmt: skip
    fields: dict[str, Any] = {"processor_class": kind.processor}
    match family:
        case "llava_onevision":
            images |= {"do_pad": True, "image_grid_pinpoints": grid(layout), "size": {"height": side, "width": side}}
            fields |= {
                "image_token": "<image>", "num_image_tokens": (side // layout.patch) ** 2, "video_token": "<video>",
                "vision_aspect_ratio": ASPECT, "vision_feature_select_strategy": "full",
            }  # fmt: skip
        case "internvl":
            images |= {
                "crop_to_patches": False, "max_patches": 6, "min_patches": 1, "size": {"height": side, "width": side},
            }  # fmt: skip
            fields |= {"image_seq_length": slots(layout)}
        case "gemma3":
            images |= {"do_pan_and_scan": None, "resample": 2, "size": {"height": side, "width": side}}
            fields |= {"image_seq_length": slots(layout)}
        case "qwen2_vl" | "qwen2_5_vl" | "qwen3_vl" | "qwen3_vl_moe":
            square = (layout.patch * layout.scale) ** 2  # pixels of a slot
            images |= {"merge_size": layout.scale, "patch_size": layout.patch, "temporal_patch_size": 2}
            if family in QWEN3S:
                images |= {"size": {"shortest_edge": 4 * square, "longest_edge": 12 * square}}
            else:
                images |= {"min_pixels": 4 * square, "max_pixels": 12 * square}
        case _:
            images |= {
                "do_image_splitting": True, "do_pad": True, "max_image_size": {"longest_edge": side},
                "size": {"longest_edge": 2 * side},
            }  # fmt: skip
            fields |= {"image_seq_len": slots(layout)}
    write(directory / "preprocessor_config.json", images)
    write(directory / "processor_config.json", fields)
    write(directory / "chat_template.json", {"chat_template": kind.template})


def write_checkpoint(
    directory: Path,
    family: FamilyName,
    seed: int = 0,
    layout: Layout | None = None,
    near: Path | None = None,
    noise: float = 0.03,
    also: str = "",
) -> Path:
    """A random checkpoint, in float16 and several files.

    Args:
        near: a checkpoint whose decoder this one resembles, up to ``noise``, where the sizes agree.
        also: more text for its tokenizer, which then differs.
    """
    layout = layout or Layout()
    _write_model(directory, config_fields(family, layout), family, seed, near, noise)
    if family == "qwen3_vl_moe":
        store_experts_as_published(directory)
    write_processor(directory, family, layout)
    write_tokenizer(directory, family, also)
    return directory


def write_text_model(
    directory: Path, name: TextName, seed: int = 0, layout: Layout | None = None, near: Path | None = None
) -> Path:
    kind = TEXT_KINDS[name]
    fields = text_fields(kind.tokens, layout or Layout()) | {"model_type": name} | dict(kind.fields)
    _write_model(directory, fields, kind.tokens, seed, near, 0.03)
    write_tokenizer(directory, kind.tokens)
    (directory / "chat_template.jinja").write_text(kind.template, encoding="utf-8")
    return directory


def write_speaker(directory: Path, family: FamilyName) -> Path:
    """A random language model with the family's kind of decoder and its tokens."""
    kind = {"qwen2_vl": "qwen2", "qwen2_5_vl": "qwen2"} | dict.fromkeys(QWEN3S, "qwen3")
    fields = text_fields(family, SPEAKER)
    _write_model(directory, fields | {"model_type": kind.get(family, fields["model_type"])}, family, 0)
    write_tokenizer(directory, family)
    return directory


def _write_model(
    directory: Path, fields: dict[str, Any], tokens: TokensName, seed: int, near: Path | None = None, noise: float = 0.0
) -> None:
    """Random weights for a configuration, which stays as it is published."""
    directory.mkdir(parents=True)
    ids, seeing = token_ids(tokens), "vision_config" in fields
    ends = {"eos_token_id": ids[KINDS[tokens].eos]}
    if not seeing:
        fields |= {"rope_scaling": None} if fields["model_type"] in ("qwen2", "qwen3") else {}
        fields |= ends | {"bos_token_id": ids.get(KINDS[tokens].bos or "")}
    write(directory / "config.json", fields)
    config = AutoConfig.from_pretrained(directory)
    model = seeded(family_of(config).target if seeing else MODEL_FOR_CAUSAL_LM_MAPPING[type(config)], config, seed)
    randomise(model, tokens, seed)
    if near is not None:
        resemble(model, near, noise, seed)
    model.half().save_pretrained(directory, max_shard_size="100KB")
    write(directory / "config.json", fields)
    write(directory / "generation_config.json", ends)


def store_experts_as_published(directory: Path) -> None:
    """Transpose the experts' weights on disk: ``[experts, in, out]``, which loading turns round by their shapes."""
    for file in directory.glob("*.safetensors"):
        weights = load_file(file)
        turned = {name: one.mT.contiguous() for name, one in weights.items() if ".experts." in name}
        save_file(weights | turned, file, {"format": "pt"})


@torch.no_grad()
def randomise(model: PreTrainedModel, family: TokensName, seed: int) -> None:
    """Weights whose model varies its answers; special tokens are hardly ever said."""
    source = torch.Generator().manual_seed(seed)
    head = model.get_output_embeddings().weight
    for name, weight in model.named_parameters():
        if weight.dim() > 1:
            weight.copy_((1.0 if weight is head else 0.25) * torch.randn(weight.shape, generator=source))
        elif family == "gemma3" and ".layers." in name and "post_" in name:  # against the word that it began with
            weight.fill_(8.0)
    first = len(KINDS[family].first)
    head[:first] *= 0.01
    head[first + WORDS :] *= 0.01


@torch.no_grad()
def resemble(model: PreTrainedModel, near: Path, noise: float, seed: int) -> None:
    """Copy the decoder of a checkpoint with noise, in as many rows as the model has."""
    other = type(model).from_pretrained(near, dtype=torch.float32)
    source = torch.Generator().manual_seed(seed)
    theirs = dict(other.get_decoder().named_parameters()) | {"head": other.get_output_embeddings().weight}
    ours = dict(model.get_decoder().named_parameters()) | {"head": model.get_output_embeddings().weight}
    for name, weight in ours.items():
        whole = theirs[name]
        shared = min(len(weight), len(whole))
        weight[:shared].copy_(whole[:shared] + noise * torch.randn(whole[:shared].shape, generator=source))
