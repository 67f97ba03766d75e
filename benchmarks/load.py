"""Many visitors of one page at once: does every run end, in order, with the tokens of a page that nobody else uses?

    python -m benchmarks.load --json benchmarks/results/load.json

A server of its own is started unless ``--address`` names one. Every visitor clicks on Run as soon as the run before is
over, so the waiting line is as long as there are visitors. Resident memory is the server's. It is read once every
visitor has run a first time and sessions hold frames and KV caches, and again at the end. ``--hostile`` sends
requests that no browser sends, and measures each by itself (``benchmarks.visitors.hostile``).
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
import psutil
from rich.console import Console

from benchmarks.shared.command import run_command
from benchmarks.visitors.hostile import hostile
from benchmarks.visitors.server import STARTING, handlers_of, server, until_ready
from benchmarks.visitors.visitor import Visitor, VisitorRun
from specllava.cli.options import write_json
from specllava.core.limits import Limits

QUESTIONS = ("Describe this image in detail.", "How many objects are there?", "What is on the left?", "Tell a story.")
ALLOWED_GROWTH = 0.10  # of resident memory


@dataclass(frozen=True, slots=True)
class Load:
    """Result of a load.

    Args:
        visitors, runs: visitors, and runs of each after its first.
        failed: runs without both answers, with the page's notices.
        differing: runs whose tokens are not those of the same question asked alone.
        overtaken: pairs of runs of which the later click had its turn first.
        waits: seconds from click to turn: median and longest.
        seconds: of the whole load.
        memory: resident bytes before and after; ``None`` where the server's process is not known.
    """

    visitors: int
    runs: int
    failed: tuple[str, ...]
    differing: int
    overtaken: int
    waits: tuple[float, float]
    seconds: float
    memory: tuple[int, int] | None

    @property
    def growth(self) -> float:
        """Growth of resident memory, as a share; 0 where it was not read."""
        return 0.0 if self.memory is None else self.memory[1] / self.memory[0] - 1

    @property
    def fits(self) -> bool:
        """Whether the page held: nothing failed, differed or was overtaken, and memory stayed."""
        return not self.failed and not self.differing and not self.overtaken and self.growth <= ALLOWED_GROWTH


async def visit(visitor: Visitor, number: int, runs: int) -> list[tuple[str, VisitorRun]]:
    """Run one question after the other; visitors begin with different ones."""
    made = []
    for run in range(runs):
        question = QUESTIONS[(number + run) % len(QUESTIONS)]
        made.append((question, await visitor.run(question)))
    return made


async def load(address: str, process: psutil.Process | None, visitors: int, runs: int) -> Load:
    """Put a load on a page that is served or about to be."""
    limits = httpx.Limits(max_connections=4 * visitors)
    async with httpx.AsyncClient(timeout=STARTING, limits=limits) as client:
        handlers = await handlers_of(client, address)
        alone = Visitor(address, client, handlers)
        wanted = {question: (await alone.run(question)).token_ids for question in QUESTIONS}
        crowd = [Visitor(address, client, handlers) for _ in range(visitors)]
        await asyncio.gather(*(visit(one, number, 1) for number, one in enumerate(crowd)))
        before, began = _resident(process), time.monotonic()
        made = await asyncio.gather(*(visit(one, number, runs) for number, one in enumerate(crowd)))
        seconds, after = time.monotonic() - began, _resident(process)
    done = [one for each in made for one in each]
    waits = [run.started - run.clicked for _, run in done if run.started is not None]
    return Load(
        visitors=visitors,
        runs=runs,
        failed=tuple("; ".join(run.notices[-2:]) for _, run in done if not run.token_ids),
        differing=sum(run.token_ids != wanted[question] for question, run in done if run.token_ids),
        overtaken=overtaken([run for _, run in done]),
        waits=(statistics.median(waits), max(waits)) if waits else (0.0, 0.0),
        seconds=seconds,
        memory=None if before is None or after is None else (before, after),
    )


def overtaken(runs: Sequence[VisitorRun], slack: float = 0.25) -> int:
    """Count pairs of runs of which the later click had its turn first; clicks within ``slack`` seconds are equal."""
    turns = [(run.clicked, run.started) for run in runs if run.started is not None]
    return sum(a[0] + slack < b[0] and b[1] < a[1] for a in turns for b in turns)


def _resident(process: psutil.Process | None) -> int | None:
    return None if process is None else int(process.memory_info().rss)


def send_hostile(json: Path | None) -> int:
    """Send hostile requests to a page of the usual limits; the exit code is 1 if one cost too much."""
    with server(Limits()) as (address, process):
        asyncio.run(until_ready(address))
        costs = hostile(address, process)
    console = Console()
    for one in costs:
        shown = f"{one.processor:5.2f} s, {(one.memory or 0) / 1e6:4.0f} MB, another waits {one.health:4.2f} s"
        console.print(f"{shown}: {one.answer}, {one.name}, {one.size:,} bytes{'' if one.fits else ': TOO MUCH'}")
    write_json(json, {"requests": [asdict(one) for one in costs]})
    return 0 if all(one.fits for one in costs) else 1


def main(
    address: str | None = None, visitors: int = 20, runs: int = 10, json: Path | None = None, hostile: bool = False
) -> int:
    """Put a load on the page; the exit code is 1 if it did not hold.

    Args:
        address: of a page that is served already, with a slash at its end; its memory is not read.
        visitors: at once.
        runs: of each.
        json: write the results to this file.
        hostile: send requests that nobody's browser sends in place of visitors, to a server of its own.
    """
    if hostile:
        return send_hostile(json)
    with contextlib.ExitStack() as stack:
        place, process = stack.enter_context(server()) if address is None else (address, None)
        found = asyncio.run(load(place, process, visitors, runs))
    console = Console()
    console.print(f"{visitors} visitors x {runs} runs in {found.seconds:.0f} s: {len(found.failed)} failed")
    console.print(f"{found.differing} differ from a single visitor's, {found.overtaken} overtaken")
    console.print(f"waits: median {found.waits[0]:.1f} s, longest {found.waits[1]:.1f} s")
    if found.memory is not None:
        before, after = (size / 1e6 for size in found.memory)
        console.print(f"resident memory {before:.0f} to {after:.0f} MB ({found.growth:+.1%})")
    write_json(json, asdict(found))
    return 0 if found.fits else 1


if __name__ == "__main__":
    run_command(main)
