"""Published drafts that read the states of targets with other decoders, widths and positions than a LLaVA's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
import torch
from support import checkpoints, feature_checkpoints, feature_families
from support.family_kinds import FamilyName
from support.feature_checkpoints import Layout
from support.feature_scores import check_answer, reference_of, scores, text_of
from test_bad_input import complaint

from specllava.chat import Chat
from specllava.config import RULES, DecodingConfig
from specllava.distill.config import DistillConfig
from specllava.distill.new_draft import check_teachable
from specllava.models.checkpoint import Checkpoint
from specllava.models.drafts.eagle_checkpoint import is_feature_draft, sizes_of
from specllava.pair import Pair
from specllava.spec_decode.loop import Lane

BEAM = DecodingConfig(rule="topk", width=3, depth=3, nodes=8, max_new_tokens=6)
ANSWERS = {3: BEAM, 4: replace(BEAM, rule="fixed", branching=(3, 2))}  # three pictures, and two turns with three


@dataclass(frozen=True)
class Case:
    """A draft as it is published, and a family that it is for.

    Args:
        agrees: its guesses are right now and then.
    """

    layout: Layout
    family: FamilyName
    agrees: bool = True


CASES = {
    "vispec": Case(feature_families.VISPEC, "qwen2_5_vl", agrees=False),
    "msd": Case(feature_families.MSD, "qwen2_vl"),
    "eagle": Case(feature_families.EAGLE, "llava_onevision", agrees=False),
    "specforge": Case(feature_families.SPECFORGE, "qwen2_5_vl", agrees=False),
    "angelslim": Case(feature_families.ANGELSLIM, "qwen3_vl"),
    "speculators": Case(feature_families.SPECULATORS, "qwen3_vl"),
    "wide": Case(feature_families.WIDE, "internvl", agrees=False),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("feature families")
    for seed, family in enumerate({case.family: None for case in CASES.values()}):
        feature_families.write_target(root / family, family, seed)
    for seed, (name, case) in enumerate(CASES.items()):
        target = root / case.family if case.agrees else None
        feature_checkpoints.write_draft(root / name, case.layout, seed, agrees_with=target)
    return root


@pytest.fixture(scope="module")
def pairs(root: Path) -> Callable[[str], Pair]:
    @cache
    def target(family: FamilyName) -> Pair:
        return Pair.load(root / family, device="cpu", dtype="float64")

    @cache
    def pair(name: str) -> Pair:
        asked = "msd" if CASES[name].layout.format == "msd" else None
        return target(CASES[name].family).with_draft(root / name, asked)

    return pair


@pytest.mark.parametrize("name", CASES)
def test_every_guess_is_what_the_format_says(pairs, root: Path, name: str):
    """Node by node, the trees of whole answers; and the answers are the target's own."""
    pair, case = pairs(name), CASES[name]
    reference, saved = reference_of(pair, case.layout, root / name), 0
    for number, config in ANSWERS.items():
        messages = checkpoints.messages(number)
        prompt = pair.prompt(None, messages)
        with scores() as trees:
            trace = pair.run(Lane("x", config, prompt))
        plain = pair.run(Lane("x", replace(config, drafter="none"), prompt))
        assert trace.token_ids == plain.token_ids
        check_answer(reference, text_of(pair, case.layout, messages, trace.token_ids), trace, trees)
        saved += len(plain.steps) - len(trace.steps)
    assert not case.agrees or saved > 0


@pytest.mark.parametrize("name", CASES)
def test_no_rule_and_no_heat_changes_a_token(pairs, name: str):
    """Nor do passes of fixed shapes, which draft the same trees as those that are read as they come."""
    pair, number = pairs(name), list(CASES).index(name)
    padded = replace(pair, passes="padded")
    prompt = pair.prompt(None, checkpoints.messages(number))
    config = replace(BEAM, min_log_prob=-50.0, entropy_threshold=1.0)
    for heat in ({}, {"temperature": 0.8, "top_p": 0.9, "seed": number}):
        plain = pair.run(Lane("x", replace(config, drafter="none", **heat), prompt)).token_ids
        for rule in RULES[number % 3 :: 6 if heat else 3]:
            assert padded.run(Lane("x", replace(config, rule=rule, **heat), prompt)).token_ids == plain
    lane = Lane("x", config, prompt)
    guesses = [[(step.tree.tokens, step.tree.parents) for step in one.run(lane).steps] for one in (pair, padded)]
    assert guesses[0] == guesses[1]


@pytest.mark.parametrize("name", ["vispec", "specforge"])
def test_a_turn_that_goes_on_drafts_what_a_fresh_reading_drafts(pairs, name: str):
    """Pictures in both turns: the draft's cache keeps what the prompts share, at the positions that it had."""
    pair = pairs(name)
    chat = Chat(pair)
    for turn, question in enumerate(("What is this?", "Where?")):
        with scores() as going:
            trace = chat.ask(question, [checkpoints.picture(turn + 1)], BEAM)
        with scores() as fresh:
            alone = pair.generate(None, chat.messages[: 2 * turn + 1], BEAM)
        assert (trace.prefill.reused_tokens > 0) == (turn > 0)
        assert alone.token_ids == trace.token_ids and len(going) == len(fresh) > 0
        for some, others in zip(going, fresh, strict=True):
            assert [one.path for one in some] == [one.path for one in others]
            rows = [torch.stack([one.logits for one in tree]) for tree in (some, others)]
            torch.testing.assert_close(*rows, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["specforge", "wide"])
def test_memory_is_counted_for_the_tokens_that_a_head_scores(pairs, root: Path, name: str):
    """A head for 32,000 of 152,064 tokens was counted as if it scored them all."""
    pair = pairs(name)
    sizes = sizes_of(Checkpoint.at(root / name), pair.target.config)
    assert sizes.draft_vocab_size == pair.draft.config.draft_vocab_size == CASES[name].layout.head


def test_a_draft_that_rotates_by_rows_is_not_taught(pairs):
    """Its lessons would have plain positions, and its guesses have others."""
    line = complaint(lambda: check_teachable(pairs("specforge"), DistillConfig(drafter="eagle3")))
    assert line.startswith("the draft specforge rotates by three rows of positions") and "--drafter eagle3" in line


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"model_type": "llava_next"}, True),
        ({"model_type": "llava", "mm_hidden_size": 1024}, True),
        ({"model_type": "qwen2_vl", "vision_config": {"depth": 32}}, True),
        ({"model_type": "qwen2_vl", "vision_config": {"depth": 32}, "num_hidden_layers": 28}, False),
        ({"model_type": "llava", "text_config": {"num_hidden_layers": 1}}, False),
    ],
)
def test_a_configuration_of_the_targets_type_is_a_drafts_if_it_has_one_layer(tmp_path: Path, settings, found: bool):
    """As ViSpec and MSD write them; drafts of type llava_next were taken for whole models."""
    feature_checkpoints.write_draft(tmp_path / "draft", feature_families.VISPEC)
    said = feature_checkpoints.settings(Layout("vispec")) | settings
    checkpoints.write(tmp_path / "draft" / "config.json", said)
    assert is_feature_draft(Checkpoint.at(tmp_path / "draft")) is found
