"""Pictures of the page: the README's, and what stands in the page's place until its scripts run.

    python app.py --port 7861 &
    python -m benchmarks.screenshot --address http://127.0.0.1:7861/?beat=3
    python -m benchmarks.screenshot --address http://127.0.0.1:7861/ --poster
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Literal

from PIL import Image

from benchmarks.shared.command import run_command
from benchmarks.shared.pictures import chromium

PATIENCE = 60_000  # milliseconds
SIZE = {"width": 1280, "height": 720}
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
STATIC = Path(__file__).resolve().parents[1] / "visual" / "static"


def main(address: str, output: Path = Path("docs/screenshots/light.png"), poster: bool = False) -> None:
    """Take the picture.

    Args:
        address: of a page that is served.
        output: PNG file to write.
        poster: write the first screen, light and dark, for the page itself instead.
    """
    with chromium() as browser:
        for scheme in SCHEMES if poster else SCHEMES[:1]:
            page = browser.new_page(viewport=SIZE, reduced_motion="reduce", color_scheme=scheme)
            page.goto(address)
            page.wait_for_selector(".stage.alive .plot .main-svg", timeout=PATIENCE)
            loaded = "!document.querySelector('.running').textContent.includes('loading')"
            page.wait_for_function(loaded, timeout=PATIENCE)
            page.wait_for_timeout(2300)
            taken = Image.open(io.BytesIO(page.screenshot()))
            if poster:
                taken.save(STATIC / f"poster-{scheme}.webp", quality=60)
            else:
                taken.save(output)


if __name__ == "__main__":
    run_command(main)
