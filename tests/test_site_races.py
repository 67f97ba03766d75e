"""Race files that the static edition reads in the browser: the frames that Python makes, and Python's bounds."""

from __future__ import annotations

import base64
import copy
import gzip
import json
import math
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import test_files
from support.browser import new_tab
from support.shipped_races import ASSETS
from support.static_site import file_server
from support.visual_traces import first_steps, retexted, synthetic_race

from specllava.config import DecodingConfig
from specllava.metrics import accepted_lengths, summarise
from specllava.race_file import NamedTrace, against_json, race_json
from visual.player.lessons import load_lessons
from visual.player.link import follow_link
from visual.player.race_frames import race_frames
from visual.player.recorded import load_recorded, read_recorded, recorded_race
from visual.site.static_site import StaticSite

Reader = Callable[[str], Any]
READ = """async ({ code, rules, text }) => {
  const { readRace } = await import(`${code}/race_reading.js`);
  const { raceFrames } = await import(`${code}/run_frames.js`);
  const look = await (await fetch(rules)).json();
  let turns;
  try {
    turns = readRace(text, look);
  } catch (refusal) {
    return `${refusal.constructor.name}: ${refusal.message}`;
  }
  return raceFrames(turns, "from race.json", look);
}"""
CASES = test_files.test_what_is_no_race_is_refused_by_what_is_wrong.pytestmark[0].args[1]
MUTATIONS = 80
STRANGE = " \t\n\x00\u00ad\u0301\u202e\u2028\ufeff\U0001f600aé漢②<&'\"^$`"  # letters of odd tokens
ODD = (None, True, -1, 0, 1, 2, 1.5, -7.25, 1e9, 1e300, 2**60, "", "0", "x" * 700, "<b>", [], [0], {}, {"a": 1})


FILLED = """async ({ code, rules, text }) => {
  const { readRace } = await import(`${code}/race_reading.js`);
  return readRace(text, await (await fetch(rules)).json())[0].filled;
}"""
TOTALS = """async ({ code, rules, text }) => {
  const { readRace } = await import(`${code}/race_reading.js`);
  const { totalsOf } = await import(`${code}/run_metrics.js`);
  const [{ speculative }] = readRace(text, await (await fetch(rules)).json());
  const { accepted, drafted, tokens, passes, saved } = totalsOf(speculative);
  return [accepted, drafted, tokens, passes, saved];
}"""
OPENED = """async ({ code, list, how }) => (await import(`${code}/site_frames.js`)).opened(list, how)"""
FOLLOWED = """async ({ code, queries, examples, lessons }) => {
  const { followLink } = await import(`${code}/site_link.js`);
  return queries.map((query) => followLink(new URLSearchParams(query), examples, lessons));
}"""


@dataclass(frozen=True)
class Edition:
    """An edition in a browser, and the addresses of its scripts and of what they go by."""

    page: Any
    code: str
    rules: str


@pytest.fixture(scope="module")
def edition(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edition]:
    """A small edition; nothing may go wrong in it without being told."""
    folder = tmp_path_factory.mktemp("edition") / "site"
    StaticSite((read_recorded(ASSETS / "examples" / "3-count.json"),), ()).write(folder)
    [code], [rules] = folder.glob("code-*"), folder.glob("files/rules-*.json")
    with file_server(folder) as address:
        tab = new_tab(browser)
        tab.page.goto(address)
        yield Edition(tab.page, f"{address}{code.name}", f"{address}files/{rules.name}")
        assert not tab.errors, tab.errors
        tab.close()


@pytest.fixture
def read(edition: Edition) -> Reader:
    """The frames that the edition makes of a race file, or why it refuses it."""
    places = {"code": edition.code, "rules": edition.rules}
    return lambda text: edition.page.evaluate(READ, {**places, "text": text})


def opened(frames: list[str]) -> list[dict[str, Any]]:
    """Frames as plain data, everything packed in them unpacked, without what differs from run to run."""
    return [_opened(json.loads(frame)) for frame in frames]


def _opened(frame: dict[str, Any]) -> dict[str, Any]:
    frame = {name: value for name, value in frame.items() if name not in ("id", "dialogue")}
    if frame["kind"] == "step" and "picture" in frame:
        frame["picture"] = unpacked(frame["picture"])
    if frame.get("against"):
        frame["against"] = [_opened(one) for one in unpacked(frame["against"])]
    if frame.get("file"):
        race = recorded_race("again", gzip.decompress(base64.b64decode(frame["file"])))
        frame["file"] = [(turn.target_only, turn.speculative, turn.a, turn.b) for turn in race.turns]
    frame["held"] = {turn: opened(one) for turn, one in frame.get("held", {}).items()}
    return frame


def unpacked(text: str) -> Any:
    return json.loads(gzip.decompress(base64.b64decode(text)))


def differences(ours: Any, theirs: Any, place: str = "") -> Iterator[str]:
    """Where two pieces of frames differ; sums of floats may do so in their last digits."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name in {*ours, *theirs}:
            yield from differences(ours.get(name), theirs.get(name), f"{place}.{name}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from differences(one, other, f"{place}.{number}")
    elif type(ours) in (int, float) and type(theirs) in (int, float):
        if not math.isclose(ours, theirs, rel_tol=1e-9, abs_tol=1e-12):
            yield f"{place}: {ours} and {theirs}"
    elif ours != theirs:
        yield f"{place}: {str(ours)[:80]} and {str(theirs)[:80]}"


def same_frames(read: Reader, text: str) -> None:
    frames = read(text)
    assert isinstance(frames, list), frames
    expected = race_frames(recorded_race("race", text.encode()), "from race.json")
    found = [*differences(opened(expected), opened(frames))]
    assert not found, found[:10]


@pytest.mark.parametrize("path", [
    path for folder in ("examples", "lessons") for path in sorted((ASSETS / folder).glob("*.json"))
    if path.name != "lessons.json"
], ids=lambda path: path.stem)  # fmt: skip
def test_frames_of_every_race_that_ships_are_those_of_python(read: Reader, path: Path) -> None:
    same_frames(read, path.read_text(encoding="utf-8"))


def test_frames_of_odd_races_are_those_of_python(read: Reader) -> None:
    hostile = test_files.hostile_race()
    race, other = synthetic_race(1), synthetic_race(2, DecodingConfig(rule="chain", depth=30, nodes=60))
    rng = random.Random(0)
    alone, together = race["target-only"], race["speculative"]
    strange = {token: "".join(rng.choices(STRANGE, k=rng.randrange(6))) for token in together.texts}
    few = first_steps(together, 3)
    own = replace(few, rule="MyRule", drafter=None, setting=replace(together.setting, draft_reads="states"))
    asked = replace(together.setting, generation_config="repetition_penalty 1.05, stop_strings ['<b>']")
    texts = [
        race_json(hostile["target-only"], hostile["speculative"], "x.png"),
        race_json(retexted(alone, strange), retexted(together, strange)),
        race_json(other["target-only"], other["speculative"]),
        race_json(alone, None), race_json(None, few), few.to_json().decode(), alone.to_json().decode(),
        race_json(first_steps(alone, 9), first_steps(together, 0)),
        race_json(first_steps(alone, 0), first_steps(together, 2)),
        race_json(alone, own), race_json(None, replace(few, drafter="MyDrafter")),
        race_json(replace(alone, setting=asked), replace(together, setting=asked, finish_reason="stop_string")),
        against_json(NamedTrace("one <b>", together), NamedTrace("two", other["speculative"]), alone),
        against_json(NamedTrace("one", alone), NamedTrace("two", together)),
    ]  # fmt: skip
    configs = DecodingConfig(drafter="prompt-lookup", ngram=2), DecodingConfig(rule="cost-aware", min_log_prob=-2.5)
    texts += [race_json(None, replace(few, config=config)) for config in configs]
    for text in texts:
        same_frames(read, text)


@pytest.mark.parametrize(("change", "said"), CASES)
def test_what_python_refuses_the_browser_refuses_in_one_line(
    read: Reader, change: Any, said: str, tmp_path: Path
) -> None:
    text = test_files.written(tmp_path, change).read_text()
    answer = read(text)
    if said.startswith("speculative.schema_version = 1.0"):
        assert isinstance(answer, list)  # which a browser's JSON cannot tell from 1
        return
    assert isinstance(answer, str)
    assert answer.startswith("Error: ")
    assert "\n" not in answer and len(answer) < 300


def test_guesses_after_the_end_of_an_answer_are_not_accepted_in_the_browser_either(edition: Edition) -> None:
    whole = synthetic_race(1)["speculative"]
    at = next(at for at, step in enumerate(whole.steps) if len(step.verification.accepted) > 1)
    last = replace(whole.steps[at], emitted=whole.steps[at].emitted[:1])
    trace = replace(whole, steps=(*whole.steps[:at], last), finish_reason="length")
    ours, places = summarise([trace]), {"code": edition.code, "rules": edition.rules}
    found = edition.page.evaluate(TOTALS, {**places, "text": race_json(None, trace)})
    assert found == [sum(accepted_lengths(trace)), ours.drafted, ours.tokens, ours.target_passes, ours.saved]
    assert found[0] < sum(len(step.verification.accepted) for step in trace.steps)


def test_options_that_a_file_leaves_open_are_told_as_python_tells_them(edition: Edition) -> None:
    document = json.loads((ASSETS / "examples" / "3-count.json").read_text())
    for lane, names in (("target_only", ("seed",)), ("speculative", ("temperature", "max_branches", "ngram"))):
        for name in names:
            del document[lane]["config"][name]
    text = json.dumps(document)
    told = edition.page.evaluate(FILLED, {"code": edition.code, "rules": edition.rules, "text": text})
    named = r"(\w+) does not say|(\w+) \(now"  # numbers are written as each language writes them
    assert re.findall(named, told) == re.findall(named, recorded_race("race", text.encode()).filled) != []


NO_RACES = ("", "no json", "[1, 2]", "[" * 100_000, "null", '{"dialogue": []}', '{"__proto__": {}}')


@pytest.mark.parametrize("text", NO_RACES)
def test_what_is_no_race_file_is_refused_by_the_browser(read: Reader, text: str) -> None:
    assert str(read(text)).startswith("Error: ")


def places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, one in entries:
        yield (*way, name)
        yield from places(one, (*way, name))


def mutated(document: Any, ways: list[tuple[Any, ...]], rng: random.Random) -> Any:
    changed = copy.deepcopy(document)
    for _ in range(rng.choice((1, 1, 1, 3))):
        *way, last = rng.choice(ways)
        here = changed
        try:
            for step in way:
                here = here[step]
            kind = rng.random()
            if kind < 0.25:
                del here[last]
            elif kind < 0.5 and isinstance(here, dict):
                here[str(last) + rng.choice(("", "x"))] = rng.choice(ODD)
            else:
                here[last] = rng.choice(ODD)
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took the place away
    return changed


def test_no_mutated_file_opens_in_the_browser_that_python_refuses(read: Reader) -> None:
    rng = random.Random(21)
    document = json.loads((ASSETS / "examples" / "3-count.json").read_text())
    ways, verdicts = [*places(document)], {True: 0, False: 0}
    for _ in range(MUTATIONS):
        text = json.dumps(mutated(document, ways, rng))
        answer = read(text)
        if isinstance(answer, str):
            assert answer.startswith("Error: "), answer
        else:  # Python, too, must take it, and draw the same
            expected = race_frames(recorded_race("race", text.encode()), "from race.json")
            assert not [*differences(opened(expected), opened(answer))]
        verdicts[isinstance(answer, list)] += 1
    assert min(verdicts.values()) > MUTATIONS / 20, verdicts


# --- what an address opens --------------------------------------------------------------------------------------------


def test_links_lead_where_those_of_the_live_page_lead(edition: Edition) -> None:
    races, lessons = load_recorded(ASSETS / "examples"), load_lessons(ASSETS / "lessons")
    values = ("", "0", "1", "2", "3", "7", "99", "-3", "x", "1.5", "٣", "1e3", "4-dialogue", "2-story", "nope" * 30)
    names = ("example", "lesson", "turn", "step")
    rng = random.Random(3)
    queries = [{name: rng.choice(values) for name in rng.sample(names, rng.randrange(4))} for _ in range(300)]
    queries += [{"example": race.name, "turn": turn, "step": turn} for race in races for turn in values]
    examples = [{"name": race.name, "steps": [len(turn.lead.steps) for turn in race.turns]} for race in races]
    places = [{"number": lesson.number, "step": lesson.text.step} for lesson in lessons]
    asked = {"code": edition.code, "queries": queries, "examples": examples, "lessons": places}
    for query, found in zip(queries, edition.page.evaluate(FOLLOWED, asked), strict=True):
        link = follow_link(query, races, lessons)
        if link is None:
            assert found is None, query
            continue
        name, number = (link.race.name, None) if link.lesson is None else (None, link.lesson.number)
        assert (found.get("example") or {}).get("name") == name
        assert (found.get("lesson") or {}).get("number") == number
        turn = found["turn"] if found["turn"] is not None else len(link.race.later)
        assert (found["step"], turn if name else 0, bool(found["notice"])) == (link.show, link.turn, bool(link.notice))


def test_a_turn_a_step_and_a_lesson_are_opened_as_python_opens_them(edition: Edition) -> None:
    dialogue = read_recorded(ASSETS / "examples" / "4-dialogue.json")
    whole = race_frames(dialogue, example=dialogue.name)
    for turn in range(len(dialogue.turns)):
        how = {"turn": turn, "step": 0}
        found = edition.page.evaluate(OPENED, {"code": edition.code, "list": whole, "how": how})
        expected = race_frames(dialogue, example=dialogue.name, show=0, turn=turn)
        assert not [*differences(opened(expected), opened(found))][:5]
    for lesson in load_lessons(ASSETS / "lessons")[:1]:
        how = {"step": lesson.text.step, "lesson": lesson.words}
        found = edition.page.evaluate(OPENED, {"code": edition.code, "list": race_frames(lesson.race), "how": how})
        expected = race_frames(lesson.race, show=lesson.text.step, lesson=lesson.words)
        assert not [*differences(opened(expected), opened(found))][:5]
