"""Decoding is what it was when runs were recorded: token ids, trees and verdicts, whatever the code is called now.

A sample of every rule, drafter and way to draw is replayed; ``SPECLLAVA_TESTS_ALL=1 python -m pytest
tests/test_recorded_runs.py`` replays all of them.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from support import recorded_runs
from support.amount import sample

from specllava.models.options import DTypeName, PassesName
from specllava.pair import Pair
from specllava.trace_fields import RETIRED_RULES

Load = Callable[[DTypeName], Pair]
RECORD: dict[str, Any] = json.loads(recorded_runs.RECORD.read_text(encoding="utf-8"))
ROWS: list[dict[str, Any]] = [*RECORD["runs"], *RECORD["cost_aware"]]
# Without the retired rule, and the retired verifier of drawn guesses.
RUNS = [
    row
    for row in ROWS
    if row["config"].get("rule") not in RETIRED_RULES and row["config"].get("verifier") != "traversal"
]
EACH = 2  # runs of a kind


def kinds() -> dict[str, list[dict[str, Any]]]:
    """A sample of the runs by rule or drafter and way to draw, as in ``entropy greedy``."""
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in RUNS:
        found[row["name"].rpartition(" ")[0]].append(row)
    return {kind: list(sample(rows, EACH)) for kind, rows in found.items()}


def replayed(load: Load, rows: list[dict[str, Any]], passes: PassesName) -> Iterator[str]:
    """Where each run differs from its record, in one line; empty if it does not."""
    for row in rows:
        pair = replace(load("float64"), passes=passes)
        trace = recorded_runs.run(pair, RECORD["prompts"][row["prompt"]], row["config"])
        assert trace.setting.passes == (None if passes == "auto" else passes)
        yield recorded_runs.difference(row, recorded_runs.outcome(trace.to_json()))


@pytest.mark.parametrize("rows", [pytest.param(rows, id=kind) for kind, rows in kinds().items()])
def test_token_ids_trees_and_verdicts_are_the_recorded_ones(shipped: Load, rows: list[dict[str, Any]]) -> None:
    """Of the last run of a kind in padded passes, too."""
    lines = [*replayed(shipped, rows, "auto"), *replayed(shipped, rows[-1:], "padded")]
    parted = [line for line in lines if line]
    assert not parted, f"{len(parted)} of {len(lines)} runs differ from their record, the first: {parted[0]}"


def test_the_record_holds_every_way_to_decode() -> None:
    assert (len(ROWS), len(RUNS)) == (366, 314)
    rows = [row["config"] for row in RUNS]
    greedy = Counter(row.get("rule", row["drafter"]) for row in rows if row["temperature"] == 0)
    rules = {"entropy", "chain", "fixed", "topk", "sequoia"}  # a later rule has no record
    assert greedy.keys() == rules | {"prompt-lookup", "none"}
    assert min(greedy.values()) >= 12 and greedy.total() == 270
    assert Counter(row["rule"] for row in rows if row.get("children") == "drawn") == {"fixed": 8, "sequoia": 8}
    assert sum(row["temperature"] > 0 and row["children"] == "best" for row in rows) == 28
    assert recorded_runs.RECORD.stat().st_size < 150_000


def test_recorded_greedy_answers_to_one_prompt_are_one_answer() -> None:
    """Longer and shorter beginnings of it, whoever drafted: a record of a fault could not be kept by mistake."""
    answers: dict[int, list[list[int]]] = defaultdict(list)
    for row in ROWS:
        if row["config"]["temperature"] == 0:
            answers[row["prompt"]].append(row["tokens"])
    assert len(answers) == len(RECORD["prompts"])
    for same in answers.values():
        longest = max(same, key=len)
        assert all(longest[: len(tokens)] == tokens for tokens in same)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda trace: trace["prefill"].update(first_token=1), "the first token differs"),
        (lambda trace: trace["steps"][1]["tree"]["parents"].__setitem__(-1, 0), "step 2 differs"),
        (lambda trace: trace["steps"][2]["tree"]["tokens"].__setitem__(-1, 1), "step 3 differs"),
        (lambda trace: trace["steps"][0]["verification"].update(accepted=[7]), "step 1 differs"),
        (lambda trace: trace["steps"][0]["verification"].update(next_token=1), "step 1 differs"),
        (lambda trace: trace["steps"][1]["emitted"].append(1), "step 2 differs"),
        (lambda trace: trace["steps"].pop(), "now: 2"),
        (lambda trace: trace.update(finish_reason="stopped"), "it finishes by 'stopped'"),
    ],
)
def test_any_change_of_a_run_is_named(change: Callable[[dict[str, Any]], object], said: str) -> None:
    tree = {"tokens": [3, 4, 5], "parents": [-1, 0, 1]}
    step = {"tree": tree, "verification": {"accepted": [1], "next_token": 9}, "emitted": [4, 9]}
    trace = {"prefill": {"first_token": 3}, "steps": [step, step, step], "finish_reason": "length"}
    before = recorded_runs.outcome(json.dumps(trace).encode())
    changed = json.loads(json.dumps(trace))
    change(changed)
    after = recorded_runs.outcome(json.dumps(changed).encode())
    row = {"name": "a run", "config": {}, "prompt": 0, **before}
    assert recorded_runs.difference(row, before) == ""
    assert said in recorded_runs.difference(row, after)
