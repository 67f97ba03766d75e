"""``compare`` with two sides, and ``trace join``: what they write, and that bad input costs one line."""

from __future__ import annotations

import csv
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from support import models
from support.visual_traces import synthetic_race

import specllava.lab.comparison
from specllava.cli import comparison
from specllava.cli.comparison import ComparisonOptions, load_sides, side_options
from specllava.cli.main import main
from specllava.cli.options import AnswerOptions, PairOptions
from specllava.cli.main import join_arguments
from specllava.cli.question_file import read_questions
from specllava.config import DecodingConfig
from specllava.race_file import NamedTrace, comparison_json, race_json
from specllava.pair import Pair
from visual.player.recorded import read_recorded

SHORT = ["--max-new-tokens", "10"]


@pytest.fixture
def small(tiny: Pair, monkeypatch: pytest.MonkeyPatch) -> list[PairOptions]:
    """The commands load the tiny pair; the options of every load."""
    loaded: list[PairOptions] = []
    monkeypatch.setattr(comparison, "load_pair", lambda chosen: loaded.append(chosen) or tiny)
    return loaded


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A file with a row of each kind."""
    (tmp_path / "pictures").mkdir()
    for name in ("a.png", "b.png"):
        Image.new("RGB", (40, 32), "teal").save(tmp_path / "pictures" / name)
    talk = [{"from": "human", "value": "<image>\nWhat is there?"}, {"from": "gpt", "value": "A wall."}]
    rows: list[dict[str, Any]] = [
        {"image": "pictures/a.png", "prompt": "How many cats?"},
        {"id": 7, "image": "pictures/b.png", "conversations": talk},
        {"conversations": [{"from": "human", "value": "Tell me a story."}]},
    ]
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_three_scenes_on_the_toy_pair_from_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {name: tmp_path / f"out.{name}" for name in ("csv", "markdown", "json", "traces")}
    words = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    sides = ["--a", "--rule chain --depth 6", "--b", "--preset toy-before --rule entropy"]
    assert main(["compare", "--scenes", "3", *sides, *SHORT, *words]) == 0
    printed = capsys.readouterr().out
    assert "3 prompts, 3 of 3 answers identical" in printed and "95 % interval" in printed
    found = json.loads(files["json"].read_text())
    assert found["identical"] == 3
    assert (
        found["sides"]["a"]["config"]["rule"] == "chain" and found["sides"]["b"]["setting"]["draft"] == "draft-before"
    )
    rows = list(csv.DictReader(files["csv"].open()))
    assert [float(row["tau_ratio"]) for row in rows] == [row["tau_ratio"] for row in found["rows"]]
    assert files["markdown"].read_text().count("| identical |") == 3
    with zipfile.ZipFile(files["traces"]) as archive:
        archive.extractall(tmp_path)
    for number, row in enumerate(rows, start=1):
        race = read_recorded(tmp_path / f"{number:03}.json")
        assert race.prompt == row["prompt"] and race.image == tmp_path / f"{number:03}.png"
        assert len(race.b.trace.steps) == int(row["passes_b"])


def test_a_file_of_questions_is_asked_row_by_row(
    small: list[PairOptions], data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    assert main(["compare", "--data", str(data), "--b", "--rule chain", *SHORT, "--json", str(out)]) == 0
    rows = json.loads(out.read_text())["rows"]
    assert [(row["prompt"], row["image"]) for row in rows] == [
        ("How many cats?", "pictures/a.png"), ("What is there?", "pictures/b.png"), ("Tell me a story.", None),
    ]  # fmt: skip
    assert {row["same"] for row in rows} == {"identical"} and len(small) == 1
    assert "A: rule entropy\nB: rule chain\n3 prompts" in capsys.readouterr().out
    assert main(["compare", "--data", str(data), "--first", "1", *SHORT, "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert len(found["rows"]) == 1 and found["a"]["tau"] == 1.0  # without --a and --b: the target alone
    assert found["a"]["name"] == "drafter none"


def test_one_question_is_written_as_a_race_of_two_sides_and_the_target_alone(
    small: list[PairOptions], data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture, trace = data.parent / "pictures" / "a.png", data.parent / "pictures" / "ab.json"
    asked = ["compare", "--image", str(picture), "--prompt", "How many?", *SHORT]
    assert main([*asked, "--a", "--rule chain --depth 2", "--b", "--depth 5", "--trace", str(trace)]) == 0
    race = read_recorded(trace)
    assert (race.a.name, race.b.name) == ("rule chain, depth 2", "rule entropy, depth 5")
    assert race.image == picture and race.target_only.token_ids == race.a.trace.token_ids == race.b.trace.token_ids
    assert race.a.trace.text.split()[0] in capsys.readouterr().out
    assert main(["trace", "export", str(trace), "--html", str(tmp_path / "ab.html")]) == 0
    assert "side B of a comparison: rule entropy, depth 5" in (tmp_path / "ab.html").read_text(encoding="utf-8")


def test_what_is_finished_is_written_when_it_is_stopped(
    small: list[PairOptions], data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = specllava.lab.comparison.compare_questions

    def stopped(*given: Any, **more: Any) -> Any:
        for found in real(*given, **more):
            yield found
            if len(found.rows) == 2:
                raise KeyboardInterrupt

    monkeypatch.setattr(specllava.lab.comparison, "compare_questions", stopped)
    out = tmp_path / "out.csv"
    assert main(["compare", "--data", str(data), "--b", "--rule chain", *SHORT, "--csv", str(out)]) == 130
    assert len(out.read_text().splitlines()) == 1 + 2


# --- options ----------------------------------------------------------------------------------------------------------


def test_a_side_begins_with_the_common_options() -> None:
    common = AnswerOptions(pair=PairOptions(dtype="float64"), decoding=DecodingConfig(depth=7))
    a, b = side_options(common, ComparisonOptions(a="--rule chain --preset toy-before", b=None))
    assert (a.decoding.rule, a.decoding.depth, a.pair.dtype, a.pair.preset) == ("chain", 7, "float64", "toy-before")
    assert (b.decoding, b.pair) == (common.decoding, common.pair)
    alone, same = side_options(common, ComparisonOptions(scenes=3))
    assert alone.decoding.drafter == "none" and same.decoding == common.decoding


def test_a_target_that_both_sides_share_is_loaded_once(tiny: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[PairOptions] = []
    drafts: list[str] = []
    monkeypatch.setattr(comparison, "load_pair", lambda chosen: loaded.append(chosen) or tiny)
    monkeypatch.setattr(Pair, "with_draft", lambda pair, draft, **_: drafts.append(draft) or models.pair("bad"))
    common = AnswerOptions()
    for b, loads, shared in (("--preset toy-before", 1, 1), ("--draft d", 1, 2), ("--dtype float64", 2, 2)):
        loaded.clear()
        load_sides(*side_options(common, ComparisonOptions(b=b)))
        assert (len(loaded), len(drafts)) == (loads, shared), b
    assert drafts[0].endswith("draft-before") and drafts[1] == "d"


def test_values_of_sides_may_begin_as_options_do() -> None:
    words = ["compare", "--a", "--rule chain", "--b", "", "--csv", "x"]
    assert join_arguments(words) == ["compare", "--a=--rule chain", "--b=", "--csv", "x"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "compare needs --prompt, with --image if about one, or --data, or --scenes"),
        (["--a", "--rule chain"], "given are none of them"),
        (["--scenes", "3", "--prompt", "hi"], "given are --image and --prompt and --scenes"),
        (["--scenes", "0"], "--scenes is 0: 1 to 240 are possible"),
        (["--scenes", "2", "--first", "1"], "--images and --first belong to --data"),
        (["--scenes", "2", "--trace", "x.json"], "--trace holds one race, and there are 2 questions"),
        (["--scenes", "2", "--csv", "/none/x.csv"], "--csv /none/x.csv cannot be written"),
        (["--scenes", "2", "--a", "--rule oak"], "--a: "),
        (["--scenes", "2", "--b", "--depth 0"], "--b: depth"),
        (["--scenes", "2", "--b", "--rule 'chain"], "No closing quotation"),
        (["--scenes", "2", "--b", "--csv x"], "--b: Unrecognized options"),
        (["--image", "DATA", "--a", ""], "--image needs --prompt, the question about it"),
        (["--image", "/none.png", "--prompt", "hi", "--a", ""], "no image file at /none.png"),
        (["--data", "/none.jsonl"], "no data file at /none.jsonl"),
        (["--data", "DATA", "--images", "/none"], "no images directory at /none"),
        (["--data", "DATA", "--first", "0"], "1 to 1,000 are possible"),
    ],
)
def test_bad_options_cost_one_line_and_no_model(
    words: list[str], said: str, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(data) if word == "DATA" else word for word in words]
    assert main(["compare", *words]) == 1
    errors = capsys.readouterr().err.strip()
    assert said in errors and "\n" not in errors and "loading" not in errors


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("{", "row 1: not JSON"),
        ("[]", "row 1: without conversations"),
        ('{"prompt": ""}', "row 1: an empty question"),
        ('{"prompt": 5}', 'row 1: neither a "prompt" that is a text nor "conversations"'),
        ('{"prompt": "hi", "image": 5}', "row 1: with an image that is no path"),
        ('{"prompt": "hi", "image": "../a.png"}', "row 1: with an image path that leads out"),
        ('{"prompt": "hi", "image": "no.png"}', "row 1: with a missing image"),
        ('{"prompt": "hi", "image": "prompts.jsonl"}', "row 1: with an unreadable image"),
        ('{"conversations": [{"from": "gpt", "value": "Hi."}]}', "row 1: without a question"),
        (
            '{"conversations": [{"from": "human", "value": "<image>?"}]}',
            "row 1: with another number of <image>",
        ),
        ("", "has no question"),
    ],
)
def test_a_row_that_cannot_be_asked_is_named(row: str, said: str, data: Path) -> None:
    data.write_text(row + "\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"^prompts\.jsonl") as caught:
        read_questions(data)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_no_more_questions_are_read_than_allowed(data: Path) -> None:
    assert len(read_questions(data, most=3)) == 3
    with pytest.raises(ValueError, match="more than 2 questions"):
        read_questions(data, most=2)
    assert len(read_questions(data, most=2, first=2)) == 2


# --- join -------------------------------------------------------------------------------------------------------------


def join(folder: Path, *more: str) -> int:
    return main(
        ["trace", "join", str(folder / "A.json"), str(folder / "B.json"), "--output", str(folder / "ab.json"), *more]
    )


def test_two_files_are_joined_whether_they_hold_a_trace_or_a_race(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = synthetic_race(1, DecodingConfig(rule="chain"), "scene.png")
    b = synthetic_race(2, image="scene.png")
    Image.new("RGB", (9, 9)).save(tmp_path / "scene.png")
    (tmp_path / "A.json").write_bytes(a["speculative"].to_json())
    (tmp_path / "B.json").write_text(race_json(b["target-only"], b["speculative"], "scene.png"), encoding="utf-8")
    assert join(tmp_path) == 0
    race = read_recorded(tmp_path / "ab.json")
    assert (race.a, race.b) == (
        NamedTrace("rule chain", a["speculative"]), NamedTrace("rule entropy", b["speculative"]),
    )  # fmt: skip
    assert race.target_only == b["target-only"] and race.image == tmp_path / "scene.png"
    assert "the same tokens" in capsys.readouterr().out
    assert join(tmp_path, "--a", "on a GPU", "--b", "on a CPU") == 0
    race = read_recorded(tmp_path / "ab.json")
    assert (race.a.name, race.b.name) == ("on a GPU", "on a CPU")


def test_files_of_different_prompts_or_of_dialogues_are_not_joined(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lanes = synthetic_race(1)
    document = json.loads(lanes["speculative"].to_json())
    (tmp_path / "A.json").write_text(json.dumps(document), encoding="utf-8")
    (tmp_path / "B.json").write_text(json.dumps(document | {"prompt": "Another?"}), encoding="utf-8")
    assert join(tmp_path) == 1
    (tmp_path / "B.json").write_text(json.dumps(document), encoding="utf-8")
    assert join(tmp_path, "--a", "x" * 201) == 1
    lines = capsys.readouterr().err.strip().splitlines()
    assert "answer different prompts" in lines[0] and "1 to 200 printable characters" in lines[1]
    assert len(lines) == 2 and not (tmp_path / "ab.json").exists()


def test_sides_of_equal_options_are_called_a_and_b(tmp_path: Path) -> None:
    trace = synthetic_race(1)["speculative"]
    for name in ("A", "B"):
        (tmp_path / f"{name}.json").write_text(comparison_json(NamedTrace("x", trace), NamedTrace("y", trace)))
    assert join(tmp_path) == 0
    race = read_recorded(tmp_path / "ab.json")
    assert (race.a.name, race.b.name) == ("A", "B")
