"""Saved pages: a run as one file that needs no server, no network and no other file.

It is the same player with the same stylesheet and scripts as on the page, and Plotly as its wheel ships it; only
the frames differ from run to run. A policy inside the page forbids it to ask any host.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from functools import cache

from visual.player import markup
from visual.player.component import MODULES
from visual.player.static_files import PLOTLY_JS, static_text


@cache
def halves() -> tuple[str, str]:
    """Return the page before and after its frames, about 5 MB in all."""
    modules = (f'<script type="text/plain" data-module="{name}">\n{static_text(name)}</script>' for name in MODULES)
    parts = {
        "favicon": "data:image/png;base64," + base64.b64encode(markup.FAVICON.read_bytes()).decode(),
        "view": static_text("view_choice.js"),
        "stylesheet": static_text("standalone.css") + markup.stylesheet(),
        "masthead": markup.masthead(),
        "player": static_text("player.html"),
        "modules": "\n".join(modules),
        "boot": static_text("standalone.js"),
        "plotly": PLOTLY_JS.read_text(encoding="utf-8"),
    }
    page = static_text("standalone.html")
    for name, text in parts.items():
        page = page.replace(f"<!-- {name} -->", text, 1)
    before, _, after = page.partition("<!-- frames -->")
    return before, after


def standalone_page(frames: Sequence[str]) -> str:
    """Make the page of a run from the player's list of frames.

    Frames hold whatever a model said. They are in the page as JSON with no ``<`` in it, so that nothing in them can
    end the element that holds them; the player puts their text into the page as text.
    """
    return json.dumps(frames).replace("<", "\\u003c").join(halves())


def saved_page(_: object = None) -> tuple[str, str]:
    """Return :func:`halves` to the player in the browser, which fills in the frames that it holds."""
    return halves()
