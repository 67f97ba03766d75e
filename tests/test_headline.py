"""The numbers above a race, against arithmetic of their own: shipped races and synthetic ones."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from support.shipped_races import shipped_races
from support.visual_traces import first_steps, synthetic_race

from specllava.core import metrics, progress
from specllava.metrics import RunTotals, summarise
from specllava.core.progress import RaceProgress
from specllava.trace import SPECULATIVE, TARGET_ONLY, DecodeTrace, StepTrace, Verification
from visual.player.component import player_arguments
from visual.player.frames import FrameList
from visual.player.headline import RunningHeadline, headline

Race = tuple[DecodeTrace, DecodeTrace]


def races() -> list[Race]:
    recorded = [(race.target_only, race.speculative) for race in shipped_races()]
    return [
        *((alone, together) for alone, together in recorded if alone is not None and together is not None),
        *((lanes[TARGET_ONLY], lanes[SPECULATIVE]) for lanes in map(synthetic_race, range(6))),
    ]


def seconds(trace: DecodeTrace) -> float:
    return math.fsum(step.seconds.total for step in trace.steps)


def slowed(trace: DecodeTrace, factor: float) -> DecodeTrace:
    """The run with drafts that took that much longer."""
    steps = tuple(replace(s, seconds=replace(s.seconds, draft=factor * s.seconds.draft)) for s in trace.steps)
    return replace(trace, steps=steps)


def test_both_speedups_are_those_of_the_clocks() -> None:
    for alone, together in races():
        shown = headline(alone, together, finished=True)
        answering = seconds(alone) / seconds(together)
        whole = (seconds(alone) + alone.prefill.total) / (seconds(together) + together.prefill.total)
        assert shown["speedup"] == f"{answering:.1f}×" and shown["speedup_state"] == "faster"
        assert shown["speedup_note"] == f"faster while answering · {whole:.1f}× in all, with reading the picture"
        assert "in all" not in headline(alone, together, finished=False)["speedup_note"]


@pytest.mark.parametrize("factor", [10, 50, 300])
def test_slower_is_called_slower_with_its_reason(factor: int) -> None:
    for alone, fast in races():
        together = slowed(fast, factor)
        ratio = seconds(together) / seconds(alone)
        shown = headline(alone, together, finished=True)
        assert not shown["speedup"].startswith("0.")
        assert shown["speedup"] == f"{max(ratio, 1 / ratio):.1f}×"
        if ratio > 1.05:
            drafting = 100 * sum(step.seconds.draft for step in together.steps) / seconds(together)
            tau = (len(together.token_ids) - 1) / len(together.steps)
            price = seconds(together) / len(together.steps) / (seconds(alone) / len(alone.steps))
            assert price > tau
            assert shown["speedup_state"] == "slower"
            assert (
                f"slower while answering: a step took the time of {price:.2f} tokens alone"
                f" ({drafting:.0f} % of it drafting) and brought {tau:.2f}"
                in (shown["speedup_note"])
            )
            assert "slower in all" in shown["speedup_note"]


def test_neither_faster_nor_slower_has_no_colour() -> None:
    alone = synthetic_race(0)[TARGET_ONLY]
    shown = headline(alone, alone, finished=True)
    assert (shown["speedup"], shown["speedup_state"]) == ("1.0×", "open")
    assert shown["speedup_note"] == "as fast while answering · as fast in all, with reading the picture"


def test_the_speedup_card_takes_its_colour_from_the_state() -> None:
    template = player_arguments([])["html_template"]
    assert re.search(r'data-state-of="speedup"[^>]*><b data-total="speedup">', template)


def test_the_page_has_the_ratio_that_was_measured() -> None:
    for alone, together in races():
        one = math.fsum(step.seconds.verify for step in alone.steps) / len(alone.steps)
        check = math.fsum(step.seconds.verify for step in together.steps) / len(together.steps)
        shown = headline(alone, together, finished=True)["pass_ratio"]
        drafting = math.fsum(step.seconds.draft for step in together.steps) / together.decode_seconds
        assert f"takes {check / one:.1f} times as long as over one;" in shown
        assert shown.endswith(f"drafting took {100 * drafting:.0f} % of the time.")
    template = player_arguments([])["html_template"]
    assert 'data-total="pass_ratio"' in template


def test_the_counts_of_the_headline_agree() -> None:
    for alone, together in races():
        shown = headline(alone, together, finished=True)
        tokens = len(together.token_ids)
        assert shown["instead"] == f"instead of {tokens - 1}"
        assert shown["same_note"] == f"{tokens} of {tokens} tokens; the first comes from reading"
        assert (shown["same"], shown["same_state"]) == ("identical ✓", "same")
        assert shown["passes"] == str(len(together.steps))
        assert shown["tau"] == f"{(tokens - 1) / len(together.steps):.1f}"
    assert "after the first token" in player_arguments([])["html_template"]


def test_the_running_headline_is_that_of_the_steps_so_far() -> None:
    for alone, together in races():
        odd = replace(alone.steps[2], emitted=(1,), verification=replace(alone.steps[2].verification, bonus_token=1))
        parted = replace(alone, steps=(*alone.steps[:2], odd, *alone.steps[3:]))
        for reference in (alone, parted):
            running, clock = RunningHeadline(), together.prefill.total
            for step in together.steps:
                clock += step.seconds.total
                one, two = (first_steps(trace, steps_until(trace, clock)) for trace in (reference, together))
                assert running.at_race(reference, together, clock) == headline(one, two, finished=False)


def steps_until(trace: DecodeTrace, clock: float) -> int:
    ends = [trace.prefill.total + math.fsum(s.seconds.total for s in trace.steps[: n + 1])
            for n in range(len(trace.steps))]  # fmt: skip
    return sum(end <= clock + 1e-9 for end in ends)


def test_a_running_headline_looks_at_each_step_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[StepTrace] = []

    def looking(step: StepTrace) -> RunTotals:
        looked.append(step)
        return metrics.step_totals(step)

    monkeypatch.setattr(progress, "step_totals", looking)
    lanes = synthetic_race(0)
    FrameList("recorded run", live=False).update(lanes, "finished")
    assert len(looked) <= len(lanes[TARGET_ONLY].steps) + len(lanes[SPECULATIVE].steps)


def test_a_lane_that_grows_between_two_moments_is_summed_up_whole() -> None:
    lanes, race = synthetic_race(3), RaceProgress()
    for count in range(len(lanes[TARGET_ONLY].steps) + 1):
        race.advance(first_steps(lanes[TARGET_ONLY], count), first_steps(lanes[SPECULATIVE], count), 1e9)
    for trace, summary in ((lanes[TARGET_ONLY], race.reference.summary), (lanes[SPECULATIVE], race.candidate.summary)):
        whole = summarise([trace])
        assert summary.decode_seconds == pytest.approx(whole.decode_seconds)
        assert (summary.tokens, summary.drafted, summary.accepted, summary.saved) == (
            whole.tokens, whole.drafted, whole.accepted, whole.saved,
        )  # fmt: skip


def test_a_running_race_claims_nothing_more_than_it_knows() -> None:
    lanes = synthetic_race(1)
    early = RunningHeadline().at_race(lanes["target-only"], lanes["speculative"], clock=0.06)
    assert (early["same"], early["same_state"]) == ("same so far", "open")
    before_any_step = headline(
        first_steps(lanes["target-only"], 0), first_steps(lanes["speculative"], 0), finished=False
    )
    assert before_any_step["speedup"] == before_any_step["tau"] == "–"


def test_a_difference_is_shown_with_its_margin() -> None:
    lanes = synthetic_race(1)
    odd = lanes["target-only"]
    last = odd.steps[20]
    swapped = replace(last, emitted=(3,), verification=Verification((), 3))
    odd = replace(odd, steps=(*odd.steps[:20], swapped, *odd.steps[21:]))
    shown = headline(odd, lanes["speculative"], finished=True)
    assert (shown["same"], shown["same_state"]) == ("differs at 22 ✗", "differs")
    assert "more than rounding" in shown["same_note"]
