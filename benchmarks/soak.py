"""Page life for an hour: does the server keep its memory, threads, files and child processes, and does nothing fail?

    python -m benchmarks.soak --minutes 60 --json benchmarks/results/soak.json

Three visitors at a time open the page of a server of its own, each with a new session. They run, ask follow-ups, upload
pictures, save and open races, run the lab, and leave. Their order is seeded. The first quarter is for
warming up. After it, and at the end, everybody leaves before threads, files and processes are counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import json
import random
import re
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
from PIL import Image
from rich.console import Console

from benchmarks.load import QUESTIONS
from benchmarks.shared.command import run_command
from benchmarks.visitors.server import STARTING, config_of, server
from benchmarks.visitors.visitor import Handlers, Visitor, VisitorRun
from specllava.cli.options import write_json

VISITORS: Final = 3
WARM_UP: Final = 0.25  # of the time
SAMPLE_SECONDS: Final = 60.0
LEAST_SAMPLES: Final = 24  # of a short soak
ALLOWED_SPREAD: Final = 0.05  # of resident memory in the last half
ALLOWED_MORE: Final = 5  # threads or files: pools grow with the crowd that they happened to see
SETTLING: Final = 20.0  # seconds for closed connections to end on the server
LIMITS: Final = httpx.Limits(keepalive_expiry=2.0)  # seconds; the server closes connections after 5
SIZES: Final = ((48, 64), (320, 240), (640, 480), (1344, 1344), (2400, 1800))
SHORT: Final = {"max_new_tokens": 16}
FAILURES: Final = (AssertionError, LookupError, TypeError, ValueError, httpx.HTTPError)  # odd answers too
ADDRESSES: Final = re.compile(r'(?:src|href)="([^"#]+)"')


@dataclass(frozen=True, slots=True)
class Sample:
    """The server at one moment.

    Args:
        second: of the soak.
        resident: bytes of the server and its child processes; so are threads and files.
        temporary: bytes of its folder of temporary files.
    """

    second: float
    resident: int
    threads: int
    files: int
    children: int
    temporary: int

    @classmethod
    def of(cls, process: psutil.Process, temporary: Path, second: float) -> Sample:
        """Take a sample; a child process that ends meanwhile is not counted."""
        counts = [_counts(process)]
        for child in process.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                counts.append(_counts(child))
        resident, threads, files = (sum(column) for column in zip(*counts, strict=True))
        sizes = 0
        for file in temporary.rglob("*"):
            with contextlib.suppress(FileNotFoundError):
                sizes += file.stat().st_size if file.is_file() else 0
        return cls(round(second, 1), resident, threads, files, len(counts) - 1, sizes)


@dataclass(slots=True)
class Soak:
    """Result of a soak.

    Args:
        warm, end: the server when all visitors had left, after the warm-up and at the end.
        samples: at equal distances.
        operations, failures: by kind.
    """

    minutes: float
    seed: int
    warm: Sample | None = None
    end: Sample | None = None
    samples: list[Sample] = field(default_factory=list)
    operations: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)

    @property
    def last_half(self) -> dict[str, float]:
        """Resident bytes in the last half: most, least, mean, and the spread as a share of the least."""
        last = self.samples[-1].second if self.samples else 0.0
        sizes = [one.resident for one in self.samples if one.second >= last / 2]
        if not sizes:
            return {}
        most, least = max(sizes), min(sizes)
        return {"max": most, "min": least, "mean": statistics.fmean(sizes), "spread": most / least - 1}

    @property
    def fits(self) -> bool:
        """Whether the server held: nothing failed, memory stayed, and nothing was left behind."""
        if self.warm is None or self.end is None or not self.operations:
            return False
        more = max(self.end.threads - self.warm.threads, self.end.files - self.warm.files)
        kept = more <= ALLOWED_MORE and self.end.children <= self.warm.children
        return not self.failures and kept and self.last_half["spread"] <= ALLOWED_SPREAD

    def to_json(self) -> dict[str, Any]:
        """Return all of it as JSON's own types."""
        counted = {name: dict(getattr(self, name)) for name in ("operations", "failures")}  # asdict breaks a Counter
        return {"fits": self.fits, "last_half": self.last_half} | asdict(self) | counted


@dataclass(frozen=True, slots=True)
class Page:
    """Handlers of a page, by what visitors do."""

    config: Mapping[str, Any]
    run: Handlers
    runs: Mapping[str, Handlers]  # of the lab, by the id of their card

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Page:
        """Find them in the page's configuration."""
        props = {part["id"]: part["props"] for part in config["components"]}
        runs: dict[str, Handlers] = {}
        for card in _nodes(config["layout"]):
            if "experiment" in _classes(props[card["id"]]):
                button = next(one["id"] for one in _nodes(card) if "lab-run" in _classes(props[one["id"]]))
                runs[props[card["id"]]["elem_id"]] = Handlers.of(config, button)
        return cls(config, Handlers.of(config), runs)

    def part(self, name: str) -> int:
        """Return the number of the first component with this id or class."""
        parts = self.config["components"]
        number: int = next(p["id"] for p in parts if name in (p["props"].get("elem_id"), *_classes(p["props"])))
        return number

    def handler(self, number: int | None, event: str) -> int:
        """Return the handler of a component's event, or, without a component, of the page's that sets most."""
        calls = [one for one in self.config["dependencies"] if one["backend_fn"]]
        if number is not None:
            found = [one for one in calls if [number, event] in one["targets"]]
        else:
            found = [one for one in calls if len(one["outputs"]) > 1 and any(of[1] == event for of in one["targets"])]
        handler: int = found[-1]["id"]
        return handler


@dataclass(slots=True)
class Visit:
    """One visit: a session from opening the page until leaving it."""

    page: Page
    visitor: Visitor
    random: random.Random
    picture: str = ""
    last: VisitorRun | None = None

    async def open(self) -> None:
        """Load the document, what it names, and what the address opens with."""
        address, client = self.visitor.address, self.visitor.client
        document = await client.get(address)
        document.raise_for_status()
        for found in sorted(set(ADDRESSES.findall(document.text))):
            asset = httpx.URL(address).join(found.replace("&amp;", "&"))
            if asset.host == httpx.URL(address).host:
                (await client.get(asset)).raise_for_status()
        opened = await self.visitor.call(self.page.handler(None, "load"), [])
        self.picture = self.page.run.values[self.page.run.taken[0]]
        if isinstance(opened[0], str):
            self.picture = opened[0]

    async def race(self, trigger: int | None = None) -> None:
        """Run a question about the present picture."""
        question = self.random.choice(QUESTIONS)
        self.last = await self.visitor.run(question, SHORT, trigger=trigger, picture=self.picture)
        if not self.last.token_ids:
            raise ValueError("; ".join(self.last.notices[-2:]) or "no answer")

    async def dialogue(self) -> None:
        """Run a question and ask two follow-ups."""
        await self.race()
        for _ in range(2):
            await self.race(self.page.part("follow"))

    async def example(self) -> None:
        """Open a recorded race, and go on from it."""
        buttons = [one["id"] for one in self.page.config["components"] if "example" in _classes(one["props"])]
        chosen = self.random.choice(buttons)
        self.picture = (await self.visitor.call(self.page.handler(chosen, "click"), []))[0]
        await self.race(self.page.part("follow"))

    async def upload(self) -> None:
        """Upload one picture or several, and ask about them."""
        files = [_picture(self.random) for _ in range(self.random.choice((1, 1, 1, 2, 3)))]
        reference, _, notice = await self._send("upload", files, several=True)
        if not isinstance(reference, str):
            raise ValueError(json.loads(notice)["text"])
        self.picture = reference
        await self.race()

    async def save(self) -> None:
        """Take the last race along as a page and as a file, and open the file again."""
        if self.last is None or self.last.race is None:
            await self.race()
        assert self.last is not None
        body = {"data": None, "component_id": self.page.part("player"), "fn_name": "saved_page"}
        address = f"{self.visitor.address}gradio_api/component_server"
        saved = await self.visitor.client.post(address, json=body | {"session_hash": self.visitor.session})
        saved.raise_for_status()
        opened = await self._send("open-race", [("race.json", json.dumps(self.last.race).encode())])
        if not isinstance(opened[3], list):
            raise ValueError(json.loads(opened[4])["text"])
        self.picture, self.last = opened[0], None
        if not self.picture:  # a race file comes without its picture
            await self.example()

    async def lab(self) -> None:
        """Run one experiment."""
        await self._experiment(self.random.choice(sorted(self.page.runs)))

    async def _experiment(self, name: str) -> VisitorRun:
        question = self.random.choice(QUESTIONS)
        run = await self.visitor.run(question, SHORT, self.page.runs[name], picture=self.picture)
        if run.refused or not run.shown:
            raise ValueError(f"{name}: {run.refused or 'no result'}")
        return run

    async def _send(self, button: str, files: list[tuple[str, bytes]], several: bool = False) -> list[Any]:
        """Upload files, and call the handler of a button with them."""
        address, number = f"{self.visitor.address}gradio_api/upload", self.page.part(button)
        sent = await self.visitor.client.post(address, files=[("files", file) for file in files])
        sent.raise_for_status()
        values = [{"path": path, "meta": {"_type": "gradio.FileData"}} for path in sent.json()]
        handler, data = self.page.handler(number, "upload"), [values if several else values[0]]
        queued = next(one["queue"] for one in self.page.config["dependencies"] if one["id"] == handler)
        return await (self.visitor.call_queued if queued else self.visitor.call)(handler, data, number)


ACTS: Final[Mapping[str, Callable[[Visit], Coroutine[Any, Any, None]]]] = {
    "run": Visit.race, "dialogue": Visit.dialogue, "example": Visit.example, "upload": Visit.upload,
    "save": Visit.save, "lab": Visit.lab,
}  # fmt: skip


async def visit(soak: Soak, page: Page, address: str, number: int) -> None:
    """Make a visit of three acts, and count what was done and what failed."""
    chosen = random.Random(f"{soak.seed}/{number}")
    acts = chosen.sample(sorted(ACTS), 3)
    async with httpx.AsyncClient(timeout=STARTING, limits=LIMITS) as client:
        one = Visit(page, Visitor(address, client, page.run), chosen)
        async with _heartbeat(one.visitor):
            for name, act in [("visit", Visit.open), *((name, ACTS[name]) for name in acts)]:
                try:
                    await act(one)
                    soak.operations[name] += 1
                except FAILURES as failure:
                    soak.failures[f"{name}: {type(failure).__name__}: {failure}"] += 1


async def visits(soak: Soak, page: Page, address: str, numbers: Iterator[int], until: float) -> None:
    """Make visits, ``VISITORS`` at a time, until a moment of ``time.monotonic``; those that began then end."""

    async def in_turn() -> None:
        while time.monotonic() < until:
            await visit(soak, page, address, next(numbers))

    await asyncio.gather(*(in_turn() for _ in range(VISITORS)))


async def soak_page(soak: Soak, address: str, process: psutil.Process, temporary: Path) -> None:
    """Soak a page that is served or about to be, and record the results in ``soak``."""
    async with httpx.AsyncClient(timeout=STARTING) as client:
        page = Page.of(await config_of(client, address))
    began, seconds, numbers = time.monotonic(), 60 * soak.minutes, itertools.count()
    sample = lambda: Sample.of(process, temporary, time.monotonic() - began)  # noqa: E731

    async def watch() -> None:
        while True:
            await asyncio.sleep(min(SAMPLE_SECONDS, seconds / LEAST_SAMPLES))
            soak.samples.append(sample())

    watching = asyncio.create_task(watch())
    settling = min(SETTLING, 0.05 * seconds)
    await visits(soak, page, address, numbers, began + WARM_UP * seconds)
    await asyncio.sleep(settling)
    soak.warm = sample()
    await visits(soak, page, address, numbers, began + seconds - settling)
    await asyncio.sleep(settling)
    soak.end = sample()
    watching.cancel()


@contextlib.asynccontextmanager
async def _heartbeat(visitor: Visitor) -> AsyncIterator[None]:
    """Hold the stream open by which the server knows that a page is still there."""
    address = f"{visitor.address}gradio_api/heartbeat/{visitor.session}"
    async with visitor.client.stream("GET", address, timeout=None):
        yield


def _nodes(tree: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for node in tree.get("children") or ():
        yield node
        yield from _nodes(node)


def _classes(props: Mapping[str, Any]) -> list[str]:
    return " ".join(props.get("elem_classes") or ()).split()


def _picture(chosen: random.Random) -> tuple[str, bytes]:
    """Make a file of noise, in one of the sizes and formats."""
    kind, size, data = chosen.choice(("PNG", "JPEG")), chosen.choice(SIZES), io.BytesIO()
    Image.effect_noise(size, chosen.uniform(5, 80)).convert("RGB").save(data, kind)
    return f"picture.{kind.lower()}", data.getvalue()


def _counts(process: psutil.Process) -> tuple[int, int, int]:
    """Return resident bytes, threads and open files of a process."""
    return process.memory_info().rss, process.num_threads(), process.num_fds()


def main(minutes: float = 60.0, seed: int = 1, json: Path | None = None) -> int:
    """Soak the page; the exit code is 1 if it did not hold.

    Args:
        minutes: of page life.
        seed: of what visitors do.
        json: write the results to this file.
    """
    soak = Soak(minutes, seed)
    with tempfile.TemporaryDirectory(prefix="soak-") as folder, server(temporary=Path(folder)) as (address, process):
        asyncio.run(soak_page(soak, address, process, Path(folder)))
    console = Console()
    console.print(f"{soak.operations.total()} operations: {dict(soak.operations)}; failures: {dict(soak.failures)}")
    sizes = {name: size / 1e6 for name, size in soak.last_half.items() if name != "spread"}
    console.print(f"resident memory in the last half, MB: {sizes}; spread {soak.last_half['spread']:.1%}")
    console.print(f"behind the warm-up: {soak.warm}\nat the end: {soak.end}")
    write_json(json, soak.to_json())
    return 0 if soak.fits else 1


if __name__ == "__main__":
    run_command(main)
