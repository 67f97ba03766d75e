"""The experiment on English: which word a token belongs to, and rates from end to end."""

from __future__ import annotations

import json

import pytest

from benchmarks import english
from specllava.core.config import DecodingConfig
from specllava.smol.questions import FREE


def test_tokens_are_grouped_by_their_word_and_by_what_stands_before():
    pieces = ["The", " um", "brel", "la", ",", " the", " rose", ".", "\n", "Is", " there", "fore", " 1", "2", "?", ""]
    found = list(english.groups_of(pieces))
    assert [word for word, _ in found] == [
        "function word", "content word", "rest of a word", "rest of a word", "punctuation", "function word",
        "content word", "punctuation", "punctuation", "function word", "content word", "rest of a word",
        "content word", "rest of a word", "punctuation", "end of the answer",
    ]  # fmt: skip
    assert [before for _, before in found] == [
        "after the question", *["after a word"] * 4, "after a comma", *["after a word"] * 2, "after a full stop",
        *["after a word"] * 6, "after a full stop",
    ]  # fmt: skip
    assert list(english.groups_of([])) == []


def test_free_questions_are_asked_and_counted_from_end_to_end(tmp_path, monkeypatch, shipped):
    pair = shipped("float32")
    monkeypatch.setattr("specllava.pair.Pair.from_preset", lambda *args, **options: pair)
    config = english.EnglishConfig(
        decoding=DecodingConfig(max_new_tokens=6, nodes=8, depth=4), prompts=2, json=tmp_path / "rows"
    )
    english.main(config)
    found = json.loads((tmp_path / "rows").read_text())["rows"]
    assert [row["kind"] for row in found["kinds"]] == list(FREE)
    assert len(found["temperatures"]) == len(english.TEMPERATURES) * 2
    assert all(row["tau"]["value"] >= 1 for row in found["temperatures"] + found["kinds"][:2])
    assert all(row["tau"]["value"] is None for row in found["kinds"][2:])
    classes = [row for row in found["tokens"] if not row["group"].startswith("after")]
    assert sum(row["tokens"] for row in classes) == sum(
        row["tokens"] for row in found["tokens"] if row["group"].startswith("after")
    )
    assert sum(row["share"] for row in classes) == pytest.approx(1, abs=1e-3)
