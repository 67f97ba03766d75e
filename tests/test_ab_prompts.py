"""Prompts of a comparison from lines, scenes and visitors' files: what is read, and what is refused in one line."""

from __future__ import annotations

import base64
import io
import json
import random
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from specllava.models.media.images import EncodedImage, open_image, read_size
from visual.page.comparison_prompts import (
    LIST,
    MAX_FILE_BYTES,
    MAX_PICTURE_BYTES,
    MAX_PROMPTS,
    MAX_UNPACKED_BYTES,
    PagePrompt,
    file_prompts,
    line_prompts,
    questions,
    scene_prompts,
)
from visual.page.pictures import Picture


def png(seed: int = 0, size: tuple[int, int] = (40, 30)) -> bytes:
    colour = tuple(random.Random(seed).randrange(256) for _ in range(3))
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).save(buffer, "PNG")
    return buffer.getvalue()


def written(folder: Path, *rows: Any, name: str = "prompts.jsonl") -> Path:
    path = folder / name
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), encoding="utf-8")
    return path


def zipped(folder: Path, entries: dict[str, bytes | str]) -> Path:
    path = folder / "prompts.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return path


def address(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


def test_lines_are_questions_about_one_picture() -> None:
    picture = Picture(seed=3)
    found = line_prompts("What?\n\n  And where?  \n", picture)
    assert [(prompt.text, prompt.picture) for prompt in found] == [("What?", picture), ("And where?", picture)]


def test_scenes_are_those_of_their_numbers() -> None:
    for count in (1, 7, MAX_PROMPTS):
        found = scene_prompts(count)
        assert len(found) == count == len({prompt.name for prompt in found})
        again = scene_prompts(count)
        assert [one.picture.open().tobytes() for one in found] == [one.picture.open().tobytes() for one in again]


def test_an_archive_is_read_with_its_pictures(tmp_path: Path) -> None:
    for seed in range(5):
        count = random.Random(seed).randint(1, MAX_PROMPTS)
        rows = [{"prompt": f"Question {n}?", "image": f"p{n}.png"} for n in range(count)]
        pictures = {f"p{n}.png": png(seed * 100 + n) for n in range(count)}
        found = file_prompts(zipped(tmp_path, {LIST: "\n".join(map(json.dumps, rows)), **pictures}))
        asked = list(questions(found))
        assert [(one.text, one.name) for one in asked] == [(row["prompt"], row["image"]) for row in rows]
        for one, data in zip(asked, pictures.values(), strict=True):
            assert isinstance(one.image, Image.Image)
            assert one.image.tobytes() == Image.open(io.BytesIO(data)).convert("RGB").tobytes()


def test_lines_of_json_name_scenes_and_carry_pictures(tmp_path: Path) -> None:
    rows = [{"prompt": "One?", "scene": 7}, {"prompt": "Two?", "image": address(png(4))}]
    one, two = file_prompts(written(tmp_path, *rows))
    assert one.picture.open().tobytes() == Picture(seed=7).open().tobytes()
    assert two.picture.open().size == (40, 30)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "there is no prompt"),
        (["{"], "line 1 is no JSON"),
        (["[" * 100_000], "line 1"),
        ([{"prompt": "a", "scene": 1}, 7], "line 2: an object"),
        ([{"prompt": 7, "scene": 1}], "line 1: an object"),
        ([{"prompt": "a"}], 'line 1: either "image"'),
        ([{"prompt": "a", "scene": 1, "image": "x.png"}], 'line 1: either "image"'),
        ([{"prompt": "a", "scene": -1}], "line 1: scene = -1"),
        ([{"prompt": "a", "scene": True}], 'line 1: either "image"'),
        ([{"prompt": " ", "scene": 1}], "prompt 1 is empty"),
        ([{"prompt": "a" * 20_001, "scene": 1}], "more than 20,000 characters"),
        ([{"prompt": "a", "image": "/etc/passwd"}], "no picture"),
        ([{"prompt": "a", "image": "data:text/html;base64,AAAA"}], "data: address"),
        ([{"prompt": "a", "image": "data:image/png;base64,*"}], "no base64"),
        ([{"prompt": "a", "image": "data:image/png;base64,AAAA"}], "not a readable image"),
        ([{"prompt": "a", "scene": n} for n in range(MAX_PROMPTS + 1)], f"more than {MAX_PROMPTS} prompts"),
    ],
)
def test_a_list_that_cannot_be_used_is_refused_in_one_line(tmp_path: Path, rows: list[Any], words: str) -> None:
    with pytest.raises(ValueError, match=r".+") as refusal:
        file_prompts(written(tmp_path, *rows))
    said = str(refusal.value)
    assert words in said and "\n" not in said and len(said) < 400


def bomb(size: int) -> bytes:
    return b"\0" * size


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"a.png": png()}, f"no {LIST}"),
        ({LIST: "", "../a.png": png()}, "no folders"),
        ({LIST: "", "folder/a.png": png()}, "no folders"),
        ({LIST: "", "/a.png": png()}, "no folders"),
        ({LIST: "", "run.py": b"print()"}, "no folders"),
        ({LIST: "", **{f"{n}.png": b"" for n in range(MAX_PROMPTS + 1)}}, f"more than {MAX_PROMPTS} pictures"),
        ({LIST: "", "a.png": bomb(MAX_UNPACKED_BYTES + 1)}, "unpacks to more than"),
        (
            {LIST: '{"prompt": "a", "image": "a.png"}', "a.png": bomb(MAX_PICTURE_BYTES + 1)},
            f"at most {MAX_PICTURE_BYTES:,}",
        ),
    ],
)
def test_an_archive_that_is_none_of_ours_is_refused(tmp_path: Path, entries: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=r".+") as refusal:
        file_prompts(zipped(tmp_path, entries))
    assert words in str(refusal.value) and "\n" not in str(refusal.value)


def false_size(data: bytes) -> bytes:
    """The archive with sizes in its directory that say an entry is tiny."""
    at = data.index(b"PK\x01\x02", data.index(b"PK\x01\x02") + 4)  # the second entry of the directory
    return data[: at + 24] + struct.pack("<I", 10) + data[at + 28 :]


def cut(data: bytes) -> bytes:
    return data[:-40]


def overwritten(data: bytes) -> bytes:
    return data.replace(b"\0\0", b"\1\1", 6)


@pytest.mark.parametrize("damage", [false_size, cut, overwritten])
def test_a_damaged_archive_is_refused_in_one_line(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = zipped(tmp_path, {LIST: '{"prompt": "a", "image": "a.png"}', "a.png": bomb(MAX_UNPACKED_BYTES)})
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=r".+") as refusal:
        file_prompts(path)
    assert "\n" not in str(refusal.value)


def encrypted(data: bytes) -> bytes:
    """The archive with the flag of its second entry that says a password is needed."""
    at = data.index(b"PK\x01\x02", data.index(b"PK\x01\x02") + 4) + 8
    return data[:at] + bytes([data[at] | 1]) + data[at + 1 :]


def packed_otherwise(data: bytes) -> bytes:
    """The archive with another compression method, LZMA, in the directory's second entry."""
    at = data.index(b"PK\x01\x02", data.index(b"PK\x01\x02") + 4) + 10
    return data[:at] + struct.pack("<H", zipfile.ZIP_LZMA) + data[at + 2 :]


@pytest.mark.parametrize(
    ("change", "words"), [(encrypted, "a.png' is encrypted"), (packed_otherwise, "a.png' is packed in an unusual way")]
)
def test_an_archive_that_would_need_more_is_refused_by_name(
    tmp_path: Path, change: Callable[[bytes], bytes], words: str
) -> None:
    path = zipped(tmp_path, {LIST: '{"prompt": "a", "image": "a.png"}', "a.png": png()})
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ValueError, match=words):
        file_prompts(path)


def test_an_archive_with_any_bytes_changed_is_read_or_refused_in_one_line(tmp_path: Path) -> None:
    path = zipped(tmp_path, {LIST: '{"prompt": "a", "image": "a.png"}\n' * 9, "a.png": png()})
    whole, refusals = path.read_bytes(), set()
    for seed in range(400):
        rng, data = random.Random(seed), bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(bytes(data))
        try:
            file_prompts(path)
        except ValueError as refusal:
            refusals.add(str(refusal))
    assert any("decompressing" in said for said in refusals)
    assert not any("\n" in said for said in refusals)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.jsonl"
    path.write_bytes(b" " * (MAX_FILE_BYTES + 1))
    with pytest.raises(ValueError, match=f"at most {MAX_FILE_BYTES:,}"):
        file_prompts(path)


def test_pictures_are_opened_one_by_one(tmp_path: Path) -> None:
    opened: list[int] = []

    class Counting:
        def __init__(self, number: int) -> None:
            self.number = number

        def open(self) -> Image.Image:
            opened.append(self.number)
            return Image.new("RGB", (4, 4))

        preview = open

    asked = questions([PagePrompt(str(n), Counting(n)) for n in range(5)])
    for number in range(5):
        next(asked)
        assert opened == list(range(number + 1))


def test_a_picture_that_was_read_is_held_to_the_same_bounds(tmp_path: Path) -> None:
    data = png(1, (60, 20))
    path = tmp_path / "a.png"
    path.write_bytes(data)
    encoded = EncodedImage("a.png", data)
    assert open_image(encoded).tobytes() == open_image(path).tobytes()
    assert read_size(encoded) == read_size(path) == (20, 60)
    narrow = EncodedImage("narrow.png", png(1, (400, 4)))
    with pytest.raises(ValueError, match=r"narrow\.png has 400 x 4 pixels"):
        read_size(narrow)
