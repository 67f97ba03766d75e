"""Beside the tree, inside a step: its attention mask and its KV cache, checked against the traces."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from support.amount import sample
from support.browser import SavedPages
from support.inside_step import COLUMNS, RACES, WAITING, enter, opened, walk

from specllava.trace import DecodeTrace
from visual.player.frames import FrameList, recorded_frames

CELLS = "[...document.querySelectorAll('.mask-cells')].map((path) => path.getAttribute('d')).join('')"
TABLE = "rows => rows.map((row) => [...row.cells].map((cell) => cell.textContent))"


@pytest.mark.parametrize("name", sample(["1-describe", "before"], 1))
def test_the_mask_is_the_trees_own_and_positions_are_depths_behind_the_context(
    name: str, saved_page: SavedPages
) -> None:
    race = RACES[name]
    tab = opened(saved_page, race)
    cached = race.lead.prefill.prompt_tokens
    for number, step in enumerate(race.lead.steps):
        enter(tab, number)
        size = len(step.tree)
        cells = tab.page.evaluate(CELLS)
        corners = [(float(x), float(y), float(w)) for x, y, w in re.findall(r"M([\d.]+),([\d.]+)h([\d.]+)", cells)]
        left, top, cell = min(x for x, _, _ in corners), min(y for _, y, _ in corners), corners[0][2]
        filled = {(round((y - top) / cell), round((x - left) / cell)) for x, y, _ in corners}
        mask = step.tree.ancestor_mask()
        assert filled == {(i, j) for i in range(size) for j in range(size) if mask[i, j]}
        if not number:
            assert not tab.page.is_visible(".mask svg"), "nothing is asked of the mask before the pass"
            tab.page.locator(".phase-list button", has_text="check").click()
            tab.page.click(".mask .table summary")
            tab.page.wait_for_selector(".mask tbody tr")
        rows = tab.page.eval_on_selector_all(".mask tbody tr", TABLE)
        assert [int(row[1]) for row in rows] == [cached + depth for depth in step.tree.depths()]
        assert [len(row[2].split(" ")) if row[2] else 0 for row in rows] == list(step.tree.depths())
        cached += len(step.verification.path)


@pytest.mark.night
def test_a_row_of_the_mask_and_its_node_light_each_other(saved_page: SavedPages) -> None:
    race = RACES["1-describe"]
    tab = opened(saved_page, race, **WAITING)
    enter(tab, 5)
    tree = race.lead.steps[5].tree
    tab.page.locator(".phase-list button", has_text="check").click()
    box = tab.page.locator(".mask svg").bounding_box()
    frame = tab.page.locator(".mask-frame").bounding_box()
    for node in (3, len(tree) - 1):
        height = frame["height"] / len(tree)
        tab.page.mouse.move(frame["x"] + 5, frame["y"] + (node + 0.5) * height)
        halos = "document.querySelector('.tree').data.find((trace) => trace.name === 'marked').x"
        chosen = 1  # its own halo stays, wherever it is
        path = tree.path(node)
        tab.wait(f"{halos}.length >= {len(path)} && {halos}.length <= {len(path) + chosen}")
        said = tab.text(".mask-said")
        for above in path[:-1][-5:]:
            assert f"“{race.lead.texts[tree.tokens[above]].strip()}”" in said
        row = tab.page.locator(".mask-row").bounding_box()
        assert row["y"] == pytest.approx(frame["y"] + node * height, abs=1.5)
    tab.page.mouse.click(frame["x"] + 5, frame["y"] + 1.5 * height)
    tab.page.mouse.move(box["x"] - 20, box["y"])
    assert tab.text(".node-word") == race.lead.texts[tree.tokens[1]].strip()
    siblings = [n for n in tree.children()[0] if n != 1]
    assert ("does not see its sibling" in tab.text(".mask-said")) == bool(siblings)


@pytest.mark.night
def test_kept_columns_are_the_accepted_path_and_the_cache_grows_by_them(saved_page: SavedPages) -> None:
    race = RACES["1-describe"]
    tab = opened(saved_page, race)
    cached = race.lead.prefill.prompt_tokens
    for number, step in enumerate(race.lead.steps):
        enter(tab, number)
        counts = [int(text) for text in tab.page.locator(".cache-block b").all_inner_texts()]
        assert sum(counts) == cached
        for kind, level, states in walk(tab, f"() => {COLUMNS}"):
            path, depths = step.verification.path, step.tree.depths()
            waiting = ["waiting" if depth <= level else "absent" for depth in depths]
            assert states == {
                "root": waiting, "guess": waiting, "prune": ["waiting"] * len(depths), "check": ["read"] * len(depths),
                "accept": ["kept" if n in path else "read" for n in range(len(depths))],
                "keep": ["kept" if n in path else "dropped" for n in range(len(depths))],
            }[kind]  # fmt: skip
        cached += len(path)
        assert f"{cached} for the next step" in tab.text(".cache-note")


@pytest.mark.night
def test_a_turn_that_reused_columns_says_so(saved_page: SavedPages) -> None:
    race = RACES["3-count"]
    again = replace(race.lead, prefill=replace(race.lead.prefill, reused_tokens=70))
    tab = opened(saved_page, replace(race, speculative=again))
    enter(tab)
    blocks = tab.page.locator(".cache-block").all_inner_texts()
    assert [re.sub(r"\s+", " ", text) for text in blocks[:3]] == ["64 picture", "6 reused", "8 question"]


def test_cached_columns_in_the_frames_of_a_growing_run_are_those_of_the_whole() -> None:
    race = RACES["1-describe"]
    assert race.target_only is not None and race.speculative is not None

    def cached(frames: list[str]) -> list[int]:
        return [frame["cached"] for frame in map(json.loads, frames) if "cached" in frame]

    whole = cached(recorded_frames(race.target_only, race.speculative))
    grown = FrameList("live run", live=True)
    for count in range(1, len(race.speculative.steps) + 1):
        part = replace(race.speculative, steps=race.speculative.steps[:count], finish_reason="stopped")
        grown.update({"target-only": race.target_only, "speculative": part})
    assert cached(grown.frames) == whole
    said = [len(token_ids_before(race.speculative, number)) for number in range(len(whole))]
    assert whole == [race.speculative.prefill.prompt_tokens + count - 1 for count in said]


def token_ids_before(trace: DecodeTrace, number: int) -> list[int]:
    """What had been said before a step: all of it is cached but the last, the step's root."""
    return [trace.prefill.first_token, *(token for step in trace.steps[:number] for token in step.emitted)]
