"""The tables of a benchmark, for the terminal and as markdown. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from rich.box import SIMPLE
from rich.table import Table

from specllava.bench.measured import Measured
from specllava.bench.results import LaneResult

Row = dict[str, Any]
SPEED_HEADS: Final = ("lane", "τ", "ms/token", "speed-up", "95 %", "differ", "ties")
TIME_HEADS: Final = (
    "lane", "vision\nms", "prefill\nms", "wall\nms/token", "wall\nspeed-up", "effi-\nciency", "over-\nhead"
)  # fmt: skip


def speed_row(name: str, row: Row) -> tuple[str, ...]:
    """Return the cells of :data:`SPEED_HEADS`."""
    figures = (_figure(row["tau"]), _figure(row["ms_per_token"]), _figure(row["speedup"]))
    return (name, *figures, _interval(row["interval"]), str(row["mismatches"]), str(row["ties"]))


def time_row(name: str, row: Row) -> tuple[str, ...]:
    """Return the cells of :data:`TIME_HEADS`."""
    times = (_figure(row["ms_vision"], 1), _figure(row["ms_prefill"], 1), _figure(row["ms_per_token_wall"]))
    return (name, *times, _figure(row["speedup_end_to_end"]), _figure(row["efficiency"]), _percent(row["overhead"]))


def tables_of(
    title: str, results: Mapping[str, LaneResult], categories: Mapping[str, Mapping[str, LaneResult]]
) -> list[Table]:
    """Return the tables of a benchmark for a terminal: speed, times, and speed-ups by category if there are several."""
    rows = {name: lane.as_json() for name, lane in results.items()}
    tables = [
        _table(SPEED_HEADS, (speed_row(name, row) for name, row in rows.items()), title),
        _table(TIME_HEADS, (time_row(name, row) for name, row in rows.items())),
    ]
    if len(categories) > 1:
        lines = (category_row(name, categories) for name in results)
        tables.append(_table(("speed-up", *categories), lines))
    return tables


def category_row(name: str, categories: Mapping[str, Mapping[str, LaneResult]]) -> tuple[str, ...]:
    """Return a lane's speed-up in every category."""
    return (name, *(_figure(own[name].as_json()["speedup"]) for own in categories.values()))


def notes_of(measured: Measured, fastest: str) -> list[str]:
    """Return what a reader must know beside the tables, a line each."""
    warm, machine = measured.warm_up, measured.machine
    lines = [f"speed-ups are over {fastest}, the fastest lane of the target alone", f"order seed {measured.seed}"]
    if warm.rounds:
        ended = "agreed" if warm.agreed else "did not agree, the machine is busy or its clock changes:"
        change = "" if warm.change is None else f" {100 * warm.change:.1f} % apart"
        lines.append(f"warm-up: {warm.rounds} rounds {ended}{change} (within {100 * warm.within:g} %)")
    rate = machine.get("copy_gb_per_second")
    load = [(machine.get(when) or {}).get("load") for when in ("before", "after")]
    told = " and ".join("?" if each is None else f"{each[0]:.1f}" for each in load)
    copied = "" if rate is None else f", copies {rate:.0f} GB/s"
    lines.append(f"{machine.get('gpu') or machine.get('cpu')}{copied}, load {told} before and after")
    lines += [f"{name} failed: {why}" for name, why in (measured.failures or {}).items()]
    return lines


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None) -> Table:
    table = Table(box=SIMPLE, padding=0, title=title)
    for head in heads:
        table.add_column(head, no_wrap=True)  # a heading that is cut off cannot be read
    for row in rows:
        table.add_row(*row)
    return table


def _figure(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _interval(ends: Sequence[float] | None) -> str:
    return "–" if ends is None else f"{ends[0]:.2f}–{ends[1]:.2f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"
