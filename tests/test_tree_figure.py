"""What the tree shows is so: over the shipped races and synthetic ones. No model, no browser."""

from __future__ import annotations

import html
import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plotly.colors import sample_colorscale
from support.shipped_races import shown_steps
from support.visual_traces import SETTING, hand_made, pruned_after_root, retexted, synthetic_race

from specllava.config import DecodingConfig
from specllava.trace import DecodeTrace, StepTrace
from specllava.tree import DraftTree, Pruned
from visual.figures import theme
from visual.figures.layout import ordered_tree, tidy_heights
from visual.figures.step_layout import BETWEEN, CHARACTER, StepLayout
from visual.figures.tree_figure import MARKERS, rows_with_pruned, tree_drawing, tree_figure
from visual.player.explanations import node_reasons
from visual.player.frames import picture
from visual.player.node_cards import node_cards
from visual.player.static_files import STATIC


def all_steps() -> Iterator[tuple[DecodeTrace, StepTrace]]:
    """Every shown step; guesses are pruned after the root of the synthetic ones."""
    for trace, step in shown_steps():
        yield trace, pruned_after_root(step) if trace.setting == SETTING else step


def starts(path: str) -> list[tuple[float, float]]:
    """Where the pieces of a path begin."""
    return [(float(x), float(y)) for x, y in re.findall(r"M(-?[\d.]+),(-?[\d.]+)", path)]


def test_every_unsure_node_is_seen_to_branch() -> None:
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


def test_each_piece_of_an_edge_has_its_node() -> None:
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


def test_nothing_is_drawn_after_the_end_of_an_answer() -> None:
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


def test_what_was_accepted_after_the_end_is_no_part_of_the_answer() -> None:
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


def test_the_targets_own_tokens_have_one_colour() -> None:
    """The root was blue in the tree and green in the words above it, though it was the bonus token just before."""
    for trace, step in all_steps():
        drawn, layout = points(trace, step), StepLayout(trace, step)
        assert drawn[0]["name"] == "root" and drawn[0]["ring"] == theme.TARGET
        if not step.bonus_unused:
            assert drawn[layout.next_node]["fill"] == theme.TARGET
        blue = {node for node, point in drawn.items() if point["ring"] == theme.ACCEPTED}
        assert blue == {*step.emitted_nodes}
    style = (STATIC / "page.css").read_text()
    assert re.search(r"\.mark-root \{[^}]*var\(--target\)", style)
    assert re.search(r'data-verdict="root"\] \{ color: var\(--target-ink\)', style)


def test_a_nodes_card_lists_its_siblings_with_their_probabilities() -> None:
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


def test_a_probability_is_rounded_once() -> None:
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


def test_a_token_that_continues_a_word_is_marked() -> None:
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
            assert label.startswith("…") == (joined or text.strip().startswith("…"))
            assert len(label) <= 10
    assert pieces > 20


def speculative_steps(seeds: range = range(3)) -> Iterator[tuple[DecodeTrace, StepTrace]]:
    for seed in seeds:
        trace = synthetic_race(seed)["speculative"]
        for step in trace.steps:
            yield trace, step


@given(st.lists(st.floats(0, 1, exclude_max=True), max_size=60))
def test_edges_never_cross_and_nodes_keep_their_distance(choices: list[float]) -> None:
    parents = [-1, *(int(choice * (i + 1)) for i, choice in enumerate(choices))]
    children: list[list[int]] = [[] for _ in parents]
    depths = [0] * len(parents)
    for node in range(1, len(parents)):
        children[parents[node]].append(node)
        depths[node] = depths[parents[node]] + 1
    heights = tidy_heights(ordered_tree(children))
    for depth in range(1, max(depths) + 1):
        level = sorted((heights[n], heights[parents[n]]) for n in range(len(parents)) if depths[n] == depth)
        for (low, low_parent), (high, high_parent) in itertools.pairwise(level):
            assert high - low >= 1 - 1e-9, "two nodes of one depth touch"
            assert low_parent <= high_parent, "edges cross"
    for node, family in enumerate(children):
        assert not family or heights[family[0]] == heights[node], "the favourite child stands level with its parent"


def test_the_emitted_branch_is_a_straight_line() -> None:
    for trace, step in speculative_steps():
        layout = StepLayout(trace, step)
        spine = (*step.verification.path, layout.next_node)
        assert {layout.heights[node] for node in spine} == {0.0}
        assert [layout.depths[node] for node in spine] == list(range(len(spine)))


def test_the_figure_shows_every_node_once_with_its_verdict() -> None:
    for trace, step in speculative_steps():
        layout = StepLayout(trace, step)
        figure = tree_figure(trace, step)
        shown = {node: points.name for points in figure.data for node in points.customdata or ()}
        assert sorted(shown) == list(range(len(step.tree) + (not step.bonus_unused)))
        for node, name in shown.items():
            assert name == layout.verdicts[node]
        edges = {shape.name: shape for shape in figure.layout.shapes}
        if step.verification.accepted:
            assert edges["branch"].line.color == theme.ACCEPTED
        assert ("next-edge" in edges) == (not step.bonus_unused)


def test_every_node_has_an_edge_from_its_parent() -> None:
    for trace, step in speculative_steps():
        layout, figure = StepLayout(trace, step), tree_figure(trace, step)
        drawn = [shape for shape in figure.layout.shapes if shape.name != "pruned-stubs"]
        ends = sorted(end for shape in drawn for end in edge_ends(shape.path))
        place = [(layout.columns[depth], height) for depth, height in zip(layout.depths, layout.heights, strict=True)]
        assert ends == sorted((place[layout.parents[node]], place[node]) for node in range(1, layout.next_node + 1))


def edge_ends(path: str) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """Where the pieces of a path begin and end."""
    pieces = [re.findall(r"(-?[\d.]+),(-?[\d.]+)", piece) for piece in path.split("M")[1:]]
    return [tuple((float(x), float(y)) for x, y in (piece[0], piece[-1])) for piece in pieces]  # type: ignore[misc]


def test_looks_are_told_apart_without_colour() -> None:
    assert len({(look["symbol"], look["size"]) for look in MARKERS.values()}) == len(MARKERS)


def test_every_axis_begins_at_the_same_place_and_ends_behind_the_tree() -> None:
    trace = synthetic_race(2)["speculative"]
    figures = [tree_figure(trace, step) for step in trace.steps]
    assert len({figure.layout.xaxis.range[0] for figure in figures}) == 1
    for figure in figures:
        low, high = figure.layout.xaxis.range
        assert figure.layout.meta["width"] == high - low
        assert all(low < x < high for drawn in figure.data for x in drawn.x if x is not None)
    assert theme.entropy_ceiling(trace.config) == 2.0


def test_fills_are_the_legends_colours_on_one_scale_for_the_run_and_unknown_ones_are_grey() -> None:
    for trace, step in speculative_steps(range(2)):
        ceiling = theme.entropy_ceiling(trace.config)
        for drawn in tree_figure(trace, step).data:
            if drawn.name not in ("root", "accepted", "rejected", "unreached"):
                continue
            for node, colour in zip(drawn.customdata, drawn.marker.color, strict=True):
                if (entropy := step.tree.entropies[node]) is None:
                    assert colour == theme.UNKNOWN
                else:
                    exact = sample_colorscale(theme.COLOURSCALE, min(entropy / ceiling, 1.0), colortype="tuple")[0]
                    drawn_as = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
                    assert drawn_as == pytest.approx(exact, abs=0.01)


def with_pruned(trace: DecodeTrace, step: StepTrace) -> StepTrace:
    """The step with two guesses pruned after each of its first nodes."""
    guesses = (Pruned(node, token, -1.0 - node) for node in range(min(3, len(step.tree))) for token in (5, 6))
    return replace(step, pruned=tuple(guesses))


def test_pruned_guesses_are_hidden_until_asked_for_and_nothing_crosses_then() -> None:
    for trace, plain in speculative_steps(range(3)):
        step = with_pruned(trace, plain)
        layout, figure = StepLayout(trace, step), tree_figure(trace, step)
        drawn = {points.uid: points for points in figure.data}
        assert drawn["pruned"].visible is False
        assert "pruned-edges" not in {shape.name for shape in figure.layout.shapes}
        assert layout.heights == StepLayout(trace, plain).heights
        moved: Any = rows_with_pruned(layout)
        ends = {node: y for uid, ys in moved["y"].items() if drawn[uid].customdata
                for node, y in zip(drawn[uid].customdata, ys, strict=True)}  # fmt: skip
        assert sorted(ends) == list(range(len(layout.parents)))
        place = [(layout.columns[layout.depths[node]], ends[node]) for node in sorted(ends)]
        edges = sorted(end for shape in moved["shapes"] for end in edge_ends(shape["path"]))
        assert edges == sorted((place[layout.parents[node]], place[node]) for node in range(1, len(place)))
        for depth in range(1, max(layout.depths) + 1):
            level = sorted((ends[n], ends[layout.parents[n]]) for n in ends if layout.depths[n] == depth)
            for (low, low_parent), (high, high_parent) in itertools.pairwise(level):
                assert high - low >= 1 and low_parent <= high_parent


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 500), st.integers(1, 32), st.lists(st.integers(1, 14), min_size=5, max_size=5))
def test_labels_never_overlap(seed: int, depth: int, letters: list[int]) -> None:
    trace = synthetic_race(seed, DecodingConfig(depth=depth, nodes=60))["speculative"]
    trace = retexted(trace, {token: " " + "m" * letters[token % 5] for token in trace.texts if token != 2})
    for step in trace.steps[:4]:
        layout = StepLayout(trace, step)
        rows: dict[int, list[tuple[float, float]]] = {}
        for node in range(layout.next_node + 1):
            half = len(layout.labels[node]) * CHARACTER / 2
            middle = layout.columns[layout.depths[node]]
            rows.setdefault(layout.heights[node], []).append((middle - half, middle + half))
        for row in rows.values():
            spans = sorted(span for span in row if span[0] < span[1])
            for (_, right), (left, _) in itertools.pairwise(spans):
                assert left - right >= BETWEEN - 2, "two labels touch"
        assert all(b > a for a, b in itertools.pairwise(layout.columns)), "depth goes to the right"


def test_a_long_run_that_nothing_happens_in_is_folded() -> None:
    tokens = (8, *[1, 2] * 12)
    tree = DraftTree(tokens, tuple(range(-1, 24)), (0.0, *[-0.01] * 24), (0.1,) * 25)
    trace = hand_made(tree, tuple(range(1, 21)), 4)
    trace = replace(trace, config=DecodingConfig(depth=24))
    layout = StepLayout(trace, trace.steps[0])
    assert "+18" in layout.labels, "the accepted run, its ends apart"
    assert layout.columns[-1] < 24 * 30
    labelled = [label for label in layout.labels[:25] if label]
    assert labelled[0] == "a" and len(labelled) < 14


@pytest.mark.parametrize("token", ["<img src=x onerror=alert(1)>", "<b>bold</b>", "${6*7}", "{{x}}", "&lt;", "a" * 500])
def test_labels_are_escaped_and_short(token: str) -> None:
    trace = synthetic_race(0)["speculative"]
    trace = retexted(trace, dict.fromkeys(trace.texts, token))
    for drawn in tree_figure(trace, trace.steps[3]).data:
        for label in drawn.text or ():
            assert not {"<", ">"} & set(label)
            assert len(html.unescape(label)) <= 10


def test_a_bushy_tree_drops_labels_before_they_overlap() -> None:
    tokens, parents = [8] + [1] * 60, [-1] + [0] * 30 + list(range(1, 31))
    tree = DraftTree(tuple(tokens), tuple(parents), (0.0, *[-1.0] * 60), (1.0,) * 61)
    trace = hand_made(tree, (), 4)
    unreached = next(drawn for drawn in tree_figure(trace, trace.steps[0]).data if drawn.name == "unreached")
    assert unreached.mode == "markers"


def test_no_label_is_without_characters() -> None:
    for trace, step in speculative_steps():
        assert all(label for points in tree_figure(trace, step).data for label in points.text or ())
