"""Dialogues about pictures that a benchmark asks, and the prompts of their turns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from PIL import Image

from specllava.config import DecodingConfig
from specllava.trace import TARGET_ONLY
from specllava.pair import Pair
from specllava.prompt import Prompt
from specllava.prompt import NoRoomError
from specllava.spec_decode.loop import Lane


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
