"""Random checkpoints in the published formats: no token changes, whatever family, draft, picture or chat."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from support import checkpoints
from support.amount import ALL
from support.chats import check_last, columns_of
from support.checkpoints import FAMILIES, FamilyName
from support.family_proofs import check_generate, check_rest, said

from specllava.chat import Chat
from specllava.config import DecodingConfig
from specllava.distill.new_draft import init_draft
from specllava.models.drafts.draft_vlm import VisionSource
from specllava.models.options import DTypeName
from specllava.pair import Pair

PROMPTS = 50 if ALL else 18
FAST = DecodingConfig(max_new_tokens=7, depth=3, nodes=6, width=2, min_log_prob=-50.0, entropy_threshold=1.0)
ALONE = replace(FAST, drafter="none")
NOISE = 0.03
# How each draft was made, and how it comes to know a picture. All but "init" and "blind" resemble their target.
DRAFTS: dict[str, VisionSource] = {"init": "shared", "blind": "none", "same tower": "shared", "own tower": "own"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Targets, what drafts are made of, and the drafts that the two commands make of it."""
    root = tmp_path_factory.mktemp("checkpoints")
    for family in FAMILIES:
        target = checkpoints.write_llava(root / family, family)
        whole = checkpoints.weights_of(target)
        near = checkpoints.noisy({n: w for n, w in whole.items() if "vision_tower" not in n and w.dim() > 1}, NOISE)
        checkpoints.write_llava(root / f"{family}, same tower", family, parts=whole | near)
        checkpoints.write_llava(root / f"{family}, own tower", family, seed=1, parts=near)
        speaker = checkpoints.speaker_of(target)
        checkpoints.write_llama(root / f"{family}, speaker", layers=2, hidden=48, parts=speaker)
        init_draft(root / f"{family}, speaker", target, root / f"{family} init")
        init_draft(root / f"{family}, speaker", target, root / f"{family} blind", text_only=True)
        for tower in ("same tower", "own tower"):
            init_draft(root / f"{family}, {tower}", target, root / f"{family} {tower}")
    return root


@pytest.fixture(scope="module")
def pairs(root: Path):
    """A pair by family, draft and precision; a target is loaded once per precision."""

    @cache
    def alone(family: FamilyName, dtype: DTypeName) -> Pair:
        return Pair.load(root / family, device="cpu", dtype=dtype)

    @cache
    def pair(family: FamilyName, made: str, dtype: DTypeName) -> Pair:
        return alone(family, dtype).with_draft(root / f"{family} {made}")

    return pair


@pytest.mark.parametrize("family", FAMILIES)
def test_speculation_changes_no_token_in_float32(pairs, family: FamilyName):
    """Prompts, drafts in turn: none, one and three pictures of odd sizes, one and two turns."""
    accepted = dict.fromkeys(DRAFTS, 0)
    for number in range(PROMPTS):
        turns = list(DRAFTS)[number % 2 :: 2]
        drafted = [pairs(family, made, "float32") for made in turns]
        prompts = [pair.prompt(None, checkpoints.messages(number)) for pair in drafted]
        plain, passes = said(drafted[0], prompts[0], ALONE)
        for made, pair, prompt in zip(turns, drafted, prompts, strict=True):
            assert pair.draft_vision == DRAFTS[made]
            fast, fewer = said(pair, prompt, FAST)
            assert fast == plain
            accepted[made] += passes - fewer
    assert min(accepted.values()) > 0  # all drafts were right at times, so that there was something to keep


@pytest.mark.parametrize("family", FAMILIES)
def test_target_only_is_transformers_own_generate(pairs, family: FamilyName):
    check_generate(pairs(family, "init", "float64"), [number for number in range(10) if number % 5])


@pytest.mark.parametrize("made", DRAFTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_chat_that_keeps_its_caches_says_what_a_fresh_reading_says(pairs, family: FamilyName, made: str):
    """Pictures in several turns, some of them again, an earlier turn edited; each tower sees each picture once."""
    chat = Chat(pairs(family, made, "float64"))
    bundle = chat._pair
    towers = [bundle.target, *([bundle.draft] if DRAFTS[made] == "own" else [])]
    seen: list[int] = []
    hooks = [
        m.model.vision_tower.register_forward_pre_hook(lambda _, given: seen.append(len(given[0]))) for m in towers
    ]
    try:
        reused = 0
        for question, shown in (("What is this?", (1, 2)), ("Where?", ()), ("And here?", (2, 3))):
            seen.clear()
            with columns_of(bundle.target) as passes:
                trace = chat.ask(question, [checkpoints.picture(number) for number in shown], FAST)
            assert trace.prefill.reused_tokens == trace.prefill.prompt_tokens - passes[0] >= reused
            reused = trace.prefill.reused_tokens
            assert len(seen) == (len(towers) if shown else 0)  # one pass for all that is new
            check_last(chat)
        assert reused > 0
        chat.ask("Why?", None, FAST, 1)
        check_last(chat)
    finally:
        for hook in hooks:
            hook.remove()


@pytest.mark.parametrize("family", FAMILIES)
def test_reading_the_rest_is_reading_the_whole(pairs, family: FamilyName):
    """Pictures of one prompt differ in their slots, but for llava's."""
    pair = pairs(family, "init", "float64")
    check_rest(pair)
    shown = [pair.prompt(checkpoints.picture(number), "What?").input_ids for number in (1, 2, 4)]
    slots = {int((ids == pair.target.config.image_token_id).sum()) for ids in shown}
    assert len(slots) == (1 if family == "llava" else 3)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_draft_reads(pairs, family: FamilyName):
    """Shared: the same. Blind: the words without the slots. Own: the same words, features of its own tower."""
    for made, vision in DRAFTS.items():
        bundle = pairs(family, made, "float32")
        prompt = bundle.prompt(None, checkpoints.messages(3))
        marker = bundle.target.config.image_token_id
        words = prompt.input_ids[prompt.input_ids != marker].tolist()
        if vision == "shared":
            assert prompt.draft_prompt is None
        elif vision == "none":
            assert prompt.draft_prompt.input_ids[0].tolist() == words
            assert (prompt.draft_prompt.features, prompt.draft_prompt.image_keys) == (None, ())
        else:
            own = prompt.draft_prompt
            assert own.input_ids[own.input_ids != marker].tolist() == words
            assert len(own.features) == len(prompt.features) == 3
            assert not set(own.image_keys) & set(prompt.image_keys)
            states = [torch.as_tensor(getattr(p.features[0], "states", p.features[0])) for p in (own, prompt)]
            assert not torch.allclose(*states)


def test_a_trace_of_a_pair_from_disk_names_its_parts(pairs):
    setting = pairs("llava_next", "own tower", "float32").info
    assert (setting.pair, setting.target) == ("llava_next", "llava_next")
    assert (setting.draft, setting.dtype) == ("llava_next own tower", "float32")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_script_that_repeats_these_checks_on_real_checkpoints(pairs, family: FamilyName):
    """``python -m benchmarks.checkpoints``, on a random one."""
    from benchmarks.checkpoints import run_checks

    lanes = run_checks(pairs(family, "same tower", "float64"), 3, replace(FAST, max_new_tokens=5))
    assert {name: (lane.runs, len(lane.comparisons)) for name, lane in lanes.items()} == {
        "speculative": (3, 0),
        "transformers": (3, 0),
        "speculative, in a chat": (3, 0),
    }


