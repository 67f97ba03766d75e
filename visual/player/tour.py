"""The tour: six beats about one step of a recorded run, from one word per pass to the same answer in fewer passes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from specllava.metrics import judged_nodes, speedup, summarise
from specllava.trace import DecodeTrace, StepTrace
from visual.player.labels import counted, quoted, spelled, token_label, word_at
from visual.player.sentences import (
    Segments,
    Words,
    family_of,
    first_doubt,
    guess_words,
    headline,
    listed,
    milliseconds,
    plain,
)
from visual.player.tree import StepTree

SHOWN_PASSES = 6  # of the target alone, in the first beat
SAME = 1.15  # a pass over a tree that takes at most so many times one over a token takes "nearly the same"
Beat = dict[str, Any]


def tour_step(trace: DecodeTrace) -> int:
    """Return the step that teaches most: torn at once, not its first choice won, a long branch of whole words."""

    def interest(number: int) -> tuple[int, int, int, float]:
        step = trace.steps[number]
        doubt, tree = first_doubt(step), StepTree(trace, step)
        forks = {judged.node: judged.outcome for judged in judged_nodes(step)}
        won = doubt is not None and forks.get(doubt) == "saved"
        branches = 0 if doubt is None else min(3, len(family_of(step, doubt)))
        whole = sum(not label.startswith("…") for label in tree.labels) / len(tree.labels)
        early = doubt is not None and step.tree.depths()[doubt] <= 1
        seen = len(picture_nodes(trace, number))
        return won, early, branches + min(seen, 4), min(len(step.emitted), 10) * whole

    return max(range(len(trace.steps)), key=interest, default=0)


def first_position(trace: DecodeTrace, number: int) -> int:
    """Return the position in the answer of the first token that a step emits."""
    return 1 + sum(len(step.emitted) for step in trace.steps[:number])


def picture_nodes(trace: DecodeTrace, number: int) -> list[int]:
    """Return the accepted guesses of a step that needed the picture, as far as that was measured."""
    if trace.grounding is None:
        return []
    start, grounded = first_position(trace, number), set(trace.grounding.grounded)
    return [node for at, node in enumerate(trace.steps[number].emitted_nodes, start) if at in grounded]


def chain_of(alone: DecodeTrace, at: int) -> dict[str, object]:
    """Return the target's last words before a position of the answer, a pass each, and the pass that comes."""
    labels = [token_label(alone, token, 12) for token in alone.token_ids[max(1, at - SHOWN_PASSES) : at]]
    first = at - len(labels)
    return {"items": [[label, f"pass {first + index}"] for index, label in enumerate(labels)], "ask": f"pass {at}"}


@dataclass(frozen=True, slots=True)
class Tour:
    """The six beats of a finished race whose lanes agree.

    Args:
        number: of the step that they are about.
    """

    alone: DecodeTrace
    together: DecodeTrace
    number: int

    @property
    def step(self) -> StepTrace:
        return self.together.steps[self.number]

    def beats(self) -> list[Beat]:
        """Return the beats in order, as data for the player."""
        return [self._alone(), self._ahead(), self._doubt(), self._pass(), self._own_words(), self._same()]

    def _beat(self, phase: str, words: Words, view: str, key: tuple[str, ...], **more: object) -> Beat:
        return {"step": self.number, "phase": phase, **words.data(), "view": {"name": view, **more}, "key": key}

    def _alone(self) -> Beat:
        at, passes = first_position(self.together, self.number), counted(len(self.alone.steps), "pass")
        text = (
            "A large model is slow: it writes one word per pass, or a piece of one (a token), and for every pass it"
            f" fetches all its weights again. This answer takes {passes}."
        )
        short = f"One word per pass, and each fetches all weights again. Here: {passes}."
        words = Words(plain(text), [], plain(short))
        chain = chain_of(self.alone, at)
        return self._beat("alone", words, "chain", ("large", "block"), **chain, passes=at - 1)

    def _ahead(self) -> Beat:
        text = "A small model runs ahead and guesses the next words. It is quick, and it can be wrong."
        depth = max(self.step.tree.depths())
        ahead, one = self.step.seconds.draft / max(1, depth), summarise([self.alone]).seconds_per_pass
        note = f"{milliseconds(ahead)} for each word ahead; a pass of the large model takes {milliseconds(one)}"
        timed = ahead > 0 and not math.isnan(one)
        short = "A small model runs ahead and guesses. It can be wrong."
        words = Words(plain(text), [], plain(short))
        return self._beat("guess", words, "trunk", ("large", "guess", "doubt"), note=note if timed else "")

    def _doubt(self) -> Beat:
        node, words = first_doubt(self.step), guess_words(self.together, self.step)
        more = {} if node is None else {"probs": family_of(self.step, node), "halo": node}
        return self._beat("guess", words, "open", ("large", "guess", "doubt"), **more)

    def _pass(self) -> Beat:
        count, took = self.step.tree.drafted, self.step.seconds.verify
        one = summarise([self.alone]).seconds_per_pass
        say = f"Now one pass of the large model reads all {count} guesses at once."
        ratio = took / one if took and one else math.nan
        if math.isnan(ratio):
            more = " Its weights are fetched only once."
        elif ratio <= SAME:
            more = " Most of a pass is fetching the weights, and that happens only once."
        else:
            more = f" On a GPU it takes hardly longer than for one word; on this CPU {ratio:.1f} times as long."
        note = "" if math.isnan(ratio) else (
            f"{milliseconds(took)} for {count} guesses; for one word {milliseconds(one)}"
        )  # fmt: skip
        short = f"One pass of the large model reads all {count} guesses."
        words = Words(plain(say + more), [], plain(short))
        return self._beat("check", words, "pass", ("large", "guess", "doubt"), note=note)

    def _own_words(self) -> Beat:
        lit = picture_nodes(self.together, self.number)
        say: Segments = plain("The large model writes its own word beside each guess.")
        short: Segments = plain("Beside each: the large model’s own word.")
        if lit:
            named = [[["large", quoted(word_at(self.together, self.step, node))]] for node in lit]
            say += [["", " For "], *listed(named, "and")]
            say.append(["", " it needed the picture."])
            short.append(["", f" {spelled(len(lit)).capitalize()} need{'s' * (len(lit) == 1)} the picture."])
        start = first_position(self.together, self.number)
        places = [start + self.step.emitted_nodes.index(node) for node in lit]
        return self._beat("check", Words(say, [], short), "words", ("guess", "same"), lit=lit, spot=places)

    def _same(self) -> Beat:
        words = headline(self.alone, self.together, "finished", live=False)
        brought, fork = len(self.step.emitted), first_doubt(self.step)
        more: Segments = [["", "Only a guess equal to the large model’s own word stays. "]]
        if fork is not None and any(one.node == fork and one.outcome == "saved" for one in judged_nodes(self.step)):
            first, *siblings = family_of(self.step, fork)
            taken = next(node for node in siblings if node in self.step.emitted_nodes)
            more += [
                ["", "First choices would have ended at "],
                ["refused", quoted(word_at(self.together, self.step, first))],
                ["", "; the branch of "], ["small", quoted(word_at(self.together, self.step, taken))], ["", " brings "],
            ]  # fmt: skip
        else:
            more.append(["", "This pass brings "])
        more += [["b", counted(brought, "token", True)], ["", f".{self._clock()}"]]
        shown = Words(words.say, more, words.short, big=True)
        return self._beat("accept", shown, "done", ("large", "accepted", "refused", "alone"), fold=True, threads=True)

    def _clock(self) -> str:
        """Say how much faster the answer came after the prompt, where clocks are recorded."""
        ratio = speedup(summarise([self.alone]), summarise([self.together]))
        return "" if math.isnan(ratio) else f" By the clock {ratio:.1f} times as fast."
