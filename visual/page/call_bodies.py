"""Bodies of calls, read before gradio reads them: one that it could make nothing of is refused in one line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import gradio as gr
from gradio_client.utils import is_http_url_like
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specllava.config import short

FOREIGN_FILE: Final = "a file is named by an address on the web, which this server does not fetch: upload it"
MAX_SESSION: Final = 128  # characters of the name that a page or a client gives its session


class CallBodies:
    """ASGI middleware that refuses calls with a file of another host, and calls of handlers that are not there.

    Gradio would fetch such a file, whatever its size, and print a stack trace for such a call. Behind
    :class:`RequestLimits`, which bounds the bytes that are read here.

    Args:
        page: whose handlers are called.
    """

    def __init__(self, app: ASGIApp, page: gr.Blocks) -> None:
        self._app = app
        self._values = {number: len(one.inputs) for number, one in page.fns.items() if one.fn is not None}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or not _is_json(scope):
            await self._app(scope, receive, send)
            return
        body = await Request(scope, receive).body()
        refusal = refused_body(body, scope["path"], self._values)
        if refusal:
            await JSONResponse({"detail": refusal}, 400)(scope, receive, send)
            return
        read = False

        async def again() -> Message:
            nonlocal read
            if read:
                return await receive()
            read = True
            return {"type": "http.request", "body": body}

        await self._app(scope, again, send)


def _is_json(scope: Scope) -> bool:
    return "json" in Headers(scope=scope).get("content-type", "json")  # gradio reads a body without a type as JSON


def refused_body(body: bytes, path: str, values: Mapping[int, int]) -> str:
    """Return why the body of a request is refused; empty if it is not. What is no JSON, gradio refuses itself.

    Args:
        path: of the request.
        values: how many values each handler takes, by its number.
    """
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    if names_foreign_file(document):
        return FOREIGN_FILE
    if isinstance(document, dict) and (path.endswith("/queue/join") or "/run/" in path or "/api/" in path):
        return _refused_call(document, values, queued=path.endswith("/queue/join"))
    return ""


def _refused_call(call: Mapping[str, Any], values: Mapping[int, int], queued: bool) -> str:
    number, data, session = call.get("fn_index"), call.get("data"), call.get("session_hash")
    if type(number) is not int or number not in values:
        return f"there is no handler {short(number)}"
    if isinstance(data, list) and len(data) != values[number]:
        return f"handler {number} takes {values[number]} values, not {len(data)}"
    if not isinstance(call.get("event_data") or {}, dict):
        return "event_data is no object"
    if queued and not (isinstance(session, str) and 0 < len(session) <= MAX_SESSION):
        return f"a call that waits needs a session_hash of 1 to {MAX_SESSION} characters, to which its answer goes"
    return ""


def names_foreign_file(document: Any) -> bool:
    """Check whether a JSON document names a file by an address on the web."""
    left = [document]
    while left:
        item = left.pop()
        if isinstance(item, dict):
            path = item.get("path")
            if isinstance(path, str) and is_http_url_like(path.strip()):
                return True
            left += item.values()
        elif isinstance(item, list):
            left += item
    return False
