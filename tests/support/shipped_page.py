"""The page as it ships, on a machine whose models never load."""

from __future__ import annotations

from typing import NoReturn

import app
from visual.page.app_state import AppState
from visual.player.lessons import load_lessons
from visual.player.recorded import load_recorded


def shipped_state() -> AppState:
    """The state of that page."""
    races, lessons = load_recorded(app.EXAMPLES), load_lessons(app.LESSONS)
    return AppState(_no_models, races, lessons=lessons, lab=_no_models)


def _no_models() -> NoReturn:
    raise RuntimeError("this page shows recorded races only")
