"""Input pictures: checked before a pixel is decoded, upright, and of bounded size in memory."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TypeVar

from PIL import ExifTags, Image, UnidentifiedImageError
from PIL.Image import Transpose
from PIL.JpegImagePlugin import JpegImageFile

from specllava.core.limits import highest

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
MAX_PIXELS = highest("pixels")  # that are decoded
JPEG_PIXELS = 4  # times as many of a JPEG's file, which is then decoded at a half or less of its size
MAX_RATIO = 20.0
TURNS = {
    2: Transpose.FLIP_LEFT_RIGHT, 3: Transpose.ROTATE_180, 4: Transpose.FLIP_TOP_BOTTOM, 5: Transpose.TRANSPOSE,
    6: Transpose.ROTATE_270, 7: Transpose.TRANSVERSE, 8: Transpose.ROTATE_90,
}  # fmt: skip
SIDEWAYS = (5, 6, 7, 8)
_DECODING = Lock()  # warnings are filtered for the whole process, and memory is bounded by one decoder at a time
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """A picture's file that was read and not decoded."""

    name: str
    data: bytes = field(repr=False)


def open_image(
    source: str | Path | EncodedImage | Image.Image, longest: int | None = None, most: int = MAX_PIXELS
) -> Image.Image:
    """Return an upright RGB picture, from a file or from Pillow; EXIF orientation is applied and forgotten.

    Args:
        source: a file name, a file that was read, or a picture, which is left as it is.
        longest: shrink the picture until its longer side has at most so many pixels.

    Raises:
        ValueError: missing, unreadable, of another format, too large or absurdly narrow; one line.
    """
    if isinstance(source, Image.Image):
        return _guard("the image", most, lambda: _upright(source, longest, most))
    file = source if isinstance(source, EncodedImage) else Path(source)
    return _read(file, lambda picture: _upright(picture, longest, most, own=True), longest, most)


def read_size(source: Path | EncodedImage) -> tuple[int, int]:
    """Return height and width as :func:`open_image` gives them, by the header alone; nothing is decoded.

    Raises:
        ValueError: what :func:`open_image` would refuse by it; a picture that breaks off after its header passes.
    """
    return _read(source, lambda picture: picture.size if _orientation(picture) in SIDEWAYS else picture.size[::-1])


def is_animated(source: Path | EncodedImage) -> bool:
    """Return whether a picture has several frames, of which :func:`open_image` reads the first; no pixel is decoded.

    Raises:
        ValueError: as :func:`read_size`.
    """
    return _read(source, lambda picture: bool(getattr(picture, "is_animated", False)))


class _Unfit(ValueError):
    """Error of a readable picture that is refused for its size."""


def _read(
    source: Path | EncodedImage,
    use: Callable[[Image.Image], Result],
    longest: int | None = None,
    most: int = MAX_PIXELS,
) -> Result:
    """Apply ``use`` to a picture whose header was read; a JPEG is set to be decoded at a fraction of its size."""
    if isinstance(source, Path) and not source.is_file():
        raise ValueError(f"no image file at {source}")

    def read() -> Result:
        file = source if isinstance(source, Path) else io.BytesIO(source.data)
        with Image.open(file, formats=FORMATS) as picture:
            _check_size(picture, source.name, most)
            if isinstance(picture, JpegImageFile):
                part = _fraction(*picture.size, longest, most)
                picture.draft(None, (picture.width // part, picture.height // part))
            return use(picture)

    return _guard(source.name, most, read)


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


def _fraction(width: int, height: int, longest: int | None, most: int) -> int:
    """Return the divisor of a JPEG's sides in decoding: the smallest that fits, or down to twice ``longest``."""
    needed = next(part for part in (1, 2, 4, 8) if width * height <= most * part**2)
    enough = [part for part in (1, 2, 4, 8) if longest and max(width, height) >= 2 * longest * part]
    return max([needed, *enough])


def _upright(picture: Image.Image, longest: int | None, most: int, own: bool = False) -> Image.Image:
    """Make a picture upright, RGB and small. One of our ``own`` is shrunk before it is copied: half of the memory."""
    _check_size(picture, "the image", most)
    turn = TURNS.get(_orientation(picture))
    if own and longest is not None and picture.mode == "RGB":
        picture.load()  # at the fraction that was set
        picture.thumbnail((longest, longest))
    rgb = picture.convert("RGB")
    rgb.info = {}  # its orientation would be applied again by whoever opens it next
    if longest is not None:
        rgb.thumbnail((longest, longest))
    return rgb if turn is None else rgb.transpose(turn)


def _orientation(picture: Image.Image) -> int:
    """Return the EXIF orientation, 1 if there is none; of a PNG only if it is before the pixels."""
    if picture.format == "PNG" and "exif" not in picture.info:
        return 1  # Pillow would decode the picture to look after it
    orientation: int = picture.getexif().get(ExifTags.Base.Orientation, 1)
    return orientation
