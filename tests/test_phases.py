"""Inside a step, in a browser: what each phase shows of the tree and says of it, checked against the traces."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from support.amount import sample
from support.browser import SavedPages
from support.inside_step import BUTTONS, COLUMNS, RACES, SAID, SEEN, cut_in, enter, opened, walk
from support.visual_traces import retexted

from specllava.metrics import saved_tokens
from visual.figures.step_layout import StepLayout
from visual.player.recorded import read_recorded

OLD = sorted((Path(__file__).parent / "data").glob("*.schema-1.*.json"))
BLIND = ("root", "guess", "prune", "check")
DRAWN = "document.querySelector('.tree').data.flatMap((trace) => trace.customdata ?? [])"
# Of each fork's chart its node and, by bar, the guess, whether it was cut, and the width.
PANELS = """() => [...document.querySelectorAll(".ph-panel")].map((panel) => [Number(panel.dataset.node),
  [...panel.querySelectorAll(".ph-bar")].map(
    (bar) => [Number(bar.dataset.node), bar.classList.contains("cut"), Number(bar.getAttribute("width"))])])"""
IMAGES = f"() => [({SAID})(), document.querySelectorAll('.step img').length]"
ACCEPTED = "rgb(0, 114, 178)"


def expected_nodes(layout: StepLayout, kind: str, level: int, drawn: set[int]) -> set[int]:
    """Nodes that are to be seen in a phase."""
    tree = set(range(layout.next_node))
    if kind in ("root", "guess"):
        return {n for n in {*tree, *cut_in(layout)} & drawn if layout.depths[n] <= level}
    if kind == "keep":
        return {*layout.step.verification.path, layout.next_node} & drawn - layout.hidden
    return tree


@pytest.mark.parametrize(
    ("name", "pruned"), sample([("1-describe", True), ("2-story", False), ("3-count", True), ("blank", False)], 2)
)  # fmt: skip
def test_each_phase_shows_the_nodes_of_its_depth_and_no_verdict_before_its_time(
    name: str, pruned: bool, saved_page: SavedPages
) -> None:
    race = RACES[name]
    tab = opened(saved_page, race)
    if pruned:
        tab.page.click(".with-pruned span")
    for number, step in sample(list(enumerate(race.lead.steps))[:5], 2):
        enter(tab, number)
        layout = StepLayout(race.lead, step)
        drawn = set(tab.page.evaluate(DRAWN))
        walked = walk(tab, SEEN)
        for kind, level, seen in walked:
            assert set(seen["nodes"]) == expected_nodes(layout, kind, level, drawn), (number, kind, level)
            assert set(seen["labels"]) <= set(seen["nodes"])
            ends = {node for nodes, _ in seen["edges"] for node in nodes}
            pieces = sum(count for _, count in seen["edges"])
            if kind == "guess":
                stubs = {node for node in cut_in(layout) if layout.depths[node] <= level}
                assert pieces == len(({*seen["nodes"]} | stubs) - {0})
            if kind in BLIND:
                guessed = [n for n in seen["nodes"] if 0 < n < layout.next_node]
                assert len({seen["shapes"][str(n)] for n in guessed}) <= 1, "a guess shows its verdict"
                assert len({seen["strokes"][str(n)] for n in guessed}) <= 1, "a guess shows its verdict"
                assert seen["branch"] != ACCEPTED
            elif kind == "accept" and step.verification.accepted:
                assert seen["branch"] == ACCEPTED
                assert set(range(1, layout.next_node)) <= ends
        levels = max(layout.depths[n] for n in {*range(layout.next_node), *cut_in(layout)})
        prune, accept = ["prune"] * bool(cut_in(layout)), ["accept"] * (len(step.tree) > 1)
        assert [kind for kind, _, _ in walked] == ["root", *["guess"] * levels, *prune, "check", *accept, "keep"]


@pytest.mark.night
@pytest.mark.parametrize("path", sample(OLD, 1), ids=lambda path: path.name)
def test_old_traces_have_phases_too(path: Path, saved_page: SavedPages) -> None:
    race = read_recorded(path)
    tab = opened(saved_page, race)
    for number, step in enumerate(race.lead.steps):
        enter(tab, number)
        kinds = [kind for kind, _, said in walk(tab, SAID) if said]
        assert (kinds[0], kinds[-1], len(kinds)) == ("root", "keep", len(tab.page.evaluate(BUTTONS)))
        assert tab.page.evaluate(COLUMNS).count("kept") == len(step.verification.path)


def test_captions_say_what_the_trace_holds(saved_page: SavedPages) -> None:
    race = RACES["1-describe"]
    tab = opened(saved_page, race)
    saves = 0
    for number, step in enumerate(race.lead.steps):
        enter(tab, number)
        said = {(kind, level): text for kind, level, text in walk(tab, SAID)}
        assert f"after every guess, all {step.tree.drafted} at once" in said["check", 0]
        cut = cut_in(StepLayout(race.lead, step))
        assert said.get(("prune", 0), "0 guess").startswith(f"{len(cut)} guess")
        root = step.tree.entropies[0]
        if f"After “{race.lead.texts[step.tree.tokens[0]].strip()}”" in said["guess", 1]:
            assert root is not None
            assert f"{root:.2f} nats ≈ {math.exp(round(root, 2)):.1f} even choices" in said["guess", 1]
        ranks = step.tree.sibling_ranks()
        saved_at = [n for n in step.verification.accepted if ranks[n]]
        assert ("it saved" in said["accept", 0]) == bool(saved_tokens(step))
        if saved_at:
            tokens = saved_tokens(step)
            assert f"it saved {tokens} token" in said["accept", 0] or not tokens
            saves += bool(tokens)
        kept, read = len(step.verification.path), len(step.tree)
        assert f"{kept} of the {read} new columns" in said["keep", 0] or kept == read
        assert ("The answer ends here" in said["keep", 0]) == (len(step.emitted) < kept)
    assert saves, "no step of this race shows what a tree is for"


@pytest.mark.night
def test_at_a_fork_the_parents_distribution_opens_at_the_node(saved_page: SavedPages) -> None:
    race = RACES["1-describe"]
    tab = opened(saved_page, race)
    shown = 0
    for number, step in enumerate(race.lead.steps):
        enter(tab, number)
        layout = StepLayout(race.lead, step)
        families: dict[int, list[int]] = {}
        for node in [*range(1, layout.next_node), *cut_in(layout)]:
            families.setdefault(layout.parents[node], []).append(node)
        for kind, level, panels in walk(tab, PANELS):
            forks = [n for n, family in families.items() if len(family) > 1 and layout.depths[n] == level - 1]
            assert {node for node, _ in panels} <= set(forks if kind == "guess" else [])
            shown += len(panels)
            assert len(panels) >= min(1, len(forks)) if kind == "guess" else not panels
            for node, bars in panels:
                assert {guess for guess, _, _ in bars} <= set(families[node])
                assert all(cut == (guess > layout.next_node) for guess, cut, _ in bars)
                widths = [width for _, _, width in bars]
                assert widths == sorted(widths, reverse=True)
    assert shown > 10


def test_what_models_say_is_text_in_phases_mask_and_cache(saved_page: SavedPages) -> None:
    race = RACES["1-describe"]
    words = set(race.lead.texts) - set(race.lead.eos_token_ids)
    hostile = {token: f' <img src=x onerror="window.hacked=1">{token}' for token in words}
    tab = opened(saved_page, replace(race, speculative=retexted(race.lead, hostile), target_only=None))
    enter(tab, 5)
    for _, _, (text, images) in walk(tab, IMAGES):
        assert "<img" in text or "guess" in text
        assert images == 0
    assert tab.page.evaluate("window.hacked") is None


def test_a_step_without_guesses_has_phases(saved_page: SavedPages) -> None:
    race = RACES["3-count"]
    assert race.target_only is not None
    tab = opened(saved_page, replace(race, speculative=None))
    enter(tab, 1)
    assert tab.page.evaluate(BUTTONS) == ["root", "check", "keep"]
    assert all(said for _, _, said in walk(tab, SAID))
    assert tab.page.evaluate(COLUMNS) == ["kept"]
