"""The benchmark for GPUs, at a size for CPUs: it has the published shapes, and its numbers follow from each other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.gpu_llava import ALONE, DRAFT_ROWS, LANES, TARGET_ROWS, TAUS, Cycle, main
from benchmarks.shared.random_pair import build, device_for, parameters, size_of


def test_the_large_size_has_the_published_models_parameters():
    """7,063,427,072 are in llava-hf/llava-1.5-7b-hf, and 162,417,408 in JackFram/llama-160m."""
    target, draft = parameters(size_of("7b"))
    padding = 2 * 64 * 768  # 32064 tokens in place of 32000, in both tables
    projector = 1024 * 768 + 768 + 768 * 768 + 768
    assert (target, draft) == (7_063_427_072, 162_417_408 + padding + projector)
    assert size_of("7b").patches == 576


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_pair_is_made_in_its_precision_and_leaves_the_default_alone(dtype: torch.dtype):
    pair = build("toy", torch.device("cpu"), dtype)
    assert {weight.dtype for model in (pair.target, pair.draft) for weight in model.parameters()} == {dtype}
    assert torch.get_default_dtype() == torch.float32
    made = tuple(sum(weight.numel() for weight in model.parameters()) for model in (pair.target, pair.draft))
    assert made == parameters(size_of("toy"))
    assert pair.eos_token_ids == frozenset()


def test_everything_is_reported_and_no_draft_changes_a_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "toy.json"
    main("toy", path, "cpu", repeats=1)
    printed, report = capsys.readouterr().out, json.loads(path.read_text())
    assert "float32 on cpu" in printed
    assert report["setting"]["versions"]["torch"] == torch.__version__
    assert report["hardware"]["cores"] >= 1
    assert report["bytes"]["target"] == 4 * parameters(size_of("toy"))[0]
    seconds = report["seconds"]
    assert list(map(int, seconds["target_pass"])) == list(TARGET_ROWS)
    assert list(map(int, seconds["draft_pass"])) == list(DRAFT_ROWS)
    assert min(seconds["vision"], seconds["target_prefill"], seconds["draft_prefill"]) > 0
    assert seconds["prompt_tokens"] > size_of("toy").patches
    assert set(seconds["cycles"]) == set(LANES)
    alone = seconds["cycles"][ALONE]
    for name, cycle in seconds["cycles"].items():
        assert cycle["agrees"] == cycle["tokens"] > 10
        assert cycle["break_even_tau"] == pytest.approx(cycle["total"] / alone["total"])
        for tau in TAUS:
            assert cycle["speedup"][str(tau)] == pytest.approx(tau / cycle["break_even_tau"])
        wanted = LANES[name]
        assert (cycle["guesses"] > 1) == (wanted.drafter == "model")
        assert cycle["guesses"] <= wanted.nodes
        assert cycle["levels"] <= wanted.depth


def test_at_break_even_nothing_is_won():
    alone, drafted = (Cycle(4, 2, 0.1, 0.2, total, 9, 9) for total in (0.5, 1.5))
    assert drafted.break_even(alone) == 3.0
    assert drafted.speedup(alone, 3.0) == 1.0
    assert alone.speedup(alone, 1.0) == 1.0


def test_a_pair_that_needs_a_gpu_is_refused_with_a_way_out(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"needs a GPU with 16\.5 GB and there is none: use --size toy"):
        device_for(size_of("7b"), "auto")
    assert device_for(size_of("toy"), "auto") == (torch.device("cpu"), torch.float32)
