"""Rows by number of a data file in LLaVA's instruction format, of any size.

The file is read once, row by row. Usable rows are written to a copy with one row a line and the offset of each
line, unusable ones are counted by reason. Memory holds eight bytes a row; a row is read when it is used.

A row is ``{"id": …, "image": "path" or ["path", …], "conversations": [{"from": "human" | "gpt", "value": …}, …]}``,
with ``<image>`` at the position of a picture and no ``image`` if there is none (``llava_v1_5_mix665k.json``).
"""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import ijson
import numpy as np
import numpy.typing as npt
from tqdm.auto import tqdm

from specllava.models.images import read_size

IMAGE_MARKER = "<image>"
SPEAKERS = ("human", "gpt")
MISSING = "with a missing image"
DEEPEST = 64  # lists and objects in one another, in a row; LLaVA's has three
OPENS, CLOSES = ("start_map", "start_array"), ("end_map", "end_array")  # ijson's events
Parsed = TypeVar("Parsed")


@dataclass(frozen=True, slots=True)
class Row:
    """One conversation to train on.

    Args:
        turns: questions and answers in turn, without image markers; the first is a question, the last an
            answer.
        images_per_question: number of images of each question; ``shown`` in files.
        images: their paths below the images directory, in order.
        ended: for each answer, whether it is complete; one that was cut at a limit has no end token as a label.
    """

    turns: tuple[str, ...]
    images_per_question: tuple[int, ...]
    images: tuple[str, ...]
    ended: tuple[bool, ...]

    def without_images(self) -> Row:
        """Return the same turns without their images."""
        return replace(self, images_per_question=(0,) * len(self.images_per_question), images=())

    def as_json(self) -> dict[str, Any]:
        """Return the row as JSON data for a line of its file."""
        return {"turns": self.turns, "shown": self.images_per_question, "images": self.images, "ended": self.ended}


@dataclass(frozen=True, slots=True)
class Reasons:
    """Counts of unusable rows by reason, and the number of the first of them."""

    counts: dict[str, int]
    first: dict[str, int]

    def line(self) -> str:
        """Return all counts in one line; empty if there are none."""
        commonest = sorted(self.counts.items(), key=lambda item: -item[1])
        return ", ".join(f"{count} {reason} (first: row {self.first[reason]})" for reason, count in commonest)


@dataclass(frozen=True, slots=True)
class Rows:
    """Usable rows of a data file by number, read from its copy on access.

    Args:
        file: the copy, one row a line.
        offsets: ``[rows + 1]``, the offset of each line.
        reasons: counts of the rows that are left out.
    """

    file: Path
    offsets: npt.NDArray[np.uint64]
    reasons: Reasons

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, number: int) -> Row:
        with self.file.open("rb") as lines:
            lines.seek(int(self.offsets[number]))
            data = json.loads(lines.readline())
        return Row(*(tuple(data[name]) for name in ("turns", "shown", "images", "ended")))

    def size(self, number: int) -> int:
        """Return the bytes of a row: a measure of its length without reading it."""
        return int(self.offsets[number + 1] - self.offsets[number])


class UnusableRowError(ValueError):
    """Error of a row of the data file that is left out and counted; the message is the reason."""


def write_rows(directory: Path, rows: Iterator[Row | UnusableRowError]) -> Rows:
    """Write rows to a directory, from which :func:`open_rows` reads them."""
    directory.mkdir(parents=True, exist_ok=True)
    offsets, counts, first = array("Q", [0]), Counter[str](), dict[str, int]()
    with (directory / "rows.jsonl").open("wb") as copy:
        for number, row in enumerate(rows):
            if isinstance(row, UnusableRowError):
                counts[str(row)] += 1
                first.setdefault(str(row), number)
                continue
            copy.write(json.dumps(row.as_json(), ensure_ascii=False).encode() + b"\n")
            offsets.append(copy.tell())
    np.save(directory / "places.npy", np.frombuffer(offsets, dtype=np.uint64))
    # Written last: a directory without it is not finished.
    beside = directory / "reasons.writing"
    beside.write_text(json.dumps({"counts": counts, "first": first}), encoding="utf-8")
    beside.replace(directory / "reasons.json")
    return open_rows(directory)


def open_rows(directory: Path) -> Rows:
    """Open the rows that :func:`write_rows` wrote."""
    reasons = json.loads((directory / "reasons.json").read_text(encoding="utf-8"))
    return Rows(directory / "rows.jsonl", np.load(directory / "places.npy"), Reasons(**reasons))


def index_rows(data: Path, images: Path, directory: Path) -> Rows:
    """Read a data file once and write its usable rows to ``directory``, or open the finished copy there.

    Pictures are identified, not decoded: one that is missing or of no known format makes its row unusable.

    Raises:
        ValueError: no such file or directory, an empty file, JSON that is not LLaVA's format, or no usable row.
    """
    if (directory / "reasons.json").is_file():
        return open_rows(directory)
    if not data.is_file():
        raise ValueError(f"no data file at {data}: a JSON list or .jsonl in LLaVA's instruction format is expected")
    _check_directory(images)
    bar = tqdm(raw_rows(data), desc="indexing rows", unit="row", mininterval=2.0)
    rows = write_rows(directory, (_usable(raw, images) for raw in bar))
    if not len(rows):
        (directory / "reasons.json").unlink()  # the file may be corrected
        why = rows.reasons.line()
        if set(rows.reasons.counts) == {MISSING}:
            raise ValueError(f"no row's image is in {images}: give the directory that the rows' image paths begin in")
        raise ValueError(f"{data} is not in LLaVA's format: no row can be used: {why}" if why else f"{data} is empty")
    return rows


def parsed_rows(
    data: Path, images: Path, parse: Callable[[Any, Path], Parsed], first: int | None = None
) -> Iterator[Parsed]:
    """Yield the rows of a file as ``parse`` reads them, every one of which must be usable.

    Args:
        images: directory that the image paths begin in; ``parse`` receives it with each row.
        first: read only so many rows.

    Raises:
        ValueError: no such directory, or a row that ``parse`` refuses, by its number; one line.
    """
    _check_directory(images)
    with closing(raw_rows(data)) as rows:
        for number, raw in enumerate(islice(rows, first), start=1):
            try:
                if isinstance(raw, UnusableRowError):
                    raise raw
                row = parse(raw, images)
            except UnusableRowError as error:
                raise ValueError(f"{data.name}, row {number}: {error}") from error
            yield row


def _check_directory(images: Path) -> None:
    if not images.is_dir():
        raise ValueError(f"no images directory at {images}: give the one that the rows' image paths begin in")


def raw_rows(data: Path) -> Generator[Any]:
    """Yield the rows of the file, unchecked: a JSON list, or a JSON text a line in a ``.jsonl``."""
    with data.open("rb") as file:
        if data.suffix == ".jsonl":
            yield from _lines(file)
            return
        head = file.read(4096).lstrip()
        if not head:
            return
        if not head.startswith(b"["):
            raise ValueError(f"{data} is not in LLaVA's format: a JSON list of rows is expected, or a .jsonl")
        file.seek(0)
        number = 0
        try:
            for row in _items(file):
                yield row
                number += 1
        except ijson.JSONError as error:
            complaint = " ".join(str(error).split())[:80]
            raise ValueError(f"{data} is not JSON at row {number}: {complaint}") from error
        except RecursionError as error:
            raise ValueError(f"{data} nests more than {DEEPEST} lists and objects at row {number}") from error


def _items(file: BinaryIO) -> Iterator[Any]:
    """Yield the items of a JSON list. ``ijson.items`` takes a time that grows with the square of their depth.

    Raises:
        RecursionError: an item that nests more than :data:`DEEPEST` lists and objects.
    """
    depth, item = 0, ijson.ObjectBuilder()
    for event, value in ijson.basic_parse(file, use_float=True):
        depth -= event in CLOSES
        if depth:
            item.event(event, value)
        depth += event in OPENS
        if depth > 1 + DEEPEST:
            raise RecursionError
        if depth == 1 and event not in OPENS:
            yield item.value
            item = ijson.ObjectBuilder()


def _lines(file: BinaryIO) -> Iterator[Any]:
    for line in file:
        if line.strip():
            try:
                yield json.loads(line)
            except ValueError:
                yield UnusableRowError("not JSON")
            except RecursionError:
                yield UnusableRowError("which nests too many lists and objects")


def _usable(raw: Any, images: Path) -> Row | UnusableRowError:
    try:
        if isinstance(raw, UnusableRowError):
            raise raw
        row = parse_row(raw)
        for name in row.images:
            check_picture(images, name)
    except UnusableRowError as error:
        return error
    return row


def check_picture(images: Path, name: str) -> None:
    """Check that a row's picture can be read; it is not decoded.

    Raises:
        UnusableRowError: its message is the reason.
    """
    path = images / name
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise UnusableRowError("with an image path that leads out of the images directory")
    if not path.is_file():
        raise UnusableRowError(MISSING)
    try:
        read_size(path)
    except ValueError as error:
        raise UnusableRowError("with an unreadable image") from error


def parse_row(raw: Any) -> Row:
    """Parse and check a row of the file. A leading answer and a trailing question are dropped, as LLaVA does.

    Raises:
        UnusableRowError: its message is the reason.
    """
    messages = _messages(raw)
    messages = messages[:-1] if messages and messages[-1][0] == "human" else messages
    if not messages:
        raise UnusableRowError("without an answer")
    if any(speaker != SPEAKERS[number % 2] for number, (speaker, _) in enumerate(messages)):
        raise UnusableRowError("in which human and gpt do not take turns")
    image_counts = tuple(text.count(IMAGE_MARKER) for _, text in messages)
    turns = tuple(text.replace(IMAGE_MARKER, "").strip() for _, text in messages)
    if any(image_counts[1::2]):
        raise UnusableRowError(f"with {IMAGE_MARKER} in an answer")
    if not all(turns):
        raise UnusableRowError("with an empty question or answer")
    images = image_paths(raw)
    if sum(image_counts) != len(images):
        raise UnusableRowError(f"with another number of {IMAGE_MARKER} markers than images")
    return Row(turns, image_counts[::2], images, (True,) * (len(turns) // 2))


def parse_question(raw: Any) -> tuple[str, tuple[str, ...]]:
    """Parse the first question of a row, answered or not, and the paths of its pictures.

    Raises:
        UnusableRowError: its message is the reason.
    """
    messages = _messages(raw)
    if not messages or messages[0][0] != "human":
        raise UnusableRowError("without a question")
    text, images = messages[0][1], image_paths(raw)
    shown = text.count(IMAGE_MARKER)
    if shown > len(images):
        raise UnusableRowError(f"with another number of {IMAGE_MARKER} markers than images")
    return text.replace(IMAGE_MARKER, "").strip(), images[:shown]


def parse_conversation(raw: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Parse all questions of a row, answered or not, and the paths of the pictures that the first of them shows.

    Raises:
        UnusableRowError: its message is the reason; such as a picture that a later question shows.
    """
    _, images = parse_question(raw)
    texts = [text for speaker, text in _messages(raw) if speaker == "human"]
    if any(IMAGE_MARKER in text for text in texts[1:]):
        raise UnusableRowError("with a picture in a later question")
    return tuple(text.replace(IMAGE_MARKER, "").strip() for text in texts), images


def _messages(raw: Any) -> list[tuple[str, str]]:
    """Return speaker and text of a row's messages; a leading answer is dropped, as LLaVA does."""
    talk = raw.get("conversations") if isinstance(raw, dict) else None
    if not isinstance(talk, list):
        raise UnusableRowError("without conversations")
    messages: list[tuple[str, str]] = [(part["from"], part["value"]) for part in talk if _is_message(part)]
    if len(messages) < len(talk):
        raise UnusableRowError('with a message that is not from "human" or "gpt" with a text as value')
    return messages[1:] if messages and messages[0][0] == "gpt" else messages


def image_paths(raw: Any) -> tuple[str, ...]:
    """Return the paths of a row's pictures: its ``image`` is one of them, a list, or missing.

    Raises:
        UnusableRowError: something else.
    """
    value = raw.get("image") or []
    images = tuple(value) if isinstance(value, list) else (value,)
    if not all(isinstance(name, str) for name in images):
        raise UnusableRowError("with an image that is no path")
    return images


def _is_message(part: Any) -> bool:
    return isinstance(part, dict) and part.get("from") in SPEAKERS and isinstance(part.get("value"), str)
