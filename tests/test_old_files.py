"""Files that people keep: races saved under schema 1 open and are redrawn."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from specllava.spec_decode.rules import build_rule
from specllava.trace import DecodeTrace
from specllava.trace_fields import RETIRED_FIELDS, RETIRED_RULES
from visual.player.frames import race_frames
from visual.player.recorded import Recorded, read_recorded
from visual.player.saved_page import saved_page

DATA = Path(__file__).parent / "data"
EXAMPLES = Path(__file__).resolve().parents[1] / "assets" / "examples"
SHIPPED = sorted(path for folder in ("examples", "lessons") for path in EXAMPLES.parent.joinpath(folder).glob("*.json"))
SAVED = {"2-story": (65, 6), "3-count": (6, 1)}  # steps of both lanes, as they shipped on that date


def saved(name: str) -> Path:
    return DATA / f"{name}.schema-1.2026-11-23.json"


@pytest.mark.parametrize("name", SAVED)
def test_a_race_saved_under_schema_1_opens_with_all_that_it_says(name: str, tmp_path: Path) -> None:
    """Beside its picture, as it was saved; every value in it is found again in what was read."""
    path = tmp_path / f"{name}.json"
    shutil.copy(saved(name), path)
    Image.new("RGB", (8, 8)).save(tmp_path / f"{name}.png")
    said = json.loads(path.read_text(encoding="utf-8"))
    race = read_recorded(path)
    assert (race.name, race.image, race.prompt) == (name, tmp_path / f"{name}.png", said["speculative"]["prompt"])
    assert race.target_only is not None and race.speculative is not None
    assert (len(race.target_only.steps), len(race.speculative.steps)) == SAVED[name]
    for lane, trace in (("target_only", race.target_only), ("speculative", race.speculative)):
        ids = [said[lane]["prefill"]["first_token"], *(t for step in said[lane]["steps"] for t in step["emitted"])]
        assert list(trace.token_ids) == ids and trace.text == said[lane]["text"]
        assert [list(step.tree.tokens) for step in trace.steps] == [s["tree"]["tokens"] for s in said[lane]["steps"]]
        assert [list(step.tree.parents) for step in trace.steps] == [s["tree"]["parents"] for s in said[lane]["steps"]]
        assert trace.decode_seconds == pytest.approx(sum(sum(s["seconds"].values()) for s in said[lane]["steps"]))
        assert DecodeTrace.from_json(trace.to_json()) == trace


@pytest.mark.parametrize("name", SAVED)
def test_a_race_saved_under_schema_1_is_redrawn(name: str) -> None:
    """Every step with every node of its tree and its word, in the player and the page of its own."""
    said: dict[str, Any] = json.loads(saved(name).read_text(encoding="utf-8"))["speculative"]
    frames = race_frames(read_recorded(saved(name)))
    run, *middle = map(json.loads, frames)
    assert (run["kind"], run["lanes"], run["question"]) == ("run", ["target-only", "speculative"], said["prompt"])
    steps = [frame for frame in middle if frame["kind"] == "step" and frame["lane"] == "speculative"]
    assert [len(frame["words"]) for frame in steps] == [len(step["emitted"]) for step in said["steps"]]
    for frame, step in zip(steps, said["steps"], strict=True):
        tree, count = frame["tree"], len(step["tree"]["tokens"])
        assert tree["parent"][:count] == step["tree"]["parents"] and len(tree["text"]) in (count, count + 1)
        taken = [node for node, kind in enumerate(tree["kind"]) if kind == "a"]
        assert taken == sorted(step["verification"]["accepted"])
        assert [phase["phase"] for phase in frame["phases"]] == ["guess", "check", "accept", "keep"]
    (end,) = [frame for frame in middle if frame["kind"] == "end"]
    assert json.loads(end["file"])["speculative"]["steps"] == said["steps"]
    assert said["prompt"] in saved_page(frames)


@pytest.mark.parametrize("path", [one for one in SHIPPED if one.name != "lessons.json"], ids=lambda path: path.stem)
def test_every_shipped_race_opens_unmodified(path: Path) -> None:
    race = read_recorded(path)
    assert race.lead.steps and race_frames(race)


@pytest.mark.parametrize("field", sorted(RETIRED_FIELDS["DecodingConfig"]))
def test_a_file_with_a_retired_option_opens_as_one_without(field: str) -> None:
    """Whatever its value is."""
    said = json.loads(saved("3-count").read_text(encoding="utf-8"))["speculative"]
    without = {**said, "config": {name: value for name, value in said["config"].items() if name != field}}
    read = DecodeTrace.from_json(json.dumps(without))
    for value in ("traversal", [0, 0, 1], None):
        said["config"][field] = value
        assert DecodeTrace.from_json(json.dumps(said)) == read


def test_a_draw_with_a_retired_field_opens_as_one_without() -> None:
    race = json.loads(EXAMPLES.parent.joinpath("lessons", "coin.json").read_text(encoding="utf-8"))
    said = race["speculative"]
    draws = [draw for step in said["steps"] for draw in step.get("draws", ())]
    read = DecodeTrace.from_json(json.dumps(said))
    for draw in draws:
        draw["credit"] = 0.5
    assert draws and DecodeTrace.from_json(json.dumps(said)) == read


@pytest.mark.parametrize(("rule", "told"), [("entropy", ""), ("fixed", "speculative does not say branching (now (3, ")])
def test_an_option_that_only_another_rule_reads_is_not_missing(tmp_path: Path, rule: str, told: str) -> None:
    said = json.loads(saved("3-count").read_text(encoding="utf-8"))
    del said["target_only"]
    said["speculative"]["config"]["rule"] = rule
    del said["speculative"]["config"]["branching"]
    path = tmp_path / "race.json"
    path.write_text(json.dumps(said), encoding="utf-8")
    filled = read_recorded(path).filled
    assert filled.startswith(told) and bool(filled) == bool(told)


@pytest.mark.parametrize("rule", RETIRED_RULES)
def test_a_run_of_a_retired_rule_is_shown_by_its_name_and_not_repeated(rule: str) -> None:
    said = json.loads(saved("3-count").read_text(encoding="utf-8"))["speculative"]
    said["config"]["rule"] = rule
    read = DecodeTrace.from_json(json.dumps(said))
    assert (read.rule or read.config.rule) == rule and json.loads(read.to_json())["config"]["rule"] == rule
    assert race_frames(Recorded("race", None, None, read))
    with pytest.raises(ValueError, match=rf"the {rule} rule is not here, .*commit 6362268 has it$"):
        build_rule(read.config)
    with pytest.raises(ValueError, match=rf"the {rule} rule is not here, .*commit 6362268 has it"):
        replace(read.config, drafter="none")
