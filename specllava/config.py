"""Options of decoding: frozen, validated, documented. The only source of defaults and bounds.

The command line and the page are made from these fields: the docstring under a field is its help
text, the bounds are its slider.
"""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

RuleName = Literal["entropy", "chain"]
DrafterName = Literal["model", "none"]
RULES: tuple[RuleName, ...] = get_args(RuleName)


@dataclass(frozen=True, slots=True, config=ConfigDict(use_attribute_docstrings=True, extra="forbid"))
class DecodingConfig:
    """How to decode: who drafts, how the tree grows, when to stop.

    The paper (arXiv 2509.11961) publishes no values for its threshold, branches, depth and node
    budget; these defaults were measured on the toy pair (``docs/defaults.md``).

    Raises:
        pydantic.ValidationError: a value outside its bounds; a ``ValueError`` that names field and bound.
    """

    drafter: DrafterName = "model"
    """Who proposes tokens: the draft model, or nobody (target-only decoding in the same loop)."""

    rule: RuleName = "entropy"
    """How the tree grows: branch where the draft is unsure (Spec-LLaVA), or one chain of best guesses."""

    max_new_tokens: Annotated[int, Field(ge=1, le=4096)] = 160
    """Stop after this many tokens, if the answer has not ended before."""

    depth: Annotated[int, Field(ge=1, le=32)] = 8
    """Tokens that the draft looks ahead at most; each level costs one draft pass."""

    nodes: Annotated[int, Field(ge=1, le=256)] = 12
    """Guessed tokens sent to the target at most; the best by cumulative log-probability are kept."""

    entropy_threshold: Annotated[float, Field(ge=0.0, le=12.0)] = 0.3
    """Nats. Below it the draft counts as sure and a node gets one child; above it the node branches."""

    max_branches: Annotated[int, Field(ge=1, le=16)] = 3
    """Children of an unsure node at most; it gets as many as exp(entropy), rounded up."""

    width: Annotated[int, Field(ge=1, le=64)] = 4
    """Nodes of one level that may grow children: the best by cumulative log-probability."""

    min_log_prob: Annotated[float, Field(ge=-50.0, le=0.0)] = -2.5
    """Nats. Branches whose cumulative log-probability falls below this are not followed."""


def one_line(error: ValidationError, most: int = 3) -> str:
    """A validation error as one readable line: field, value and bound of its first ``most`` complaints."""
    parts = []
    for item in error.errors()[:most]:
        where = ".".join(str(step) for step in item["loc"]) or "value"
        given = "" if item["type"] == "missing" else f" = {repr(item['input'])[:60]}"
        parts.append(f"{where}{given}: {item['msg'][0].lower()}{item['msg'][1:]}")
    more = error.error_count() - most
    return "; ".join(parts) + (f"; and {more} more" if more > 0 else "")
