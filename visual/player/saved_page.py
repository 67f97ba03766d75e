"""The player as one script, one stylesheet and one template; and a run as one HTML file that asks nobody.

Page, static edition, saved page and notebook have the same three; only what calls ``start…`` differs.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import plotly

from visual.player.lessons import OLDER, Lesson
from visual.player.recorded import Recorded, titles
from visual.player.sentences import KEY

STATIC: Final = Path(__file__).parents[1] / "static"
PLOTLY_JS: Final = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
FAVICON: Final = STATIC / "favicon.png"
SCRIPTS: Final = ("race", "tree", "words", "text", "spotlight", "stage", "start")
TITLE: Final = "specllava: a draft's doubt grows a tree, one pass checks it"
TOY: Final = (
    "A toy: a LLaVA of 17 million parameters that knows only scenes like these. It may talk nonsense: the same nonsense"
    " alone and together."
)
FRAMES: Final = "<!-- frames -->"


def static_text(name: str) -> str:
    """Return the text of one of our files."""
    return (STATIC / name).read_text(encoding="utf-8")


@cache
def script() -> str:
    """Return the player's script: its files joined in their order, in one scope."""
    return "\n".join(static_text(f"{name}.js") for name in SCRIPTS)


def catalog(
    examples: Sequence[Recorded], lessons: Sequence[Lesson], pictures: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return what a page offers besides the race on show, as data for the player.

    Args:
        pictures: addresses of the examples' pictures by their names, for a list of them.
    """
    drawn = pictures or {}
    return {
        "tour": examples[0].name if examples else "",
        "examples": [
            {"name": race.name, "title": title, "picture": drawn.get(race.name)}
            for race, title in zip(examples, titles(examples), strict=True)
        ],
        "lessons": [lesson.data() for lesson in lessons],
        "older": {str(number): now for number, now in OLDER.items()},
        "key": KEY,
    }


@cache
def halves() -> tuple[str, str]:
    """Return a saved page before and after its frames, about 5 MB in all."""
    parts = {
        "favicon": "data:image/png;base64," + base64.b64encode(FAVICON.read_bytes()).decode(),
        "stylesheet": static_text("stage.css"),
        "stage": static_text("stage.html"),
        "script": script(),
        "plotly": PLOTLY_JS.read_text(encoding="utf-8"),
    }
    page = static_text("saved.html")
    for name, text in parts.items():
        page = page.replace(f"<!-- {name} -->", text, 1)
    before, _, after = page.partition(FRAMES)
    return before, after


def saved_page(frames: Sequence[str]) -> str:
    """Make the page of a run from the player's list of frames.

    Frames hold any text of a model. They are in the page as JSON with no ``<`` in it, so that nothing in them can
    end the element that holds them; the player puts their text into the page as text.
    """
    data = {"frames": frames, "catalog": catalog((), ())}
    return json.dumps(data).replace("<", "\\u003c").join(halves())
