"""Recorded examples for the page before any model is loaded, of each pair that ships or is fetched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from PIL import Image

from recipes.toy.draw import draw_scene
from recipes.toy.scene import Split, sample_scene
from specllava.chat import Chat, Turn
from specllava.config import DecodingConfig
from specllava.models.tokens import Message
from specllava.pair import Pair
from specllava.race_file import dialogue_json, race_json
from specllava.scoring import ground

PICTURE_SIZE = 512


@dataclass(frozen=True, slots=True)
class RecordedExample:
    """A scene and the questions about it: one, or those of a dialogue.

    Args:
        temperature: of the answers; that of the command's options if it is not given.
    """

    name: str
    seed: int
    split: Split
    prompts: tuple[str, ...]
    temperature: float | None = None


TOY: Final = (
    RecordedExample("1-describe", 2_000_013, "held-out", ("Describe this image in detail.",)),
    RecordedExample("2-story", 2_000_027, "train", ("Tell me a story about this picture.",)),
    RecordedExample("3-count", 2_000_040, "train", ("How many objects are there?",)),
    RecordedExample(
        "4-dialogue",
        2_000_013,
        "train",
        ("Describe this image in detail.", "What is on the left?", "And what colour is it?"),
    ),
)
SMOL: Final = (
    RecordedExample("5-smol-story", 2_000_027, "train", ("Tell me a story.",)),
    RecordedExample("6-smol-poem", 2_000_013, "held-out", ("Write a poem about this.",), temperature=0.8),
    RecordedExample("7-smol-count", 2_000_040, "train", ("How many objects are there?",)),
)


def record(pair: Pair, directory: Path, config: DecodingConfig) -> list[Path]:
    """Race the pair's examples; write their pictures and all traces. The first race is a warm-up only."""
    examples = SMOL if pair.name == "smol" else TOY
    directory.mkdir(parents=True, exist_ok=True)
    return [record_example(pair, directory, config, example) for example in (examples[0], *examples)][1:]


def record_example(pair: Pair, directory: Path, config: DecodingConfig, example: RecordedExample) -> Path:
    """Race the turns of an example; write its picture and, as one race file, all traces. Return the file."""
    picture = draw_scene(sample_scene(example.seed, example.split), PICTURE_SIZE)
    picture.save(directory / f"{example.name}.png", format="PNG", optimize=True)
    chat = Chat(pair)
    if example.temperature is not None:
        config = replace(config, temperature=example.temperature)
    for prompt in example.prompts:
        for _ in chat.race(prompt, None if chat.turns else picture, config):
            pass
    races = [_race_file(pair, picture, chat.turns[: number + 1], example.name) for number in range(len(chat.turns))]
    path = directory / f"{example.name}.json"
    path.write_text(races[0] if len(races) == 1 else dialogue_json(races), encoding="utf-8")
    return path


def _race_file(pair: Pair, picture: Image.Image, turns: Sequence[Turn], name: str) -> str:
    """Write the race of the last turn, with what its words owe to the picture."""
    messages = [message for turn in turns for message in _messages(turn)][:-1]
    *_, trace = ground(pair, (picture,), messages, turns[-1].trace)
    return race_json(turns[-1].alone, trace, f"{name}.png" if turns[-1].media else None)


def _messages(turn: Turn) -> list[Message]:
    return [{"role": "user", "content": turn.text}, {"role": "assistant", "content": turn.answer}]
