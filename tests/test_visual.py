"""What the page draws and says, from hand-made and synthetic runs. No model, no browser."""

from __future__ import annotations

import html
import itertools
import json
import math
import re
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plotly.colors import sample_colorscale
from support.visual_traces import SETTING, first_steps, retexted, synthetic_race, synthetic_recorded

import visual
from specllava.core.config import DecodingConfig
from specllava.core.trace import DecodeTrace, Prefill, StepSeconds, StepTrace, TargetView, Verification
from specllava.core.tree import DraftTree, Pruned
from specllava.decoding import clip
from visual.figures import theme
from visual.figures.labels import END_MARK, token_label
from visual.figures.layout import ordered_tree, tidy_heights
from visual.figures.reasons import reasons
from visual.figures.step_layout import BETWEEN, CHARACTER, StepLayout
from visual.figures.tree_figure import MARKERS, rows_with_pruned, tree_figure
from visual.player import explanations as words
from visual.player.component import player_arguments
from visual.player.explanations import node_reasons, step_sentence
from visual.player.frames import FrameList, picture, playing_speed, recorded_frames
from visual.player.headline import RunningHeadline, headline
from visual.player.node_cards import node_cards
from visual.player.recorded import load_recorded

ROOT = Path(__file__).resolve().parent.parent
WORDS = {0: "", 1: " left", 2: " side", 3: " of", 4: " and", 5: " big", 6: " ", 7: "\n", 8: " a"}


def hand_made(
    tree: DraftTree, accepted: tuple[int, ...], next_token: int, choice_prob: float = 0.97, room: int = 99
) -> DecodeTrace:
    """A run of one step, with the words of ``WORDS`` and an end token 0, that may emit ``room`` tokens."""
    path, nodes = (0, *accepted), len(tree)
    choices = [next_token] * nodes
    for parent, child in itertools.pairwise(path):
        choices[parent] = tree.tokens[child]
    view = TargetView(tuple(choices), (choice_prob,) * nodes, (3.0,) * nodes, (0.02,) * nodes, (1,) * nodes)
    emitted = clip([*(tree.tokens[n] for n in accepted), next_token], room, frozenset({0}))
    step = StepTrace(tree, Verification(accepted, next_token), emitted, view, StepSeconds(0.001, 0.004, 0.0005))
    prefill = Prefill(10, tree.tokens[0], 1.0)
    return DecodeTrace(
        "speculative", SETTING, DecodingConfig(), "?", None, prefill, (step,), "eos", "", WORDS, (0,), schema_version=1
    )


def speculative_steps(seeds: range = range(6)) -> Iterator[tuple[DecodeTrace, StepTrace]]:
    for seed in seeds:
        trace = synthetic_race(seed)["speculative"]
        for step in trace.steps:
            yield trace, step


# --- layout ---------------------------------------------------------------------------------------------------------


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


# --- figure ---------------------------------------------------------------------------------------------------------


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


def test_a_step_stays_small() -> None:
    lanes = synthetic_race(1)
    frames = recorded_frames(lanes["target-only"], lanes["speculative"])
    assert max(len(frame) for frame in frames if '"kind":"step"' in frame) < 20_000
    assert max(len(frame) for frame in frames if '"lane":"target-only"' in frame) < 400


def test_a_bushy_tree_drops_labels_before_they_overlap() -> None:
    tokens, parents = [8] + [1] * 60, [-1] + [0] * 30 + list(range(1, 31))
    tree = DraftTree(tuple(tokens), tuple(parents), (0.0, *[-1.0] * 60), (1.0,) * 61)
    trace = hand_made(tree, (), 4)
    unreached = next(drawn for drawn in tree_figure(trace, trace.steps[0]).data if drawn.name == "unreached")
    assert unreached.mode == "markers"


def test_no_label_is_without_characters() -> None:
    """A bug: Plotly takes an empty label's element out, and the labels of later steps in its place with it."""
    for trace, step in speculative_steps():
        assert all(label for points in tree_figure(trace, step).data for label in points.text or ())


# --- words ----------------------------------------------------------------------------------------------------------


def said(trace: DecodeTrace) -> str:
    return "".join(text for _, text in step_sentence(trace, trace.steps[0]))


def test_sentences_on_hand_made_steps() -> None:
    branching = DraftTree(
        (8, 1, 2, 3, 5), (-1, 0, 1, 2, 0), (0.0, -0.1, -0.1, math.log(0.9), -2.0), (0.7, 0.1, 0.2, None, None)
    )
    assert said(hand_made(branching, (1, 2), 4)) == (
        "Torn between left 0.90 and big 0.14 it tried both; left was right. "
        "Drafted 4 tokens on 2 branches; 2 accepted. "
        "After left side the draft expected of (0.90); the target wanted and (0.97)."
    )
    chain = DraftTree((8, 1), (-1, 0), (0.0, -0.1), (0.1, None))
    assert said(hand_made(chain, (1,), 4)) == (
        "Drafted 1 token on 1 branch; 1 accepted. "
        "The whole branch was right; after a left the target went on with and (0.97)."
    )
    assert said(hand_made(chain, (), 4)) == (
        "Drafted 1 token on 1 branch; none accepted. "
        "After a the draft expected left (0.90); the target wanted and (0.97)."
    )
    assert said(hand_made(chain, (1,), 0)).endswith("After a left the target ended the answer (0.97).")
    ended = DraftTree((8, 1, 0, 3), (-1, 0, 1, 2), (0.0, -0.1, -0.1, -0.1), (0.1, 0.1, 0.1, None))
    for tail in ((), (3,)):  # the draft went on behind the end, and the target with it
        trace = hand_made(ended, (1, 2, *tail), 4)
        assert said(trace).endswith(f"accepted. With {END_MARK} the answer was complete.")
        assert picture(trace, trace.steps[0])["focus"] == 2
    cut = hand_made(ended, (1,), 4, room=1)
    assert said(cut).endswith("1 accepted. With these the answer had the 160 tokens that it was allowed.")
    assert picture(cut, cut.steps[0])["focus"] == 1
    assert said(hand_made(DraftTree.only_root(8), (), 4)) == "Nothing was drafted; the target said and."


def test_reasons_name_what_the_target_wanted() -> None:
    tree = DraftTree((8, 1, 5, 3), (-1, 0, 0, 2), (0.0, -0.1, -2.0, -0.5), (0.9, None, 0.1, None))
    trace = hand_made(tree, (1,), 4)
    step = trace.steps[0]
    told = "Before this word the draft was unsure (0.90 nats, ≈ 2.5 even choices), so it tried 2 words"
    assert told in node_reasons(trace, step)[2]
    assert "The target wanted left (0.97)." in node_reasons(trace, step)[2]
    assert "left at big" in node_reasons(trace, step)[3]
    assert "it stands" in node_reasons(trace, step)[1]


def test_pruned_guesses_are_named_at_their_parent() -> None:
    tree = DraftTree((8, 1), (-1, 0), (0.0, -0.1), (0.9, None))
    trace = hand_made(tree, (1,), 4)
    pruned = (Pruned(0, 5, math.log(0.08)), Pruned(0, 3, math.log(0.03)), Pruned(1, 4, math.log(0.5)))
    step = replace(trace.steps[0], pruned=pruned)
    assert node_reasons(trace, step)[0].endswith("Pruned after it, unchecked: big (0.08), of (0.03).")
    assert node_reasons(trace, step)[1].endswith("(0.50); one of them the target wanted.")


def test_reasons_of_a_drawn_answer_give_both_probabilities() -> None:
    tree = DraftTree((8, 1, 5), (-1, 0, 0), (0.0, -0.1, -2.0), (0.9, None, None))
    trace = hand_made(tree, (1,), 4)
    chosen = replace(trace, config=replace(trace.config, temperature=1.0))
    assert "the draft 0.14; the target's draw fell on left." in node_reasons(chosen, trace.steps[0])[2]
    assert "the draft 0.90; the target's draw fell on it." in node_reasons(chosen, trace.steps[0])[1]
    drawn = replace(trace, config=replace(chosen.config, rule="fixed", children="drawn"))
    assert "the draft 0.14; chance decided against it." in node_reasons(drawn, trace.steps[0])[2]
    assert "chance decided for it." in node_reasons(drawn, trace.steps[0])[1]


def test_reasons_are_found_once_for_all_nodes_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were found anew for each node: a step of 500 nodes took a second."""
    counted: list[StepTrace] = []

    def counting(step: StepTrace, sampled: bool) -> Any:
        counted.append(step)
        return reasons(step, sampled)

    monkeypatch.setattr(words, "reasons", counting)
    trace = synthetic_race(1)["speculative"]
    node_cards(StepLayout(trace, trace.steps[0]))
    assert counted == [trace.steps[0]]


@pytest.mark.parametrize("character", ["w", "\u2003"])
def test_a_label_looks_at_no_more_of_a_token_than_it_shows(character: str) -> None:
    """All of it was judged, character by character, for each node of each step."""
    trace = retexted(hand_made(DraftTree((8, 1), (-1, 0), (0.0, -1.0), (None,) * 2), (), 0), {1: character * 10**6})
    tracemalloc.start()
    try:
        label = token_label(trace, 1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(label) == 24 and label.endswith("…")
    assert peak < 4 * 2**20


def test_labels_make_blanks_visible() -> None:
    trace = hand_made(DraftTree((8, 6, 7, 1), (-1, 0, 1, 2), (0.0, -1.0, -1.0, -1.0), (None,) * 4), (), 0)
    assert [token_label(trace, token) for token in (6, 7, 1, 0)] == ["␣", "⏎", "left", END_MARK]


# --- headline -------------------------------------------------------------------------------------------------------


def test_the_headline_of_a_finished_race() -> None:
    lanes = synthetic_race(1)
    shown = headline(lanes["target-only"], lanes["speculative"], finished=True)
    assert (shown["same"], shown["same_state"]) == ("identical ✓", "same")
    assert shown["passes"] == str(len(lanes["speculative"].steps))
    assert shown["instead"] == f"instead of {len(lanes['target-only'].steps)}"


def test_a_running_race_claims_nothing_more_than_it_knows() -> None:
    lanes = synthetic_race(1)
    early = RunningHeadline().at_race(lanes["target-only"], lanes["speculative"], clock=0.06)
    assert (early["same"], early["same_state"]) == ("same so far", "open")
    before_any_step = headline(
        first_steps(lanes["target-only"], 0), first_steps(lanes["speculative"], 0), finished=False
    )
    assert before_any_step["speedup"] == before_any_step["tau"] == "–"


def test_a_difference_is_shown_with_its_margin() -> None:
    lanes = synthetic_race(1)
    odd = lanes["target-only"]
    last = odd.steps[20]
    swapped = replace(last, emitted=(3,), verification=Verification((), 3))
    odd = replace(odd, steps=(*odd.steps[:20], swapped, *odd.steps[21:]))
    shown = headline(odd, lanes["speculative"], finished=True)
    assert (shown["same"], shown["same_state"]) == ("differs at 22 ✗", "differs")
    assert "more than rounding" in shown["same_note"]


# --- player ---------------------------------------------------------------------------------------------------------


def test_a_reel_only_appends_and_ends_like_the_recorded_one() -> None:
    lanes = synthetic_race(1)
    frame_list, before = FrameList("live run", live=True), list[str]()
    for count in range(0, 70, 7):
        traces = {
            "target-only": first_steps(lanes["target-only"], count),
            "speculative": first_steps(lanes["speculative"], count // 5),
        }
        frames = list(frame_list.update(traces))
        assert frames[: len(before)] == before
        before = frames
    live = [json.loads(frame) for frame in frame_list.update(lanes, "finished")]
    recorded = [json.loads(frame) for frame in recorded_frames(lanes["target-only"], lanes["speculative"])]
    for lane in ("target-only", "speculative"):
        assert [f["tokens"] for f in live if f.get("lane") == lane] == [
            f["tokens"] for f in recorded if f.get("lane") == lane
        ]
    assert live[-1]["totals"] == recorded[-1]["totals"]


def test_tokens_say_where_they_came_from() -> None:
    trace = synthetic_race(1)["speculative"]
    frames = [json.loads(frame) for frame in recorded_frames(synthetic_race(1)["target-only"], trace)]
    steps = [frame for frame in frames if frame.get("lane") == "speculative" and frame["kind"] == "step"]
    for frame, step in zip(steps, trace.steps, strict=True):
        sources = [source.split()[0] for _, source in frame["tokens"]]
        assert sources == ["accepted"] * len(step.verification.accepted) + ["target"]


def test_slow_pairs_play_in_real_time_and_fast_ones_slowly() -> None:
    trace = synthetic_race(0)["target-only"]
    assert playing_speed(trace) == 0.05
    slow = replace(trace, steps=tuple(replace(s, seconds=StepSeconds(0, 1.0, 0)) for s in trace.steps))
    assert playing_speed(slow) == 1.0


def test_the_template_holds_nothing_that_gradio_would_run() -> None:
    template = player_arguments([])["html_template"]
    assert not any(mark in template for mark in ("${", "{{", "`", "\\"))


# --- recorded -------------------------------------------------------------------------------------------------------


def test_recorded_races_are_read_and_checked(tmp_path: Path) -> None:
    synthetic_recorded(tmp_path, 2)
    assert [race.name for race in load_recorded(tmp_path)] == ["race-0", "race-1"]
    assert load_recorded(tmp_path / "nowhere") == ()
    (tmp_path / "race-1.png").unlink()
    with pytest.raises(ValueError, match=r"race-1.json .* picture"):
        load_recorded(tmp_path)
    (tmp_path / "race-1.json").write_text('{"image": "x"}')
    with pytest.raises(ValueError, match=r"race-1.json is not a recorded race"):
        load_recorded(tmp_path)


def test_drawing_needs_no_torch() -> None:
    code = (
        "import sys, visual.player.frames, visual.player.recorded, visual.player.headline, visual.player.explanations\n"
        "import visual.figures.tree_figure\n"
        "assert 'torch' not in sys.modules and 'gradio' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


# --- rooms ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("room", "above"), [("figures", {"visual.player", "visual.page"}), ("player", {"visual.page"})]
)
def test_figures_lie_below_the_player_and_the_player_below_the_page(room: str, above: set[str]):
    """Figures once took labels from the player, and saved pages their markup from the page."""
    folder = Path(visual.__file__).with_name(room)
    names = ", ".join(f"visual.{room}.{path.stem}" for path in sorted(folder.glob("*.py")) if path.stem != "__init__")
    code = f"import sys, {names}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {*loaded} & {"gradio", "torch", *above}
