"""The picture of the page that the README shows.

    python app.py --port 7861 &
    python -m benchmarks.screenshot --address "http://127.0.0.1:7861/?view=explain"
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.shared.command import run_command
from benchmarks.shared.pictures import chromium

PATIENCE = 60_000  # milliseconds
SIZE = {"width": 1280, "height": 720}


def main(address: str, output: Path = Path("docs/screenshots/light.png")) -> None:
    """Take the picture.

    Args:
        address: of a page that is served.
        output: PNG file to write.
    """
    with chromium() as browser:
        page = browser.new_page(viewport=SIZE, reduced_motion="reduce")
        page.goto(address)
        page.wait_for_selector(".tree .main-svg", timeout=PATIENCE)
        page.wait_for_function("document.querySelector('.chip').textContent.includes('·')", timeout=PATIENCE)
        page.wait_for_timeout(2300)
        page.screenshot(path=output)


if __name__ == "__main__":
    run_command(main)
