"""Guided examples: a recorded race each, a question about one of its steps, and the answer.

The step of a lesson is searched for in real runs of the models: scenes are raced one after the other until a
step fits the lesson. The texts are filled with that step's own numbers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from PIL import Image

from specllava.config import DecodingConfig
from specllava.lane import SPECULATIVE, TARGET_ONLY, lane_of
from specllava.metrics import summarise
from specllava.pair import Pair
from specllava.race_file import race_json
from specllava.runtime.prompt import with_draft_prompt
from specllava.toyworld.dialogue import DETAIL_PROMPTS
from specllava.toyworld.draw import draw_scene
from specllava.toyworld.evaluate import score_answer
from specllava.toyworld.examples import PICTURE_SIZE
from specllava.toyworld.scene import COLOURS, KINDS, sample_scene
from specllava.trace import DecodeTrace, StepTrace

START, SCENES = 3_000_000, 80  # scene numbers that are tried, none of them used in training
GREY = (127, 127, 127)
EASY = 7  # accepted tokens in one step
CLEARLY = 1.15  # times as many tokens a pass after distillation, for a visible difference
TAUGHT, UNTAUGHT = "taught", "untaught"  # runs beside a race, for comparison
Race = dict[str, DecodeTrace]
Words = dict[str, str]


@dataclass(frozen=True, slots=True)
class Lesson:
    """One guided example.

    Args:
        name: name of its files.
        question, answer: texts with the fields that ``find`` fills.
        race: function that runs its race: ``(pair, picture, prompt, config)`` to the traces by lane.
        find: function that returns the fitting step, with the words to fill in; ``None`` if no step of the race fits.
    """

    name: str
    title: str
    question: str
    answer: str
    race: Callable[[Pair, Image.Image, str, DecodingConfig], Race]
    find: Callable[[Race], tuple[int, Words] | None]


def record_lessons(pair: Pair, directory: Path, config: DecodingConfig) -> list[Path]:
    """Find, race and write every lesson, and ``lessons.json`` with their words.

    Raises:
        ValueError: no scene has a step that fits a lesson.
    """
    directory.mkdir(parents=True, exist_ok=True)
    written, told = [], []
    for lesson in LESSONS:
        picture, traces, step, words = _search(pair, lesson, config)
        picture.save(directory / f"{lesson.name}.png", format="PNG", optimize=True)
        path = directory / f"{lesson.name}.json"
        path.write_text(race_json(traces[TARGET_ONLY], traces[SPECULATIVE], f"{lesson.name}.png"), encoding="utf-8")
        question, answer = lesson.question.format(**words), lesson.answer.format(**words)
        told.append({"name": lesson.name, "title": lesson.title, "question": question, "answer": answer, "step": step})
        written.append(path)
    index = directory / "lessons.json"
    index.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return [*written, index]


def _search(pair: Pair, lesson: Lesson, config: DecodingConfig) -> tuple[Image.Image, Race, int, Words]:
    for seed in range(START, START + SCENES):
        scene = sample_scene(seed, "train")
        picture = draw_scene(scene, PICTURE_SIZE)
        traces = lesson.race(pair, picture, DETAIL_PROMPTS[0], config)
        seen = score_answer(scene, traces[TARGET_ONLY].text)
        found = lesson.find(traces)
        right = seen.no_invention and seen.objects_named == seen.objects  # lessons state that the target is
        if found and right:
            return picture, traces, *found
    raise ValueError(f"none of {SCENES} scenes shows what the lesson {lesson.name} is about")


# --- how lessons are raced ----------------------------------------------------------------------------------------


def _plain(pair: Pair, picture: Image.Image, prompt: str, config: DecodingConfig) -> Race:
    return pair.compare(picture, prompt, config)


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


# --- what lessons search for --------------------------------------------------------------------------------------


def _easy(traces: Race) -> tuple[int, Words] | None:
    trace = traces[SPECULATIVE]
    best = max(range(len(trace.steps)), key=lambda i: len(trace.steps[i].verification.accepted), default=None)
    if best is None or len(trace.steps[best].verification.accepted) < EASY:
        return None
    accepted = trace.steps[best].verification.accepted
    said = "".join(trace.texts[trace.steps[best].tree.tokens[node]] for node in accepted).strip()
    return best, {"accepted": str(len(accepted)), "emitted": str(len(accepted) + 1), "said": said}


def _branching(traces: Race) -> tuple[int, Words] | None:
    """Find a colour before which the tree branched, and one of the branches was right."""
    trace = traces[SPECULATIVE]
    for index, step, node in _accepted(trace):
        parent = step.tree.parents[node]
        doubt, family = step.tree.entropies[parent], step.tree.children()[parent]
        if doubt is None or doubt <= trace.config.entropy_threshold or len(family) < 2:
            continue
        if _word(trace, step, node) in COLOURS:
            first, second, *_ = sorted(family, key=lambda n: -step.tree.log_probs[n])
            return index, {
                "first": _word(trace, step, first), "first_prob": _prob(step, first),
                "second": _word(trace, step, second), "second_prob": _prob(step, second),
                "right": _word(trace, step, node), "doubt": f"{doubt:.2f}", "tried": str(len(family)),
            }  # fmt: skip
    return None


def _wrong(words: tuple[str, ...], traces: Race) -> tuple[int, Words] | None:
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
            return index, {
                "guess": _word(trace, step, favourite), "guess_prob": _prob(step, favourite), "wanted": wanted,
                "wanted_prob": f"{step.view.choice_probs[last]:.2f}", "tau": f"{summary.tau:.1f}",
            }  # fmt: skip
    return None


def _stumble(traces: Race) -> tuple[int, Words] | None:
    """Find a step in which the draft proposed tokens, none was accepted, and distillation clearly raised τ."""
    trace, taught = traces[SPECULATIVE], traces[TAUGHT]
    tau, later = (summarise([run]).tau for run in (trace, taught))
    for index, step in enumerate(trace.steps[2:-1], start=2):
        family = step.tree.children()[0]
        if step.verification.accepted or not family or later < CLEARLY * tau:
            continue
        favourite = max(family, key=step.tree.log_probs.__getitem__)
        texts = [trace.texts[token] for token in (step.tree.tokens[favourite], step.verification.bonus_token)]
        if all(text[:1] == " " and text.strip().isalpha() for text in texts):  # whole words read best
            return index, {
                "guess": texts[0].strip(), "guess_prob": _prob(step, favourite), "wanted": texts[1].strip(),
                "tau": f"{tau:.1f}", "later": f"{later:.1f}",
            }  # fmt: skip
    return None


def _taught(traces: Race) -> tuple[int, Words] | None:
    """Find the longest accepted run of the distilled draft, where ``_stumble`` finds a step for the other one."""
    stumble = _stumble({SPECULATIVE: traces[UNTAUGHT], TAUGHT: traces[SPECULATIVE]})
    easy = _easy(traces)
    return (easy[0], {**easy[1], **stumble[1]}) if easy and stumble else None


def _accepted(trace: DecodeTrace) -> Iterator[tuple[int, StepTrace, int]]:
    for index, step in enumerate(trace.steps):
        for node in step.verification.accepted:
            yield index, step, node


def _word(trace: DecodeTrace, step: StepTrace, node: int) -> str:
    return trace.texts[step.tree.tokens[node]].strip()


def _prob(step: StepTrace, node: int) -> str:
    return f"{math.exp(step.tree.log_probs[node]):.2f}"


LESSONS = (
    Lesson(
        "1-easy", "An easy sentence",
        "The draft has less than a tenth of the target's parameters, and yet {accepted} of its guesses in a row are"
        " right here. What makes this stretch so easy?",
        "Look at the fill: the nodes are dark, so the draft was sure of itself. “{said}” is mostly a matter of habit:"
        " each word follows from the words before it, and habits are what a small model learns well. The target needed"
        " one pass for {emitted} tokens that would have taken it {emitted}.",
        _plain, _easy,
    ),
    Lesson(
        "2-colour", "A word that needs eyes",
        "Before a colour the draft is unsure: its best guesses are “{first}” ({first_prob}) and “{second}”"
        " ({second_prob}). What does the tree make of that?",
        "The draft's entropy there is {doubt} nats, above the threshold, so the tree branches and tries {tried} words"
        " instead of one. The target, which sees more in the picture, wants “{right}”; that is in the tree, so the"
        " branch behind it goes on. With a single chain of guesses every such place is a gamble. This is the paper's"
        " second point: spend guesses where the draft has doubts.",
        _plain, _branching,
    ),
    Lesson(
        "3-wrong", "The draft names the wrong thing",
        "The draft says “{guess}” ({guess_prob}). There is no such thing at that place in the picture. Does the answer"
        " go wrong?",
        "It does not. The target looks at the same picture and wants “{wanted}” ({wanted_prob}), so “{guess}” and"
        " everything behind it is dropped, and the answer goes on with the target's own word. A wrong guess costs a"
        " little time and never a word: the text is the same as the target's alone.",
        _plain, partial(_wrong, KINDS),
    ),
    Lesson(
        "4-blank", "A draft that sees nothing",
        "In this run the draft was shown a plain grey picture, and the target the real one. Which words can it still"
        " guess?",
        "Those that follow from the words before them. At words that need the picture it is lost: here it guesses"
        " “{guess}” where the target, which sees, wants “{wanted}”. It gets {tau} tokens out of a target pass; run the"
        " same question with the picture and compare. This is the paper's first point: draft and target look through"
        " the same eyes. The answer itself has not changed by a token.",
        _blind, partial(_wrong, (*COLOURS, *KINDS)),
    ),
    Lesson(
        "5-before", "Before distillation",
        "This draft has learnt from the same texts as the target, but never from the target itself. Here it expects"
        " “{guess}” ({guess_prob}), and the target says “{wanted}”. Who is right?",
        "The draft's guess may be good English, but only the target's wording counts, and this draft has not learnt"
        " what the target prefers. It gets {tau} tokens out of a target pass. The next lesson runs the same question on"
        " the same picture after distillation.",
        _untaught, _stumble,
    ),
    Lesson(
        "6-after", "After distillation",
        "The same draft again, after lessons from the target: trained to give each next word the chance that the target"
        " gives it. What has changed?",
        "It makes more of the target's choices: {later} tokens out of a target pass where it got {tau} before, and here"
        " {accepted} right in a row. That is the paper's third point. This picture shows it clearly; in others the gain"
        " is smaller, because all that our toy models ever say is in the texts that both drafts have read. The lab"
        " below measures it for any picture, word by word.",
        _after, _taught,
    ),
)  # fmt: skip
