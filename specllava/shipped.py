"""Where the files lie that come with the project and are no Python: models, recorded races, the page's program."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def shipped(name: str) -> Path:
    """Path of ``name``: inside the package where it was installed (``setup.py`` puts it there), else beside it."""
    inside = PACKAGE / "shipped" / name
    return inside if inside.exists() else PACKAGE.parent / name
