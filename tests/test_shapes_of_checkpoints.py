"""What a checkpoint need not have: a class token, a special token, a decoder's usual names. Judge: transformers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import checkpoints
from support.family_proofs import ALONE, FAST, check_generate, said
from support.models import seeded
from test_bad_input import complaint
from transformers import CONFIG_MAPPING, AutoConfig, AutoProcessor, LlavaForConditionalGeneration

from specllava.models.drafts.draft_vlm import DraftLlava
from specllava.pair import Pair

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2}
PLAIN = SIZES | {"num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512}
OLD = {"n_embd": 32, "n_layer": 3, "n_head": 2, "n_positions": 512}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
# Types of decoders, with their own names for their sizes.
DECODERS: dict[str, dict[str, Any]] = {
    "gpt_neox": PLAIN, "gptj": OLD | {"rotary_dim": 8}, "codegen": OLD | {"rotary_dim": 4, "n_head": 4},
    "persimmon": PLAIN, "phi": PLAIN, "stablelm": PLAIN, "starcoder2": PLAIN, "cohere": PLAIN, "cohere2": PLAIN,
    "olmo2": PLAIN, "gemma": PLAIN, "gemma2": PLAIN, "granite": PLAIN, "glm4": PLAIN, "biogpt": PLAIN, "smollm3": PLAIN,
    "mixtral": PLAIN | EXPERTS, "exaone4": PLAIN, "helium": PLAIN,
}  # fmt: skip
# Those that are refused, and the line.
REFUSED = {
    "deepseek_v3": (PLAIN, "has a deepseek_v3 decoder, whose KV cache holds latent vectors (kv_lora_rank)"),
    **dict.fromkeys(("mamba", "jamba"), (PLAIN, "linear_attention layers, which keep one state for the whole text")),
    "bloom": (SIZES, "a bloom decoder is not known here: it has no max_position_embeddings"),
    "mpt": ({"d_model": 32, "n_heads": 2, "n_layers": 3}, "a mpt decoder is not known here"),
    **dict.fromkeys(  # by transformers neither
        ("gpt2", "opt", "falcon", "gpt_bigcode"),
        (SIZES | OLD, "has a configuration that no model can be built of"),
    ),
}
# Towers, and the tokens that each puts before a picture's patches.
TOWERS = {
    "clip_vision_model": 1, "siglip_vision_model": 0, "dinov2": 1, "dinov2_with_registers": 5, "vit": 1, "pixtral": 0,
}  # fmt: skip


def write(directory: Path, weights: bool = True, tower: str = "", strategy: str = "default", **text: Any) -> Path:
    """A random LLaVA with another tower or another decoder."""
    checkpoints.write_llava(directory)
    config = AutoConfig.from_pretrained(directory)
    config.vision_feature_select_strategy = strategy
    if tower:
        size = {"image_size": checkpoints.SIDE, "patch_size": checkpoints.PATCH}
        config.vision_config = CONFIG_MAPPING[tower](**SIZES, **size)
    if text:
        ids = {"vocab_size": checkpoints.PADDED, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
        names = text | ids | {"initializer_range": 0.3}
        config.text_config = CONFIG_MAPPING[names.pop("model_type")](**names)
    for file in directory.glob("model*"):
        file.unlink()
    if weights:
        seeded(LlavaForConditionalGeneration, config, 3).eval().save_pretrained(directory)
    else:
        config.save_pretrained(directory)
    return directory


@pytest.mark.parametrize("kind", DECODERS)
def test_a_decoder_of_other_names_says_what_generate_says(tmp_path: Path, kind: str):
    pair = Pair.load(write(tmp_path / kind, model_type=kind, **DECODERS[kind]), device="cpu", dtype="float64")
    check_generate(pair, (1, 2))
    weights = {name: weight for name, weight in pair.target.state_dict().items() if "vision_tower" not in name}
    itself = DraftLlava(pair.target.config).eval()
    itself.load_state_dict(weights, strict=True, assign=True)
    drafted, prompt = replace(pair, draft=itself), pair.prompt(None, checkpoints.messages(2))
    (alone, slow), (fast, fewer) = (said(drafted, prompt, config) for config in (ALONE, FAST))
    assert fast == alone and fewer <= slow


@pytest.mark.parametrize("kind", REFUSED)
def test_a_decoder_that_cannot_be_verified_is_refused_in_one_line(tmp_path: Path, kind: str):
    fields, words = REFUSED[kind]
    odd = write(tmp_path / kind, weights=False, model_type=kind, **fields)
    assert words in complaint(lambda: Pair.load(odd, device="cpu"))


@pytest.mark.parametrize("strategy", ["default", "full"])
@pytest.mark.parametrize("tower", TOWERS)
def test_slots_are_counted_as_the_tower_fills_them(tmp_path: Path, tower: str, strategy: str):
    """By arithmetic: patches and what stands before them, of which "default" drops the first token."""
    made = write(tmp_path / "made", tower=tower, strategy=strategy)
    (made / "processor_config.json").unlink()  # as older checkpoints have none
    pair = Pair.load(made, device="cpu", dtype="float64")
    ids = pair.prompt(checkpoints.picture(1), "What?").input_ids
    patches = (checkpoints.SIDE // checkpoints.PATCH) ** 2
    assert int((ids == checkpoints.IMAGE_ID).sum()) == patches + TOWERS[tower] - (strategy == "default")
    check_generate(pair, (1,))
    fields = {"patch_size": checkpoints.PATCH, "vision_feature_select_strategy": strategy}
    wrong = json.dumps(fields | {"num_additional_image_tokens": 3, "processor_class": "LlavaProcessor"})
    (made / "processor_config.json").write_text(wrong)
    line = complaint(lambda: Pair.load(made, device="cpu"))
    assert f"the processor's num_additional_image_tokens is 3, the model's {TOWERS[tower]}" in line


@pytest.mark.parametrize("token", ["bos_token", "eos_token", "pad_token", "unk_token"])
@pytest.mark.parametrize("value", ["", None, " "])
def test_a_special_token_that_is_blank_or_missing_refuses_no_question(tmp_path: Path, token: str, value: str | None):
    made = checkpoints.write_llava(tmp_path / "made")
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        checkpoints.write(made / name, json.loads((made / name).read_text()) | {token: value})
    pair = Pair.load(made, device="cpu")
    chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is this?"}]}]
    processor = AutoProcessor.from_pretrained(made)
    text = processor.apply_chat_template(chat, add_generation_prompt=True)
    wanted = processor(images=checkpoints.picture(1), text=text, return_tensors="pt")["input_ids"]
    assert pair.prompt(checkpoints.picture(1), "What is this?").input_ids.tolist() == wanted.tolist()
