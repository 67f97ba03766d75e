"""Does it pay for me? Recorded steps at given costs, the same in Python and in the browser, and the card that asks."""

from __future__ import annotations

import json
import math
import random
import re
import shlex
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from support.amount import sample
from support.browser import SavedPages, Visit, Visitor, script_page
from support.visual_traces import synthetic_race

from app import EXAMPLES
from benchmarks.gpu_llava import ALONE, Cycle, Measured, as_json
from benchmarks.replays import record
from specllava.bench.results import pool
from specllava.bench.timed_run import TimedRun
from specllava.cli.compare import Compare
from specllava.cli.main import Command
from specllava.cli.page_options import PageOptions
from specllava.cli.parsing import parse
from specllava.core.config import RULES, DecodingConfig
from specllava.core.metrics import speedup, summarise
from specllava.core.race_file import race_json
from specllava.findings.replays import GUESSES, MAX_FILE_BYTES, Replays, ReplayStep, priced, straight_costs
from specllava.lane import Lane
from specllava.models.loading.presets import presets
from specllava.pair import Pair
from visual.player import standalone
from visual.player.component import player_arguments
from visual.player.frames import recorded_frames
from visual.player.pays import MEASURED, REPLAYS, packed_pays, pays_data, read_preset
from visual.player.published_costs import PUBLISHED, MeanStep
from visual.player.recorded import load_recorded
from visual.player.starts import STARTS, Start

Steps = tuple[ReplayStep, ...]
ROOT = Path(__file__).parents[1]


def random_steps(rng: random.Random) -> Steps:
    def step() -> ReplayStep:
        widths = tuple(rng.randint(1, 12) for _ in range(rng.randint(0, 8)))
        guesses = rng.randint(len(widths), 60) if widths else 0
        return ReplayStep(widths, guesses, rng.randint(1, 1 + len(widths)))

    return tuple(step() for _ in range(rng.randint(1, 40)))


def random_costs(rng: random.Random) -> dict[str, float]:
    """In milliseconds, as the card's fields hold them."""
    one = 10 ** rng.uniform(-2, 3)
    other = {"level": one * rng.uniform(0, 2), "reading": one * rng.uniform(0, 90), "drafting": one * rng.uniform(0, 9)}
    return {"one": one, "many": one * rng.uniform(1, 4), **other, "tokens": rng.randint(1, 500)}


@pytest.fixture(scope="module")
def maths(browser: Any) -> Iterator[Any]:
    """A page in which ``script`` is the browser's side of the arithmetic."""
    with script_page(browser, "pays_math.js") as page:
        yield page


def test_browser_and_python_price_the_same_steps_alike(maths: Any) -> None:
    rng = random.Random(5)
    for _ in range(60):
        steps, costs = random_steps(rng), random_costs(rng)
        ours = priced(steps, straight_costs(costs["one"], costs["many"], costs["level"]))
        given = [{"levels": len(widths), "guesses": guesses, "emitted": emitted} for widths, guesses, emitted in steps]
        theirs = maths.evaluate("([steps, costs]) => script.priced(steps, costs)", [given, costs])
        in_all = ours.speedup_in_all(int(costs["tokens"]), costs["reading"], costs["drafting"])
        wanted = {"tau": ours.tau, "speedup": ours.speedup, "breakEven": ours.break_even, "inAll": in_all}
        assert {name: theirs[name] for name in wanted} == pytest.approx(wanted, rel=1e-9)
        if any(widths for widths, *_ in steps):  # at the dearest level that pays nothing is won
            dearest = maths.evaluate("([steps, costs]) => script.dearestLevel(steps, costs)", [given, costs])
            level = [costs["one"], costs["many"], dearest]
            assert priced(steps, straight_costs(*level)).speedup == pytest.approx(1, rel=1e-6)


def test_free_drafting_is_worth_tau_and_guesses_that_are_never_right_cost() -> None:
    for seed in range(100):
        rng = random.Random(seed)
        steps, one = random_steps(rng), 10 ** rng.uniform(-2, 3)
        free = priced(steps, straight_costs(one, one, 0.0))
        assert free.speedup == pytest.approx(free.tau, rel=1e-12)
        assert free.break_even == pytest.approx(1.0, rel=1e-12)
        wrong = [ReplayStep((1, 3), 4, 1) for _ in steps]
        refused = priced(wrong, straight_costs(one, one * rng.uniform(1, 4), one * rng.uniform(1e-3, 2)))
        assert refused.tau == 1
        assert refused.speedup < 1 < refused.break_even
        assert refused.speedup_in_all(rng.randint(2, 300), rng.uniform(0, 9), rng.uniform(0, 9)) < 1


def test_recorded_steps_are_what_the_loop_did(tiny: Pair) -> None:
    prompts = [tiny.prompt(None, text, 24) for text in ("What is there?", "Describe it.")]
    for rule in ("entropy", "chain", "topk"):
        config = DecodingConfig(rule=rule, max_new_tokens=24)
        for prompt, counted in zip(prompts, record(tiny, prompts, config), strict=True):
            trace = tiny.run(Lane("traced", config, prompt))
            told = [ReplayStep.of(step) for step in trace.steps]
            assert [step[1:] for step in counted] == [step[1:] for step in told]
            for ours, theirs in zip(counted, told, strict=True):  # a trace knows only what was sent
                assert len(ours.widths) >= len(theirs.widths)
                assert all(a >= b for a, b in zip(ours.widths, theirs.widths, strict=False))


def test_the_shipped_steps_are_of_every_rule_and_a_bad_file_is_refused_in_one_line(tmp_path: Path) -> None:
    replays = Replays.read(REPLAYS)
    assert set(replays.rules) == set(RULES)
    assert all(len(answers) == replays.prompts > 10 for answers in replays.rules.values())
    assert len({sum(s.emitted for a in answers for s in a) for answers in replays.rules.values()}) == 1, "same answers"
    assert REPLAYS.stat().st_size <= MAX_FILE_BYTES
    assert replays.to_json() == REPLAYS.read_bytes()
    document = json.loads(REPLAYS.read_bytes())
    bad = tmp_path / "bad.json"
    for broken in ([[[-1], 4, 2]], [[[1], 4, 0]], [[[1], math.inf, 2]], [[[1] * 999, 4, 2]], [[[1], 4]], "no steps"):
        bad.write_text(json.dumps(document | {"rules": {"chain": [broken]}}))
        with pytest.raises(ValueError, match=r"^bad\.json holds no recorded steps: .*$"):
            Replays.read(bad)
    bad.write_bytes(b" " * (MAX_FILE_BYTES + 1))
    with pytest.raises(ValueError, match=r"bad\.json has 100,001 bytes, and at most 100,000 are read"):
        Replays.read(bad)


def gpu_report(rng: random.Random) -> dict[str, Any]:
    """A report with costs along straight lines, whatever ``benchmarks.gpu_llava`` writes around them."""
    one, guess, level = rng.uniform(0.01, 0.05), rng.uniform(0, 0.001), rng.uniform(0.001, 0.005)
    cycles = {ALONE: Cycle(0, 0, 0.0, one, one, 9, 9)}
    for name in ("chain", "entropy, defaults"):
        levels, guesses = rng.randint(1, 7), rng.randint(8, 60)
        verify = one + guess * guesses
        cycles[name] = Cycle(guesses, levels, level * levels, verify, verify + level * levels, 9, 9)
    found = Measured(600, 0.02, 0.1, 0.01, {1: one}, {1: level}, cycles)
    shown = {"size": "7b", "date": "2030-01-01", "setting": {"dtype": "bfloat16"}, "hardware": {"gpu": "A GPU"}}
    return {**shown, "seconds": as_json(found)}


def test_a_committed_gpu_report_becomes_a_preset_by_itself(tmp_path: Path) -> None:
    assert pays_data(tmp_path)["presets"] == []
    for seed in range(20):
        report = gpu_report(random.Random(seed))
        (tmp_path / "gpu-llava.json").write_text(json.dumps(report))
        preset = read_preset(tmp_path / "gpu-llava.json")
        assert pays_data(tmp_path)["presets"] == [asdict(preset)]
        chain = report["seconds"]["cycles"]["chain"]
        assert preset.name == "LLaVA-1.5 7b on A GPU, bfloat16, measured 2030-01-01"
        assert preset.one == pytest.approx(1e3 * report["seconds"]["cycles"][ALONE]["total"])
        assert preset.level == pytest.approx(1e3 * chain["draft"] / chain["levels"])
        guess = (chain["verify"] - preset.one / 1e3) / chain["guesses"]
        assert preset.many == pytest.approx(preset.one + 1e3 * GUESSES * guess)
        assert (preset.reading, preset.drafting) == pytest.approx((120, 10))
    for key, value in (("hardware", {}), ("seconds", {}), ("size", 7)):
        (tmp_path / "gpu-llava.json").write_text(json.dumps(gpu_report(random.Random(0)) | {key: value}))
        with pytest.raises(ValueError, match=r"^gpu-llava\.json is no report of benchmarks\.gpu_llava: .*$"):
            read_preset(tmp_path / "gpu-llava.json")
    assert len(pays_data(MEASURED)["presets"]) == len(list(MEASURED.glob("gpu-llava*.json")))


def opened(saved_page: SavedPages, frames: list[str], **context: Any) -> Visit:
    tab = saved_page(frames, **context)
    tab.page.locator(".pays-curve").scroll_into_view_if_needed()
    tab.page.wait_for_selector(".pays-curve .main-svg")  # its policy forbids waiting for an expression
    return tab


def cells(tab: Visit, trees: str) -> list[str]:
    row = f".pays-rows tr[data-key='{trees}'] td"
    return list(tab.page.locator(row).all_inner_texts())


def fill(tab: Visit, **costs: float | str) -> None:
    for name, value in costs.items():
        tab.page.fill(f"[data-cost={name}]", str(value))


def test_at_its_own_costs_a_run_pays_what_it_took(saved_page: SavedPages) -> None:
    """Costs are pooled, so that the card and the headline cannot tell two stories about one run."""
    races = sample(load_recorded(EXAMPLES), 4)
    assert {race.speculative.setting.pair for race in races} == {"smol", "toy"}
    for race in races:
        alone, together = race.target_only, race.speculative
        tab = opened(saved_page, recorded_frames(alone, together))
        reference, candidate = summarise([alone]), summarise([together])
        in_all = reference.end_to_end_seconds_per_token / candidate.end_to_end_seconds_per_token
        whose = "this run's" if together.setting.pair == "smol" else "the toy's"
        assert f"{whose} {candidate.tau:.1f} tokens a pass" in tab.text(".pays-verdict")
        shown = cells(tab, "run")
        wanted = [f"{candidate.tau:.1f}", f"{speedup(reference, candidate):.1f}×", f"{in_all:.1f}×"]
        assert shown[:3] == wanted
        assert tab.page.locator(".pays-rows input:checked").get_attribute("value") == "run"
        assert tab.text(".pays-source").startswith("This run: its own trees.")


def test_entered_costs_give_the_rules_verdicts_and_say_whose_trees_they_are(saved_page: SavedPages) -> None:
    replays, rng = Replays.read(REPLAYS), random.Random(3)
    race = synthetic_race(1)
    tab = opened(saved_page, recorded_frames(race["target-only"], race["speculative"]))
    for _ in range(6):
        costs = {name: float(f"{value:.4g}") for name, value in random_costs(rng).items()}
        fill(tab, **costs)
        for rule, answers in replays.rules.items():
            steps = [step for answer in answers for step in answer]
            found = priced(steps, straight_costs(costs["one"], costs["many"], costs["level"]))
            in_all = found.speedup_in_all(int(costs["tokens"]), costs["reading"], costs["drafting"])
            tab.page.check(f".pays-rows input[value={rule}]")
            shown = [float(re.match(r"[\d.]+", text).group()) for text in cells(tab, rule)]  # type: ignore[union-attr]
            ratios = [ratio if ratio >= 0.995 else 1 / ratio for ratio in (found.speedup, in_all)]
            assert shown == pytest.approx([found.tau, *ratios, found.break_even], abs=0.0501)
            said = tab.text(".pays-verdict")
            assert said.startswith("It pays for you") == (in_all > 1.005)
            assert said.startswith("It does not pay") == (in_all < 0.995)
            assert f"with the toy's {found.tau:.1f} tokens a pass ({rule})" in said
        source = tab.text(".pays-source")
        assert replays.command in source and replays.date in source and "the toy pair" in source


def test_the_keyboard_reaches_every_cost_and_what_was_entered_stays_while_stepping(visit: Visitor) -> None:
    tab = visit(init_script="window.requestIdleCallback = (draw) => { window.charts = draw; }")
    tab.wait("document.querySelector('.pays-verdict').textContent && Boolean(window.charts)")
    assert not tab.page.locator(".pays-curve .main-svg").count(), "the curve waits until it is nearly in sight"
    before = tab.page.evaluate("document.documentElement.scrollHeight")
    tab.page.evaluate("window.charts()")  # on a slow machine they come after the first look at the page
    tab.page.locator(".pays-curve").scroll_into_view_if_needed()
    tab.wait("document.querySelector('.pays-curve .main-svg') && document.querySelector('.plots .chart .main-svg')")
    assert tab.page.evaluate("document.documentElement.scrollHeight") == before, "the place of each was kept"
    tab.page.focus(".pays-preset")
    names = []
    for _ in range(9):
        tab.page.keyboard.press("Tab")
        names.append(tab.page.evaluate("Object.values(document.activeElement.dataset)[0]"))
        assert tab.page.evaluate("document.activeElement.labels[0].textContent.trim().length > 8")
        tab.page.keyboard.type("7")
    assert names == ["one", "many", "level", "reading", "drafting", "tokens", "tau", "guesses", "levels"]
    values = "[...document.querySelectorAll('[data-cost]')].map((field) => field.value)"
    entered = tab.page.evaluate(values)
    assert tab.page.input_value(".pays-preset") == "own"
    tab.page.check(".pays-rows input[value=chain]")
    before, steps = tab.text(".pays-verdict"), tab.step()
    tab.page.click("[data-do=next]")
    tab.page.click("[data-do=last]")
    assert tab.step() != steps
    assert tab.page.evaluate(values) == entered
    assert tab.text(".pays-verdict") == before and "chain" in before
    fill(tab, level="-1")
    assert tab.text(".pays-verdict") == "Enter what a level of the draft takes, a number from 0 on."
    assert cells(tab, "chain")[1:] == ["–"] * 3
    tab.page.select_option(".pays-preset", "run")
    assert tab.page.evaluate(values) != entered
    assert "It pays" in tab.text(".pays-verdict")


def test_a_report_of_bench_gives_costs_and_trees_and_a_bad_one_changes_nothing(
    saved_page: SavedPages, tmp_path: Path
) -> None:
    runs: dict[str, list[TimedRun]] = {"target-only": [], "entropy": []}
    for seed in range(3):
        race = synthetic_race(seed)
        for name, trace in (("target-only", race["target-only"]), ("entropy", race["speculative"])):
            widths = [ReplayStep.of(step).widths for step in trace.steps]
            tokens = trace.prefill.prompt_tokens
            runs[name].append(TimedRun.of_events(trace.prefill, trace.steps, widths, tokens, 1.0))
    lanes = {name: lane.as_json() for name, lane in pool(runs, range(3)).items()}
    race = synthetic_race(9)
    tab = opened(saved_page, recorded_frames(race["target-only"], race["speculative"]))
    tab.page.click(".pays-bench summary")
    before = tab.text(".pays-found")
    texts = ["{", "[]", "{}", '{"lanes": []}', '{"lanes": {"chain": {}}}', '{"lanes": {"target-only": {"tau": 1}}}']
    odd = {**lanes, "entropy": {**lanes["entropy"], "levels": "<b>many</b>"}}
    for text in [*texts, json.dumps({"lanes": odd}), "9" * 200_001]:
        tab.page.fill(".pays-bench textarea", text)
        note = tab.text(".pays-note")
        assert re.fullmatch(r"This report cannot be used: [^\n]{8,120}\.", note), note
        assert tab.text(".pays-found") == before
    report = tmp_path / "bench.json"
    report.write_text(json.dumps({"lanes": lanes}))
    tab.page.set_input_files(".pays-bench [type=file]", str(report))
    tab.page.locator(".pays-note", has_text="Read: costs and trees").wait_for()
    row = lanes["entropy"]
    tab.page.check(".pays-rows input[value=entropy]")
    in_all = lanes["target-only"]["ms_per_token_end_to_end"] / row["ms_per_token_end_to_end"]
    assert cells(tab, "entropy")[:3] == [f"{row['tau']:.1f}", f"{row['speedup']:.1f}×", f"{in_all:.1f}×"]
    assert "report" in tab.text(".pays-source")
    older = {
        name: {k: v for k, v in lane.items() if k not in ("levels", "guesses", "ms_draft")}
        for name, lane in lanes.items()
    }
    tab.page.fill(".pays-bench textarea", json.dumps({"lanes": older}))
    assert "of an older bench" in tab.text(".pays-note")


# --- an honest card ---------------------------------------------------------------------------------------------------

COSTS = {"one": 22, "many": 24, "level": 2.5, "reading": 60, "drafting": 15, "tokens": 120}


def own(tab: Visit, **step: float | str) -> None:
    for name, value in step.items():
        tab.page.fill(f"[data-own={name}]", str(value))


def test_tokens_a_pass_of_ones_own_give_the_verdict_and_impossible_numbers_are_questioned(
    saved_page: SavedPages,
) -> None:
    race = synthetic_race(1)
    tab = opened(saved_page, recorded_frames(race["target-only"], race["speculative"]))
    fill(tab, one=22)
    kept = "20 guesses, a level of the draft, reading, the draft's reading, the answer"
    assert tab.text(".pays-published") == f"Not yours yet, still as before: {kept}."
    fill(tab, **COSTS)
    assert tab.text(".pays-published") == ""
    own(tab, tau=3.5, guesses=20, levels=6)
    assert tab.page.locator(".pays-rows input:checked").get_attribute("value") == "own"
    took = 24 + 6 * 2.5  # milliseconds of a pass over 20 guesses and 6 levels
    speed = 3.5 * 22 / took
    assert cells(tab, "own")[:2] == ["3.5", f"{speed:.1f}×"]
    said = tab.text(".pays-verdict")
    assert said.startswith(f"It pays for you with your 3.5 tokens a pass: {speed:.1f}× as fast") and "toy" not in said
    edge = 20 * ((3.5 * 22 - 6 * 2.5) - 22) / 20 + 22  # what checking may cost until a pass takes 3.5 tokens' time
    assert f"costs less than {edge:.2g} ms (at these costs: 24 ms)" in tab.text(".pays-gain")
    for reading in ("reading", "drafting", "tokens"):
        fill(tab, **{reading: ""})
    assert cells(tab, "own")[2] == "–" and "what reading takes is left out" in tab.text(".pays-verdict")
    fill(tab, **COSTS)
    own(tab, tau=1)
    assert tab.text(".pays-verdict").startswith("It does not pay for you with your 1.0 tokens a pass")
    own(tab, tau=3.5)
    questions = [
        ({"many": 1}, {}, "20 guesses in 1 ms, and one token in 22 ms?"),
        ({"many": 900}, {}, "20 guesses in 900 ms? One by one they would take 462 ms."),
        ({"level": 0}, {}, "A level of the draft in 0 ms?"),
        ({"level": 0.001, "many": 22}, {"tau": 50, "guesses": 60, "levels": 60}, "50× as fast?"),
        ({}, {"tau": 9}, "9 tokens per target pass? 6 levels and the target's own bring 7 at most."),
        ({}, {"tau": 0.5}, "Fewer than 1 token per target pass?"),
        ({}, {"guesses": 3}, "3 guesses in 6 levels?"),
    ]
    for costs, step, words in questions:
        fill(tab, **costs)
        own(tab, **step)
        assert tab.text(".pays-verdict").startswith(f"Please check: {words}")
        assert cells(tab, "own")[1:] == ["–"] * 3 and not tab.page.locator(".pays-curve").is_visible()
        fill(tab, **COSTS)
        own(tab, tau=3.5, guesses=20, levels=6)
    fill(tab, one=0)
    assert tab.text(".pays-verdict") == "Enter what a token takes, a number from 0 on."


def test_a_race_file_of_ones_own_brings_trees_and_costs_and_a_run_without_a_draft_brings_none(
    saved_page: SavedPages, tmp_path: Path
) -> None:
    mine, race = synthetic_race(3), synthetic_race(8)
    path = tmp_path / "mine.json"
    path.write_text(race_json(mine["target-only"], mine["speculative"], None), encoding="utf-8")
    tab = opened(saved_page, recorded_frames(race["target-only"], race["speculative"]))
    tab.page.click(".pays-bench summary")
    tab.page.set_input_files(".pays-bench [type=file]", str(path))
    tab.page.locator(".pays-note", has_text="Read: trees and costs are those of the file.").wait_for()
    reference, candidate = summarise([mine["target-only"]]), summarise([mine["speculative"]])
    assert cells(tab, "file-0")[:2] == [f"{candidate.tau:.1f}", f"{speedup(reference, candidate):.1f}×"]
    assert f"with your file's {candidate.tau:.1f} tokens a pass" in tab.text(".pays-verdict")
    before, document = tab.text(".pays-found"), json.loads(path.read_text(encoding="utf-8"))
    for part in ("tree", "emitted", "seconds"):
        broken = json.loads(json.dumps(document))
        broken["speculative"]["steps"][1][part] = {"parents": [0, "<b>"]} if part == "tree" else "x"
        tab.page.fill(".pays-bench textarea", json.dumps(broken))
        assert re.fullmatch(r"This report cannot be used: [^\n]{8,120}\.", tab.text(".pays-note"))
        assert tab.text(".pays-found") == before
    alone = replace(race["target-only"], lane="speculative", config=DecodingConfig(drafter="none"))
    plain = saved_page(recorded_frames(race["target-only"], alone))
    plain.page.wait_for_selector(".pays-rows [data-key=chain]")
    assert plain.text(".pays-verdict") == (
        "The run on show has not both a target alone and a draft to measure: choose costs, or enter your own."
    )
    assert plain.page.locator(".pays-preset option:checked").inner_text() == "the run on show: nothing to measure"
    assert plain.page.input_value("[data-cost=one]") == "" and cells(plain, "chain")[1:] == ["–"] * 3


FIGURES = {  # of the table at vllm-project/vllm#20780: K, mean acceptance length, milliseconds per output token
    "EAGLE draft": {2: (2.1, 4.37), 3: (2.29, 4.29), 4: (2.39, 4.48), 5: (2.43, 4.71), 6: (2.45, 4.94), 7: (2.47, 5.2)},
    "EAGLE-3 draft": {
        2: (2.36, 4.32), 3: (2.79, 4.09), 4: (3.08, 4.05), 5: (3.32, 4.13), 6: (3.46, 4.2), 7: (3.54, 4.29),
    },
}  # fmt: skip


def test_published_costs_follow_from_the_figures_of_their_source_and_are_cited(saved_page: SavedPages) -> None:
    for name, figures in FIGURES.items():
        (found,) = [one for one in PUBLISHED if f"its {name}," in one.name]
        beyond = {guesses: length * time - found.one for guesses, (length, time) in figures.items()}
        slope = sum(k * y for k, y in beyond.items()) / sum(k * k for k in beyond)
        assert found.level == pytest.approx(slope, abs=0.005)
        best = min(figures, key=lambda guesses: figures[guesses][1])
        assert found.step == MeanStep(figures[best][0], best, best)
        pass_took = found.one + best * found.level
        assert found.one * found.step.tau / pass_took == pytest.approx(found.one / figures[best][1], rel=0.05)
    race = synthetic_race(1)
    tab = opened(saved_page, recorded_frames(race["target-only"], race["speculative"]))
    for number, one in enumerate(PUBLISHED, start=len(pays_data()["presets"])):
        tab.page.select_option(".pays-preset", str(number))
        cited = tab.text(".pays-published")
        assert cited.startswith("Not measured by us: ") and one.where in cited and one.date in cited
        assert tab.page.get_attribute(".pays-published a", "href") == one.source
        assert tab.page.input_value("[data-cost=many]") == "" and "Enter what 20 guesses" in tab.text(".pays-verdict")
        assert float(tab.page.input_value("[data-cost=one]")) == one.one


@pytest.mark.parametrize("start", STARTS, ids=lambda start: start.name)
def test_each_first_command_parses_and_names_a_preset_with_a_draft(start: Start) -> None:
    install, compare, page = map(shlex.split, start.commands)
    assert install[:4] == ["pip", "install", "-r", "requirements.txt"] and (ROOT / install[3]).is_file()
    assert compare[:3] == ["python", "-m", "specllava"] and page[0] == "python" and (ROOT / page[1]).is_file()
    command, options = parse(Command, compare[3:]), parse(PageOptions, page[2:])
    assert isinstance(command, Compare) and command.pair.preset == options.running.preset == start.preset
    assert presets()[start.preset].draft and (ROOT / start.guide).is_file()


def test_the_first_commands_lead_to_the_code_where_its_address_is_known(
    saved_page: SavedPages, monkeypatch: pytest.MonkeyPatch
) -> None:
    race = synthetic_race(1)
    tab = opened(saved_page, recorded_frames(race["target-only"], race["speculative"]))
    shown = tab.page.locator(".pays-starts pre").all_inner_texts()
    assert [text.splitlines() for text in shown] == [list(start.commands) for start in STARTS]
    assert tab.page.locator(".pays-starts a").count() == 0 and "docs/llava.md" in tab.text(".pays-starts")
    code = packed_pays("https://host/code/")
    assert player_arguments([], code="https://host/code/")["pays"] == code != packed_pays()
    halves = tuple(half.replace(packed_pays(), code) for half in standalone.halves())
    monkeypatch.setattr(standalone, "halves", lambda: halves)
    tab = opened(saved_page, recorded_frames(race["target-only"], race["speculative"]))
    links = tab.page.locator(".pays-starts a").evaluate_all("(links) => links.map((link) => link.href)")
    guides = [[f"https://host/code/{start.guide}", "https://host/code"] for start in STARTS]
    assert links == [link for both in guides for link in both]
