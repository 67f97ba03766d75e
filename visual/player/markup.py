"""The page's constant HTML and CSS, which a saved page has too. Imports no gradio: it takes seconds to start."""

from __future__ import annotations

import html

from visual.figures.charts import css_variables
from visual.player.static_files import STATIC, static_text

STYLES = (
    "page", "shell", "lanes", "settings", "lab", "dialogue", "phases", "coin",
    "lessons", "views", "present",
)  # fmt: skip
TITLE = "specllava: a draft's doubt grows a tree, one pass checks it"
CLAIM = "A small model guesses a tree of tokens, a large one keeps what it would have said anyway."
PAPERS = {"Spec-LLaVA paper": "https://arxiv.org/abs/2509.11961", "SpecVLM paper": "https://arxiv.org/abs/2509.11815"}
VIEWS = {"opening": "How it works", "explain": "Explain", "workbench": "Workbench"}
FAVICON = STATIC / "favicon.png"


def stylesheet() -> str:
    """Return the page's whole CSS: the shared colours, then :data:`STYLES`."""
    own = (static_text(f"{name}.css") for name in STYLES)
    return "\n".join([css_variables(), *own])


def masthead() -> str:
    """Return the page's name, links to the three views of a run and the button that presents it, as HTML."""
    links = "".join(f'<a href="?view={name}" data-opens-view="{name}">{text}</a>' for name, text in VIEWS.items())
    present = 'data-present aria-pressed="false" title="For a room (Escape leaves)"'
    button = f'<button type="button" class="quiet" {present}>Present</button>'
    return f'<h1>specllava</h1><nav class="views" aria-label="Views">{links}</nav> {button}'


def links(code: str = "", live: str = "") -> str:
    """Return links to the papers and, where their addresses are known, to code, documentation and a live page."""
    addresses = PAPERS | ({"Code": code, "Docs": f"{code.rstrip('/')}/docs"} if code else {})
    addresses |= {"Live page": live} if live else {}
    made = (
        f'<a href="{html.escape(address)}" target="_blank" rel="noopener">{html.escape(name)}</a>'
        for name, address in addresses.items()
    )
    return f'<nav class="links" aria-label="Elsewhere">{"".join(made)}</nav>'


def footer() -> str:
    """Return the footer, paper and licence, as HTML."""
    paper = f'<a href="{PAPERS["Spec-LLaVA paper"]}" target="_blank" rel="noopener">Spec-LLaVA (arXiv 2509.11961)</a>'
    return f'<p class="footer-line">specllava implements {paper}. Apache License 2.0.</p>'
