"""Frames of the player and recorded races. No model, no browser."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.visual_traces import first_steps, synthetic_race, synthetic_recorded

from specllava.trace import StepSeconds
from visual.player.component import player_arguments
from visual.player.frames import FrameList, playing_speed, recorded_frames
from visual.player.recorded import load_recorded


def test_a_step_stays_small() -> None:
    lanes = synthetic_race(1)
    frames = recorded_frames(lanes["target-only"], lanes["speculative"])
    assert max(len(frame) for frame in frames if '"kind":"step"' in frame) < 20_000
    assert max(len(frame) for frame in frames if '"lane":"target-only"' in frame) < 400


# --- headline -------------------------------------------------------------------------------------------------------


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
