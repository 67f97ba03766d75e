"""Every node of every step as a row: for the table under Measure, and as CSV with full precision."""

from __future__ import annotations

import csv
import io
import math
from typing import Final

from specllava.trace import DecodeTrace, StepTrace
from visual.player.tree import NAMES, StepTree

COLUMNS: Final = (
    "step", "node", "parent", "depth", "token", "text", "verdict", "draft_probability", "draft_entropy_nats",
    "target_probability", "target_rank", "target_choice", "target_choice_probability",
)  # fmt: skip
Row = tuple[int | float | str | None, ...]


def node_rows(trace: DecodeTrace) -> list[Row]:
    """Return a row per node of all steps, in the order of :data:`COLUMNS`; what is not known is ``None``."""
    return [row for number, step in enumerate(trace.steps, start=1) for row in step_rows(trace, step, number)]


def step_rows(trace: DecodeTrace, step: StepTrace, number: int) -> list[Row]:
    """Return the rows of one step: its guesses, the target's own token, and what was pruned."""
    tree, view, shown = step.tree, step.view, StepTree(trace, step)
    depths, texts = tree.depths(), trace.texts
    rows: list[Row] = []
    for node, verdict in enumerate(shown.verdicts[: shown.own]):
        drafted = node > 0
        rows.append((
            number, node, tree.parents[node] if drafted else None, depths[node], tree.tokens[node],
            texts[tree.tokens[node]], NAMES[verdict], math.exp(tree.log_probs[node]) if drafted else None,
            tree.entropies[node], view.token_probs[node] if drafted else None,
            view.token_ranks[node] + 1 if drafted else None, texts[view.choices[node]], view.choice_probs[node],
        ))  # fmt: skip
    if not step.bonus_unused:
        last, token = step.verification.path[-1], step.verification.bonus_token
        chosen = token == view.choices[last]
        rows.append((
            number, shown.own, last, depths[last] + 1, token, texts[token], NAMES["own"], None, None,
            view.choice_probs[last] if chosen else None, 1 if chosen else None, None, None,
        ))  # fmt: skip
    rows += [
        (number, None, guess.parent, depths[guess.parent] + 1, guess.token, texts[guess.token], "pruned",
         math.exp(guess.log_prob), None, None, None, None, None)
        for guess in step.pruned
    ]  # fmt: skip
    return rows


def nodes_csv(trace: DecodeTrace) -> str:
    """Write all rows as CSV; texts keep their blanks."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([["" if value is None else value for value in row] for row in node_rows(trace)])
    return text.getvalue()
