"""Marks on the words of a step: where its tree branched, where another branch was right, how unsure the draft was.

Positions count the tokens that the step emitted, from 0.
"""

from __future__ import annotations

from typing import Literal

from specllava.core.metrics import judged_nodes
from specllava.core.trace import StepTrace

Mark = Literal["branched", "saved"]


def marks(step: StepTrace) -> list[tuple[Mark, int]]:
    """List the tokens before which the tree branched; ``saved`` where a branch other than the favourite was right."""
    return [
        ("saved" if judged.outcome == "saved" else "branched", judged.position)
        for judged in judged_nodes(step)
        if len(judged.children) > 1
    ]


def doubts(step: StepTrace) -> list[float | None]:
    """List the draft's entropy before each emitted token, in nats; ``None`` where the draft was not asked."""
    return [step.tree.entropies[node] for node in step.verification.path[: len(step.emitted)]]
