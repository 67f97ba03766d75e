"""Drafts that read the target's states in experiments: scored with true states, never shown another prompt."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import TypeVar

import pytest
import torch
from support import models
from support.feature_scores import scores
from test_bad_input import complaint

from benchmarks.identity import FORMATS, Runner
from specllava.bench.lanes import run_timed
from specllava.core.config import RULES, DecodingConfig
from specllava.core.question import Question
from specllava.lab import Lab
from specllava.lab.ablation import Variant, ablate, with_tree_comparisons
from specllava.lane import Lane, lane_of
from specllava.pair import Pair
from specllava.runtime.prompt import Prompt, with_draft_prompt
from specllava.runtime.scoring import draft_log_probs, score_draft, teacher_forced_log_probs

SHORT = DecodingConfig(rule="topk", width=2, depth=3, nodes=5, max_new_tokens=10)
QUESTION = "What is this?"
T = TypeVar("T")


def last(found: Iterator[T]) -> T:
    """The finding that an experiment ends with."""
    *_, end = found
    return end


@cache
def runner() -> Runner:
    return Runner(torch.float64)


def prompt_of(pair: Pair, seed: int) -> Prompt:
    return pair.prompt(models.picture(seed) if seed else None, QUESTION)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", FORMATS)
def test_scores_are_what_decoding_guesses_behind_each_root(name: str, seed: int):
    """A root's guesses come from true states alone, as all rows of a teacher-forced reading do."""
    pair = runner().pair(seed, name)
    prompt = prompt_of(pair, seed)
    with scores() as trees:
        trace = pair.run(Lane("x", SHORT, prompt))
    roots = [tree[0].logits for tree in trees]
    rows = draft_log_probs(pair.target, pair.draft, prompt, trace.token_ids)
    assert rows.shape == (len(trace.token_ids), pair.target.config.text_config.vocab_size)
    place = 1
    for step, root in zip(trace.steps, roots, strict=False):
        torch.testing.assert_close(rows[place], root.log_softmax(-1), rtol=1e-9, atol=1e-9)
        place += len(step.emitted)
    for count in (1, 2):
        part = draft_log_probs(pair.target, pair.draft, prompt, trace.token_ids[:count])
        torch.testing.assert_close(part, rows[:count], rtol=1e-9, atol=1e-9)


def test_the_divergence_of_a_draft_vocabulary_is_over_the_tokens_that_it_can_guess():
    pair = runner().pair(0, "eagle3, 200 tokens")
    prompt = prompt_of(pair, 1)
    answer = pair.run(Lane("x", SHORT, prompt)).token_ids
    ours = draft_log_probs(pair.target, pair.draft, prompt, answer)
    theirs = teacher_forced_log_probs(pair.target, prompt, answer)
    scores = score_draft(ours, theirs, answer)
    ids = (pair.draft.d2t + torch.arange(200)).tolist()
    assert (ours.exp() > 0).sum(-1).tolist() == [200] * len(answer)
    for place, token in enumerate(answer):
        among = theirs[place, ids].log_softmax(-1)
        wanted = float((among.exp() * (among - ours[place, ids])).sum())
        assert scores.divergences[place] == pytest.approx(wanted, abs=1e-9) and math.isfinite(wanted)
        assert scores.probs[place] == pytest.approx(float(ours[place, token].exp()))
        assert (scores.probs[place] == 0.0) == (token not in ids)


def test_an_empty_answer_and_a_prompt_of_its_own_are_refused():
    pair = runner().pair(0, "eagle")
    prompt = prompt_of(pair, 1)
    assert "it has 0 tokens" in complaint(lambda: draft_log_probs(pair.target, pair.draft, prompt, ()))
    shown = with_draft_prompt(prompt, prompt_of(pair, 2))
    line = "the draft reads the target's states, so it cannot be given a prompt of its own"
    assert complaint(lambda: draft_log_probs(pair.target, pair.draft, shown, (5, 6))) == line
    assert complaint(lambda: pair.run(Lane("x", SHORT, shown))) == line


@pytest.mark.parametrize("name", ["eagle", "vispec", "eagle3, 200 tokens"])
def test_experiments_take_a_draft_that_reads_states(name: str):
    pair = runner().pair(0, name)
    lab, picture = Lab(pair), models.picture(0)
    alone = pair.generate(picture, QUESTION, DecodingConfig(drafter="none", max_new_tokens=10)).token_ids
    for done, count in (
        (last(lab.rules(picture, QUESTION, SHORT)), len(RULES)),
        (last(lab.sweep(picture, QUESTION, "depth", SHORT)), None),
    ):
        assert all(point.sameness.identical for point in done.points) and done.alone.token_ids == alone
        assert count is None or len(done.points) == count
    compared = last(lab.compare([Question(QUESTION, picture)], 1, SHORT, DecodingConfig(max_new_tokens=10)))
    assert compared.rows[0].sameness.identical


def test_drafts_of_every_kind_are_compared_on_one_answer():
    """The target is one object; a draft VLM stands beside those that read its states."""
    pairs = [runner().pair(1, name) for name in FORMATS]
    prompt = prompt_of(pairs[0], 1)
    variants = [Variant(pair.draft_name, pair, prompt) for pair in pairs]
    found = last(ablate(variants, SHORT))
    assert [side.name for side in found.results] == list(FORMATS)
    assert all(same.identical for same in found.sameness)
    for side in found.results:
        assert all(math.isfinite(one) and one >= 0 for one in side.scores.divergences)
        assert len(side.scores) == len(found.results[0].trace.token_ids)
    done = last(with_tree_comparisons(found, variants, SHORT))
    assert done.comparisons and all(len(one.traces) == len(FORMATS) for one in done.comparisons)


def test_another_picture_cannot_be_shown_to_it():
    lab = Lab(runner().pair(0, "msd"))
    line = complaint(lambda: last(lab.image_ablation(models.picture(0), QUESTION, models.picture(1), SHORT)))
    assert line == "the draft msd reads the target's states: it cannot be shown another picture"


def test_it_was_not_the_shipped_draft_before():
    """A pair that bears a preset's name and another draft than the preset's."""
    lab = Lab(replace(runner().pair(0, "eagle"), name="toy"))
    line = complaint(lambda: last(lab.distillation(models.picture(0), QUESTION, SHORT)))
    assert line.startswith("the draft eagle reads the target's states, and the one from before distillation is")


def test_a_benchmark_times_it_as_any_other():
    pair = runner().pair(0, "eagle")
    run = run_timed(pair, lane_of(SHORT, prompt_of(pair, 1)))
    assert run.wall_seconds >= run.decode_seconds > 0
