"""Draw your own tree: a shape is clicked or typed together in the settings, and that shape is what runs."""

from __future__ import annotations

import json
import random
from collections.abc import Generator
from typing import Any

import pytest
from support.browser import FINISHED, Server, Visit, Visitor, assert_accessible
from support.visual_traces import FakeBackend

from specllava.core.config import DecodingConfig
from visual.page.controls import decoding_config

FOCUS = "document.activeElement.dataset.node"
LINES = (
    "(() => { const text = document.createRange(); text.selectNodeContents(document.querySelector('.drawer .summary'));"
    " return text.getBoundingClientRect().height; })()"
)
RULE = ".drawer input[name=option-rule][value=shape]"


def opened(tab: Visit, *, shape: str = "") -> None:
    tab.page.focus(".settings-open")
    tab.page.keyboard.press("Enter")
    tab.wait("document.querySelector('.drawer').open")
    tab.page.check(RULE)
    tab.page.wait_for_selector(".tree-editor")
    if shape:
        tab.page.fill("#option-shape", shape)


def drawn(tab: Visit) -> tuple[int, ...]:
    return tuple(map(int, tab.page.input_value("#option-shape").split(",")))


def fill(tab: Visit, **options: int) -> None:
    for name, value in options.items():
        tab.page.fill(f"#option-{name}", str(value))


@pytest.fixture
def asked(server: Server, monkeypatch: pytest.MonkeyPatch) -> list[DecodingConfig]:
    """The configurations that the stand-in is asked to run with."""
    configs: list[DecodingConfig] = []
    race = server.backend.race

    def recording(_: FakeBackend, image: Any, messages: Any, config: DecodingConfig) -> Generator[Any]:
        configs.append(config)
        return race(image, messages, config)

    monkeypatch.setattr(FakeBackend, "race", recording)
    return configs


def test_the_editor_is_there_for_its_rule_alone(shared_tab: Visit) -> None:
    tab = shared_tab  # the first test of the file: settings are the defaults
    tab.page.click(".settings-open")
    assert tab.page.locator(".tree-editor").is_hidden()
    tab.page.check(RULE)
    tab.page.locator(".tree-editor").wait_for()
    assert drawn(tab) == DecodingConfig().shape
    assert tab.text(".tree-count") == "8 guesses, 4 levels, up to 5 tokens a pass"
    tab.page.check(".drawer input[name=option-rule][value=chain]")
    tab.page.locator(".tree-editor").wait_for(state="hidden")


def test_a_tree_that_is_clicked_together_is_the_tree_that_runs(tab: Visit, asked: list[DecodingConfig]) -> None:
    tab.page.select_option(".speed", "1")
    opened(tab, shape="0")
    for below in ("the root", "guess 1", "guess 1", "guess 2", "the root"):
        tab.page.get_by_role("button", name=f"Add a guess below {below}", exact=True).click()
    assert drawn(tab) == (0, 0, 1, 1, 2, 0)
    tab.page.get_by_role("button", name="Remove guess 3", exact=True).click()  # the numbers behind it move up
    assert drawn(tab) == (0, 0, 1, 2, 0)
    assert tab.text(".tree-count") == "5 guesses, 2 levels, up to 3 tokens a pass"
    tab.page.click(".tree-run")
    tab.wait(FINISHED)
    assert [(config.rule, config.shape) for config in asked] == [("shape", (0, 0, 1, 2, 0))]
    assert "shape rule · guesses below nodes 0, 0, 1, 2, 0 ·" in tab.text(".this-run")


@pytest.mark.parametrize("end", [False, True], ids=["in the middle", "scrolled to the end"])
def test_no_button_moves_under_the_pointer_when_the_summary_gets_longer(tab: Visit, end: bool) -> None:
    """Else a second click, made before the server has answered the first, lands beside its button."""
    opened(tab, shape="0")
    if end:
        tab.page.evaluate("document.querySelector('.drawer-body').scrollTop = 1e6")
    root, lines, tops = tab.page.locator("[data-node='0']"), set(), set()
    for levels in (1, 4, 8, 12, 1):  # a chain: one row of circles
        shape = list(range(levels))
        tab.page.fill("#option-shape", str(shape)[1:-1])
        tab.wait(f"document.querySelector('.drawer .summary').textContent.includes('nodes {str(shape)[1:-1]} ')")
        lines.add(tab.page.evaluate(LINES))
        tops.add(root.bounding_box()["y"])
    assert len(lines) > 1
    assert len(tops) == 1


def test_any_tree_is_drawn_by_keyboard_alone(tab: Visit, asked: list[DecodingConfig]) -> None:
    """Random walks: after every key the field, the focus and the line say the same tree as this list does."""
    tab.page.emulate_media(reduced_motion="reduce")
    tab.page.select_option(".speed", "1")
    opened(tab, shape="0, 0, 1")
    rng, parents, node = random.Random(7), [0, 0, 1], 0
    tab.page.focus("[data-node='0']")
    for _ in range(40):
        key = rng.choice(("+", "+", "=", "Delete", "-", "ArrowRight", "ArrowLeft", "Home"))
        if key in "+=":
            parents.append(node)
        elif key in ("Delete", "-"):
            if node and node not in parents and len(parents) > 1:
                above = parents.pop(node - 1)
                parents, node = [one - (one > node) for one in parents], above
        elif key == "ArrowRight":
            node = parents.index(node) + 1 if node in parents else node
        else:
            node = parents[node - 1] if key == "ArrowLeft" and node else 0
        if len(parents) > 14:
            parents.pop()
            continue
        tab.page.keyboard.press(key)
        assert drawn(tab) == tuple(parents)
        assert tab.page.evaluate(FOCUS) == str(node)
        assert tab.text(".tree-count").startswith(f"{len(parents)} guess")
    assert tab.page.locator(".tree-board [tabindex='0']").count() == 1
    tab.page.focus(".tree-run")
    tab.page.keyboard.press("Enter")
    tab.wait(FINISHED)
    assert asked[-1].shape == tuple(parents)


def test_a_list_that_is_no_tree_is_refused_beside_it_and_a_ready_shape_is_the_way_out(tab: Visit) -> None:
    opened(tab)
    for typed in ("0, 2", "x", "0, 0, -1", "0," * 16 + "0", "<b>0</b>"):
        tab.page.fill("#option-shape", typed)
        tab.page.locator(".option:has(.tree-editor) .why", has_text="n").wait_for()
        assert tab.page.locator(".tree-board").is_hidden() and tab.page.locator(".tree-run").is_disabled()
        assert "Value error" not in tab.text(".option:has(.tree-editor)")
        tab.page.get_by_role("button", name="Two chains").click()
        tab.wait("document.querySelector('#option-shape').getAttribute('aria-invalid') === 'false'")
        assert drawn(tab) == (0, 0, 1, 2, 3, 4, 5, 6) and tab.page.locator(".tree-board").is_visible()


def test_up_and_down_go_along_a_level(tab: Visit) -> None:
    opened(tab, shape="0, 0, 0, 1, 3")
    tab.page.focus("[data-node='1']")
    for key, node in (("ArrowDown", 2), ("ArrowDown", 3), ("ArrowDown", 3), ("ArrowRight", 5), ("ArrowUp", 4)):
        tab.page.keyboard.press(key)
        assert tab.page.evaluate(FOCUS) == str(node)


def test_ready_shapes_are_trees_and_limits_are_kept_with_a_reason(tab: Visit) -> None:
    opened(tab)
    ready = tab.page.locator(".tree-ready button")
    for place in range(ready.count()):
        ready.nth(place).click()
        assert ready.nth(place).get_attribute("aria-pressed") == "true"
        assert decoding_config({"rule": "shape", "shape": tab.page.input_value("#option-shape")}).shape == drawn(tab)
    tab.page.get_by_role("button", name="Chain of 6").click()
    assert tab.text(".tree-count") == "6 guesses, 6 levels, up to 7 tokens a pass"
    add = tab.page.get_by_role("button", name="Add a guess below guess 6", exact=True)
    for limits, words in (
        ({"nodes": 6}, "No more: at most 6 guesses are checked in one pass."),
        ({"nodes": 20, "depth": 6}, "No deeper: the draft looks at most 6 levels ahead."),
    ):
        fill(tab, **limits)
        add.click()
        assert tab.text(".tree-reason") == words and len(drawn(tab)) == 6
    fill(tab, nodes=7)
    tab.page.get_by_role("button", name="Bush 3 × 2").click()
    assert tab.text(".tree-reason") == "Bush 3 × 2 has 9 guesses: at most 7 are checked in one pass."
    tab.page.focus("[data-node='0']")
    for node, words in ((0, "The root stays"), (1, "Only a guess with nothing below it")):
        tab.page.focus(f"[data-node='{node}']")
        tab.page.keyboard.press("Delete")
        assert tab.text(".tree-reason").startswith(words) and len(drawn(tab)) == 6
    fill(tab, depth=4)  # what the limits cut off is shown as it runs
    assert tab.text(".tree-count") == "4 guesses, 4 levels, up to 5 tokens a pass; left out, beyond the limits: 2"
    assert tab.page.locator(".tree-node.left-out").count() == 2


def test_axe_finds_nothing_serious_and_a_phone_need_not_scroll_sideways(visit: Visitor) -> None:
    tab = visit(viewport={"width": 375, "height": 740}, reduced_motion="reduce")
    opened(tab, shape=", ".join(map(str, range(10))))
    fill(tab, nodes=10, depth=8)
    tab.page.get_by_role("button", name="Add a guess below the root", exact=True).click()
    assert "at most 10" in tab.text(".tree-reason")
    body = "document.querySelector('.drawer-body')"
    assert tab.page.evaluate(f"{body}.scrollWidth <= {body}.clientWidth")
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 375
    box = json.loads(tab.page.evaluate("JSON.stringify(document.querySelector('.tree-run').getBoundingClientRect())"))
    assert box["right"] <= 375
    assert_accessible(tab.page)
