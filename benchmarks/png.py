"""Figures as PNG files, drawn by the browser that the machine already has."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import plotly.graph_objects as go
from playwright.sync_api import Page, ViewportSize, sync_playwright


def write_png(figure: go.Figure, file: Path) -> None:
    """Draw a figure that has a width and a height, at two pixels for each of its own."""
    with drawn(figure) as page:
        page.locator(".js-plotly-plot").screenshot(path=file)


@contextmanager
def drawn(figure: go.Figure) -> Iterator[Page]:
    """Open a browser's page that shows a figure which has a width and a height."""
    size = ViewportSize(width=int(figure.layout.width), height=int(figure.layout.height))
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_file = Path(folder) / "picture.html"
        figure.write_html(page_file, include_plotlyjs=True, config={"staticPlot": True})
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport=size, device_scale_factor=2)
        page.goto(page_file.as_uri())
        page.wait_for_selector(".main-svg")
        yield page
        browser.close()
