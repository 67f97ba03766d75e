"""Video files: which frames are taken, their times, and one line for whatever cannot be read."""

from __future__ import annotations

import json
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image
from support import models
from support.chats import ALONE, SHORT
from support.clip_files import COUNT, RATE, SIZE, write_clip
from test_bad_input import complaint

from specllava.cli.main import main
from specllava.models.media import video_file
from specllava.models.media.media import evenly
from specllava.models.media.video_file import read_video

KINDS = (  # name, codec, pixels; H.264 keeps frames in another order than they are shown
    ("a.mp4", "libx264", "yuv420p"), ("a.mkv", "libx264", "yuv420p"), ("b.avi", "libx264", "yuv420p"),
    ("a.avi", "mpeg4", "yuv420p"), ("a.webm", "libvpx-vp9", "yuv420p"), ("a.ts", "libx264", "yuv420p"),
    ("a.mov", "mjpeg", "yuvj420p"),
)  # fmt: skip


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clips")
    for kind in KINDS:
        write_clip(folder / kind[0], *kind[1:])
    return folder


def numbers(frames: tuple[Image.Image, ...]) -> list[int]:
    return [round(np.asarray(frame)[10, 10].mean() / 12) for frame in frames]


@pytest.mark.parametrize("name", [kind[0] for kind in KINDS])
def test_the_frames_that_the_rule_names_with_their_times(clips: Path, name: str):
    for count in (1, 3, 8, COUNT):
        video, chosen = read_video(clips / name, count, 1), evenly(COUNT, count)
        assert numbers(video.frames) == list(chosen) and {frame.mode for frame in video.frames} == {"RGB"}
        assert video.seconds == pytest.approx([place / RATE for place in chosen], abs=1e-3)
        assert video.frames[0].size == SIZE and video.draft_frames == 1


def test_of_a_shorter_video_all_frames_may_be_taken_and_frames_may_be_shrunk(clips: Path):
    video = read_video(clips / "a.mp4", COUNT + 9, fewer=True, longest=32)
    assert numbers(video.frames) == list(range(COUNT)) and {frame.size for frame in video.frames} == {(32, 24)}


def test_a_video_from_a_turned_camera_stands_upright():
    class Turned:
        rotation = -90  # clockwise, as phones write it

        def to_image(self) -> Image.Image:
            picture = Image.new("RGB", (4, 2))
            picture.putpixel((0, 0), (255, 0, 0))
            return picture

    upright = video_file._upright(Turned())
    assert upright.size == (2, 4) and upright.getpixel((1, 0)) == (255, 0, 0)


def test_speculation_about_a_file_changes_no_token(clips: Path):
    pair = models.pair("mixed")
    prompt = pair.prompt([models.picture(1), read_video(clips / "a.mp4", 6, 3)], "What happens?")
    assert models.decode(pair, prompt, SHORT).token_ids == models.decode(pair, prompt, ALONE).token_ids


def test_the_command_line_takes_pictures_and_a_video(clips: Path, tmp_path: Path, capsys):
    models.picture(1).save(tmp_path / "one.png")
    models.picture(2).save(tmp_path / "two.png")
    shown = ["--image", str(tmp_path / "one.png"), str(tmp_path / "two.png"), "--video", str(clips / "a.mkv")]
    files = ["--json", str(tmp_path / "out.json"), "--trace", str(tmp_path / "race.json")]
    command = ["compare", *shown, "--frames", "4", "--draft-frames", "2", "--prompt", "hi", "--max-new-tokens", "6"]
    assert main([*command, *files]) == 0
    assert json.loads((tmp_path / "out.json").read_text())["identical"]
    race = json.loads((tmp_path / "race.json").read_text())
    assert race["target_only"]["image"] == ", ".join(["48 x 40 pixels"] * 2 + ["64 x 48 pixels"] * 4)


# ----------------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("--image IMAGE --draft-frames 2", "--draft-frames belongs to --video"),
        ("--video CLIPS/a.mp4 --draft-frames 2 --drafter prompt-lookup", "the drafter is prompt-lookup"),
        ("--video CLIPS/a.mp4 --draft-frames 9", "the draft can watch 1 to 8 frames of a video of 8, not 9"),
        ("--video CLIPS/a.mp4 --frames 21", "a.mp4 has 20 frames, not 21: take 20 at most"),
        ("--video CLIPS/a.mp4 --frames 0", "0 frames of a.mp4 are asked for: 1 to 256 are possible"),
        ("--video CLIPS/none.mp4", "no video file at"),
        ("--video IMAGE", "i.png cannot be read as a video"),
    ],
)
def test_what_the_command_line_refuses_in_one_line(clips: Path, tmp_path: Path, capsys, options: str, why: str):
    """Before a model is loaded."""
    models.picture(0).save(tmp_path / "i.png")
    command = options.replace("IMAGE", str(tmp_path / "i.png")).replace("CLIPS", str(clips)).split()
    assert main(["generate", "--prompt", "hi", *command]) == 1
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1 and why in told[0]


def test_what_is_no_video(clips: Path, tmp_path: Path):
    """Lists of files are none, since they would name others."""
    whole = (clips / "a.mkv").read_bytes()
    for name, content in (
        ("text.mp4", b"hello" * 99),
        ("empty.mp4", b""),
        ("list.m3u8", f"#EXTM3U\n#EXTINF:1,\n{clips / 'a.mp4'}\n".encode()),
        ("cut.mkv", whole[: len(whole) // 2]),
    ):
        (tmp_path / name).write_bytes(content)
        assert complaint(lambda name=name: read_video(tmp_path / name, 2)).startswith(name)


def test_a_file_with_sound_alone_has_no_video(tmp_path: Path):
    with av.open(str(tmp_path / "sound.mkv"), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=8000)
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), format="s16", layout="mono")
        sound.sample_rate = 8000
        container.mux(stream.encode(sound))
    assert complaint(lambda: read_video(tmp_path / "sound.mkv", 1)) == "sound.mkv has no video in it"


def test_a_codec_that_is_not_known(clips: Path, tmp_path: Path):
    (tmp_path / "odd.mkv").write_bytes((clips / "a.mkv").read_bytes().replace(b"V_MPEG4/ISO/AVC", b"V_NEW/CODEC/XYZ"))
    line = complaint(lambda: read_video(tmp_path / "odd.mkv", 1))
    assert line.startswith("the codec of odd.mkv cannot be decoded here")


def test_frames_beyond_the_limits(clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    wide = write_clip(tmp_path / "wide.mp4", "libx264", "yuv420p", 2, (640, 16))
    assert "frames of 640 x 16 pixels" in complaint(lambda: read_video(wide, 1))
    monkeypatch.setattr(video_file, "HELD_PIXELS", 5 * 64 * 48)
    assert complaint(lambda: read_video(clips / "a.mp4", 6)).endswith("too much of a.mp4: take 5 at most")
    monkeypatch.setattr(video_file, "MAX_PIXELS", 64 * 48 - 1)
    assert "a.mp4 has frames of 64 x 48 pixels" in complaint(lambda: read_video(clips / "a.mp4", 1))
    monkeypatch.undo()
    monkeypatch.setattr(video_file, "MAX_FILE_FRAMES", 19)
    assert "more than 19 frames" in complaint(lambda: read_video(clips / "a.mp4", 1))


def test_without_the_library_the_line_says_what_to_install(clips: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "av", None)
    assert complaint(lambda: read_video(clips / "a.mp4", 1)).endswith('pip install "av>=15"')
