"""The page's first paint: markup in the document itself, before a script has run.

For the first example it is the live player as ``python -m benchmarks.first_paint`` recorded it; for anything else,
cards that are empty but for the question and the step. It comes before Gradio's own element, in a shadow root in which
its names and styles touch nothing. ``first_paint.js`` takes it away once the player shows the same.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Mapping
from functools import cache, cached_property
from html import escape
from pathlib import Path
from urllib.parse import parse_qsl, quote

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specllava.core.race_file import race_json
from visual.figures.labels import strip_bidi
from visual.page.app_state import AppState
from visual.page.middleware import LinkPreview
from visual.page.pictures import family_of
from visual.player import markup
from visual.player.component import MODULES
from visual.player.frames import instructive_step
from visual.player.link import follow_link
from visual.player.recorded import Recorded
from visual.player.static_files import PLOTLY_JS, STATIC, static_text, static_version

LESSONS = '<div class="card learn-card"><button class="label-wrap" disabled>Lessons</button></div>'
log = logging.getLogger("specllava.page")


def race_digest(race: Recorded) -> str:
    """Hash a race and its picture."""
    picture = race.image.read_bytes() if race.image else b""
    document = race_json(race.target_only, race.speculative, race.image.name if race.image else None)
    return hashlib.sha256(document.encode() + picture).hexdigest()[:16]


class FirstPaint:
    """The markup that a page's body begins with.

    Args:
        snapshot: file of the recorded columns; a page that shows another race first, or other things beside it, does
            not use it.
    """

    def __init__(self, state: AppState, snapshot: Path) -> None:
        self._state, self._file = state, snapshot

    def markup(self, query: Mapping[str, str]) -> str:
        """Make the markup for the page's query; empty if there is no race to show."""
        link = follow_link(query, self._state.recorded, self._state.lessons)
        first = self._state.first
        race, step = (link.shown, link.show) if link else (first and first.turns[-1], None)
        if race is None:
            return ""
        if link is None and self._snapshot:
            return self._document(self._snapshot)
        return self._document(_skeleton(race, step))

    @cached_property
    def _snapshot(self) -> str:
        """The recorded columns; empty if they are not this page's."""
        state = self._state
        whole = family_of(state.pair) == "toy" and state.lab and state.lessons
        if not (whole and state.recorded and state.first is state.recorded[0]):
            return ""
        mark, _, columns = self._file.read_text(encoding="utf-8").partition("\n")
        if race_digest(state.first) not in mark:
            log.warning("%s shows another race: run python -m benchmarks.first_paint", self._file.name)
            return ""
        return columns

    def _document(self, columns: str) -> str:
        parts = {
            "stylesheet": _stylesheet(),
            "preloads": _preloads(),
            "script": static_text("view_choice.js") + static_text("first_paint.js"),
            "masthead": markup.masthead(),
            "links": markup.links(self._state.code),
            "lessons": LESSONS if self._state.lessons else "",
            "columns": columns,
        }
        return _fill("first_paint.html", parts)


def _skeleton(race: Recorded, step: int | None) -> str:
    """Fill the player as it is before its first run with a race's question and step."""
    steps = len(race.lead.steps)
    index = instructive_step(race.lead) if step is None else step
    name = f"Step {index + 1} of {steps}" if steps else "Step"  # as in step.js
    asked = escape(strip_bidi(race.prompt))
    player = static_text("player.html").replace('<p class="asked">', f'<p class="asked">{asked}', 1)
    player = player.replace('step-name">Step', f'step-name">{name}', 1)
    return _fill("first_paint_skeleton.html", {"asked": asked, "player": player})


def _fill(name: str, parts: Mapping[str, str]) -> str:
    return re.sub(r"<!-- (\w+) -->", lambda match: parts[match[1]], static_text(name))


@cache
def _stylesheet() -> str:
    """Return the page's CSS for a shadow root, whose root is the host."""
    return static_text("first_paint.css") + markup.stylesheet().replace(":root", ":host")


@cache
def _preloads() -> str:
    """Make links by which the browser fetches the player's scripts while Gradio is starting; Plotly last."""
    version = static_version(MODULES)
    modules = (_address(f"{STATIC.as_posix()}/{name}") + f"?v={version}" for name in MODULES)
    links = [f'<link rel="modulepreload" href="{address}">' for address in modules]
    plotly = _address(PLOTLY_JS.as_posix())
    return "".join([*links, f'<link rel="preload" as="script" fetchpriority="low" href="{plotly}">'])


def _address(path: str) -> str:
    return escape(f"gradio_api/file={quote(path)}")


class FirstPaintMiddleware:
    """ASGI middleware that puts the first paint and the link preview into the page's document, and nothing else."""

    def __init__(self, app: ASGIApp, paint: FirstPaint, preview: LinkPreview | None = None) -> None:
        self._app, self._paint, self._preview = app, paint, preview

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
                whole = _after_body_tag(whole, self._markup(query))
                if self._preview:
                    whole = self._preview.put_into(whole, scope)
                MutableHeaders(scope=head)["content-length"] = str(len(whole))
            await send(head)
            await send({"type": "http.response.body", "body": whole})

        await self._app(scope, receive, collect)

    def _markup(self, query: Mapping[str, str]) -> str:
        try:
            return self._paint.markup(query)
        except Exception:  # the page is whole without it
            log.exception("the first paint could not be made")
            return ""


def _after_body_tag(document: bytes, markup: str) -> bytes:
    return re.sub(rb"<body[^>]*>", lambda tag: tag[0] + markup.encode(), document, count=1)
