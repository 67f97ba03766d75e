"""Files of answers, as other engines' scripts write them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from specllava.distill.rows import UnusableRowError, check_picture, image_paths, parsed_rows

PROMPT_IDS: Final = ("prompt_token_ids", "input_ids")  # vLLM's name; transformers' and SGLang's
ANSWER_IDS: Final = ("token_ids", "output_ids")  # vLLM's name, SGLang's


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer with its question.

    Args:
        prompt: the question; ``None`` where the row has no text or the whole prompt as ids.
        prompt_ids: the whole prompt, image slots included.
        images: picture files.
        ids, text: of the answer; at least one of them is there.
    """

    prompt: str | None
    prompt_ids: tuple[int, ...] | None
    images: tuple[Path, ...]
    ids: tuple[int, ...] | None
    text: str | None


def read_answers(data: Path, images: Path | None = None) -> tuple[Answer, ...]:
    """Read the answers of a ``.jsonl``, or of a JSON list.

    Args:
        images: directory that the image paths begin in; the file's own without it.

    Raises:
        ValueError: no such file or directory, a row that is no answer, or none; one line.
    """
    if not data.is_file():
        raise ValueError(f"no file of answers at {data}: a .jsonl with an answer a line is expected")
    answers = tuple(parsed_rows(data, images or data.parent, _answer))
    if not answers:
        raise ValueError(f"{data.name} has no answer")
    return answers


def check_same_questions(a: tuple[Answer, ...], b: tuple[Answer, ...]) -> None:
    """Check that two files answer the same questions; a row of B need not repeat its question.

    Raises:
        ValueError: they do not, a question is missing, or one row has ids only and the other text only.
    """
    if len(a) != len(b):
        raise ValueError(f"A has {len(a)} answers and B {len(b)}: both need the same questions in the same order")
    for number, (one, two) in enumerate(zip(a, b, strict=True), start=1):
        if one.prompt is None and one.prompt_ids is None:
            raise ValueError(f'row {number} of A has no question: give "prompt", or "prompt_token_ids"')
        for ours, theirs in ((one.prompt, two.prompt), (one.prompt_ids, two.prompt_ids)):
            if None not in (ours, theirs) and ours != theirs:
                raise ValueError(f"A and B have different prompts in row {number}: sort both files alike")
        if two.images and [path.name for path in one.images] != [path.name for path in two.images]:
            raise ValueError(f"A and B have different images in row {number}: sort both files alike")
        if None in (one.ids, two.ids) and None in (one.text, two.text):
            raise ValueError(f"row {number} has token ids in one file and text in the other: give the same in both")


def _answer(raw: Any, folder: Path) -> Answer:
    if not isinstance(raw, dict):
        raise UnusableRowError("not a JSON object")
    prompt, images, answer = raw.get("prompt"), image_paths(raw), _output(raw)
    prompt_ids, text = _ids(raw, *PROMPT_IDS), answer.get("text")
    if prompt is not None and not isinstance(prompt, str):
        raise UnusableRowError("with a prompt that is no text")
    if text is not None and not isinstance(text, str):
        raise UnusableRowError("with an answer's text that is no text")
    for name in images:
        check_picture(folder, name)
    ids = _ids(answer, *ANSWER_IDS) if raw.get("sequences") is None else _after(prompt_ids, _ids(raw, "sequences"))
    if ids is None and text is None:
        raise UnusableRowError('without an answer: give "token_ids", "output_ids", "sequences" or "text"')
    return Answer(
        None if prompt_ids else prompt, prompt_ids, tuple(folder / name for name in images), ids, text
    )


def _output(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a row that holds the answer: of vLLM's ``RequestOutput`` its only output."""
    outputs = raw.get("outputs")
    if outputs is None:
        return raw
    if not isinstance(outputs, list) or len(outputs) != 1 or not isinstance(outputs[0], dict):
        raise UnusableRowError('with "outputs" that are no list of one answer')
    only: dict[str, Any] = outputs[0]
    return only


def _ids(row: dict[str, Any], *names: str) -> tuple[int, ...] | None:
    """Return the token ids under the first name that a row has; a batch of one is unwrapped."""
    name = next((name for name in names if row.get(name) is not None), None)
    if name is None:
        return None
    ids = row[name]
    if isinstance(ids, list) and len(ids) == 1 and isinstance(ids[0], list):
        ids = ids[0]
    if not isinstance(ids, list):
        raise UnusableRowError(f"with {name} that are no list of token ids")
    wrong = [one for one in ids if not isinstance(one, int) or isinstance(one, bool) or one < 0]
    if wrong:
        raise UnusableRowError(f"with {str(wrong[0])[:40]!r} in {name}: a token's id is a number from 0")
    return tuple(ids)


def _after(prompt: tuple[int, ...] | None, whole: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """Return the answer in ``sequences`` of transformers' ``generate``, which begin with the prompt."""
    if whole is None or not prompt or whole[: len(prompt)] != prompt:
        raise UnusableRowError('with "sequences" that do not begin with its "input_ids"')
    return whole[len(prompt) :]
