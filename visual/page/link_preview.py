"""What other sites show where the page is linked: title, description and picture, in the head of its document."""

from __future__ import annotations

import re
from html import escape
from urllib.parse import quote

from gradio.route_utils import get_root_url
from starlette.requests import Request
from starlette.types import Scope

from visual.player import markup
from visual.player.static_files import STATIC, static_version

PICTURE = "preview.png"
PICTURE_SIZE = (1200, 630)  # pixels, as most sites crop it
GRADIOS_OWN = rb'<meta\s+(?:property|name)="(?:og|twitter):[^>]*>\s*'


class LinkPreview:
    """Tags for the head of the page's document.

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
