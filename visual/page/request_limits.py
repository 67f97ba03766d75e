"""Limits that hold before gradio reads a request: bytes of its body, and runs per address and minute."""

from __future__ import annotations

from typing import Final

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from specllava.limits import MIB, Limits
from visual.page.run_rate import RunRate, TooManyRuns

ENVELOPE: Final = MIB  # bytes of a request around the file that it holds


class RequestLimits:
    """ASGI middleware that refuses requests beyond a page's limits with one line of JSON, ``{"detail": …}``.

    Whatever asks for a place in the waiting line counts as a run: the page's runs and calls of the API alike. A client
    is told apart by the address that the server has for it, so a proxy has to be trusted to say whom it speaks for.
    """

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app = app
        self._most_bytes = limits.upload_bytes + ENVELOPE
        self._most_uploaded = limits.question_bytes + ENVELOPE
        self._rate = RunRate("runs", limits.runs_per_minute)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" and scope["method"] == "POST" else None
        await (refusal or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        path, length = scope["path"], Headers(scope=scope).get("content-length", "")
        uploads = path.endswith("/upload")  # of which gradio counts each file's bytes itself
        most = self._most_uploaded if uploads else self._most_bytes
        if length.isdecimal() and int(length[:20]) > most:
            return _refused(413, f"the request has {int(length[:20]):,} bytes, at most {most:,} are read")
        if not length.isdecimal() and not uploads:
            return _refused(411, "a request whose length is not given is not read: send Content-Length")
        if not path.endswith("/queue/join") and "/call/" not in path:
            return None
        try:
            self._rate.begin((scope["client"] or ("",))[0])
        except TooManyRuns as refusal:
            return _refused(429, str(refusal), {"Retry-After": str(refusal.wait)})
        return None


def _refused(status: int, line: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"detail": line}, status, headers)
