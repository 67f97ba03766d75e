"""Runs in a notebook's cells: the player in an iframe, light and dark."""

from __future__ import annotations

import ast
import html
import json
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support import formats
from support.browser import HOSTILE, PATIENCE, new_tab
from support.visual_traces import synthetic_race

from recipes.toy.draw import draw_scene
from recipes.toy.scene import sample_scene
from specllava.race_file import Race
from visual.notebook import run_html

GPU_NOTEBOOK, TOY_NOTEBOOK = NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
LIGHT, DARK = "background: white; color: #222", "background: #111; color: #ddd"
PICTURE = draw_scene(sample_scene(3), 64)
DRAWN = "document.querySelector('.stage.alive .plot .main-svg') !== null"
IS_DARK = "document.body.parentElement.classList.contains('dark')"
FITS = """() => {
  const stage = document.querySelector(".stage").getBoundingClientRect();
  return Math.abs(stage.bottom + scrollY + 8 - innerHeight) < 2 && document.documentElement.scrollWidth <= innerWidth;
}"""


@dataclass
class Outputs:
    """HTML of every output, in the order of time."""

    history: list[str] = field(default_factory=list)

    def display(self, data: dict[str, str], raw: bool) -> None:
        assert raw and data.keys() == {"text/html", "text/plain"}
        self.history.append(data["text/html"])

    def run(self, notebook: Path, instead: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Run the code cells; a cell's last expression is shown where it has HTML. Returns the namespace.

        Args:
            instead: texts that stand in place of others, such as a directory in place of an id; each must be there.
        """
        space: dict[str, Any] = {"__name__": "__main__"}
        text = notebook.read_text(encoding="utf-8")
        for old, new in (instead or {}).items():
            assert old in text
            text = text.replace(old, new)
        for cell in json.loads(text)["cells"]:
            if cell["cell_type"] != "code":
                continue
            body = ast.parse("".join(cell["source"])).body
            last = body.pop() if isinstance(body[-1], ast.Expr) else None
            exec(compile(ast.Module(body, []), cell["id"], "exec"), space)
            value = None if last is None else eval(compile(ast.Expression(last.value), cell["id"], "eval"), space)
            markup = value._repr_html_() if hasattr(value, "_repr_html_") else None
            if markup is not None:
                self.display({"text/html": markup, "text/plain": ""}, raw=True)
        return space

    def export(self, style: str = "") -> str:
        """The notebook as a page."""
        return f"<!doctype html><meta charset=utf-8><body style='{style}'>" + "".join(self.history)


@pytest.fixture
def outputs(monkeypatch):
    """What ``IPython.display.display`` is given."""
    outputs, package, module = Outputs(), ModuleType("IPython"), ModuleType("IPython.display")
    module.display = outputs.display
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return outputs


@pytest.fixture
def tab(browser):
    tab = new_tab(browser)
    yield tab
    tab.page.close()
    assert not tab.errors, tab.errors
    assert all(call.startswith(("file:", "data:", "about:")) for call in tab.calls), tab.calls


def players(tab):
    """The documents of the iframes, each as soon as it has drawn."""
    frames = tab.page.frames[1:]
    for frame in frames:
        wait(frame, DRAWN)
    return frames


def wait(frame, condition):
    """Until an expression holds. Playwright's own waiting evaluates strings, which these pages forbid."""
    end = time.monotonic() + PATIENCE / 1000
    while not frame.evaluate(condition):
        assert time.monotonic() < end, condition
        time.sleep(0.05)


def open_file(tab, path, text):
    path.write_text(text, encoding="utf-8")
    tab.page.goto(path.as_uri())


def test_races_and_single_lanes_are_shown(outputs):
    lanes = synthetic_race(3)
    Race(lanes).show(PICTURE)
    lanes["target-only"].show()
    race, alone = outputs.history
    assert "data:image/jpeg" in race and "data:image/jpeg" not in alone
    assert ["speculative" in html.unescape(one).partition('id="frames"')[2] for one in (race, alone)] == [True, False]


def test_what_cannot_be_shown_is_one_line(outputs, monkeypatch):
    lane = synthetic_race(3)["speculative"]
    blind = replace(lane, steps=tuple(replace(step, target=None) for step in lane.steps))
    assert blind._repr_html_() is None and Race({})._repr_html_() is None
    with pytest.raises(ValueError, match="step 1: it did not record"):
        blind.show()
    with pytest.raises(ValueError, match="this has no lane"):
        run_html(Race({}))
    monkeypatch.setitem(sys.modules, "IPython.display", None)
    with pytest.raises(ValueError, match=r"IPython is not installed: .* trace export"):
        lane.show()


def test_a_run_is_one_iframe_whose_page_holds_texts_as_data_and_may_neither_ask_nor_evaluate():
    lanes = {lane: replace(trace, texts=trace.texts | HOSTILE) for lane, trace in synthetic_race(3).items()}
    hostile = Race(lanes, PICTURE)
    (page,) = re.findall(r'^<div><iframe [^<>]+ srcdoc="([^"]*)"></iframe></div>$', hostile._repr_html_())
    before, _, behind = html.unescape(page).partition('id="frames">')
    written = behind.partition("</script>")[0]
    assert "default-src 'none'" in before and "unsafe-eval" not in before
    assert "<" not in written and "<img src=x" in "".join(json.loads(written)["frames"])


@pytest.mark.night
def test_the_notebook_for_a_gpu_runs_with_a_random_pair_of_its_family(tab, tmp_path, outputs, capsys):
    target = formats.write_target(tmp_path / "target", "qwen2_5_vl")
    formats.write_draft(tmp_path / "draft", formats.FAMILY_LAYOUTS["vispec, qwen"][1])
    ids = ("Qwen/Qwen2.5-VL-3B-Instruct", "JLKang/ViSpec-Qwen2.5-VL-3B-Instruct")
    places = [f'\\"{name}\\"' for name in (*ids, target, tmp_path / "draft")]
    space = outputs.run(GPU_NOTEBOOK, dict(zip(places[:2], places[2:], strict=True)))
    said = capsys.readouterr().out
    assert "the same tokens" in said and "tokens per target pass" in said, "in float32, as on every CPU"
    assert len(space["trace"].grounding.probs) == len(space["trace"].token_ids)
    open_file(tab, tmp_path / "export.html", outputs.export())
    assert [player.is_visible(".pic img") for player in players(tab)] == [True, True]


def test_the_notebook_of_the_toy_pair_runs_and_every_output_plays_and_fits_in_its_theme(tab, tmp_path, outputs):
    for path in NOTEBOOKS:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        assert not any(cell.get("outputs") for cell in cells), "they are megabytes each"
    outputs.run(TOY_NOTEBOOK)
    open_file(tab, tmp_path / "export.html", outputs.export(DARK))
    shown = players(tab)
    assert len(shown) == 3
    for player in shown:
        assert player.is_visible(".pic img") == (player != shown[-1])  # a trace knows no picture
        assert player.inner_text(".say h2") and player.inner_text(".answer")
        assert player.evaluate(IS_DARK)
        wait(player, FITS)
    tab.page.evaluate("style => { document.body.style = style; }", LIGHT)  # the theme is changed
    tab.page.hover("iframe")
    wait(shown[0], f"!{IS_DARK}")
