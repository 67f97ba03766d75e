"""Pictures from outside: checked before a pixel is decoded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image, UnidentifiedImageError

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
MAX_PIXELS = 40_000_000
MAX_RATIO = 20.0


def open_image(source: str | Path | Image.Image) -> Image.Image:
    """An RGB picture from a file or from Pillow.

    Raises:
        ValueError: missing, unreadable, of another format, too large or absurdly narrow; one line.
    """
    if isinstance(source, Image.Image):
        _check_size(source, "the image")
        return source.convert("RGB")
    with _opened(Path(source)) as picture:
        return picture.convert("RGB")


def read_size(path: Path) -> tuple[int, int]:
    """Height and width of a picture by its header alone; nothing is decoded.

    Raises:
        ValueError: what :func:`open_image` would refuse by it; a picture that breaks off behind its header passes.
    """
    with _opened(path) as picture:
        return picture.height, picture.width


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    """A picture whose header was read; whatever goes wrong with the file becomes one line."""
    if not path.is_file():
        raise ValueError(f"no image file at {path}")
    try:
        with Image.open(path, formats=FORMATS) as picture:
            _check_size(picture, path.name)
            yield picture
    except UnidentifiedImageError as error:
        raise ValueError(f"{path.name} is not a readable image: use one of {', '.join(FORMATS)}") from error
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path.name} cannot be read as an image: {error}") from error


def _check_size(picture: Image.Image, name: str) -> None:
    width, height = picture.size
    if width < 1 or height < 1 or width * height > MAX_PIXELS:
        raise ValueError(f"{name} has {width} x {height} pixels: at least 1 and at most {MAX_PIXELS:,} in all are read")
    if max(width, height) > MAX_RATIO * min(width, height):
        raise ValueError(f"{name} has {width} x {height} pixels: one side may be {MAX_RATIO:.0f} times the other")
