"""The picture of the page that the README shows, and the one that other sites show where the page is linked.

    python app.py --port 7861 &
    python -m benchmarks.screenshot --address "http://127.0.0.1:7861/?view=explain"
    python -m benchmarks.screenshot --address http://127.0.0.1:7861/ --beat 6 --output opening.png
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.shared.command import run_command
from benchmarks.shared.pictures import chromium

PATIENCE = 60_000  # milliseconds


def main(address: str, output: Path = Path("docs/screenshots/light.png"), beat: int = 0) -> None:
    """Take the picture.

    Args:
        address: of a page that is served.
        output: PNG file to write.
        beat: of the opening, from 1, as 1200 x 630 pixels; 0: another view, as 1280 x 720.
    """
    size = {"width": 1280, "height": 672 if beat else 720}
    with chromium() as browser:
        page = browser.new_page(
            viewport=size, device_scale_factor=1200 / 1280 if beat else 1, reduced_motion="reduce"
        )
        page.goto(address)
        page.wait_for_selector(".tree .main-svg", timeout=PATIENCE)
        page.wait_for_function("document.querySelector('.chip').textContent.includes('·')", timeout=PATIENCE)
        for _ in range(beat - 1):
            page.click("[data-opening=next]")
        page.wait_for_timeout(2300)
        page.screenshot(path=output)


if __name__ == "__main__":
    run_command(main)
