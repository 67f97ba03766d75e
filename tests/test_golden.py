"""What is drawn and said of the shipped races is what it was: trees, phases, lines about nodes, words, headline."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.golden import ASSETS, DIGESTS, PARTS, digests, race_files

KNOWN = json.loads(DIGESTS.read_text(encoding="utf-8"))


def test_every_shipped_race_has_its_digests() -> None:
    assert [str(path.relative_to(ASSETS)) for path in race_files()] == list(KNOWN)
    assert all(tuple(parts) == PARTS for parts in KNOWN.values())


@pytest.mark.parametrize("path", race_files(), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_what_is_drawn_and_said_of_a_shipped_race_is_what_it_was(path: Path) -> None:
    assert digests(path) == KNOWN[str(path.relative_to(ASSETS))]
