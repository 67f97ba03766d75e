"""``make gpu``: without a GPU it says so in one line, and at the size of a toy it goes the same way on a CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu.checks import check_bits
from benchmarks.gpu_llava import ALONE
from benchmarks.shared.random_pair import build
from specllava.runtime.padded_passes import ROWS


def test_without_a_gpu_one_line_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    gpu.main(output=tmp_path)
    assert capsys.readouterr().out == "not run on a GPU: there is none here; --size toy goes the same way on a CPU\n"
    assert not list(tmp_path.iterdir())


def test_a_toy_goes_the_same_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gpu, "FORMATS", ("eagle3",))
    monkeypatch.setattr(gpu, "STEPS", 4)
    gpu.main("toy", tmp_path, "cpu", repeats=1, prompts=1)
    report, text = json.loads((tmp_path / "gpu.json").read_text()), (tmp_path / "gpu.md").read_text()
    assert report["way"] == "padded" and report["setting"]["device"] == "cpu"
    assert set(report["passes"]) == set(report["steps"]) == {"own draft", "eagle3"}
    for ways in report["passes"].values():
        assert set(ways) == {"eager", "padded"}
        assert all(list(map(int, models["target"])) == list(ROWS) for models in ways.values())
    for ways in report["steps"].values():
        assert all(step["overhead"] is None for step in ways["eager"].values())
        assert all(step["overhead"] > 0 and step["median"] > 0 for step in ways["padded"].values())
    assert report["steps"]["own draft"]["padded"][ALONE]["nodes"] == 0
    assert all(check["passed"] for check in report["checks"].values()) and len(report["checks"]) == 5
    assert "equal answers" in report["checks"]["a race on the page ends"]["told"]
    assert all(same["agreed"] == same["tokens"] == gpu.LONGEST for same in report["identity"].values())
    for name, (got, limit) in report["goals"].items():
        assert f"| {name} | {got:.2f} | ≤ {limit:g} | {'yes' if got <= limit else 'no'} |" in text


def test_a_pass_that_computes_something_else_is_found(monkeypatch: pytest.MonkeyPatch):
    """The check of bits is no check if it cannot fail."""
    pair = build("toy", torch.device("cpu"), torch.float32)
    with torch.inference_mode():
        assert check_bits(pair, "padded").passed
        head, calls = pair.target.lm_head, []
        plain = head.forward
        monkeypatch.setattr(head, "forward", lambda states: plain(states) + 1e-3 * (calls.append(1) or len(calls) == 9))
        assert not check_bits(pair, "padded").passed
