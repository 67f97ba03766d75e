"""Numbers and words about each node of a step, column by column: names once per step, not once per node.

Ids are those of ``StepLayout``. The player makes a card and a table of it; a reason that many nodes share is sent once.
"""

from __future__ import annotations

import math
from typing import Final, TypeVar

from specllava.trace import DecodeTrace, StepTrace
from visual.figures.labels import even_choices, token_label
from visual.figures.step_layout import StepLayout
from visual.figures.charts import Verdict
from visual.player.explanations import next_reason, node_reasons, pruned_reason

CODES: dict[Verdict, str] = {
    "root": "o", "accepted": "a", "rejected": "r", "unreached": "u", "next": "n", "pruned": "p",
}  # fmt: skip
HIDDEN = "-"  # code of what is not drawn
WEIGHED = 6  # guesses of one family that are named
READING: Final = "the draft's own reading of the text"
STATE: Final = "the large model's own state at its last word"
GUESSED_STATE: Final = "the draft's guess of such a state"
TEXT: Final = "the text so far"


def node_cards(layout: StepLayout) -> dict[str, object]:
    """Return a column per quantity, with an entry per node.

    Probabilities to two digits, which no one rounds again, ranks from 1, entropies in nats; ``branch`` is the draft's
    probability of all tokens down to the node, ``family`` the guesses that it weighed there, ``source`` the guess's
    origin. Nothing follows an end of an answer.
    """
    tree, view = layout.step.tree, layout.step.view
    own, pruned = layout.next_node, len(layout.pruned)
    last = layout.step.verification.path[-1]
    ranks, blank = tree.sibling_ranks(), [None] * pruned
    texts = _reasons(layout)
    reasons = {text: index for index, text in enumerate(dict.fromkeys(texts))}
    before = _families(layout)
    sources = guess_sources(layout.trace, layout.step)
    named = {text: index for index, text in enumerate(dict.fromkeys(filter(None, sources)))}
    families = {words: index for index, words in enumerate(dict.fromkeys(filter(None, before)))}
    return {
        "label": [_label(layout, node) for node in range(len(layout.parents))],
        "token": list(layout.tokens),
        "parent": list(layout.parents),
        "verdict": "".join(
            HIDDEN if node in layout.hidden else CODES[verdict] for node, verdict in enumerate(layout.verdicts)
        ),
        "draft": [None if node in (0, own) else round(math.exp(p), 2) for node, p in enumerate(layout.log_probs)],
        "rank": [None, *(rank + 1 for rank in ranks[1:]), None, *blank],
        "branch": [None, *(round(math.exp(score), 2) for score in tree.scores()[1:]), None, *blank],
        "entropy": [*(None if e is None else round(e, 2) for e in layout.entropies), None, *blank],
        "choices": [*(None if e is None else even_choices(e) for e in layout.entropies), None, *blank],
        "target": [None, *(round(p, 2) for p in view.token_probs[1:]), round(view.choice_probs[last], 2), *blank],
        "target_rank": [None, *(rank + 1 for rank in view.token_ranks[1:]), 1, *blank],
        "choice": [*_after(layout, [token_label(layout.trace, token) for token in view.choices]), None, *blank],
        "choice_prob": [*_after(layout, [round(p, 2) for p in view.choice_probs]), None, *blank],
        "families": list(families),
        "family": [families[words] if words else None for words in before],
        "sources": [f"Guessed from {text}." for text in named],
        "source": [named[text] if text else None for text in sources],
        "reasons": list(reasons),
        "reason": [reasons[text] for text in texts],
    }


Entry = TypeVar("Entry")


def _after(layout: StepLayout, entries: list[Entry]) -> list[Entry | None]:
    """Keep what is known of the token after each node, where there can be one."""
    return [None if ended else entry for entry, ended in zip(entries, layout.ended, strict=True)]


def _families(layout: StepLayout) -> list[str]:
    """Say for each node which guesses the draft weighed before it, the likeliest first; "" for root and bonus token."""
    families: list[list[int]] = [[] for _ in layout.parents]
    for node, parent in enumerate(layout.parents):
        if parent >= 0 and node != layout.next_node and node not in layout.hidden:
            families[parent].append(node)
    named = [_family(layout, sorted(family, key=lambda node: -layout.log_probs[node])) for family in families]
    return ["" if node in (0, layout.next_node) else named[parent] for node, parent in enumerate(layout.parents)]


def _family(layout: StepLayout, family: list[int]) -> str:
    named = [
        f"{token_label(layout.trace, layout.tokens[node])} {math.exp(layout.log_probs[node]):.2f}"
        + (" (pruned)" if layout.verdicts[node] == "pruned" else "")
        for node in family[:WEIGHED]
    ]
    more = [f"{len(family) - WEIGHED} more"] if len(family) > WEIGHED else []
    return " · ".join([*named, *more])


def _label(layout: StepLayout, node: int) -> str:
    """Label a node, with a space before it where the token begins a word, so that a branch reads as text."""
    token = layout.tokens[node]
    label = token_label(layout.trace, token)
    starts = layout.trace.texts[token][:1].isspace() or token in layout.trace.eos_token_ids
    return f" {label}" if starts else label


def _reasons(layout: StepLayout) -> list[str]:
    """Explain the verdict on each node, by its id."""
    trace, step = layout.trace, layout.step
    return [
        *node_reasons(trace, step),
        next_reason(step),
        *(pruned_reason(trace, step, guess) for guess in step.pruned),
    ]


def guess_sources(trace: DecodeTrace, step: StepTrace) -> list[str]:
    """Return the source of each guess in words, by its id; "" for root and bonus token, and of an unknown drafter.

    A draft that reads the target's hidden states has only the root's from the target. What it guesses below its own
    guesses it makes from states of its own (EAGLE, arXiv 2401.15077, section 4.1).
    """
    parents = [*step.tree.parents[1:], *(guess.parent for guess in step.pruned)]
    sources = [_source(trace, below_root=parent == 0) for parent in parents]
    return ["", *sources[: step.tree.drafted], "", *sources[step.tree.drafted :]]


def _source(trace: DecodeTrace, below_root: bool) -> str:
    if trace.drafter is not None:
        return ""
    if trace.config.drafter == "prompt-lookup":
        return TEXT
    if trace.setting.draft_reads is None:
        return READING
    return STATE if below_root else GUESSED_STATE
