"""The examples run as they are printed, and the algorithm in one file is the package's, tree by tree."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.utils import logging

from specllava.pair import Pair
from specllava.trace import DecodeTrace

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = {
    "1-describe": "Describe this image in detail.",
    "2-story": "Tell me a story about this picture.",
    "3-count": "How many objects are there?",
}


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "examples" / "spec_llava.py"))


@pytest.fixture(scope="module")
def pair() -> Pair:
    return Pair.from_preset("toy", device="cpu", dtype="float64")


@pytest.mark.parametrize("name", SHIPPED)
def test_one_file_gives_the_tokens_and_the_trees_of_the_package(alone: dict[str, Any], pair: Pair, name: str) -> None:
    image, question = ROOT / "assets" / "examples" / f"{name}.png", SHIPPED[name]
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    steps = list(alone["answer"](image, question, torch.float64))
    logging.set_verbosity(verbosity)
    trace: DecodeTrace = pair.generate(image, question)
    assert [token for _, _, tokens in steps for token in tokens] == list(trace.token_ids)
    assert len(steps) == 1 + len(trace.steps)
    for (tree, path, tokens), step in zip(steps[1:], trace.steps, strict=True):
        assert (tree.tokens, tree.parents) == (list(step.tree.tokens), list(step.tree.parents))
        assert (path, tokens) == (list(step.verification.path), list(step.emitted))
        assert tree.scores == pytest.approx(step.tree.scores(), abs=1e-4)


@pytest.mark.parametrize(
    ("script", "line"),
    [
        ("spec_llava.py", "90 tokens in 10 passes of the target"),
        ("own_rule.py", "equal: True"),
        ("own_model.py", "the same tokens"),
    ],
)
def test_an_example_runs(script: str, line: str) -> None:
    command = [sys.executable, str(ROOT / "examples" / script)]
    inside = os.environ | {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, env=inside, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr
    assert line in ended.stdout.splitlines()[-1]
