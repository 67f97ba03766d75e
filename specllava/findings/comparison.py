"""Two configurations, A and B, on the same prompts: a row a prompt, and ratios over all of them."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Final

from specllava.config import DecodingConfig
from specllava.metrics import Comparison, RunTotals, pool_totals
from specllava.trace import RunInfo
from specllava.findings.bootstrap import Part, Ratio, pooled_ratio

MODELS: Final = ("target", "draft")  # with PLACES what may set two pairs apart
PLACES: Final = ("dtype", "device")
MAX_NAME: Final = 200


@dataclass(frozen=True, slots=True)
class PromptResult:
    """Both sides on one prompt. Ratios are B's rate over A's.

    Args:
        image: name of its picture, if there is one.
        sameness: B's tokens against A's; ``None`` where both are drawn, so that they may differ by chance.
        packed_race: its race file, gzipped; ``None`` if it was not kept.
    """

    prompt: str
    image: str | None
    a: RunTotals
    b: RunTotals
    sameness: Comparison | None
    packed_race: bytes | None = field(default=None, repr=False, compare=False)

    @property
    def tau_ratio(self) -> float:
        """Tokens per target pass."""
        return _tau([self]).value

    @property
    def speed_ratio(self) -> float:
        """Tokens per second by the clock, prefill apart."""
        return _speed([self]).value

    @property
    def race(self) -> str | None:
        """The race file's document, if it was kept."""
        return None if self.packed_race is None else gzip.decompress(self.packed_race).decode()


@dataclass(frozen=True, slots=True)
class PairedComparison:
    """A comparison of A and B that is running or finished. Ratios are B's pooled rate over A's.

    Args:
        a, b: names of the sides, such as ``rule chain``.
        prompts: how many there are to be.
        rows: those that are finished, in order.
    """

    a: str
    b: str
    prompts: int
    rows: tuple[PromptResult, ...] = ()

    @property
    def totals(self) -> tuple[RunTotals, RunTotals]:
        """Totals of A and of B."""
        return pool_totals(row.a for row in self.rows), pool_totals(row.b for row in self.rows)

    @property
    def tau(self) -> Ratio:
        """Ratio of tokens per target pass."""
        return _tau(self.rows)

    @property
    def speed(self) -> Ratio:
        """Ratio of tokens per second by the clock, prefill apart."""
        return _speed(self.rows)

    @property
    def end_to_end(self) -> Ratio:
        """Ratio of tokens per second by the clock, prefill included."""
        return _ratio(self.rows, lambda one: (one.tokens, one.decode_seconds + one.prefill_seconds))

    @property
    def same(self) -> int:
        """Prompts whose tokens are the same on both sides."""
        return sum(row.sameness is not None and row.sameness.identical for row in self.rows)

    @property
    def comparable(self) -> int:
        """Prompts whose tokens can be compared at all."""
        return sum(row.sameness is not None for row in self.rows)


def side_names(a: DecodingConfig, b: DecodingConfig, a_info: RunInfo, b_info: RunInfo) -> tuple[str, str]:
    """Name two sides by what sets them apart, such as ``rule chain, depth 6``; ``A`` and ``B`` if nothing does."""
    options = [(name, getattr(a, name), getattr(b, name)) for name in (field.name for field in fields(DecodingConfig))]
    setting = [(name, _quote(getattr(a_info, name)), _quote(getattr(b_info, name))) for name in MODELS]
    setting += [(name, getattr(a_info, name), getattr(b_info, name)) for name in PLACES]
    apart = [(name, one, two) for name, one, two in (*setting, *options) if one != two]
    if not apart:
        return "A", "B"
    return _name((name, one) for name, one, _ in apart), _name((name, two) for name, _, two in apart)


def _name(options: Iterable[tuple[str, object]]) -> str:
    text = ", ".join(f"{name.replace('_', ' ')} {_format_value(value)}" for name, value in options)
    return "".join(character for character in text if character.isprintable())[:MAX_NAME]


def _quote(name: str) -> str:
    return f"“{name}”"


def _format_value(value: object) -> str:
    return "/".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _tau(rows: Sequence[PromptResult]) -> Ratio:
    return _ratio(rows, lambda one: (one.step_tokens, one.target_passes))


def _speed(rows: Sequence[PromptResult]) -> Ratio:
    return _ratio(rows, lambda one: (one.step_tokens, one.decode_seconds))


def _ratio(rows: Sequence[PromptResult], part: Callable[[RunTotals], Part]) -> Ratio:
    return pooled_ratio([part(row.a) for row in rows], [part(row.b) for row in rows])
