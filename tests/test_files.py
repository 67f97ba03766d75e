"""Race files in and out: what is read, what is refused, and that a run saved as a page holds texts as data only."""

from __future__ import annotations

import contextlib
import json
import re
import resource
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from pydantic import ValidationError
from support.visual_traces import first_steps, retexted, synthetic_race, synthetic_recorded

from specllava import config, trace
from specllava.cli import commands as trace_commands
from specllava.cli.main import main
from specllava.cli.options import write_json
from specllava.files import write_whole
from specllava.models.images import open_image
from specllava.race_file import race_json
from specllava.trace import DecodeTrace
from visual.player import recorded, saved_page
from visual.player.frames import data_address, race_frames
from visual.player.labels import path_text, token_label
from visual.player.recorded import Recorded, read_recorded
from visual.player.saved_page import STATIC

LANES = synthetic_race(1)
HOSTILE = {
    5: ' <img src=x onerror="window.hacked=1">', 8: " ${6*7}", 9: " {{value}}",
    11: " </script><script>window.hacked=1</script>", 12: " \u202eover", 13: " <!--", 14: " " + "long" * 120,
}  # fmt: skip


def frames_of(alone: DecodeTrace | None, together: DecodeTrace | None) -> list[dict[str, Any]]:
    """The player's frames of both lanes."""
    return [json.loads(frame) for frame in race_frames(Recorded("race", None, alone, together))]


def end_of(frames: list[dict[str, Any]]) -> dict[str, Any]:
    return next(frame for frame in frames if frame["kind"] == "end")


def hostile_race() -> dict[str, Any]:
    """Both lanes of a race whose tokens try to be more than text."""
    return {name: retexted(trace, HOSTILE) for name, trace in LANES.items()}


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
    with pytest.raises(ValueError, match=re.escape(path.name)) as caught:
        read_recorded(path)
    line = str(caught.value)
    assert "\n" not in line
    assert len(line) < 400
    return line


# --- in -------------------------------------------------------------------------------------------------------------


def test_a_race_is_read_with_its_picture_and_without(tmp_path: Path) -> None:
    path = written(tmp_path, image="scene.png")
    race = read_recorded(path)
    assert (race.name, race.image) == ("race", None)
    assert race.speculative == LANES["speculative"]
    Image.new("RGB", (9, 9)).save(tmp_path / "scene.png")
    assert read_recorded(path).image == tmp_path / "scene.png"


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


@pytest.mark.parametrize(
    "change",
    [
        lambda parts: parts[LANE].update(steps=[{}] * 100_000),
        lambda parts: parts.update({str(i): 0 for i in range(100_000)}),
        lambda parts: parts[LANE]["steps"][0]["tree"].update(tokens=["x"] * 100_000),
        lambda parts: parts[LANE].update(texts={f"x{i}": 0 for i in range(100_000)}),
    ],
)
def test_a_file_with_very_many_errors_costs_little_memory(
    tmp_path: Path, change: Callable[[dict[str, Any]], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []
    few = config.few_errors

    def counted(error: ValidationError) -> Any:
        counts.append(error.error_count())
        return few(error)

    for module in (config, trace):
        monkeypatch.setattr(module, "few_errors", counted)
    path = written(tmp_path, change)
    tracemalloc.start()
    try:
        refusal(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert max(counts, default=0) < 200 and peak < 60 * 2**20


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_recorded(path).speculative == LANES["speculative"]


def test_a_rule_that_is_not_known_here_is_read_drawn_and_written_again(tmp_path: Path) -> None:
    path = written(tmp_path, _set("speculative/config/rule", "<b>forest</b>"))
    race = read_recorded(path)
    assert race.speculative is not None
    assert race.speculative.config.rule == "<b>forest</b>"
    end = end_of(frames_of(race.target_only, race.speculative))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        path.write_text(race_json(race.target_only, race.speculative))
    assert path.read_text() == end["file"]
    assert read_recorded(path).speculative == race.speculative


def test_options_that_a_file_leaves_open_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert read_recorded(written(tmp_path)).filled == ""
    path = written(tmp_path, lambda parts: [parts["speculative"]["config"].pop(key) for key in ("ngram", "top_k")])
    race = read_recorded(path)
    assert race.filled == "speculative does not say top_k (now 0), ngram (now 3): today's defaults stand in their place"
    assert main(["trace", "export", str(path), "--html", str(tmp_path / "out.html")]) == 0
    assert race.filled in capsys.readouterr().err


def test_every_race_that_ships_is_read_with_nothing_filled_in() -> None:
    paths = sorted((trace_commands.PAGE.parent / "assets").glob("*/?-*.json"))
    assert len(paths) > 5 and {read_recorded(path).filled for path in paths} == {""}


@pytest.mark.parametrize("lane", LANES)
def test_the_trace_of_one_lane_is_shown_by_itself(tmp_path: Path, lane: str) -> None:
    bare, missing = tmp_path / "bare.json", tmp_path / "missing.json"
    bare.write_bytes(LANES[lane].to_json())
    parts = {"target-only": (LANES[lane], None), "speculative": (None, LANES[lane])}[lane]
    missing.write_text(race_json(*parts), encoding="utf-8")
    races = read_recorded(bare), read_recorded(missing)
    for race in races:
        assert race.lead == LANES[lane] and (race.target_only, race.speculative) == parts
        run, *frames, end = frames_of(race.target_only, race.speculative)
        assert run["lanes"] == [lane] and {frame["lane"] for frame in frames} == {lane}
        steps = [frame for frame in frames if frame["kind"] == "step"]
        assert len(steps) == len(LANES[lane].steps) and all("tree" in frame for frame in steps)
        assert end["headline"]["say"][0][1].startswith(f"{len(steps)} passes for {len(LANES[lane].token_ids)} tokens")
        again = tmp_path / "again.json"
        again.write_text(end["file"])
        assert read_recorded(again).lead == LANES[lane]


def test_files_are_bounded_before_they_are_parsed_and_before_they_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path)
    monkeypatch.setattr(recorded, "MAX_STEPS", 5)
    assert "target_only has 63 steps, and at most 5 can be shown" in refusal(path)
    monkeypatch.setattr(recorded, "MAX_BYTES", 1000)
    assert "and at most 1,000 are read" in refusal(path)
    assert "nowhere.json cannot be read" in refusal(tmp_path / "nowhere.json")


def test_a_race_that_was_stopped_claims_no_more_than_it_knows() -> None:
    end = end_of(frames_of(first_steps(LANES["target-only"], 9), first_steps(LANES["speculative"], 2)))
    tokens = len(first_steps(LANES["speculative"], 2).token_ids)
    assert end["ending"] == "stopped"
    assert end["headline"]["say"] == [["b", f"Stopped after 2 passes: {tokens} tokens so far."]]


# --- texts ----------------------------------------------------------------------------------------------------------


def test_no_text_turns_the_direction_of_what_stands_around_it() -> None:
    race = hostile_race()
    shown = [frame | {"file": "", "csv": ""} for frame in frames_of(race["target-only"], race["speculative"])]
    assert "\\u202e" not in json.dumps(shown)


def test_labels_of_a_very_long_token_are_short_and_its_text_is_whole() -> None:
    trace = hostile_race()["speculative"]
    assert len(token_label(trace, 14)) <= 24
    assert all(len(path_text(trace, step, n)) <= 80 for step in trace.steps for n in range(len(step.tree)))
    frames = frames_of(hostile_race()["target-only"], trace)
    assert any("long" * 120 in json.dumps(frame) for frame in frames if frame.get("lane") == "target-only")


# --- out ------------------------------------------------------------------------------------------------------------


class _Scripts(HTMLParser):
    """Script elements of a page as a browser would split them, and addresses that it would ask."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: list[str] = []
        self.asked: list[str] = []
        self.frames = ""
        self.inside = False

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.asked += [v for k, v in attributes if k in ("src", "href") and v and not v.startswith(("data:", "?view="))]
        if tag == "script":
            self.kinds.append(given.get("type") or "classic")
            self.inside = given.get("id") == "frames"

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.frames += data

    def handle_endtag(self, tag: str) -> None:
        self.inside = False


def test_a_page_of_its_own_holds_hostile_texts_as_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved_page, "PLOTLY_JS", STATIC / "race.js")  # parsing 5 MB would take long
    saved_page.halves.cache_clear()
    race = hostile_race()
    both = Recorded("race", None, race["target-only"], race["speculative"])
    frames = race_frames(both, pictures=["data:image/png;,"])
    parser = _Scripts()
    parser.feed(saved_page.saved_page(frames))
    saved_page.halves.cache_clear()
    assert json.loads(parser.frames)["frames"] == frames
    assert "<" not in parser.frames
    assert parser.kinds == ["application/json", "classic", "module"]
    assert parser.asked == []


def test_a_page_of_its_own_has_every_part_and_may_ask_nobody() -> None:
    before, behind = saved_page.halves()
    assert "default-src 'none'" in before
    assert saved_page.PLOTLY_JS.read_text(encoding="utf-8") in behind
    assert not re.search(r"<!-- \w+ -->", before + behind)


def test_a_picture_travels_small() -> None:
    address = data_address(open_image(Image.new("RGBA", (3000, 1000), "red")))
    assert address.startswith("data:image/jpeg;base64,")
    assert len(address) < 10_000


# --- the command line -----------------------------------------------------------------------------------------------


def test_a_race_is_exported_as_a_page_with_its_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    race, out = synthetic_recorded(tmp_path, 1)[0], tmp_path / "out.html"
    assert main(["trace", "export", str(tmp_path / "race-0.json"), "--html", str(out)]) == 0
    page = out.read_text(encoding="utf-8")
    assert "data:image/jpeg;base64," in page
    assert race.prompt in page
    assert f"{len(race.speculative.steps)} steps" in capsys.readouterr().out


@contextlib.contextmanager
def full_disk(most: int) -> Iterator[None]:
    """No file may grow beyond ``most`` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_no_half_of_a_page_and_the_refusal_names_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half of it lay under the final name, and the message named no file."""
    race, out = written(tmp_path), tmp_path / "out.html"
    out.write_text("the page of yesterday")
    with full_disk(50_000):
        assert main(["trace", "export", str(race), "--html", str(out)]) == 1
    assert str(out) in capsys.readouterr().err
    assert out.read_text() == "the page of yesterday"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.html", "race.json"]


def test_results_are_there_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    with full_disk(1000), pytest.raises(OSError, match=r"result\.json"):
        write_json(path, {"text": "x" * 5000})
    assert list(tmp_path.iterdir()) == []
    write_json(path, {"text": "é"})
    assert json.loads(path.read_text(encoding="utf-8")) == {"text": "é"}


def test_what_is_written_whole_goes_through_links_and_into_devices(tmp_path: Path) -> None:
    goal, link = tmp_path / "goal", tmp_path / "link"
    link.symlink_to(goal)
    write_whole(link, "here")
    assert link.is_symlink() and goal.read_text() == "here"
    write_whole(Path("/dev/null"), b"gone")
    assert not Path("/dev/null").is_file()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["trace", "view", "/none.json"], "none.json cannot be read"),
        (["trace", "export", __file__, "--html", "x.html"], "test_files.py is not a recorded race"),
        (["trace", "export", "RACE", "--html", "/none/x.html"], "/none/x.html"),
    ],
)
def test_bad_files_cost_one_line_on_stderr(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(written(tmp_path)) if argument == "RACE" else argument for argument in arguments]
    assert main(arguments) == 1
    errors = capsys.readouterr().err.strip()
    assert said in errors
    assert "\n" not in errors
