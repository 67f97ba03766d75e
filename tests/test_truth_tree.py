"""What the tree shows is so: over the shipped races and synthetic ones. No model, no browser."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from support.shipped_races import shipped_traces
from support.visual_traces import pruned_after_root, synthetic_race

from specllava.trace import DecodeTrace, StepTrace
from visual.figures.step_layout import StepLayout
from visual.figures.tree_figure import rows_with_pruned, tree_drawing


def all_steps() -> Iterator[tuple[DecodeTrace, StepTrace]]:
    for trace in shipped_traces():
        for step in trace.steps:
            yield trace, step
    for seed in range(6):
        trace = synthetic_race(seed)["speculative"]
        for step in trace.steps:
            yield trace, pruned_after_root(step)


def starts(path: str) -> list[tuple[float, float]]:
    """Where the pieces of a path begin."""
    return [(float(x), float(y)) for x, y in re.findall(r"M(-?[\d.]+),(-?[\d.]+)", path)]


def test_d1_every_unsure_node_is_seen_to_branch() -> None:
    """Of 102 unsure nodes in the examples 79 % had one child on the screen or none, and the legend said "branches"."""
    unsure = 0
    for trace, step in all_steps():
        layout = StepLayout(trace, step)
        drawing = tree_drawing(layout)
        leaving = Counter(start for shape in drawing["layout"]["shapes"] for start in starts(shape["path"]))
        guesses = Counter((*step.tree.parents, *(guess.parent for guess in step.pruned)))
        for node, entropy in enumerate(step.tree.entropies):
            if entropy is not None and entropy > trace.config.entropy_threshold and guesses[node] > 1:
                unsure += 1
                assert leaving[layout.columns[layout.depths[node]], layout.heights[node]] > 1
    assert unsure > 500


def test_d1_each_piece_of_an_edge_has_its_node() -> None:
    """Whoever moves a piece knows which guess it is of, with the pruned ones drawn in full or as stubs."""
    for trace, step in all_steps():
        layout = StepLayout(trace, step)
        plain, full = tree_drawing(layout)["layout"], rows_with_pruned(layout)
        whole: Any = {"shapes": full["shapes"], "edges": full["edges"], "heights": layout.heights_with_pruned}
        for shapes, edges, heights in (
            (plain["shapes"], plain["meta"]["edges"], layout.heights),
            (whole["shapes"], whole["edges"], whole["heights"]),
        ):
            assert len(shapes) == len(edges)
            for shape, nodes in zip(shapes, edges, strict=True):
                at = [(layout.columns[layout.depths[p]], heights[p]) for p in (layout.parents[n] for n in nodes)]
                assert starts(shape["path"]) == at
            assert {n for nodes in edges for n in nodes} >= {*range(1, len(step.tree)), *layout.pruned}
        assert len(plain["shapes"]) <= 8, "one path for each style, however many guesses"
