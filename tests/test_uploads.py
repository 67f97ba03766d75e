"""Uploads of several files: what the models get, what visitors see, what is refused, and videos in a process apart."""

from __future__ import annotations

import io
import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np
import pytest
from PIL import Image
from support.clip_files import COUNT, write_clip
from support.scenes import scene
from test_bad_input import complaint

from specllava.core.limits import Limits
from specllava.models.media import video_process
from specllava.models.media.media import Video
from specllava.models.media.video_file import read_video
from specllava.models.media.video_process import VideoRequest, read_video_apart
from visual.page import uploads
from visual.page.pictures import PICTURE_PIXELS, Picture, cells_of, contact_sheet
from visual.page.uploads import QUESTION_PIXELS, MediaList, read_upload, upload_hint, upload_types
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


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_clip(tmp_path_factory.mktemp("clips") / "clip.mp4", "libx264", "yuv420p")


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


def test_a_video_is_watched_as_the_frames_that_the_rule_takes(clip: Path, tmp_path: Path) -> None:
    """Decoded in another process, which changes no pixel; all of them where there are fewer; and beside a picture."""
    source, _, notice = read_upload([*saved(tmp_path, [(40, 30)]), str(clip)], Limits(frames=99))
    picture, video = source.open()
    assert video == read_video(clip, COUNT) and picture.size == (40, 30) and f"they watch {COUNT}" in notice


def animated(path: Path, count: int = 12, **how: Any) -> str:
    """Frames of one shade of grey each, which says what number it is."""
    frames = [Image.new("RGB", (64, 48), (20 * number,) * 3) for number in range(count)]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=100, **how)
    return str(path)


def test_an_animated_gif_is_watched_as_a_clip_and_other_animations_say_that_they_are_stills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moving, still = animated(tmp_path / "a.gif"), animated(tmp_path / "one.gif", count=1)
    source, _, notice = read_upload([moving], Limits(frames=4))
    (video,) = source.parts
    assert [round(frame.getpixel((9, 9))[0] / 20) for frame in video.frames] == [
        round(seconds * 10) for seconds in video.seconds
    ]
    assert len(video.frames) == 4 and "The models watch 4 frames of the video" in notice
    one, _, silent = read_upload([still])
    assert isinstance(one, Picture) and silent == ""
    first = "is animated: the models see its first frame."
    webp, _, said = read_upload([animated(tmp_path / "b.webp", lossless=True)])
    assert isinstance(webp, Picture) and f"b.webp {first}" in said
    assert f"b.webp {first}" in read_upload([still, str(tmp_path / "b.webp")])[2]
    monkeypatch.setattr(uploads, "videos_are_read", lambda: False)
    assert f"a.gif {first}" in read_upload([moving])[2]
    (tmp_path / "bad.gif").write_bytes(b"GIF89a")
    assert refused([str(tmp_path / "bad.gif")]).startswith("This picture cannot be used: bad.gif ")


# --- what is refused --------------------------------------------------------------------------------------------------


def test_files_beyond_a_limit_are_refused_with_the_numbers(tmp_path: Path) -> None:
    paths = saved(tmp_path, [(40, 30)] * 5)
    sizes = [Path(path).stat().st_size for path in paths]
    assert "there are 5, and at most 4 are shown at once: choose fewer" in refused(paths, pictures=4)
    assert f"together they have {sum(sizes):,} bytes, and at most" in refused(paths, question_bytes=sum(sizes) - 1)
    assert f"has {max(sizes)} bytes, and at most" in refused(paths, upload_bytes=max(sizes) - 1)
    assert "0.png has 40 x 30 pixels" in refused(paths, pixels=1199)
    assert read_upload(paths, Limits(pictures=5, question_bytes=sum(sizes), upload_bytes=max(sizes), pixels=1200))[2]
    (tmp_path / "3.png").write_text("no picture")
    assert refused(paths).startswith("These files cannot be used: 3.png is not a readable image")
    assert "there are 2 videos, and one at a time is watched" in refused([*paths[:1], *no_videos(tmp_path)])


def no_videos(folder: Path) -> list[str]:
    """Files that are only called so."""
    paths = [folder / "a.mp4", folder / "b.MOV"]
    for path in paths:
        path.write_bytes(b"video")
    return list(map(str, paths))


def test_without_the_library_no_video_is_offered_or_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ".mp4" in upload_types() and upload_hint(Limits()) == "Up to 8 pictures or a video."
    monkeypatch.setattr(uploads, "videos_are_read", lambda: False)
    assert upload_types() == ["image"] and upload_hint(Limits(pictures=1)) == "One picture."
    assert "a.mp4 is not a readable image" in refused(no_videos(tmp_path)[:1])


# --- the process apart ------------------------------------------------------------------------------------------------


def test_what_is_no_video_or_takes_too_long_costs_one_line(clip: Path, tmp_path: Path) -> None:
    assert refused(no_videos(tmp_path)[:1]).startswith("This video cannot be used: a.mp4 cannot be read as a video (")
    slow = complaint(lambda: read_video_apart(VideoRequest(str(clip), 4, 64, 0.05)))
    assert slow == "clip.mp4 takes more than 0.05 seconds to read: cut a part out of it"


def test_while_another_file_is_read_visitors_are_told_to_come_again(
    clip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(video_process, "PATIENCE", 0.01)
    with video_process._READING:
        assert "try again" in complaint(lambda: read_video_apart(VideoRequest(str(clip), 4, 64, 9.0)))


def test_a_decoder_that_fails_or_answers_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been taken over by the file that it reads: what it says is not believed."""
    rng, request = random.Random(7), VideoRequest("clip.mp4", 3, 8, 9.0)
    true: dict[str, Any] = {"size": [4, 2], "seconds": [0.0, 1.0]}
    good = json.dumps(true).encode() + b"\n" + bytes(2 * 4 * 2 * 3)
    video = video_process._video("clip.mp4", io.BytesIO(good), request)
    assert [frame.size for frame in video.frames] == [(4, 2)] * 2 and video.seconds == (0.0, 1.0)
    changes: list[dict[str, Any]] = [
        {"size": [9, 2]}, {"size": [0, 0]}, {"size": [-4, 2]}, {"size": 4}, {"seconds": [0.0] * 4}, {"seconds": []},
        {"seconds": [1.0, 0.0]}, {"seconds": [0.0, float("nan")]}, {"seconds": ["a", "b"]}, {"size": [4, 3]},
    ]  # fmt: skip
    lies = [json.dumps(true | change).encode() + b"\n" + bytes(48) for change in changes]
    lies += [good[:-1], b"", b"[]\n", rng.randbytes(60), b"9" * 70_000]
    for answer in lies:
        line = complaint(lambda answer=answer: video_process._video("clip.mp4", io.BytesIO(answer), request))
        assert line == "clip.mp4 cannot be read: its decoder gave no frames", answer
    long = b'{"refused": "' + b"x\\n" * 9999 + b'"}\n'
    assert len(complaint(lambda: video_process._video("clip.mp4", io.BytesIO(long), request))) == 200
    monkeypatch.setattr(video_process, "_code", lambda *_: 1)
    assert "its decoder failed or wanted too much memory" in complaint(lambda: read_video_apart(request))


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


def test_frames_bear_times_pictures_numbers_and_a_lone_picture_nothing() -> None:
    picture = Image.new("RGB", (40, 30), "red")
    video = Video((picture,) * 20, tuple(7.5 * place for place in range(20)))
    times = ["0.0 s", "15.0 s", "37.5 s", "52.5 s", "1:15", "1:30", "1:52", "2:08"]
    for shown, labels in (((video,), times), ((picture, video, picture), ["1", *times, "3"]), ((picture,), [""])):
        assert [label for _, label in cells_of(shown)] == labels
