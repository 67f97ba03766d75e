"""Lessons: a recorded race each, a question about one of its steps, the answer, and the part of the page they explain.

Scenes are raced one after the other until a step of a race fits; its own numbers fill the texts of ``lesson_texts``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from PIL import Image
from transformers import PreTrainedModel

from recipes.toy.draw import draw_scene
from recipes.toy.evaluate import score_answer
from recipes.toy.examples import PICTURE_SIZE
from recipes.toy.lesson_texts import LESSONS
from recipes.toy.phrases import DETAIL_PROMPTS
from recipes.toy.scene import COLOURS, KINDS, sample_scene
from specllava.config import DecodingConfig
from specllava.metrics import speedup, summarise
from specllava.models.drafts.draft_vlm import DraftLlava
from specllava.models.presets import preset_named
from specllava.pair import Pair
from specllava.prompt import with_draft_prompt
from specllava.race_file import race_json
from specllava.scoring import ground
from specllava.spec_decode.loop import Lane
from specllava.trace import SPECULATIVE, TARGET_ONLY, DecodeTrace, StepTrace

START, SCENES = 3_000_000, 80  # scene numbers that are tried, none of them used in training
GREY = (127, 127, 127)
EASY = 7  # accepted tokens in one step
NEAR = 3  # accepted guesses before the one that another branch saved, at most: its fork is soon in sight
WORTH = 4  # tokens that another branch saved, for a telling tree
BEFORE, AFTER = 2, 2  # accepted guesses before a wrong one, and lost ones after it
CHAIN: dict[str, Any] = {"rule": "chain", "depth": 6, "nodes": 6, "min_log_prob": -50.0}
DRAWN: dict[str, Any] = {"temperature": 0.8, "rule": "sequoia", "children": "drawn", "depth": 6, "nodes": 10}
APART = 0.1  # between a drawn number and the probability that it is compared with, for a clear rejection
CLEARLY = 1.15  # times as many tokens a pass after distillation, for a visible difference
AGAIN = 3  # accepted guesses of the step after a wrong first guess
TAUGHT, UNTAUGHT, OWN_READING = "taught", "untaught", "own reading"  # runs beside a race, for comparison
Race = dict[str, DecodeTrace]
Words = dict[str, str]


@dataclass(frozen=True, slots=True)
class LessonStep:
    """Step of a race that a lesson shows.

    Args:
        step: counts from 0.
        words: values of the fields in the lessons' texts.
        node: node of its tree that the lessons point at; ``None``: the one that decided the step.
    """

    step: int
    words: Words
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


def own_draft(target: PreTrainedModel) -> DraftLlava:
    """Return a target as its own draft: its weights, not copied. It reads the features of the target's tower."""
    draft = DraftLlava(target.config)
    weights = {name: weight for name, weight in target.state_dict().items() if "vision_tower" not in name}
    draft.load_state_dict(weights, strict=True, assign=True)
    draft.eval()
    return draft


def record_lessons(pair: Pair, directory: Path, config: DecodingConfig) -> list[Path]:
    """Find, race and write every lesson, and ``lessons.json`` with their words.

    Raises:
        ValueError: no scene has a step that fits a lesson.
    """
    directory.mkdir(parents=True, exist_ok=True)
    steps: dict[str, LessonStep] = {}
    written, rows = [], []
    for lesson in LESSONS:
        race = lesson.race
        if race not in steps:
            picture, traces, steps[race] = _search(pair, race, config)
            picture.save(directory / f"{race}.png", format="PNG", optimize=True)
            path = directory / f"{race}.json"
            path.write_text(race_json(traces[TARGET_ONLY], traces[SPECULATIVE], f"{race}.png"), encoding="utf-8")
            written.append(path)
        shown = steps[race]
        rows.append({
            "name": lesson.name, "title": lesson.title, "question": lesson.question.format(**shown.words),
            "answer": lesson.answer.format(**shown.words), "step": shown.step, "race": race, "place": lesson.place,
            "phase": lesson.phase, "node": shown.node,
        })  # fmt: skip
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


def _blind(pair: Pair, picture: Image.Image, prompt: str, config: DecodingConfig) -> Race:
    """Race with a grey picture for the draft and the real one for the target."""
    blank = pair.prompt(Image.new("RGB", picture.size, GREY), prompt)
    shown = with_draft_prompt(pair.prompt(picture, prompt), blank)
    lanes = [Lane.of(replace(config, drafter="none"), shown), Lane.of(config, shown)]
    return pair.collect(pair.race(lanes))


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


def _states(pair: Pair, picture: Image.Image, prompt: str, config: DecodingConfig) -> Race:
    """Race with the draft that reads the target's states; for comparison, run the draft VLM."""
    preset = preset_named("toy-eagle")
    assert preset.draft is not None
    own = pair.generate(picture, prompt, config)
    return pair.with_draft(preset.draft).compare(picture, prompt, config) | {OWN_READING: own}


def _perfect(pair: Pair, picture: Image.Image, prompt: str, config: DecodingConfig, **changes: Any) -> Race:
    """Race with the target as its own draft."""
    itself = replace(pair, draft=own_draft(pair.target), draft_name=pair.target_name)
    return _race(itself, picture, prompt, config, **changes)


# --- what lessons search for --------------------------------------------------------------------------------------


def _find_easy(traces: Race) -> LessonStep | None:
    trace = traces[SPECULATIVE]
    best = max(range(len(trace.steps)), key=lambda i: len(trace.steps[i].verification.accepted), default=None)
    if best is None or len(accepted := trace.steps[best].verification.accepted) < EASY:
        return None
    words = {"accepted": str(len(accepted)), "emitted": str(len(accepted) + 1)}
    return LessonStep(best, words | {"said": _accepted_text(trace, trace.steps[best])})


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
            first = _favourite(step, parent)
            assert first is not None
            alone = summarise([traces[TARGET_ONLY]])
            return LessonStep(index, {
                "first": _word(trace, step, first), "first_prob": _prob(step, first),
                "second": _word(trace, step, node), "second_prob": _prob(step, node), "doubt": f"{doubt:.2f}",
                "choices": f"{math.exp(doubt):.1f}", "threshold": f"{trace.config.entropy_threshold:g}",
                "tried": str(len(family)), "drafted": str(tree.drafted), "columns": str(len(tree)),
                "kept": str(len(step.verification.path)), "behind": str(saved),
                "tokens": str(alone.tokens), "passes": str(alone.target_passes), "fast": str(len(trace.steps)),
                "tau": f"{summarise([trace]).tau:.1f}", "bonus": trace.texts[step.verification.bonus_token].strip(),
            }, parent)  # fmt: skip
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
            return replace(found, words=found.words | {
                "grounded": str(len(grounding.grounded)), "factor": f"{grounding.factor:g}", "word": word,
                "seen": f"{seen:.2f}",
                "blank": f"{grounding.blank_probs[at]:.2f}", "part": f"{min(tiles):.2f}",
            })  # fmt: skip
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
        if miss := _miss(trace, step, wrong):
            return LessonStep(index, miss | {
                "drafted": str(step.tree.drafted), "accepted": str(len(accepted)), "said": _accepted_text(trace, step),
                "lost": str(lost), "emitted": str(len(step.emitted)),
            }, wrong)  # fmt: skip
    return None


def _find_wrong(words: tuple[str, ...], traces: Race) -> LessonStep | None:
    """Find a step whose most probable node was rejected and the target chose another of the ``words``."""
    trace = traces[SPECULATIVE]
    for index, step in enumerate(trace.steps):
        last = step.verification.path[-1]
        favourite = _favourite(step, last)
        wanted = trace.texts[step.verification.bonus_token].strip()
        if favourite is not None and wanted in words and _word(trace, step, favourite) in words:
            return LessonStep(index, {
                "guess": _word(trace, step, favourite), "guess_prob": _prob(step, favourite), "wanted": wanted,
                "wanted_prob": f"{step.view.choice_probs[last]:.2f}", "tau": f"{summarise([trace]).tau:.1f}",
            }, favourite)  # fmt: skip
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
                return LessonStep(index, {
                    "guess": texts[0].strip(), "said": texts[1].strip(), "p": f"{before.target_prob:.2f}",
                    "q": f"{before.draft_prob:.2f}", "odds": f"{before.acceptance:.2f}", "u": f"{before.uniform:.2f}",
                }, family[0])  # fmt: skip
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
        if miss := _miss(trace, step, favourite):
            return LessonStep(index, miss | {"tau": f"{tau:.1f}", "later": f"{later:.1f}"}, favourite)
    return None


def _find_taught(traces: Race) -> LessonStep | None:
    """Find the longest accepted run of the distilled draft, where ``_find_stumble`` finds a step for the other one."""
    stumble = _find_stumble({SPECULATIVE: traces[UNTAUGHT], TAUGHT: traces[SPECULATIVE]})
    easy = _find_easy(traces)
    return LessonStep(easy.step, {**easy.words, **stumble.words}) if easy and stumble else None


def _find_first_wrong(traces: Race) -> LessonStep | None:
    """Find a step whose first guess was wrong with guesses of its own below it, before a good step."""
    trace = traces[SPECULATIVE]
    for index, (step, after) in enumerate(pairwise(trace.steps)):
        favourite, tree, again = _favourite(step, 0), step.tree, len(after.verification.accepted)
        if favourite is None or step.verification.accepted or again < AGAIN:
            continue
        below = sum(favourite in tree.path(node) for node in range(1, len(tree))) - 1
        miss = _miss(trace, step, favourite)
        if below >= AFTER and miss:
            tau, other = (f"{summarise([run]).tau:.1f}" for run in (trace, traces[OWN_READING]))
            words = {"below": str(below), "again": str(again), "tau": tau, "other": other}
            return LessonStep(index, miss | words, favourite)
    return None


def _find_perfect(traces: Race) -> LessonStep | None:
    """Find an answer that took the fewest passes of its depth, and no less time than the target alone."""
    trace, (alone, drafted) = traces[SPECULATIVE], (summarise([traces[lane]]) for lane in (TARGET_ONLY, SPECULATIVE))
    depth = trace.config.depth
    full = all(len(step.emitted) == depth + 1 for step in trace.steps[:-1])
    if not full or len(trace.steps) < 2 or speedup(alone, drafted) > 1:
        return None
    free = drafted.decode_seconds - drafted.draft_seconds
    tenth, most = (alone.decode_seconds / (free + share * drafted.draft_seconds) for share in (0.1, 0))
    return LessonStep(0, {
        "depth": str(depth), "emitted": str(depth + 1), "tau": f"{drafted.tau:.1f}",
        "tenth": f"{tenth:.1f}", "free": f"{most:.1f}",
    })  # fmt: skip


def _iterate_accepted(trace: DecodeTrace) -> Iterator[tuple[int, StepTrace, int]]:
    """Yield every accepted guess as number of its step, the step, and its position among those accepted there."""
    for index, step in enumerate(trace.steps):
        for position in range(len(step.verification.accepted)):
            yield index, step, position


def _favourite(step: StepTrace, parent: int) -> int | None:
    """Return the most probable child of a node; ``None`` if it has none."""
    return max(step.tree.children()[parent], key=step.tree.log_probs.__getitem__, default=None)


def _miss(trace: DecodeTrace, step: StepTrace, node: int) -> Words | None:
    """Word a rejected guess and the target's own token; ``None`` if one of them is no whole word."""
    texts = [trace.texts[token] for token in (step.tree.tokens[node], step.verification.bonus_token)]
    if not all(map(_is_word, texts)):
        return None
    return {"guess": texts[0].strip(), "guess_prob": _prob(step, node), "wanted": texts[1].strip()}


def _accepted_text(trace: DecodeTrace, step: StepTrace) -> str:
    return "".join(trace.texts[step.tree.tokens[node]] for node in step.verification.accepted).strip()


def _is_word(text: str) -> bool:
    """Return whether a token is a whole word: those read best."""
    return text[:1] == " " and text.strip().isalpha()


def _word(trace: DecodeTrace, step: StepTrace, node: int) -> str:
    return trace.texts[step.tree.tokens[node]].strip()


def _prob(step: StepTrace, node: int) -> str:
    return f"{math.exp(step.tree.log_probs[node]):.2f}"


# Races by name, which is the name of their files too.
RACES = {
    "saved": LessonRace(_grounded, _find_grounded),
    "chain": LessonRace(partial(_race, **CHAIN), _find_broken),
    "coin": LessonRace(partial(_race, **DRAWN), _find_refused),
    "wrong": LessonRace(_race, partial(_find_wrong, KINDS)),
    "easy": LessonRace(_race, _find_easy),
    "blank": LessonRace(_blind, partial(_find_wrong, (*COLOURS, *KINDS))),
    "before": LessonRace(_untaught, _find_stumble),
    "after": LessonRace(_after, _find_taught),
    "states": LessonRace(_states, _find_first_wrong),
    "perfect": LessonRace(partial(_perfect, **CHAIN), _find_perfect),
}
