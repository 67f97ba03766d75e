"""Figures as SVG files for the documentation, with ids that are the same whenever the figure is."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

import plotly.graph_objects as go

from benchmarks.png import drawn
from specllava.core.files import write_whole

TO_SVG = "Plotly.toImage(document.querySelector('.js-plotly-plot'), {format: 'svg', width: null, height: null})"
RANDOM = re.compile(r'id="defs-([0-9a-f]{6})"')  # of a drawing: part of every id
RANDOM_CLASS = re.compile(r"(?<= )trace[0-9a-f]{6}")


def write_svg(figure: go.Figure, file: Path) -> None:
    """Draw a figure that has a width and a height."""
    with drawn(figure) as page:
        text = unquote(page.evaluate(TO_SVG).partition(",")[2])
    for random in set(RANDOM.findall(text)):
        text = text.replace(random, "figure")
    write_whole(file, RANDOM_CLASS.sub("", text) + "\n")
