"""A page over a stand-in in a process that a test can kill: ``python -m support.served_page PORT FOLDER``."""

from __future__ import annotations

import sys
from pathlib import Path

from support.visual_traces import FakeBackend, synthetic_recorded
from visual.page.app_state import AppState
from visual.page.layout import build_page
from visual.page.serving import serve

if __name__ == "__main__":
    port, folder = sys.argv[1:]
    state = AppState(lambda: FakeBackend(pace=0.012), synthetic_recorded(Path(folder), 2))
    serve(build_page(state), "127.0.0.1", int(port))
