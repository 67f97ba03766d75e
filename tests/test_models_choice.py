"""Models that a visitor chooses in place of the page's own: a draft before distillation, another precision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.browser import Visit, new_page
from support.dialogues import FakeChat
from support.lab_traces import FakeLab
from support.visual_traces import SETTING, FakeBackend, synthetic_recorded

from specllava.core.config import DecodingConfig
from specllava.core.question import Question
from specllava.lab import Lab
from specllava.pair import Pair
from visual.page.app_state import AppState, Models
from visual.page.controls import decoding_config, described_settings
from visual.page.dialogue import Dialogues
from visual.page.lab import EXPERIMENTS, experiment_kind
from visual.page.model_choice import AS_STARTED, PRECISION, Chosen, ModelChoices, chosen_models, read_models
from visual.page.pictures import Picture
from visual.page.race import RACE, race_kind
from visual.page.run_requests import RunRequest, RunRequests
from visual.page.runs import run_updates

OTHER = "float64"
THEIRS = Chosen(precision=OTHER)


class Named:
    """Stand-ins of one pair of models."""

    def __init__(self, dtype: str) -> None:
        self.backend, self.lab = FakeBackend(info=replace(SETTING, dtype=dtype)), FakeLab()
        self.asked: list[str] = []

    def load(self) -> FakeBackend:
        self.asked.append("race")
        return self.backend


def site(own: Named, other: Named) -> AppState:
    chat: Callable[[Sequence[Any]], Any] = lambda turns: None  # noqa: E731
    models = Models(other.load, lambda: other.lab, chat)
    choices = ModelChoices(precisions={OTHER: "both models in float64"})
    return AppState(own.load, others={THEIRS: models}, choices=choices)


def test_the_choice_is_no_option_of_decoding_and_is_told_where_it_is_not_the_pages_own() -> None:
    assert decoding_config({PRECISION: OTHER, "rule": "chain"}) == DecodingConfig(rule="chain")
    plain = described_settings({})
    assert PRECISION in plain["read"]
    assert described_settings({PRECISION: AS_STARTED})["summary"] == plain["summary"]
    assert described_settings({PRECISION: OTHER})["summary"] == f"{plain['summary']} · {OTHER}"


@pytest.mark.parametrize("name", ["", "float16", "<b>", "as", "None", 7, None, ["float64"]])
def test_models_that_are_not_offered_are_refused_in_one_line(name: Any) -> None:
    own, other = Named("float32"), Named("float64")
    requests = RunRequests()
    requests.request(("me", RACE), RunRequest(Picture(seed=3), "What?", {PRECISION: name}))
    *_, (value, notice) = run_updates(requests, race_kind(site(own, other)), ("me", RACE))
    assert value is None and "there are no models" in notice and OTHER in notice
    assert own.asked == other.asked == []
    with pytest.raises(ValueError, match="there are no models"):
        chosen_models({THEIRS: 1}, read_models({PRECISION: name}))


@pytest.mark.parametrize("chosen", [AS_STARTED, OTHER])
def test_a_race_and_an_experiment_run_on_the_chosen_models_alone(chosen: str) -> None:
    own, other = Named("float32"), Named("float64")
    used, unused = (other, own) if chosen == OTHER else (own, other)
    requests = RunRequests()
    requests.request(("me", RACE), RunRequest(Picture(seed=3), "What?", {PRECISION: chosen}))
    list(run_updates(requests, race_kind(site(own, other)), ("me", RACE)))
    assert (used.asked, unused.asked) == (["race"], [])
    kind = experiment_kind(replace(site(own, other), lab=lambda: own.lab), EXPERIMENTS[0])
    requests.request(("me", kind.name), RunRequest(Picture(seed=3), "What?", {PRECISION: chosen}))
    list(run_updates(requests, kind, ("me", kind.name)))
    assert (used.lab.asked, unused.lab.asked) == (["What?"], [])


def test_a_follow_up_to_other_models_takes_up_what_was_said_and_reads_it_anew() -> None:
    backend, made = FakeBackend(), list[tuple[str, FakeChat]]()

    def maker(name: str) -> Callable[[Sequence[Any]], FakeChat]:
        def make(turns: Sequence[Any]) -> FakeChat:
            made.append((name, FakeChat(backend, turns)))
            return made[-1][1]

        return make

    dialogues = Dialogues(maker(AS_STARTED))
    other = OTHER, maker(OTHER)
    for number, (name, make) in enumerate([(AS_STARTED, None), (AS_STARTED, None), other, other]):
        asked = ("me", Picture(seed=3), f"{number}?", DecodingConfig(max_new_tokens=8))
        events, _ = dialogues.begin(*asked, follow=number > 0, models=name, make=make)
        list(events)
    assert [name for name, _ in made] == [AS_STARTED, OTHER]
    assert [turn.text for turn in made[1][1].turns] == ["0?", "1?", "2?", "3?"]


def test_two_precisions_of_the_shipped_pair_say_the_same(shipped: Callable[[Any], Pair]) -> None:
    pairs = shipped("float32"), shipped("float64")
    config = DecodingConfig(max_new_tokens=24)
    picture = Picture(seed=3_000_001).open()
    asked = ("What is on the left?", "How many objects are there?")
    questions = [Question(text, picture, "scene.png") for text in asked]
    *_, found = Lab(pairs[0]).compare(iter(questions), 2, config, config, Lab(pairs[1]))
    assert "float64" in found.b and "float64" not in found.a
    assert all(row.sameness is not None and row.sameness.identical for row in found.rows)


def test_the_drawer_offers_other_models_and_runs_them(
    serve: Callable[[AppState], str], browser: Any, tmp_path: Path
) -> None:
    own, other = Named("float32"), Named("float64")
    address = serve(replace(site(own, other), recorded=synthetic_recorded(tmp_path, 1)))
    page = new_page(browser, {"width": 375, "height": 812})
    page.goto(address)
    page.wait_for_selector(".tree .main-svg")
    page.click(".settings-open")
    page.locator(".drawer label", has_text=OTHER).click()
    page.wait_for_function(f"document.querySelector('.drawer .summary').textContent.endsWith(' · {OTHER}')")
    page.click(".drawer-run")
    Visit(page).wait("document.querySelector('.origin').textContent.includes('live run')")
    assert other.asked == ["race"]
    page.close()
