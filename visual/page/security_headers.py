"""Headers that tell the browser what the page may do: a Content-Security-Policy, and two smaller ones.

Gradio compiles templates and scripts of its HTML components in the browser (``new Function``), so the policy allows
``unsafe-eval``; and it styles elements one by one, so it allows inline styles. Inline scripts are allowed by their hash
alone: those of the document as it was sent, none that comes into it later.
"""

from __future__ import annotations

import base64
import hashlib
import re

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

FRAMES = "'self' https://huggingface.co https://*.hf.space"  # who may show the page in a frame: a Space's own page
INLINE = re.compile(rb"<script(?![^>]*\ssrc=)[^>]*>(.*?)</script>", re.DOTALL | re.IGNORECASE)


def page_policy(document: bytes) -> str:
    """Make the policy of a document that the server sends."""
    hashes = {base64.b64encode(hashlib.sha256(script).digest()).decode() for script in INLINE.findall(document)}
    scripts = " ".join(f"'sha256-{one}'" for one in sorted(hashes))
    return (
        f"default-src 'none'; script-src 'self' 'unsafe-eval' {scripts}; style-src 'self' 'unsafe-inline';"
        " img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; manifest-src 'self';"
        f" base-uri 'self'; form-action 'none'; frame-ancestors {FRAMES}"
    )


FILE_POLICY = "default-src 'none'; frame-ancestors 'none'"  # of what is no document, should it be opened as one


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
