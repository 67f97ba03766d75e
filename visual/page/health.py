"""``GET /health`` for whoever watches over the server: whether the models are loading, ready, or not to be had.

``HEAD /`` is such a question too: Gradio asks it of itself at the launch, which fails where it takes three seconds, and
so do hosts. It is answered without making the whole document.
"""

from __future__ import annotations

from concurrent.futures import Future

from starlette.responses import HTMLResponse, JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from specllava.core.trace import RunInfo

ADDRESS = "/health"


class HealthMiddleware:
    """ASGI middleware that answers :data:`ADDRESS` and ``HEAD /``, and nothing else.

    Loading is no illness, so it answers 200 as a pair that is ready does. Models that cannot be loaded answer 503,
    though the page plays its recorded races: no run will succeed before somebody has looked.

    Args:
        loading: what runs, once it is loaded.
    """

    def __init__(self, app: ASGIApp, loading: Future[RunInfo]) -> None:
        self._app, self._loading = app, loading

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == ADDRESS and scope["method"] in ("GET", "HEAD"):
            await self._answer()(scope, receive, send)
        elif scope["type"] == "http" and scope["path"] in ("", "/") and scope["method"] == "HEAD":
            await HTMLResponse()(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _answer(self) -> JSONResponse:
        fresh = {"cache-control": "no-store"}
        if not self._loading.done():
            return JSONResponse({"status": "loading"}, headers=fresh)
        if self._loading.exception():
            return JSONResponse({"status": "failed"}, 503, headers=fresh)
        info = self._loading.result()
        running = {"pair": info.pair, "device": info.device, "dtype": info.dtype}
        return JSONResponse({"status": "ready"} | running, headers=fresh)
