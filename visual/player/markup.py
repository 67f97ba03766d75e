"""The page's constant HTML and CSS, which a saved page has too. Imports no gradio: it takes seconds to start."""

from __future__ import annotations

import html

from visual.figures.theme import css_variables
from visual.player.frames import STATIC

STYLES = ("page", "shell", "lab")
FAVICON = STATIC / "favicon.png"
LEGEND = (
    ("accepted", "accepted"),
    ("rejected", "rejected"),
    ("next", "the target's own token"),
    ("unreached", "never reached"),
)


def stylesheet() -> str:
    """Return the page's whole CSS: the shared colours, then :data:`STYLES`."""
    own = ((STATIC / f"{name}.css").read_text(encoding="utf-8") for name in STYLES)
    return "\n".join([css_variables(), *own])


def masthead() -> str:
    """Return the page's name and claim as HTML."""
    claim = "A small model guesses a tree of tokens, a large one keeps what it would have said anyway."
    return f"<h1>specllava</h1><p>{html.escape(claim)}</p>"


def legend() -> str:
    """Return the legend of symbols and fill as HTML; the player moves the threshold mark."""
    items = "".join(f'<li><i class="mark mark-{name}"></i>{html.escape(text)}</li>' for name, text in LEGEND)
    return (
        f'<section class="card"><h2 class="eyebrow">Legend</h2><ul class="marks">{items}</ul>'
        '<p class="scale-title">fill: how unsure the draft is about what comes next (entropy)</p>'
        '<div class="scale"><i class="scale-mark"></i></div>'
        '<p class="scale-ends"><span>0 · sure</span><span><span data-scale="ceiling">2.0</span>+ nats</span></p>'
        '<p class="scale-note">▲ branches above <span data-scale="threshold">0.5</span> nats; pale: not asked</p>'
        "</section>"
    )
