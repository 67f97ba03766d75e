"""Families that transformers encodes: what comes out is their own ``generate``, whatever drafts, grows or samples."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support import checkpoints, families, family_kinds
from support.amount import ALL, sample
from support.family_configs import Layout
from support.family_kinds import FAMILIES, WORDS, FamilyName
from support.family_proofs import (
    ALONE,
    FAST,
    check_chat,
    check_generate,
    check_lane,
    check_rest,
    check_settings,
    check_speculation,
    check_state_drafts,
    check_tree_pass,
    said,
)
from test_bad_input import complaint
from transformers import Llama4Config, PaliGemmaConfig, PretrainedConfig, Qwen3_5Config
from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

from specllava.distill.new_draft import init_draft
from specllava.models.checkpoint import Checkpoint
from specllava.models.memory import size_of
from specllava.models.options import DTypeName
from specllava.pair import Pair

# One draft resembles its target, one is smaller with a tied head; their towers cut pictures in other ways, and their
# embeddings have fewer rows than the target's, and more.
DRAFTS = {
    "near": Layout(vision=16, side=36, patch=6, padding=8),
    "tied": Layout(layers=1, hidden=32, heads=2, kv_heads=1, vision=16, padding=40, tied=True),
}
OTHER = Layout(  # and another seed
    layers=3, hidden=64, heads=4, kv_heads=1, vision=48, side=40, patch=5, padding=3, window=24
)


Made = Callable[[str], Path]
MISFIT = "the processor does not fit the model, take both from one checkpoint"


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> FamilyName:
    """Each in turn, with all of its tests: a process that shares them out makes the checkpoints of a few."""
    return request.param


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A checkpoint by family and draft or ``other``, made when it is first asked for."""
    root = tmp_path_factory.mktemp("families")

    @cache
    def write(name: str) -> Path:
        family, _, kind = name.partition(" ")
        if not kind:
            return families.write_checkpoint(root / name, family)
        if kind == "other":
            return families.write_checkpoint(root / name, family, 7, OTHER)
        near = write(family) if kind == "near" else None
        return families.write_checkpoint(root / name, family, 1 + tuple(DRAFTS).index(kind), DRAFTS[kind], near)

    return write


@pytest.fixture(scope="module")
def pairs(made: Made):
    """A pair by target, draft and precision; a target is loaded once per precision."""

    @cache
    def alone(name: str, dtype: DTypeName) -> Pair:
        return Pair.load(made(name), device="cpu", dtype=dtype)

    @cache
    def pair(name: str, draft: str | None, dtype: DTypeName) -> Pair:
        drafted = alone(name, dtype)
        if draft is None:
            return drafted
        return drafted.with_draft(made(f"{name.split()[0]} {draft}"))

    return pair


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_target_only_is_the_familys_own_generate(pairs, family: FamilyName, dtype: DTypeName):
    """None, one and three pictures of odd sizes, one and two turns."""
    check_generate(pairs(family, None, dtype), sample(range(10), 4) if dtype == "float64" else (3,))


def test_the_lane_of_transformers_reads_the_same_pictures(pairs, family: FamilyName):
    """A text alone, too, has no part of a picture before it."""
    check_lane(pairs(family, None, "float64"), (2, 3, 5))


def test_a_checkpoint_of_other_sizes_and_seed(pairs, family: FamilyName):
    """Nothing was written against it; the draft's tower, rows and layers are not its own either."""
    pair = pairs(f"{family} other", "near", "float64")
    check_generate(pair, numbers := sample(range(13, 17), 1))
    for number in numbers:
        prompt = pair.prompt(None, checkpoints.messages(number))
        plain = said(pair, prompt, ALONE)[0]
        assert said(pair, prompt, FAST)[0] == said(pair, prompt, replace(FAST, drafter="prompt-lookup"))[0] == plain


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_speculation_changes_no_token(pairs, family: FamilyName, dtype: DTypeName):
    """Whatever rule, drafter and temperature; the near draft is right at times, so that there is something to keep."""
    numbers = (1,) if dtype == "float32" else range(5) if ALL else (0, 2)
    saved = check_speculation(lambda number: pairs(family, tuple(DRAFTS)[number % 3 == 2], dtype), numbers)
    assert saved > 0 or dtype == "float32"


def test_settings_of_the_checkpoint_are_followed(pairs, family: FamilyName):
    """By both lanes, as the family's own ``generate`` follows them; image slots count as what was said before."""
    check_settings(pairs(family, "near", "float64"), (0, 3, 5))


def test_a_draft_that_reads_states_changes_no_token(pairs, family: FamilyName, tmp_path: Path):
    check_state_drafts(pairs(f"{family} other", None, "float64"), tmp_path)


def test_a_tree_pass_scores_each_path_as_alone(pairs, family: FamilyName):
    pair = pairs(family, None, "float64")
    check_tree_pass(pair, family, (pair.prompt(None, checkpoints.messages(number)) for number in range(1, 5)))


def test_a_chat_that_keeps_its_caches_says_what_a_fresh_reading_says(pairs, family: FamilyName):
    check_chat(pairs(family, "near", "float64"))


def test_reading_the_rest_is_reading_the_whole(pairs, family: FamilyName):
    """Though row and column tokens stand between a picture's slots."""
    check_rest(pairs(family, None, "float64"))


def test_a_picture_smaller_than_a_patch_is_read(pairs, family: FamilyName):
    pair = pairs(family, "near", "float64")
    prompt = pair.prompt(checkpoints.picture(3), "What?")
    assert said(pair, prompt, FAST)[0] == said(pair, prompt, ALONE)[0]


def without_weights(made: Path, tmp_path: Path) -> Path:
    """A copy that is refused by its small files, or not at all."""
    return Path(shutil.copytree(made, tmp_path / "odd", ignore=shutil.ignore_patterns("*.safetensors*")))


def test_a_processor_that_counts_other_slots_is_refused_before_weights_are_read(
    made: Made, family: FamilyName, tmp_path: Path
):
    """Of each field that decides how many slots there are and what the tower reads."""
    odd = without_weights(made(family), tmp_path)
    names = family_kinds.AGREEMENTS.get(family, family_kinds.QWEN_AGREEMENTS)
    for name in names:
        file = next(one for one in odd.glob("*processor_config.json") if name in json.loads(one.read_text()))
        before = file.read_text()
        fields = json.loads(before)
        fields[name] = doubled(fields[name])
        file.write_text(json.dumps(fields))
        line = complaint(lambda: Pair.load(odd, device="cpu"))
        assert re.fullmatch(rf"odd: the processor's \w+ is \d+, the model's \d+: {MISFIT}", line), line
        file.write_text(before)
    fields = json.loads((odd / "config.json").read_text())
    (odd / "config.json").write_text(json.dumps(fields | {"image_token_id": 3, "image_token_index": 3}))
    line = complaint(lambda: Pair.load(odd, device="cpu"))
    assert re.fullmatch(rf"odd: the processor's image token is [\d, ]+, the model's 3: {MISFIT}", line), line


def doubled(value: Any) -> Any:
    return {name: 2 * side for name, side in value.items()} if isinstance(value, dict) else 2 * value


@pytest.mark.parametrize(
    ("family", "other", "why"),
    [
        ("gemma3", "idefics3", MISFIT),
        ("idefics3", "gemma3", "cannot be read"),
        ("qwen3_vl", "gemma3", "is no processor of a qwen3_vl"),
        ("gemma3", "qwen2_vl", "needs torchvision, which is not installed: install it, or take the processor of its"),
    ],
)
def test_a_processor_of_another_family_is_refused(made: Made, tmp_path: Path, family: str, other: str, why: str):
    """It has none of the fields that would be compared."""
    odd = without_weights(made(family), tmp_path)
    for file in made(other).glob("*processor*"):
        shutil.copy(file, odd)
    assert why in complaint(lambda: Pair.load(odd, device="cpu"))


@pytest.mark.parametrize("family", ["idefics3", "smolvlm"])
def test_tiles_are_counted_as_the_processor_cuts_them(pairs, family: FamilyName):
    """Of every shape: the count that splits a prompt's tiles into pictures is the number of tiles of each picture."""
    images = pairs(family, None, "float64").processor.image_processor
    for width, height in [(1, 1), (1, 90), (90, 1), (28, 28), (29, 28), (56, 57), (57, 56), (300, 7), (99, 98), (9, 5)]:
        cut = images([[checkpoints.picture(0).resize((width, height))]], return_tensors="pt")["pixel_values"]
        assert max(1, images.get_number_of_image_patches(height, width)[0]) == cut.shape[1]


def test_a_smolvlm_writes_a_picture_as_its_own_processor_would(pairs):
    """Which cannot be built without two more packages; Idefics3's writes the same."""
    processor = pairs("smolvlm", None, "float64").processor
    for rows, columns in ((0, 0), (1, 2), (3, 3)):
        ours = processor.replace_image_token({"rows": [[rows]], "cols": [[columns]]}, 0)
        tokens = ("<fake_token_around_image>", "<image>", "<global-img>")
        assert ours == get_image_prompt_string(rows, columns, processor.image_seq_len, *tokens)


@torch.inference_mode()
def test_a_token_goes_to_experts_by_its_own_state(pairs, made: Made):
    """Worked out from the stored weights, ``[experts, in, out]``; alone and among others, in each precision."""
    stored, front = checkpoints.weights_of(made("qwen3_vl_moe")), "model.language_model.layers.0.mlp."
    names = ("gate.weight", "experts.gate_up_proj", "experts.down_proj")
    router, inner, outer = (stored[front + name].double() for name in names)
    states = torch.randn(9, router.shape[1], generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    wanted = torch.zeros_like(states)
    for state, mixed in zip(states, wanted, strict=True):
        shares, chosen = (router @ state).softmax(-1).topk(2)
        for share, number in zip(shares / shares.sum(), chosen.tolist(), strict=True):
            gate, value = (state @ inner[number]).chunk(2)
            mixed += share * (torch.nn.functional.silu(gate) * value) @ outer[number]
    for dtype, error in (("float64", 1e-6), ("float32", 1e-4), ("bfloat16", 0.1)):
        layer = pairs("qwen3_vl_moe", None, dtype).target.get_decoder().layers[0].mlp
        read = states.to(getattr(torch, dtype))
        for rows in (slice(9), slice(4, 5), slice(6, 9)):
            ours = layer(read[None, rows])[0].double()
            torch.testing.assert_close(ours, wanted[rows], rtol=error, atol=error * float(wanted.abs().max()))


def test_weights_are_counted_before_they_are_loaded(pairs, made: Made, family: FamilyName):
    """Those of a tied head once."""
    for name in (family, f"{family} tied"):
        loaded, config = pairs(name, None, "float32").target, Checkpoint.at(made(name)).config()
        stored = sum(weight.nbytes for weight in loaded.parameters())
        assert size_of(type(loaded), config).weight_bytes(4) == stored


# ----------------------------------------------------------------------------------------------- refused


def test_a_draft_of_another_family_is_refused(made: Made):
    for target, draft in (("internvl", "smolvlm"), ("gemma3", "llava_onevision"), ("smolvlm", "idefics3")):
        line = complaint(partial(Pair.load, made(target), made(f"{draft} near"), device="cpu"))
        assert line == (
            f"{draft} near is a {draft}, the target a {target}:"
            f" a draft that reads pictures by itself must be a {target}"
        )


def test_a_draft_with_other_tokens_is_refused_by_number(made: Made, tmp_path: Path):
    families.write_checkpoint(tmp_path / "foreign", "internvl", also="zebras jump over xylophones " * 9)
    ours, theirs = (families.pieces(also).get_vocab() for also in ("", "zebras jump over xylophones " * 9))
    differ = len(set(ours.items()) ^ set(theirs.items())) // 2
    line = complaint(lambda: Pair.load(made("internvl"), tmp_path / "foreign", device="cpu"))
    assert line.startswith(f"the tokenizers of foreign and the target differ in {differ} of {WORDS + 7} shared ids")


def test_what_no_draft_is_made_of_or_for(made: Made, tmp_path: Path):
    llama = checkpoints.write_llama(tmp_path / "llama")
    llava = checkpoints.write_llava(tmp_path / "llava")
    line = complaint(lambda: init_draft(llama, made("gemma3"), tmp_path / "made"))
    assert line.startswith("the tokenizers of llama and gemma3 differ in ")
    line = complaint(lambda: init_draft(llava, made("gemma3"), tmp_path / "made"))
    assert line == "no draft reads a gemma3's tower, as those of llava and llava_next do: make one of a language model"
    line = complaint(lambda: init_draft(made("smolvlm"), llava, tmp_path / "made"))
    assert line == "smolvlm is a smolvlm, which drafts as it is: name it with --draft"


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (Qwen3_5Config, "odd has linear_attention layers, which keep one state for the whole text"),
        (Llama4Config, "odd has chunked_attention layers, which attend in chunks"),
        (PaliGemmaConfig, "models of type paligemma are not known as targets: llava, llava_next, llava_onevision,"),
    ],
)
def test_a_target_that_is_no_family_is_refused_and_says_why(tmp_path: Path, config: type[PretrainedConfig], why: str):
    """Before its processor or a weight is looked for."""
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "config.json").write_text(json.dumps(config().to_dict(), default=str))
    assert complaint(lambda: Pair.load(tmp_path / "odd", device="cpu")).startswith(why)
