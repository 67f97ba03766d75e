"""Race files of any age: what is read, what is refused, and what is written whole or not at all."""

from __future__ import annotations

import json
import resource
import shutil
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image
from support.cases import complaint
from support.shipped_races import ASSETS, end_of, frames_of
from support.visual_traces import synthetic_race

from specllava.cli import commands
from specllava.cli.main import main
from specllava.race_file import race_json
from specllava.spec_decode.rules import build_rule
from specllava.trace import DecodeTrace
from specllava.trace_fields import RETIRED_FIELDS, RETIRED_RULES
from visual.player import recorded
from visual.player.frames import race_frames
from visual.player.labels import path_text, token_label
from visual.player.recorded import Recorded, read_recorded

LANES, EXAMPLES = synthetic_race(1), ASSETS / "examples"
HOSTILE = {12: " \u202eover", 14: " " + "long" * 120}


def written(folder: Path, change: Callable[[dict[str, Any]], Any] | None = None, image: str | None = None) -> Path:
    """A race file, changed before it is written."""
    parts = json.loads(race_json(LANES["target-only"], LANES["speculative"], image))
    if change:
        change(parts)
    path = folder / "race.json"
    path.write_text(json.dumps(parts))
    return path


def refusal(path: Path) -> str:
    """The one line that says why a file is not read."""
    line = complaint(lambda: read_recorded(path))
    assert path.name in line
    return line


def test_a_race_is_read_with_its_picture_and_without(tmp_path: Path) -> None:
    path = written(tmp_path, image="scene.png")
    race = read_recorded(path)
    assert (race.name, race.image) == ("race", None)
    assert race.speculative == LANES["speculative"]
    Image.new("RGB", (9, 9)).save(tmp_path / "scene.png")
    assert read_recorded(path).image == tmp_path / "scene.png"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())  # a byte order mark
    assert read_recorded(path).speculative == LANES["speculative"]


def test_a_picture_is_taken_from_beside_the_file_only(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    Image.new("RGB", (9, 9)).save(tmp_path / "scene.png")
    for name in ("../scene.png", "race.json", "a" * 5000, "\0.png", "nowhere.png", ""):
        assert read_recorded(written(inner, image=name)).image is None


def _set(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(parts: dict[str, Any]) -> None:
        *way, last = path.split("/")
        here: Any = parts
        for step in way:
            here = here[int(step)] if isinstance(here, list) else here[step]
        here[int(last) if isinstance(here, list) else last] = value

    return change


LANE = "speculative"
NO_RACES: list[tuple[Any, str]] = [
    (lambda parts: parts.clear(), "neither a target_only nor a speculative lane"),
    (lambda parts: parts["target_only"].pop("steps"), "target_only.steps: field required"),
    (_set("comment", "hello"), "comment"),
    (_set(f"{LANE}/steps/0/seconds/draft", 1e308), "seconds, and at most 1,000,000 can be shown"),
    (_set(f"{LANE}/steps/0/tree/log_probs/1", 900.0), "step 1: a log-probability of 900 is above 0"),
    (_set(f"{LANE}/steps/0/tree/log_probs/1", -1e308), "a log-probability of -1e+308 is below -10000"),
    (_set(f"{LANE}/steps/0/tree/entropies/0", 1e308), "step 1: an entropy of 1e+308 is above 100"),
    (_set(f"{LANE}/steps/0/tree/entropies/0", -1e308), "step 1: an entropy of -1e+308 is below 0"),
    (_set(f"{LANE}/steps/0/target/token_ranks/0", 10**400), f"{LANE}.steps.0.target.token_ranks.0"),
    (_set(f"{LANE}/steps/0/pruned", [{"parent": 0, "token": 5, "log_prob": -1.0}] * 6001), "6,001 pruned"),
    (_set(f"{LANE}/texts/-5", "x"), "'-5' is no token id with a text"),
    (_set(f"{LANE}/texts/5", "x" * 600), "speculative has 600 characters in one token"),
    (_set(f"{LANE}/schema_version", True), f"{LANE}.schema_version = True: it must be the integer 1"),
    (_set(f"{LANE}/schema_version", 2), "the file is of a newer specllava, and this one reads 1"),
    (_set(f"{LANE}/steps/0/colour", "red"), "may be of a newer specllava that knows it"),
    (_set(f"{LANE}/config/drafter", "oracle"), "may be of a newer specllava that knows it"),
    (_set(f"{LANE}/config/rule", "x" * 101), "a rule's name has 1 to 100 printable characters"),
    (_set(f"{LANE}/eos_token_ids", []), f"{LANE}.finish_reason = 'eos': the last token"),
    (_set(f"{LANE}/steps/0/target/choices/0", 5), "the target's choice after node 0 stands, 5, not"),
    (_set("image", 7), "image = 7: it must be the name of a file"),
    (_set(f"{LANE}/prompt", "Another?"), "different prompts"),
    (_set(f"{LANE}/setting/pair", "x" * 300), "300 characters in a name"),
    (_set(f"{LANE}/steps/0/emitted", [1] * 100_000), "emitted"),
]


def test_what_is_no_race_is_refused_by_what_is_wrong(tmp_path: Path) -> None:
    for change, said in NO_RACES:
        assert said in refusal(written(tmp_path, change))
    for data in (b"", b"no json", b"[1, 2]", b"[" * 100_000, b"\xff\xfe\x00"):
        (tmp_path / "odd.json").write_bytes(data)
        refusal(tmp_path / "odd.json")


def test_a_file_with_very_many_errors_costs_little_memory(tmp_path: Path) -> None:
    for change in (
        lambda parts: parts[LANE].update(steps=[{}] * 100_000),
        lambda parts: parts.update({str(i): 0 for i in range(100_000)}),
        lambda parts: parts[LANE]["steps"][0]["tree"].update(tokens=["x"] * 100_000),
        lambda parts: parts[LANE].update(texts={f"x{i}": 0 for i in range(100_000)}),
        lambda parts: parts[LANE]["config"].update(branching=["x"] * 100_000),
        lambda parts: parts[LANE]["config"].update(rank_acceptance=["x"] * 100_000),
    ):
        path = written(tmp_path, change)
        tracemalloc.start()
        try:
            refusal(path)
            assert tracemalloc.get_traced_memory()[1] < 60 * 2**20
        finally:
            tracemalloc.stop()


def test_a_rule_that_is_not_known_here_is_read_drawn_and_written_again(tmp_path: Path) -> None:
    race = read_recorded(written(tmp_path, _set("speculative/config/rule", "<b>forest</b>")))
    assert race.speculative.config.rule == "<b>forest</b>"
    path = tmp_path / "again.json"
    path.write_text(end_of(frames_of(race))["file"])
    assert read_recorded(path).speculative == race.speculative


def test_options_that_a_file_leaves_open_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [written(tmp_path), *EXAMPLES.glob("?-*.json"), *EXAMPLES.parent.glob("lessons/[!l]*.json")]
    assert len(paths) > 10 and all(race_frames(race := read_recorded(path)) and not race.filled for path in paths)
    path = written(tmp_path, lambda parts: [parts["speculative"]["config"].pop(key) for key in ("ngram", "top_k")])
    race = read_recorded(path)
    assert race.filled == "speculative does not say top_k (now 0), ngram (now 3): today's defaults stand in their place"
    assert main(["trace", "export", str(path), "--html", str(tmp_path / "out.html")]) == 0
    assert race.filled in capsys.readouterr().err


def test_files_are_bounded_before_they_are_parsed_and_before_they_are_drawn(tmp_path, monkeypatch) -> None:
    path = written(tmp_path)
    monkeypatch.setattr(recorded, "MAX_STEPS", 5)
    assert "target_only has 63 steps, and at most 5 can be shown" in refusal(path)
    monkeypatch.setattr(recorded, "MAX_BYTES", 1000)
    assert "and at most 1,000 are read" in refusal(path)
    assert "nowhere.json cannot be read" in refusal(tmp_path / "nowhere.json")


def test_one_lane_is_shown_by_itself_and_no_text_turns_or_floods_what_stands_around_it(tmp_path: Path) -> None:
    for lane, own in LANES.items():
        path = tmp_path / f"{lane}.json"
        path.write_bytes(replace(own, texts=own.texts | HOSTILE).to_json())
        race = read_recorded(path)
        assert race.turns == (race,) and race.lead.lane == lane
        run, *frames, end = frames_of(race)
        assert run["lanes"] == [lane] and {frame["lane"] for frame in frames} == {lane}
        shown = json.dumps([frame | {"file": "", "csv": ""} for frame in (run, *frames, end)])
        assert "\\u202e" not in shown and "long" * 120 in shown
        assert len(token_label(race.lead, 14)) <= 24
        assert all(len(path_text(race.lead, step, n)) <= 80 for step in race.lead.steps for n in range(len(step.tree)))


def test_a_race_is_exported_as_a_page_with_its_picture_or_opened_by_the_page(tmp_path, capsys, monkeypatch) -> None:
    path, out = EXAMPLES / "3-count.json", tmp_path / "out.html"
    race = read_recorded(path)
    assert main(["trace", "export", str(path), "--html", str(out)]) == 0
    page = out.read_text(encoding="utf-8")
    assert "data:image/jpeg;base64," in page
    assert race.prompt in page
    assert f"{len(race.speculative.steps)} steps" in capsys.readouterr().out
    started: list[list[str]] = []
    ended = SimpleNamespace(returncode=0)
    monkeypatch.setattr(commands.subprocess, "run", lambda words, check: started.append(words) or ended)
    assert main(["trace", "view", str(path), "--port", "7"]) == 0
    app = str(ASSETS.parent / "app.py")
    assert started == [[sys.executable, app, "--open", str(path.resolve()), "--port", "7"]]
    monkeypatch.setattr(commands, "find_spec", lambda package: None)
    assert main(["trace", "view", str(path)]) == 1 and 'pip install "specllava[page]"' in capsys.readouterr().err
    (tmp_path / "races").mkdir()
    (tmp_path / "races" / "chain.json").write_bytes(path.read_bytes())  # a lesson's race has this name
    assert main(["site", "--output", str(tmp_path / "site"), "--races", str(tmp_path / "races")]) == 1
    assert "chain.json has the name of a lesson's race" in capsys.readouterr().err


def test_a_full_disk_leaves_no_half_of_a_page_and_the_refusal_names_the_file(tmp_path, capsys) -> None:
    """Half of it lay under the final name, and the message named no file."""
    race, out = written(tmp_path), tmp_path / "out.html"
    out.write_text("the page of yesterday")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))  # no file may grow beyond it
    try:
        assert main(["trace", "export", str(race), "--html", str(out)]) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert str(out) in capsys.readouterr().err
    assert out.read_text() == "the page of yesterday"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.html", "race.json"]


DATA = Path(__file__).parent / "data"
SAVED = {"2-story": (65, 6), "3-count": (6, 1)}  # steps of both lanes, as they shipped on that date


def saved(name: str) -> Path:
    return DATA / f"{name}.schema-1.2026-11-23.json"


@pytest.mark.parametrize("name", SAVED)
def test_a_race_saved_under_schema_1_opens_and_is_redrawn_with_all_that_it_says(name: str, tmp_path: Path) -> None:
    """Beside its picture, as it was saved; every step with every node of its tree."""
    path = tmp_path / f"{name}.json"
    shutil.copy(saved(name), path)
    Image.new("RGB", (8, 8)).save(tmp_path / f"{name}.png")
    said = json.loads(path.read_text(encoding="utf-8"))
    race = read_recorded(path)
    assert (race.name, race.image, race.prompt) == (name, tmp_path / f"{name}.png", said["speculative"]["prompt"])
    frames = frames_of(race)
    assert (len(race.target_only.steps), len(race.speculative.steps)) == SAVED[name]
    for lane, own in (("target_only", race.target_only), ("speculative", race.speculative)):
        steps = said[lane]["steps"]
        ids = [said[lane]["prefill"]["first_token"], *(token for step in steps for token in step["emitted"])]
        assert list(own.token_ids) == ids and own.text == said[lane]["text"]
        assert [list(step.tree.tokens) for step in own.steps] == [step["tree"]["tokens"] for step in steps]
        assert own.decode_seconds == pytest.approx(sum(sum(step["seconds"].values()) for step in steps))
        assert DecodeTrace.from_json(own.to_json()) == own
    assert json.loads(end_of(frames)["file"])["speculative"]["steps"] == steps


@pytest.mark.parametrize("field", sorted(RETIRED_FIELDS["DecodingConfig"]))
def test_a_file_with_a_retired_option_opens_as_one_without(field: str) -> None:
    """Whatever its value is; and so do draws with a field that is not here any more."""
    said = json.loads(saved("3-count").read_text(encoding="utf-8"))["speculative"]
    without = {**said, "config": {name: value for name, value in said["config"].items() if name != field}}
    read = DecodeTrace.from_json(json.dumps(without))
    for value in ("traversal", [0, 0, 1], None):
        said["config"][field] = value
        assert DecodeTrace.from_json(json.dumps(said)) == read
    drawn = json.loads((ASSETS / "lessons" / "coin.json").read_text(encoding="utf-8"))["speculative"]
    read = DecodeTrace.from_json(json.dumps(drawn))
    assert [draw.update(credit=0.5) for step in drawn["steps"] for draw in step.get("draws", ())]
    assert DecodeTrace.from_json(json.dumps(drawn)) == read


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
