"""The report of a distillation run, ``report.json``: its validations, losses and inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from specllava.config import one_line

SCHEMA_VERSION: Final = 1
ReportState = Literal["running", "finished", "stopped"]
STRICT: Final = ConfigDict(extra="forbid", ser_json_inf_nan="constants")


@dataclass(frozen=True, slots=True, config=STRICT)
class ValidationResult:
    """Scores of the draft after some steps, on the target's own greedy answers to prompts held out of training.

    Args:
        step: 0 is before the first.
        kl: KL(target ‖ draft) in nats per token, at temperature 1.
        agreement: share of tokens that are the draft's likeliest too.
        tau: tokens per target pass of real speculative decoding, pooled over the prompts; ``None`` if every answer
            was a single token.
        tokens, passes: what τ is made of: tokens that steps emitted, and target passes.
    """

    step: int
    kl: float
    agreement: float
    tau: float | None
    tokens: int
    passes: int

    @property
    def rank(self) -> tuple[float, float]:
        """Greater is better: τ, and among equals the lower KL."""
        return (self.tau or 0.0, -self.kl)


@dataclass(frozen=True, slots=True, config=STRICT)
class Report:
    """A run so far, or finished.

    Args:
        rows: rows of the data that are trained on.
        left_out: rows that are not, or not wholly: how many by reason.
        checks: validations in the order of their steps.
        curve: losses by step: ``step``, ``rate``, ``loss`` and ``kl`` at temperature 1, all in nats per answer token;
            no ``kl`` where its weight is 0, since the target's distributions are then not computed.
        state: ``running``; ``finished`` with all steps; ``stopped`` early, in older reports.
    """

    schema_version: Literal[1]
    target: str
    draft: str
    rows: int
    left_out: dict[str, int]
    prompts: int
    config: dict[str, Any]
    setting: dict[str, Any]
    checks: tuple[ValidationResult, ...]
    curve: tuple[dict[str, float], ...]
    state: ReportState

    @property
    def best(self) -> ValidationResult:
        """The validation whose draft is kept."""
        return max(self.checks, key=lambda check: check.rank)

    def to_json(self) -> bytes:
        return _ADAPTER.dump_json(self, indent=1) + b"\n"

    @classmethod
    def read(cls, file: Path) -> Report:
        """Read a report from its file.

        Raises:
            ValueError: not a report of this schema.
        """
        try:
            return _ADAPTER.validate_json(file.read_bytes())
        except ValidationError as error:
            raise ValueError(
                f"{file} is no distillation report (schema {SCHEMA_VERSION}): {one_line(error)}"
            ) from error


_ADAPTER: TypeAdapter[Report] = TypeAdapter(Report)
