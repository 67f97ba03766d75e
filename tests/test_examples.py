"""The examples run as they are printed, and the algorithm in one file is the package's, tree by tree."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.utils import logging

from specllava.pair import Pair

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
SHIPPED = {"1-describe": "Describe this image in detail.", "3-count": "How many objects are there?"}


@pytest.fixture(autouse=True)
def _verbosity() -> Any:
    """An example may silence transformers."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    yield
    logging.set_verbosity(before)


@pytest.mark.parametrize("name", SHIPPED)
def test_one_file_gives_the_tokens_and_the_trees_of_the_package(
    name: str, shipped: Callable[[str], Pair], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    image, question = ROOT / "assets" / "examples" / f"{name}.png", SHIPPED[name]
    alone = runpy.run_path(str(EXAMPLES / "spec_llava.py"))
    steps = list(alone["answer"](image, question, torch.float64))
    trace = shipped("float64").generate(image, question)
    assert [token for _, _, tokens in steps for token in tokens] == list(trace.token_ids)
    assert len(steps) == 1 + len(trace.steps)
    for (tree, path, tokens), step in zip(steps[1:], trace.steps, strict=True):
        assert (tree.tokens, tree.parents) == (list(step.tree.tokens), list(step.tree.parents))
        assert (path, tokens) == (list(step.verification.path), list(step.emitted))
        assert tree.scores == pytest.approx(step.tree.scores(), abs=1e-4)
    if name == "3-count":
        monkeypatch.setattr(sys, "argv", ["spec_llava.py", "--image", str(image), "--question", question])
        alone["main"]()
        line = f"{len(trace.token_ids)} tokens in {len(trace.steps)} passes of the target"
        assert capsys.readouterr().out.splitlines()[-1] == line


@pytest.mark.parametrize(("script", "line"), [("own_rule.py", "equal: True"), ("own_model.py", "the same tokens")])
@pytest.mark.usefixtures("pair")
def test_an_example_runs(
    script: str, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [script])
    runpy.run_path(str(EXAMPLES / script), run_name="__main__")
    assert line in capsys.readouterr().out.splitlines()[-1]
