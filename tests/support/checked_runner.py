"""A runner that holds every pass to its promise: equal keys do the same operations on the same buffers."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from benchmarks.emulated.copies import HazardError
from benchmarks.emulated.device import EmulatedDevice
from benchmarks.emulated.tape import Tape
from specllava.pair import Pair
from specllava.runtime.kv_caches import EnginePool
from specllava.runtime.padded_passes import PassRunner


class CheckedRunner:
    """Runner that records each pass from its second time on, compares it with the record, and lets another run it."""

    def __init__(self, runner: PassRunner, device: EmulatedDevice) -> None:
        self._runner, self._device = runner, device
        self._tapes: dict[Hashable, Tape | None] = {}

    def run(self, key: Hashable, compute: Callable[[], None]) -> None:
        if key not in self._tapes:
            self._tapes[key] = None  # libraries and buffers warm up
        else:
            tape = self._device.record(compute)
            first = self._tapes[key] = self._tapes[key] or tape
            if (line := first.differs(tape)) is not None:
                raise HazardError(f"{line} differs between two passes of one key")
        self._runner.run(key, compute)


def checked_graphs(pair: Pair, device: EmulatedDevice) -> Pair:
    """Return the pair with passes that are captured, and held to their promise."""
    running = pair.running("graphs")
    make = running.engines.runner
    assert make is not None
    vars(running)["engines"] = EnginePool(lambda: CheckedRunner(make(), device))
    return running
