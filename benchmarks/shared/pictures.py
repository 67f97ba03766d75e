"""Browsers, and figures as SVG files drawn by them."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import plotly.graph_objects as go
from playwright.sync_api import ViewportSize, sync_playwright

from specllava.files import write_whole

TO_SVG = "Plotly.toImage(document.querySelector('.js-plotly-plot'), {format: 'svg', width: null, height: null})"
RANDOM = re.compile(r'id="defs-([0-9a-f]{6})"')  # of a drawing: part of every id
RANDOM_CLASS = re.compile(r"(?<= )trace[0-9a-f]{6}")


def chromium_path() -> str | None:
    """Return where the machine has Chromium. Its headless shell has no windows and costs an eighth less."""
    names = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


@contextmanager
def chromium() -> Iterator[Any]:
    """Open the browser that the machine has."""
    flags = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-background-networking"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=flags)
        yield browser
        browser.close()


def write_svg(figure: go.Figure, file: Path) -> None:
    """Draw a figure that has a width and a height; equal figures have equal ids."""
    size = ViewportSize(width=int(figure.layout.width), height=int(figure.layout.height))
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        page_file = Path(folder) / "picture.html"
        figure.write_html(page_file, include_plotlyjs=True, config={"staticPlot": True})
        page = browser.new_page(viewport=size)
        page.goto(page_file.as_uri())
        page.wait_for_selector(".main-svg")
        text = unquote(page.evaluate(TO_SVG).partition(",")[2])
    for random in set(RANDOM.findall(text)):
        text = text.replace(random, "figure")
    write_whole(file, RANDOM_CLASS.sub("", text) + "\n")
