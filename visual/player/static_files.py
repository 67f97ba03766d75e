"""Files that the browser is given as they are: templates, stylesheets and scripts of ours, and Plotly."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import plotly

STATIC = Path(__file__).parents[1] / "static"
PLOTLY_JS = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"


def static_text(name: str) -> str:
    """Return the text of one of our files."""
    return (STATIC / name).read_text(encoding="utf-8")


def static_paths() -> list[Path]:
    """List the files that the browser may fetch: our own, and Plotly as its wheel ships it."""
    return [STATIC, PLOTLY_JS]


def static_version(modules: Sequence[str]) -> str:
    """Hash these scripts, so that no browser runs an old one against a new page."""
    return hashlib.sha256(b"".join((STATIC / name).read_bytes() for name in modules)).hexdigest()[:12]
