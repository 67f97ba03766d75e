"""Pictures of the page for the README: light, dark and phone width, of the recorded run that a visitor sees first.

    python app.py --port 7861 &  python -m benchmarks.screenshots --address http://127.0.0.1:7861/
"""

from __future__ import annotations

import shutil
from pathlib import Path

import tyro
from playwright.sync_api import sync_playwright

VIEWS = {"light": (1330, 900, ""), "dark": (1330, 900, "?__theme=dark"), "phone": (375, 800, "")}


def main(address: str, output: Path = Path("docs/screenshots")) -> None:
    """Take the pictures.

    Args:
        address: where the page is served.
        output: directory for the PNG files.
    """
    output.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=flags)
        for name, (width, height, query) in VIEWS.items():
            page = browser.new_page(viewport={"width": width, "height": height})
            page.goto(address + query)
            page.wait_for_selector(".tree .main-svg", timeout=60_000)
            page.wait_for_function("document.querySelector('.chip').textContent.includes('·')", timeout=60_000)
            page.wait_for_timeout(1500)
            page.screenshot(path=output / f"{name}.png", full_page=True)
            page.close()
        browser.close()


if __name__ == "__main__":
    tyro.cli(main)
