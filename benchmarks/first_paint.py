"""The page's first paint, recorded: what a visitor sees before a script has run is what the live player showed here.

    python -m benchmarks.first_paint

To be run again when ``tests/test_first_paint.py`` says that the live page shows something else.
"""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path
from typing import Any, NoReturn

import app
from benchmarks.shared.command import free_port, run_command
from benchmarks.shared.pictures import chromium
from visual.page.app_state import AppState
from visual.page.first_paint import race_digest
from visual.page.layout import build_page
from visual.page.serving import serve
from visual.player.lessons import load_lessons
from visual.player.recorded import load_recorded

SCRIPT = Path(__file__).with_suffix(".js")
SIZE = {"width": 1280, "height": 1300}
PATIENCE = 60_000  # milliseconds


def shipped_state() -> AppState:
    """The page as it ships, on a machine whose models never load."""
    races, lessons = load_recorded(app.EXAMPLES), load_lessons(app.LESSONS)
    return AppState(_no_models, races, lessons=lessons, lab=_no_models)


def _no_models() -> NoReturn:
    raise RuntimeError("this page shows recorded races only")


def record(browser: Any, address: str) -> str:
    """The columns of the page at ``address`` as plain markup, once its player has drawn its first step."""
    page = browser.new_page(viewport=SIZE)
    page.goto(f"{address}?view=explain")  # the whole tree; the opening shows parts of it
    page.wait_for_selector(".tree .main-svg .textpoint", timeout=PATIENCE)
    page.wait_for_function("document.fonts.status === 'loaded'", timeout=PATIENCE)
    markup = str(page.evaluate(SCRIPT.read_text(encoding="utf-8")))
    page.close()
    return markup


def main(output: Path = app.FIRST_PAINT) -> None:
    """Record the first paint of the page as it ships.

    Args:
        output: HTML file to write.
    """
    logging.getLogger("specllava.page").setLevel(logging.CRITICAL)  # that no models load is meant
    state = shipped_state()
    assert state.first is not None
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        os.environ["GRADIO_TEMP_DIR"] = folder  # a page that closes takes pictures of another in the same folder along
        blocks = build_page(state)
        address = serve(blocks, "127.0.0.1", free_port(), block=False)
        markup = record(browser, address)
        blocks.close(verbose=False)
    output.write_text(f"<!-- race {race_digest(state.first)} -->\n{markup}", encoding="utf-8")
    print(f"{output}: {output.stat().st_size} bytes")


if __name__ == "__main__":
    run_command(main)
