"""Runners of a pass: the function that computes it is called each time, or captured once as a CUDA graph and replayed.

A pass that may be captured reads and writes buffers that stay where they are, and returns nothing: what it is given and
what it found lie in them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Any, Protocol

import torch

log = logging.getLogger(__name__)


class PassRunner(Protocol):
    """Interface of what runs the passes of one engine."""

    def run(self, key: Hashable, compute: Callable[[], None]) -> None:
        """Run a pass.

        Args:
            key: equal keys promise that ``compute`` does the same operations on the same buffers.
        """
        ...


class EagerRunner:
    """Runner that calls every pass."""

    def run(self, key: Hashable, compute: Callable[[], None]) -> None:
        compute()


class GraphRunner:
    """Runner that captures a pass as a CUDA graph when it comes for the second time, and replays it from then on.

    The first time warms up: libraries choose kernels and allocate what they need. Where a capture fails, one line says
    so and passes are called from then on.

    Args:
        pool: memory that the graphs of several runners share, of ``torch.cuda.graph_pool_handle()``. No two passes
            run at once and what they find lies in buffers of the engines, so nothing in it outlives a pass.
        stream: of their device, which all of them capture on.
    """

    def __init__(self, pool: Any, stream: torch.cuda.Stream) -> None:
        self._pool, self._stream = pool, stream
        self._seen: set[Hashable] = set()
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._failed = False

    @property
    def captured(self) -> int:
        """Passes that are replayed."""
        return len(self._graphs)

    def run(self, key: Hashable, compute: Callable[[], None]) -> None:
        if key in self._graphs or self._capture(key, compute):
            self._graphs[key].replay()
        else:
            compute()

    def _capture(self, key: Hashable, compute: Callable[[], None]) -> bool:
        """Capture a pass that was called before, which computes nothing yet; tell whether it was captured."""
        if self._failed or key not in self._seen:
            self._seen.add(key)
            return False
        graph, before = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        try:
            with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
                compute()
        except RuntimeError as error:
            torch.cuda.set_stream(before)  # a capture that cannot be ended leaves its own
            self._failed = True
            log.warning("passes run without CUDA graphs, which is slower: %s", str(error).splitlines()[0])
            return False
        self._graphs[key] = graph
        return True
