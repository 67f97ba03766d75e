"""Pairs that a visitor may choose in place of the page's own: loaded beside the runs of others, and only if allowed."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import Mock

import gradio as gr
import pytest
from support.browser import Visit, new_page
from support.dialogues import FakeChat
from support.visual_traces import SETTING, FakeBackend, synthetic_recorded

import specllava.cli.page_pairs as page_pairs
from specllava.cli.options import PairOptions
from specllava.cli.page_options import PageOptions
from specllava.cli.page_pairs import load_offered, offered_names, pairs_with_memory
from specllava.core.config import DecodingConfig
from specllava.models.loading.memory import Machine, preset_memory
from specllava.models.loading.presets import FETCH_SMOL, preset_named, presets
from visual.page.app_state import AppState, Models
from visual.page.controls import decoding_config, described_settings
from visual.page.dialogue import Dialogues
from visual.page.model_choice import (
    AS_STARTED,
    DRAFT,
    PAIR,
    PRECISION,
    Chosen,
    ModelChoices,
    OtherPairs,
    PairOffer,
    read_models,
)
from visual.page.notices import NotYet, text_of
from visual.page.pictures import Picture
from visual.page.race import RACE, race_kind
from visual.page.replays import RaceReplays, follow_address, pair_notice, race_values
from visual.page.run_requests import RunRequest
from visual.page.runs import run_updates
from visual.player.static_files import static_text

SMALL, LARGE = "smolvlm2-2.2b-256m", "internvl3-8b-1b"
GB = 10**9


class Loader:
    """Stand-in for loading: waits until it is let go, and fails where it is told to."""

    def __init__(self) -> None:
        self.go, self.asked = Event(), list[str]()
        self.fails: Exception | None = None

    def __call__(self, name: str) -> FakeBackend:
        self.asked.append(name)
        assert self.go.wait(30)
        if self.fails:
            raise self.fails
        return FakeBackend(info=replace(SETTING, pair=name))


def offers(held: Sequence[str]) -> list[PairOffer]:
    return [PairOffer(SMALL, "small"), PairOffer(LARGE, "large", "needs 18.1 GB in bfloat16, 2.0 are free")]


def pairs_of(load: Callable[[str], Any], drop: Callable[[str], None] | None = None) -> OtherPairs:
    return OtherPairs((SMALL, LARGE), load, offers, drop)


def wait_for(pairs: OtherPairs, name: str) -> Any:
    """The pair, once it is loaded."""
    with suppress(NotYet):
        pairs.get(name)
    pairs._held[name].pair.exception(30)
    return pairs.get(name)


def test_a_pair_is_loaded_once_behind_the_runs_that_go_on() -> None:
    load = Loader()
    pairs = pairs_of(load)
    for _ in range(3):
        with pytest.raises(NotYet, match=f"{SMALL} is being loaded") as refusal:
            pairs.get(SMALL)
        assert f"{SMALL} is being loaded" in (refusal.value.progress() or "")
    with pytest.raises(ValueError, match=f"{SMALL} is being loaded, and pairs are loaded one at a time"):
        pairs.get(LARGE)
    assert [(one["name"], one["state"]) for one in pairs.offers()] == [(SMALL, "is being loaded"), (LARGE, "")]
    load.go.set()
    assert wait_for(pairs, SMALL).info.pair == SMALL
    assert refusal.value.progress() is None and load.asked == [SMALL]
    assert pairs.offers()[0]["state"] == "is loaded"
    assert wait_for(pairs, LARGE) is pairs.get(LARGE) is not pairs.get(SMALL)
    assert load.asked == [SMALL, LARGE]


def test_what_cannot_be_loaded_is_told_and_tried_again() -> None:
    load = Loader()
    load.fails = ValueError("the hub gave no such model")
    load.go.set()
    pairs = pairs_of(load)
    with pytest.raises(ValueError, match=f"{SMALL} cannot be loaded: the hub gave no such model"):
        wait_for(pairs, SMALL)
    assert all(not one["state"] for one in pairs.offers())
    load.fails = None
    assert wait_for(pairs, SMALL).info.pair == SMALL


@pytest.mark.parametrize("failure", [RuntimeError("broken"), MemoryError(), OSError(28, "No space left on device")])
def test_a_load_that_fails_in_any_other_way_is_tried_again_too(failure: Exception) -> None:
    load = Loader()
    load.fails = failure
    load.go.set()
    pairs = pairs_of(load)
    with pytest.raises(type(failure)):
        wait_for(pairs, SMALL)
    assert all(not one["state"] for one in pairs.offers())
    load.fails = None
    assert wait_for(pairs, SMALL).info.pair == SMALL and load.asked == [SMALL, SMALL]


def test_for_one_visitor_the_pair_before_makes_room_and_nothing_holds_it() -> None:
    """Its dialogue goes on, in words, and is read anew once the pair is there again."""
    load = Loader()
    load.go.set()
    dialogues = Dialogues(lambda turns: FakeChat(FakeBackend(), turns))

    def drop(name: str) -> None:
        dialogues.put_down(name)
        gc.collect()

    pairs = pairs_of(load, drop)

    def ask(follow: bool) -> None:
        make = lambda turns: FakeChat(pairs.get(SMALL), turns)  # noqa: E731
        asked = "me", Picture(seed=3), "What?", DecodingConfig(max_new_tokens=8)
        events, _ = dialogues.begin(*asked, follow=follow, models=SMALL, make=make)
        list(events)

    gone = weakref.ref(wait_for(pairs, SMALL))
    ask(follow=False)
    assert wait_for(pairs, LARGE).info.pair == LARGE
    assert gone() is None
    assert dialogues.edit("me", 0)[0] == "What?"
    dialogues.edit("me", None)
    load.go.clear()
    with pytest.raises(NotYet):
        ask(follow=True)
    load.go.set()
    wait_for(pairs, SMALL)
    ask(follow=True)
    assert dialogues.edit("me", 1)[0] == "What?"


def state_with(pairs: OtherPairs, tmp_path: Path) -> AppState:
    own = FakeBackend()

    def models(name: str) -> Models:
        return Models(lambda: pairs.get(name), lambda: pairs.get(name), lambda turns: pairs.get(name))

    others = {Chosen(pair=name): models(name) for name in pairs.names}
    choices = ModelChoices(pairs=pairs.offers)
    return AppState(lambda: own, recorded=synthetic_recorded(tmp_path, 1), others=others, choices=choices)


def test_a_run_on_a_pair_that_is_not_there_costs_no_other_run(tmp_path: Path) -> None:
    load = Loader()
    pairs = pairs_of(load)
    state = state_with(pairs, tmp_path)
    kind = race_kind(state)

    def run(session: str, pair: str) -> tuple[Any, str]:
        state.requests.request((session, RACE), RunRequest(Picture(seed=3), "What?", {PAIR: pair}))
        *_, last = run_updates(state.requests, kind, (session, RACE))
        return last

    value, notice = run("me", SMALL)
    assert value is None and f"{SMALL} is being loaded" in text_of(notice, "info")
    frames, notice = run("you", AS_STARTED)
    assert frames and not notice
    progress = state.requests.awaited(("me", RACE))
    assert progress is not None and progress() and state.requests.awaited(("you", RACE)) is None
    load.go.set()
    loaded = wait_for(pairs, SMALL)
    assert progress() is None
    frames, notice = run("me", SMALL)
    assert frames and not notice and loaded.closed == ["What?"] and state.requests.awaited(("me", RACE)) is None
    value, notice = run("me", "nobody/allowed-this")
    assert value is None and "there are no models" in text_of(notice, "error")


def test_another_pair_has_neither_the_drafts_nor_the_precisions_of_the_pages_own() -> None:
    settings = {PAIR: SMALL, PRECISION: "float64", "drafter": f"{DRAFT}EagleVLM", "rule": "chain"}
    assert read_models(settings) == Chosen(pair=SMALL) and str(Chosen(pair=SMALL)) == SMALL
    assert decoding_config(settings) == DecodingConfig(rule="chain")
    described = described_settings(settings)
    assert described["summary"].startswith(f"{SMALL} · ") and PRECISION not in described["read"]
    assert {PAIR, PRECISION} <= set(described_settings({PAIR: AS_STARTED})["read"])
    others = {Chosen(pair=SMALL): Models(Mock(), lambda: "theirs", Mock())}  # type: ignore[arg-type,return-value]
    assert AppState(Mock(), others=others).labs(Chosen(pair=SMALL)) == {SMALL: "theirs"}


@pytest.mark.parametrize(
    ("options", "variables", "offered"),
    [
        ({}, {}, "all"),
        ({"pairs": ("none",)}, {}, ()),
        ({"pairs": (SMALL, LARGE, SMALL)}, {}, (SMALL, LARGE)),
        ({"running": PairOptions(preset=SMALL), "pairs": (SMALL, LARGE)}, {}, (LARGE,)),
        ({"host": "0.0.0.0"}, {}, ()),
        ({"root_path": "/demo"}, {}, ()),
        ({"trusted_proxies": "127.0.0.1"}, {}, ()),
        ({}, {"SPACE_ID": "me/it"}, ()),
        ({}, {"SPACE_ID": "me/it", "SPECLLAVA_PAIRS": f"{SMALL}, {LARGE}"}, (SMALL, LARGE)),
        ({"host": "0.0.0.0", "pairs": ("all",)}, {}, "all"),
    ],
)
def test_visitors_of_a_public_page_load_what_its_owner_named(
    options: dict[str, Any], variables: dict[str, str], offered: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SPACE_ID", "SPECLLAVA_PAIRS", "GRADIO_SERVER_NAME", "GRADIO_ROOT_PATH", "FORWARDED_ALLOW_IPS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    every = tuple(name for name, one in presets().items() if one.fetched or (one.draft and not one.shipped))
    assert offered_names(PageOptions(**options)) == (every if offered == "all" else offered)


def test_a_pair_that_is_no_preset_is_refused_before_the_page_is_up() -> None:
    with pytest.raises(ValueError, match="unknown preset 'smolvlm'"):
        offered_names(PageOptions(pairs=("smolvlm",)))


def test_pairs_are_weighed_by_what_is_free_and_what_would_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_pairs, "this_machine", lambda device: Machine("cpu", 6 * GB))
    names = offered_names(PageOptions(pairs=("all",)))
    plain = {one.name: one for one in pairs_with_memory(names, PairOptions(), [])}
    assert "in bfloat16, downloads 10.0 GB" in plain[SMALL].about and not plain[SMALL].why
    assert plain[LARGE].why == "needs 11.5 GB in int8, 6.0 are free"
    assert plain["qwen3-vl-4b-eagle3"].why.endswith("it would fit in int8, with torchao, which is not installed") == (
        "would" in plain["qwen3-vl-4b-eagle3"].why
    )
    kept = preset_memory(preset_named(LARGE), next(p for p, *_ in Machine("cpu", 0).ways() if p.name == "int8"))
    assert kept is not None
    beside = {one.name: one for one in pairs_with_memory(names, PairOptions(), [LARGE])}
    assert not beside[LARGE].why
    room = (6 * GB + kept.total) / GB
    assert f"{room:.1f} are free" in beside["qwen2.5-vl-72b-3b"].why
    with pytest.raises(ValueError, match=r"needs 11\.5 GB in int8"):
        load_offered(LARGE, PairOptions())
    monkeypatch.setattr(page_pairs, "load_pair", lambda options: options)
    assert load_offered(SMALL, PairOptions(device="cpu")) == PairOptions(SMALL, device="cpu", dtype="bfloat16")


def test_the_drawer_offers_pairs_that_fit_says_why_others_do_not_and_tells_when_one_is_there(
    serve: Callable[[AppState], str], browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("visual.page.runs.SECONDS_PER_LOOK", 0.5)
    load = Loader()
    pairs = pairs_of(load)
    page = new_page(browser, {"width": 375, "height": 812})
    page.goto(serve(state_with(pairs, tmp_path)))
    page.wait_for_selector(".tree .main-svg")
    page.click(".settings-open")
    page.wait_for_selector(".pairs .choice:nth-child(2)")
    assert page.locator(".pairs .choice b").all_inner_texts() == [AS_STARTED, SMALL]
    page.click(".pairs summary")
    assert "needs 18.1 GB in bfloat16, 2.0 are free" in page.inner_text(".pairs details")
    page.locator(".pairs label", has_text=SMALL).click()
    page.wait_for_function(f"document.querySelector('.drawer .summary').textContent.startsWith('{SMALL}')")
    page.click(".drawer-run")
    visit = Visit(page)
    visit.wait(f"document.querySelector('#notice').textContent.includes('{SMALL} is being loaded')")
    load.go.set()
    visit.wait("document.querySelector('#notice').textContent.includes('press the button again')")
    page.click("#run")
    visit.wait("document.querySelector('.origin').textContent.includes('live run')")
    assert load.asked == [SMALL] and len(pairs.get(SMALL).closed) == 1
    page.close()


SMOL = "smol"  # has questions of its own


def linked(tmp_path: Path, why: str = "", load: Callable[[str], Any] | None = None) -> AppState:
    """A page with the toy pair that offers two more; ``why`` the pair smol cannot be loaded."""
    offered = [PairOffer(SMOL, "", why, {"drafter": "prompt-lookup"}), PairOffer(SMALL, "")]
    return state_with(OtherPairs((SMOL, SMALL), load or Loader(), lambda held: offered), tmp_path)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        (SMOL, ""), (AS_STARTED, ""), ("toy", ""), (None, ""),
        ("nope", "There is no pair 'nope' to choose: Settings list the pairs there are."),
        ("<b>", "There is no pair '<b>' to choose: Settings list the pairs there are."),
    ],
)  # fmt: skip
def test_an_address_names_a_pair_that_is_offered_or_is_told_why_not(
    address: str | None, said: str, tmp_path: Path
) -> None:
    state = linked(tmp_path)
    assert pair_notice(state, address) == said
    replays = RaceReplays(partial(race_values, state))
    query = {"pair": address} if address else {}
    *values, notice = follow_address(state, replays, query)
    assert (text_of(notice, "warning") if said else notice) == (said or gr.skip())
    assert values == [gr.skip()] * 4


def test_an_address_with_a_pair_that_is_not_fetched_says_how_to_fetch_it(tmp_path: Path) -> None:
    state = linked(tmp_path, FETCH_SMOL)
    assert pair_notice(state, SMOL) == f"The pair smol cannot be loaded here: {FETCH_SMOL}"
    assert "python -m specllava fetch smol" in FETCH_SMOL
    alone = replace(state, choices=ModelChoices())
    assert pair_notice(alone, SMOL) == "There is no pair 'smol' to choose: this page has its own pair only."
    both = follow_address(state, RaceReplays(partial(race_values, state)), {"example": "nope", "pair": SMOL})
    assert text_of(both[-1]).startswith("There is no example 'nope'")


def test_a_link_chooses_a_pair_with_its_questions_and_loads_nothing(
    serve: Callable[[AppState], str], browser: Any, tmp_path: Path
) -> None:
    load = Loader()
    state = linked(tmp_path, load=load)
    page = new_page(browser, {"width": 1280, "height": 900})
    visit = Visit(page)
    address = serve(state)
    page.goto(f"{address}?pair={SMOL}&set-depth=3")
    visit.wait(f"document.querySelector('.summary').textContent.startsWith('{SMOL} · prompt lookup')")
    chips = page.locator(".suggestions button:visible")
    assert chips.all_inner_texts() == ["Story", "What next?", "Poem", "Count"]
    chips.first.click()
    visit.wait("document.querySelector('#question textarea').value === 'Tell me a story.'")
    assert f"pair={SMOL}" in page.url and "set-depth=3" in page.url
    assert not load.asked
    page.click(".settings-open")
    assert page.locator(".pairs label", has_text=SMOL).first.locator("input").is_checked()
    page.locator(".pairs label", has_text=AS_STARTED).click()
    visit.wait("!location.search.includes('pair=')")
    page.keyboard.press("Escape")
    assert chips.all_inner_texts() == ["Describe", "Tell a story", "Count", "On the left?"]
    page.goto(f"{address}?pair=nope")
    visit.wait("document.querySelector('#notice').textContent.includes(\"no pair 'nope'\")")
    assert not page.text_content(".summary").startswith("nope")
    page.close()


@pytest.mark.parametrize(
    ("query", "view"),
    [("", "opening"), ("?pair=smol", "explain"), ("?lesson=2", "explain"), ("?pair=smol&view=workbench", "workbench")],
)
def test_a_first_visit_by_a_link_to_a_pair_begins_where_questions_are_asked(
    query: str, view: str, browser: Any
) -> None:
    context = browser.new_context()
    page = context.new_page()
    script = static_text("view_choice.js")
    page.route("**/*", lambda route: route.fulfill(body=f"<script>{script}</script>", content_type="text/html"))
    page.goto(f"http://127.0.0.1:9/{query}")
    assert page.evaluate("document.documentElement.dataset.view") == view
    context.close()
