"""Two configurations, A and B, on many prompts. They may belong to different pairs."""

from __future__ import annotations

import gzip
from collections.abc import Generator, Iterable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Final

from specllava.config import DecodingConfig
from specllava.metrics import compare, summarise
from specllava.question import Question
from specllava.race_file import NamedTrace, comparison_json
from specllava.trace import TARGET_ONLY, DecodeTrace
from specllava.findings.comparison import PairedComparison, PromptResult, side_names
from specllava.pair import Pair
from specllava.spec_decode.loop import Lane, RaceEvent, race

SIDES: Final = ("A", "B")  # the lanes of a comparison


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison: a pair and how it decodes."""

    pair: Pair
    config: DecodingConfig


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
    one = Lane.of(a.config, a.pair.prompt(question.image, question.messages, a.config.max_new_tokens))
    two = Lane.of(b.config, one.prompt)
    if b.pair is not a.pair:
        two = b.pair.lane(question.image, question.messages, b.config)
    requests = [a.pair.request(replace(one, name=SIDES[0])), b.pair.request(replace(two, name=SIDES[1]))]
    if target_only:
        requests.append(a.pair.request(Lane.of(replace(a.config, drafter="none"), one.prompt)))
    with closing(race(requests)) as events:
        for event in events:
            lanes[event.lane.name].events.append(event)
            yield finding
    ours, theirs, alone = lanes.values()
    left, right = ours.trace(), theirs.trace()
    named = NamedTrace(finding.a, left), NamedTrace(finding.b, right), alone.trace() if target_only else None
    return PromptResult(
        prompt=question.text,
        image=question.name,
        a=summarise([left]),
        b=summarise([right]),
        sameness=compare(left, right) if same_tokens(a.config, b.config) else None,
        packed_race=gzip.compress(comparison_json(*named, picture_name(question, number)).encode(), mtime=0),
    )


@dataclass(slots=True)
class _Lane:
    """Events of a lane of a race so far."""

    side: Side
    events: list[RaceEvent] = field(default_factory=list)

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
