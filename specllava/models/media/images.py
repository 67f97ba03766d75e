"""Input pictures: checked before a pixel is decoded, upright, RGB as transformers reads them, and of bounded size."""

from __future__ import annotations

import io
import os
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile

from specllava.config import highest

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
MAX_PIXELS = highest("pixels")  # that are decoded
JPEG_PIXELS = 4  # times as many of a JPEG's file, which is then decoded at a half or less of its size
MAX_RATIO = 20.0
SIDEWAYS = (5, 6, 7, 8)
STRIP = 2**20  # pixels that are converted at once
PACKED = {"L;2": 85, "L;4": 17}  # by Pillow's name of a PNG's packing: what it multiplies the file's samples by
_DECODING = Lock()  # warnings are filtered for the whole process, and memory is bounded by one decoder at a time
Result = TypeVar("Result")
BYTES = bytes, bytearray, memoryview
ImageFile = str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO  # by name, as bytes or opened
ImageSource = ImageFile | Image.Image | npt.NDArray[Any]
Picture = ImageSource | None  # as callers name it
Pictures = Picture | list[Picture] | tuple[Picture, ...]


def open_image(source: ImageSource, longest: int | None = None, most: int = MAX_PIXELS) -> Image.Image:
    """Return an upright RGB picture; EXIF orientation is applied and forgotten, transparency is put on white.

    Args:
        source: a file by its name, as bytes or opened; a picture of Pillow's, which is left as it is; an array of
            samples, grey or with its channels last or first. Integers have 8 bits, or 16 or 31 where their type or the
            largest of them needs that. Floats are from 0, black, to 1, white.
        longest: shrink the picture until its longer side has at most so many pixels.

    Raises:
        ValueError: an address, missing, unreadable, of another format, too large or absurdly narrow; one line.
    """
    if isinstance(source, Image.Image):
        return _guard("the image", most, lambda: _upright(source, longest, most))
    if hasattr(source, "__array__"):
        return _guard("the image", most, lambda: _upright(_from_array(np.asarray(source)), longest, most, own=True))
    return _read(source, lambda picture: _upright(picture, longest, most, own=True), longest, most)


def open_media(given: Pictures) -> tuple[Image.Image, ...]:
    """Open pictures, in their order.

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
    return _read(source, lambda picture: picture.size if _orientation(picture) in SIDEWAYS else picture.size[::-1])


def is_animated(source: ImageFile) -> bool:
    """Return whether a picture has several frames, of which :func:`open_image` reads the first; no pixel is decoded.

    A phone's JPEG may hold other pictures behind its own (MPO): those are no frames.

    Raises:
        ValueError: as :func:`read_size`.
    """
    return _read(source, lambda picture: picture.format != "MPO" and bool(getattr(picture, "is_animated", False)))


class _Unfit(ValueError):
    """Error of a readable picture that is refused for its size."""


def _read(
    source: ImageFile, use: Callable[[Image.Image], Result], longest: int | None = None, most: int = MAX_PIXELS
) -> Result:
    """Apply ``use`` to a picture whose header was read; a JPEG is set to be decoded at a fraction of its size."""
    name = "the image"
    if isinstance(source, str | os.PathLike):
        _check_path(os.fspath(source))
        name = Path(source).name
    elif isinstance(source, io.TextIOBase) or not (isinstance(source, BYTES) or hasattr(source, "read")):
        raise ValueError(
            f"a picture cannot be of the type {type(source).__name__}: give a path, bytes, a binary file, an array or"
            " Pillow's"
        )

    def read() -> Result:
        file = io.BytesIO(source) if isinstance(source, BYTES) else source
        with Image.open(file, formats=FORMATS) as picture:
            _check_size(picture, name, most)
            if isinstance(picture, JpegImageFile):
                enough = max(picture.size) // (2 * longest) if longest else 1
                part = min(8, max(enough, 1 if picture.width * picture.height <= most else 2))
                picture.draft(None, (picture.width // part, picture.height // part))
            return use(picture)

    return _guard(name, most, read)


def _check_path(path: str) -> None:
    """Refuse a path that leads to no file, and an address.

    Raises:
        ValueError: it does; of an address that went through pathlib both slashes are named.
    """
    if os.path.isfile(path):
        return
    scheme, _, rest = path.partition(":")
    if re.fullmatch(r"[A-Za-z][\w+.-]+", scheme) and (rest.startswith("/") or scheme == "data"):
        slashes = "" if scheme == "data" else "///" if scheme == "file" else "//"
        shown = f"{scheme}:{slashes}{rest.lstrip('/')}"[:80]
        raise ValueError(f"{shown} is an address, and none is opened: save the picture and give its path")
    raise ValueError(f"no image file at {path}")


def _guard(name: str, most: int, read: Callable[[], Result]) -> Result:
    """Call ``read`` without Pillow's warnings; any error of Pillow becomes one line that names the picture."""
    try:
        with _DECODING, warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"PIL\b")
            return read()
    except _Unfit:
        raise
    except Image.DecompressionBombError as error:  # Pillow's bound on what a header says, far above ours
        pixels = "".join(f"{int(number):,} " for number in re.findall(r"\d+", str(error))[:1]) or "far too many "
        raise ValueError(f"{name} has {pixels}pixels: at most {most:,} in all are read") from error
    except UnidentifiedImageError as error:
        raise ValueError(f"{name} is not a readable image: use one of {', '.join(FORMATS)}") from error
    except Exception as error:
        raise ValueError(f"{name} cannot be read as an image: {' '.join(str(error).split())}") from error


def _check_size(picture: Image.Image, name: str, most: int) -> None:
    width, height = picture.size
    most *= JPEG_PIXELS if isinstance(picture, JpegImageFile) else 1
    if width < 1 or height < 1 or width * height > most:
        raise _Unfit(f"{name} has {width} x {height} pixels: at least 1 and at most {most:,} in all are read")
    if max(width, height) > MAX_RATIO * min(width, height):
        raise _Unfit(f"{name} has {width} x {height} pixels: one side may be {MAX_RATIO:.0f} times the other")


def _upright(picture: Image.Image, longest: int | None, most: int, own: bool = False) -> Image.Image:
    """Make a picture upright, RGB and small. One of our ``own`` is shrunk before it is copied: half of the memory."""
    _check_size(picture, "the image", most)
    orientation = _orientation(picture)
    if own and longest is not None and picture.mode == "RGB" and not picture.has_transparency_data:
        picture.load()  # at the fraction that was set
        picture.thumbnail((longest, longest))
    rgb = _to_rgb(picture)
    rgb.info = {}  # its orientation would be applied again by whoever opens it next
    if longest is not None:
        rgb.thumbnail((longest, longest))
    rgb.getexif()[ExifTags.Base.Orientation] = orientation
    ImageOps.exif_transpose(rgb, in_place=True)
    return rgb


def _to_rgb(picture: Image.Image) -> Image.Image:
    """Convert a picture to RGB as transformers does, on white where it is transparent; deep greys are scaled."""
    hidden = _transparent_colour(picture)
    picture.load()
    deep = picture.mode[0] in "IF"
    if not (deep or picture.has_transparency_data):
        return picture.convert("RGB")
    white = _white(np.asarray(picture)) if deep else 255
    rgb, rows = Image.new("RGB", picture.size), max(1, STRIP // picture.width)
    for top in range(0, picture.height, rows):
        strip = picture.crop((0, top, picture.width, min(top + rows, picture.height)))
        rgb.paste(_scale_grey(strip, white, hidden) if deep else _on_white(strip, hidden), (0, top))
    return rgb


def _transparent_colour(picture: Image.Image) -> Any:
    """Return the colour that is transparent, before the picture is loaded: a file says it in samples of its own depth.

    Of a PNG's samples of 16 bits a colour Pillow keeps the upper 8.
    """
    hidden, tiles = picture.info.get("transparency"), getattr(picture, "tile", ())
    packed = tiles[0].args if tiles else ""
    if hidden is None or not isinstance(packed, str):
        return hidden
    return tuple(sample >> 8 for sample in hidden) if packed == "RGB;16B" else hidden * PACKED.get(packed, 1)


def _on_white(picture: Image.Image, hidden: Any) -> Image.Image:
    """Put a picture on white. ``hidden`` is its transparent colour, or alpha by colour of its palette."""
    picture.info = {} if hidden is None else {"transparency": hidden}
    clear = (picture.convert("LA") if picture.mode == "La" else picture).convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", clear.size, "white"), clear).convert("RGB")


def _scale_grey(picture: Image.Image, white: int, hidden: int | None) -> Image.Image:
    """Scale greys from 0 to ``white``; those of the value ``hidden`` are transparent."""
    values = np.asarray(picture)
    return Image.fromarray(_eight_bits(np.where(values == hidden, white, values), white)).convert("RGB")


def _from_array(array: npt.NDArray[Any]) -> Image.Image:
    """Make a picture of an array of samples.

    Raises:
        ValueError: its shape or its type is none of a picture's, or as :func:`_white`.
    """
    if array.ndim == 3 and array.shape[0] in (1, 3, 4) and array.shape[2] > 4:
        array = np.moveaxis(array, 0, 2)
    flat = array[:, :, 0] if array.ndim == 3 and array.shape[2] == 1 else array
    if array.dtype.kind not in "buif" or flat.ndim not in (2, 3) or flat.shape[2:] > (4,) or not flat.size:
        raise _Unfit(
            f"the image is an array of {array.dtype} with the shape {array.shape}: numbers for height, width and 1 to 4"
            " channels are read"
        )
    return Image.fromarray(_eight_bits(flat, _white(flat)))


def _white(values: npt.NDArray[Any]) -> int:
    """Return the sample that is white: by the type, of wider integers the highest of the bits that they need.

    Raises:
        ValueError: samples below 0, or above that.
    """
    if values.dtype.kind == "u" and values.dtype.itemsize <= 2:
        return int(np.iinfo(values.dtype).max)
    low, high = values.min(), values.max()
    depths = (1,) if values.dtype.kind in "fb" else (2**8 - 1, 2**16 - 1, 2**31 - 1)
    white = next((most for most in depths if 0 <= low <= high <= most), None)
    if white is None:
        raise _Unfit(
            f"the image has samples from {low:g} to {high:g}: integers are read from 0 (black), floats from 0 to 1"
            " (white): scale them"
        )
    return white


def _eight_bits(values: npt.NDArray[Any], white: int) -> npt.NDArray[np.uint8]:
    """Scale samples from 0 to ``white`` to 0 to 255, rounded."""
    return values.astype(np.uint8) if white == 255 else np.rint(values * (255 / white)).astype(np.uint8)


def _orientation(picture: Image.Image) -> int:
    """Return the EXIF orientation, 1 if there is none; of a PNG only if it is before the pixels."""
    orientation: int = Image.Image.getexif(picture).get(ExifTags.Base.Orientation, 1)  # a PNG's own would decode it
    return orientation
