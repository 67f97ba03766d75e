"""Broken race files and odd calls at a page that runs: each is answered, and the page is as it was before.

    python -m benchmarks.fuzz --files 2000 --calls 2000 --json benchmarks/results/fuzz.json

Files go the way of a visitor's upload. Calls go to every handler and endpoint, with values of any kind, beside and
through the queue. An answer that takes longer than five seconds counts as slow.
"""

from __future__ import annotations

import asyncio
import contextlib
import json as json_format
import random
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Final

import httpx
from rich.console import Console
from tqdm.auto import tqdm

from benchmarks.shared.command import run_command
from benchmarks.visitors.mutations import mutated, odd_call
from benchmarks.visitors.server import CROWD, handlers_of, server
from benchmarks.visitors.visitor import Visitor
from specllava.cli.options import write_json
from specllava.core.files import shipped

SLOW: Final = 5.0  # seconds
HUNG: Final = 60.0
QUESTION: Final = "Describe this image in detail."
CHECK_EVERY: Final = 250  # between two runs of a normal visitor


@dataclass(slots=True)
class Fuzz:
    """Answers to broken files and odd calls.

    Args:
        answers: how many by kind of answer: a status, or what the stream of a queued call ended with.
        slow: what took longer than :data:`SLOW` seconds to answer, and its seconds.
        silent: what was not answered at all.
        longest: seconds of the slowest answer.
        checks, changed: normal runs in between and at the end, and those whose tokens were other than at first.
        stack_traces: in the server's log, where that was read.
    """

    answers: Counter[str] = field(default_factory=Counter)
    slow: list[tuple[str, float]] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    longest: float = 0.0
    checks: int = 0
    changed: int = 0
    stack_traces: int = 0

    @property
    def fits(self) -> bool:
        """Whether everything was answered in time, no normal run changed, and the log says no more than lines."""
        return not self.slow and not self.silent and not self.changed and not self.stack_traces

    def answered(self, what: str, kind: str, seconds: float) -> None:
        """Count an answer."""
        self.answers[kind] += 1
        self.longest = max(self.longest, seconds)
        if seconds > SLOW:
            self.slow.append((what, round(seconds, 2)))


@dataclass(frozen=True, slots=True)
class Attack:
    """A page under fuzz.

    Args:
        config: the page's configuration, as Gradio sends it.
    """

    address: str
    client: httpx.AsyncClient
    config: Mapping[str, Any]
    found: Fuzz

    async def file(self, number: int, data: bytes) -> None:
        """Open a file as a visitor does: upload, then the handler of the button."""
        began, session = time.monotonic(), f"file{number % 7}"
        try:
            sent = await self.client.post(
                f"{self.address}gradio_api/upload", files={"files": ("race.json", data, "application/json")}
            )
            kind = f"upload {sent.status_code}"
            if sent.status_code == httpx.codes.OK:
                kind = await self._opened(sent.json()[0], session)
        except httpx.HTTPError as error:
            self.found.silent.append(f"file {number}: {type(error).__name__}")
            return
        self.found.answered(f"file {number}", f"file: {kind}", time.monotonic() - began)

    async def _opened(self, path: str, session: str) -> str:
        file = {"path": path, "meta": {"_type": "gradio.FileData"}}
        body = {"fn_index": self._opener, "data": [file], "session_hash": session}
        joined = await self.client.post(f"{self.address}gradio_api/queue/join", json=body)
        if joined.status_code != httpx.codes.OK:
            return f"{joined.status_code} {joined.text[:80]}"
        return await self._end(joined.json()["event_id"], session)

    @property
    def _opener(self) -> int:
        """Number of the handler that opens a race file."""
        ids = {part["props"].get("elem_id"): part["id"] for part in self.config["components"]}
        calls = self.config["dependencies"]
        return next(int(call["id"]) for call in calls if [ids["open-race"], "upload"] in call["targets"])

    async def call(self, source: random.Random, number: int) -> None:
        """Make an odd call; one that is let into the queue is followed to its end."""
        body = odd_call(source, {call["id"]: len(call["inputs"]) for call in self.config["dependencies"]})
        names = [call["api_name"] for call in self.config["dependencies"] if call.get("api_name")]
        paths = ("run/predict", "run/predict", "queue/join", "queue/join", f"run/{source.choice([*names, 'x'])}")
        path, began = source.choice(paths), time.monotonic()
        raw = json_format.dumps(body).encode()
        if source.random() < 0.1:
            raw = raw[: source.randrange(len(raw))]
        headers, kind = {"Content-Type": "application/json"}, ""
        try:
            answer = await self.client.post(f"{self.address}gradio_api/{path}", content=raw, headers=headers)
            kind = f"{path.split('/')[0]}: {answer.status_code}"
            if path == "queue/join" and answer.status_code == httpx.codes.OK:
                kind = f"queue: {await self._end(answer.json()['event_id'], body.get('session_hash'))}"
        except httpx.HTTPError as error:
            self.found.silent.append(f"call {number}, {path} {raw[:200]!r}: {type(error).__name__}")
            return
        self.found.answered(f"call {number}, {path} {raw[:200]!r}", kind, time.monotonic() - began)

    async def _end(self, event: str, session: Any) -> str:
        query = {"session_hash": session}
        async with self.client.stream("GET", f"{self.address}gradio_api/queue/data", params=query) as stream:
            async for line in stream.aiter_lines():
                message = json_format.loads(line.removeprefix("data:")) if line.startswith("data:") else {}
                if message.get("msg") in ("unexpected_error", "server_stopped"):
                    return str(message["msg"])
                if message.get("event_id") == event and message["msg"] == "process_completed":
                    return "done" if message["success"] else "refused"
        return "closed"


async def fuzz(address: str, files: int, calls: int, seed: int) -> Fuzz:
    """Fuzz a page that is served or about to be."""
    found, source = Fuzz(), random.Random(seed)
    texts = [path.read_text(encoding="utf-8") for path in sorted(shipped("assets").glob("*/*.json"))]
    texts = [text for text in texts if '"steps"' in text]
    # A connection for each call: one that the server drops must not be taken for the next call's.
    async with httpx.AsyncClient(timeout=HUNG, limits=httpx.Limits(max_keepalive_connections=0)) as client:
        handlers = await handlers_of(client, address)
        config = (await client.get(f"{address}config")).json()
        attack, visitor = Attack(address, client, config, found), Visitor(address, client, handlers)
        wanted = (await visitor.run(QUESTION)).token_ids
        assert wanted, "a normal run gave no tokens before anything was broken"
        for number in tqdm(range(files + calls), "broken", disable=None):
            if number < files:
                await attack.file(number, mutated(source, source.choice(texts)))
            else:
                await attack.call(source, number - files)
            if (number + 1) % CHECK_EVERY == 0 or number + 1 == files + calls:
                found.checks += 1
                found.changed += (await visitor.run(QUESTION)).token_ids != wanted
    return found


def main(
    address: str | None = None, files: int = 2000, calls: int = 2000, seed: int = 0, json: Path | None = None
) -> int:
    """Fuzz the page; the exit code is 1 if something was not answered, answered late, or changed a normal run.

    Args:
        address: of a page that is served already, with a slash at its end.
        files: broken race files.
        calls: odd calls.
        seed: of what is broken how.
        json: write the results to this file.
    """
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(TemporaryFile("w+", encoding="utf-8", errors="replace"))
        limits = replace(CROWD, events_per_minute=10**6, sessions_per_minute=10**6, uploads_per_minute=10**6)
        place = stack.enter_context(server(log, limits))[0] if address is None else address
        found = asyncio.run(fuzz(place, files, calls, seed))
        log.seek(0)
        found.stack_traces = log.read().count("Traceback (most recent call last)")
    console = Console()
    for kind, count in sorted(found.answers.items()):
        console.print(f"{kind}: {count}")
    console.print(
        f"slowest answer {found.longest:.2f} s; {len(found.slow)} slow, {len(found.silent)} without an answer"
    )
    console.print(f"{found.changed} of {found.checks} normal runs changed; {found.stack_traces} stack traces")
    for one in (*found.slow[:5], *found.silent[:5]):
        console.print(str(one), markup=False)
    told = {one.name: getattr(found, one.name) for one in fields(found)}
    write_json(json, told | {"files": files, "calls": calls, "seed": seed})
    return 0 if found.fits else 1


if __name__ == "__main__":
    run_command(main)
