"""A visitor of the live page without a browser: the calls that Gradio's own script makes for clicks and uploads."""

from __future__ import annotations

import base64
import gzip
import json
import time
import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import httpx
from gradio_client.utils import apply_diff

from specllava.trace import DecodeTrace

FULL = "the waiting line is full"


@dataclass(frozen=True, slots=True)
class Handlers:
    """Numbers of the page's handlers of a button that requests a run, and their inputs.

    Args:
        begin: enters the request into the waiting line.
        compute: draws the run's events, after ``begin``.
        button: the component that is clicked.
        taken: components whose values ``begin`` takes.
        values: of components, as the page is sent out.
        names: of components: the id, or else the first class.
    """

    begin: int
    compute: int
    button: int
    taken: tuple[int, ...]
    values: Mapping[int, Any]
    names: Mapping[int, str]

    @classmethod
    def of(cls, config: Mapping[str, Any], button: int | None = None) -> Handlers:
        """Find them in the page's configuration, which Gradio sends to every browser.

        Args:
            button: that is clicked; Run if it is not given.
        """
        parts = {part["id"]: part["props"] for part in config["components"]}
        named = {number: [props.get("elem_id"), *(props.get("elem_classes") or ())] for number, props in parts.items()}
        names = {number: next(filter(None, given), "") for number, given in named.items()}
        clicked = next(number for number, name in names.items() if name == "run") if button is None else button
        calls = config["dependencies"]
        begin = next(call for call in calls if [clicked, "click"] in call["targets"] and call["backend_fn"])
        compute = next(call for call in calls if call["trigger_after"] == begin["id"] and call["queue"])
        values = {number: props.get("value") for number, props in parts.items()}
        return cls(begin["id"], compute["id"], clicked, tuple(begin["inputs"]), values, names)

    def inputs(self, question: str, settings: Mapping[str, Any], **changed: Any) -> list[Any]:
        """Return the values of a click: the page's own, but for those that are given.

        Args:
            changed: values by name; ``picture`` is the reference of the picture, which comes first and has no name.
        """
        shown = {self.names[number]: self.values[number] for number in self.taken}
        changed |= {"question": question, "settings": {**(shown.get("settings") or {}), **settings}}
        first, *others = ((self.names[number], self.values[number]) for number in self.taken)
        return [changed.get("picture", first[1]), *(changed.get(name, value) for name, value in others)]


@dataclass(frozen=True, slots=True)
class VisitorRun:
    """Result of one click on Run.

    Args:
        clicked, started: seconds of a monotonic clock; ``started`` when the run had its turn, if it had one.
        notices: of the page meanwhile.
        shown: the last value of what shows the run: frames of the player, or a view as JSON; ``None`` if none came.
        refused: the last notice, if it is an error.
    """

    clicked: float
    started: float | None
    notices: tuple[str, ...]
    shown: Any
    refused: str = ""

    @property
    def race(self) -> Mapping[str, Any] | None:
        """The race file that the player offers at the end; ``None`` if the race did not finish."""
        return _race_of(self.shown) if isinstance(self.shown, list) else None

    @property
    def token_ids(self) -> dict[str, tuple[int, ...]]:
        """Tokens of each lane, in a dialogue of the last turn's; empty if the run did not finish."""
        race = self.race or {}
        last = race.get("dialogue", [race])[-1]
        lanes = {name: part for name, part in last.items() if isinstance(part, dict) and "steps" in part}
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

    async def call(self, handler: int, data: Sequence[Any], trigger: int | None = None, event: Any = None) -> list[Any]:
        """Call a handler that does not wait; return its outputs.

        Raises:
            httpx.HTTPError: any other answer than the page would get.
        """
        body = {"session_hash": self.session, "trigger_id": trigger, "fn_index": handler, "data": data}
        answer = await self.client.post(f"{self.address}gradio_api/run/predict", json=body | {"event_data": event})
        answer.raise_for_status()
        outputs: list[Any] = answer.json()["data"]
        return outputs

    async def run(
        self, question: str, settings: Mapping[str, Any] | None = None, handlers: Handlers | None = None,
        trigger: int | None = None, **changed: Any,
    ) -> VisitorRun:  # fmt: skip
        """Click on Run and wait until the run is over; where the waiting line is full, that is its notice.

        Args:
            handlers: of another button.
            trigger: the component that was clicked, where several share these handlers.
            changed: as of :meth:`Handlers.inputs`.

        Raises:
            httpx.HTTPError: any other answer than the page would get.
        """
        used = handlers or self.handlers
        clicked, button = time.monotonic(), used.button if trigger is None else trigger
        await self.call(used.begin, used.inputs(question, settings or {}, **changed), button)
        event = await self._join(used.compute, [], button)
        return VisitorRun(clicked, None, (FULL,), None) if event is None else await self.follow(clicked, event)

    async def _join(self, handler: int, data: Sequence[Any], trigger: int | None) -> str | None:
        """Join the queue; return the event's id, ``None`` where the queue is full."""
        body = {"session_hash": self.session, "trigger_id": trigger, "fn_index": handler, "data": data}
        joined = await self.client.post(f"{self.address}gradio_api/queue/join", json=body)
        if joined.status_code == httpx.codes.SERVICE_UNAVAILABLE:
            return None
        joined.raise_for_status()
        event: str = joined.json()["event_id"]
        return event

    async def _messages(self, event: str) -> AsyncGenerator[dict[str, Any]]:
        """Yield an event's messages from the session's stream until it is over, as the browser reads them."""
        query = {"session_hash": self.session}
        async with self.client.stream("GET", f"{self.address}gradio_api/queue/data", params=query) as stream:
            async for line in stream.aiter_lines():
                message = json.loads(line.removeprefix("data:")) if line.startswith("data:") else {}
                if message.get("event_id") == event:
                    yield message
                    if message["msg"] == "process_completed":
                        return

    async def follow(self, clicked: float, event: str) -> VisitorRun:
        """Read what the page says and shows of a run until it is over."""
        started: float | None = None
        outputs: list[Any] = []  # of the last message; later ones hold differences only
        shown: Any = None
        notices: list[dict[str, str]] = []
        async with aclosing(self._messages(event)) as messages:
            async for message in messages:
                if message["msg"] == "process_starts":
                    started = time.monotonic()
                elif message["msg"] == "process_generating" and message["success"]:
                    data = message["output"]["data"]
                    outputs = [apply_diff(*pair) for pair in zip(outputs, data, strict=True)] if outputs else list(data)
                    first, notice = (one.get("value") if isinstance(one, dict) else one for one in outputs)
                    shown = first or shown
                    notices += [json.loads(notice)] if notice else []
        last = notices[-1] if notices else {}
        refused = last["text"] if last.get("kind") == "error" else ""
        return VisitorRun(clicked, started, tuple(notice["text"] for notice in notices), shown, refused)


def _race_of(frames: Sequence[str]) -> Mapping[str, Any] | None:
    """Return the race file that the last frame offers for saving."""
    last = json.loads(frames[-1]) if frames else {}
    if "file" not in last:
        return None
    race: Mapping[str, Any] = json.loads(gzip.decompress(base64.b64decode(last["file"])))
    return race
