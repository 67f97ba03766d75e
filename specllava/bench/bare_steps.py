"""The floor of a run: the passes of its steps once more, bare and in their order."""

from __future__ import annotations

import math

import torch

from specllava.bench.bare_passes import BarePasses
from specllava.bench.timed_run import PassShape, TimedRun
from specllava.pair import Pair
from specllava.runtime.timing import now


class BareSteps:
    """Seconds of whole steps of bare passes of a pair's models.

    The passes of a step alternate between the models just as the run's did, so the processor's caches are as warm, or
    as cold, as they were there.
    """

    def __init__(self, pair: Pair) -> None:
        self._device = pair.device
        self._passes = {"target": BarePasses(pair.target)}
        if pair.draft is not None:
            self._passes["draft"] = BarePasses(pair.draft)

    @torch.inference_mode()
    def seconds(self, run: TimedRun) -> float:
        """Run the passes of every step of a run in their order, and return their seconds."""
        return math.fsum(map(self._step, run.passes()))

    def _step(self, shapes: list[PassShape]) -> float:
        for name, bare in self._passes.items():
            if own := [shape for shape in shapes if shape.model == name]:
                bare.hold(own[0].context, sum(shape.width for shape in own))
        ready = [self._passes[shape.model].ready(shape.width, shape.context) for shape in shapes]
        started = now(self._device)
        for run_pass in ready:
            run_pass()
        return now(self._device) - started
