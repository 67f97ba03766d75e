"""A visitor of the live page without a browser: the calls that Gradio's own script makes for a click on Run."""

from __future__ import annotations

import base64
import gzip
import json
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
from gradio_client.utils import apply_diff

from specllava.trace import DecodeTrace

FULL = "the waiting line is full"


@dataclass(frozen=True, slots=True)
class Handlers:
    """Numbers of the page's handlers behind a click on Run, and what they take.

    Args:
        begin: enters the request into the waiting line.
        compute: draws the run's events, behind ``begin``.
        button: the component that is clicked.
        taken: components whose values ``begin`` takes.
        player: place of the player among the outputs of ``compute``.
        values: of components, as the page is sent out.
        names: of components.
    """

    begin: int
    compute: int
    button: int
    taken: tuple[int, ...]
    player: int
    values: Mapping[int, Any]
    names: Mapping[int, str | None]

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Handlers:
        """Find them in the page's configuration, which Gradio sends to every browser."""
        parts = {part["id"]: part["props"] for part in config["components"]}
        names = {number: props.get("elem_id") for number, props in parts.items()}
        ids = {name: number for number, name in names.items() if name}
        calls = config["dependencies"]
        begin = next(call for call in calls if [ids["run"], "click"] in call["targets"] and call["backend_fn"])
        compute = next(call for call in calls if call["trigger_after"] == begin["id"] and call["queue"])
        values = {number: props.get("value") for number, props in parts.items()}
        player = compute["outputs"].index(ids["player"])
        return cls(begin["id"], compute["id"], ids["run"], tuple(begin["inputs"]), player, values, names)

    def inputs(self, question: str, settings: Mapping[str, Any]) -> list[Any]:
        """Return the values of a click: the page's own, but for the question and the settings that are given."""
        changed: dict[str | None, Any] = {"question": question}
        shown = {self.names[number]: self.values[number] for number in self.taken}
        changed["settings"] = {**(shown.get("settings") or {}), **settings}
        return [changed.get(self.names[number], self.values[number]) for number in self.taken]


@dataclass(frozen=True, slots=True)
class VisitorRun:
    """What became of one click on Run.

    Args:
        clicked, started: seconds of a monotonic clock; ``started`` when the run had its turn, if it had one.
        notices: what the page said meanwhile.
        race: the race file that the page offers at the end; ``None`` if the run did not finish.
    """

    clicked: float
    started: float | None
    notices: tuple[str, ...]
    race: Mapping[str, Any] | None

    @property
    def token_ids(self) -> dict[str, tuple[int, ...]]:
        """Tokens of each lane; empty if the run did not finish."""
        lanes = {name: part for name, part in (self.race or {}).items() if isinstance(part, dict) and "steps" in part}
        return {name: DecodeTrace.from_json(json.dumps(part)).token_ids for name, part in lanes.items()}


@dataclass(slots=True)
class Visitor:
    """A session of the live page.

    Args:
        address: of the page, with a slash at its end.
    """

    address: str
    client: httpx.AsyncClient
    handlers: Handlers
    session: str = field(default_factory=lambda: uuid.uuid4().hex[:10])

    async def run(self, question: str, settings: Mapping[str, Any] | None = None) -> VisitorRun:
        """Click on Run and wait until the run is over; where the waiting line is full, that is its notice.

        Raises:
            httpx.HTTPError: any other answer than the page would get.
        """
        clicked, own = time.monotonic(), {"session_hash": self.session, "trigger_id": self.handlers.button}
        values = self.handlers.inputs(question, settings or {})
        begun = await self.client.post(
            f"{self.address}gradio_api/run/predict", json=own | {"fn_index": self.handlers.begin, "data": values}
        )
        begun.raise_for_status()
        joined = await self.client.post(
            f"{self.address}gradio_api/queue/join", json=own | {"fn_index": self.handlers.compute, "data": []}
        )
        if joined.status_code == httpx.codes.SERVICE_UNAVAILABLE:
            return VisitorRun(clicked, None, (FULL,), None)
        joined.raise_for_status()
        return await self._follow(clicked, joined.json()["event_id"])

    async def _follow(self, clicked: float, event: str) -> VisitorRun:
        """Read the session's stream until a run is over, as the browser does."""
        started: float | None = None
        outputs: list[Any] = []  # of the last message; those that follow are told as what differs
        frames: list[str] = []
        notices: list[str] = []
        query = {"session_hash": self.session}
        async with self.client.stream("GET", f"{self.address}gradio_api/queue/data", params=query) as stream:
            async for line in stream.aiter_lines():
                message = json.loads(line.removeprefix("data:")) if line.startswith("data:") else {}
                if message.get("event_id") != event:
                    continue
                kind = message["msg"]
                if kind == "process_starts":
                    started = time.monotonic()
                elif kind == "process_generating" and message["success"]:
                    data = message["output"]["data"]
                    outputs = [apply_diff(*pair) for pair in zip(outputs, data, strict=True)] if outputs else list(data)
                    for place, output in enumerate(outputs):
                        value = output.get("value") if isinstance(output, dict) else output
                        if place == self.handlers.player:
                            frames = value or frames
                        elif value:
                            notices.append(str(json.loads(value)["text"]))
                elif kind == "process_completed":
                    break
        return VisitorRun(clicked, started, tuple(notices), _race_of(frames))


def _race_of(frames: Sequence[str]) -> Mapping[str, Any] | None:
    """Return the race file that the last frame offers for saving."""
    last = json.loads(frames[-1]) if frames else {}
    if "file" not in last:
        return None
    race: Mapping[str, Any] = json.loads(gzip.decompress(base64.b64decode(last["file"])))
    return race
