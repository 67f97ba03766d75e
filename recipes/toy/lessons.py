"""Lessons: a recorded race each, and the step that it is about; the page words them.

Scenes are raced one after the other until a step of a race fits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from PIL import Image

from recipes.toy.draw import draw_scene
from recipes.toy.evaluate import score_answer
from recipes.toy.examples import PICTURE_SIZE
from recipes.toy.phrases import DETAIL_PROMPTS
from recipes.toy.scene import COLOURS, KINDS, sample_scene
from specllava.config import DecodingConfig
from specllava.metrics import summarise
from specllava.models.presets import preset_named
from specllava.pair import Pair
from specllava.race_file import race_json
from specllava.scoring import ground
from specllava.trace import SPECULATIVE, TARGET_ONLY, DecodeTrace, StepTrace

START, SCENES = 3_000_000, 80  # scene numbers that are tried, none of them used in training
EASY = 7  # accepted tokens in one step
NEAR = 3  # accepted guesses before the one that another branch saved, at most: its fork is soon in sight
WORTH = 4  # tokens that another branch saved, for a telling tree
BEFORE, AFTER = 2, 2  # accepted guesses before a wrong one, and lost ones after it
CHAIN: dict[str, Any] = {"rule": "chain", "depth": 6, "nodes": 6, "min_log_prob": -50.0}
DRAWN: dict[str, Any] = {"temperature": 0.8, "rule": "sequoia", "children": "drawn", "depth": 6, "nodes": 10}
APART = 0.1  # between a drawn number and the probability that it is compared with, for a clear rejection
CLEARLY = 1.15  # times as many tokens a pass after distillation, for a visible difference
TAUGHT, UNTAUGHT = "taught", "untaught"  # runs beside a race, for comparison
# Lessons by name, in their order, and the races that show them.
LESSONS = {
    "why": "saved", "chain": "chain", "wrong": "wrong", "doubt": "saved", "tree": "saved", "pass": "saved",
    "cache": "saved", "picture": "saved", "before": "before", "after": "after", "pays": "saved", "coin": "coin",
}  # fmt: skip
Race = dict[str, DecodeTrace]


@dataclass(frozen=True, slots=True)
class LessonStep:
    """Step of a race that a lesson shows.

    Args:
        step: counts from 0.
        node: node of its tree that the lessons point at; ``None``: the one that decided the step.
    """

    step: int
    node: int | None = None


@dataclass(frozen=True, slots=True)
class LessonRace:
    """A race that lessons show.

    Args:
        run: function that runs it: ``(pair, picture, prompt, config)`` to the traces by lane.
        find: function that returns the fitting step; ``None`` if no step of the race fits.
    """

    run: Callable[[Pair, Image.Image, str, DecodingConfig], Race]
    find: Callable[[Race], LessonStep | None]


def record_lessons(pair: Pair, directory: Path, config: DecodingConfig) -> list[Path]:
    """Find, race and write every lesson, and ``lessons.json``: what each is about.

    Raises:
        ValueError: no scene has a step that fits a lesson.
    """
    directory.mkdir(parents=True, exist_ok=True)
    steps: dict[str, LessonStep] = {}
    written, rows = [], []
    for name, race in LESSONS.items():
        if race not in steps:
            picture, traces, steps[race] = _search(pair, race, config)
            picture.save(directory / f"{race}.png", format="PNG", optimize=True)
            path = directory / f"{race}.json"
            path.write_text(race_json(traces[TARGET_ONLY], traces[SPECULATIVE], f"{race}.png"), encoding="utf-8")
            written.append(path)
        rows.append({"name": name, "race": race, "step": steps[race].step, "node": steps[race].node})
    index = directory / "lessons.json"
    index.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return [*written, index]


def _search(pair: Pair, name: str, config: DecodingConfig) -> tuple[Image.Image, Race, LessonStep]:
    race = RACES[name]
    for seed in range(START, START + SCENES):
        scene = sample_scene(seed, "train")
        picture = draw_scene(scene, PICTURE_SIZE)
        traces = race.run(pair, picture, DETAIL_PROMPTS[0], config)
        scores = score_answer(scene, traces[TARGET_ONLY].text)
        step = race.find(traces)
        right = scores.no_invention and scores.objects_named == scores.objects  # lessons state that the target is
        if step and right:
            return picture, traces, step
    raise ValueError(f"none of {SCENES} scenes shows what the lessons of the race {name} are about")


# --- how lessons are raced ----------------------------------------------------------------------------------------


def _race(pair: Pair, picture: Image.Image, prompt: str, config: DecodingConfig, **changes: Any) -> Race:
    return pair.compare(picture, prompt, replace(config, **changes))


def _grounded(pair: Pair, picture: Image.Image, prompt: str, config: DecodingConfig) -> Race:
    """Race, and measure what each word of the answer owes to the picture."""
    race = pair.compare(picture, prompt, config)
    *_, measured = ground(pair, (picture,), prompt, race[SPECULATIVE])
    return race | {SPECULATIVE: measured}


def _before(pair: Pair) -> Pair:
    """Return the target with its draft from before distillation."""
    preset = preset_named("toy-before")
    assert preset.draft is not None
    return pair.with_draft(preset.draft)


def _untaught(pair: Pair, picture: Image.Image, prompt: str, config: DecodingConfig) -> Race:
    """Race with the draft from before distillation; for comparison, run the one from after it."""
    later = pair.generate(picture, prompt, config)
    return _before(pair).compare(picture, prompt, config) | {TAUGHT: later}


def _after(pair: Pair, picture: Image.Image, prompt: str, config: DecodingConfig) -> Race:
    """Race with the draft from after distillation; for comparison, run the one from before it."""
    earlier = _before(pair).generate(picture, prompt, config)
    return pair.compare(picture, prompt, config) | {UNTAUGHT: earlier}


# --- what lessons search for --------------------------------------------------------------------------------------


def _find_saved(traces: Race) -> LessonStep | None:
    """Find a word before which the tree branched and another guess than the draft's favourite was right."""
    trace = traces[SPECULATIVE]
    for index, step, position in _iterate_accepted(trace):
        tree, node = step.tree, step.verification.accepted[position]
        parent = tree.parents[node]
        doubt, family = tree.entropies[parent], tree.children()[parent]
        if doubt is None or doubt <= trace.config.entropy_threshold:
            continue
        if position >= NEAR or tree.sibling_ranks()[node] == 0:
            continue
        saved = len(step.emitted) - position
        if saved >= WORTH and all(_is_word(trace.texts[tree.tokens[n]]) for n in family):
            return LessonStep(index, parent)
    return None


def _find_grounded(traces: Race) -> LessonStep | None:
    """Find what ``_find_saved`` finds, in an answer of which a content word hangs on one part of the picture."""
    found, trace = _find_saved(traces), traces[SPECULATIVE]
    grounding = trace.grounding
    if found is None or grounding is None or not grounding.grid:
        return None
    for at, tiles in zip(grounding.grounded, grounding.occluded, strict=True):
        word, seen = trace.texts[trace.token_ids[at]].strip(), grounding.probs[at]
        if word in (*COLOURS, *KINDS) and min(tiles) < seen / grounding.factor:
            return found
    return None


def _find_broken(traces: Race) -> LessonStep | None:
    """Find a chain whose first guesses were right, one after them wrong, and more after that lost."""
    trace = traces[SPECULATIVE]
    for index, step in enumerate(trace.steps):
        accepted = step.verification.accepted
        lost = step.tree.drafted - len(accepted) - 1
        if len(accepted) < BEFORE or lost < AFTER:
            continue
        wrong = accepted[-1] + 1
        if _misses(trace, step, wrong):
            return LessonStep(index, wrong)
    return None


def _find_wrong(traces: Race) -> LessonStep | None:
    """Find a step whose most probable node was rejected and the target chose another kind."""
    trace = traces[SPECULATIVE]
    for index, step in enumerate(trace.steps):
        last = step.verification.path[-1]
        favourite = _favourite(step, last)
        wanted = trace.texts[step.verification.bonus_token].strip()
        if favourite is not None and wanted in KINDS and _word(trace, step, favourite) in KINDS:
            return LessonStep(index, favourite)
    return None


def _find_refused(traces: Race) -> LessonStep | None:
    """Find a node's only guess, rejected by chance, and the word that the target drew from the residual after it."""
    trace = traces[SPECULATIVE]
    for index, step in enumerate(trace.steps):
        for before, after in pairwise(step.draws):
            if before.accepted or before.acceptance is None or before.node != after.node:
                continue
            family = step.tree.children()[before.node]
            texts = [trace.texts[draw.token] for draw in (before, after)]
            clear = APART < before.acceptance < min(1, before.uniform) - APART
            if len(family) == 1 and all(map(_is_word, texts)) and clear:
                return LessonStep(index, family[0])
    return None


def _find_stumble(traces: Race) -> LessonStep | None:
    """Find a step in which the draft proposed tokens, none was accepted, and distillation clearly raised τ."""
    trace = traces[SPECULATIVE]
    tau, later = (summarise([run]).tau for run in (trace, traces[TAUGHT]))
    if later < CLEARLY * tau:
        return None
    for index, step in enumerate(trace.steps[2:-1], start=2):
        favourite = _favourite(step, 0)
        if favourite is None or step.verification.accepted:
            continue
        if _misses(trace, step, favourite):
            return LessonStep(index, favourite)
    return None


def _find_taught(traces: Race) -> LessonStep | None:
    """Find the longest accepted run of the distilled draft, where ``_find_stumble`` finds a step for the other one."""
    trace = traces[SPECULATIVE]
    if not _find_stumble({SPECULATIVE: traces[UNTAUGHT], TAUGHT: trace}):
        return None
    accepted = [len(step.verification.accepted) for step in trace.steps]
    return LessonStep(accepted.index(max(accepted))) if max(accepted) >= EASY else None


def _iterate_accepted(trace: DecodeTrace) -> Iterator[tuple[int, StepTrace, int]]:
    """Yield every accepted guess as number of its step, the step, and its position among those accepted there."""
    for index, step in enumerate(trace.steps):
        for position in range(len(step.verification.accepted)):
            yield index, step, position


def _favourite(step: StepTrace, parent: int) -> int | None:
    """Return the most probable child of a node; ``None`` if it has none."""
    return max(step.tree.children()[parent], key=step.tree.log_probs.__getitem__, default=None)


def _misses(trace: DecodeTrace, step: StepTrace, node: int) -> bool:
    """Check that a rejected guess and the target's own token are whole words."""
    return all(_is_word(trace.texts[token]) for token in (step.tree.tokens[node], step.verification.bonus_token))


def _is_word(text: str) -> bool:
    """Return whether a token is a whole word: those read best."""
    return text[:1] == " " and text.strip().isalpha()


def _word(trace: DecodeTrace, step: StepTrace, node: int) -> str:
    return trace.texts[step.tree.tokens[node]].strip()


# Races by name, which is the name of their files too.
RACES = {
    "saved": LessonRace(_grounded, _find_grounded),
    "chain": LessonRace(partial(_race, **CHAIN), _find_broken),
    "coin": LessonRace(partial(_race, **DRAWN), _find_refused),
    "wrong": LessonRace(_race, _find_wrong),
    "before": LessonRace(_untaught, _find_stumble),
    "after": LessonRace(_after, _find_taught),
}
