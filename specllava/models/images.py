"""Input pictures: checked before a pixel is decoded, upright, RGB on white, and of bounded size."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile

from specllava.config import upper_bound

FORMATS: Final = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
MAX_PIXELS: Final = upper_bound("pixels")  # that are decoded
JPEG_PIXELS: Final = 4  # times as many of a JPEG's file, which is then decoded at half of its size
MAX_RATIO: Final = 20.0
SIDEWAYS: Final = (5, 6, 7, 8)
BYTES: Final = bytes, bytearray, memoryview
ImageFile = str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO  # by name, as bytes or opened
ImageSource = ImageFile | Image.Image | npt.NDArray[Any]
Pictures = ImageSource | list[ImageSource | None] | tuple[ImageSource | None, ...] | None  # as callers name them


def open_image(source: ImageSource, longest: int | None = None, most: int = MAX_PIXELS) -> Image.Image:
    """Return an upright RGB picture; EXIF orientation is applied and forgotten, transparency is put on white.

    Args:
        source: a file by its name, as bytes or opened; a picture of Pillow's, which is left as it is; an array of
            bytes, ``[height, width]`` or ``[height, width, 1 to 4]``.
        longest: shrink the picture until its longer side has at most so many pixels.
        most: pixels that are decoded.

    Raises:
        ValueError: an address, missing, unreadable, of another format, too large or absurdly narrow; one line.
    """
    with _opened(source, most) as picture:
        upright = ImageOps.exif_transpose(picture)
        if longest is not None:
            upright.thumbnail((longest, longest))
        return _to_rgb(upright)


def open_media(given: Pictures) -> tuple[Image.Image, ...]:
    """Open pictures, in their order; see :func:`open_image`.

    Raises:
        ValueError: a picture that cannot be read.
    """
    several = given if isinstance(given, list | tuple) else [given]
    return tuple(open_image(one) for one in several if one is not None)


def read_size(source: ImageFile) -> tuple[int, int]:
    """Return height and width as :func:`open_image` gives them, by the header alone; nothing is decoded.

    Raises:
        ValueError: what :func:`open_image` would refuse by it; a picture that breaks off after its header passes.
    """
    with _opened(source) as picture:
        sideways = Image.Image.getexif(picture).get(ExifTags.Base.Orientation) in SIDEWAYS
        return picture.size if sideways else picture.size[::-1]


def is_animated(source: ImageFile) -> bool:
    """Return whether a picture has several frames, of which :func:`open_image` reads the first.

    A phone's JPEG may hold other pictures behind its own (MPO): those are no frames.

    Raises:
        ValueError: as :func:`read_size`.
    """
    with _opened(source) as picture:
        return picture.format != "MPO" and bool(getattr(picture, "is_animated", False))


class _UnfitError(ValueError):
    """Refusal of a picture in one line."""


@contextmanager
def _opened(source: ImageSource, most: int = MAX_PIXELS) -> Iterator[Image.Image]:
    """Open a picture and check its header; any error of Pillow becomes one line that names the picture."""
    name = "the image"
    if isinstance(source, str | os.PathLike):
        _check_path(os.fspath(source))
        name = Path(source).name
    elif isinstance(source, io.TextIOBase) or not isinstance(source, (*BYTES, Image.Image, np.ndarray, io.IOBase)):
        raise ValueError(
            f"a picture cannot be of the type {type(source).__name__}: give a path, bytes, a binary file, an array or"
            " Pillow's"
        )
    try:
        if isinstance(source, Image.Image):
            picture = source
        elif isinstance(source, np.ndarray):
            picture = _from_array(source)
        else:
            picture = Image.open(io.BytesIO(source) if isinstance(source, BYTES) else source, formats=FORMATS)
        _check_size(picture, name, most)
        if isinstance(picture, JpegImageFile) and picture.width * picture.height > most:
            picture.draft(None, (picture.width // 2, picture.height // 2))
        yield picture
    except _UnfitError:
        raise
    except Image.DecompressionBombError as error:  # Pillow's bound on what a header says, far above ours
        raise ValueError(f"{name} has far too many pixels: at most {most:,} in all are read") from error
    except UnidentifiedImageError as error:
        raise ValueError(f"{name} is not a readable image: use one of {', '.join(FORMATS)}") from error
    except Exception as error:
        raise ValueError(f"{name} cannot be read as an image: {' '.join(str(error).split())}") from error


def _check_path(path: str) -> None:
    """Refuse a path that leads to no file, and an address; of one that went through pathlib both slashes are named."""
    if os.path.isfile(path):
        return
    scheme, _, rest = path.partition(":")
    if re.fullmatch(r"[A-Za-z][\w+.-]+", scheme) and (rest.startswith("/") or scheme == "data"):
        slashes = "" if scheme == "data" else "///" if scheme == "file" else "//"
        shown = f"{scheme}:{slashes}{rest.lstrip('/')}"[:80]
        raise ValueError(f"{shown} is an address, and none is opened: save the picture and give its path")
    raise ValueError(f"no image file at {path}")


def _check_size(picture: Image.Image, name: str, most: int) -> None:
    width, height = picture.size
    most *= JPEG_PIXELS if isinstance(picture, JpegImageFile) else 1
    if width < 1 or height < 1 or width * height > most:
        raise _UnfitError(f"{name} has {width} x {height} pixels: at least 1 and at most {most:,} in all are read")
    if max(width, height) > MAX_RATIO * min(width, height):
        raise _UnfitError(f"{name} has {width} x {height} pixels: one side may be {MAX_RATIO:.0f} times the other")


def _from_array(array: npt.NDArray[Any]) -> Image.Image:
    """Make a picture of an array of bytes."""
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or array.shape[2:] > (4,) or not array.size:
        raise _UnfitError(
            f"the image is an array of {array.dtype} with the shape {array.shape}: bytes (uint8) for height, width and"
            " 1 to 4 channels are read"
        )
    return Image.fromarray(array[:, :, 0] if array.shape[2:] == (1,) else array)


def _to_rgb(picture: Image.Image) -> Image.Image:
    """Convert a picture to RGB as transformers does, on white where it is transparent; greys of 16 bits are scaled."""
    if picture.mode[0] == "I":
        picture = Image.fromarray(np.rint(np.asarray(picture) / 257).clip(0, 255).astype(np.uint8))
    if picture.has_transparency_data:
        clear = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", clear.size, "white"), clear)
    rgb = picture.convert("RGB")
    rgb.info = {}
    return rgb
