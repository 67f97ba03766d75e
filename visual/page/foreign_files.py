"""Files that lie elsewhere: a call may name what was uploaded here, and no address for this server to fetch."""

from __future__ import annotations

import json
from typing import Any, Final

from gradio_client.utils import is_http_url_like
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

REFUSAL: Final = "a file is named by an address on the web, which this server does not fetch: upload it"


class ForeignFiles:
    """ASGI middleware that refuses calls with a file of another host; gradio would fetch it, whatever its size.

    Behind :class:`RequestLimits`, which bounds the bytes that are read here.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or not _is_json(scope):
            await self._app(scope, receive, send)
            return
        body = await Request(scope, receive).body()
        if names_foreign_file(body):
            await JSONResponse({"detail": REFUSAL}, 400)(scope, receive, send)
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


def names_foreign_file(body: bytes) -> bool:
    """Check whether a JSON document names a file by an address on the web; what is no JSON names none."""
    try:
        left: list[Any] = [json.loads(body)]
    except (ValueError, RecursionError):
        return False
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
