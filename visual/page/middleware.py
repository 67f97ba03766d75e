"""What the server adds to Gradio: answers of ``/health``, and security headers.

``HEAD /`` is answered without making the whole document. Gradio asks it of itself at the launch, which fails where it
takes three seconds, and so do hosts.

Gradio compiles templates and scripts of its HTML components in the browser (``new Function``), so the policy allows
``unsafe-eval``; and it styles elements one by one, so it allows inline styles. Inline scripts are allowed by their hash
alone: those of the document as it was sent, none that comes into it later.
"""

from __future__ import annotations

import base64
import hashlib
import re
from concurrent.futures import Future

from starlette.datastructures import MutableHeaders
from starlette.responses import HTMLResponse, JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specllava.trace import RunInfo

HEALTH = "/health"
FRAMES = "'self' https://huggingface.co https://*.hf.space"  # who may show the page in a frame: a Space's own page
INLINE = re.compile(rb"<script(?![^>]*\ssrc=)[^>]*>(.*?)</script>", re.DOTALL | re.IGNORECASE)
FILE_POLICY = "default-src 'none'; frame-ancestors 'none'"  # of what is no document, should it be opened as one


class HealthMiddleware:
    """ASGI middleware that answers :data:`HEALTH` and ``HEAD /``, and nothing else.

    Loading is no illness, so it answers 200 as a pair that is ready does. Models that cannot be loaded answer 503,
    though the page plays its recorded races: no run will succeed before somebody has looked.

    Args:
        loading: what runs, once it is loaded.
    """

    def __init__(self, app: ASGIApp, loading: Future[RunInfo]) -> None:
        self._app, self._loading = app, loading

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == HEALTH and scope["method"] in ("GET", "HEAD"):
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


def page_policy(document: bytes) -> str:
    """Make the policy of a document that the server sends."""
    hashes = {base64.b64encode(hashlib.sha256(script).digest()).decode() for script in INLINE.findall(document)}
    scripts = " ".join(f"'sha256-{one}'" for one in sorted(hashes))
    return (
        f"default-src 'none'; script-src 'self' 'unsafe-eval' {scripts}; style-src 'self' 'unsafe-inline';"
        " img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; manifest-src 'self';"
        f" base-uri 'self'; form-action 'none'; frame-ancestors {FRAMES}"
    )


class SecurityHeadersMiddleware:
    """ASGI middleware that adds the headers to every answer, and changes no body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        document: list[Message] = []  # of HTML: the head and what came of the body, until that is whole

        async def secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["x-content-type-options"] = "nosniff"
                headers["referrer-policy"] = "same-origin"
                if headers.get("content-type", "").startswith("text/html"):
                    document.append(message)
                    return
                headers["content-security-policy"] = FILE_POLICY
            elif document:
                document.append(message)
                if message.get("more_body"):
                    return
                head, *bodies = document
                body = b"".join(one.get("body", b"") for one in bodies)
                MutableHeaders(scope=head)["content-security-policy"] = page_policy(body)
                await send(head)
                message = {"type": "http.response.body", "body": body}
            await send(message)

        await self._app(scope, receive, secured)
