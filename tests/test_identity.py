"""Drafts that read the target's states never change a token, and leave drawn answers their distribution."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import cycle
from pathlib import Path

import pytest
import torch
from support import checkpoints, feature_checkpoints
from support.amount import ALL, sample
from support.chances import check_distribution, drawn_exactly
from support.checkpoints import FAMILIES
from support.feature_checkpoints import LAYOUTS

from benchmarks.identity import DRAFTERS, Runner, count
from specllava.config import RULES, DecodingConfig
from specllava.metrics import Comparison, compare
from specllava.models.options import DTypeName
from specllava.pair import Pair
from specllava.spec_decode.loop import Lane

LIMIT = 12
Pairs = Callable[[str, str, DTypeName], Pair]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    """Published layouts on disk, for both families; drafts that agree with their target now and then."""
    root = tmp_path_factory.mktemp("identity")

    @cache
    def written(family: str) -> Path:
        calm = feature_checkpoints.CALM
        return feature_checkpoints.write_target(root / family, family, FAMILIES.index(family), calm)

    @cache
    def target(family: str, dtype: DTypeName) -> Pair:
        return Pair.load(written(family), device="cpu", dtype=dtype)

    @cache
    def draft(name: str, family: str) -> Path:
        return feature_checkpoints.write_draft(root / f"{family} {name}", LAYOUTS[name], 0, written(family))

    @cache
    def pair(name: str, family: str, dtype: DTypeName) -> Pair:
        asked = "msd" if LAYOUTS[name].format == "msd" else None
        return target(family, dtype).with_draft(draft(name, family), asked)

    return pair


def outcomes(
    pairs: Pairs, name: str, family: str, dtype: DTypeName, cases: int
) -> Iterator[tuple[str, Comparison, int]]:
    """Any tree on any prompt: what comparing with the target alone gives, and how many guesses it took."""
    pair, rng = pairs(name, family, dtype), random.Random(f"{name} {family}")
    for number in range(cases):
        alone = DecodingConfig(
            drafter="none", temperature=(0.0, 0.0, 0.8)[number % 3], seed=number, max_new_tokens=LIMIT
        )
        config = replace(
            alone,
            drafter="model",
            rule=rng.choice(RULES),
            depth=rng.randint(1, 6),
            width=rng.randint(1, 5),
            nodes=rng.randint(1, 20),
            max_branches=rng.randint(1, 5),
            entropy_threshold=rng.uniform(0, 2),
            min_log_prob=rng.choice((-50.0, -8.0, -4.0)),
        )
        prompt = pair.prompt(None, checkpoints.messages(rng.randrange(25)), LIMIT)
        plain, fast = (pair.run(Lane("x", one, prompt)) for one in (alone, config))
        yield f"{number}: {config}", compare(plain, fast), sum(len(step.verification.accepted) for step in fast.steps)


@pytest.mark.parametrize(("name", "family"), sample([*zip(LAYOUTS, cycle(FAMILIES))], 6))
def test_in_float64_the_answers_are_identical(pairs: Pairs, name: str, family: str):
    """Greedy ones, and with the same seed drawn ones too."""
    accepted = 0
    for case, verdict, taken in outcomes(pairs, name, family, "float64", 8):
        assert verdict.identical, case
        accepted += taken
    assert accepted > 0


@pytest.mark.parametrize("name", sample(tuple(LAYOUTS), 5))
def test_in_float32_the_answers_part_at_near_ties_only(pairs: Pairs, name: str):
    for case, verdict, _ in outcomes(pairs, name, "llava", "float32", 4 if ALL else 1):
        assert verdict.identical or verdict.near_tie, f"{case}: {verdict}"


@pytest.mark.night
def test_no_format_changes_a_token_of_trees_that_are_taken():
    """``python -m benchmarks.identity``, in short."""
    *_, whole = count(2 * len(DRAFTERS), torch.float64, seed=3)
    assert all(row["runs"] == 2 and row["mismatches"] == row["ties"] == 0 for row in whole.values())
    assert sum(row["tokens"] for row in whole.values()) > sum(row["target_passes"] for row in whole.values())


# ------------------------------------------------------------------------------------------------- drawn answers

LENGTH, TOP_K, RUNS = 3, 3, 200
WARMTH = 3.0
DRAWN = {
    "best": {"rule": "topk", "width": 2, "nodes": 5},
    "drawn": {"rule": "fixed", "branching": (2, 2), "children": "drawn"},
}


@cache
def runner() -> Runner:
    return Runner(torch.float64)


@cache
def exact() -> dict[tuple[int, ...], float]:
    pair = runner().pair(0, "eagle")
    ids = pair.prompt(None, "What is this?").input_ids
    return drawn_exactly(lambda ids: pair.target(input_ids=ids, use_cache=False).logits, ids, LENGTH, WARMTH, TOP_K)


@pytest.mark.parametrize(
    ("name", "how"), sample([("eagle3, 200 tokens", "drawn"), ("eagle3, 200 tokens", "best"), ("vispec", "best")], 1)
)  # fmt: skip
def test_answers_have_the_targets_distribution(name: str, how: str):
    """Also where the draft can guess a part of the vocabulary only."""
    pair = runner().pair(0, name)
    prompt = pair.prompt(None, "What is this?")
    config = DecodingConfig(temperature=WARMTH, top_k=TOP_K, max_new_tokens=LENGTH, **DRAWN[how])
    seen: Counter[tuple[int, ...]] = Counter()
    accepted = 0
    for seed in range(RUNS):
        trace = pair.run(Lane("x", replace(config, seed=seed), prompt), record=False)
        seen[trace.token_ids] += 1
        accepted += sum(len(step.verification.accepted) for step in trace.steps)
    assert accepted > 0
    check_distribution(seen, exact())


@pytest.mark.night
def test_the_count_of_many_random_runs():
    """``python -m benchmarks.identity --settings``, in short: drafts of every format."""
    *_, rows = count(2 * len(DRAFTERS), torch.float64, seed=7, settings=True)
    assert all(row["runs"] == 2 and row["mismatches"] == row["ties"] == 0 for row in rows.values())
    assert sum(row["generated"] for row in rows.values()) > 10
    assert not any(row["unlike_generate"] for row in rows.values())
