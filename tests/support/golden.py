"""What is drawn and said of the shipped races, as a digest for each file and part.

``python -m tests.support.golden`` writes ``tests/golden/shipped.json``; ``tests/test_golden.py`` compares with it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from visual.figures.step_layout import StepLayout
from visual.figures.tree_figure import rows_with_pruned, tree_drawing
from visual.player.explanations import step_sentence
from visual.player.headline import RunningHeadline, headline, headline_of_one
from visual.player.node_cards import node_cards

from specllava.core.trace import SPECULATIVE, TARGET_ONLY, DecodeTrace, StepTrace
from visual.player.recorded import Recorded, read_recorded

ASSETS = Path(__file__).resolve().parents[2] / "assets"
DIGESTS = Path(__file__).resolve().parents[1] / "golden" / "shipped.json"
ROWS = (
    "label", "token", "parent", "verdict", "draft", "rank", "branch", "entropy", "target", "target_rank", "choice",
    "choice_prob",
)  # fmt: skip
PARTS = ("nodes", "figure", "sentences", "reasons", "headline")


def race_files() -> list[Path]:
    """The shipped examples and the races of the lessons."""
    found = [*ASSETS.glob("examples/*.json"), *ASSETS.glob("lessons/*.json")]
    return sorted(path for path in found if path.name != "lessons.json")


def digests(path: Path) -> dict[str, str]:
    """Return the digest of each part of a race file, all turns and steps in order."""
    parts: dict[str, list[Any]] = defaultdict(list)
    for turn in read_recorded(path).turns:
        for step in turn.lead.steps:
            for part, value in _of_step(turn.lead, step):
                parts[part].append(value)
        parts["headline"].append(_headlines(turn))
    return {part: sha256(json.dumps(parts[part], sort_keys=True).encode()).hexdigest()[:16] for part in PARTS}


def _of_step(trace: DecodeTrace, step: StepTrace) -> Iterator[tuple[str, Any]]:
    layout = StepLayout(trace, step)
    cards: dict[str, Any] = node_cards(layout)
    yield "nodes", [{name: cards[name] for name in ROWS}, step.verification.accepted, step.emitted]
    drawing = tree_drawing(layout)
    points = [[one["name"], one["x"], one["y"], one.get("customdata"), one.get("text")] for one in drawing["data"]]
    edges = [[shape["name"], shape["path"], shape["line"]] for shape in drawing["layout"]["shapes"]]
    switched: dict[str, Any] = rows_with_pruned(layout)
    yield "figure", [points, edges, drawing["layout"]["meta"]["edges"], switched["y"], switched["edges"]]
    yield "sentences", step_sentence(trace, step)
    yield "reasons", [cards["reasons"][number] for number in cards["reason"]]


def _headlines(race: Recorded) -> list[dict[str, str]]:
    """The headline after each step of the lane that is drawn, and the last one."""
    alone, together = race.target_only, race.speculative
    running, clock, shown = RunningHeadline(), race.lead.prefill.total, []
    for step in race.lead.steps:
        clock += step.seconds.total
        if alone and together:
            shown.append(running.at_race(alone, together, clock))
        else:
            shown.append(running.at_one(race.lead, TARGET_ONLY if alone else SPECULATIVE, clock))
    if alone and together:
        return [*shown, headline(alone, together, finished=True)]
    return [*shown, headline_of_one(race.lead, TARGET_ONLY if alone else SPECULATIVE)]


if __name__ == "__main__":
    rows = (f"{json.dumps(str(path.relative_to(ASSETS)))}: {json.dumps(digests(path))}" for path in race_files())
    DIGESTS.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
