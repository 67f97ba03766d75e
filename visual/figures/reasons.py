"""Codes for the verdict on each node; the page's sentences come from them."""

from __future__ import annotations

from typing import Literal

from specllava.trace import StepTrace

Reason = Literal["root", "accepted", "another-wanted", "chance-against", "parent-rejected", "after-end"]


def reasons(step: StepTrace, sampled: bool) -> tuple[Reason, ...]:
    """Return one code per node.

    ``another-wanted``: the target's choice was another token. ``chance-against``: the draw went against it or fell on
    another token, by the probabilities of target (``step.view.token_probs``) and draft (the tree's log-probs).
    ``parent-rejected``: a guess above it was rejected, so it was never verified. ``after-end``: the answer had ended,
    or reached its limit, before it. A guess that was pruned before the target saw it is no node and has no code:
    ``step.pruned`` lists it.

    Args:
        sampled: tokens were drawn (a temperature above 0).
    """
    path, taken = step.verification.path, set(step.emitted_nodes)
    judged, after = set(path[: len(step.emitted)]), set(path[len(step.emitted) :])
    refused: Reason = "chance-against" if sampled else "another-wanted"
    codes: list[Reason] = ["root"]
    for node, parent in enumerate(step.tree.parents[1:], start=1):
        if node in taken:
            codes.append("accepted")
        elif parent in judged:
            codes.append(refused)
        else:
            codes.append("after-end" if parent in after or codes[parent] == "after-end" else "parent-rejected")
    return tuple(codes)
