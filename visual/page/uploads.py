"""Uploads of visitors: one picture, several, or a video with or without pictures, read within the page's limits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import gradio as gr
from PIL import Image

from specllava.core.limits import Limits
from specllava.models.media.images import open_image
from specllava.models.media.media import Media, Video, all_frames
from specllava.models.media.video_file import SUFFIXES, videos_are_read
from specllava.models.media.video_process import VideoRequest, read_video_apart
from visual.page.contact_sheet import contact_sheet
from visual.page.notices import error, info
from visual.page.picture_source import PictureSource
from visual.page.pictures import PICTURE_PIXELS, Picture, image_bytes
from visual.player.picture import data_address

QUESTION_PIXELS: Final = 2 * PICTURE_PIXELS**2  # of everything that one question shows: so many are kept


@dataclass(frozen=True, eq=False)
class MediaList:
    """Several pictures, or a video, of one question. Visitors see a contact sheet of them.

    Two are equal only if they are the same object, as with :class:`~visual.page.pictures.Picture`.
    """

    parts: tuple[Media, ...]
    uploaded = True

    @property
    def nbytes(self) -> int:
        """Bytes of all pictures and frames, and of the contact sheet."""
        return sum(map(image_bytes, (*all_frames(self.parts), self._sheet)))

    def open(self) -> tuple[Media, ...]:
        """Return the pictures and videos as the models get them."""
        return self.parts

    def preview(self) -> Image.Image:
        """Return the contact sheet."""
        return self._sheet

    @cached_property
    def _sheet(self) -> Image.Image:
        return contact_sheet(self.parts)


def upload_types() -> list[str]:
    """Return the kinds of files that can be uploaded, as Gradio's components take them."""
    return ["image", *(SUFFIXES if videos_are_read() else ())]


def upload_hint(limits: Limits) -> str:
    """Say what can be uploaded at once."""
    pictures = f"Up to {limits.pictures} pictures" if limits.pictures > 1 else "One picture"
    return f"{pictures}{' or a video' if videos_are_read() else ''}."


def read_upload(paths: Sequence[str] | None, limits: Limits | None = None) -> tuple[Any, Any, str]:
    """Read uploaded files. Returns state, image and notice; files that cannot be used change only the notice."""
    files = [Path(path) for path in paths or ()]
    try:
        source = uploaded_source(files, limits or Limits())
        return source, data_address(source.preview()), _caption(source)
    except ValueError as refusal:
        what = "These files" if len(files) > 1 else "This video" if any(map(_is_video, files)) else "This picture"
        return gr.skip(), gr.skip(), error(f"{what} cannot be used: {refusal}")


def uploaded_source(files: Sequence[Path], limits: Limits) -> PictureSource:
    """Read uploaded files, here and nowhere else, and keep what models get: Gradio deletes the files after a while.

    Raises:
        ValueError: a file that cannot be read, or something beyond the limits; one line.
    """
    videos = [file for file in files if _is_video(file)]
    if not videos:
        return uploaded_pictures(files, limits)
    _check_files(files, limits)
    if len(videos) > 1:
        raise ValueError(f"there are {len(videos)} videos, and one at a time is watched: choose one of them")
    longest = _longest(len(files) - 1 + limits.frames)

    def read(file: Path) -> Media:
        if file not in videos:
            return open_image(file, longest, limits.pixels)
        return read_video_apart(VideoRequest(str(file), limits.frames, longest, limits.seconds_per_video))

    return MediaList(tuple(map(read, files)))


def uploaded_pictures(files: Sequence[Path], limits: Limits) -> PictureSource:
    """Read uploaded files of pictures; otherwise as :func:`uploaded_source`."""
    _check_files(files, limits)
    longest = _longest(len(files))
    pictures = tuple(open_image(file, longest, limits.pixels) for file in files)
    return MediaList(pictures) if len(pictures) > 1 else Picture(upload=pictures[0])


def _longest(count: int) -> int:
    """Return how many pixels the longer side of each of so many pictures may have."""
    return min(PICTURE_PIXELS, math.isqrt(QUESTION_PIXELS // count))


def _check_files(files: Sequence[Path], limits: Limits) -> None:
    """Refuse too many files, or too large ones, before one is opened.

    Raises:
        ValueError: with the numbers.
    """
    if not files or not all(file.is_file() for file in files):
        raise ValueError("no file came")
    if len(files) > limits.pictures:
        raise ValueError(f"there are {len(files)}, and at most {limits.pictures} are shown at once: choose fewer")
    sizes = [file.stat().st_size for file in files]
    most, together = limits.upload_bytes, limits.question_bytes
    for file, size in zip(files, sizes, strict=True):
        if size > most:
            name = "the file" if len(files) == 1 else file.name
            raise ValueError(f"{name} has {size:,} bytes, and at most {most:,} are read: make it smaller")
    if sum(sizes) > together:
        raise ValueError(f"together they have {sum(sizes):,} bytes, and at most {together:,} are read: choose fewer")


def _is_video(file: Path) -> bool:
    return file.suffix.lower() in SUFFIXES and videos_are_read()


def _caption(source: PictureSource) -> str:
    """Make the notice of an upload that is more than a picture."""
    if not isinstance(source, MediaList):
        return ""
    frames = len(all_frames([part for part in source.parts if isinstance(part, Video)]))
    watched = f"{frames} frames of the video" if frames > 1 else "one frame of the video"
    if len(source.parts) == 1:
        return info(f"The models watch {watched}, evenly taken.")
    behind = f"; of the video they watch {frames}" if frames else ""
    return info(f"The models see these {len(source.parts)} in the order of their numbers{behind}.")
