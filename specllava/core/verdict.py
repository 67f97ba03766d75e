"""The target's verdict on a tree: what it accepted, what it thought of every node, what it drew. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from specllava.core.trace_fields import Count, Many, Probability, Record


@dataclass(frozen=True, slots=True)
class Verification(Record):
    """The target's verdict on a tree.

    Args:
        accepted: accepted nodes in order of depth, the root (which needs no verdict) left out.
        bonus_token: the target's own token after the last accepted node.
    """

    accepted: Many[int]
    bonus_token: Annotated[int, Field(alias="next_token")]

    @property
    def path(self) -> tuple[int, ...]:
        """The accepted branch, the root included: the columns that both caches keep."""
        return (0, *self.accepted)


@dataclass(frozen=True, slots=True)
class TargetView(Record):
    """The target's distribution after each node of a tree; every tuple has one entry per node.

    Args:
        choices: the target's most likely token after each node.
        choice_probs: its probability.
        margins: logit of the choice minus the logit of the runner-up: how near a tie was.
        token_probs: the target's probability of each node's own token given its path (1.0 for the root).
        token_ranks: rank of that token in the target's distribution, from 0 (0 for the root).
    """

    choices: Many[int]
    choice_probs: Many[Probability]
    margins: Many[float]
    token_probs: Many[Probability]
    token_ranks: Many[Count]


@dataclass(frozen=True, slots=True)
class Draw(Record):
    """One number that a sampling verifier drew, and what it decided.

    Either a guessed token was accepted or refused, or the target drew a token of its own. All probabilities are those
    of that moment: after guesses were refused at ``node``, of the residual distributions.

    Args:
        node: the node after which the token stands.
        token: the guessed token, or the one that the target drew.
        uniform: the number, from 0 up to but not including 1.
        acceptance: the guess was accepted if ``uniform`` was below it; ``None`` where the target drew its own.
        target_prob, draft_prob: p and q of ``token``; q is ``None`` where the target drew its own.
        credit: with which p was weighed against q; below 1 only for the traversal verifier.
        tokens: the likeliest few of target and draft, ``token`` among them, by id.
        target_probs, draft_probs: their probabilities; the latter are empty where the target drew its own.
        starts: probability of all tokens with smaller ids than each of ``tokens``, where the target drew its own: the
            draw fell on the token whose start is the last that is not above ``uniform``. Empty otherwise.
    """

    node: Count
    token: Count
    uniform: Annotated[float, Field(ge=0.0, lt=1.0)]
    acceptance: Probability | None
    target_prob: Probability
    draft_prob: Probability | None
    tokens: Many[Count]
    target_probs: Many[Probability]
    draft_probs: Many[Probability] = ()
    starts: Many[Probability] = ()
    credit: Probability = 1.0

    @property
    def accepted(self) -> bool:
        """Whether the token stands: a guess that was accepted, or what the target drew."""
        return self.acceptance is None or self.uniform < self.acceptance

    def __post_init__(self) -> None:
        judged = self.acceptance is not None
        columns = (self.target_probs, self.draft_probs if judged else self.starts)
        empty = self.starts if judged else self.draft_probs
        if empty or judged == (self.draft_prob is None) or any(len(one) != len(self.tokens) for one in columns):
            raise ValueError(f"a draw must have one probability of each kind for each of its {len(self.tokens)} tokens")
        if self.token not in self.tokens:
            raise ValueError(f"token {self.token} is not among those that its draw names")
