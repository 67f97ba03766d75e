"""Recorded races: examples, which the page shows before any model is loaded, and those that its lessons are about."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from PIL import Image

from recipes.toy.draw import draw_scene
from recipes.toy.evaluate import score_answer
from recipes.toy.phrases import DETAIL_PROMPTS
from recipes.toy.scene import COLOURS, KINDS, Split, sample_scene
from specllava.chat import Chat, Turn
from specllava.config import DecodingConfig
from specllava.metrics import summarise
from specllava.models.presets import preset_named
from specllava.models.tokens import Message
from specllava.pair import Pair
from specllava.race_file import dialogue_json, race_json
from specllava.scoring import ground
from specllava.trace import SPECULATIVE, TARGET_ONLY, DecodeTrace, StepTrace
from visual.player.lessons import LessonRecord

PICTURE_SIZE = 512
LESSONS_START, LESSON_SCENES = 3_000_000, 80  # scene numbers that are tried, none of them used in training
EASY = 7  # accepted tokens in one step
NEAR = 3  # accepted guesses before the one that another branch saved, at most: its fork is soon in sight
WORTH = 4  # tokens that another branch saved, for a telling tree
BEFORE, AFTER = 2, 2  # accepted guesses before a wrong one, and lost ones after it
CHAIN: dict[str, Any] = {"rule": "chain", "depth": 6, "nodes": 6, "min_log_prob": -50.0}
DRAWN: dict[str, Any] = {"temperature": 0.8, "rule": "sequoia", "children": "drawn", "depth": 6, "nodes": 10}
APART = 0.1  # between a drawn number and the probability that it is compared with, for a clear rejection
CLEARLY = 1.15  # times as many tokens a pass after distillation, for a visible difference
OTHER = "other"  # run of the other draft, before or after distillation
# Lessons by name, in their order, and the races that show them.
LESSONS = {
    "why": "saved", "chain": "chain", "wrong": "wrong", "doubt": "saved", "tree": "saved", "pass": "saved",
    "cache": "saved", "picture": "saved", "before": "before", "after": "after", "pays": "saved", "coin": "coin",
}  # fmt: skip
Race = dict[str, DecodeTrace]


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
    RecordedExample("1-describe", 2_000_127, "held-out", ("Describe this image in detail.",)),
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
LessonStep = tuple[int, int | None]  # step of a race that a lesson shows, node of its tree or the one that decided


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
    messages: list[Message] = []
    for turn in turns:
        messages += [{"role": "user", "content": turn.text}, {"role": "assistant", "content": turn.answer}]
    *_, trace = ground(pair, (picture,), messages[:-1], turns[-1].trace)
    return race_json(turns[-1].alone, trace, f"{name}.png" if turns[-1].media else None)


def record_lessons(pair: Pair, directory: Path, config: DecodingConfig) -> list[Path]:
    """Race scenes until a step fits each lesson; write the races, and ``lessons.json``: what each lesson is about.

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
        rows.append(LessonRecord(name, race, *steps[race])._asdict())
    index = directory / "lessons.json"
    index.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return [*written, index]


def _search(pair: Pair, name: str, config: DecodingConfig) -> tuple[Image.Image, Race, LessonStep]:
    run, find = RACES[name]
    for seed in range(LESSONS_START, LESSONS_START + LESSON_SCENES):
        scene = sample_scene(seed, "train")
        picture = draw_scene(scene, PICTURE_SIZE)
        traces = run(pair, picture, DETAIL_PROMPTS[0], config)
        scores = score_answer(scene, traces[TARGET_ONLY].text)
        step = next(find(traces), None)
        right = scores["no_invention"] and scores["objects_named"] == scores["objects"]  # lessons state that it is
        if step and right:
            return picture, traces, step
    raise ValueError(f"none of {LESSON_SCENES} scenes shows what the lessons of the race {name} are about")


def _race(pair: Pair, picture: Image.Image, prompt: str, config: DecodingConfig, **changes: Any) -> Race:
    return pair.compare(picture, prompt, replace(config, **changes))


def _grounded(pair: Pair, picture: Image.Image, prompt: str, config: DecodingConfig) -> Race:
    """Race, and measure what each word of the answer owes to the picture."""
    race = pair.compare(picture, prompt, config)
    *_, measured = ground(pair, (picture,), prompt, race[SPECULATIVE])
    return race | {SPECULATIVE: measured}


def _distilled(pair: Pair, picture: Image.Image, prompt: str, config: DecodingConfig, after: bool) -> Race:
    """Race with the draft from before or after distillation, and run the other one."""
    preset = preset_named("toy-before")
    assert preset.draft is not None
    before = pair.with_draft(preset.draft)
    raced, other = (pair, before) if after else (before, pair)
    return raced.compare(picture, prompt, config) | {OTHER: other.generate(picture, prompt, config)}


def _find_saved(traces: Race) -> Iterator[LessonStep]:
    """Find words before which the tree branched and another guess than the draft's favourite was right."""
    trace = traces[SPECULATIVE]
    for index, step in enumerate(trace.steps):
        tree = step.tree
        for position, node in enumerate(step.verification.accepted[:NEAR]):
            parent = tree.parents[node]
            doubt, family = tree.entropies[parent], tree.children()[parent]
            if doubt is None or doubt <= trace.config.entropy_threshold or tree.sibling_ranks()[node] == 0:
                continue
            words = all(_is_word(trace.texts[tree.tokens[sibling]]) for sibling in family)
            if words and len(step.emitted) - position >= WORTH:
                yield index, parent


def _find_grounded(traces: Race) -> Iterator[LessonStep]:
    """Find what ``_find_saved`` finds, in an answer of which a content word hangs on one part of the picture."""
    trace = traces[SPECULATIVE]
    grounding = trace.grounding
    if grounding is None or not grounding.grid:
        return
    for at, tiles in zip(grounding.grounded, grounding.occluded, strict=True):
        word, seen = trace.texts[trace.token_ids[at]].strip(), grounding.probs[at]
        if word in (*COLOURS, *KINDS) and min(tiles) < seen / grounding.factor:
            yield from _find_saved(traces)
            return


def _find_broken(traces: Race) -> Iterator[LessonStep]:
    """Find chains whose first guesses were right, one after them wrong, and more after that lost."""
    trace = traces[SPECULATIVE]
    for index, step in enumerate(trace.steps):
        accepted = step.verification.accepted
        lost = step.tree.drafted - len(accepted) - 1
        if len(accepted) >= BEFORE and lost >= AFTER and _misses(trace, step, accepted[-1] + 1):
            yield index, accepted[-1] + 1


def _find_wrong(traces: Race) -> Iterator[LessonStep]:
    """Find steps whose most probable node was rejected and the target chose another kind."""
    trace = traces[SPECULATIVE]
    for index, step in enumerate(trace.steps):
        favourite = _favourite(step, step.verification.path[-1])
        if favourite is not None:
            tokens = step.verification.bonus_token, step.tree.tokens[favourite]
            if {trace.texts[token].strip() for token in tokens} <= set(KINDS):
                yield index, favourite


def _find_refused(traces: Race) -> Iterator[LessonStep]:
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
                yield index, family[0]


def _find_after(traces: Race) -> Iterator[LessonStep]:
    """Find the longest accepted run of the distilled draft, where the other one has a step that fits."""
    accepted = [len(step.verification.accepted) for step in traces[SPECULATIVE].steps]
    if max(accepted) >= EASY and any(_find_stumble(traces[OTHER], traces[SPECULATIVE])):
        yield accepted.index(max(accepted)), None


def _find_stumble(before: DecodeTrace, after: DecodeTrace) -> Iterator[LessonStep]:
    """Find steps in which the draft proposed tokens, none was accepted, and distillation clearly raised τ."""
    if summarise([after]).tau < CLEARLY * summarise([before]).tau:
        return
    for index, step in enumerate(before.steps[2:-1], start=2):
        favourite = _favourite(step, 0)
        if favourite is not None and not step.verification.accepted and _misses(before, step, favourite):
            yield index, favourite


def _favourite(step: StepTrace, parent: int) -> int | None:
    """Return the most probable child of a node; ``None`` if it has none."""
    return max(step.tree.children()[parent], key=step.tree.log_probs.__getitem__, default=None)


def _misses(trace: DecodeTrace, step: StepTrace, node: int) -> bool:
    """Check that a rejected guess and the target's own token are whole words."""
    return all(_is_word(trace.texts[token]) for token in (step.tree.tokens[node], step.verification.bonus_token))


def _is_word(text: str) -> bool:
    """Return whether a token is a whole word: those read best."""
    return text[:1] == " " and text.strip().isalpha()


RACES: Final[dict[str, tuple[Callable[..., Race], Callable[[Race], Iterator[LessonStep]]]]] = {
    "saved": (_grounded, _find_grounded),
    "chain": (partial(_race, **CHAIN), _find_broken),
    "coin": (partial(_race, **DRAWN), _find_refused),
    "wrong": (_race, _find_wrong),
    "before": (
        partial(_distilled, after=False),
        lambda traces: _find_stumble(traces[SPECULATIVE], traces[OTHER]),
    ),
    "after": (partial(_distilled, after=True), _find_after),
}
