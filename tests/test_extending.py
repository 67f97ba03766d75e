"""The examples of ``docs/extending.md`` run as printed, and a drafter that breaks its limits is told so."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from support import models

from specllava.core.config import DecodingConfig
from specllava.core.trace import DecodeTrace
from specllava.core.tree import ROOT_PARENT, DraftTree
from specllava.drafters import DRAFTER_INFOS
from specllava.drafters.build import build_drafter
from specllava.drafters.drafter import DraftContext, Drafter, DraftSession

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "extending.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
BEARS = ({"rule": "nucleus"}, {"drafter": "Successors"}, {"drafter": "Nearest"})
VOCABULARY = models.RECIPE.vocabulary


def test_every_example_answers_as_the_target_alone_and_is_named_in_its_trace():
    names: dict[str, object] = {}
    assert len(BLOCKS) == len(BEARS)
    for block, bears in zip(BLOCKS, BEARS, strict=True):
        assert len(block.split("\n\n\n", 1)[-1].strip().splitlines()) <= 30, "an example has 30 lines at most"
        exec(block, names)
        traces = names["traces"]
        assert isinstance(traces, dict)
        trace, alone = traces["speculative"], traces["target-only"]
        assert isinstance(trace, DecodeTrace)
        assert trace.token_ids == alone.token_ids
        assert {"rule": trace.rule, "drafter": trace.drafter} == {"rule": None, "drafter": None} | bears
        assert len(trace.steps) < len(alone.steps), "what it guesses is sometimes right"
        assert DecodeTrace.from_json(trace.to_json()).to_json() == trace.to_json()


class Repeats(Drafter, DraftSession):
    """Propose a chain below ``first``, or below the last token, of one token over and over."""

    def __init__(self, count: int, token: int, first: int | None = None) -> None:
        self.count, self.token, self.first = count, token, first

    def open(self, context: DraftContext) -> DraftSession:
        return self

    def propose(self, root: int, depth: int) -> DraftTree:
        first = root if self.first is None else self.first
        count = self.count + 1
        parents = (ROOT_PARENT, *range(self.count))
        return DraftTree((first, *(self.token,) * self.count), parents, (0.0,) * count, (None,) * count)


@pytest.mark.parametrize(
    ("drafter", "message"),
    [
        (Repeats(5, 7), "the drafter Repeats proposes 5 tokens, at most 4 are allowed"),
        (Repeats(4, 7), "the drafter Repeats proposes 4 levels, at most 3 are allowed"),
        (Repeats(1, 7, first=-1), "the drafter Repeats proposes a tree below token -1, not below the last token"),
        (Repeats(1, VOCABULARY), f"the drafter Repeats proposes token {VOCABULARY}, of a vocabulary of {VOCABULARY}"),
        (Repeats(1, -1), f"the drafter Repeats proposes token -1, of a vocabulary of {VOCABULARY}"),
    ],
)
def test_a_drafter_that_breaks_its_limits_is_told_so(drafter, message):
    """A tree below another token changed the answer; too large a one ended in the words of the KV cache."""
    config = DecodingConfig(depth=3, nodes=4, max_new_tokens=12)
    with pytest.raises(ValueError, match=message), contextlib.closing(_stream(drafter, config)) as events:
        list(events)


def test_every_drafter_that_is_offered_is_built_and_has_that_name_in_traces():
    assert {name: build_drafter(name).name for name in DRAFTER_INFOS} == {name: name for name in DRAFTER_INFOS}


def _stream(drafter, config):
    return models.pair(None).stream(None, "Tell me a story.", config, drafter=drafter)
