"""Questions about no picture on the page, and a language model, for which nothing that needs a picture is offered."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.browser import FINISHED, Visit, new_page
from support.text_models import write_text_model
from support.visual_traces import FakeBackend, FakeEvent, synthetic_recorded
from test_dialogue_page import ask, rows

from specllava.core.config import DecodingConfig
from specllava.models.media.media import Pictures
from specllava.pair import Pair
from visual.page.app_state import AppState
from visual.page.dialogue import Dialogues
from visual.page.pictures import NoPicture, address_of
from visual.page.uploads import NONE, UploadStore


@dataclass(frozen=True)
class Watching(FakeBackend):
    """Keeps what it was shown."""

    shown: list[Pictures] = field(default_factory=list)

    def race(self, image: Pictures, messages: str, config: DecodingConfig) -> Generator[FakeEvent]:
        self.shown.append(image)
        return super().race(image, messages, config)


def opened(browser: Any, address: str) -> Visit:
    tab = Visit(new_page(browser, {"width": 1280, "height": 900}))
    tab.page.goto(f"{address}?view=workbench")
    tab.page.wait_for_selector(".tree .main-svg")
    tab.wait("document.querySelector('.chip').dataset.state === 'ready'")
    return tab


@pytest.fixture
def page(
    serve: Callable[[AppState], str], browser: Any, tmp_path: Any, request: pytest.FixtureRequest
) -> tuple[Visit, Watching]:
    backend = Watching(sees=request.param)
    address = serve(AppState(lambda: backend, synthetic_recorded(tmp_path, 2)))  # type: ignore[arg-type,return-value]
    return opened(browser, address), backend


@pytest.mark.parametrize("page", [True], indirect=True)
def test_no_picture_is_chosen_and_the_models_get_none(page: tuple[Visit, Watching]) -> None:
    tab, backend = page
    assert tab.page.is_visible("#upload")
    tab.page.click("#no-picture")
    tab.wait("document.querySelector('#picture .no-picture') !== null")
    tab.run("What is a triangle?")
    tab.wait(FINISHED)
    assert backend.shown == [()]
    tab.page.close()


@pytest.mark.parametrize("page", [False], indirect=True)
def test_a_language_model_is_offered_no_pictures_and_gets_none(page: tuple[Visit, Watching]) -> None:
    tab, backend = page
    hidden = ("#upload", "#no-picture", "#picture", ".sources-card .hint")
    assert [name for name in hidden if tab.page.is_visible(name)] == []
    assert tab.page.is_visible("#open-race") and tab.page.is_visible("#question")
    tab.run("What is a triangle?")
    tab.wait(FINISHED)
    assert backend.shown == [()]
    tab.page.close()


def test_a_language_model_answers_and_goes_on_in_a_dialogue(
    serve: Callable[[AppState], str], browser: Any, tmp_path: Path
) -> None:
    from app import _chat

    target = write_text_model(tmp_path / "target", "llama")
    draft = write_text_model(tmp_path / "draft", "llama", 1, near=target)
    pair = Pair.load(target, draft, device="cpu", dtype="float64")
    dialogues = Dialogues(lambda turns: _chat(pair, turns))
    tab = opened(browser, serve(AppState(lambda: pair, synthetic_recorded(tmp_path), dialogues=dialogues)))
    tab.run("What is a triangle?")
    tab.wait(FINISHED)
    assert "identical" in tab.text(".same")
    ask(tab, "Where is it?")
    assert len(rows(tab)) == 2 and "identical" in tab.text(".same")
    tab.page.close()


def test_no_picture_has_a_reference_of_its_own() -> None:
    store = UploadStore()
    assert store.reference("me", NoPicture()) == NONE and store.picture(NONE) == NoPicture()
    assert store.with_reference("me", (NoPicture(), 7)) == (NONE, 7)
    assert address_of(NoPicture()) is None and NoPicture().open() == ()
