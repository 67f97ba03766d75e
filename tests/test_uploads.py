"""Uploads of several files: what the models get, what visitors see and what is refused."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path

import gradio as gr
import numpy as np
import pytest
from PIL import Image
from support.scenes import scene

from specllava.config import Limits
from visual.page.pictures import PICTURE_PIXELS, Picture, contact_sheet
from visual.page.uploads import QUESTION_PIXELS, MediaList, read_upload, upload_hint
from visual.player.encoding import LONGEST_SIDE, data_address


def saved(folder: Path, sizes: list[tuple[int, int]]) -> list[str]:
    """Pictures of one colour each."""
    paths = [folder / f"{number}.png" for number in range(len(sizes))]
    for number, (path, size) in enumerate(zip(paths, sizes, strict=True)):
        Image.new("RGB", size, (9 * number, 200, 255 - 9 * number)).save(path)
    return [str(path) for path in paths]


def refused(paths: list[str], **limits: float) -> str:
    *parts, notice = read_upload(paths, Limits(**limits))
    said = json.loads(notice)
    assert all(part == gr.skip() for part in parts) and said["kind"] == "error" and "\n" not in said["text"]
    return str(said["text"])


# --- what the models get ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_several_files_are_one_source_in_their_order_and_of_bounded_size(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    sizes = [(rng.randint(40, 1500), rng.randint(40, 700)) for _ in range(rng.randint(2, 8))]
    paths = saved(tmp_path, sizes)
    source, address, notice = read_upload(paths)
    for path in paths:
        Path(path).unlink()
    found = source.open()
    assert [one.getpixel((0, 0))[0] for one in found] == [9 * number for number in range(len(sizes))]
    assert sum(one.width * one.height for one in found) <= QUESTION_PIXELS and source.uploaded
    assert all(max(one.size) <= PICTURE_PIXELS for one in found)
    assert address == data_address(source.preview()) == data_address(MediaList(found).preview()), "known again by it"
    assert f"these {len(sizes)}" in notice and hash(source) != hash(MediaList(found))


def test_one_file_is_a_picture_as_ever(tmp_path: Path) -> None:
    source, _, notice = read_upload(saved(tmp_path, [(40, 30)]))
    assert isinstance(source, Picture) and source.uploaded and notice == "" and source.open().size == (40, 30)
    assert not scene(3).uploaded


# --- what is refused --------------------------------------------------------------------------------------------------


def test_files_beyond_a_limit_are_refused_with_the_numbers(tmp_path: Path) -> None:
    paths = saved(tmp_path, [(40, 30)] * 5)
    sizes = [Path(path).stat().st_size for path in paths]
    assert "there are 5, and at most 4 are shown at once: choose fewer" in refused(paths, pictures=4)
    assert f"together they have {sum(sizes):,} bytes, and at most" in refused(paths, question_bytes=sum(sizes) - 1)
    assert f"has {max(sizes)} bytes, and at most" in refused(paths, upload_bytes=max(sizes) - 1)
    assert "0.png has 40 x 30 pixels" in refused(paths, pixels=1199)
    assert read_upload(paths, Limits(pictures=5, question_bytes=sum(sizes), upload_bytes=max(sizes), pixels=1200))[2]
    (tmp_path / "3.png").write_bytes(b"GIF89a")
    assert refused(paths).startswith("These files cannot be used: 3.png is not a readable image")
    assert (upload_hint(Limits()), upload_hint(Limits(pictures=1))) == ("Up to 8 pictures.", "One picture.")


# --- what visitors see ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_a_contact_sheet_shows_everything_in_order_and_apart(seed: int) -> None:
    """Cells are found again by their colours: in rows, none within another, nothing cut off."""
    rng = random.Random(seed)
    count = rng.randint(2, 16)
    colours = [(20 * (number % 12) + 15, 255 * (number // 12), 180) for number in range(count)]
    shown = [Image.new("RGB", (rng.randint(20, 90), rng.randint(20, 90)), colour) for colour in colours]
    sheet = contact_sheet(shown)
    assert max(sheet.size) <= LONGEST_SIDE and sheet.height <= sheet.width
    pixels, middles, boxes = np.asarray(sheet).astype(int), [], []
    for picture, colour in zip(shown, colours, strict=True):
        rows, columns = np.nonzero((pixels == colour).all(-1))
        box = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
        assert abs((box[2] - box[0]) / (box[3] - box[1]) / (picture.width / picture.height) - 1) < 0.2
        middles.append(((box[1] + box[3]) / 2, (box[0] + box[2]) / 2))
        boxes.append(box)
    for (row, column), (next_row, next_column) in pairwise(middles):
        assert next_row > row + 5 or (abs(next_row - row) < 2 and next_column > column)
    for one in boxes:
        assert sum(one[0] < box[2] and box[0] < one[2] and one[1] < box[3] and box[1] < one[3] for box in boxes) == 1
