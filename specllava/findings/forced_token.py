"""An answer with the alternatives to each of its tokens, and the answer after one was forced."""

from __future__ import annotations

from dataclasses import dataclass

from specllava.core.trace import DecodeTrace


@dataclass(frozen=True, slots=True)
class Option:
    """An alternative token at a position of an answer.

    Args:
        target, draft: probability that each model gives it there.
    """

    token: int
    text: str
    target: float
    draft: float


@dataclass(frozen=True, slots=True)
class ForcedToken:
    """An answer whose tokens may be replaced, with the answer decoded on from a replacement, if any.

    Args:
        original: the answer as the target gives it.
        options: for each token of it, the alternatives, the likeliest first.
        forced: decoded on from ``forced.forced_prefix``: the original's beginning and, last, another token.

    Raises:
        ValueError: options for another number of tokens, or a forced run that does not begin as the original does.
    """

    original: DecodeTrace
    options: tuple[tuple[Option, ...], ...]
    forced: DecodeTrace | None = None

    def __post_init__(self) -> None:
        if len(self.options) != len(self.original.token_ids):
            raise ValueError(f"options at {len(self.options)} positions of {len(self.original.token_ids)} tokens")
        if self.forced is not None:
            kept = self.forced.forced_prefix[:-1]
            if not self.forced.forced_prefix or kept != self.original.token_ids[: len(kept)]:
                raise ValueError("the forced run does not begin as the original does")

    @property
    def position(self) -> int | None:
        """Position of the forced token, counted from 0."""
        return None if self.forced is None else len(self.forced.forced_prefix) - 1

    @property
    def whole(self) -> tuple[int, ...]:
        """Every token of the new answer, forced ones included; none before it is there."""
        return () if self.forced is None else (*self.forced.forced_prefix, *self.forced.token_ids)

    @property
    def rejoined(self) -> int:
        """Tokens at the end that both answers share, after the forced one."""
        if self.position is None:
            return 0
        old, new = self.original.token_ids[self.position + 1 :], self.whole[self.position + 1 :]
        shared = 0
        while shared < min(len(old), len(new)) and old[-1 - shared] == new[-1 - shared]:
            shared += 1
        return shared
