"""Steps of transformers' own ``generate`` on the target, over a static cache, which it compiles on a GPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.gpu.lanes import PICTURE, QUESTION
from benchmarks.gpu.steps import ANSWER, common
from benchmarks.transformers_lanes import COMPILED, TRANSFORMERS_LANES, run_transformers
from specllava.core.config import DecodingConfig
from specllava.pair import Pair

CONFIG: Final = DecodingConfig(drafter="none", max_new_tokens=ANSWER)


@dataclass(frozen=True, slots=True)
class Generated:
    """Steps of ``generate``, a token each.

    Args:
        way: how its passes ran.
        seconds: median of a step of the second answer.
        first: seconds of the first answer, in which passes are compiled.
        same: tokens from the start that are this project's.
        tokens: of the answer.
    """

    way: str
    seconds: float
    first: float
    same: int
    tokens: int


def generate_steps(pair: Pair, answer: Sequence[int]) -> Generated:
    """Answer twice by ``generate`` and time the second.

    Args:
        answer: of the target alone in this project, to compare with.

    Raises:
        LaneFailedError: whatever ``generate`` raised.
    """
    lane = TRANSFORMERS_LANES[COMPILED]
    prompt = pair.prompt(PICTURE, QUESTION, ANSWER)
    started = time.perf_counter()
    run_transformers(pair, lane, CONFIG, prompt)
    first = time.perf_counter() - started
    run = run_transformers(pair, lane, CONFIG, prompt)
    return Generated(
        way="compiled",
        seconds=statistics.median(step.seconds for step in run.steps),
        first=first,
        same=common(answer, run.token_ids),
        tokens=min(len(answer), len(run.token_ids)),
    )
