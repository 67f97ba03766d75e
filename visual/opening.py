"""The first thing of the page, written by the server: a recorded run at its step, to be seen before a script has run.

It comes inside the document, in front of Gradio's place, in a shadow root in which its names and styles touch nothing.
``opening.js`` takes it away once the player shows the same.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from urllib.parse import parse_qsl, quote

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from visual import markup
from visual.player import MODULES, PLOTLY_JS, STATIC, static_version
from visual.still_player import still_player

log = logging.getLogger("specllava.page")


@dataclass(frozen=True)
class Asked:
    """What stands beside the run, where a visitor can ask.

    Args:
        question: of the run.
        picture: as a data address, if there is one.
        toy: scenes are offered.
        examples: questions of the recorded ones.
        suggestions: other questions.
        lessons: titles, in order.
        lab: one can go on from a word that was turned down.
    """

    question: str
    picture: str | None
    toy: bool
    examples: Sequence[str]
    suggestions: Sequence[str]
    lessons: Sequence[str]
    lab: bool


def opening(frames: Sequence[str], asked: Asked) -> str:
    """The markup that the document begins its body with, for a run given as the player's list of frames."""
    picture = f'<img src="{escape(asked.picture)}" alt="">' if asked.picture else ""
    ways = ["New scene", "Upload"] if asked.toy else ["Upload"]
    mix = '<label class="unseen"><input type="checkbox" disabled> with a mix never seen in training</label>'
    lessons = _buttons("teach", [f"{number}  {title}" for number, title in enumerate(asked.lessons, start=1)])
    learn = f'<section class="card learn-card"><h2 class="eyebrow">Learn</h2>{lessons}</section>'
    parts = {
        "stylesheet": _stylesheet(),
        "links": _links(),
        "script": _static("opening.js"),
        "masthead": markup.masthead(),
        "picture": picture,
        "ways": _buttons("pill", ways),
        "unseen": mix if asked.toy else "",
        "examples": _buttons("example", asked.examples),
        "question": escape(asked.question),
        "suggestions": _buttons("pill", asked.suggestions),
        "lessons": learn if asked.lessons else "",
        "player": still_player(frames, asked.lab),
    }
    return re.sub(r"<!-- (\w+) -->", lambda found: parts[found[1]], _static("opening.html"))


def _buttons(kind: str, texts: Sequence[str]) -> str:
    return "".join(f'<button type="button" class="{kind}" disabled>{escape(text)}</button>' for text in texts)


@cache
def _stylesheet() -> str:
    """The page's own, as it is read inside a shadow root: there the root is the host."""
    return _static("opening.css") + markup.stylesheet().replace(":root", ":host")


@cache
def _links() -> str:
    """What the player will import, to be fetched while Gradio is still starting; Plotly behind everything else."""
    version = static_version(MODULES)
    modules = (_address(f"{STATIC.as_posix()}/{name}") + f"?v={version}" for name in MODULES)
    links = [f'<link rel="modulepreload" href="{address}">' for address in modules]
    plotly = _address(PLOTLY_JS.as_posix())
    return "".join([*links, f'<link rel="preload" as="script" fetchpriority="low" href="{plotly}">'])


def _address(path: str) -> str:
    return escape(f"gradio_api/file={quote(path)}")


def _static(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")


class Opened:
    """ASGI middleware that puts an opening into the page's document, and touches nothing else.

    Args:
        written: the opening for what the address asks for; empty if there is none.
    """

    def __init__(self, app: ASGIApp, written: Callable[[Mapping[str, str]], str]) -> None:
        self._app, self._written = app, written

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "GET" or scope["path"] not in ("", "/"):
            await self._app(scope, receive, send)
            return
        head: Message = {}
        body = bytearray()

        async def collect(message: Message) -> None:
            if message["type"] == "http.response.start":
                head.update(message)
                return
            body.extend(message.get("body", b""))
            if message.get("more_body"):
                return
            whole = bytes(body)
            if head["status"] == 200:
                query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
                whole = _behind_body_tag(whole, await run_in_threadpool(self._opening, query))
                MutableHeaders(scope=head)["content-length"] = str(len(whole))
            await send(head)
            await send({"type": "http.response.body", "body": whole})

        await self._app(scope, receive, collect)

    def _opening(self, query: Mapping[str, str]) -> str:
        try:
            return self._written(query)
        except Exception:  # the page is whole without it
            log.exception("the opening could not be written")
            return ""


def _behind_body_tag(document: bytes, markup: str) -> bytes:
    return re.sub(rb"<body[^>]*>", lambda tag: tag[0] + markup.encode(), document, count=1)
