"""Tables and a picture of a benchmark, made anew from the steps that ``bench --raw`` wrote.

    python -m specllava bench --prompts 100 --raw bench-steps.json
    python -m benchmarks.bench_table --raw bench-steps.json --json bench.json --picture bench.svg
"""

from __future__ import annotations

from pathlib import Path

import plotly.graph_objects as go

from benchmarks.shared.command import markdown, run_command, show
from benchmarks.shared.pictures import write_svg
from specllava.bench.measured import Measured
from specllava.bench.results import category_results, fastest_alone, report_of, results_of
from specllava.bench.tables import notes_of, table_rows
from specllava.cli.options import write_json
from visual.figures.theme import RULE_MARKERS

WIDTH, ROW_HEIGHT, MARGIN = 980, 34, 130
OTHER_COLOUR = "#8b9096"  # of lanes that no rule grows


def figure(measured: Measured) -> go.Figure:
    """Draw every lane's speed-up with its 95 % interval, in the order of speed."""
    rows = {name: lane.speedup for name, lane in results_of(measured).items()}
    known = {name: ratio for name, ratio in rows.items() if ratio.value == ratio.value}
    names = sorted(known, key=lambda name: known[name].value)
    ratios = [known[name] for name in names]
    colours = [RULE_MARKERS[name]["color"] if name in RULE_MARKERS else OTHER_COLOUR for name in names]
    ends = [(ratio.high - ratio.value, ratio.value - ratio.low) for ratio in ratios]
    drawn = go.Figure(
        go.Scatter(
            x=[ratio.value for ratio in ratios],
            y=names,
            mode="markers",
            marker={"size": 10, "color": colours},
            error_x={"array": [above for above, _ in ends], "arrayminus": [below for _, below in ends]},
        )
    )
    setting, reference = measured.setting, fastest_alone(measured)
    title = f"{setting.pair} pair, {setting.device}, {setting.dtype}: speed-up over {reference}, 95 % intervals"
    drawn.add_vline(x=1.0, line={"color": OTHER_COLOUR, "dash": "dot"})
    drawn.update_layout(
        template="plotly_white",
        title={"text": title, "font": {"size": 15}},
        xaxis_title="times as many tokens per second, prompts apart",
        yaxis={"automargin": True},
        width=WIDTH,
        height=MARGIN + ROW_HEIGHT * len(names),
        margin={"l": 60, "r": 20, "t": 60, "b": 50},
    )
    return drawn


def main(raw: Path, json: Path | None = None, picture: Path | None = None) -> None:
    """Print the tables as markdown.

    Args:
        raw: file of bench --raw.
        json: write the report of bench --json to this file.
        picture: write an SVG with every lane's speed-up and interval to this file.
    """
    measured = Measured.read(raw)
    results, categories = results_of(measured), category_results(measured)
    tables = [
        markdown([head.replace("-\n", "").replace("\n", " ") for head in heads], rows)
        for heads, rows in table_rows(results, categories)
    ]
    show("\n\n".join([*tables, *notes_of(measured, fastest_alone(measured))]))
    write_json(json, report_of(measured, results, categories))
    if picture:
        write_svg(figure(measured), picture)


if __name__ == "__main__":
    run_command(main)
