"""Codes for the verdict on each node; the page's sentences come from them."""

from __future__ import annotations

from typing import Literal

from specllava.trace import StepTrace

Reason = Literal["root", "accepted", "another-wanted", "chance-against", "parent-rejected"]


def reasons(step: StepTrace, sampled: bool) -> tuple[Reason, ...]:
    """Return one code per node.

    ``another-wanted``: the target's choice was another token. ``chance-against``: the target gave it some probability
    (``step.view.token_probs``), the draft another (``exp`` of the tree's log-prob), and the draw went against it, or
    fell on another token. ``parent-rejected``: the branch had been left above it, so it was never verified.
    A guess that was pruned before the target saw it is no node and has no code: ``step.pruned`` lists it.

    Args:
        sampled: tokens were drawn (a temperature above 0).
    """
    path = set(step.verification.path)
    refused: Reason = "chance-against" if sampled else "another-wanted"
    codes: list[Reason] = ["root"]
    for node in range(1, len(step.tree)):
        judged = step.tree.parents[node] in path
        codes.append("accepted" if node in path else refused if judged else "parent-rejected")
    return tuple(codes)
