"""Evaluation of the toy target: its descriptions of held-out scenes are parsed and scored."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

from tqdm.auto import tqdm

from recipes.toy.draw import draw_scene
from recipes.toy.parsed_text import parse_text
from recipes.toy.phrases import DETAIL_PROMPTS
from recipes.toy.scene import HELD_OUT, Scene, Split, scenes
from specllava.config import DecodingConfig
from specllava.pair import Pair

EVALUATION_START = 1_000_000  # scene numbers that no training run reaches


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts over descriptions, from which all rates are derived."""

    scenes: int = 0
    place: int = 0
    weather: int = 0
    time: int = 0
    count: int = 0
    objects: int = 0
    objects_named: int = 0
    new_objects: int = 0
    new_objects_named: int = 0
    no_invention: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def rates(self) -> dict[str, float | int]:
        """Return shares by name: of scenes, of objects, and of objects in a combination that training never named."""
        of_scenes = {name: getattr(self, name) / self.scenes for name in ("place", "weather", "time", "count")}
        return {
            "scenes": self.scenes,
            **of_scenes,
            "colour_and_kind": self.objects_named / self.objects,
            "nothing_invented": self.no_invention / self.scenes,
            **({"held_out_combinations": self.new_objects_named / self.new_objects} if self.new_objects else {}),
        }


def score_answer(scene: Scene, text: str) -> Tally:
    """Score one description against the scene.

    An object introduced twice must be in the scene twice; what is named again later ("the red cat", "the cat") must be
    in it too.
    """
    parsed = parse_text(text)
    there = Counter(thing.combination for thing in scene.things)
    named = Counter(parsed.combinations)
    right = there & named
    kinds = {thing.kind for thing in scene.things}
    invented = bool(named - there) or not set(parsed.mentions) <= set(there) or not set(parsed.kinds) <= kinds
    return Tally(
        scenes=1,
        place=parsed.place == scene.place,
        weather=parsed.weather == scene.weather,
        time=parsed.time == scene.time,
        count=parsed.count == len(scene.things),
        objects=len(scene.things),
        objects_named=right.total(),
        new_objects=len(scene.held_out_things),
        new_objects_named=sum(n for combination, n in right.items() if combination in HELD_OUT),
        no_invention=not invented,
    )


def evaluate(pair: Pair, split: Split, count: int, config: DecodingConfig | None = None) -> dict[str, Any]:
    """Describe ``count`` scenes of a split greedily and return the rates of correct statements."""
    config = config or DecodingConfig()
    total = Tally()
    for scene, prompt in tqdm(held_out_prompts(split, count), total=count, desc=f"describing, {split}"):
        trace = pair.generate(draw_scene(scene, 256), prompt, config)
        total += score_answer(scene, trace.text)
    return {"split": split, **total.rates(), "counts": asdict(total), "setting": asdict(pair.info)}


def held_out_prompts(split: Split, count: int) -> Iterable[tuple[Scene, str]]:
    """Yield scenes that training never reached, each with one of the plain requests for a description."""
    for number, scene in enumerate(scenes(split, EVALUATION_START, count)):
        yield scene, random.Random(number).choice(DETAIL_PROMPTS)
