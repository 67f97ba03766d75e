"""What a guess was made from: in a run's trace, on a node's card, and never said of a drafter that is not known."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support import models
from support.browser import new_page
from support.shipped_races import shipped_traces
from support.visual_traces import pruned_after_root, synthetic_race, synthetic_recorded

from specllava.config import DecodingConfig
from specllava.trace import DecodeTrace
from specllava.models.drafts.eagle import fresh_feature_draft
from visual.figures.step_layout import StepLayout
from visual.page.app_state import AppState
from visual.player.node_cards import GUESSED_STATE, READING, STATE, TEXT, guess_sources, node_cards
from visual.player.recorded import read_recorded

CONFIG = DecodingConfig(max_new_tokens=8)


def reading_states(trace: DecodeTrace) -> DecodeTrace:
    return replace(trace, setting=replace(trace.setting, draft_reads="states"))


def looked_up(trace: DecodeTrace) -> DecodeTrace:
    return replace(trace, config=replace(trace.config, drafter="prompt-lookup"))


@pytest.mark.parametrize(
    ("of", "first", "deeper"),
    [
        (lambda trace: trace, READING, READING),
        (reading_states, STATE, GUESSED_STATE),
        (looked_up, TEXT, TEXT),
        (lambda trace: looked_up(reading_states(trace)), TEXT, TEXT),
        (lambda trace: replace(trace, drafter="mine"), "", ""),
    ],
)
def test_every_guess_of_a_step_says_what_it_was_made_from(
    of: Callable[[DecodeTrace], DecodeTrace], first: str, deeper: str
) -> None:
    depths = set()
    for seed in range(6):
        trace = of(synthetic_race(seed)["speculative"])
        for step in map(pruned_after_root, trace.steps):
            layout = StepLayout(trace, step)
            sources = guess_sources(trace, step)
            assert len(sources) == len(layout.parents)
            for node, depth in enumerate(layout.depths):
                guess = node not in (0, layout.next_node)
                assert sources[node] == ("" if not guess else first if depth == 1 else deeper)
                depths.add(depth)
            cards: Any = node_cards(layout)
            said = [None if n is None else cards["sources"][n] for n in cards["source"]]
            assert said == [f"Guessed from {source}." if source else None for source in sources]
    assert max(depths) > 2


def test_a_run_says_what_its_draft_reads_only_where_that_is_the_targets_states() -> None:
    """Files of all other drafts are as they were, byte for byte, and an old one is of a draft that reads the text."""
    plain = models.pair("mixed")
    reading = replace(plain, draft=fresh_feature_draft(plain.target))
    told, silent = (pair.generate(None, "what", CONFIG) for pair in (reading, plain))
    assert (told.setting.draft_reads, silent.setting.draft_reads) == ("states", None)
    assert json.loads(told.to_json())["setting"]["draft_reads"] == "states"
    assert "draft_reads" not in silent.to_json().decode()
    for trace in (told, silent):
        assert DecodeTrace.from_json(trace.to_json()) == trace
    for trace in shipped_traces():
        assert ("draft_reads" in trace.to_json().decode()) == (
            trace.setting.draft == "eagle" or trace.setting.pair == "smol"
        )


@pytest.mark.parametrize("value", ["text", "", 1, ["states"]])
def test_a_file_with_another_word_there_is_refused_in_one_line(value: Any) -> None:
    document = json.loads(synthetic_race(0)["speculative"].to_json())
    document["setting"]["draft_reads"] = value
    with pytest.raises(ValueError, match="draft_reads") as refused:
        DecodeTrace.from_json(json.dumps(document))
    assert "\n" not in str(refused.value)


@pytest.mark.night
def test_the_card_of_a_guess_says_it_and_that_of_the_root_does_not(
    serve: Callable[[AppState], str], browser: Any, tmp_path: Path
) -> None:
    (recorded,) = synthetic_recorded(tmp_path, 1)
    path = tmp_path / f"{recorded.name}.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    for lane in ("target_only", "speculative"):
        document[lane]["setting"]["draft_reads"] = "states"
    path.write_text(json.dumps(document), encoding="utf-8")
    page = new_page(browser, {"width": 375, "height": 812})
    page.goto(serve(AppState(lambda: None, [read_recorded(path)])))  # type: ignore[arg-type, return-value]
    page.wait_for_selector(".tree .main-svg .textpoint")
    page.focus(".stage")
    said = {}
    for _ in range(12):
        page.keyboard.press("ArrowDown")
        said[page.inner_text(".node-verdict"), page.inner_text(".node-word")] = page.inner_text(".node-reason")
    roots = [reason for (verdict, _), reason in said.items() if verdict.startswith("the target's own")]
    assert roots and not any("Guessed from" in reason for reason in roots)
    for source in (STATE, GUESSED_STATE):
        assert any(reason.startswith(f"Guessed from {source}. ") for reason in said.values()), said
    page.close()
