"""The report of a benchmark, which ``bench --json`` writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from specllava.bench.measured import Measured
from specllava.bench.results import LaneResult, categories_of, fastest_alone, results_of

TOKEN_FIELDS: Final = ("runs", "tokens", "mismatches", "ties", "margins")  # of a report about tokens alone


def category_results(measured: Measured) -> dict[str, dict[str, LaneResult]]:
    """Return the results of every category."""
    return {category: results_of(measured, category) for category in categories_of(measured)}


def report_of(
    measured: Measured,
    results: Mapping[str, LaneResult],
    categories: Mapping[str, Mapping[str, LaneResult]],
    tokens_alone: bool = False,
) -> dict[str, Any]:
    """Return the report.

    Args:
        tokens_alone: leave out times.
    """

    def rows(lanes: Mapping[str, LaneResult]) -> dict[str, Any]:
        found = {name: lane.as_json() for name, lane in lanes.items()}
        if tokens_alone:
            return {name: {key: row[key] for key in TOKEN_FIELDS} for name, row in found.items()}
        return found

    report: dict[str, Any] = {
        "lanes": rows(results),
        "categories": {name: rows(own) for name, own in categories.items()},
        "data": measured.data,
        "prompts": len(measured.prompts),
        "rounds": measured.rounds,
        "seed": measured.seed,
        "setting": asdict(measured.setting),
        "config": asdict(measured.config),
        "machine": measured.machine,
    }
    if not tokens_alone:
        report |= {"reference": fastest_alone(measured), "warm_up": asdict(measured.warm_up)}
    return report
