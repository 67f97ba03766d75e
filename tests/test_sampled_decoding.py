"""With a temperature the whole decode loop draws from the target's distribution, however the guesses came about."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest
from support import models
from support.amount import sample
from support.chances import check_distribution, drawn_exactly
from torch import Tensor

from specllava.config import DecodingConfig

LENGTH, TOP_K, RUNS = 3, 3, 200
FAMILIES = {
    "target-only": DecodingConfig(drafter="none"),
    "entropy": DecodingConfig(max_branches=3, entropy_threshold=0.0, min_log_prob=-50.0),
    "topk": DecodingConfig(rule="topk", width=2, nodes=5),
    "prompt-lookup": DecodingConfig(drafter="prompt-lookup", ngram=1),
    "drawn": DecodingConfig(rule="fixed", branching=(2, 2), temperature=1.0, children="drawn"),
}


def with_options(family: str, seed: int, limit: int = LENGTH) -> DecodingConfig:
    given = {name: getattr(FAMILIES[family], name) for name in FAMILIES[family].__dataclass_fields__}
    return DecodingConfig(**(given | {"temperature": 6.0 / 5, "top_k": TOP_K, "seed": seed, "max_new_tokens": limit}))


@cache
def exact() -> dict[tuple[int, ...], float]:
    inputs = models.plain_inputs(0)

    def logits(ids: Tensor) -> Tensor:
        return models.target(0)(input_ids=ids, pixel_values=inputs["pixel_values"], use_cache=False).logits

    return drawn_exactly(logits, inputs["input_ids"], LENGTH, 6.0 / 5, TOP_K)


@pytest.mark.parametrize("family", sample(tuple(FAMILIES), 3))
def test_answers_have_the_targets_distribution(family: str):
    pair, prompt = models.pair("mixed"), models.prompt(0)
    seen = Counter(models.decode(pair, prompt, with_options(family, seed)).token_ids for seed in range(RUNS))
    check_distribution(seen, exact())


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_seed_gives_the_same_answer_and_another_another(family: str):
    pair, prompt = models.pair("mixed"), models.prompt(1)
    answers = [models.decode(pair, prompt, with_options(family, seed, 12)).token_ids for seed in (3, 3, 4, 5)]
    assert answers[0] == answers[1]
    assert len(set(answers)) == 3


@pytest.mark.parametrize("seed", range(4))
def test_with_chosen_children_the_draft_changes_no_token_of_a_drawn_answer(seed: int):
    """Not only the distribution: chance is asked once for each token, so the same seed says the same."""
    prompt = models.prompt(seed % 4)
    alone, *others = (
        models.decode(models.pair(kind), prompt, with_options(family, seed, 16)).token_ids
        for family in FAMILIES
        for kind in models.KINDS
        if FAMILIES[family].keeps_tokens
    )
    assert others == [alone] * len(others)


def test_guesses_of_a_good_draft_are_taken_often():
    """Guards the tests above: they would pass if nothing were ever drafted."""
    pair, prompt = models.pair("perfect"), models.prompt(0)
    for family in ("entropy", "drawn"):
        traces = [models.decode(pair, prompt, with_options(family, seed, 16)) for seed in range(5)]
        assert sum(len(step.verification.accepted) for trace in traces for step in trace.steps) > 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"children": "drawn", "rule": "fixed"}, "need a temperature above 0"),
        ({"children": "drawn", "temperature": 1.0}, "the entropy rule drops guesses for what they are"),
    ],
)
def test_combinations_that_would_not_be_exact_are_refused(options: dict[str, object], message: str):
    with pytest.raises(ValueError, match=message):
        DecodingConfig(**options)
