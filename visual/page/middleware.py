"""What the server adds to Gradio: answers of ``/health``, the link preview, and security headers.

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
from html import escape
from urllib.parse import quote

from gradio.route_utils import get_root_url
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specllava.core.trace import RunInfo
from visual.player import markup
from visual.player.static_files import STATIC, static_version

HEALTH = "/health"
PICTURE = "preview.png"
PICTURE_SIZE = (1200, 630)  # pixels, as most sites crop it
GRADIOS_OWN = rb'<meta\s+(?:property|name)="(?:og|twitter):[^>]*>\s*'
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


class LinkPreview:
    """Tags for the head of the page's document: title, description and picture that sites show beside a link to it.

    Args:
        root_path: path or address under which a proxy shows the page.
    """

    def __init__(self, root_path: str = "") -> None:
        self._root_path = root_path

    def put_into(self, document: bytes, scope: Scope) -> bytes:
        """Begin the document's head with the tags, and take out those that Gradio wrote of itself."""
        root = get_root_url(Request(scope), "/", self._root_path or None)  # type: ignore[arg-type]
        head, end, body = document.partition(b"</head>")
        head = re.sub(GRADIOS_OWN, b"", head)
        return re.sub(rb"<head[^>]*>", lambda tag: tag[0] + head_tags(root).encode(), head, count=1) + end + body


def head_tags(root: str) -> str:
    """Make the tags for a page at this address, which has no slash at its end."""
    picture = f"{root}/gradio_api/file={quote((STATIC / PICTURE).as_posix())}?v={static_version([PICTURE])}"
    width, height = PICTURE_SIZE
    named = {"description": markup.CLAIM, "twitter:card": "summary_large_image"}
    properties = {
        "og:title": markup.TITLE, "og:description": markup.CLAIM, "og:type": "website", "og:url": f"{root}/",
        "og:image": picture, "og:image:width": width, "og:image:height": height, "og:image:alt": markup.PREVIEW_ALT,
    }  # fmt: skip
    tags = [f"<title>{escape(markup.TITLE)}</title>"]
    tags += [f'<meta name="{name}" content="{escape(text)}">' for name, text in named.items()]
    tags += [f'<meta property="{name}" content="{escape(str(text))}">' for name, text in properties.items()]
    return '<meta charset="utf-8">' + "".join(tags)


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
