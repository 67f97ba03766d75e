"""Distillation at night: two processes under ``accelerate launch``, and one that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from support.checkpoints import weights_of
from support.distilling import arguments, same, write_data, write_pair

from specllava.cli.main import main
from specllava.distill.config import Report

pytestmark = pytest.mark.night
ROOT = Path(__file__).resolve().parents[1]
LAUNCH = [
    "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "--num_machines=1", "--mixed_precision=no",
    "--dynamo_backend=no", "--main_process_port=0", "--module", "specllava",
]  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    directory = tmp_path_factory.mktemp("night")
    write_pair(directory)
    write_data(directory, 30)
    return directory


@pytest.mark.parametrize("options", [{"projector_only": True}, {"answers": "target"}])
def test_two_processes_follow_the_curve_of_one_with_twice_the_accumulation(root, tmp_path, options):
    """``--multi_gpu`` makes the launcher start two processes, ``--device cpu`` keeps them off any GPU (gloo)."""
    options = {"steps": 6, "validate_every": 0, "validation_prompts": 3} | options
    environment = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    command = [sys.executable, *LAUNCH, *arguments(root, tmp_path / "two", **options)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert main(arguments(root, tmp_path / "one", accumulation=2, **options)) == 0
    two, one = (Report.read(tmp_path / name / "report.json") for name in ("two", "one"))
    assert (two.setting["processes"], one.setting["processes"]) == (2, 1)
    assert len(one.curve) == 6 and two.left_out == one.left_out and two.prompts == one.prompts == 3
    for name in ("loss", "kl"):
        ours, theirs = ([point[name] for point in run.curve] for run in (two, one))
        assert ours == pytest.approx(theirs, rel=1e-4)
        assert len(set(theirs)) == 6
    for a, b in zip(two.checks, one.checks, strict=True):
        assert (a.step, a.tokens) == (b.step, b.tokens)
        assert a.kl == pytest.approx(b.kl, rel=1e-3)
    other = weights_of(tmp_path / "one" / "last")
    for name, weight in weights_of(tmp_path / "two" / "last").items():
        torch.testing.assert_close(weight, other[name], rtol=1e-2, atol=1e-4)


def test_a_run_killed_in_the_middle_ends_with_the_same_weights(root):
    """It is a real process, and it is killed for good between two checkpoints."""
    whole, output = root / "whole", root / "killed"
    assert main(arguments(root, whole)) == 0
    command = [sys.executable, "-m", "specllava", *arguments(root, output)]
    environment = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True, **quiet) as running:
        checkpoint, until = output / "work" / "last.pt", time.monotonic() + 240
        while not checkpoint.exists():
            assert running.poll() is None and time.monotonic() < until
            time.sleep(0.01)
        os.killpg(running.pid, signal.SIGKILL)
        assert running.wait() == -signal.SIGKILL
    step = torch.load(checkpoint, weights_only=True)["step"]
    assert step in (2, 4) and not (output / "last").exists() and Report.read(output / "report.json").state == "running"
    assert main(arguments(root, output)) == 0
    for draft in ("draft", "last"):
        assert same(weights_of(output / draft), weights_of(whole / draft))
    one, other = Report.read(output / "report.json"), Report.read(whole / "report.json")
    assert one.checks == other.checks and one.curve == other.curve and one.left_out == other.left_out
