"""Two configurations, A and B, on many prompts. They may belong to different pairs."""

from __future__ import annotations

import gzip
from collections.abc import Generator, Iterable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any

from transformers import PreTrainedModel

from specllava.core.acceptance import trace_acceptance
from specllava.core.config import DecodingConfig
from specllava.core.growth.cost_model import Costs
from specllava.core.metrics import compare, summarise
from specllava.core.question import Question
from specllava.core.race_file import NamedTrace, comparison_json
from specllava.core.trace import DecodeTrace, StepTrace
from specllava.decoding import RaceEvent
from specllava.findings.comparison import PairedComparison, PromptResult, side_names
from specllava.lane import SIDES, TARGET_ONLY
from specllava.pair import Pair


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison: a pair and how it decodes.

    Args:
        costs: of its passes, for the comparison by counted passes; ``None``: by the clock alone.
    """

    pair: Pair
    config: DecodingConfig
    costs: Costs | None = None


def sides(one: Pair, a: DecodingConfig, other: Pair, b: DecodingConfig) -> tuple[Side, Side]:
    """Make both sides of a comparison, with the costs of their passes where both pairs have a draft.

    Models of the same shape and precision take the same time: they are timed once, as timings differ from run to run.
    """
    if one.draft is None or other.draft is None:
        return Side(one, a), Side(other, b)
    return Side(one, a, one.expected_costs), Side(other, b, costs_beside(one, other))


def measuring(one: Pair, other: Pair) -> Generator[None]:
    """Measure what :func:`sides` lacks of the costs, a pass at a time."""
    if one.draft is None or other.draft is None:
        return
    yield from one.measuring()
    if not (same_shape(one.target, other.target) and same_shape(one.draft, other.draft)):
        yield from other.measuring()


def costs_beside(one: Pair, other: Pair) -> Costs:
    """Return the costs of ``other``'s passes; those of a model of the same shape as ``one``'s are ``one``'s.

    Raises:
        ValueError: a pair without a draft.
    """
    costs = one.expected_costs
    if one.draft is None or other.draft is None:
        raise ValueError(f"the pair {(one if one.draft is None else other).name} has no draft whose passes are timed")
    target, draft = same_shape(one.target, other.target), same_shape(one.draft, other.draft)
    if target and draft:
        return costs
    own = other.expected_costs
    return Costs(costs.verify if target else own.verify, costs.draft if draft else own.draft)


def same_shape(one: PreTrainedModel | None, other: PreTrainedModel | None) -> bool:
    """Whether passes of two models take the same time; no model is like no other."""
    return one is not None and other is not None and _shape(one) == _shape(other)


def _shape(model: PreTrainedModel) -> list[tuple[Any, ...]]:
    """List what decides how long a model's passes take: its class, and shapes and devices of its weights."""
    weights = [(name, weight.shape, weight.dtype, weight.device) for name, weight in model.named_parameters()]
    return [(type(model),), *weights]


def compare_questions(
    questions: Iterable[Question], count: int, a: Side, b: Side, target_only: bool = False
) -> Generator[PairedComparison]:
    """Decode every question on both sides, as lanes of one race; yield the comparison so far.

    The unchanged finding is yielded after each decode step, one row more after each question.

    Args:
        target_only: the target alone of ``a`` runs beside them, for the race files.

    Raises:
        ValueError: bad input, as :meth:`specllava.pair.Pair.prompt`; names the question.
    """
    finding = PairedComparison(*side_names(a.config, b.config, a.pair.info, b.pair.info), count)
    yield finding
    for number, question in enumerate(questions, start=1):
        try:
            row = yield from _row(question, number, a, b, finding, target_only)
        except ValueError as error:
            raise ValueError(f"question {number}: {error}") from error
        finding = replace(finding, rows=(*finding.rows, row))
        yield finding


def _row(
    question: Question, number: int, a: Side, b: Side, finding: PairedComparison, target_only: bool
) -> Generator[PairedComparison, None, PromptResult]:
    lanes = {SIDES[0]: _Lane(a), SIDES[1]: _Lane(b), TARGET_ONLY: _Lane(a)}
    other = None if b.pair is a.pair else b.pair
    asked = (question.image, question.text, a.config, b.config, other, target_only)
    with closing(a.pair.race_sides(*asked)) as events:
        for event in events:
            lanes[event.lane.name].add(event)
            yield finding
    ours, theirs, alone = lanes.values()
    one, two = ours.trace(), theirs.trace()
    named = NamedTrace(finding.a, one), NamedTrace(finding.b, two), alone.trace() if target_only else None
    return PromptResult(
        prompt=question.text,
        image=question.name,
        a=summarise([one]),
        b=summarise([two]),
        sameness=compare(one, two) if same_tokens(a.config, b.config) else None,
        counted=(ours.seconds, theirs.seconds) if a.costs and b.costs else None,
        acceptance=(trace_acceptance([one]), trace_acceptance([two])),
        packed_race=gzip.compress(comparison_json(*named, picture_name(question, number)).encode(), mtime=0),
    )


@dataclass(slots=True)
class _Lane:
    """Events of a lane of a race so far; ``seconds`` of its steps by counted passes."""

    side: Side
    events: list[RaceEvent] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, event: RaceEvent) -> None:
        """Add an event."""
        self.events.append(event)
        if isinstance(event.item, StepTrace) and self.side.costs is not None:
            self.seconds += self.side.costs.step_seconds(event.draft_pass_tokens, event.item.tree.drafted)

    def trace(self) -> DecodeTrace:
        """Collect the lane's trace."""
        return self.side.pair.collect(self.events[0].lane, [event.item for event in self.events])


def picture_name(question: Question, number: int) -> str | None:
    """Return the name that a question's picture bears beside its race file; ``None`` without a picture."""
    return None if question.image is None else f"{number:03}{PurePath(question.name or '.png').suffix or '.png'}"


def same_tokens(a: DecodingConfig, b: DecodingConfig) -> bool:
    """Whether one target would give the same tokens: nothing is drawn, or the same draws by the target itself."""
    drawn = {(one.temperature, one.top_p, one.top_k, one.seed) if one.temperature else () for one in (a, b)}
    return a.keeps_tokens and b.keeps_tokens and len(drawn) == 1
