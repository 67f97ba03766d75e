"""The lanes in a browser: one text with two cursors, pale words, where they meet, lines in sight."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from typing import Any

import pytest
from support.amount import ALL, sample
from support.browser import FINISHED, SavedPages, Visit, Visitor
from support.visual_traces import ANSWER, END, retexted, synthetic_race

from specllava.config import DecodingConfig
from specllava.trace import DecodeTrace
from visual.player.frames import recorded_frames

LANES = ("target-only", "speculative")
WIDTHS = (320, 375, 768, 1024, 1280, 1440)
ROWS, ROW = 6, 22  # lines in sight, and pixels of one
Race = dict[str, DecodeTrace]
# Plays races on the page's own lanes. Each case has moments; before each, the frames that are known by then are added.
PLAY = """async (cases) => {
  const code = (name) => document.querySelector(`[data-module="${name}"]`).textContent;
  const load = (name) => import(`data:text/javascript;charset=utf-8,${encodeURIComponent(code(name))}`);
  const [{ createLanes }, { createRace, LANES }] = await Promise.all(["lanes.js", "race.js"].map(load));
  const root = document.querySelector(".player");
  window.race ??= createRace(root, createLanes(root, LANES));
  const lane = (name) => {
    const article = document.querySelector(`[data-lane="${name}"]`);
    const box = article.querySelector(".words").getBoundingClientRect();
    const shown = [...article.querySelectorAll(".word")].map((word) => [word, word.getBoundingClientRect()])
      .filter(([word, { width }]) => width && getComputedStyle(word).visibility === "visible");
    const words = shown.map(([word, { left, right, top, bottom }]) => ({
      text: word.textContent, pale: word.matches(".pale"), hidden: Boolean(word.closest("[aria-hidden]")), cursor: word.matches(".cursor"),
      parted: word.matches(".parted"), first: word.closest(".sentence-line").querySelector(".word:not(.later)") === word,
      at: [left - box.left, top - box.top].map(Math.round), clipped: right > box.right + 1, seen: bottom > box.top && top < box.bottom,
      cut: (bottom > box.top + 1 && top < box.top - 1) || (top < box.bottom - 1 && bottom > box.bottom + 1),
    }));
    return { words, before: article.querySelector(".words-before").textContent };
  };
  return cases.map(({ run, items, moments, totals, live }) => {
    race.reset(run);
    const left = [...items];
    const feed = (until) => { while (left.length && left[0].end <= until) race.add(left.shift()); };
    if (!live) feed(Infinity);
    race.place();
    return moments.map((moment) => {
      if (live) feed(moment + 1e-9);
      if (!left.length) race.end({ totals });
      race.show(moment);
      return Object.fromEntries(LANES.map((name) => [name, lane(name)]));
    });
  });
}"""  # noqa: E501


def clock(trace: DecodeTrace) -> list[tuple[float, tuple[int, ...]]]:
    """When each item of a lane ends, and its tokens."""
    items, now = [(trace.prefill.total, (trace.prefill.first_token,))], trace.prefill.total
    for step in trace.steps:
        now += step.seconds.draft + step.seconds.verify + step.seconds.keep
        items.append((now, step.emitted))
    return items


def said_at(trace: DecodeTrace, moment: float) -> list[str]:
    """The words that a lane has said by then, as the page writes them."""
    tokens = [token for end, some in clock(trace) if end <= moment + 1e-9 for token in some]
    return ["■" if token == END else trace.texts[token].strip() for token in tokens]


def expected_at(race: Race, name: str, moment: float) -> list[tuple[str, bool]]:
    """The words of a lane then, with whether they are pale: what the other has more, unless they have parted."""
    own, other = (said_at(race[lane], moment) for lane in (name, *(one for one in LANES if one != name)))
    ahead = other[len(own) :] if other[: len(own)] == own else []
    return [*((word, False) for word in own), *((word, True) for word in ahead)]


def case_of(race: Race, moments: Sequence[float], live: bool = False) -> dict[str, Any]:
    """A race for ``PLAY``."""
    run, *frames, end = map(json.loads, recorded_frames(race["target-only"], race["speculative"]))
    ends = {name: iter(clock(race[name])) for name in LANES}
    items = [{key: frame.get(key) for key in ("kind", "lane", "seconds", "tokens")} for frame in frames]
    items = [item | {"end": next(ends[item["lane"]])[0]} for item in items]
    if live:
        items.sort(key=lambda item: item["end"])
    return {"run": run, "items": items, "moments": list(moments), "totals": end["totals"], "live": live}


def random_races(seeds: Sequence[int]) -> list[Race]:
    """Races of many lengths and trees; some part, some have pieces of words and lines of their own."""
    races = []
    for seed in seeds:
        rng = random.Random(seed)
        config = DecodingConfig(max_new_tokens=rng.randint(2, 66), depth=rng.randint(1, 9))
        race = synthetic_race(seed, config, parted_at=rng.randrange(config.max_new_tokens) if seed % 4 == 3 else None)
        other = {9: "quiet", 11: "\n\nunder", 20: "。", 23: " …"} if seed % 3 == 2 else {}
        races.append({name: retexted(trace, other) for name, trace in race.items()})
    return races


def end_of(race: Race) -> float:
    return max(clock(trace)[-1][0] for trace in race.values())


def test_said_and_pale_words_are_those_of_the_trace_at_any_moment(saved_page: SavedPages) -> None:
    races = random_races(sample(range(40), 11))
    starts = [min(clock(trace)[0][0] for trace in race.values()) for race in races]
    moments = [
        sorted(random.Random(at).uniform(starts[at] - 0.01, end_of(race) + 0.01) for _ in range(9))
        for at, race in enumerate(races)
    ]
    cases = [case_of(race, moments[at], live=at % 2 == 1) for at, race in enumerate(races)]
    tab = saved_page(recorded_frames(*(races[0][name] for name in LANES)))
    played = tab.page.evaluate(PLAY, cases)
    pale = parted = 0
    for race, times, shown in zip(races, moments, played, strict=True):
        for moment, lanes in zip(times, shown, strict=True):
            for name in LANES:
                words = lanes[name]["words"]
                assert [(word["text"], word["pale"]) for word in words] == expected_at(race, name, moment)
                assert all(word["hidden"] == word["pale"] for word in words)
                assert [word["cursor"] for word in words if not word["pale"]][-1:] in ([], [True])
                pale += sum(word["pale"] for word in words)
                parted += sum(word["parted"] for word in words)
    assert pale > 25 * len(races) and parted > (10 if ALL else 0)
    backwards = [case | {"moments": case["moments"][::-1], "live": False} for case in cases]
    assert [shown[::-1] for shown in tab.page.evaluate(PLAY, backwards)] == played


@pytest.mark.night
def test_equal_words_stand_in_equal_places_and_no_line_is_cut_at_any_width(saved_page: SavedPages) -> None:
    config = DecodingConfig(max_new_tokens=600)
    races = [synthetic_race(1), synthetic_race(2, config, answer=" ".join([ANSWER] * 8))]
    starts = [max(clock(trace)[0][0] for trace in race.values()) for race in races]
    parts = 12 if ALL else 6
    moments = [
        [start + (end_of(race) - start) * share / parts for share in range(parts + 1)]
        for race, start in zip(races, starts, strict=True)
    ]
    tab = saved_page(recorded_frames(*(races[0][name] for name in LANES)))
    cases = [case_of(race, moments[at]) for at, race in enumerate(races)]
    alike = apart = 0
    for width in sample(WIDTHS, 3):
        tab.page.set_viewport_size({"width": width, "height": 900})
        for shown in tab.page.evaluate(PLAY, cases):
            for lanes in shown:
                for lane in lanes.values():
                    seen = [word for word in lane["words"] if word["seen"]]
                    assert not any(word["cut"] or word["clipped"] for word in lane["words"]), width
                    assert any(word["cursor"] for word in seen), "its cursor is in sight"
                    assert seen[0]["first"], "it begins with a sentence"
                    assert bool(lane["before"]) == (lane["words"][0] is not seen[0])
                one, other = ([word["at"] for word in lanes[name]["words"]] for name in LANES)
                rows = [next(word["at"][1] for word in lanes[name]["words"] if word["cursor"]) for name in LANES]
                assert [across for across, _ in one] == [across for across, _ in other]
                within = abs((rows[0] - one[0][1]) - (rows[1] - other[0][1])) < ROWS * ROW
                assert (one == other) or not within, width
                alike += within
                apart += not within
    assert min(alike, apart) > (20 if ALL else 6)


def test_whole_answers_show_every_word(saved_page: SavedPages) -> None:
    race = synthetic_race(2, DecodingConfig(max_new_tokens=600), answer=" ".join([ANSWER] * 8))
    tab = saved_page(recorded_frames(*(race[name] for name in LANES)))
    tab.page.click("[data-do=last]")
    assert re.fullmatch(r"↑ \d+ words", tab.text("[data-lane=speculative] .words-before"))
    assert not sees_all(tab)
    tab.page.click(".whole")
    assert sees_all(tab)
    assert [tab.text(f"[data-lane={name}] .words-before") for name in LANES] == ["", ""]
    tab.page.click(".whole")
    assert not sees_all(tab)


def sees_all(tab: Visit) -> bool:
    return bool(tab.page.evaluate("""[...document.querySelectorAll(".words")].every((box) => {
      const { top, bottom } = box.getBoundingClientRect();
      return [...box.querySelectorAll(".word")].every((word) => word.getBoundingClientRect().top >= top && word.getBoundingClientRect().bottom <= bottom);
    })"""))  # noqa: E501


@pytest.mark.night
def test_once_both_lanes_have_ended_equal_words_meet_within_a_second(saved_page: SavedPages) -> None:
    race = synthetic_race(1)
    frames = recorded_frames(*(race[name] for name in LANES))
    for motion in ("no-preference", "reduce"):
        tab = saved_page(frames, reduced_motion=motion)
        tab.page.click("[data-do=first]")
        assert tab.text(".meeting").startswith("same so far")
        assert not tab.page.locator(".lanes.met").count()
        tab.page.click("[data-do=last]")
        ends = tab.page.evaluate(
            "[...document.querySelectorAll('.words .word, .meeting')].flatMap((part) => part.getAnimations())"
            ".map(({ effect }) => effect.getComputedTiming().endTime)"
        )
        assert bool(ends) == (motion == "no-preference")
        assert all(end < 1200 for end in ends)
        tokens = len(race["target-only"].token_ids)
        while tab.page.evaluate("getComputedStyle(document.querySelector('.meeting')).opacity") != "1":
            tab.page.wait_for_timeout(50)  # the page's policy forbids what a browser that waits by itself would do
        assert tab.text(".meeting") == f"identical ✓ {tokens} of {tokens} tokens; the first comes from reading"
        assert tab.page.get_attribute(".meeting", "aria-live") == "polite"
        met = "getComputedStyle(document.querySelector('.word')).backgroundColor !== 'rgba(0, 0, 0, 0)'"
        tab.page.wait_for_timeout(300)
        assert tab.page.evaluate(met)
        tab.page.click("[data-do=previous]")
        assert not tab.page.evaluate(met)


def test_the_first_word_that_differs_is_marked_in_both_lanes(saved_page: SavedPages) -> None:
    race = synthetic_race(1, parted_at=20)
    tab = saved_page(recorded_frames(*(race[name] for name in LANES)))
    tab.page.click("[data-do=first]")
    assert not tab.page.locator(".word.parted").count()
    tab.page.click("[data-do=last]")
    marked = [tab.page.locator(f"[data-lane={name}] .word.parted").all_inner_texts() for name in LANES]
    assert marked == [[ANSWER.split()[20]], ["wide"]]
    assert tab.page.evaluate("""[...document.querySelectorAll(".word.parted")].every((word) => {
      const [box, { top, bottom }] = [word.closest(".words"), word].map((part) => part.getBoundingClientRect());
      return top >= box.top && bottom <= box.bottom;
    })""")
    assert tab.page.get_attribute(".meeting", "data-state") == "differs"
    assert tab.text(".meeting").startswith("differs at 21")
    assert not tab.page.locator(".lanes.met").count()


ALONE = """body *:not(.race, .race *) { visibility: hidden !important; }
  .race { visibility: visible; position: fixed; top: 0; left: 0; width: 100%; z-index: 99; }"""
SHIFTS = """() => {
  window.shifted = 0;
  new PerformanceObserver((list) => list.getEntries().forEach(({ value }) => (window.shifted += value))).observe({ type: "layout-shift" });
}"""  # noqa: E501


@pytest.mark.night
@pytest.mark.parametrize("width", [375, 1280])
def test_a_whole_run_shifts_nothing_in_the_lanes(visit: Visitor, width: int) -> None:
    tab = visit(viewport={"width": width, "height": 900})
    tab.page.select_option(".speed", "0.2")
    tab.page.fill("#question textarea", "What is on the left?")
    tab.page.add_style_tag(content=ALONE)  # what moves is the card's own doing
    tab.page.evaluate("() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
    tab.page.evaluate(SHIFTS)
    assert "recorded" in tab.page.evaluate("document.querySelector('.origin').textContent"), "it began before this"
    tab.page.evaluate("document.querySelector('#run').click()")  # it is hidden
    tab.wait(FINISHED)
    tab.wait("document.querySelector('.lanes.met')")
    assert tab.page.evaluate("window.shifted") < 0.02


@pytest.mark.night
def test_pale_words_come_as_the_other_lane_writes_them(visit: Visitor) -> None:
    tab = visit()
    tab.run("What is on the right?", speed="0.1")
    tab.wait("document.querySelector('.origin').textContent.includes('live')")
    tab.wait("document.querySelectorAll('[data-lane=target-only] .word.pale').length > 5")
    text = "[...document.querySelectorAll('[data-lane={}] .word:not(.later)')].map((one) => one.textContent).join(' ')"
    assert tab.page.evaluate(f"({text.format('target-only')}) === ({text.format('speculative')})")
    tab.wait(FINISHED)
    tab.page.click("[data-do=last]")
    assert not tab.page.locator(".word.pale").count()


@pytest.mark.night
def test_a_run_that_is_stopped_before_its_first_step_says_so(visit: Visitor) -> None:
    tab = visit()
    tab.run("very slowly, please")
    tab.wait("document.querySelector('#notice .notice').textContent.includes('Getting ready')")
    tab.page.wait_for_timeout(2800)  # both lanes have read, and neither has made a step
    tab.page.click("#stop")
    tab.wait("document.querySelector('#notice .notice').textContent.includes('Stopped')")
    tab.wait("document.querySelector('.sentence').textContent === 'Stopped before the first step.'")
    assert tab.text(".with-pruned span") == "nothing pruned"
