"""Files of questions, as command line and page read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from specllava.core.question import Question
from specllava.distill.rows import UnusableRowError, check_picture, parse_conversation, parsed_rows

MAX_QUESTIONS: Final = 1_000


def read_questions(
    data: Path, images: Path | None = None, most: int = MAX_QUESTIONS, first: int | None = None
) -> tuple[Question, ...]:
    """Read the questions of a file: a JSON list, or a JSON text a line in a ``.jsonl``.

    A row is ``{"image": "path", "prompt": text}``, ``image`` missing where there is no picture. Of a row in LLaVA's
    format the first question is taken, answered or not.

    Args:
        images: directory that the image paths begin in; the file's own without it.
        most: questions that are allowed.
        first: read only so many rows.

    Raises:
        ValueError: no such file or directory, a row that cannot be asked, none or too many; one line.
    """
    if not data.is_file():
        raise ValueError(f"no data file at {data}: a .jsonl with a question a line is expected")
    if first is not None and not 1 <= first <= most:
        raise ValueError(f"the first {first} questions of {data.name} are asked for: 1 to {most:,} are possible")
    questions = tuple(parsed_rows(data, images or data.parent, _question, first or most + 1))
    if not questions:
        raise ValueError(f"{data.name} has no question")
    if len(questions) > most:
        raise ValueError(f"{data.name} has more than {most:,} questions: take a part of it")
    return questions


def _question(raw: Any, folder: Path) -> Question:
    if isinstance(raw, dict) and "conversations" not in raw:
        text, names = _simple(raw)
    else:
        (text, *_), names = parse_conversation(raw)
    if not text.strip():
        raise UnusableRowError("an empty question")
    if len(names) > 1:
        raise UnusableRowError(f"{len(names)} pictures in one question, and at most one is compared")
    for name in names:
        check_picture(folder, name)
    return Question(text, folder / names[0], names[0]) if names else Question(text)


def _simple(raw: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
    text, image = raw.get("prompt"), raw.get("image")
    if not isinstance(text, str):
        raise UnusableRowError('neither a "prompt" that is a text nor "conversations"')
    if image is not None and not isinstance(image, str):
        raise UnusableRowError("with an image that is no path")
    return text, () if image is None else (image,)
