"""Dialogues that a benchmark asks: of a file in LLaVA's, MMSpec's or a plain format, and the prompts of their turns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

from PIL import Image

from specllava.config import DecodingConfig
from specllava.distill.rows import (
    IMAGE_MARKER,
    UnusableRowError,
    check_picture,
    image_paths,
    parse_conversation,
    parsed_rows,
)
from specllava.pair import Pair
from specllava.prompt import NoRoomError, Prompt
from specllava.spec_decode.loop import Lane
from specllava.trace import TARGET_ONLY

UNNAMED: Final = "all"  # category of rows that name none
MAX_CATEGORIES: Final = 12  # that a report keeps apart
MAX_NAME: Final = 60  # characters of a category


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


def prompts_of(pair: Pair, dialogue: BenchDialogue, config: DecodingConfig) -> Iterator[Prompt]:
    """Yield the prompt of every turn. Between two of them is the answer of the target alone, for every lane.

    Each prompt is whole: no lane reuses what it read for the turn before. A dialogue that outgrows the context ends.

    Raises:
        ValueError: its first question does not fit the context, or a picture or text that cannot be read; one line that
            names the dialogue.
    """
    chat: list[dict[str, Any]] = []
    for number, text in enumerate(dialogue.turns):
        chat.append({"role": "user", "content": text})
        try:
            prompt = pair.prompt(dialogue.images, chat, config.max_new_tokens)
        except NoRoomError as error:
            if number:
                return
            raise ValueError(f"{dialogue.name}: {error}") from error
        except ValueError as error:
            raise ValueError(f"{dialogue.name}: {error}") from error
        yield prompt
        if number + 1 < len(dialogue.turns):
            alone = Lane(TARGET_ONLY, replace(config, drafter="none"), prompt)
            chat.append({"role": "assistant", "content": pair.run(alone, record=False).text})


def data_dialogues(
    data: Path, images: Path | None, most: int, turns: int, split: str | None = None
) -> tuple[BenchDialogue, ...]:
    """Read the first ``most`` rows of a file: a JSON list, or a JSON text a line in a ``.jsonl``.

    A row is one of:

    * LLaVA's: ``{"image": path or paths, "conversations": [{"from": "human", "value": text}, …]}``; every question is a
      turn, the answers of the file are not used.
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
    folder, first = images or (beside if beside.is_dir() else data.parent), most if split is None else None
    rows = (
        BenchDialogue(f"{data.name}, row {number}", category, texts[:turns], pictures)
        for number, (kind, category, texts, pictures) in enumerate(parsed_rows(data, folder, _dialogue, first), start=1)
        if split in (None, kind)
    )
    dialogues = tuple(islice(rows, most))
    if not dialogues:
        raise ValueError(f"{data.name} has no question")
    categories = {dialogue.category for dialogue in dialogues}
    if len(categories) > MAX_CATEGORIES:
        raise ValueError(
            f"{data.name} has {len(categories)} categories, and at most {MAX_CATEGORIES} are kept apart: name coarser"
            ' ones as "topic"'
        )
    return dialogues


def _dialogue(raw: Any, folder: Path) -> tuple[Any, str, tuple[str, ...], tuple[Path, ...]]:
    """Parse split, category, questions and picture files of a row."""
    if not isinstance(raw, dict):
        raise UnusableRowError("no object")
    if "conversations" in raw:
        texts, images = parse_conversation(raw)
    else:
        texts, images = _texts(raw), image_paths(raw)
    if not texts or not all(texts):
        raise UnusableRowError("an empty question")
    for image in images:
        check_picture(folder, image)
    return raw.get("split"), _category(raw), texts, tuple(folder / image for image in images)


def _texts(raw: dict[str, Any]) -> tuple[str, ...]:
    given = raw.get("turns", [raw.get("prompt", raw.get("question"))])
    if not isinstance(given, list) or not all(isinstance(text, str) for text in given):
        raise UnusableRowError('neither "conversations", nor "turns" that are texts, nor a "prompt" or "question"')
    return tuple(text.replace(IMAGE_MARKER, "").strip() for text in given)


def _category(raw: dict[str, Any]) -> str:
    value = raw.get("topic") or raw.get("category") or UNNAMED
    if not isinstance(value, str) or not value.isprintable() or len(value) > MAX_NAME:
        raise UnusableRowError(f"with a category that is no text of at most {MAX_NAME} printable characters")
    return value
