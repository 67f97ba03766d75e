"""The picture that other sites show beside a link to the page: the opening step's tree under the page's name and claim.

    python app.py --port 7861 &  python -m benchmarks.preview --address http://127.0.0.1:7861/
"""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import tyro
from PIL import Image
from playwright.sync_api import ViewportSize, sync_playwright

from visual.page.middleware import PICTURE, PICTURE_SIZE
from visual.player.static_files import STATIC

COLOURS = 128  # enough for flat colours; the file stays small
ZOOM = 1.25
# Only the name, the claim, the sentence and the tree with its legend stay. Ids of nobody win against Gradio's own.
STYLE = """
:is(#a#b#c, html), body { overflow: hidden !important; }
:is(#a#b#c, html) :is(#links, .learn-card, #running, #ask, .verdict, .race, #lab, #foot, .charts, .glossary, .lesson,
  .versus, .pays, .phases, .timeline, .controls, .key, .this-run, .node, .inside, .kv-cache, details, .step-name,
  .with-pruned, .step button, #show .card:not(.step)) { display: none !important; }
:is(#a#b#c, html) :is(main.fillable, .app) { max-width: none !important; padding: 16px 26px !important; }
:is(#a#b#c, html) #masthead { padding: 0 !important; margin: 0 0 14px !important; }
:is(#a#b#c, html) #title h1 { display: block; font-size: 44px; line-height: 1.15; }
:is(#a#b#c, html) #title p { display: block; font-size: 18.5px; }
:is(#a#b#c, html) .step.card { border: 0 !important; background: transparent !important; padding: 0 !important; }
:is(#a#b#c, html) .sentence { font-size: 17.5px; line-height: 1.4; min-height: 0; }
"""


def main(address: str, output: Path = STATIC / PICTURE) -> None:
    """Take the picture from a page that is being served."""
    width, height = PICTURE_SIZE
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=flags)
        size = ViewportSize(width=round(width / ZOOM), height=round(height / ZOOM))
        page = browser.new_page(viewport=size, device_scale_factor=ZOOM, color_scheme="light")
        page.goto(address)
        page.wait_for_selector(".tree .main-svg", timeout=60_000)
        page.add_style_tag(content=STYLE)
        page.evaluate("window.dispatchEvent(new Event('resize'))")
        page.wait_for_timeout(1500)
        taken = Image.open(io.BytesIO(page.screenshot()))
        browser.close()
    taken.convert("RGB").quantize(COLOURS).save(output, optimize=True)


if __name__ == "__main__":
    tyro.cli(main)
