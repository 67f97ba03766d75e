"""Rows of a data file, checked and parsed: conversations to train on, dialogues that a benchmark asks; no torch.

A conversation is ``{"image": "path" or ["path", …], "conversations": [{"from": "human" | "gpt", "value": …}, …]}``,
with ``<image>`` at the position of a picture and no ``image`` if there is none (``llava_v1_5_mix665k.json``).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from PIL import Image

from specllava.models.images import read_size

IMAGE_MARKER = "<image>"
SPEAKERS = ("human", "gpt")
MISSING = "with a missing image"
UNNAMED: Final = "all"  # category of dialogues that name none
MAX_CATEGORIES: Final = 12  # that a report keeps apart
MAX_NAME: Final = 60  # characters of a category


@dataclass(frozen=True, slots=True)
class Row:
    """One conversation to train on.

    Args:
        turns: questions and answers in turn, without image markers; the first is a question, the last an answer.
        images: paths below the images directory, in order.
        ended: for each answer, whether it is complete; one that was cut at a limit has no end token as a label.
    """

    turns: tuple[str, ...]
    images_per_question: tuple[int, ...]
    images: tuple[str, ...]
    ended: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class BenchDialogue:
    """Questions that are asked one after the other.

    Args:
        name: for messages, such as the row of a file.
        category: kind of its questions; categories are kept apart in a report.
        turns: the questions, at least one.
        images: pictures, or where they lie, that the first question shows.
    """

    name: str
    category: str
    turns: tuple[str, ...]
    images: tuple[Image.Image | Path, ...] = ()


class UnusableRowError(ValueError):
    """Error of a row of the data file that is left out and counted; the message is the reason."""


def load_rows(data: Path, images: Path) -> tuple[list[Row], dict[str, list[int]]]:
    """Return the usable rows of a data file, and the numbers of the others by reason.

    A picture only has to be there: one that cannot be read is replaced when its row is.

    Raises:
        ValueError: no such file or directory, an empty file, JSON that is not LLaVA's format, or no usable row.
    """
    if not data.is_file():
        raise ValueError(f"no data file at {data}: a JSON list or .jsonl in LLaVA's instruction format is expected")
    _check_directory(images)
    rows: list[Row] = []
    unusable: dict[str, list[int]] = defaultdict(list)
    for number, raw in enumerate(raw_rows(data)):
        try:
            row = parse_row(raw)
            for name in row.images:
                _image_path(images, name)
            rows.append(row)
        except UnusableRowError as error:
            unusable[str(error)].append(number)
    if set(unusable) == {MISSING} and not rows:
        raise ValueError(f"no row's image is in {images}: give the directory that the rows' image paths begin in")
    if not rows:
        why = f"is not in LLaVA's format: no row can be used: {count_reasons(unusable)}" if unusable else "is empty"
        raise ValueError(f"{data} {why}")
    return rows, dict(unusable)


def count_reasons(unusable: Mapping[str, Sequence[int]]) -> str:
    """Return the counts of unusable rows by reason in one line."""
    counts = (f"{len(numbers)} {reason} (first: row {numbers[0]})" for reason, numbers in unusable.items())
    return ", ".join(counts)


def raw_rows(data: Path) -> Iterator[Any]:
    """Yield the rows of a file, unchecked: a JSON list, or a JSON text a line in a ``.jsonl``.

    A line of a ``.jsonl`` that is no JSON is yielded as an :class:`UnusableRowError`.

    Raises:
        ValueError: the file is no JSON list.
    """
    if data.suffix == ".jsonl":
        with data.open("rb") as lines:
            yield from (_parse_json(line) for line in lines if line.strip())
        return
    rows = _parse_json(data.read_bytes().strip() or b"[]")
    if isinstance(rows, UnusableRowError):
        raise ValueError(f"{data} is {rows}: {' '.join(str(rows.__cause__).split())[:80]}")
    if not isinstance(rows, list):
        raise ValueError(f"{data} is not in LLaVA's format: a JSON list of rows is expected, or a .jsonl")
    yield from rows


def _parse_json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # the second: it nests too deeply
        failure = UnusableRowError("not JSON")
        failure.__cause__ = error
        return failure


def _check_directory(images: Path) -> None:
    if not images.is_dir():
        raise ValueError(f"no images directory at {images}: give the one that the rows' image paths begin in")


def _image_path(images: Path, name: str) -> Path:
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise UnusableRowError("with an image path that leads out of the images directory")
    path = images / name
    if not path.is_file():
        raise UnusableRowError(MISSING)
    return path


def parse_row(raw: Any) -> Row:
    """Parse and check a row of the file. A leading answer and a trailing question are dropped, as LLaVA does.

    Raises:
        UnusableRowError: its message is the reason.
    """
    if isinstance(raw, UnusableRowError):
        raise raw
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


def data_dialogues(
    data: Path, images: Path | None, most: int, turns: int, split: str | None = None
) -> tuple[BenchDialogue, ...]:
    """Read the first ``most`` rows of a file as dialogues; every one of them must be usable.

    A row is one of:

    * LLaVA's; every question is a turn, the answers of the file are not used.
    * MMSpec's (arXiv 2603.14989): ``{"id": …, "image": path, "turns": [text, …], "category": …, "topic": …}``.
    * plain: ``{"image": path, "prompt": text}``, or ``question`` in place of ``prompt``; ``image`` may be missing.

    Its category is its ``topic`` (which is one of six in MMSpec), else its ``category``, else :data:`UNNAMED`.

    Args:
        images: directory that the image paths begin in; without it ``images`` beside the file, else the file's own.
        turns: questions of one dialogue that are asked at most.
        split: take only rows whose ``split`` is this one.

    Raises:
        ValueError: no such file or directory, a row that cannot be asked, none, or too many categories; one line.
    """
    if not data.is_file():
        raise ValueError(f"no data file at {data}: a .json list or .jsonl of questions is expected")
    beside = data.parent / "images"
    folder = images or (beside if beside.is_dir() else data.parent)
    _check_directory(folder)
    dialogues: list[BenchDialogue] = []
    for number, raw in enumerate(raw_rows(data), start=1):
        if len(dialogues) == most:
            break
        if split is not None and isinstance(raw, dict) and raw.get("split") != split:
            continue
        name = f"{data.name}, row {number}"
        try:
            dialogues.append(_dialogue(name, raw, folder, turns))
        except UnusableRowError as error:
            raise ValueError(f"{name}: {error}") from error
    if not dialogues:
        raise ValueError(f"{data.name} has no question")
    if (count := len({one.category for one in dialogues})) > MAX_CATEGORIES:
        raise ValueError(
            f"{data.name} has {count} categories, and at most {MAX_CATEGORIES} are kept apart: name coarser ones as"
            ' "topic"'
        )
    return tuple(dialogues)


def _dialogue(name: str, raw: Any, folder: Path, turns: int) -> BenchDialogue:
    """Parse category, questions and picture files of a row.

    Raises:
        UnusableRowError: its message is the reason; such as a picture that a later question shows.
    """
    if isinstance(raw, UnusableRowError):
        raise raw
    if not isinstance(raw, dict):
        raise UnusableRowError("no object")
    images = image_paths(raw)
    if "conversations" in raw:
        texts = [text for speaker, text in _messages(raw) if speaker == "human"]
        shown = texts[0].count(IMAGE_MARKER) if texts else 0
        if shown > len(images):
            raise UnusableRowError(f"with another number of {IMAGE_MARKER} markers than images")
        if any(IMAGE_MARKER in text for text in texts[1:]):
            raise UnusableRowError("with a picture in a later question")
        images = images[:shown]
    else:
        texts = raw.get("turns", [raw.get("prompt", raw.get("question"))])
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise UnusableRowError('neither "conversations", nor "turns" that are texts, nor a "prompt" or "question"')
    asked = tuple(text.replace(IMAGE_MARKER, "").strip() for text in texts)
    if not asked or not all(asked):
        raise UnusableRowError("an empty question")
    paths = tuple(_image_path(folder, image) for image in images)
    try:
        for path in paths:
            read_size(path)
    except ValueError as error:
        raise UnusableRowError("with an unreadable image") from error
    category = raw.get("topic") or raw.get("category") or UNNAMED
    if not isinstance(category, str) or not category.isprintable() or len(category) > MAX_NAME:
        raise UnusableRowError(f"with a category that is no text of at most {MAX_NAME} printable characters")
    return BenchDialogue(name, category, asked[:turns], paths)
