"""Who guesses: the drafts of one target as one choice of the page, and an experiment that races them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from support import models
from support.browser import FINISHED, LAB_READY, Visit, assert_accessible, new_page
from support.dialogues import FakeChat
from support.lab_traces import FakeLab, synthetic_drafters
from support.scenes import scene
from support.visual_traces import SETTING, FakeBackend, synthetic_recorded

import app
from specllava.cli.options import PairOptions
from specllava.cli.page_options import PageOptions
from specllava.config import DecodingConfig, DrafterName
from specllava.metrics import acceptance_by_depth, summarise
from specllava.lab import Lab
from specllava.lab.sweep import LOOKUP
from specllava.models.drafts.draft_vlm import save
from specllava.models.drafts.eagle import fresh_feature_draft
from specllava.models.presets import Preset, presets
from specllava.pair import Pair
from visual.figures.sweep_charts import DEEPEST, DRAFTER_COLUMNS, drafters_chart
from visual.page.app_state import AppState, Models
from visual.page.controls import decoding_config, described_settings, settings_drawer
from visual.page.dialogue import Dialogues
from visual.page.lab import EXPERIMENTS, experiment_kind
from visual.page.lab_views import drafters_view
from visual.page.model_choice import DRAFT, OWN, DraftChoices, chosen_models, read_draft
from visual.page.race import RACE, race_kind
from visual.page.run_requests import RunRequest, RunRequests
from visual.page.runs import run_updates

EAGLE = "EagleVLM"
CHOICES = DraftChoices("draft VLM", "a model of its own", {EAGLE: "reads the target's states"})
CONFIG = DecodingConfig(max_new_tokens=10, depth=3)
ASKED = "How many objects are there?"


# --- the choice -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [EAGLE, "before distillation", "<b>", "as started", ""])
@pytest.mark.parametrize("rule", ["entropy", "chain"])
def test_another_draft_is_the_drafter_model_of_another_pair(name: str, rule: str) -> None:
    settings = {"drafter": DRAFT + name, "rule": rule}
    assert decoding_config(settings) == DecodingConfig(rule=rule)
    assert read_draft(settings) == name
    plain, told = described_settings({"rule": rule}), described_settings(settings)
    assert (told["read"], told["refused"]) == (plain["read"], {})
    assert not name or told["summary"].startswith(f"{name} · {rule} rule")


@pytest.mark.parametrize(
    "drafter", [*get_args(DrafterName), "gpt", "draft", "DRAFT: x", "draft: model", 7, None, ["model"]]
)
def test_whatever_else_stands_there_means_what_it_meant(drafter: Any) -> None:
    assert read_draft({"drafter": drafter}) == OWN
    if drafter in get_args(DrafterName):
        assert decoding_config({"drafter": drafter}).drafter == drafter
    else:
        with pytest.raises(ValueError, match="drafter"):
            decoding_config({"drafter": drafter})


def test_a_draft_that_is_not_offered_is_refused_by_name() -> None:
    others = {EAGLE: 1, "before distillation": 2}
    assert chosen_models(others, OWN) is None
    assert [chosen_models(others, draft) for draft in others] == [1, 2]
    with pytest.raises(ValueError, match=f"no draft 'ViSpec': choose model; {EAGLE}; before distillation"):
        chosen_models(others, "ViSpec")


def test_the_drawer_names_every_draft_once_beside_the_rule() -> None:
    groups = settings_drawer("#run", CHOICES).props["groups"]
    tree = next(group for group in groups if group["title"] == "The tree")
    drafter, rule, *_ = tree["options"]
    assert (drafter["title"], rule["name"]) == ("Who guesses (drafter)", "rule")
    assert [(one["name"], one.get("title")) for one in drafter["choices"]] == [
        ("model", "draft VLM"), (DRAFT + EAGLE, EAGLE), ("prompt-lookup", None), ("none", None),
    ]  # fmt: skip


# --- where drafts come from -------------------------------------------------------------------------------------------


@pytest.fixture
def eagle(tmp_path: Path, shipped: Callable[[Any], Pair], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new draft that reads the toy target's states, as if it shipped."""
    folder = tmp_path / "eagle"
    save(fresh_feature_draft(shipped("float32").target), None, folder)
    known = presets() | {"toy-eagle": Preset(presets()["toy"].target, folder)}
    known.pop("toy-eagle-compressed", None)
    monkeypatch.setattr(app, "presets", lambda: known)
    return folder


def made(options: PageOptions, own: Pair, monkeypatch: pytest.MonkeyPatch) -> tuple[DraftChoices, Mapping[str, Models]]:
    """What a page offers over a pair that is loaded already."""
    monkeypatch.setattr(app, "load_pair", lambda running: own)
    state = app.make_state(options)
    return state.choices, state.others


def test_the_drafts_of_the_toy_pair_are_offered_and_share_its_target(
    eagle: Path, shipped: Callable[[Any], Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = shipped("float32")
    choices, others = made(PageOptions(PairOptions()), own, monkeypatch)
    assert list(choices.all_drafts()) == ["draft VLM", EAGLE, "before distillation"]
    reading = others[EAGLE].backend()
    assert isinstance(reading, Pair)
    assert reading.target is own.target and reading.draft_vision == "states"
    assert others[EAGLE].backend() is reading, "made once"
    assert list(others) == [EAGLE, "before distillation"]


def test_a_page_started_with_a_draft_of_ones_own_has_that_and_those_that_are_named(
    eagle: Path, shipped: Callable[[Any], Pair], monkeypatch: pytest.MonkeyPatch
) -> None:
    running = PairOptions(draft=str(eagle))
    choices, others = made(PageOptions(running, drafts=("toy-before",)), shipped("float32"), monkeypatch)
    assert list(choices.all_drafts()) == ["eagle", "toy-before"]
    assert list(others) == ["toy-before"]
    bare = PageOptions(PairOptions(preset="llava-1.5-7b"))
    assert app._choices(bare, app._drafts(bare)).all_drafts() == {}
    published = PageOptions(PairOptions(preset="llava-1.5-7b-vispec"), drafts=("llava-1.5-7b-msd",))
    drafts = app._drafts(published)
    assert [(name, one.reading.draft_format) for name, one in drafts.items()] == [
        ("ViSpec-LLaVA1.5-7B", "vispec"), ("llava-1.5-7b-msd", "msd"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("drafts", "why"),
    [(("toy-before", "toy-before"), "two drafts are called"), (("llava-1.5-7b-msd",), "has no draft for")],
)
def test_drafts_that_cannot_be_offered_are_refused_before_the_page_is_up(drafts: tuple[str, ...], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        app._drafts(PageOptions(PairOptions(draft="mine"), drafts=drafts))


# --- the experiment ---------------------------------------------------------------------------------------------------


def tiny() -> dict[str, Lab]:
    pair = models.pair("mixed")
    return {"draft VLM": Lab(pair), EAGLE: Lab(replace(pair, draft=fresh_feature_draft(pair.target)))}


@pytest.mark.parametrize("drafter", get_args(DrafterName))
@pytest.mark.parametrize("present", ["draft VLM", EAGLE])
def test_all_drafts_of_a_target_race_for_the_same_tokens(present: str, drafter: DrafterName) -> None:
    labs = tiny()
    findings = list(labs[present].drafters(None, "what", labs, replace(CONFIG, drafter=drafter)))
    found = findings[-1]
    assert (found.values, found.current, found.finished) == (("draft VLM", EAGLE, LOOKUP), present, 3)
    assert found.alone is not None
    assert all(point.same for point in found.points)
    runs = dict(found.runs)
    assert [runs[name].setting.draft_reads for name in found.values[:2]] == [None, "states"]
    assert [runs[name].config.drafter for name in found.values] == ["model", "model", "prompt-lookup"]
    assert [name for name, _ in found.draft_pass] == ["draft VLM", EAGLE]
    assert all(seconds > 0 for _, seconds in found.draft_pass)
    assert len(findings) >= 1 + sum(len(run.steps) for run in (found.alone, *runs.values())), "it can be closed"


def test_drafts_that_cannot_be_compared_are_refused_in_one_line() -> None:
    labs = tiny()
    own = labs["draft VLM"]
    with pytest.raises(ValueError, match="no second draft to compare with: this page has draft VLM"):
        next(own.drafters(None, "what", {"draft VLM": own}, CONFIG))
    with pytest.raises(ValueError, match="this page has none"):
        next(own.drafters(None, "what", {}, CONFIG))
    stranger = models.pair("mixed")
    other = Lab(replace(stranger, target=fresh_target(stranger)))
    with pytest.raises(ValueError, match="several"):
        next(own.drafters(None, "what", {"draft VLM": own, "other": other}, CONFIG))
    with pytest.raises(ValueError, match="choose the draft that came of it"):
        next(labs[EAGLE].distillation(None, "what", CONFIG))


def fresh_target(pair: Pair) -> Any:
    return type(pair.target)(pair.target.config)


def test_the_chart_says_what_was_found_of_every_drafter() -> None:
    names = ("draft VLM", EAGLE, LOOKUP)
    *_, found = synthetic_drafters(names, DecodingConfig())
    chart = drafters_chart(found)
    race, depths = chart.figures
    assert [trace.name for trace in race.data] == ["draft VLM (yours)", EAGLE, LOOKUP]
    assert len({(trace.marker.color, trace.marker.symbol) for trace in race.data}) == 3
    for (_, run), point, shares, row in zip(found.runs, race.data, depths.data, chart.rows, strict=True):
        assert point.x[0] == round(summarise([run]).tau, 3)
        counts = acceptance_by_depth([run]).items()
        judged = {depth: hits / tests for depth, (hits, tests) in counts if depth <= DEEPEST}
        drawn = {x: y for x, y in zip(shares.x, shares.y, strict=True) if y is not None}
        assert drawn == pytest.approx(judged, abs=1e-3)
        cells = dict(zip(DRAFTER_COLUMNS, row, strict=True))
        assert float(cells["ms per token"]) == pytest.approx(
            1000 * run.decode_seconds / sum(len(step.emitted) for step in run.steps), abs=0.01
        )
        assert (cells["Draft pass, ms"] == "–") == (cells["Drafter"] == LOOKUP)
    assert re.match(r"Fastest here: .+×", chart.answer) and "token for token" in chart.answer
    progress, view = drafters_view(replace(found, runs=()))
    assert progress == "0 of 3 drafters" and view["rows"] == ()


# --- on the page ------------------------------------------------------------------------------------------------------


class Named:
    """Stand-ins of one pair of models."""

    def __init__(self, draft: str) -> None:
        self.backend, self.lab = FakeBackend(info=replace(SETTING, draft=draft)), FakeLab()
        self.asked: list[str] = []

    def load(self) -> FakeBackend:
        self.asked.append("race")
        return self.backend


def site(own: Named, other: Named) -> AppState:
    chat: Callable[[Any], Any] = lambda turns: None  # noqa: E731
    others = {EAGLE: Models(other.load, lambda: other.lab, chat)}
    return AppState(own.load, lab=lambda: own.lab, others=others, choices=CHOICES)


@pytest.mark.parametrize("chosen", ["model", DRAFT + EAGLE])
def test_a_race_runs_with_the_draft_that_was_chosen_and_the_experiment_with_all(chosen: str) -> None:
    own, other = Named("a"), Named("b")
    requests, state = RunRequests(), site(own, other)
    requests.request(("me", RACE), RunRequest(scene(3), "What?", {"drafter": chosen}))
    list(run_updates(requests, race_kind(state), ("me", RACE)))
    assert (own.asked, other.asked) == (([], ["race"]) if chosen != "model" else (["race"], []))
    assert state.labs() == {"draft VLM": own.lab, EAGLE: other.lab}
    kind = experiment_kind(state, next(one for one in EXPERIMENTS if one.name == "drafters"))
    requests.request(("me", kind.name), RunRequest(scene(3), "What?", {"drafter": chosen}))
    *_, (view, _) = run_updates(requests, kind, ("me", kind.name))
    assert EAGLE in view
    assert (own.lab.asked, other.lab.asked) == (([], ["What?"]) if chosen != "model" else (["What?"], []))


def test_a_follow_up_to_other_models_takes_up_what_was_said_and_reads_it_anew() -> None:
    backend, made = FakeBackend(), list[tuple[str, FakeChat]]()

    def maker(name: str) -> Callable[[Sequence[Any]], FakeChat]:
        def make(turns: Sequence[Any]) -> FakeChat:
            made.append((name, FakeChat(backend, turns)))
            return made[-1][1]

        return make

    dialogues = Dialogues(maker("own"))
    other = EAGLE, maker(EAGLE)
    for number, (name, make) in enumerate([("own", None), ("own", None), other, other]):
        asked = ("me", scene(3), f"{number}?", DecodingConfig(max_new_tokens=8))
        events, _ = dialogues.begin(*asked, follow=number > 0, models=name, make=make)
        list(events)
    assert [name for name, _ in made] == ["own", EAGLE]
    assert [turn.text for turn in made[1][1].turns] == ["0?", "1?", "2?", "3?"]


@pytest.mark.night
def test_the_drawer_offers_the_drafts_and_presets_of_the_tree_leave_them(
    serve: Callable[[AppState], str], browser: Any, tmp_path: Path
) -> None:
    own, other = Named("a"), Named("b")
    address = serve(replace(site(own, other), recorded=synthetic_recorded(tmp_path, 1)))
    page = new_page(browser, {"width": 375, "height": 812}, reduced_motion="reduce")
    page.goto(address)
    page.wait_for_selector(".tree .main-svg")
    page.click(".settings-open")
    page.get_by_role("radio", name="draft VLM").focus()
    page.keyboard.press("ArrowDown")
    summary = "document.querySelector('.drawer .summary').textContent"
    page.wait_for_function(f"{summary}.startsWith('{EAGLE} · entropy rule')")
    page.locator(".preset", has_text="EAGLE-2").click()
    page.wait_for_function(f"{summary}.startsWith('{EAGLE} · topk rule')")
    assert page.locator(".preset", has_text="EAGLE-2").get_attribute("aria-pressed") == "true"
    assert_accessible(page, ".drawer")
    page.click(".drawer-run")
    Visit(page).wait(FINISHED)
    assert other.asked == ["race"]
    page.locator("#lab-drafters .lab-run").click()
    Visit(page).wait("document.querySelector('#lab-drafters').innerText.includes('Fastest here: prompt lookup')")
    Visit(page).wait(LAB_READY.format(name="drafters"))  # the last of them was the fastest, and no other came after it
    page.locator("#lab-drafters details summary").first.click()
    assert EAGLE in page.inner_text("#lab-drafters table")
    assert_accessible(page, "#lab-drafters")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.close()
