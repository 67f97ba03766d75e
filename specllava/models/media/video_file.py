"""Video files: some frames, evenly taken, are decoded one after the other; formats, sizes and lengths are bounded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from PIL import Image

from specllava.core.limits import highest
from specllava.models.media.images import MAX_PIXELS, MAX_RATIO
from specllava.models.media.media import Video, evenly

if TYPE_CHECKING:
    from av.container import InputContainer
    from av.video.frame import VideoFrame
    from av.video.stream import VideoStream

FORMATS: Final = ("mov", "mp4", "matroska", "webm", "avi", "mpegts", "gif")  # no lists of other files
SUFFIXES: Final = (".mp4", ".mov", ".mkv", ".webm", ".avi", ".ts")  # of files in those formats that are no pictures
MAX_FRAMES: Final = highest("frames")  # that are read of a video
MAX_FILE_FRAMES: Final = 200_000  # that it has, nearly two hours at 30 a second
HELD_PIXELS: Final = 8 * MAX_PIXELS  # of all frames that are read, 3 bytes each


def videos_are_read() -> bool:
    """Whether the library that reads videos is installed."""
    return find_spec("av") is not None


def read_video(
    source: str | Path,
    frames: int,
    draft_frames: int | None = None,
    *,
    fewer: bool = False,
    longest: int | None = None,
) -> Video:
    """Return frames of a video file, upright and in RGB, with their times.

    Of all frames those of ``video.evenly`` are taken. The file is read twice, for the times of
    its frames and for the frames; none is kept but those that are returned.

    Args:
        draft_frames: how many of them a draft model watches; all without it.
        fewer: take all frames of a video that has fewer.
        longest: shrink the frames until their longer side has at most so many pixels.

    Raises:
        ValueError: PyAV is not installed, no such file, no video, an unknown codec, too long, or frames that are too
            large or too few; one line.
    """
    path = Path(source)
    if not path.is_file():
        raise ValueError(f"no video file at {path}")
    if not 1 <= frames <= MAX_FRAMES:
        raise ValueError(f"{frames} frames of {path.name} are asked for: 1 to {MAX_FRAMES} are possible")
    with path.open("rb") as file:
        with _stream(file, path.name) as (container, stream):
            _check_size(path.name, stream.codec_context.width, stream.codec_context.height, frames, longest)
            times = _times(path.name, container, stream)
        if frames > len(times) and not fewer:
            raise ValueError(f"{path.name} has {len(times)} frames, not {frames}: take {len(times)} at most")
        chosen = evenly(len(times), min(frames, len(times)))
        file.seek(0)
        with _stream(file, path.name) as (container, stream):
            taken = tuple(_decode_chosen(path.name, container, stream, frozenset(chosen), longest))
    if len(taken) < len(chosen):
        raise ValueError(f"{path.name} breaks off: {len(taken)} of {len(chosen)} frames could be decoded")
    return Video(taken, tuple(times[index] - times[0] for index in chosen), draft_frames)


@contextmanager
def _stream(file: BinaryIO, name: str) -> Iterator[tuple[InputContainer, VideoStream]]:
    """Open a file's first video stream; errors of the library become one line."""
    try:
        import av
    except ImportError as error:
        raise ValueError('videos are read by PyAV, which is not installed: pip install "av>=15"') from error
    options = {"format_whitelist": ",".join(FORMATS), "protocol_whitelist": ""}
    try:
        with av.open(file, options=options, metadata_errors="ignore") as container:
            if not container.streams.video:
                raise ValueError(f"{name} has no video in it")
            stream = container.streams.video[0]
            if stream.codec_context is None:
                raise ValueError(f"the codec of {name} cannot be decoded here: convert it, to H.264 for example")
            stream.codec_context.options = {"max_pixels": str(MAX_PIXELS)}
            yield container, stream
    except (av.FFmpegError, OSError) as error:  # the latter from its calls to read the file
        why = " ".join(str(error.strerror).split())[:100]
        raise ValueError(f"{name} cannot be read as a video ({why}): use mp4, mov, mkv, webm, avi or ts") from error


def _check_size(name: str, width: int, height: int, frames: int, longest: int | None) -> None:
    """Refuse frames that are too large, narrow or many to be held.

    Raises:
        ValueError: with the numbers.
    """
    if not 1 <= width * height <= MAX_PIXELS or max(width, height) > MAX_RATIO * min(width, height):
        raise ValueError(
            f"{name} has frames of {width} x {height} pixels: 1 to {MAX_PIXELS:,} in all are read, one side at most"
            f" {MAX_RATIO:.0f} times the other"
        )
    held = width * height if longest is None else min(width * height, longest**2)
    if frames * held > HELD_PIXELS:
        raise ValueError(
            f"{frames} frames of {width} x {height} pixels are too much of {name}: take {HELD_PIXELS // held} at most"
        )


def _times(name: str, container: InputContainer, stream: VideoStream) -> list[float]:
    """Return the seconds at which all frames are shown, in order; nothing is decoded.

    Raises:
        ValueError: there are none, or too many.
    """
    times: list[int] = []
    for packet in container.demux(stream):
        time = packet.dts if packet.pts is None else packet.pts  # AVI knows when frames are decoded
        if time is not None and packet.size and not packet.is_discard:
            times.append(time)
        if len(times) > MAX_FILE_FRAMES:
            raise ValueError(f"{name} has more than {MAX_FILE_FRAMES:,} frames: cut a part out of it")
    if not times:
        raise ValueError(f"{name} has no frames")
    return [float(time * (stream.time_base or 0)) for time in sorted(times)]


def _decode_chosen(
    name: str, container: InputContainer, stream: VideoStream, chosen: frozenset[int], longest: int | None
) -> Iterator[Image.Image]:
    """Decode up to the last of the chosen frames, and yield those.

    Raises:
        ValueError: frames of several sizes.
    """
    stream.thread_type = "AUTO"
    sizes = set[tuple[int, int]]()
    for number, frame in zip(range(max(chosen) + 1), container.decode(stream), strict=False):
        if number in chosen:
            sizes.add((frame.width, frame.height))
            if len(sizes) > 1:
                raise ValueError(f"{name} changes the size of its frames: cut a part out of it")
            yield _upright(frame, longest)


def _upright(frame: VideoFrame, longest: int | None = None) -> Image.Image:
    """Return a frame as it is shown; a turned camera is noted beside the pixels."""
    image: Image.Image = frame.to_image()
    if longest is not None:
        image.thumbnail((longest, longest))
    turn = round(frame.rotation / 90) * 90 % 360
    return image.rotate(turn, expand=True) if turn else image
