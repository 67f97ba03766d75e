"""The animated picture of a step that the README opens with, made by the page's own button.

python -m benchmarks.step_picture
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import tyro
from playwright.sync_api import sync_playwright

from app import EXAMPLES
from visual.player.race_frames import race_frames
from visual.player.recorded import load_recorded
from visual.player.standalone import standalone_page

WINDOW = (1280, 800)


def main(output: Path = Path("docs/step.png"), example: str = "1-describe", step: int | None = None) -> None:
    """Draw the phases of one step.

    Args:
        output: the animated PNG.
        example: name of a recorded race.
        step: its number, from 1; the one that the page opens with by default.

    Raises:
        ValueError: there is no such example.
    """
    races = {race.name: race for race in load_recorded(EXAMPLES)}
    if example not in races:
        raise ValueError(f"there is no example {example}: choose one of {', '.join(races)}")
    frames = race_frames(races[example], example=example, show=None if step is None else step - 1)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_file = Path(folder) / "race.html"
        page_file.write_text(standalone_page(frames), encoding="utf-8")
        flags = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=flags)
        page = browser.new_page(viewport={"width": WINDOW[0], "height": WINDOW[1]}, color_scheme="light")
        page.goto(page_file.as_uri())
        page.wait_for_selector(".tree .main-svg")
        page.click(".files summary")
        with page.expect_download(timeout=120_000) as download:
            page.click("[data-file=film]")
        download.value.save_as(output)
        browser.close()


if __name__ == "__main__":
    tyro.cli(main)
