"""Settings: what is shown of them, what is said of them, and what the page makes of them."""

from __future__ import annotations

import re
from itertools import product

import pytest

from specllava.config import DecodingConfig, options_read
from specllava.drafters import DRAFTER_INFOS
from specllava.growth.rules import RULE_INFOS
from visual.player.summary import DRAFTERS, PHRASES, settings_summary

CHANGED = {
    "entropy_threshold": 1.7, "max_branches": 7, "width": 11, "min_log_prob": -13.5, "branching": (5, 4),
    "rank_acceptance": (0.71, 0.23), "ngram": 6, "depth": 29, "nodes": 157, "max_new_tokens": 1234, "top_p": 0.83,
    "top_k": 619, "seed": 424242,
}  # fmt: skip
COMBINATIONS = [
    config
    for drafter, rule, temperature, children, verifier in product(
        DRAFTER_INFOS, RULE_INFOS, (0.0, 0.9), ("best", "drawn"), ("token", "traversal")
    )
    if children == "best" or (temperature and RULE_INFOS[rule].drawable)
    if verifier == "token" or children == "drawn"
    for names in [{"drafter": drafter, "rule": rule, "children": children, "verifier": verifier}]
    for config in [DecodingConfig(**CHANGED, **names, temperature=temperature)]
]


def read(config: DecodingConfig) -> frozenset[str]:
    return options_read(config.drafter, config.rule, config.temperature, config.children)


@pytest.mark.parametrize("config", COMBINATIONS)
def test_d10_a_summary_names_all_that_is_read_and_nothing_else(config: DecodingConfig) -> None:
    summary = settings_summary(config)
    for name, phrase in PHRASES.items():
        words = re.escape(phrase).replace(r"\{\}", "[-0-9., a-z]+")
        greedy = name == "temperature" and config.temperature == 0
        said = re.search(f"(^| · ){words}( · |$)", summary) is not None
        assert said == (name in read(config) and not greedy), (name, summary)
    assert ("greedy" in summary) == (config.temperature == 0)
    assert summary.startswith(DRAFTERS[config.drafter])
    named = [rule for rule in RULE_INFOS if f"{rule} rule" in summary]
    assert named == ([config.rule] if config.drafter == "model" else [])


def test_two_runs_that_differ_in_what_is_read_are_told_apart() -> None:
    summaries: dict[str, tuple[object, ...]] = {}
    for config in COMBINATIONS:
        seen = tuple((name, getattr(config, name)) for name in sorted(read(config)))
        assert summaries.setdefault(settings_summary(config), seen) == seen


def test_objects_of_ones_own_are_named_and_nothing_is_made_up_about_them() -> None:
    said = settings_summary(DecodingConfig(), rule="MyRule", drafter="MyDrafter")
    assert said == "MyDrafter · MyRule rule · greedy · at most 160 tokens"
    said = settings_summary(DecodingConfig(), rule="MyRule")
    assert said.startswith("draft model · MyRule rule") and "0.3" not in said
