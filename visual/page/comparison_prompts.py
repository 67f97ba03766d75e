"""Prompts of a comparison on many: lines about one picture, toy scenes, or a visitor's file. Nothing is decoded here.

A file is JSON lines, alone or as ``prompts.jsonl`` in a zip archive beside its pictures. Each line is an object with
``prompt`` and either ``image`` or ``scene``. An ``image`` is a picture's name in the archive or a ``data:`` address, a
``scene`` a number of the toy world. Archives come from anywhere: entries are read into memory within bounds, and none
is ever unpacked to disk.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from specllava.core.config import short
from specllava.core.limits import highest
from specllava.core.question import Question
from specllava.core.scenes import SCENES, scene_images
from specllava.models.media.images import EncodedImage, read_size
from visual.page.pictures import Picture, PictureSource
from visual.player.bounds import check_question

MAX_PROMPTS: Final = highest("prompts")
MAX_FILE_BYTES: Final = 8 * 2**20
MAX_UNPACKED_BYTES: Final = 12 * 2**20  # of all entries of an archive
MAX_PICTURE_BYTES: Final = 4 * 2**20
MAX_SCENE: Final = len(scene_images("train")) - 1
ENCRYPTED: Final = 0x1  # of an entry's flags
LIST: Final = "prompts.jsonl"
SUFFIXES: Final = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif")
DATA_ADDRESS: Final = re.compile(r"data:image/[a-z]+;base64,")


@dataclass(frozen=True, eq=False)
class PagePrompt:
    """A question and its picture, which is opened when its turn comes.

    Args:
        name: of the picture, for tables.
    """

    text: str
    picture: PictureSource
    name: str | None = None


def line_prompts(lines: str, picture: PictureSource | None) -> tuple[PagePrompt, ...]:
    """Take each line as a question about the same picture; empty ones are left out.

    Raises:
        ValueError: no picture, no line, too many, or one that is too long.
    """
    if picture is None:
        raise ValueError("choose a picture first, or No picture")
    texts = [line.strip() for line in lines.splitlines() if line.strip()]
    return _check_prompts(PagePrompt(text, picture) for text in texts)


def scene_prompts(count: int) -> tuple[PagePrompt, ...]:
    """Ask about toy scenes that training has not seen drawn.

    Raises:
        ValueError: fewer than one or more than ``MAX_PROMPTS``.
    """
    if not 1 <= count <= MAX_PROMPTS:
        raise ValueError(f"{count} scenes: choose 1 to {MAX_PROMPTS}")
    rows = (json.loads(line) for line in SCENES.read_text(encoding="utf-8").splitlines()[:count])
    return _check_prompts(
        PagePrompt(row["prompt"], Picture(file=str(SCENES.parent / row["image"])), row["image"]) for row in rows
    )


def file_prompts(path: Path) -> tuple[PagePrompt, ...]:
    """Read a visitor's JSON lines or zip archive; pictures are checked by their headers.

    Raises:
        ValueError: too large, no such file, or a line that cannot be used; one line that says which.
    """
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        raise ValueError(f"the file has {size:,} bytes, and at most {MAX_FILE_BYTES:,} are read")
    if not zipfile.is_zipfile(path):
        return _check_prompts(_prompts(path.read_bytes(), {}))
    try:
        with zipfile.ZipFile(path) as archive:
            entries = _entries(archive)
    except (zipfile.BadZipFile, NotImplementedError, OSError, EOFError, zlib.error) as error:
        raise ValueError(f"the archive cannot be read: {error}") from error
    if LIST not in entries:
        raise ValueError(f"the archive has no {LIST} at its top")
    return _check_prompts(_prompts(entries.pop(LIST), entries))


def questions(prompts: Iterable[PagePrompt]) -> Iterator[Question]:
    """Open pictures one by one, as the comparison asks for them."""
    for prompt in prompts:
        yield Question(prompt.text, prompt.picture.open(), prompt.name)


def _entries(archive: zipfile.ZipFile) -> dict[str, bytes]:
    """Read the list and the pictures at the top of an archive. Sizes are counted as they are read, not believed."""
    read: dict[str, bytes] = {}
    left = MAX_UNPACKED_BYTES
    for info in archive.infolist():
        name = info.filename
        if name != Path(name).name or (name != LIST and Path(name).suffix.lower() not in SUFFIXES):
            raise ValueError(f"{short(name)}: an archive holds {LIST} and pictures ({', '.join(SUFFIXES)}), no folders")
        if info.flag_bits & ENCRYPTED:
            raise ValueError(f"{short(name)} is encrypted: save the archive without a password")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{short(name)} is packed in an unusual way: save the archive as an ordinary zip")
        if len(read) > MAX_PROMPTS:
            raise ValueError(f"the archive has more than {MAX_PROMPTS} pictures")
        with archive.open(info) as entry:
            read[name] = entry.read(left + 1)
        left -= len(read[name])
        if left < 0:
            raise ValueError(f"the archive unpacks to more than {MAX_UNPACKED_BYTES:,} bytes")
    return read


def _prompts(data: bytes, pictures: Mapping[str, bytes]) -> Iterator[PagePrompt]:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError("the file is neither a zip archive nor UTF-8 text with a JSON object a line") from error
    for number, line in enumerate(io.StringIO(text), start=1):
        if not line.strip():
            continue
        if number > 10 * MAX_PROMPTS:
            raise ValueError(f"more than {10 * MAX_PROMPTS} lines")
        try:
            yield _prompt(json.loads(line), pictures)
        except json.JSONDecodeError as error:
            raise ValueError(f"line {number} is no JSON: {error.msg}") from error
        except (ValueError, RecursionError) as error:
            raise ValueError(f"line {number}: {error}") from error


def _prompt(row: Any, pictures: Mapping[str, bytes]) -> PagePrompt:
    if not isinstance(row, dict) or not isinstance(row.get("prompt"), str):
        raise ValueError('an object with "prompt" and "image" or "scene" is expected')
    text, image, scene = row["prompt"].strip(), row.get("image"), row.get("scene")
    if type(scene) is int and image is None:
        if not 0 <= scene <= MAX_SCENE:
            raise ValueError(f"scene = {short(scene)}: a number from 0 to {MAX_SCENE:,} is expected")
        return PagePrompt(text, Picture(file=str(scene_images("train")[scene])), f"scene {scene}")
    if not isinstance(image, str) or scene is not None:
        raise ValueError('either "image", the name of a picture or a data: address, or "scene", a number, is expected')
    is_address = image.startswith("data:")
    encoded = EncodedImage("the picture", _decode(image)) if is_address else _find_picture(image, pictures)
    if len(encoded.data) > MAX_PICTURE_BYTES:
        raise ValueError(f"{encoded.name} has {len(encoded.data):,} bytes, and at most {MAX_PICTURE_BYTES:,} are read")
    read_size(encoded)
    return PagePrompt(text, Picture(encoded=encoded), None if image.startswith("data:") else image)


def _find_picture(name: str, pictures: Mapping[str, bytes]) -> EncodedImage:
    if name not in pictures:
        raise ValueError(f"there is no picture {short(name)} beside {LIST}")
    return EncodedImage(name, pictures[name])


def _decode(address: str) -> bytes:
    start = DATA_ADDRESS.match(address)
    if start is None:
        raise ValueError("a picture's data: address begins with data:image/png;base64, or the like")
    try:
        return base64.b64decode(address[start.end() :], validate=True)
    except binascii.Error as error:
        raise ValueError(f"the picture's data: address is no base64: {error}") from error


def _check_prompts(prompts: Iterable[PagePrompt]) -> tuple[PagePrompt, ...]:
    found: list[PagePrompt] = []
    for prompt in prompts:
        if not prompt.text:
            raise ValueError(f"prompt {len(found) + 1} is empty")
        check_question(prompt.text)
        found.append(prompt)
        if len(found) > MAX_PROMPTS:
            raise ValueError(f"more than {MAX_PROMPTS} prompts: at most so many are compared at once")
    if not found:
        raise ValueError("there is no prompt")
    return tuple(found)
