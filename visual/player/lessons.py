"""Lessons: a question about one step of a recorded race, and its answer. Words are computed from the race.

``lessons.json`` lists what was recorded, ``[{"name", "step", "race", "node", …}]`` with steps from 0. The page has the
ten of :data:`LESSONS`, some of which ask twice.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from specllava.metrics import pass_ratio, speedup, summarise
from specllava.trace import DecodeTrace, Grounding, StepTrace
from visual.player.labels import counted, path_text, quoted, spelled, token_label, word_after, word_at
from visual.player.recorded import Recorded, read_recorded
from visual.player.sentences import Segments, Words, family_of, first_doubt, listed, plain
from visual.player.tour import chain_of, first_position

LESSONS: Final[dict[str, tuple[str, ...]]] = {  # by title: names of what was recorded
    "why a large model is slow": ("why",),
    "a chain of guesses": ("chain",),
    "a wrong guess": ("wrong",),
    "doubt": ("doubt",),
    "a tree": ("tree",),
    "one pass: mask and cache": ("pass", "cache"),
    "what the picture decides": ("picture",),
    "before and after distillation": ("before", "after"),
    "does it pay?": ("pays",),
    "the coin": ("coin",),
}
# Numbers of the sixteen lessons that older links name; the fifteenth is in the documents.
OLDER: Final = {11: 7, 12: 7, 13: 8, 14: 8, 16: 9}
MARKS: Final = ("large", "accepted", "refused", "never")


class LessonRecord(NamedTuple):
    """An entry of ``lessons.json``."""

    name: str
    race: str
    step: int
    node: int | None


@dataclass(frozen=True, slots=True)
class Example:
    """What one question is about."""

    record: LessonRecord
    race: Recorded
    earlier: DecodeTrace | None = None  # of the question before it in the same lesson

    @property
    def trace(self) -> DecodeTrace:
        return self.race.lead

    @property
    def step(self) -> StepTrace:
        return self.trace.steps[self.record.step]

    @property
    def refused(self) -> int:
        """The guess that the answer is about: the recorded one, or the first after the accepted branch.

        Raises:
            ValueError: no guess was refused.
        """
        path = self.step.verification.path
        node = self.record.node
        if node is not None and node > 0 and self.step.tree.parents[node] in path and node not in path:
            return node
        family = family_of(self.step, path[-1])
        if not family:
            raise ValueError(f"the lesson {self.record.name} is about a refused guess, and its step has none")
        return family[0]

    @property
    def fork(self) -> int:
        """The node after which the draft was torn.

        Raises:
            ValueError: it never was.
        """
        node = first_doubt(self.step)
        if node is None:
            raise ValueError(f"the lesson {self.record.name} is about doubt, and its step shows none")
        return node

    def word(self, node: int) -> str:
        return quoted(word_at(self.trace, self.step, node))

    def chance(self, node: int) -> str:
        return f" ({math.exp(self.step.tree.log_probs[node]):.2f})"

    @property
    def own(self) -> str:
        """The target's own word after the accepted branch."""
        verdict = self.step.verification
        return quoted(word_after(self.trace, self.step, verdict.path[-1], verdict.bonus_token))


@dataclass(frozen=True, slots=True)
class Answered:
    """Question and answer, each with the view of the step that goes with it."""

    question: Segments
    answer: Segments
    more: str = ""
    asked: Mapping[str, object] | None = None
    shown: Mapping[str, object] | None = None
    keys: tuple[Sequence[str], Sequence[str]] = (("large", "guess", "doubt"), MARKS)
    phases: tuple[str, str] = ("guess", "accept")

    def data(self, example: Example) -> dict[str, Any]:
        """Return both for the player."""
        question = Words(self.question, [], self.question)
        answer = Words(self.answer, plain(self.more), self.answer)
        asked, shown = self.asked or {"name": "open"}, self.shown or {"name": "done"}
        return {
            "race": example.race.name, "step": example.record.step,
            "question": {**question.data(), "phase": self.phases[0], "view": asked, "key": self.keys[0]},
            "answer": {**answer.data(), "phase": self.phases[1], "view": shown, "key": self.keys[1]},
        }  # fmt: skip


# --- the words of each ---------------------------------------------------------------------------


def _why(one: Example) -> Answered:
    alone = one.race.target_only
    if alone is None:
        raise ValueError(f"the lesson {one.record.name} needs a target-only lane")
    at, passes = first_position(one.trace, one.record.step), len(alone.steps)
    chain = {"name": "chain", **chain_of(alone, at)}
    return Answered(
        plain(f"Each block is one pass of the large model: {passes} for {len(alone.token_ids)} tokens. Why so many?"),
        plain(
            "It writes one token per pass, and the next pass needs the token before it. In the lower bar"
            f" {counted(len(one.trace.steps), 'pass')} check many guesses each."
        ),
        "Reading picture and question gave the first token.",
        asked={**chain, "passes": at - 1}, shown=chain, keys=(("large", "block"), ("large", "block", "alone")),
        phases=("alone", "guess"),
    )  # fmt: skip


def _chain(one: Example) -> Answered:
    step, wrong = one.step, one.refused
    accepted = len(step.emitted_nodes)
    depth = step.tree.depths()
    after = sum(depth[node] > depth[wrong] for node in range(1, len(step.tree)))
    text = f" (“{path_text(one.trace, step, step.emitted_nodes[-1], accepted)}”)" if accepted else ""
    return Answered(
        plain(
            f"The small model guessed {counted(step.tree.drafted, 'word', True)} in a row, each after the one before."
            " How many of them may stay?"
        ),
        [["", f"{spelled(accepted).capitalize()}{text}. Then it guessed "], ["refused", one.word(wrong)],
         ["", f"{one.chance(wrong)} where the large model writes "], ["large", one.own], ["", "."]],
        f"The {counted(after, 'guess', True)} behind it followed a text that will never be." if after else "",
    )  # fmt: skip


def _wrong(one: Example) -> Answered:
    wrong = one.refused
    parent = one.step.tree.parents[wrong]
    sure = f" ({one.step.view.choice_probs[parent]:.2f})"
    return Answered(
        [["", "The small model is rather sure of "], ["b", one.word(wrong)],
         ["", f"{one.chance(wrong)}. If it is wrong, does the answer go wrong?"]],
        [["", "No. The large model wants "], ["large", one.own], ["num", sure], ["", ", so "],
         ["refused", one.word(wrong)],
         ["", " and all behind it is dropped. A wrong guess costs a little time, never a word."]],
        asked={"name": "open", "probs": [wrong], "ask": parent},
    )  # fmt: skip


def _doubt(one: Example) -> Answered:
    family = family_of(one.step, one.fork)[:3]
    nats = one.step.tree.entropies[one.fork] or 0.0
    named = listed([[["b", one.word(node)], ["num", one.chance(node)]] for node in family], "or")
    return Answered(
        [["", "Before one word the small model wavers: "], *named,
         ["", ". Where does one see its doubt before anything is checked?"]],
        plain(
            f"In the fill of the node before it: {nats:.2f} nats, as much as between {math.exp(nats):.1f} equally"
            " likely words. Full is sure, hollow is torn."
        ),
        f"The tree branches above {one.trace.config.entropy_threshold:g} nats, before the large model is asked.",
        asked={"name": "open", "probs": family}, shown={"name": "open", "probs": family, "halo": one.fork},
        keys=(("large", "guess"), ("large", "guess", "doubt")), phases=("guess", "guess"),
    )  # fmt: skip


def _tree(one: Example) -> Answered:
    first, *siblings = family_of(one.step, one.fork)
    taken = next((node for node in one.step.emitted_nodes if node in siblings), siblings[0])
    return Answered(
        [["", "One line of guesses would have gone on with "], ["b", one.word(first)], ["num", one.chance(first)],
         ["", ", the first choice. What did the tree do?"]],
        [["", f"It followed {spelled(1 + len(siblings))} words. The large model wants "], ["small", one.word(taken)],
         ["", f", which is in the tree, so this pass still brings {counted(len(one.step.emitted), 'token', True)}."]],
        asked={"name": "trunk"},
    )  # fmt: skip


def _pass(one: Example) -> Answered:
    first, second, *_ = family_of(one.step, one.fork)
    count = one.step.tree.drafted
    return Answered(
        [["b", one.word(first)], ["", " and "], ["b", one.word(second)],
         ["", f" cannot both be the next word. How can one pass check both, and all {count} guesses of this tree?"]],
        plain(
            "By what each guess may look at, the attention mask: the text so far, its own ancestors and itself."
        ),
        "Rows and columns: the guesses, numbered alike. Filled: seen. So each is judged as if it alone followed.",
        asked={"name": "pass"}, shown={"name": "mask"}, keys=(("large", "guess"), ("sees",)), phases=("check", "check"),
    )  # fmt: skip


def _cache(one: Example) -> Answered:
    columns, accepted = len(one.step.tree), len(one.step.verification.path)
    return Answered(
        plain(
            f"That pass left {columns} columns in the large model’s cache: the root and {columns - 1} guesses."
            " Which of them may stay?"
        ),
        plain(f"{accepted} of {columns}: the accepted branch. They move together, and the rest is overwritten."),
        f"{one.own}, the large model’s own word, has no column yet: it is the next root.",
        asked={"name": "done"}, shown={"name": "done", "cache": True}, keys=(MARKS, ("kept", "dropped")),
        phases=("keep", "keep"),
    )  # fmt: skip


def _picture(one: Example) -> Answered:
    grounding = one.trace.grounding
    if grounding is None or not grounding.grounded:
        raise ValueError(f"the lesson {one.record.name} needs a run whose words were marked")
    words = sorted(range(len(grounding.grounded)), key=lambda row: -_localised(grounding, row))
    at = grounding.grounded[words[0]]
    word = quoted(token_label(one.trace, one.trace.token_ids[at]))
    count, tokens = len(grounding.grounded), len(one.trace.token_ids)
    return Answered(
        plain(
            f"The large model wrote {tokens} tokens about this picture. Which of them would it have written without it?"
        ),
        [["", f"All but {count}. These are at least {grounding.factor:.0f} times less likely with a grey picture: "],
         ["large", word], ["", f" falls from {grounding.probs[at]:.2f} to {grounding.blank_probs[at]:.2f}."]],
        "Lit: the parts of the picture that decide.", asked={"name": "done"},
        shown={"name": "done", "spot": [at], "seen": list(grounding.grounded)}, phases=("keep", "keep"),
        keys=(MARKS, MARKS),
    )  # fmt: skip


def _localised(grounding: Grounding, row: int) -> float:
    """Return how much a token's loss depends on which part of the picture is grey."""
    at = grounding.grounded[row]
    places = grounding.occluded[row] if grounding.occluded else (0.0,)
    return (grounding.probs[at] - grounding.blank_probs[at]) * (max(places) - min(places))


def _before(one: Example) -> Answered:
    wrong = one.refused
    return Answered(
        [["", "This small model read the same texts as the large one, and never learnt from it. It expects "],
         ["b", one.word(wrong)], ["num", one.chance(wrong)], ["", ", and the large one writes "], ["large", one.own],
         ["", ". Who is right?"]],
        plain(
            "The guess may be good English, but only the large model’s wording counts. This small model brings"
            f" {summarise([one.trace]).tau:.1f} tokens a pass."
        ),
    )  # fmt: skip


def _after(one: Example) -> Answered:
    before = summarise([one.earlier]).tau if one.earlier is not None else math.nan
    now, right = summarise([one.trace]).tau, len(one.step.emitted_nodes)
    than = "" if math.isnan(before) else f" instead of {before:.1f}"
    return Answered(
        plain(
            "The same small model, after it learnt to give each next word the chance that the large one gives it. What"
            " has changed?"
        ),
        plain(
            f"It makes more of the large model’s choices: {now:.1f} tokens a pass{than}, and here {right} right in a"
            " row."
        ),
    )


def _pays(one: Example) -> Answered:
    totals = summarise([one.trace])
    share = totals.draft_seconds / totals.decode_seconds if totals.decode_seconds else math.nan
    cost = math.nan if one.race.target_only is None else pass_ratio(summarise([one.race.target_only]), totals)
    drafting = "" if math.isnan(share) else f" ({100 * share:.0f} % of the time)"
    more = "" if math.isnan(cost) else f", which take {cost:.1f} times as long as over one"
    ratio = math.nan if one.race.target_only is None else speedup(summarise([one.race.target_only]), totals)
    only = "" if math.isnan(ratio) else f" but {ratio:.1f} times"
    return Answered(
        plain(
            f"{totals.tau:.1f} tokens a pass, and yet the answer did not come {totals.tau:.1f} times as fast{only}."
            " Where did the rest go?"
        ),
        plain(f"Into drafting{drafting}, and into passes over many tokens{more}."),
        "What that leaves depends on models and machine: see “Does it pay on my GPU?” under Measure.",
        asked={"name": "done"}, phases=("keep", "keep"), keys=(MARKS, MARKS),
    )  # fmt: skip


def _coin(one: Example) -> Answered:
    node = one.record.node
    draws = [draw for draw in one.step.draws if draw.acceptance is not None and draw.uniform >= draw.acceptance]
    wanted = None if node is None else (one.step.tree.parents[node], one.step.tree.tokens[node])
    draw = next((draw for draw in draws if wanted is None or (draw.node, draw.token) == wanted), None)
    if draw is None:
        raise ValueError(f"the lesson {one.record.name} is about a guess that chance refused, and its step has none")
    word = quoted(token_label(one.trace, draw.token))
    own = next((later for later in one.step.draws if later.acceptance is None and later.node == draw.node), None)
    drew = f" and drew {quoted(token_label(one.trace, own.token))}" if own else ""
    number = one.step.draws.index(draw)
    return Answered(
        [["", "With a temperature words are drawn. The small model drew "], ["b", word],
         ["", f": it gives it {draw.draft_prob:.2f}, the large one {draw.target_prob:.2f}. When may it stay?"]],
        [["", f"With the second chance over the first: {draw.acceptance:.2f}. Chance gave {draw.uniform:.2f}, so "],
         ["refused", word], ["", f" is refused; the large model drew among what it wants more often{drew}."]],
        "Kept guesses and new draws together have the large model's chances, for every word.",
        asked={"name": "open"}, shown={"name": "done", "coin": number}, phases=("check", "accept"),
    )  # fmt: skip


WORDS: Final[dict[str, Callable[[Example], Answered]]] = {
    "why": _why, "chain": _chain, "wrong": _wrong, "doubt": _doubt, "tree": _tree, "pass": _pass, "cache": _cache,
    "picture": _picture, "before": _before, "after": _after, "pays": _pays, "coin": _coin,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Lesson:
    """A lesson: its title and its questions."""

    title: str
    examples: tuple[Example, ...]

    @property
    def races(self) -> tuple[Recorded, ...]:
        return tuple(example.race for example in self.examples)

    def data(self) -> dict[str, Any]:
        """Return the lesson for the player.

        Raises:
            ValueError: a race does not show what its question is about.
        """
        return {"title": self.title, "stops": [WORDS[one.record.name](one).data(one) for one in self.examples]}


def load_lessons(folder: Path) -> tuple[Lesson, ...]:
    """Load the shipped lessons, in the order of :data:`LESSONS`.

    Raises:
        ValueError: a race does not show what its question is about. It is refused here, not in front of a class.
    """
    entries = json.loads((folder / "lessons.json").read_bytes())
    records = {entry["name"]: LessonRecord(**entry) for entry in entries}
    races = {name: read_recorded(folder / f"{name}.json") for name in {record.race for record in records.values()}}
    lessons = []
    for title, names in LESSONS.items():
        examples: list[Example] = []
        for record in map(records.__getitem__, names):
            examples.append(Example(record, races[record.race], examples[-1].trace if examples else None))
        lessons.append(Lesson(title, tuple(examples)))
        lessons[-1].data()
    return tuple(lessons)
