"""Stated prices of passes, in target passes over one token: what a step costs where nothing is timed."""

from __future__ import annotations

from typing import Final

from specllava.core.growth.cost_model import CostModel, Costs

LEVEL: Final = 0.1  # a pass of the draft
GUESS: Final = 0.01  # one more guess in a target pass
STATED: Final = Costs(verify=(1.0, 1.0 + GUESS), draft=(LEVEL,))


class UncorrectedCosts(CostModel):
    """The cost model of a machine that takes what the costs say: real clocks do not correct them."""

    def observe(self, draft_seconds: float, target_seconds: float) -> None:
        return
