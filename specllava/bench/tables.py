"""The tables of a benchmark, for the terminal and as markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.box import SIMPLE
from rich.table import Table

from specllava.bench.measured import Measured
from specllava.bench.results import LaneResult

Row = dict[str, Any]
SPEED_HEADS: Final = ("lane", "τ", "ms/token", "speed-up", "95 %", "differ", "ties")
TIME_HEADS: Final = (
    "lane", "vision\nms", "prefill\nms", "wall\nms/token", "wall\nspeed-up", "effi-\nciency"
)  # fmt: skip


def table_rows(
    results: Mapping[str, LaneResult], categories: Mapping[str, Mapping[str, LaneResult]]
) -> list[tuple[Sequence[str], list[tuple[str, ...]]]]:
    """Return heads and rows of each table: speed, times, and speed-ups by category if there are several."""
    rows = {name: lane.as_json() for name, lane in results.items()}
    tables: list[tuple[Sequence[str], list[tuple[str, ...]]]] = [
        (SPEED_HEADS, [_speed_row(name, row) for name, row in rows.items()]),
        (TIME_HEADS, [_time_row(name, row) for name, row in rows.items()]),
    ]
    if len(categories) > 1:
        speedups = {name: [own[name].as_json()["speedup"] for own in categories.values()] for name in results}
        tables.append((("speed-up", *categories), [(name, *map(_figure, own)) for name, own in speedups.items()]))
    return tables


def tables_of(
    title: str, results: Mapping[str, LaneResult], categories: Mapping[str, Mapping[str, LaneResult]]
) -> list[Table]:
    """Return the tables for a terminal, the first with a title."""
    tables: list[Table] = []
    for heads, rows in table_rows(results, categories):
        table = Table(box=SIMPLE, padding=0, title=None if tables else title)
        for head in heads:
            table.add_column(head, no_wrap=True)  # a heading that is cut off cannot be read
        for row in rows:
            table.add_row(*row)
        tables.append(table)
    return tables


def _speed_row(name: str, row: Row) -> tuple[str, ...]:
    figures = (_figure(row["tau"]), _figure(row["ms_per_token"]), _figure(row["speedup"]))
    return (name, *figures, _interval(row["interval"]), str(row["mismatches"]), str(row["ties"]))


def _time_row(name: str, row: Row) -> tuple[str, ...]:
    times = (_figure(row["ms_vision"], 1), _figure(row["ms_prefill"], 1), _figure(row["ms_per_token_wall"]))
    return (name, *times, _figure(row["speedup_end_to_end"]), _figure(row["efficiency"]))


def notes_of(measured: Measured, fastest: str) -> list[str]:
    """Return notes to the tables, one line each."""
    warm, machine = measured.warm_up, measured.machine
    lines = [f"speed-ups are over {fastest}, the fastest lane of the target alone", f"order seed {measured.seed}"]
    if warm.rounds:
        ended = "agreed" if warm.agreed else "did not agree, the machine is busy or its clock changes:"
        change = "" if warm.change is None else f" {100 * warm.change:.1f} % apart"
        lines.append(f"warm-up: {warm.rounds} rounds {ended}{change} (within {100 * warm.within:g} %)")
    lines.append(str(machine.get("gpu") or machine.get("cpu")))
    return lines


def _figure(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _interval(ends: Sequence[float] | None) -> str:
    return "–" if ends is None else f"{ends[0]:.2f}–{ends[1]:.2f}"
