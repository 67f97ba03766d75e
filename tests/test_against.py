"""A against B: ratios over prompts with their interval, and race files that hold both sides."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import re
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from support import models
from support.visual_traces import synthetic_race

from specllava.core.config import DecodingConfig
from specllava.core.metrics import Comparison, RunTotals, compare, summarise
from specllava.core.question import Question
from specllava.core.race_file import NamedTrace, comparison_json, write_zip
from specllava.core.trace import DecodeTrace
from specllava.findings.bootstrap import pooled_ratio
from specllava.findings.comparison import PairedComparison, PromptResult, side_names
from specllava.findings.comparison_tables import race_files, records, to_csv, to_json, to_markdown
from specllava.lab import Lab
from specllava.lab.comparison import Side, compare_questions, same_tokens
from specllava.pair import Pair
from specllava.spec_decode.loop import Lane, race
from visual.player.frames import race_frames
from visual.player.recorded import read_recorded

CHAIN = DecodingConfig(rule="chain", max_branches=1)


def both(seed: int, image: str | None = None) -> tuple[NamedTrace, NamedTrace, DecodeTrace]:
    """Sides A and B of one race, and the target alone."""
    race, other = synthetic_race(seed, CHAIN, image), synthetic_race(seed + 100, image=image)
    a, b = NamedTrace("chain", race["speculative"]), NamedTrace("entropy 0.3", other["speculative"])
    return a, b, race["target-only"]


def rows(seed: int, count: int) -> tuple[PromptResult, ...]:
    """Random results; B is faster by about a fifth."""
    rng = random.Random(seed)

    def side(passes: int) -> RunTotals:
        tokens = 1 + round(passes * rng.uniform(2.0, 6.0))
        seconds = passes * rng.uniform(0.1, 0.2)
        return RunTotals(1, tokens, passes, 5 * passes, tokens - 1 - passes, seconds, 0.3, first_tokens=1)

    passes = [rng.randint(5, 40) for _ in range(count)]
    return tuple(
        PromptResult(f"q{number}", None, side(n), side(max(1, n - n // 5)), Comparison(True, 9), (1.0 + n, 0.8 * n))
        for number, n in enumerate(passes)
    )


# --- ratios and their interval ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_ratios_are_total_over_total(seed: int) -> None:
    found = PairedComparison("A", "B", 8, rows(seed, 8))

    def rate(side: str, seconds: Any) -> float:
        made = [getattr(row, side) for row in found.rows]
        return sum(one.tokens - 1 for one in made) / sum(map(seconds, made))

    passes = rate("b", lambda one: one.target_passes) / rate("a", lambda one: one.target_passes)
    clock = rate("b", lambda one: one.decode_seconds) / rate("a", lambda one: one.decode_seconds)
    assert found.tau.value == pytest.approx(passes)
    assert found.speed.value == pytest.approx(clock)
    a, b = found.totals
    assert found.tau.value == pytest.approx(b.tau / a.tau)
    assert found.end_to_end.value == pytest.approx(a.end_to_end_seconds_per_token / b.end_to_end_seconds_per_token)


@pytest.mark.parametrize("seed", range(6))
def test_the_interval_holds_the_ratio_and_shrinks_with_more_prompts(seed: int) -> None:
    widths = []
    for count in (5, 20, 80, 320):
        ratio = PairedComparison("A", "B", count, rows(seed, count)).tau
        assert ratio.low <= ratio.value <= ratio.high
        widths.append(ratio.high - ratio.low)
    assert widths[0] > widths[2] > widths[3]
    assert widths[1] > widths[3]


def test_a_seed_gives_one_interval() -> None:
    parts = [((row.a.step_tokens, row.a.target_passes), (row.b.step_tokens, row.b.target_passes)) for row in rows(1, 9)]
    a, b = zip(*parts, strict=True)
    intervals = [pooled_ratio(a, b, seed) for seed in (0, 0, 1)]
    assert intervals[0] == intervals[1]
    assert intervals[0].value == intervals[2].value and intervals[0].low != intervals[2].low
    same = pooled_ratio(a, a)
    assert (same.value, same.low, same.high) == (1, 1, 1)


def test_few_prompts_have_no_interval_and_none_has_no_ratio() -> None:
    one = PairedComparison("A", "B", 3, rows(0, 1)).tau
    assert one.value > 0 and one.low != one.low
    empty = PairedComparison("A", "B", 3)
    assert empty.tau.value != empty.tau.value
    with pytest.raises(ValueError, match="1 of A, 0 of B"):
        pooled_ratio([(1, 1)], [])


# --- race files -------------------------------------------------------------------------------------------------------


def written(folder: Path, seed: int = 1, alone: bool = True, image: str | None = None, **changes: Any) -> Path:
    a, b, target_only = both(seed, image)
    document = json.loads(comparison_json(a, b, target_only if alone else None, image)) | changes
    path = folder / "ab.json"
    path.write_text(json.dumps({key: value for key, value in document.items() if value != "gone"}), encoding="utf-8")
    return path


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_a_file_of_two_sides_comes_back_equal(seed: int, alone: bool, tmp_path: Path) -> None:
    race = read_recorded(written(tmp_path, seed, alone))
    a, b, target_only = both(seed)
    assert (race.a, race.b) == (a, b)
    assert race.target_only == (target_only if alone else None) and race.speculative is None
    assert race.lead == b.trace and race.filled == ""


@pytest.mark.parametrize("alone", [True, False])
def test_frames_are_those_of_b_and_say_so(alone: bool, tmp_path: Path) -> None:
    race = read_recorded(written(tmp_path, alone=alone))
    run, *steps, end = map(json.loads, race_frames(race, pictures=["data:,"]))
    assert run["source"] == "recorded run, side B of a comparison: entropy 0.3" and run["picture"] == "data:,"
    said = [word for frame in steps if frame.get("lane") == "speculative" for word in frame["words"]]
    assert len(said) == len(race.b.trace.token_ids)
    assert {frame["lane"] for frame in steps} == ({"target-only", "speculative"} if alone else {"speculative"})
    saved = tmp_path / "saved.json"
    saved.write_text(end["file"], encoding="utf-8")
    again = read_recorded(saved)
    assert (again.speculative, again.target_only) == (race.b.trace, race.target_only)


def test_a_side_may_be_the_target_alone(tmp_path: Path) -> None:
    _, b, target_only = both(2)
    path = tmp_path / "ab.json"
    path.write_text(comparison_json(b, NamedTrace("no draft", target_only)), encoding="utf-8")
    run, *_ = map(json.loads, race_frames(read_recorded(path)))
    assert run["lanes"] == ["target-only"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"a": "gone"}, "it has target_only, b: a comparison has both a and b"),
        ({"speculative": "b"}, "and no speculative lane beside them"),
        ({"b": {"trace": {}}}, "b: a side of a comparison is"),
        ({"b": []}, "b: a side of a comparison is"),
        ({"a": {"name": "", "trace": {}}}, "a.name = '': it must be 1 to 200"),
        ({"a": {"name": "x" * 201, "trace": {}}}, "it must be 1 to 200 printable characters"),
        ({"a": {"name": "x\ny", "trace": {}}}, "printable"),
        ({"a": {"name": 5, "trace": {}}}, "a.name = 5"),
        ({"a": {"name": "x", "trace": {}}}, "a.trace.lane: field required"),
        ({"c": {}}, "'c' is a key that no race file has: known are image, target_only, speculative, a, b"),
    ],
)
def test_a_bad_side_costs_one_line(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    if changes.get("speculative"):
        changes = {"speculative": json.loads(both(1)[1].trace.to_json())}
    with pytest.raises(ValueError, match="not a recorded race") as caught:
        read_recorded(written(tmp_path, **changes))
    assert said in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_each_side_is_bounded_as_a_lane_is(tmp_path: Path) -> None:
    a, b, _ = both(1)
    long = replace(a.trace, texts=a.trace.texts | {5: "x" * 600})
    path = tmp_path / "ab.json"
    path.write_text(comparison_json(NamedTrace("long", long), b), encoding="utf-8")
    with pytest.raises(ValueError, match="a has 600 characters in one token"):
        read_recorded(path)
    path.write_text(comparison_json(replace(a, trace=replace(a.trace, prompt="Another?")), b), encoding="utf-8")
    with pytest.raises(ValueError, match="its lanes answer different prompts"):
        read_recorded(path)


def test_races_go_into_a_zip_and_come_back(tmp_path: Path) -> None:
    races = [(f"{seed}.json", comparison_json(*both(seed))) for seed in range(4)]
    buffers = [io.BytesIO(), io.BytesIO()]
    for buffer in buffers:
        write_zip(buffer, races)
    assert buffers[0].getvalue() == buffers[1].getvalue()
    with zipfile.ZipFile(buffers[0]) as archive:
        archive.extractall(tmp_path)
    for seed in range(4):
        race = read_recorded(tmp_path / f"{seed}.json")
        assert (race.a, race.b, race.target_only) == both(seed)


def test_a_row_holds_its_race_packed() -> None:
    a, b, _ = both(3)
    document = comparison_json(a, b)
    row = PromptResult(
        "q", None, summarise([a.trace]), summarise([b.trace]), compare(a.trace, b.trace),
        packed_race=gzip.compress(document.encode()),
    )  # fmt: skip
    assert row.race == document and row.sameness.identical
    assert row.tau_ratio == pytest.approx(row.b.tau / row.a.tau)


# --- decoded on both sides --------------------------------------------------------------------------------------------

ASKED = tuple(Question(text, models.picture(seed), f"{seed}.png") for seed, text in enumerate(("What?", "Where?")))


def last(findings: Iterable[PairedComparison]) -> PairedComparison:
    *_, found = findings
    return found


@settings(max_examples=12)
@given(models.configs(), models.configs(), st.sampled_from(models.KINDS), st.sampled_from(models.SEEDS))
def test_both_sides_say_what_the_target_alone_says(
    a: DecodingConfig, b: DecodingConfig, kind: models.DraftKind, seed: int
) -> None:
    pair = models.pair(kind, seed)
    b = replace(b, max_new_tokens=a.max_new_tokens)
    prompt = pair.prompt(models.picture(0), "What?")
    lanes = {"A": a, "B": b, "target-only": replace(a, drafter="none")}
    traces = pair.collect_race(race([pair.request(Lane(name, config, prompt)) for name, config in lanes.items()]))
    assert set(traces) == set(lanes)
    assert traces["A"].token_ids == traces["B"].token_ids == traces["target-only"].token_ids
    assert (traces["A"].config, traces["B"].config) == (a, b)


@settings(max_examples=12)
@given(models.configs(), models.configs())
def test_a_comparison_of_many_prompts_is_its_races_added_up(a: DecodingConfig, b: DecodingConfig) -> None:
    pair = models.pair("mixed")
    b = replace(b, max_new_tokens=a.max_new_tokens)
    found = last(Lab(pair).compare(iter(ASKED), len(ASKED), a, b))
    assert [row.prompt for row in found.rows] == [one.text for one in ASKED]
    assert found.same == found.comparable == found.prompts == len(ASKED)
    sides = list(zip(*([race_sides(row) for row in found.rows]), strict=True))
    for traces, total in zip(sides, found.totals, strict=True):
        assert total.tokens == sum(len(trace.token_ids) for trace in traces)
        assert total.target_passes == sum(len(trace.steps) for trace in traces)
    passes = [sum(len(trace.steps) for trace in traces) for traces in sides]
    if all(passes):
        assert found.tau.value == pytest.approx(passes[0] / passes[1])  # the same tokens


def race_sides(row: PromptResult) -> list[DecodeTrace]:
    document = json.loads(row.race)
    return [DecodeTrace.from_json(json.dumps(document[side]["trace"])) for side in ("a", "b")]


def test_a_comparison_can_be_stopped_after_every_step(tiny: Pair) -> None:
    config = DecodingConfig(max_new_tokens=12)
    findings = Lab(tiny).compare(ASKED, len(ASKED), config, replace(config, rule="chain"))
    seen = [next(findings) for _ in range(5)]
    assert all(one is seen[0] for one in seen) and not seen[0].rows
    findings.close()


def test_sides_may_be_two_pairs(tiny: Pair) -> None:
    config = DecodingConfig(max_new_tokens=12)
    a, b = Side(models.pair("bad"), config), Side(tiny, config)
    found = last(compare_questions(ASKED, len(ASKED), a, b, target_only=True))
    assert (found.a, found.b) == ("draft “bad draft”", "draft “mixed draft”")
    assert found.same == len(ASKED) and found.tau.value > 1
    one, two = race_sides(found.rows[0])
    assert (one.setting.draft, two.setting.draft) == ("bad draft", "mixed draft")


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ({}, {"rule": "chain"}, True),
        ({"top_p": 0.5, "seed": 3}, {}, True),
        ({"temperature": 1.0}, {"temperature": 1.0, "rule": "chain"}, True),
        ({"temperature": 1.0}, {}, False),
        ({"temperature": 1.0, "seed": 1}, {"temperature": 1.0, "seed": 2}, False),
        ({"temperature": 1.0, "children": "drawn", "rule": "fixed"}, {"temperature": 1.0}, False),
    ],
)
def test_tokens_are_compared_where_chance_draws_the_same(a: Any, b: Any, same: bool) -> None:
    assert same_tokens(DecodingConfig(**a), DecodingConfig(**b)) is same


def test_sides_are_named_by_what_sets_them_apart(tiny: Pair) -> None:
    a = DecodingConfig(rule="fixed", branching=(2, 1), depth=3)
    b = replace(a, rule="chain", entropy_threshold=0.5, branching=(3,))
    names = side_names(a, b, tiny.info, tiny.info)
    assert names == (
        "rule fixed, entropy threshold 0.3, branching 2/1", "rule chain, entropy threshold 0.5, branching 3",
    )  # fmt: skip
    assert side_names(a, a, tiny.info, tiny.info) == ("A", "B")
    assert side_names(a, a, tiny.info, replace(tiny.info, dtype="float32")) == ("dtype float64", "dtype float32")
    other = replace(tiny.info, draft="eagle")
    assert side_names(a, b, tiny.info, other)[1].startswith("draft “eagle”, rule chain")


def test_a_question_that_cannot_be_asked_is_named(tiny: Pair) -> None:
    config = DecodingConfig(max_new_tokens=4)
    with pytest.raises(ValueError, match=r"^question 2: "):
        last(Lab(tiny).compare([ASKED[0], Question("")], 2, config, config))


# --- exports ----------------------------------------------------------------------------------------------------------


def exported(seed: int = 1) -> PairedComparison:
    odd = replace(rows(seed, 1)[0], prompt='a | b, "c"\n<b>', image=None, sameness=None)
    parted = replace(rows(seed, 1)[0], sameness=Comparison(False, 9, 4, 0.25))
    return PairedComparison("rule chain", "rule entropy | 2", 12, (*rows(seed, 8), odd, parted))


def test_csv_comes_back_as_it_was_written() -> None:
    found = exported()
    read = list(csv.DictReader(io.StringIO(to_csv(found))))
    for written_row, row in zip(read, records(found), strict=True):
        assert list(written_row) == list(row)
        for key, value in row.items():
            kind = type(value)
            assert (written_row[key] == "") if value is None else kind(written_row[key]) == value
            assert not isinstance(value, float) or written_row[key] == repr(value), "a number is no text"
    assert [row["same"] for row in read][-2:] == ["drawn", "different"]
    assert (read[-1]["first_difference"], read[-1]["margin"]) == ("4", "0.25")
    assert to_csv(PairedComparison("A", "B", 3)) == "\n"


def test_json_has_every_row_and_the_ratios_and_no_number_that_is_none() -> None:
    found = exported()
    document = json.loads(json.dumps(to_json(found), allow_nan=False))
    assert document["rows"] == records(found)
    assert document["ratios"]["tau"]["value"] == found.tau.value
    assert (document["prompts"], document["identical"], document["comparable"]) == (10, 8, 9)
    empty = json.loads(json.dumps(to_json(PairedComparison("A", "B", 3)), allow_nan=False))
    assert empty["ratios"]["tau"] == {"value": None, "low": None, "high": None}


def test_markdown_is_a_table_whatever_a_prompt_holds() -> None:
    text = to_markdown(exported())
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 2 + 10
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table}) == 1
    assert "a \\| b" in text and "\\<b\\>" in text and "10 of 12 prompts" in text


def asked(*prompts: str) -> PairedComparison:
    """A comparison on these questions, whose pictures bear the same names and whose sides do, too."""
    found = [replace(rows(1, 1)[0], prompt=prompt, image=prompt, sameness=None) for prompt in prompts]
    return PairedComparison(prompts[0], prompts[-1], len(prompts), tuple(found))


@pytest.mark.parametrize("lead", ["=", "+", "-", "@", "\t", "\r", "\n", " =", "\t=", "＝", "＋", "－", "＠"])
def test_no_cell_of_a_csv_is_a_formula(lead: str) -> None:
    prompt = f"{lead}HYPERLINK(\"http://example.com\"; 'x'), 1"
    (row,) = csv.DictReader(io.StringIO(to_csv(asked(prompt)), newline=""))
    assert row["prompt"] == row["image"] == f"'{prompt}"
    assert float(row["tau_ratio"]) > 0


@given(st.lists(st.text(max_size=40), min_size=1, max_size=3))
def test_other_cells_of_a_csv_are_as_they_were_asked(prompts: list[str]) -> None:
    read = csv.DictReader(io.StringIO(to_csv(asked(*prompts)), newline=""))
    for row, prompt in zip(read, prompts, strict=True):
        assert row["prompt"].removeprefix("'") == prompt.removeprefix("'")
        assert not row["prompt"].lstrip().startswith(tuple("=+-@"))


class Shown(HTMLParser):
    """What a reader of rendered Markdown sees: elements, and the text of each table cell and paragraph."""

    def __init__(self, markdown: str) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.texts: list[str] = []
        self.feed(MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(markdown))

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.elements.add(tag)
        if tag in ("td", "th", "p", "li"):
            self.texts.append("")

    def handle_data(self, data: str) -> None:
        if self.texts:
            self.texts[-1] += data


MARKUP = (
    "[x](javascript:alert(1))", "![i](http://example.com/i.png)", "<http://example.com>", "<img src=x>", "&lt;b&gt;",
    "*a* **b** _c_ ~~d~~ `e`", "[x]: http://example.com", "# a", "- a", "1. a", "> a", "a | b \\| c \\\\| d", "---",
    "$x$ \\(y\\)", "<script>alert(1)</script>", "trailing \\", "[a][b]", "a<!-- b --> c",
)  # fmt: skip


@settings(max_examples=60)
@given(st.one_of(st.sampled_from(MARKUP), st.text("[]()!<>*_~`\\|#-+.:/&;=$ aw1\n", max_size=60)))
def test_rendered_markdown_shows_what_was_asked_and_nothing_else(prompt: str) -> None:
    shown = Shown(to_markdown(asked(prompt)))
    assert shown.elements <= {"p", "br", "ul", "li", "table", "thead", "tbody", "tr", "th", "td"}
    plain = " ".join(prompt.split())
    assert plain in [text.strip() for text in shown.texts] or (len(plain) > 80 and plain[:79] in "".join(shown.texts))
    names = next(text for text in shown.texts if text.startswith("A:"))
    assert " ".join(names.split()) == " ".join(f"A: {plain} B: {plain}".split())


def test_kept_races_go_into_a_zip(tiny: Pair, tmp_path: Path) -> None:
    config = DecodingConfig(max_new_tokens=8)
    found = last(Lab(tiny).compare(ASKED, len(ASKED), config, replace(config, rule="chain")))
    write_zip(tmp_path / "traces.zip", race_files(found))
    with zipfile.ZipFile(tmp_path / "traces.zip") as archive:
        assert archive.namelist() == ["001.json", "002.json"]
        archive.extractall(tmp_path)
    for number, row in enumerate(found.rows, start=1):
        race = read_recorded(tmp_path / f"{number:03}.json")
        assert (race.a.name, race.b.name) == ("rule entropy", "rule chain")
        assert len(race.a.trace.token_ids) == row.a.tokens and race.prompt == row.prompt


# --- two pairs -------------------------------------------------------------------------------------------------------


def test_two_precisions_of_the_shipped_pair_say_the_same(shipped: Callable[[Any], Pair]) -> None:
    pairs = shipped("float32"), shipped("float64")
    config = DecodingConfig(max_new_tokens=24)
    picture = models.picture(3)
    asked = ("What is on the left?", "How many objects are there?")
    questions = [Question(text, picture, "scene.png") for text in asked]
    *_, found = Lab(pairs[0]).compare(iter(questions), 2, config, config, Lab(pairs[1]))
    assert "float64" in found.b and "float64" not in found.a
    assert all(row.sameness is not None and row.sameness.identical for row in found.rows)
