"""Several processes under ``accelerate launch`` do what one does with as much more accumulation."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.distilling import arguments, weights, write_data, write_pair

from specllava.cli.main import main
from specllava.findings.distillation import Report

ROOT = Path(__file__).resolve().parents[1]
LAUNCH = [
    "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "--num_machines=1", "--mixed_precision=no",
    "--dynamo_backend=no", "--main_process_port=0", "--module", "specllava",
]  # fmt: skip


@pytest.mark.night
def test_two_processes_follow_the_curve_of_one_with_twice_the_accumulation(tmp_path):
    """``--multi_gpu`` makes the launcher start two processes, ``--device cpu`` keeps them off any GPU (gloo)."""
    write_pair(tmp_path)
    write_data(tmp_path, 30)
    options = {"steps": 6, "projector_steps": 2, "validate_every": 0, "validation_prompts": 3}
    together = arguments(tmp_path, tmp_path / "two", **options)
    done = subprocess.run(
        [sys.executable, *LAUNCH, *together], cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert main(arguments(tmp_path, tmp_path / "one", accumulation=2, **options)) == 0
    two, one = (Report.read(tmp_path / name / "report.json") for name in ("two", "one"))
    assert (two.setting["processes"], one.setting["processes"]) == (2, 1)
    assert len(one.curve) == 8 and two.left_out == one.left_out and two.prompts == one.prompts == 3
    for name in ("loss", "kl"):
        ours, theirs = ([point[name] for point in run.curve] for run in (two, one))
        assert ours == pytest.approx(theirs, rel=1e-4)
        assert len(set(theirs)) == 8
    for a, b in zip(two.checks, one.checks, strict=True):
        assert (a.step, a.tokens) == (b.step, b.tokens)
        assert a.kl == pytest.approx(b.kl, rel=1e-3)
    other = weights(tmp_path / "one" / "last")
    for name, weight in weights(tmp_path / "two" / "last").items():
        torch.testing.assert_close(weight, other[name], rtol=1e-2, atol=1e-4)
