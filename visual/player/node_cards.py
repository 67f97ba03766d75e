"""Numbers and words about each node of a step, column by column: names once per step, not once per node.

Ids are those of ``StepLayout``. The player makes a card and a table of it; a reason that many nodes share is sent once.
"""

from __future__ import annotations

import math

from visual.figures.labels import token_label
from visual.figures.step_layout import StepLayout
from visual.figures.theme import Verdict
from visual.player.explanations import next_reason, node_reasons, pruned_reason

CODES: dict[Verdict, str] = {
    "root": "o", "accepted": "a", "rejected": "r", "unreached": "u", "next": "n", "pruned": "p",
}  # fmt: skip


def node_cards(layout: StepLayout) -> dict[str, object]:
    """Return a column per quantity, with an entry per node.

    Probabilities, ranks from 1, cumulative log-probabilities and entropies in nats.
    """
    tree, view = layout.step.tree, layout.step.view
    own, pruned = layout.next_node, len(layout.pruned)
    last = layout.step.verification.path[-1]
    ranks, blank = tree.sibling_ranks(), [None] * pruned
    texts = _reasons(layout)
    reasons = {text: index for index, text in enumerate(dict.fromkeys(texts))}
    return {
        "label": [_label(layout, node) for node in range(len(layout.parents))],
        "token": list(layout.tokens),
        "parent": list(layout.parents),
        "verdict": "".join(CODES[verdict] for verdict in layout.verdicts),
        "draft": [None if node in (0, own) else round(math.exp(p), 3) for node, p in enumerate(layout.log_probs)],
        "rank": [None, *(rank + 1 for rank in ranks[1:]), None, *blank],
        "score": [None, *(round(score, 2) for score in tree.scores()[1:]), None, *blank],
        "entropy": [*(None if e is None else round(e, 2) for e in tree.entropies), None, *blank],
        "target": [None, *(round(p, 3) for p in view.token_probs[1:]), round(view.choice_probs[last], 3), *blank],
        "target_rank": [None, *(rank + 1 for rank in view.token_ranks[1:]), 1, *blank],
        "choice": [*(token_label(layout.trace, token) for token in view.choices), None, *blank],
        "choice_prob": [*(round(p, 3) for p in view.choice_probs), None, *blank],
        "reasons": list(reasons),
        "reason": [reasons[text] for text in texts],
    }


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
