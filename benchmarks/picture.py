"""One picture of the measured settings, tokens per target pass against speed-up: a longer tree is not yet a faster one.

    python -m benchmarks.picture --results benchmarks/results/defaults.json --output docs/rules.png
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import cycle
from pathlib import Path

import plotly.graph_objects as go

from benchmarks.shared.command import run_command
from benchmarks.shared.pictures import write_png
from specllava.core.growth.rules import RULE_INFOS

WIDTH, HEIGHT = 980, 520
TARGET_ONLY = "target-only"
OTHER_COLOUR = "#000000"  # of lanes that no rule grows: prompt-lookup, other programs
OTHER_SYMBOLS = ("cross", "hexagon", "star-square", "hourglass", "bowtie")


def markers(lanes: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return colour and symbol for the first word of every lane's name but the target's own, rules first."""
    groups = dict.fromkeys(name.split()[0] for name in lanes if name != TARGET_ONLY)
    rules = {name: (info.colour, info.symbol) for name, info in RULE_INFOS.items() if name in groups}
    others = [name for name in groups if name not in RULE_INFOS]
    return rules | {name: (OTHER_COLOUR, symbol) for name, symbol in zip(others, cycle(OTHER_SYMBOLS), strict=False)}


def figure(lanes: dict[str, dict[str, float]], title: str) -> go.Figure:
    """Draw a point per lane; the first word of a lane's name is its rule. The legend has the fastest lane of each."""
    drawn = go.Figure()
    for rule, (colour, symbol) in markers(lanes).items():
        points = sorted((row["speedup"], row["tau"], name) for name, row in lanes.items() if name.split()[0] == rule)
        speedup, tau, best = points[-1]
        told = f"{best.removeprefix(rule).strip()}: " if best != rule else ""
        drawn.add_scatter(
            x=[tau for _, tau, _ in points],
            y=[speedup for speedup, _, _ in points],
            mode="markers",
            marker={"color": colour, "symbol": symbol, "size": 11, "line": {"width": 1, "color": "white"}},
            name=f"<b>{rule}</b><br>{told}{speedup:.2f}×, τ {tau:.2f}",
        )
    drawn.add_hline(y=1.0, line={"color": "#8b9096", "dash": "dot"}, annotation_text="target-only")
    drawn.update_layout(
        template="plotly_white",
        title={"text": title, "font": {"size": 15}},
        xaxis_title="τ, tokens per target pass",
        yaxis_title="speed-up over target-only",
        width=WIDTH,
        height=HEIGHT,
        margin={"l": 60, "r": 20, "t": 60, "b": 50},
        legend={"title": {"text": "rule, and its fastest setting"}, "tracegroupgap": 6},
    )
    return drawn


def main(results: Path, output: Path) -> None:
    """Draw a results file of ``benchmarks.defaults`` or ``bench --json``.

    Args:
        results: JSON with ``lanes``.
        output: PNG file to write.
    """
    data = json.loads(results.read_text(encoding="utf-8"))
    setting = data["setting"]
    title = f"{setting['pair']} pair, {setting['device']}, {setting['dtype']}, {setting['threads']} threads"
    write_png(figure(data["lanes"], title), output)


if __name__ == "__main__":
    run_command(main)
