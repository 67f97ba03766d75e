"""Video files of strangers, decoded in a process of its own: its memory, time and output are bounded.

A decoder is a large program that a file steers. Here it shares no memory with the models and gets no environment
variables but paths. It returns only numbers and pixels, which are checked.

    python -m specllava.models.media.video_process REQUEST
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryFile
from threading import Lock
from typing import IO, Any, Final

from PIL import Image

from specllava.core.bounded_process import bound, own_environment
from specllava.models.media.media import Video
from specllava.models.media.video_file import read_video

MEMORY: Final = 4 * 2**30  # bytes of address space: frames, decoders' threads and libraries
HEAD_BYTES: Final = 2**16  # of the line before the pixels
PATIENCE: Final = 5.0  # seconds to wait for the file before
_READING: Final = Lock()  # one file at a time, whoever asks


@dataclass(frozen=True, slots=True)
class VideoRequest:
    """What is read of a video file.

    Args:
        frames: how many are taken; all of a video that has fewer.
        longest: frames are shrunk until their longer side has at most so many pixels.
        seconds: that reading may take, on the clock and on the processors.
    """

    path: str
    frames: int
    longest: int
    seconds: float

    @property
    def most_bytes(self) -> int:
        """The size of the largest answer."""
        return HEAD_BYTES + self.frames * 3 * self.longest**2


def read_video_apart(request: VideoRequest) -> Video:
    """Return frames of a video file, as ``video_file.read_video`` in another process gives them.

    Raises:
        ValueError: as there; or reading takes more than it may, or fails; one line.
    """
    name = Path(request.path).name
    command = [sys.executable, "-m", __name__, json.dumps(asdict(request))]
    if not _READING.acquire(timeout=PATIENCE):  # a thread that waits serves nobody else
        raise ValueError("other videos are being read: please try again in a minute")
    try:
        with TemporaryFile() as answer:
            code = _code(command, own_environment(), answer, request.seconds)
            if code < 0:
                raise ValueError(f"{name} takes more than {request.seconds:g} seconds to read: cut a part out of it")
            if code > 0:
                raise ValueError(f"{name} cannot be read: its decoder failed or wanted too much memory")
            answer.seek(0)
            return _video(name, answer, request)
    finally:
        _READING.release()


def _code(command: list[str], environment: dict[str, str], answer: IO[bytes], seconds: float) -> int:
    """Return the exit code of the process; below 0 if the clock, or a bound that it set itself, ended it."""
    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": answer, "stderr": subprocess.DEVNULL}
    try:
        return subprocess.run(command, env=environment, timeout=seconds, check=False, **streams).returncode
    except subprocess.TimeoutExpired:
        return -1


def _video(name: str, answer: IO[bytes], request: VideoRequest) -> Video:
    """Read an answer, which may be anything.

    Raises:
        ValueError: a refusal, or no answer to the request.
    """
    try:
        head = json.loads(answer.readline(HEAD_BYTES))
        refusal = head["refused"] if isinstance(head, Mapping) and "refused" in head else None
        if refusal is None:
            width, height = map(int, head["size"])
            seconds = tuple(map(float, head["seconds"]))
            possible = 0 < max(width, height) <= request.longest and all(map(math.isfinite, seconds))
            if not possible or len(seconds) > request.frames:
                raise ValueError("other frames than were asked for")
            pixels = [answer.read(3 * width * height) for _ in seconds]
            return Video(tuple(Image.frombytes("RGB", (width, height), one) for one in pixels), seconds)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{name} cannot be read: its decoder gave no frames") from error
    raise ValueError(" ".join(str(refusal).split())[:200])


def main() -> None:
    """Read the file of the request in the command line; write one line of JSON, then the frames' pixels."""
    request = VideoRequest(**json.loads(sys.argv[1]))
    bound(MEMORY, request.seconds, request.most_bytes)
    head: dict[str, Any]
    frames: tuple[Image.Image, ...] = ()
    try:
        video = read_video(request.path, request.frames, fewer=True, longest=request.longest)
    except ValueError as refusal:
        head = {"refused": str(refusal)}
    else:
        head, frames = {"size": video.frames[0].size, "seconds": video.seconds}, video.frames
    sys.stdout.buffer.write(json.dumps(head).encode() + b"\n")
    for frame in frames:
        sys.stdout.buffer.write(frame.tobytes())


if __name__ == "__main__":
    main()
