"""A against B in a browser: a pinned run beside the next one, word by word, tree by tree, saved and opened again."""

from __future__ import annotations

import json
import re
from dataclasses import astuple, replace
from pathlib import Path

import pytest
from support.browser import SavedPages, Visit, Visitor, assert_accessible
from support.visual_traces import ANSWER, synthetic_race
from test_files_page import saved

from specllava.core.config import DecodingConfig
from specllava.core.metrics import saved_tokens, summarise
from specllava.core.race_file import NamedTrace, comparison_json
from specllava.core.trace import DecodeTrace, StepSeconds
from specllava.findings.replays import ReplayStep, priced, straight_costs
from visual.player.headline import run_numbers
from visual.player.race_frames import race_frames
from visual.player.recorded import read_recorded

QUESTION = "Describe this image in detail."
SIDES = "[...document.querySelectorAll('.versus-sides dd')].map((dd) => dd.textContent)"
MACHINE = " · synthetic pair · cpu · float32"
COUNTED = "document.querySelector('.versus-result').textContent.includes('counted')"
COMPARED = "!document.querySelector('.versus').hidden && !document.querySelector('.versus-result').hidden"
TREES = """[...document.querySelectorAll('.versus .pair .tree')].map((chart) => {
  const at = (name) => chart.data.find((trace) => trace.name === name);
  const node = Number(chart.dataset.node);
  const own = chart.data.find((trace) => trace.customdata?.includes(node));
  const place = own.customdata.indexOf(node);
  return {
    node, only: at('only').x.length, halo: [at('marked').x[0], at('marked').y[0]],
    stands: [own.x[place], own.y[place]],
    caption: chart.parentElement.querySelector('b').textContent,
  };
})"""


def sides(seed: int = 0) -> tuple[DecodeTrace, DecodeTrace]:
    """The same answer by two rules, with other trees and other steps."""
    chain = DecodingConfig(rule="chain", max_branches=1, width=1, depth=3)
    return synthetic_race(seed)["speculative"], synthetic_race(seed + 1, chain)["speculative"]


def written(folder: Path, a: DecodeTrace, b: DecodeTrace) -> Path:
    path = folder / f"{folder.name}.json"
    alone = synthetic_race(0)["target-only"]
    path.write_text(comparison_json(NamedTrace("entropy rule", a), NamedTrace("chain", b), alone), encoding="utf-8")
    return path


def opened(tab: Visit, path: Path) -> Visit:
    tab.page.set_input_files("input[accept*=json]", str(path))
    tab.wait(f"document.querySelector('.origin').textContent.includes('{path.name}')")
    tab.wait(COMPARED)
    tab.wait(COUNTED)
    return tab


def run_with(tab: Visit, rule: str, question: str = QUESTION) -> None:
    """Run the page's question with another rule, and wait until it is over."""
    before = tab.page.evaluate("document.querySelector('.origin').textContent")
    tab.page.click(".settings-open")
    tab.page.locator(f"[name=option-rule][value={rule}]").check()
    tab.page.click(".drawer-close")
    tab.run(question)
    tab.page.wait_for_function("(before) => document.querySelector('.origin').textContent !== before", arg=before)
    tab.wait("!document.querySelector('.pin').disabled")


def step_of(trace: DecodeTrace, position: int) -> tuple[int, int]:
    """The step, from 1, that said a token, and the token's node in its tree; the first tree's root for the first."""
    said = 1
    if position == 0:
        return 1, 0
    for number, step in enumerate(trace.steps, start=1):
        if position < said + len(step.emitted):
            path = [*step.verification.accepted, len(step.tree)]
            return number, path[position - said]
        said += len(step.emitted)
    raise AssertionError(position)


def texts(trace: DecodeTrace, number: int) -> set[tuple[int, ...]]:
    """Every guess of a step as the whole text down to it."""
    before = 1 + sum(len(step.emitted) for step in trace.steps[: number - 1])
    tree = trace.steps[number - 1].tree
    down = [trace.token_ids[:before]]
    for node in range(1, len(tree)):
        down.append((*down[tree.parents[node]], tree.tokens[node]))
    return set(down)


def only(trace: DecodeTrace, number: int, other: DecodeTrace, others: int) -> int:
    """Guesses of a step that are neither in the other run's tree nor in what it had said before it."""
    said = other.token_ids[: 1 + sum(len(step.emitted) for step in other.steps[: others - 1])]
    own, there = texts(trace, number), texts(other, others)
    return sum(text not in there and said[: len(text)] != text for text in own)


def test_a_pinned_run_stands_beside_the_next_one_and_both_are_saved_and_opened(visit: Visitor, tmp_path: Path) -> None:
    tab = visit()
    assert not tab.page.locator(".versus").is_visible()
    tab.page.click(".files summary")
    assert not tab.page.locator("[data-file=both]").is_visible()
    tab.page.click(".pin")
    assert tab.text(".pin") == "Pinned as A ✓" and "run again" in tab.text(".versus-note")
    assert tab.page.evaluate(SIDES)[1] == "the next run"
    run_with(tab, "chain")
    tab.wait(COMPARED)
    a, b = tab.page.evaluate(SIDES)
    assert "entropy rule" in a and "chain rule" in b
    assert tab.text(".versus-note") == f"Equal ✓: both say the same {len(ANSWER.split()) + 1} tokens."
    path = saved(tab, "both", tmp_path)
    race = read_recorded(path)
    assert race.a is not None and race.b is not None
    assert [race.a.name + MACHINE, race.b.name + MACHINE] == [a, b]
    assert (race.a.trace.config.rule, race.b.trace.config.rule) == ("entropy", "chain")
    page = saved(tab, "page", tmp_path)
    tab.page.set_input_files("input[accept*=json]", str(path))
    tab.wait("document.querySelector('.origin').textContent.includes('from specllava-a-and-b.json')")
    tab.wait(COMPARED)
    assert tab.page.evaluate(SIDES) == [a, b]
    frames = json.loads(page.read_text(encoding="utf-8").split('id="frames">')[1].split("</script>")[0])
    assert {"against", "a_name", "b_name"} <= json.loads(frames[0]).keys()
    tab.page.click("[data-versus=unpin]")
    assert not tab.page.locator(".versus").is_visible() and tab.text(".pin") == "Pin as A"


def test_numbers_and_words_are_those_of_the_traces(tab: Visit, tmp_path: Path) -> None:
    a, b = sides()
    opened(tab, written(tmp_path, a, b))
    assert tab.page.evaluate(SIDES) == ["entropy rule" + MACHINE, "chain" + MACHINE]
    rows = {row[0]: row[1:] for row in tab.page.evaluate(
        "[...document.querySelectorAll('.versus-result tbody tr')].map((r) => [...r.cells].map((c) => c.textContent))"
    )}  # fmt: skip
    one, other = summarise([a]), summarise([b])
    change = 100 * (other.tau / one.tau - 1)
    signed = f"{'+' if change > 0 else '−'}{abs(change):.1f} %"
    assert rows["tokens per target pass (τ)"] == [f"{one.tau:.2f}", f"{other.tau:.2f}", signed]
    passes = other.target_passes - one.target_passes
    assert rows["target passes"] == [str(one.target_passes), str(other.target_passes), f"{passes:+d}"]
    helped = [sum(map(saved_tokens, trace.steps)) for trace in (a, b)]
    assert rows["tokens saved by another branch"][:2] == [str(count) for count in helped]
    words = tab.page.evaluate(
        "[...document.querySelectorAll('.versus .gloss-word')].map((w) => [w.firstChild.textContent,"
        " [...w.querySelectorAll('.gloss-mark')].map((m) => m.classList.contains('starts'))])"
    )
    assert [text for text, _ in words] == [a.texts[token].strip() or "■" for token in a.token_ids]
    for side, trace in enumerate((a, b)):
        starts = {0, *(1 + sum(len(step.emitted) for step in trace.steps[:n]) for n in range(len(trace.steps)))}
        assert {at for at, (_, marks) in enumerate(words) if marks[side]} == starts


def test_passes_of_both_sides_are_priced_at_one_set_of_costs(tab: Visit, tmp_path: Path) -> None:
    """A run on a busy machine looked slower than it was: counted passes at the quicker run's costs stand beside."""
    lanes = synthetic_race(0)
    a = lanes["speculative"]
    slow = [replace(step, seconds=StepSeconds(*(9 * part for part in astuple(step.seconds)))) for step in a.steps]
    opened(tab, written(tmp_path, a, replace(a, steps=tuple(slow))))
    row = tab.page.evaluate(
        "[...[...document.querySelectorAll('.versus-result tbody tr')].find((r) => /counted/.test(r.textContent))"
        ".cells].map((cell) => cell.textContent)"
    )
    assert row[1] == row[2] != "–" and row[3] == "0.0 %"
    assert tab.text(".versus-gain").startswith("B against A: As many tokens a pass, as fast here: as many guesses are")
    tab.page.click("[data-versus=swap]")
    assert row[1] in tab.text(".versus-result")


def test_what_bs_trees_buy_is_recomputed_from_the_traces(tab: Visit, tmp_path: Path) -> None:
    a, b = sides()
    opened(tab, written(tmp_path, a, b))
    alone = synthetic_race(0)["target-only"]
    one = sum(step.seconds.total for step in alone.steps) / len(alone.steps)
    counted = [[ReplayStep.of(step) for step in trace.steps] for trace in (a, b)]

    def costs_of(side: int) -> tuple[float, float]:
        """What 20 guesses and a level took in a run."""
        steps = (a, b)[side].steps
        beyond = sum(step.seconds.verify + step.seconds.keep - one for step in steps)
        levels = sum(len(step.widths) for step in counted[side])
        many = one + 20 * beyond / sum(step.guesses for step in counted[side])
        return max(one, many), sum(step.seconds.draft for step in steps) / levels

    many, level = costs_of(0)  # both were measured beside one target alone: the first side's count

    def faster(checking: float) -> float:
        first, second = (priced(steps, straight_costs(one, checking, level)) for steps in counted)
        return second.speedup / first.speedup

    said, ratio = tab.text(".versus-gain"), summarise([b]).tau / summarise([a]).tau
    assert f"{'+' if ratio > 1 else '−'}{abs(100 * (ratio - 1)):.0f} % tokens a pass" in said
    assert f"{abs(100 * (faster(many) - 1)):.0f} % {'faster' if faster(many) > 1 else 'slower'} here" in said
    edge = re.search(r"costs (less|more) than ([\d.]+) ms \(here: ([\d.]+) ms\)", said)
    assert edge is not None and float(edge[3]) == pytest.approx(1000 * many, rel=0.05)
    around = [faster(float(edge[2]) / 1000 * part) for part in (0.9, 1.1)]
    assert around[0] > 1 > around[1] if edge[1] == "less" else around[0] < 1 < around[1]


@pytest.mark.parametrize("seed", range(2))
def test_a_word_opens_the_step_of_each_run_that_said_it(tab: Visit, tmp_path: Path, seed: int) -> None:
    a, b = sides(seed)
    opened(tab, written(tmp_path, a, b))
    for position in (0, 1, len(a.steps[0].emitted) + 1, 17, 25, len(a.token_ids) - 1):
        tab.page.locator(".versus .gloss-word").nth(position).click()
        tab.wait(f"document.querySelector('.versus .before').textContent.includes('token {position + 1}.')")
        tab.wait("[...document.querySelectorAll('.versus .pair .tree')].filter((c) => c.data).length === 2")
        (step_a, node_a), (step_b, node_b) = step_of(a, position), step_of(b, position)
        drawn = tab.page.evaluate(TREES)
        assert [tree["caption"] for tree in drawn] == [f"A · step {step_a}", f"B · step {step_b}"]
        assert [tree["node"] for tree in drawn] == [node_a, node_b]
        assert all(tree["halo"] == tree["stands"] for tree in drawn)
        assert [tree["only"] for tree in drawn] == [only(a, step_a, b, step_b), only(b, step_b, a, step_a)]


def test_swapping_swaps_names_numbers_and_trees(tab: Visit, tmp_path: Path) -> None:
    opened(tab, written(tmp_path, *sides()))
    cells = "[...document.querySelectorAll('.versus-result tbody tr')].map((row) => row.cells[{}].textContent)"
    a, b = (tab.page.evaluate(cells.format(column)) for column in (1, 2))
    tab.page.click("[data-versus=swap]")
    tab.wait(COUNTED)
    assert tab.page.evaluate(SIDES) == ["chain" + MACHINE, "entropy rule" + MACHINE]
    assert [tab.page.evaluate(cells.format(column)) for column in (1, 2)] == [b, a]


def test_answers_that_part_are_aligned_up_to_there(tab: Visit, tmp_path: Path) -> None:
    a, b = sides()
    other = next(token for token in a.texts if token not in (*a.token_ids, *a.eos_token_ids))
    steps = (*b.steps[:2], replace(b.steps[2], emitted=(other,), verification=replace(
        b.steps[2].verification, accepted=(), bonus_token=other)))  # fmt: skip
    choices = (other, *b.steps[2].view.choices[1:])
    last = replace(steps[2], target=replace(b.steps[2].view, choices=choices))
    b = replace(b, steps=(*steps[:2], last), finish_reason="stopped")
    shared = next(at for at, (x, y) in enumerate(zip(a.token_ids, b.token_ids, strict=False)) if x != y)
    opened(tab, written(tmp_path, a, b))
    said = tab.text(".versus-note")
    assert said.startswith(f"The answers part at token {shared + 1}: A says “")
    assert a.texts[other].strip() in said
    assert tab.page.locator(".versus .gloss-word").count() == shared


def test_another_question_leaves_the_numbers_only(visit: Visitor) -> None:
    tab = visit()
    tab.page.click(".pin")
    run_with(tab, "chain", "What is on the left?")
    tab.wait(COMPARED)
    assert "different questions" in tab.text(".versus-note")
    assert not tab.page.locator(".versus-words").is_visible()
    tab.page.click(".files summary")
    assert not tab.page.locator("[data-file=both]").is_visible()


def test_a_saved_page_compares_with_no_server(saved_page: SavedPages, tmp_path: Path) -> None:
    frames = race_frames(read_recorded(written(tmp_path, *sides())), "saved run")
    page = saved_page(frames, viewport={"width": 375, "height": 800}, color_scheme="dark").page
    page.wait_for_selector(".versus .gloss-word")
    assert page.evaluate(SIDES) == ["entropy rule" + MACHINE, "chain" + MACHINE]
    page.locator(".versus .gloss-word").nth(9).click()
    page.wait_for_selector(".versus .pair .tree .traceonly, .versus .pair .tree .main-svg")
    assert page.evaluate("document.documentElement.scrollWidth") <= 375


def test_the_keyboard_alone_pins_walks_and_opens(tab: Visit, tmp_path: Path) -> None:
    opened(tab, written(tmp_path, *sides()))
    tab.page.focus("[data-versus=unpin]")
    tab.page.keyboard.press("Tab")
    while not tab.page.evaluate("document.activeElement.matches('.gloss-word')"):
        tab.page.keyboard.press("Tab")
    step = tab.step()
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft"):
        tab.page.keyboard.press(key)
    assert tab.page.evaluate("document.activeElement.dataset.at") == "1" and tab.step() == step
    tab.page.keyboard.press("Enter")
    tab.wait("document.querySelector('.versus .before').textContent.includes('token 2.')")
    tab.page.focus(".pin")
    tab.page.keyboard.press("Enter")
    assert tab.text(".pin") == "Pinned as A ✓"
    tab.page.click("[data-versus=unpin]")


def test_axe_finds_nothing_serious_in_a_comparison(tab: Visit, tmp_path: Path) -> None:
    opened(tab, written(tmp_path, *sides()))
    tab.page.locator(".versus .gloss-word").nth(12).click()
    tab.page.wait_for_selector(".versus .pair .main-svg")
    assert_accessible(tab.page, ".versus")


def test_numbers_of_a_run_are_those_of_the_metrics() -> None:
    for seed in range(5):
        lanes = synthetic_race(seed)
        alone, together = lanes["target-only"], lanes["speculative"]
        numbers = run_numbers(alone, together)
        assert numbers["tau"] == summarise([together]).tau and numbers["passes"] == len(together.steps)
        assert run_numbers(None, together)["speedup"] is None
        stopped = replace(together, steps=(), finish_reason="stopped")
        assert run_numbers(alone, stopped)["tau"] is None
