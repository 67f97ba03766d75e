"""Small random checkpoints, on disk as the real ones are published: names, fields, files, key names, tokenizer kind.

The layouts are those of ``llava-hf/llava-1.5-7b-hf``, ``llava-hf/llava-v1.6-vicuna-7b-hf``, ``JackFram/llama-68m`` and
of a stand-alone LLaVA draft. Only the sizes are small. Weights are float16, in several files with an index.
"""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import AutoConfig, LlamaForCausalLM, LlavaForConditionalGeneration, LlavaNextForConditionalGeneration

from support.models import seeded

FamilyName = Literal["llava", "llava_next"]
FAMILIES: tuple[FamilyName, ...] = ("llava", "llava_next")
WORDS, PADDED = 384, 448  # as 32000 and 32064: <image>, <pad> and rows that no token uses lie between
IMAGE_ID, PAD_ID = WORDS, WORDS + 1
SIDE, PATCH = 28, 7  # as 336 and 14
GRID = [[28, 56], [56, 28], [56, 56], [84, 28], [28, 84]]
CONTEXT = 1024
TEXT = (
    "USER: ASSISTANT: What is this? Describe the picture in detail. A red bus stands on the left side of the road. "
    "How many cats are there? There are two cats and a dog in front of the house. Where is it? It is on the table. "
)
RENDER = (
    "{# Render all images first #}{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}"
    "{{ '<image>\n' }}{% endfor %}{# Render all text next #}{% if message['role'] != 'assistant' %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{{ content['text'] + ' '}}"
    "{% endfor %}{% else %}{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{% generation %}{{ content['text'] + ' '}}{% endgeneration %}{% endfor %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
TEMPLATES: dict[FamilyName, str] = {
    "llava": "{% for message in messages %}{% if message['role'] != 'system' %}"
    "{{ message['role'].upper() + ': '}}{% endif %}" + RENDER,
    "llava_next": "{% for message in messages %}{% if message['role'] == 'system' %}"
    "{{ message['content'][0]['text'] }}{% else %}{{ message['role'].upper() + ': '}}{% endif %}" + RENDER,
}
CLIP_IMAGES = {
    "crop_size": {"height": SIDE, "width": SIDE}, "do_center_crop": True, "do_convert_rgb": True, "do_normalize": True,
    "do_rescale": True, "do_resize": True, "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711], "resample": 3, "rescale_factor": 0.00392156862745098,
    "size": {"shortest_edge": SIDE},
}  # fmt: skip


@cache
def spelling() -> str:
    """The ``tokenizer.json`` of a sentencepiece-like BPE: 384 pieces with byte fallback, as a Llama's 32000."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()  # to learn alone: no piece goes over the end of a word
    bytes_ = [f"<0x{value:02X}>" for value in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=WORDS, special_tokens=["<unk>", "<s>", "</s>", *bytes_], show_progress=False
    )
    tokenizer.train_from_iterator(TEXT.split(".") * 3, trainer)
    assert tokenizer.get_vocab_size() == WORDS
    tokenizer.pre_tokenizer = None
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    raw = json.loads(tokenizer.to_str())
    raw["added_tokens"] = raw["added_tokens"][:3]  # bytes are pieces of the vocabulary, not special tokens
    tokenizer = Tokenizer.from_str(json.dumps(raw))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return str(tokenizer.to_str())


def write_tokenizer(directory: Path, seeing: bool) -> None:
    """Tokenizer files of a Llama, or with ``seeing`` of a LLaVA: <image> and <pad> behind the words."""
    raw = json.loads(spelling())
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    if seeing:
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        raw["added_tokens"] += [
            {"id": IMAGE_ID, "content": "<image>", **flags},
            {"id": PAD_ID, "content": "<pad>", **flags},
        ]
        special |= {"pad_token": "<pad>"}
        write(directory / "added_tokens.json", {"<image>": IMAGE_ID, "<pad>": PAD_ID})
    write(directory / "tokenizer.json", raw)
    write(directory / "special_tokens_map.json", special)
    added = {
        str(one["id"]): {name: value for name, value in one.items() if name != "id"} for one in raw["added_tokens"]
    }
    named = {"image_token": "<image>", "processor_class": "LlavaProcessor"} if seeing else {}
    fields = {
        "add_bos_token": True, "add_eos_token": False, "added_tokens_decoder": added, "legacy": False,
        "clean_up_tokenization_spaces": False, "model_max_length": CONTEXT, "padding_side": "left",
        "sp_model_kwargs": {}, "tokenizer_class": "LlamaTokenizer",
    }  # fmt: skip
    write(directory / "tokenizer_config.json", fields | special | named)


def text_fields(layers: int, hidden: int, vocabulary: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"], "hidden_size": hidden, "intermediate_size": 2 * hidden,
        "max_position_embeddings": CONTEXT, "model_type": "llama", "num_attention_heads": hidden // 16,
        "num_hidden_layers": layers, "num_key_value_heads": hidden // 16, "rms_norm_eps": 1e-05,
        "torch_dtype": "float16", "vocab_size": vocabulary,
    }  # fmt: skip


def llava_fields(family: FamilyName, layers: int, hidden: int, vision: int = 32) -> dict[str, Any]:
    """A published ``config.json`` with small sizes."""
    fields: dict[str, Any] = {
        "architectures": ["LlavaForConditionalGeneration"], "ignore_index": -100, "image_token_index": IMAGE_ID,
        "image_seq_length": (SIDE // PATCH) ** 2, "model_type": "llava", "pad_token_id": PAD_ID,
        "projector_hidden_act": "gelu", "text_config": text_fields(layers, hidden, PADDED),
        "tie_word_embeddings": False, "torch_dtype": "float16", "vision_feature_layer": -2,
        "vision_feature_select_strategy": "default", "vocab_size": PADDED,
        "vision_config": {
            "hidden_size": vision, "image_size": SIDE, "intermediate_size": 2 * vision,
            "model_type": "clip_vision_model", "num_attention_heads": 2, "num_hidden_layers": 3, "patch_size": PATCH,
            "projection_dim": 24, "vocab_size": WORDS,
        },
    }  # fmt: skip
    if family == "llava_next":
        fields |= {"architectures": ["LlavaNextForConditionalGeneration"], "model_type": "llava_next"}
        fields |= {"image_grid_pinpoints": GRID, "use_image_newline_parameter": True}
    return fields


def write_llava(
    directory: Path,
    family: FamilyName = "llava",
    seed: int = 0,
    layers: int = 2,
    hidden: int = 48,
    vision: int = 32,
    parts: dict[str, Tensor] | None = None,
) -> Path:
    """A random LLaVA as ``llava-hf`` publishes it.

    Args:
        parts: weights by their published names, in place of random ones: a tower, or a whole model.
    """
    directory.mkdir(parents=True)
    fields = llava_fields(family, layers, hidden, vision)
    write(directory / "config.json", fields)
    write(directory / "generation_config.json", {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": PAD_ID})
    build = LlavaForConditionalGeneration if family == "llava" else LlavaNextForConditionalGeneration
    model = seeded(build, AutoConfig.from_pretrained(directory), seed)
    weights = {published_name(name): weight for name, weight in randomised(model, seed).items()}
    write_weights(directory, weights | (parts or {}))
    named = "LlavaProcessor" if family == "llava" else "LlavaNextProcessor"
    images: dict[str, Any] = {"image_processor_type": "CLIPImageProcessor"}
    if family == "llava_next":
        images = {"image_processor_type": "LlavaNextImageProcessor", "aspect_ratio_setting": "anyres"}
        images |= {"image_grid_pinpoints": GRID, "do_pad": True}
    write(directory / "preprocessor_config.json", {**CLIP_IMAGES, **images, "processor_class": named})
    reader = {"image_token": "<image>", "num_additional_image_tokens": 1, "patch_size": PATCH}
    reader |= {"processor_class": named, "vision_feature_select_strategy": "default"}
    write(directory / "processor_config.json", reader)
    write(directory / "chat_template.json", {"chat_template": TEMPLATES[family]})
    write_tokenizer(directory, seeing=True)
    return directory


def write_llama(
    directory: Path, layers: int = 1, hidden: int = 32, parts: dict[str, Tensor] | None = None
) -> Path:
    """A random plain Llama, with the tokenizer of the LLaVAs without their two tokens.

    Args:
        parts: weights by name in place of random ones.
    """
    directory.mkdir(parents=True)
    write(directory / "config.json", {**text_fields(layers, hidden, WORDS), "bos_token_id": 0, "pad_token_id": 1})
    write(directory / "generation_config.json", {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1})
    weights = randomised(seeded(LlamaForCausalLM, AutoConfig.from_pretrained(directory), 0), 0)
    write_weights(directory, weights | (parts or {}))
    write_tokenizer(directory, seeing=False)
    return directory


def store(cache: Path, name: str, source: Path) -> None:
    """Put a model into a hub's cache, as if it had been downloaded; ``name@branch`` for another branch."""
    repository, _, branch = name.partition("@")
    place = cache / f"models--{repository.replace('/', '--')}"
    shutil.copytree(source, place / "snapshots" / "abc123", dirs_exist_ok=True)
    reference = place / "refs" / (branch or "main")
    reference.parent.mkdir(parents=True, exist_ok=True)
    reference.write_text("abc123")


def weights_of(directory: Path) -> dict[str, Tensor]:
    files = sorted(directory.glob("*.safetensors"))
    return {name: weight for file in files for name, weight in load_file(file).items()}


def noisy(weights: dict[str, Tensor], amount: float) -> dict[str, Tensor]:
    """Nearly the same weights: a model that agrees now and then."""
    source = torch.Generator().manual_seed(0)
    return {name: (one + amount * torch.randn(one.shape, generator=source)).half() for name, one in weights.items()}


def published_name(name: str) -> str:
    """The name that a weight has in ``llava-hf``'s files, which were written by an earlier transformers."""
    for ours, theirs in (
        ("lm_head.", "language_model.lm_head."),
        ("model.language_model.model.", "language_model.model."),  # as drafts are saved, whose class is our own
        ("model.language_model.", "language_model.model."),
        ("model.vision_tower.", "vision_tower.vision_model."),
        ("model.", ""),
    ):
        if name.startswith(ours):
            return theirs + name.removeprefix(ours)
    return name


def randomised(model: torch.nn.Module, seed: int) -> dict[str, Tensor]:
    """Float16 weights whose model varies its answers, as ``models.target`` does; it never says a special token."""
    source = torch.Generator().manual_seed(seed)
    weights = {}
    for name, weight in model.state_dict().items():
        if weight.dim() > 1:
            std = 1.0 if name.endswith("lm_head.weight") else 0.25
            weight = std * torch.randn(weight.shape, generator=source)
        if name.endswith("lm_head.weight"):
            weight[:3], weight[WORDS:] = 0.0, 0.0
        weights[name] = weight.half() if weight.is_floating_point() else weight
    return weights


def write_weights(directory: Path, weights: dict[str, Tensor]) -> None:
    names = sorted(weights)
    files = {1: names[: len(names) // 2], 2: names[len(names) // 2 :]}
    index: dict[str, str] = {}
    for number, held in files.items():
        file = f"model-{number:05d}-of-{len(files):05d}.safetensors"
        save_file({name: weights[name].contiguous() for name in held}, directory / file, {"format": "pt"})
        index |= dict.fromkeys(held, file)
    total = sum(weight.numel() * weight.element_size() for weight in weights.values())
    write(directory / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": index})


def write(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


SIZES = ((28, 28), (50, 20), (31, 97), (1, 7), (200, 11), (57, 56), (13, 130), (64, 48), (9, 9))  # width, height
QUESTIONS = ("What is this?", "Where is the cat?", "Describe the picture in detail.", "How many?", "And now é?")


def picture(number: int) -> Image.Image:
    width, height = SIZES[number % len(SIZES)]
    source = torch.Generator().manual_seed(number)
    return Image.fromarray(torch.randint(256, (height, width, 3), generator=source, dtype=torch.uint8).numpy())


def messages(number: int) -> list[dict[str, Any]]:
    """Chat ``number``: up to three pictures, up to two turns."""

    def said(text: str, *shown: int) -> dict[str, Any]:
        parts = [{"type": "image", "image": picture(one)} for one in shown]
        return {"role": "user", "content": [*parts, {"type": "text", "text": text}]}

    question = QUESTIONS[number % len(QUESTIONS)]
    match number % 5:
        case 0:
            return [said(question)]
        case 1 | 2:
            return [said(question, number)]
        case 3:
            return [said(question, number, number + 1, number + 4)]
    answer = {"role": "assistant", "content": "Two cats."}
    return [said(question, number), answer, said("Where is it?", number + 2, number)]
