"""The GPU benchmark, rehearsed on a CPU at the toy's size: each part runs, and what it counts is what happened."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import models

from benchmarks import gpu
from benchmarks.shared.oracle import OracleDrafter, accepted_length
from specllava.config import DecodingConfig
from specllava.spec_decode.loop import Lane


def run(path: Path, parts: dict[str, gpu.Part], monkeypatch: pytest.MonkeyPatch, budget: float = 1e9) -> dict[str, Any]:
    monkeypatch.setattr(gpu, "parts_of", lambda *given: parts)
    code = gpu.main("random-toy", budget, path, "cpu")
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    assert code == any(part["error"] for part in report["parts"].values())
    return report


def test_every_part_but_the_page_runs_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    parts = gpu.parts_of("random-toy", "bfloat16")
    assert list(parts)[-1] == "page"
    report = run(tmp_path / "gpu.json", {name: parts[name] for name in list(parts)[:-1]}, monkeypatch)
    assert [part["error"] for part in report["parts"].values()] == [None] * (len(parts) - 1)
    found = {name: part["found"] for name, part in report["parts"].items()}
    assert found["drafting, eagle"]["nodes"] == found["drafting, own"]["nodes"] == 60
    for name, answers in found.items():
        for lane, one in answers.items() if name.startswith("known answer") else ():
            if isinstance(one, dict):
                assert one["differ"] == 0 or name == "known answer, bfloat16", (name, lane)
                assert one["speedup"] == pytest.approx(answers["alone_ms_token"] / one["ms_token"])
    assert {goal["goal"] for goal in report["goals"]} >= {"target passes, over_one_row, 32", "drafting, eagle, cycle"}


def test_a_part_that_fails_and_a_budget_that_is_over_cost_no_other_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def broken(bench: gpu.Bench) -> dict[str, Any]:
        raise RuntimeError("two\nlines")

    path = tmp_path / "gpu.json"
    seen = list[list[str]]()

    def looking(bench: gpu.Bench) -> dict[str, Any]:
        seen.append(list(json.loads(path.read_text(encoding="utf-8"))["parts"]))
        return {"value": 1}

    report = run(path, {"broken": broken, "whole": looking}, monkeypatch)["parts"]
    assert report["broken"]["error"] == "RuntimeError: two lines" and report["whole"]["found"] == {"value": 1}
    assert seen == [["broken"]], "the file is written after each part"
    report = run(path, {"whole": looking}, monkeypatch, budget=0.0)["parts"]
    assert report["whole"] == {"found": None, "error": "skipped: over the budget", "seconds": 0.0}


@pytest.mark.parametrize(("kind", "first"), [("bad", False), ("perfect", True)])
def test_an_oracle_is_right_as_often_as_asked_whatever_drafts_below_it_and_changes_no_token(
    kind: models.DraftKind, first: bool
):
    lengths = [accepted_length(5, 3.6, number) for number in range(2000)]
    assert 1 + sum(lengths) / len(lengths) == pytest.approx(3.6, abs=0.01)
    pair = models.pair(kind)
    config = DecodingConfig(rule="topk", depth=4, width=2, nodes=8, max_new_tokens=models.LONGEST)
    answer = models.reference(0)
    request = pair.request(Lane("known", config, models.prompt(0)))
    request.drafter = OracleDrafter(request.drafter, answer, 2.0, first)
    request.prefill()
    for number in range(6):
        grown = request.propose()
        levels = len(grown.first_branch()) - 1 if first else max(grown.depths())
        assert len(request.verify().verification.accepted) == accepted_length(levels, 2.0, number)
    assert tuple(request.emitted) == answer[: len(request.emitted)]
