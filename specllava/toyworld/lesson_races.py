"""Races of the lessons, and the steps that they are searched for: a step fits where its own numbers fill the words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

from PIL import Image

from specllava.core.config import DecodingConfig
from specllava.core.metrics import summarise
from specllava.core.trace import DecodeTrace, StepTrace
from specllava.lane import SPECULATIVE, TARGET_ONLY, lane_of
from specllava.models.loading.presets import preset_named
from specllava.pair import Pair
from specllava.runtime.prompt import with_draft_prompt
from specllava.toyworld.scene import COLOURS, KINDS

GREY = (127, 127, 127)
EASY = 7  # accepted tokens in one step
NEAR = 3  # accepted guesses before the one that another branch saved, at most: its fork is soon in sight
WORTH = 4  # tokens that another branch saved, for a telling tree
CHAIN = 6  # guesses of a chain
BEFORE, BEHIND = 2, 2  # accepted guesses before a wrong one, and lost ones behind it, for a telling chain
DRAWN: dict[str, Any] = {"temperature": 0.8, "rule": "sequoia", "children": "drawn", "depth": 6, "nodes": 10}
APART = 0.1  # between a drawn number and what it is compared with, for a telling refusal
CLEARLY = 1.15  # times as many tokens a pass after distillation, for a visible difference
AGAIN = 3  # accepted guesses of the step behind a wrong first guess, for a telling recovery
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
        name: name of its files.
        run: function that runs it: ``(pair, picture, prompt, config)`` to the traces by lane.
        find: function that returns the fitting step; ``None`` if no step of the race fits.
    """

    name: str
    run: Callable[[Pair, Image.Image, str, DecodingConfig], Race]
    find: Callable[[Race], LessonStep | None]


# --- how lessons are raced ----------------------------------------------------------------------------------------


def _plain(pair: Pair, picture: Image.Image, prompt: str, config: DecodingConfig) -> Race:
    return pair.compare(picture, prompt, config)


def _chain(pair: Pair, picture: Image.Image, prompt: str, config: DecodingConfig) -> Race:
    return pair.compare(picture, prompt, replace(config, rule="chain", depth=CHAIN, nodes=CHAIN, min_log_prob=-50.0))


def _run_sampled(pair: Pair, picture: Image.Image, prompt: str, config: DecodingConfig) -> Race:
    return pair.compare(picture, prompt, replace(config, **DRAWN))


def _blind(pair: Pair, picture: Image.Image, prompt: str, config: DecodingConfig) -> Race:
    """Race with a grey picture for the draft and the real one for the target."""
    blank = pair.prompt(Image.new("RGB", picture.size, GREY), prompt)
    shown = with_draft_prompt(pair.prompt(picture, prompt), blank)
    lanes = [lane_of(replace(config, drafter="none"), shown), lane_of(config, shown)]
    return pair.collect_race(pair.race_lanes(lanes))


def _untaught(pair: Pair, picture: Image.Image, prompt: str, config: DecodingConfig) -> Race:
    """Race with the draft from before distillation; for comparison, run the one from after it."""
    later = pair.generate(picture, prompt, config)
    return pair.undistilled().compare(picture, prompt, config) | {TAUGHT: later}


def _after(pair: Pair, picture: Image.Image, prompt: str, config: DecodingConfig) -> Race:
    """Race with the draft from after distillation; for comparison, run the one from before it."""
    earlier = pair.undistilled().generate(picture, prompt, config)
    return pair.compare(picture, prompt, config) | {UNTAUGHT: earlier}


def _states(pair: Pair, picture: Image.Image, prompt: str, config: DecodingConfig) -> Race:
    """Race with the draft that reads the target's states; for comparison, run the draft VLM."""
    preset = preset_named("toy-eagle")
    assert preset.draft is not None
    own = pair.generate(picture, prompt, config)
    return pair.with_draft(preset.draft).compare(picture, prompt, config) | {OWN_READING: own}


# --- what lessons search for --------------------------------------------------------------------------------------


def _find_easy(traces: Race) -> LessonStep | None:
    trace = traces[SPECULATIVE]
    best = max(range(len(trace.steps)), key=lambda i: len(trace.steps[i].verification.accepted), default=None)
    if best is None or len(trace.steps[best].verification.accepted) < EASY:
        return None
    accepted = trace.steps[best].verification.accepted
    said = "".join(trace.texts[trace.steps[best].tree.tokens[node]] for node in accepted).strip()
    return LessonStep(best, {"accepted": str(len(accepted)), "emitted": str(len(accepted) + 1), "said": said})


def _find_saved(traces: Race) -> LessonStep | None:
    """Find a word before which the tree branched and another guess than the draft's favourite was right."""
    trace = traces[SPECULATIVE]
    for index, step, node in _iterate_accepted(trace):
        tree, parent = step.tree, step.tree.parents[node]
        doubt, family = tree.entropies[parent], tree.children()[parent]
        place = step.verification.accepted.index(node)
        if doubt is None or doubt <= trace.config.entropy_threshold:
            continue
        if place >= NEAR or tree.sibling_ranks()[node] == 0:
            continue
        texts = [trace.texts[tree.tokens[n]] for n in family]
        behind = len(step.emitted) - place
        if behind >= WORTH and all(map(_is_word, texts)):
            first = max(family, key=tree.log_probs.__getitem__)
            alone = summarise([traces[TARGET_ONLY]])
            return LessonStep(index, {
                "first": _word(trace, step, first), "first_prob": _prob(step, first),
                "second": _word(trace, step, node), "second_prob": _prob(step, node), "doubt": f"{doubt:.2f}",
                "choices": f"{math.exp(doubt):.1f}", "threshold": f"{trace.config.entropy_threshold:g}",
                "tried": str(len(family)), "drafted": str(tree.drafted), "columns": str(len(tree)),
                "kept": str(len(step.verification.path)), "behind": str(behind),
                "tokens": str(alone.tokens), "passes": str(alone.target_passes), "fast": str(len(trace.steps)),
                "tau": f"{summarise([trace]).tau:.1f}", "bonus": trace.texts[step.verification.bonus_token].strip(),
            }, parent)  # fmt: skip
    return None


def _find_broken(traces: Race) -> LessonStep | None:
    """Find a chain whose first guesses were right, one behind them wrong, and more behind that lost."""
    trace = traces[SPECULATIVE]
    for index, step in enumerate(trace.steps):
        accepted, tree = step.verification.accepted, step.tree
        lost = tree.drafted - len(accepted) - 1
        if len(accepted) < BEFORE or lost < BEHIND:
            continue
        wrong = accepted[-1] + 1
        texts = [trace.texts[token] for token in (tree.tokens[wrong], step.verification.bonus_token)]
        if all(map(_is_word, texts)):
            said = "".join(trace.texts[tree.tokens[node]] for node in accepted).strip()
            return LessonStep(index, {
                "drafted": str(tree.drafted), "accepted": str(len(accepted)), "said": said, "guess": texts[0].strip(),
                "guess_prob": _prob(step, wrong), "wanted": texts[1].strip(), "lost": str(lost),
                "emitted": str(len(step.emitted)),
            }, wrong)  # fmt: skip
    return None


def _find_wrong(words: tuple[str, ...], traces: Race) -> LessonStep | None:
    """Find a step whose most probable node was rejected and the target chose another of the ``words``."""
    trace = traces[SPECULATIVE]
    for index, step in enumerate(trace.steps):
        last = step.verification.path[-1]
        family = step.tree.children()[last]
        wanted = trace.texts[step.verification.bonus_token].strip()
        if not family or wanted not in words:
            continue
        favourite = max(family, key=step.tree.log_probs.__getitem__)
        if _word(trace, step, favourite) in words:
            summary = summarise([trace])
            return LessonStep(index, {
                "guess": _word(trace, step, favourite), "guess_prob": _prob(step, favourite), "wanted": wanted,
                "wanted_prob": f"{step.view.choice_probs[last]:.2f}", "tau": f"{summary.tau:.1f}",
            }, favourite)  # fmt: skip
    return None


def _find_refused(traces: Race) -> LessonStep | None:
    """Find the one guess at a node, refused by chance, and the word that the target drew from the residual after it."""
    trace = traces[SPECULATIVE]
    for index, step in enumerate(trace.steps):
        for before, after in pairwise(step.draws):
            if before.accepted or before.acceptance is None or before.node != after.node:
                continue
            family = step.tree.children()[before.node]
            texts = [trace.texts[draw.token] for draw in (before, after)]
            whole = all(text[:1] == " " and text.strip().isalpha() for text in texts)
            telling = APART < before.acceptance < min(1, before.uniform) - APART
            if len(family) == 1 and whole and telling:
                return LessonStep(index, {
                    "guess": texts[0].strip(), "said": texts[1].strip(), "p": f"{before.target_prob:.2f}",
                    "q": f"{before.draft_prob:.2f}", "odds": f"{before.acceptance:.2f}", "u": f"{before.uniform:.2f}",
                }, family[0])  # fmt: skip
    return None


def _find_stumble(traces: Race) -> LessonStep | None:
    """Find a step in which the draft proposed tokens, none was accepted, and distillation clearly raised τ."""
    trace, taught = traces[SPECULATIVE], traces[TAUGHT]
    tau, later = (summarise([run]).tau for run in (trace, taught))
    for index, step in enumerate(trace.steps[2:-1], start=2):
        family = step.tree.children()[0]
        if step.verification.accepted or not family or later < CLEARLY * tau:
            continue
        favourite = max(family, key=step.tree.log_probs.__getitem__)
        texts = [trace.texts[token] for token in (step.tree.tokens[favourite], step.verification.bonus_token)]
        if all(map(_is_word, texts)):
            return LessonStep(index, {
                "guess": texts[0].strip(), "guess_prob": _prob(step, favourite), "wanted": texts[1].strip(),
                "tau": f"{tau:.1f}", "later": f"{later:.1f}",
            }, favourite)  # fmt: skip
    return None


def _find_taught(traces: Race) -> LessonStep | None:
    """Find the longest accepted run of the distilled draft, where ``_find_stumble`` finds a step for the other one."""
    stumble = _find_stumble({SPECULATIVE: traces[UNTAUGHT], TAUGHT: traces[SPECULATIVE]})
    easy = _find_easy(traces)
    return LessonStep(easy.step, {**easy.words, **stumble.words}) if easy and stumble else None


def _find_first_wrong(traces: Race) -> LessonStep | None:
    """Find a step whose first guess was wrong with guesses of its own below it, and a good step behind it."""
    trace = traces[SPECULATIVE]
    for index, (step, after) in enumerate(pairwise(trace.steps)):
        family, tree = step.tree.children()[0], step.tree
        if step.verification.accepted or not family or len(after.verification.accepted) < AGAIN:
            continue
        favourite = max(family, key=tree.log_probs.__getitem__)
        below = sum(favourite in tree.path(node) for node in range(1, len(tree))) - 1
        texts = [trace.texts[token] for token in (tree.tokens[favourite], step.verification.bonus_token)]
        if below >= BEHIND and all(map(_is_word, texts)):
            tau, other = (f"{summarise([run]).tau:.1f}" for run in (trace, traces[OWN_READING]))
            return LessonStep(index, {
                "guess": texts[0].strip(), "guess_prob": _prob(step, favourite), "wanted": texts[1].strip(),
                "below": str(below), "again": str(len(after.verification.accepted)), "tau": tau, "other": other,
            }, favourite)  # fmt: skip
    return None


def _iterate_accepted(trace: DecodeTrace) -> Iterator[tuple[int, StepTrace, int]]:
    for index, step in enumerate(trace.steps):
        for node in step.verification.accepted:
            yield index, step, node


def _is_word(text: str) -> bool:
    """Return whether a token is a whole word: those read best."""
    return text[:1] == " " and text.strip().isalpha()


def _word(trace: DecodeTrace, step: StepTrace, node: int) -> str:
    return trace.texts[step.tree.tokens[node]].strip()


def _prob(step: StepTrace, node: int) -> str:
    return f"{math.exp(step.tree.log_probs[node]):.2f}"


SAVED = LessonRace("saved", _plain, _find_saved)
CHAINED = LessonRace("chain", _chain, _find_broken)
COIN = LessonRace("coin", _run_sampled, _find_refused)
WRONG = LessonRace("wrong", _plain, partial(_find_wrong, KINDS))
EASY_RUN = LessonRace("easy", _plain, _find_easy)
BLANK = LessonRace("blank", _blind, partial(_find_wrong, (*COLOURS, *KINDS)))
BEFORE_DISTILLATION = LessonRace("before", _untaught, _find_stumble)
AFTER_DISTILLATION = LessonRace("after", _after, _find_taught)
STATES = LessonRace("states", _states, _find_first_wrong)
