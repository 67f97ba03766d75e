"""Lessons: a recorded race each, a question about one of its steps, the answer, and the place that both speak of.

The step of a lesson is searched for in real runs of the models: scenes are raced one after the other until a
step fits. The texts are filled with that step's own numbers.
"""

from __future__ import annotations

import json
from pathlib import Path

from PIL import Image

from specllava.core.config import DecodingConfig
from specllava.core.race_file import race_json
from specllava.lane import SPECULATIVE, TARGET_ONLY
from specllava.pair import Pair
from specllava.toyworld.dialogue import DETAIL_PROMPTS
from specllava.toyworld.draw import draw_scene
from specllava.toyworld.evaluate import score_answer
from specllava.toyworld.examples import PICTURE_SIZE
from specllava.toyworld.lesson_races import LessonRace, LessonStep, Race
from specllava.toyworld.lesson_texts import LESSONS
from specllava.toyworld.scene import sample_scene

START, SCENES = 3_000_000, 80  # scene numbers that are tried, none of them used in training


def record_lessons(pair: Pair, directory: Path, config: DecodingConfig) -> list[Path]:
    """Find, race and write every lesson, and ``lessons.json`` with their words.

    Raises:
        ValueError: no scene has a step that fits a lesson.
    """
    directory.mkdir(parents=True, exist_ok=True)
    found: dict[str, LessonStep] = {}
    written, told = [], []
    for lesson in LESSONS:
        race = lesson.race
        if race.name not in found:
            picture, traces, found[race.name] = _search(pair, race, config)
            picture.save(directory / f"{race.name}.png", format="PNG", optimize=True)
            path = directory / f"{race.name}.json"
            path.write_text(race_json(traces[TARGET_ONLY], traces[SPECULATIVE], f"{race.name}.png"), encoding="utf-8")
            written.append(path)
        shown = found[race.name]
        told.append({
            "name": lesson.name, "title": lesson.title, "question": lesson.question.format(**shown.words),
            "answer": lesson.answer.format(**shown.words), "step": shown.step, "race": race.name, "place": lesson.place,
            "phase": lesson.phase, "node": shown.node,
        })  # fmt: skip
    index = directory / "lessons.json"
    index.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return [*written, index]


def _search(pair: Pair, race: LessonRace, config: DecodingConfig) -> tuple[Image.Image, Race, LessonStep]:
    for seed in range(START, START + SCENES):
        scene = sample_scene(seed, "train")
        picture = draw_scene(scene, PICTURE_SIZE)
        traces = race.run(pair, picture, DETAIL_PROMPTS[0], config)
        seen = score_answer(scene, traces[TARGET_ONLY].text)
        found = race.find(traces)
        right = seen.no_invention and seen.objects_named == seen.objects  # lessons state that the target is
        if found and right:
            return picture, traces, found
    raise ValueError(f"none of {SCENES} scenes shows what the lessons of the race {race.name} are about")
