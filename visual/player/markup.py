"""The page's constant HTML and CSS, which a saved page has too. Imports no gradio: it takes seconds to start."""

from __future__ import annotations

import html

from visual.figures.theme import css_variables
from visual.player.frames import STATIC

STYLES = ("page", "shell", "settings", "lab", "versus", "pays", "dialogue", "phases", "pictures", "coin")
FAVICON = STATIC / "favicon.png"


def stylesheet() -> str:
    """Return the page's whole CSS: the shared colours, then :data:`STYLES`."""
    own = ((STATIC / f"{name}.css").read_text(encoding="utf-8") for name in STYLES)
    return "\n".join([css_variables(), *own])


def masthead() -> str:
    """Return the page's name and claim as HTML."""
    claim = "A small model guesses a tree of tokens, a large one keeps what it would have said anyway."
    return f"<h1>specllava</h1><p>{html.escape(claim)}</p>"
