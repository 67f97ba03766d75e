"""Prompts of a benchmark from files, and from the toy world."""

import json

import pytest
from PIL import Image

from specllava.bench.data_dialogues import MAX_CATEGORIES, data_dialogues
from specllava.bench.toy_dialogues import CATEGORIES, toy_dialogues


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "images").mkdir()
    Image.new("RGB", (8, 6), "red").save(tmp_path / "images" / "a.png")
    return tmp_path


def read(folder, rows, name="rows.jsonl", most=100, turns=3):
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    text = "\n".join(lines) if name.endswith("l") else f"[{','.join(lines)}]"
    (folder / name).write_text(text, encoding="utf-8")
    return data_dialogues(folder / name, None, most, turns)


TALK = [
    {"from": "human", "value": "<image>\nWhat is it?"},
    {"from": "gpt", "value": "A bus."},
    {"from": "human", "value": "Which colour?"},
    {"from": "gpt", "value": "Red."},
]
LLAVA = {"id": "1", "image": "a.png", "conversations": TALK}
MMSPEC = {"id": "mmspec_501", "image": "a.png", "turns": ["One?", "Two?"], "category": "charts", "topic": "general vqa"}


def test_the_three_formats_are_read(folder):
    plain = [{"image": "a.png", "prompt": "What?", "category": "ask"}, {"question": "Tell me."}]
    for name in ("rows.jsonl", "rows.json"):
        llava, mmspec, one, two = read(folder, [LLAVA, MMSPEC, *plain], name)
        assert llava.turns == ("What is it?", "Which colour?") and llava.category == "all"
        assert mmspec.turns == ("One?", "Two?") and mmspec.category == "general vqa"  # one of six, not of dozens
        assert (one.turns, one.category, two.turns, two.images) == (("What?",), "ask", ("Tell me.",), ())
        assert all(each.images == (folder / "images" / "a.png",) for each in (llava, mmspec, one))


def test_rows_and_turns_are_bounded(folder):
    found = read(folder, [MMSPEC] * 5, most=2, turns=1)
    assert len(found) == 2 and all(each.turns == ("One?",) for each in found)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("{", "not JSON"),
        ("7", "no object"),
        ("null", "no object"),
        ({}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": "  "}, "empty question"),
        ({"turns": []}, "empty question"),
        ({"turns": "Why?"}, "turns"),
        ({"turns": ["Why?", None]}, "turns"),
        ({"turns": ["Why?", ""]}, "empty question"),
        ({"prompt": "Why?", "image": 3}, "image that is no path"),
        ({"prompt": "Why?", "image": "b.png"}, "missing image"),
        ({"prompt": "Why?", "image": "../rows.jsonl"}, "leads out"),
        ({"prompt": "Why?", "image": "/etc/hostname"}, "leads out"),
        ({"prompt": "Why?", "category": ["x"]}, "category"),
        ({"prompt": "Why?", "topic": "x" * 61}, "category"),
        ({"prompt": "Why?", "topic": "a\nb"}, "category"),
        ({"conversations": []}, "without a question"),
        ({"conversations": [{"from": "human", "value": "<image>"}]}, "images"),
        ({"image": "a.png", "conversations": [*TALK, {"from": "human", "value": "<image> x"}]}, "later question"),
    ],
)
def test_a_row_that_cannot_be_asked_costs_one_line_with_its_number(folder, row, said):
    with pytest.raises(ValueError, match=rf"rows\.jsonl, row 2: .*{said}") as told:
        read(folder, [MMSPEC, row])
    assert "\n" not in str(told.value)


def test_a_file_that_holds_no_questions_costs_one_line(folder):
    for rows, said in (([], "has no question"), ([{**MMSPEC, "topic": str(n)} for n in range(13)], "13 categories")):
        with pytest.raises(ValueError, match=said):
            read(folder, rows)
    assert MAX_CATEGORIES == 12
    with pytest.raises(ValueError, match="no data file at"):
        data_dialogues(folder / "none.jsonl", None, 5, 1)
    (folder / "rows.jsonl").write_text(json.dumps(MMSPEC))
    with pytest.raises(ValueError, match="no images directory at"):
        data_dialogues(folder / "rows.jsonl", folder / "nowhere", 5, 1)


def test_toy_scenes_have_every_category_in_turn_and_are_the_same_each_time():
    first, again = (list(toy_dialogues("held-out", 12, 3)) for _ in range(2))
    assert [each.category for each in first] == [*CATEGORIES] * 3
    assert [(each.turns, each.images[0].tobytes()) for each in first] == [
        (each.turns, each.images[0].tobytes()) for each in again
    ]
    assert all(len(each.turns) > 1 for each in first if each.category == "dialogue")
    assert all(len(each.turns) == 1 for each in first if each.category != "dialogue")
    assert all(len(each.turns) == 1 for each in toy_dialogues("held-out", 8, 1))
