"""Recorded examples for the page before any model is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from specllava.config import DecodingConfig
from specllava.lane import SPECULATIVE, TARGET_ONLY
from specllava.pair import Pair
from specllava.race_file import race_json
from specllava.toyworld.draw import draw_scene
from specllava.toyworld.scene import Split, sample_scene

PICTURE_SIZE = 512


@dataclass(frozen=True, slots=True)
class Example:
    """A scene and a question about it."""

    name: str
    seed: int
    split: Split
    prompt: str


EXAMPLES = (
    Example("1-describe", 2_000_013, "held-out", "Describe this image in detail."),
    Example("2-story", 2_000_027, "train", "Tell me a story about this picture."),
    Example("3-count", 2_000_040, "train", "How many objects are there?"),
)


def record(pair: Pair, directory: Path, config: DecodingConfig) -> list[Path]:
    """Race every example; write its picture and both traces. The first race is a warm-up only."""
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for example in (EXAMPLES[0], *EXAMPLES):
        picture = draw_scene(sample_scene(example.seed, example.split), PICTURE_SIZE)
        picture.save(directory / f"{example.name}.png", format="PNG", optimize=True)
        traces = pair.compare(picture, example.prompt, config)
        path = directory / f"{example.name}.json"
        race = race_json(traces[TARGET_ONLY], traces[SPECULATIVE], f"{example.name}.png")
        path.write_text(race, encoding="utf-8")
        written.append(path)
    return written[1:]
