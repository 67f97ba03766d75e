"""Figures as PNG files, drawn by the browser that the machine already has."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import plotly.graph_objects as go
from playwright.sync_api import ViewportSize, sync_playwright


def write_png(figure: go.Figure, file: Path) -> None:
    """Draw a figure that has a width and a height, at two pixels for each of its own."""
    size = ViewportSize(width=int(figure.layout.width), height=int(figure.layout.height))
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_file = Path(folder) / "picture.html"
        figure.write_html(page_file, include_plotlyjs=True, config={"staticPlot": True})
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport=size, device_scale_factor=2)
        page.goto(page_file.as_uri())
        page.wait_for_selector(".main-svg")
        page.locator(".js-plotly-plot").screenshot(path=file)
        browser.close()
