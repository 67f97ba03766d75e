"""What the tree shows is so: over the shipped races and synthetic ones. No model, no browser."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from support.shipped_races import shipped_traces
from support.visual_traces import pruned_after_root, synthetic_race

from specllava.core.trace import DecodeTrace, StepTrace
from visual.figures import theme
from visual.figures.step_layout import StepLayout
from visual.figures.tree_figure import rows_with_pruned, tree_drawing
from visual.player.explanations import node_reasons
from visual.player.frames import picture
from visual.player.node_cards import node_cards
from visual.player.static_files import STATIC


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
            if entropy is None or layout.ended[node]:
                continue
            if entropy > trace.config.entropy_threshold and guesses[node] > 1:
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
            shown = {*range(1, len(layout.parents))} - layout.hidden
            assert sorted(n for nodes in edges for n in nodes) == sorted(shown)
        assert len(plain["shapes"]) <= 8, "one path for each style, however many guesses"


def points(trace: DecodeTrace, step: StepTrace) -> dict[int, dict[str, Any]]:
    """Every drawn node, with the trace it is in, its fill and the colour of its ring."""
    found = {}
    for drawn in tree_drawing(StepLayout(trace, step))["data"]:
        fills = drawn["marker"].get("color")
        for place, node in enumerate(drawn.get("customdata", ())):
            fill = fills if isinstance(fills, str) else fills[place]
            found[node] = {"name": drawn["name"], "fill": fill, "ring": drawn["marker"]["line"]["color"]}
    return found


def test_d5_nothing_is_drawn_behind_the_end_of_an_answer() -> None:
    """A green "scene" stood behind the end token, which was the yellowest node: 3.61 nats about nothing."""
    ends = 0
    for trace, step in all_steps():
        drawn, layout, cards = points(trace, step), StepLayout(trace, step), node_cards(StepLayout(trace, step))
        assert (layout.next_node in drawn) == (len(step.emitted) > len(step.verification.accepted))
        for node, token in enumerate(step.tree.tokens):
            if token not in trace.eos_token_ids:
                continue
            ends += 1
            assert drawn[node]["fill"] == theme.UNKNOWN
            assert "Pruned after it" not in node_reasons(trace, step)[node]
            assert not any(layout.parents[n] == node for n in drawn if n >= layout.next_node)
            columns: Any = cards
            assert {columns[name][node] for name in ("entropy", "choices", "choice", "choice_prob")} == {None}
            hidden = [n for n in layout.pruned if layout.parents[n] == node]
            assert all(columns["verdict"][n] == "-" for n in hidden)
        said = {node for node, point in drawn.items() if point["name"] in ("root", "accepted", "next")}
        assert len(said) == 1 + len(step.emitted)
    assert ends > 5


def test_d5_what_was_accepted_behind_the_end_is_no_part_of_the_answer() -> None:
    """The draft may go on behind an end token, and the target with it."""
    for seed in range(6):
        trace = synthetic_race(seed)["speculative"]
        for plain in trace.steps:
            for kept in range(1, len(plain.emitted)):
                step = replace(plain, emitted=plain.emitted[:kept])
                drawn = points(trace, step)
                assert [n for n, point in drawn.items() if point["name"] == "accepted"] == [*step.emitted_nodes]
                behind = plain.verification.accepted[kept:]
                assert {drawn[node]["name"] for node in behind} <= {"unreached"}
                assert all("had ended" in node_reasons(trace, step)[node] for node in behind)
                drawing = picture(trace, step)
                assert drawing["focus"] in drawn


def test_d6_the_targets_own_tokens_have_one_colour() -> None:
    """The root was blue in the tree and green in the words above it, though it was the bonus token just before."""
    for trace, step in all_steps():
        drawn, layout = points(trace, step), StepLayout(trace, step)
        assert drawn[0]["name"] == "root" and drawn[0]["ring"] == theme.TARGET
        if not step.bonus_unused:
            assert drawn[layout.next_node]["fill"] == theme.TARGET
        blue = {node for node, point in drawn.items() if point["ring"] == theme.ACCEPTED}
        assert blue == {*step.emitted_nodes}
    style, template = ((STATIC / name).read_text() for name in ("page.css", "player.html"))
    assert re.search(r"\.mark-root \{[^}]*var\(--target\)", style)
    assert re.search(r'data-verdict="root"\] \{ color: var\(--target-ink\)', style)
    assert ".traceroot" in template


def test_d7_a_nodes_card_tells_what_the_draft_weighed_before_it() -> None:
    """ "Unsure here (1.55 nats)" stood beside an entropy of 0.01: here was the parent."""
    for trace, step in all_steps():
        layout = StepLayout(trace, step)
        cards: Any = node_cards(layout)
        for node in range(1, len(layout.parents)):
            if node in layout.hidden or node == layout.next_node:
                continue
            siblings = [n for n in range(1, len(layout.parents)) if layout.parents[n] == layout.parents[node]]
            siblings = [n for n in siblings if n != layout.next_node and n not in layout.hidden]
            told = cards["families"][cards["family"][node]]
            assert told.count(" · ") == min(len(siblings), 7) - 1
            assert f"{cards['draft'][node]:.2f}" in told or len(siblings) > 6
        for reason in node_reasons(trace, step):
            assert "sure here" not in reason


def test_d8_a_probability_is_rounded_once() -> None:
    """ "list (0.88)" in the sentence was 0.89 in the card: 0.885 had been rounded twice."""
    odd = math.log(0.8849)
    for trace, step in all_steps():
        tree = replace(step.tree, log_probs=(0.0, *[odd] * step.tree.drafted))
        layout = StepLayout(trace, replace(step, tree=tree))
        cards: Any = node_cards(layout)
        assert {cards["draft"][node] for node in range(1, layout.next_node)} <= {0.88}
        for name in ("draft", "branch", "target", "choice_prob", "entropy"):
            values = [value for value in cards[name] if value is not None]
            assert all(value == float(f"{value:.2f}") for value in values)


def test_d33_a_token_that_goes_on_with_a_word_is_marked() -> None:
    """Pieces such as "d a mp" read like mistakes."""
    pieces = 0
    for trace, step in all_steps():
        layout = StepLayout(trace, step)
        for node, label in enumerate(layout.labels):
            parent = layout.parents[node]
            if node == 0 or not label or label.startswith("+"):
                continue
            before, text = trace.texts[layout.tokens[parent]], trace.texts[layout.tokens[node]]
            joined = before[-1:].isalnum() and text[:1].isalnum()
            pieces += joined
            assert label.startswith("-") == (joined or text.strip().startswith("-"))
            assert len(label) <= 10
    assert pieces > 20
