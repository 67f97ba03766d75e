"""The nodes of a run as a file, recomputed from traces; no cell is a formula."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from typing import Any

import pytest
from support.amount import sample
from support.browser import SavedPages, Visit, script_page
from support.visual_traces import retexted, synthetic_race
from test_files_page import saved

from specllava.core.race_file import race_json
from specllava.core.trace import DecodeTrace
from visual.player.race_frames import race_frames
from visual.player.recorded import read_recorded

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # begin one in some spreadsheet
FORMULAS = {5: " =HYPERLINK(1)", 8: ' +1,"quoted"', 9: "-2", 11: " @x\ny"}
CODES = {"root", "accepted", "rejected", "never reached", "the target's own", "pruned"}



def inert_cell(value: Any) -> Any:
    """Write a text that a spreadsheet would compute with an apostrophe in front."""
    computed = isinstance(value, str) and (value.startswith(FORMULA) or value.lstrip().startswith(FORMULA))
    return f"'{value}" if computed else value


def test_browser_and_python_make_the_same_cells_inert(browser: Any) -> None:
    codes = (*range(0x21), *range(0x7F, 0xA1), 0x2028, 0x3000, *map(ord, "=+-@＝＋－＠'\"a1−–"))
    starts = [chr(code) for code in codes]
    texts = [f"{space}{first}x" for space in ("", " ", "\t", "\u00a0") for first in starts]
    with script_page(browser, "tables.js") as page:
        found = page.evaluate("(texts) => texts.map(script.inert)", texts)
        assert found == [inert_cell(text) for text in texts]
        given = {"columns": ["a", "b"], "rows": [[text, number] for number, text in enumerate(texts)]}
        written = page.evaluate("script.csvOf", given)
    rows = list(csv.reader(io.StringIO(written, newline="")))
    assert rows[1:] == [[str(inert_cell(text)), str(number)] for number, text in enumerate(texts)]


def opened(saved_page: SavedPages, folder: Path, race: dict[str, DecodeTrace], **context: Any) -> Visit:
    """A page saved of a race file, so that it holds the file as a real one does."""
    path = folder / "race.json"
    path.write_text(race_json(race["target-only"], race["speculative"], None), encoding="utf-8")
    return saved_page(race_frames(read_recorded(path), "recorded run", None), **context)


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_bytes().decode(), newline="")))


@pytest.mark.parametrize("seed", sample([1, 4], 1))
def test_nodes_of_a_run_are_those_of_its_trace(saved_page: SavedPages, tmp_path: Path, seed: int) -> None:
    race = {lane: retexted(trace, FORMULAS) for lane, trace in synthetic_race(seed).items()}
    trace = race["speculative"]
    tab = opened(saved_page, tmp_path, race)
    nodes = rows_of(saved(tab, "nodes", tmp_path))
    assert {row["verdict"] for row in nodes} <= CODES
    assert all(inert_cell(cell) == cell for row in nodes for cell in row.values())
    for number, step in enumerate(trace.steps, start=1):
        own = {int(row["node"]): row for row in nodes if row["step"] == str(number)}
        depths, tree = step.tree.depths(), step.tree
        for node in range(1, len(tree)):
            row = own[node]
            assert (int(row["parent"]), int(row["depth"]), int(row["token_id"])) == (
                tree.parents[node], depths[node], tree.tokens[node],
            )  # fmt: skip
            assert (row["verdict"] == "accepted") == (node in step.verification.accepted)
            assert float(row["draft_probability"]) == pytest.approx(math.exp(tree.log_probs[node]), rel=1e-9)
            assert float(row["target_probability"]) == step.view.token_probs[node]
            assert row["entropy_nats"] == ("" if tree.entropies[node] is None else str(tree.entropies[node]))
            assert row["why"]
        pruned = [row for row in own.values() if row["verdict"] == "pruned"]
        assert sorted(int(row["token_id"]) for row in pruned) == sorted(guess.token for guess in step.pruned)
