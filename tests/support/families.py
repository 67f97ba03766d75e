"""Small random checkpoints of the families that transformers encodes, laid out on disk as the published ones are.

The layouts are those of ``llava-hf/llava-onevision-qwen2-0.5b-ov-hf``, ``OpenGVLab/InternVL3-1B-hf``,
``HuggingFaceM4/Idefics3-8B-Llama3``, ``HuggingFaceTB/SmolVLM2-2.2B-Instruct``, ``Qwen/Qwen2-VL-7B-Instruct``,
``Qwen/Qwen2.5-VL-7B-Instruct``, ``Qwen/Qwen3-VL-8B-Instruct``, ``Qwen/Qwen3-VL-30B-A3B-Instruct`` and
``google/gemma-3-4b-it``, as transformers describes them. Only the sizes are small.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, PreTrainedModel

from specllava.models.families.family import family_of
from support.checkpoints import TEXT, spelling, write
from support.family_configs import ASPECT, SPEAKER, Layout, config_fields, grid, slots, text_fields
from support.family_kinds import CONTEXT, KINDS, QWEN3S, WORDS, FamilyName, TokensName, token_ids
from support.models import seeded


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
def spelled(also: str = "") -> Tokenizer:
    """A sentencepiece-like BPE with byte fallback, as Gemma's: spaces are letters, and no word begins with one more."""
    raw = json.loads(spelling(also))
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
    words = spelled(also) if kind.tokenizer == "GemmaTokenizer" else pieces(also)
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
    write(
        directory / "tokenizer_config.json",
        {
            "added_tokens_decoder": {
                str(one["id"]): {name: value for name, value in one.items() if name != "id"}
                for one in raw["added_tokens"]
            },
            "clean_up_tokenization_spaces": False,
            "extra_special_tokens": dict(kind.named),
            "model_max_length": CONTEXT,
            "processor_class": kind.processor,
            "tokenizer_class": kind.tokenizer,
            **special,
        },
    )


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
    directory.mkdir(parents=True)
    fields = config_fields(family, layout)
    write(directory / "config.json", fields)
    config = AutoConfig.from_pretrained(directory)
    model = seeded(family_of(config).target, config, seed)
    randomise(model, family, seed)
    if near is not None:
        resemble(model, near, noise, seed)
    model.half().save_pretrained(directory, max_shard_size="100KB")
    if family == "qwen3_vl_moe":
        store_experts_as_published(directory)
    write(directory / "config.json", fields)
    write(directory / "generation_config.json", {"eos_token_id": token_ids(family)[KINDS[family].eos]})
    write_processor(directory, family, layout)
    write_tokenizer(directory, family, also)
    return directory


def store_experts_as_published(directory: Path) -> None:
    """Transpose the experts' weights on disk: ``[experts, in, out]``, which loading turns round by their shapes."""
    for file in directory.glob("*.safetensors"):
        weights = load_file(file)
        turned = {name: one.mT.contiguous() for name, one in weights.items() if ".experts." in name}
        save_file(weights | turned, file, {"format": "pt"})


def write_speaker(directory: Path, family: FamilyName, seed: int = 0, layout: Layout = SPEAKER) -> Path:
    """A random language model with the family's kind of decoder and its tokens."""
    directory.mkdir(parents=True)
    kind = {"qwen2_vl": "qwen2", "qwen2_5_vl": "qwen2"} | dict.fromkeys(QWEN3S, "qwen3")
    fields = text_fields(family, layout)
    fields |= {"model_type": kind.get(family, fields["model_type"]), "rope_scaling": None}
    write(directory / "config.json", fields)
    config = AutoConfig.from_pretrained(directory)
    model = seeded(MODEL_FOR_CAUSAL_LM_MAPPING[type(config)], config, seed)
    randomise(model, family, seed)
    model.half().save_pretrained(directory)
    write(directory / "config.json", fields)
    write_tokenizer(directory, family)
    return directory


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
