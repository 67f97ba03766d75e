"""Sentences about a step and a run, made from traces as styled segments. Every word of the stage is written here.

A segment is ``[style, text]``; the page puts its text into the document as text, never as markup. Styles: empty, ``b``
for a word, ``large``, ``small``, ``refused`` for a word of the large model, an accepted and a refused guess; ``num``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from specllava.metrics import Comparison, compare, judged_nodes, pass_ratio, saved_tokens, speedup, summarise
from specllava.trace import DecodeTrace, StepTrace
from visual.player.labels import counted, path_text, quoted, spelled, word_after, word_at
from visual.player.tree import StepTree

Segments = list[list[str]]
TORN = 0.75  # of the draft's favourite: with more it is in no doubt
LEAST_RIVAL = 0.05  # of the next guess
SMALL = "The small model"
VERDICTS = ("large", "accepted", "refused", "never", "alone")
KEY = {  # words of the legend; an entry appears with its first use
    "large": "large model", "guess": "guess of the small model",
    "doubt": "full: sure of what follows, hollow: in doubt",
    "block": "one block: one pass; the prompt gave the first token", "accepted": "small model, accepted",
    "refused": "refused", "never": "never reached",
    "same": "the large model’s word: equal; another ends the branch",
    "alone": "large model alone, by then",
    "seen": "at least ten times less likely with a grey picture",
    "sees": "what each guess sees", "kept": "columns that stay", "dropped": "columns that are overwritten",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Words:
    """A sentence, a smaller one below it, and the sentence in fewer words for a narrow screen."""

    say: Segments
    more: Segments
    short: Segments
    big: bool = False
    link: str = ""  # of the small sentence: what it leads to

    def data(self) -> dict[str, object]:
        """Return them for the player."""
        return {"say": self.say, "more": self.more, "short": self.short, "big": self.big, "link": self.link}


def plain(text: str) -> Segments:
    """Return a text as one unstyled segment, none if it is empty."""
    return [["", text]] if text else []


def listed(items: Sequence[Segments], last: str) -> Segments:
    """Join segments by commas, the last two by a word."""
    joined: Segments = []
    for number, item in enumerate(items):
        joined += [["", "" if not number else f" {last} " if number == len(items) - 1 else ", "], *item]
    return joined


def text_of(segments: Segments) -> str:
    """Return the text of segments."""
    return "".join(text for _, text in segments)


def drafter_words(trace: DecodeTrace) -> str:
    """Return who guesses, as a sentence begins."""
    if trace.drafter is not None:
        return f"The drafter {trace.drafter}"
    return "Prompt lookup" if trace.config.drafter == "prompt-lookup" else SMALL


def is_torn(step: StepTrace, family: Sequence[int]) -> bool:
    """Return whether the draft was in doubt among guesses, likeliest first."""
    if len(family) < 2:
        return False
    first, second = (math.exp(step.tree.log_probs[node]) for node in family[:2])
    return first <= TORN and second >= LEAST_RIVAL


def family_of(step: StepTrace, node: int) -> list[int]:
    """Return the guesses after a node, the likeliest first."""
    return sorted(step.tree.children()[node], key=lambda child: -step.tree.log_probs[child])


def first_doubt(step: StepTrace) -> int | None:
    """Return the node nearest to the root after which the draft was torn; ``None`` without one."""
    depths = step.tree.depths()
    torn = [node for node in range(len(step.tree)) if is_torn(step, family_of(step, node))]
    return min(torn, key=lambda node: depths[node], default=None)


# --- the phases of a step -----------------------------------------------------------------------


def guess_words(trace: DecodeTrace, step: StepTrace) -> Words:
    """Say how the tree grew, before any verdict."""
    who, count = drafter_words(trace), step.tree.drafted
    if count == 0:
        text = "Nothing was guessed here: the large model goes on alone."
        return Words(plain(text), [], plain(text))
    doubt = first_doubt(step)
    leaves = sum(not family for family in step.tree.children())
    if doubt is not None:
        return doubt_words(trace, step, doubt)
    text = f"{who} is in no doubt: it guesses {counted(count, 'word', words=True)} ahead, one after the other."
    if leaves > 1:
        text = f"{who} guesses {counted(count, 'word', words=True)} ahead, on {counted(leaves, 'branch', True)}."
    return Words(plain(text), [], plain(text))


def doubt_words(trace: DecodeTrace, step: StepTrace, node: int) -> Words:
    """Say between which words the draft was torn after a node, and that the tree follows them."""
    family = family_of(step, node)
    named = family[:3]
    say: Segments = [["", "After "], ["large" if node == 0 else "b", quoted(word_at(trace, step, node))]]
    verb = " it wavers: " if drafter_words(trace) == SMALL else " several words may follow: "
    say.append(["", verb])
    short = [*say, *listed([[["b", quoted(word_at(trace, step, guess))]] for guess in named], "or")]
    say += listed([_guess(trace, step, guess) for guess in named], "or")
    followed = "both" if len(family) == 2 else f"all {spelled(len(family))}"
    say.append(["", f"? So it follows {followed}, and its guesses become a tree."])
    short.append(["", f"? It follows {followed}: a tree."])
    return Words(say, [], short)


def _guess(trace: DecodeTrace, step: StepTrace, node: int) -> Segments:
    return [["b", quoted(word_at(trace, step, node))], ["num", f" ({math.exp(step.tree.log_probs[node]):.2f})"]]


def check_words(step: StepTrace, alone: DecodeTrace | None) -> Words:
    """Say that one pass reads every guess, and what that pass took on this machine beside one over one token."""
    count = step.tree.drafted
    text = "The large model writes its next word in one pass."
    if count:
        read = "this guess" if count == 1 else f"all {count} guesses at once"
        text = f"One pass of the large model reads {read}, and writes its own word beside each."
    took = step.seconds.verify
    one = summarise([alone]).seconds_per_pass if alone is not None else math.nan
    cost = f"This pass over {count + 1} tokens took {milliseconds(took)}; over one token {milliseconds(one)}."
    return Words(plain(text), plain(cost if took and one > 0 else ""), plain(text))


def accept_words(trace: DecodeTrace, step: StepTrace) -> Words:
    """Say which branch was accepted and where it ended."""
    if step.tree.drafted == 0:
        own = word_after(trace, step, 0, step.verification.bonus_token)
        say: Segments = [["", "The large model writes "], ["large", quoted(own)], ["", "."]]
        return Words(say, [], say)
    fork, ending = _fork(trace, step), _ending(trace, step)
    accepted = len(step.emitted_nodes)
    stay = f"{counted(accepted, 'guess', True)} stay{'s' if accepted == 1 else ''}"
    if fork:
        say = [*fork, ["", f" {stay.capitalize() if text_of(fork).endswith('.') else stay}."]]
        return Words(say, ending, [*fork, ["", f" {stay.capitalize()}."]])
    if accepted == step.tree.drafted and accepted > 1:
        say = plain(f"All {counted(accepted, 'guess', True)} agree with the large model and stay.")
        return Words(say, ending, say)
    return Words([*ending, ["", f" {stay.capitalize()}."]], [], ending)


def _fork(trace: DecodeTrace, step: StepTrace) -> Segments:
    """Describe the branching that mattered most: another guess than the favourite was right, or the draft was torn."""
    forks = [judged for judged in judged_nodes(step) if len(judged.children) > 1 and judged.outcome != "missed"]
    won = [judged for judged in forks if judged.outcome == "saved"]
    shown = won or [judged for judged in forks if is_torn(step, family_of(step, judged.node))]
    if not shown:
        return []
    fork = shown[0]
    family, taken = family_of(step, fork.node), step.emitted_nodes[fork.position]
    right = " was accepted." if trace.config.temperature > 0 else " was right."
    start = _torn(trace, step, family) if is_torn(step, family) else _second(trace, step, family[0], taken)
    return [*start, ["small", quoted(word_at(trace, step, taken))], ["", right]]


def _torn(trace: DecodeTrace, step: StepTrace, family: Sequence[int]) -> Segments:
    who = drafter_words(trace)
    named = family[: 3 if len(family) == 3 else 2]
    say = [["", "Torn between "], *listed([_guess(trace, step, node) for node in named], "and")]
    more = f" and {len(family) - 2} less likely" if len(family) > 3 else ""
    tried = "both" if len(family) == 2 else f"all {spelled(len(family))}"
    return [*say, ["", f"{more}, {who[0].lower()}{who[1:]} tried {tried}. "]]


def _second(trace: DecodeTrace, step: StepTrace, first: int, taken: int) -> Segments:
    return [["", "The first choice was "], *_guess(trace, step, first), ["", ", and "], *_guess(trace, step, taken),
            ["", " was tried as well. "]]  # fmt: skip


def _ending(trace: DecodeTrace, step: StepTrace) -> Segments:
    """Say why the accepted branch ended where it did."""
    if step.bonus_unused:
        if step.emitted[-1] in trace.eos_token_ids:
            return plain("With the end mark the answer was complete.")
        return plain(
            f"With these the answer had the {counted(trace.config.max_new_tokens, 'token')} that it was allowed."
        )
    last = step.verification.path[-1]
    bonus = step.verification.bonus_token
    own = quoted(word_after(trace, step, last, bonus))
    drawn = bonus != step.view.choices[last]  # only with a temperature
    sure = [] if drawn else [["num", f" ({step.view.choice_probs[last]:.2f})"]]
    after: Segments = [["", "After "], ["b", f"“{path_text(trace, step, last, 2)}”"]]
    family = family_of(step, last)
    if bonus in trace.eos_token_ids and not family:
        return [*after, ["", " the large model ended the answer."]]
    if not family:
        return [*after, ["", " the large model goes on with "], ["large", own], *sure, ["", ", which comes free."]]
    chose = "drew" if trace.config.temperature > 0 else "wanted"
    return [
        *after, ["", " the guess was "], ["refused", quoted(word_at(trace, step, family[0]))],
        ["num", f" ({math.exp(step.tree.log_probs[family[0]]):.2f})"], ["", f"; the large model {chose} "],
        ["large", own], *sure, ["", "."],
    ]  # fmt: skip


def keep_words(step: StepTrace) -> Words:
    """Say how many tokens the pass brought, and which columns of the cache stay."""
    brought = len(step.emitted)
    say: Segments = [["b", f"{counted(brought, 'token', True).capitalize()} from this one pass."]]
    through = saved_tokens(step)
    if through:
        say.append(["", f" {counted(through, 'token', True).capitalize()} came through a second branch."])
    accepted, all_columns = len(step.verification.path), len(step.tree)
    more = (
        f"The cache keeps what the large model computed for {accepted} of {all_columns} tokens: the accepted branch."
        " The rest is overwritten."
    )
    return Words(say, plain(more), say)


def phase_words(trace: DecodeTrace, step: StepTrace, alone: DecodeTrace | None) -> list[dict[str, object]]:
    """Return the four phases of a step: words, and what the tree shows."""
    doubt = first_doubt(step)
    forked = {} if doubt is None else {"probs": family_of(step, doubt), "halo": doubt}
    phases: list[tuple[str, Words, dict[str, object], tuple[str, ...]]] = [
        ("guess", guess_words(trace, step), {"name": "open", "stubs": True, **forked}, ("large", "guess", "doubt")),
        ("check", check_words(step, alone), {"name": "words"}, ("guess", "same")),
        ("accept", accept_words(trace, step), {"name": "done"}, VERDICTS),
        ("keep", keep_words(step), {"name": "done", "cache": True}, ("kept", "dropped", "alone")),
    ]
    return [{"phase": name, **words.data(), "view": view, "key": key} for name, words, view, key in phases]


def node_words(tree: StepTree) -> list[str]:
    """Return a line about each node: what both models gave it, and what came of it."""
    return [_node(tree, node) for node in range(len(tree.parents))]


def _node(tree: StepTree, node: int) -> str:
    trace, step, verdict = tree.trace, tree.step, tree.verdicts[node]
    label = quoted(tree.labels[node])
    if verdict == "root":
        return f"{label}: the last word so far, written by the large model. The guesses follow it."
    if verdict == "own":
        sure = step.view.choice_probs[step.verification.path[-1]]
        drawn = step.verification.bonus_token != step.view.choices[step.verification.path[-1]]
        chance = "" if drawn else f", with {sure:.2f}"
        return f"{label}: the large model's own word{chance}. It comes out of the pass that checked the guesses."
    rank, small = step.tree.sibling_ranks()[node] + 1, math.exp(step.tree.log_probs[node])
    line = f"{label}: {small:.2f} for {drafter_words(trace)[0].lower()}{drafter_words(trace)[1:]}, its choice {rank};"
    line += f" {step.view.token_probs[node]:.2f} for the large one"
    wish = tree.wishes[node]
    if wish is not None and wish != step.tree.tokens[node] and not trace.config.temperature:
        line += f", which wanted {tree.wish_label(node)}"
    return f"{line}. {verdict[0].upper()}{verdict[1:]}." if verdict != "unreached" else f"{line}. Never reached."


# --- the run as a whole -------------------------------------------------------------------------


def milliseconds(seconds: float) -> str:
    """Write a time with two or three figures: ``3.8 ms``, ``140 ms``, ``5.9 s``."""
    value = 1000 * seconds
    return f"{value:.1f} ms" if value < 10 else f"{value:.0f} ms" if value < 1000 else f"{seconds:.1f} s"


def machine(trace: DecodeTrace, live: bool) -> str:
    """Return what a run ran on, for a sentence."""
    device = trace.setting.device
    if device.lower() != "cpu":
        return f"on {device}"
    return "on this CPU" if live else "on the CPU that recorded it"


def headline(
    alone: DecodeTrace | None, together: DecodeTrace | None, ending: str, live: bool, absent: str = ""
) -> Words:
    """Say the exact numbers of a run first, its clock second."""
    if alone is None or together is None:
        return _one_lane(together or alone, absent)
    passes, without = len(together.steps), len(alone.steps)
    tokens = len(together.token_ids)
    same = compare(alone, together)
    if ending != "finished":
        return _stopped(passes, tokens, same, ending)
    first = f"{counted(passes, 'pass')} instead of {without}."
    if not together.config.keeps_tokens:
        more = "The guesses were drawn, so both answers have the large model's distribution, not the same words."
        return Words([["b", first]], plain(more), [["b", first]], big=True)
    if not same.identical:
        at = (same.position or 0) + 1
        say: Segments = [["b", f"{first} "], ["refused", f"The answers part at token {at}."]]
        return Words(say, plain(_parted(together, same)), say, big=True)
    seed = "Same seed, same draws: the same" if together.config.temperature > 0 else "The same"
    say = [["b", f"{first} {seed} {counted(tokens, 'token')}."]]
    more, link = _clock(alone, together, live)
    return Words(say, plain(more), say, big=True, link=link)


def _one_lane(trace: DecodeTrace | None, absent: str) -> Words:
    assert trace is not None  # a run has one lane at least
    passes, tokens = len(trace.steps), len(trace.token_ids)
    say: Segments = [["b", f"{counted(passes, 'pass')} for {counted(tokens, 'token')}."]]
    return Words(say, plain(absent), say, big=True)


def _stopped(passes: int, tokens: int, same: Comparison, ending: str) -> Words:
    why = "Stopped" if ending == "stopped" else "Out of time"
    say: Segments = [["b", f"{why} after {counted(passes, 'pass')}: {counted(tokens, 'token')} so far."]]
    parted = same.position is not None and same.position < same.tokens
    more = f"The answers part at token {(same.position or 0) + 1}." if parted else (
        f"The first {counted(same.tokens, 'token')} of both answers are the same."
    )  # fmt: skip
    return Words(say, plain(more), say, big=True)


def _parted(trace: DecodeTrace, same: Comparison) -> str:
    if same.margin is None:
        return "One of the answers ends there."
    what = "its two best words were" if trace.config.temperature == 0 else "the draw and the next word were"
    kind = "rounding decides such a tie" if same.near_tie else "more than rounding explains"
    return f"There {what} {same.margin:.1e} apart: {kind}."


def _clock(alone: DecodeTrace, together: DecodeTrace, live: bool) -> tuple[str, str]:
    """Compare both clocks in one sentence, and say where its link leads."""
    before, after = alone.decode_seconds, together.decode_seconds
    if not before or not after:
        return "", ""
    ratio = speedup(summarise([alone]), summarise([together]))
    where = machine(together, live)
    times = f"{milliseconds(after)} instead of {milliseconds(before)}"
    if f"{ratio:.1f}" == "1.0":
        return f"As fast as alone {where}: {times}. What would it be on my GPU?", "pay"
    totals = summarise([together])
    width = counted(round(totals.drafted / totals.target_passes) + 1, "token")
    cost = f"a pass over {width} costs {pass_ratio(summarise([alone]), totals):.1f} times one over a single token"
    if ratio > 1:
        return f"{ratio:.1f} times as fast {where}: {times}. Guessing takes time, and {cost}.", ""
    line = f"The clock says {ratio:.1f} times as fast {where}: {cost} here"
    if together.setting.device != "cpu":
        return f"{line}.", ""
    return f"{line}, and hardly more than one on a GPU. What would it be on mine?", "pay"


def announcement(words: Words, together: DecodeTrace | None) -> str:
    """Return one sentence for a screen reader after a run."""
    text = f" {together.text}" if together is not None else ""
    return f"Answer complete. {text_of(words.say)}{text}"
