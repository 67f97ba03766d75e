"""The log line of a run that is over: JSON for whoever counts them, without a word of what was asked or answered."""

from __future__ import annotations

import json
import logging
import math
from datetime import UTC, datetime
from typing import Any, Literal

from specllava.core.metrics import RunTotals

# ``left``: for something else, or by a visitor who is gone. ``refused``: for what the visitor can change.
Outcome = Literal["finished", "stopped", "deadline", "closed", "left", "refused", "failed"]
log = logging.getLogger("specllava.runs")


def log_run(kind: str, outcome: Outcome, seconds: float, summary: RunTotals | None) -> None:
    """Log how a run ended.

    Args:
        kind: name of the kind of run.
        seconds: from when it left the waiting line.
        summary: of the lane that answered; ``None`` where there is none, as of an experiment.
    """
    ended = datetime.now(UTC).isoformat(timespec="seconds")
    line: dict[str, Any] = {"run": kind, "outcome": outcome, "ended": ended, "seconds": round(seconds, 3)}
    if summary is not None:
        line |= {"tokens": summary.tokens, "tau": None if math.isnan(summary.tau) else round(summary.tau, 3)}
    log.info(json.dumps(line))
