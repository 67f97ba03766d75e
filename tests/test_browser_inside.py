"""The stage in one saved page, which asks nobody: every stop, its tree, its text, its bars; words are never markup."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.browser import HOSTILE, SavedPages, Visit, assert_accessible
from support.shipped_races import ASSETS, shipped_races
from support.visual_traces import retexted, synthetic_race

from specllava.trace import DecodeTrace
from visual.player.frames import data_address, race_frames
from visual.player.lessons import load_lessons
from visual.player.recorded import Recorded, read_recorded
from visual.player.saved_page import catalog

PHONE = {"width": 375, "height": 812}
CIRCLES = "document.querySelector('.plot').data.flatMap(({x}) => x).length"


def opening() -> Recorded:
    return next(race for race in shipped_races() if race.name == "1-describe")


def picture() -> str:
    from specllava.models.images import open_image

    return data_address(open_image(ASSETS / "examples" / "1-describe.png"))


@pytest.fixture
def run(saved_page: SavedPages) -> Visit:
    """The opening example, after its tour."""
    race = opening()
    return saved_page(race_frames(race, pictures=[picture()], name=race.name))


def shown_text(tab: Visit) -> str:
    """The words of the answer that are shown."""
    tokens = "[...document.querySelectorAll('.answer .text')[0].children].filter((one) => !one.hidden)"
    return str(tab.page.evaluate(f"{tokens}.map((one) => one.textContent).join('')"))


def text_after(trace: DecodeTrace, steps: int) -> str:
    ids = [trace.prefill.first_token, *(token for step in trace.steps[:steps] for token in step.emitted)]
    return "".join(trace.texts[token] for token in ids if token not in trace.eos_token_ids)


def test_each_phase_of_each_step_shows_its_words_its_tree_and_its_text(run: Visit) -> None:
    trace = opening().lead
    for number, step in enumerate(trace.steps, start=1):
        size = len(step.tree)
        for phase, drawn, words in (
            ("guess", size, number - 1), ("check", size, number - 1), ("accept", None, number), ("keep", None, number),
        ):  # fmt: skip
            run.step(number, phase)
            run.wait(f"document.querySelector('.phase [aria-current=step]').dataset.phase === '{phase}'")
            assert shown_text(run).strip() == text_after(trace, words).strip()
            if drawn is not None:
                run.wait(f"{CIRCLES} === {drawn}")
        unreached = run.count(".over .dashed")
        taken, judged = set(step.emitted_nodes), {0, *step.emitted_nodes}
        expected = [n for n in range(1, size) if n not in taken and step.tree.parents[n] not in judged]
        assert unreached == len(expected)
        assert run.count(".over .cross") == size - 1 - len(taken) - len(expected)


def test_the_bars_and_the_second_cursor_follow_the_recorded_clocks(run: Visit) -> None:
    race = opening()
    alone, together = race.target_only, race.speculative
    upper, lower = (f".time svg:nth-of-type({at}) rect" for at in (1, 2))
    assert run.count(upper) == len(alone.steps) and run.count(lower) == 2 * len(together.steps)
    clock, ends = 0.0, []
    for step in alone.steps:
        ends.append((ends[-1] if ends else 0.0) + step.seconds.total)
    for number, step in enumerate(together.steps, start=1):
        clock += step.seconds.total
        run.step(number, "accept")
        done = sum(end <= clock + 1e-9 for end in ends)
        run.wait(f"document.querySelectorAll('{upper}.on').length === {done}")
        assert run.count(f"{lower}.on") == 2 * number
        before = run.page.evaluate(
            "(() => { const at = document.querySelector('.answer .cursor-alone'); let count = 0; for (let one ="
            " at.previousElementSibling; one; one = one.previousElementSibling) count += one.matches('.token'); return"
            " count; })()"
        )
        assert before == 1 + done


def test_the_table_for_the_ear_holds_the_tree(run: Visit) -> None:
    step = opening().lead.steps[4]
    run.step(5, "accept")
    run.wait(f"document.querySelectorAll('.nodes tbody tr').length === {len(step.tree) + 1}")
    cells = "(row) => [...row.cells].map((cell) => cell.textContent)"
    rows = run.page.evaluate(f"[...document.querySelectorAll('.nodes tbody tr')].map({cells})")
    assert len(rows) == len(step.tree) + 1
    verdicts = [row[-1] for row in rows]
    assert verdicts.count("accepted") == len(step.emitted_nodes) and verdicts[0] == "the last word so far"


def test_the_mask_is_the_trees_own_and_the_cache_keeps_the_branch(saved_page: SavedPages) -> None:
    lessons = load_lessons(ASSETS / "lessons")
    races = {race.name: race_frames(race, name=race.name) for lesson in lessons for race in lesson.races}
    first = lessons[0].races[0]
    tab = saved_page(races[first.name], catalog([first], lessons), races)
    tab.page.evaluate("document.querySelectorAll('.lessons li:not(.on-phone) button')[5].click()")
    tab.wait_say("cannot both be the next word")
    tab.page.keyboard.press("Space")
    step = lessons[5].examples[0].step
    sees = sum(len(step.tree.path(node)) for node in range(len(step.tree)))
    tab.wait(f"document.querySelectorAll('.over .sees:not(.text-so-far)').length === {sees}")
    tab.page.keyboard.press("PageDown")
    tab.page.keyboard.press("PageDown")
    tab.wait(f"document.querySelectorAll('.over .kept').length === {len(step.verification.path)}")
    assert tab.count(".over .dropped") == len(step.tree) - len(step.verification.path)
    stops = [stop for lesson in lessons for stop in lesson.data()["stops"]]
    asked = [["".join(part for _, part in stop[one]["say"]) for one in ("question", "answer")] for stop in stops]
    for number in range(10):
        tab.page.evaluate("(at) => document.querySelectorAll('.lessons li:not(.on-phone) button')[at].click()", number)
        tab.wait(f"document.querySelector('.at').textContent.startsWith('lesson {number + 1} of 10')")
        assert tab.say() in [question for question, _ in asked]
    tab.page.keyboard.press("Space")
    tab.wait("document.querySelector('.over .coin-line') !== null")
    assert "u = " in tab.page.locator(".over .number.ink").text_content()
    for key, mode in (("PageDown", "run"), ("Space", "run"), ("PageUp", "lesson")):
        tab.page.keyboard.press(key)
        tab.wait(f"document.querySelector('.stage').dataset.mode === '{mode}'")
    assert tab.say() == asked[-1][1] and not tab.count(".stage.playing")
    tab.page.evaluate("document.querySelector('[data-act=present]').click()")
    for key, at in (("1", 1), ("0", 10), ("PageDown", 10), ("PageDown", 10), ("3", 3)):
        tab.page.keyboard.press(key)
        tab.wait(f"document.querySelector('.at').textContent.startsWith('lesson {at} of 10')")


def test_the_tour_goes_on_by_keys_and_lights_what_the_words_needed(saved_page: SavedPages) -> None:
    race = opening()
    frames = race_frames(race, pictures=[picture()], name=race.name, toured=True)
    tab = saved_page(frames, catalog([race], ()))
    beats = json.loads(next(frame for frame in frames if frame.startswith('{"kind":"end"')))["beats"]
    tab.page.click("[data-act=tour]")
    for number, beat in enumerate(beats):
        tab.wait(f"document.querySelector('.at').textContent === '{number + 1} of 6'")
        assert tab.say() == "".join(part for _, part in beat["say"])
        assert tab.count(".pic.spot") == (number == 4)
        tab.page.keyboard.press("ArrowRight" if number % 2 else "PageDown")
    tab.wait("document.querySelector('.stage').dataset.mode === 'run'")
    tab.page.click(".pill")
    tab.wait("document.querySelectorAll('.answer .seen').length > 0")
    grounding = race.lead.grounding
    assert tab.count(".answer .seen") == len(grounding.grounded)
    mask = tab.page.evaluate("getComputedStyle(document.querySelector('.lit')).maskImage")
    assert mask.startswith('url("data:image/png')


def test_playing_moves_through_all_steps_and_says_the_end_once(saved_page: SavedPages) -> None:
    lanes = synthetic_race(3)
    tab = saved_page(race_frames(Recorded("race", None, *lanes.values())))
    tab.page.click("[data-act=play]")
    tab.wait("document.querySelector('.stage').classList.contains('playing')")
    tab.wait("document.querySelector('.spoken').textContent.startsWith('Answer complete')")
    assert not tab.count(".stage.playing") and tab.text(".at") == f"step {len(lanes['speculative'].steps)} of" + (
        f" {len(lanes['speculative'].steps)}"
    )
    assert shown_text(tab).strip() == lanes["speculative"].text


def test_answers_that_part_stand_side_by_side(saved_page: SavedPages) -> None:
    lanes = synthetic_race(4, parted_at=7)
    tab = saved_page(race_frames(Recorded("race", None, *lanes.values())))
    assert tab.page.locator(".answer .text:visible").count() == 2
    assert tab.page.evaluate("[...document.querySelectorAll('.parts')].map((one) => one.dataset.at)") == ["7", "7"]
    assert "The answers part at token 8." in tab.say()


def test_words_of_a_model_never_become_markup(saved_page: SavedPages) -> None:
    lanes = {name: retexted(trace, HOSTILE) for name, trace in synthetic_race(3).items()}
    address = 'x" onerror="window.hacked=1'
    tab = saved_page(race_frames(Recorded("race", None, *lanes.values()), "<b>source</b>", [address]))
    for number in range(1, len(lanes["speculative"].steps) + 1):
        for phase in ("guess", "check", "accept", "keep"):
            tab.step(number, phase)
    assert tab.page.evaluate("window.hacked") is None
    assert tab.count(".stage img") == 1 and not tab.count(".stage b:not(.time b, .key b)")
    assert "onerror" in shown_text(tab)


@pytest.mark.parametrize("viewport", [{"width": 1280, "height": 720}, {"width": 1024, "height": 768}, PHONE])
def test_every_stop_fits_the_screen(saved_page: SavedPages, viewport: dict[str, int]) -> None:
    race = opening()
    frames = race_frames(race, pictures=[picture()], name=race.name, toured=True)
    tab = saved_page(frames, catalog([race], ()), viewport=viewport)
    tab.page.evaluate("document.querySelector('[data-act=tour]').click()")
    size = "[document.documentElement.scrollWidth, document.documentElement.scrollHeight]"
    for _ in range(6):
        assert tab.page.evaluate(size) == [viewport["width"], viewport["height"]]
        box = tab.page.locator(".plot .main-svg").first.bounding_box()
        assert box["y"] >= 0 and box["y"] + box["height"] <= viewport["height"] - (60 if viewport == PHONE else 0)
        small = tab.page.locator(".say p")
        assert not small.inner_text() or small.is_visible(), "there is room for what the sentence leaves out"
        tab.page.keyboard.press("ArrowRight")
    if viewport == PHONE:
        low = "(one) => one.offsetParent && one.offsetHeight < 32"
        assert tab.page.evaluate(f"[...document.querySelectorAll('.bar button')].filter({low}).length") == 0


def test_axe_finds_nothing_in_tour_run_and_lesson(saved_page: SavedPages) -> None:
    race = opening()
    frames = race_frames(race, pictures=[picture()], name=race.name, toured=True)
    tab = saved_page(frames, catalog([race], ()))
    assert_accessible(tab.page)
    tab.page.click("[data-act=tour]")
    for _ in range(5):
        tab.page.keyboard.press("ArrowRight")
    assert_accessible(tab.page)


def test_presenting_leaves_one_screen_and_escape_ends_it(saved_page: SavedPages) -> None:
    race = read_recorded(ASSETS / "lessons" / "wrong.json")
    tab = saved_page(race_frames(race, name="wrong"), viewport={"width": 1024, "height": 768})
    tab.page.click("[data-act=present]")
    tab.wait("document.querySelector('.stage').classList.contains('present')")
    assert not tab.page.is_visible(".tools") and tab.page.is_visible(".foot")
    assert tab.page.evaluate("document.documentElement.scrollHeight") == 768
    assert tab.page.locator(".answer .word").first.bounding_box()["height"] >= 18 * 1.25
    for blank in (True, False):
        tab.page.keyboard.press("b")
        assert tab.page.is_visible(".say h2") is not blank
    tab.page.keyboard.press("Escape")
    tab.wait("!document.querySelector('.stage').classList.contains('present')")


@pytest.mark.alone
@pytest.mark.night
def test_a_step_is_drawn_within_a_frame(run: Visit) -> None:
    """16 ms for trees of up to 24 guesses, on a quiet machine."""
    times: list[Any] = run.page.evaluate("""async () => {
      const input = document.querySelector(".slide input");
      const times = [];
      for (let round = 0; round < 5; round += 1) {
        for (let step = 0; step < 10; step += 1) {
          const began = performance.now();
          input.value = step;
          input.dispatchEvent(new Event("input"));
          times.push(performance.now() - began);
          await new Promise(requestAnimationFrame);
        }
      }
      return times.slice(10).sort((a, b) => a - b);
    }""")
    assert times[len(times) // 2] <= 16, times
