"""The whole page: the position of each card, and the handler of each event."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import gradio as gr

from specllava.files import SPLITS, scene_images
from specllava.trace import RunInfo
from visual.page import widgets
from visual.page.api import connect_api
from visual.page.app_state import AppState
from visual.page.dialogue import connect_dialogue
from visual.page.input_cards import PictureCard, QuestionCard, lessons_card, picture_card, question_card
from visual.page.lab import Inputs, lab_section
from visual.page.notices import notice_arguments
from visual.page.page_blocks import PageBlocks
from visual.page.pictures import family_of
from visual.page.race import FOLLOW, race_kind
from visual.page.replays import RaceReplays, follow_address, open_race_file, race_values, replace_race
from visual.page.runs import QUICK, RunControls, connect_run
from visual.player import markup
from visual.player.component import player_arguments
from visual.player.lessons import Lesson
from visual.player.recorded import Recorded
from visual.player.standalone import saved_page
from visual.player.static_files import static_paths

SUGGESTED: Final = {  # by family of pairs, and by what the button says
    "toy": {
        "Describe": "Describe this image in detail.",
        "Tell a story": "Tell me a story about this picture.",
        "Count": "How many objects are there?",
        "On the left?": "What is on the left?",
    },
    "smol": {
        "Story": "Tell me a story.",
        "What next?": "What might happen next?",
        "Poem": "Write a poem about this.",
        "Count": "How many objects are there?",
    },
}
FIRST_QUESTION: Final = "Describe this image in detail."  # where no recorded race opens the page
SECONDS_BETWEEN_POLLS = 1.0  # of whether the models are loaded
# Gradio gives a button's picture a name of its own beside the button's.
NAMED_ONCE = "() => document.querySelectorAll('.example img').forEach((image) => { image.alt = ''; })"


@dataclass(frozen=True)
class PageWidgets:
    """The components of the page that events start from or change."""

    chip: gr.HTML
    picture: PictureCard
    question: QuestionCard
    lessons: list[gr.Button]
    notice: gr.HTML
    player: gr.HTML


def build_page(state: AppState) -> gr.Blocks:
    """Build the page and register the player's files with gradio. Touches no model."""
    page: gr.Blocks
    races = [*state.recorded, *(lesson.race for lesson in state.lessons), *([state.opened] if state.opened else [])]
    # Served from where they lie: copies in Gradio's cache are deleted after an hour.
    gr.set_static_paths([*static_paths(), *(race.image for race in races if race.image)])
    state.uploads.share(turn.image for race in races for turn in race.turns if turn.image)
    state.uploads.share(image for split in SPLITS for image in scene_images(split))
    first = state.first
    with PageBlocks(title=markup.TITLE, fill_width=True, delete_cache=(600, 900)) as page:
        with gr.Row(elem_id="masthead"):
            gr.HTML(**widgets.masthead_arguments(), elem_id="title")
            gr.HTML(**widgets.constant_arguments(markup.links(state.code)), elem_id="links")
            lessons = lessons_card(state.lessons)
            chip = gr.HTML(**widgets.chip_arguments(), elem_id="running")
        with gr.Row(elem_id="columns"):
            with gr.Column(elem_id="ask", min_width=270):
                notice = gr.HTML(**notice_arguments(), elem_id="notice", render=False)
                pictured, _, asked, frames = race_values(state, first) if first else (None, None, FIRST_QUESTION, [])
                picture = picture_card(pictured, state.recorded, state.pair, state.limits, state.uploads)
                suggestions = SUGGESTED.get(family_of(state.pair), {})
                follow = FOLLOW if state.dialogues else None
                question = question_card(asked, suggestions, notice, follow, state.choices, state.limits)
            with gr.Column(elem_id="show", min_width=270):
                arguments = player_arguments(frames, state.dialogues is not None)
                player = gr.HTML(**arguments, elem_id="player", server_functions=[saved_page])
                if state.lab is not None:
                    inputs = Inputs(picture.reference, question.question, question.settings)
                    lab_section(state, inputs)
        gr.HTML(**widgets.constant_arguments(markup.footer()), elem_id="foot")
        _connect(state, page, PageWidgets(chip, picture, question, lessons, notice, player))
    return page


def _connect(state: AppState, page: gr.Blocks, parts: PageWidgets) -> None:
    """Connect events with handlers. Everything that computes shares one slot; everything else is instant."""
    replays = RaceReplays(partial(race_values, state))

    def gone(request: gr.Request) -> None:
        state.requests.cancel_session(request.session_hash or "")
        state.uploads.leave(request.session_hash or "")
        if state.dialogues is not None:
            state.dialogues.leave(request.session_hash or "")

    def open_file(path: str | None, request: gr.Request) -> tuple[Any, ...]:
        values = open_race_file(state, path, request.session_hash or "")
        return *state.uploads.with_reference(request.session_hash, values), ""

    def open_link(request: gr.Request) -> tuple[Any, ...]:
        values = follow_address(state, replays, request.query_params, request.session_hash or "")
        return state.uploads.with_reference(request.session_hash, values)

    follow = [parts.question.follow] if parts.question.follow else []
    controls = RunControls(parts.question.run, parts.question.stop, parts.notice, parts.player, follow)
    clicks = [parts.question.run.click, parts.question.question.submit, *(button.click for button in follow)]
    values = [parts.picture.reference, parts.question.question, parts.question.settings]
    free = connect_run(state.requests, race_kind(state), controls, clicks, values)
    shown = [parts.picture.reference, parts.picture.shown, parts.question.question, parts.player]
    replay = [*shown, parts.picture.notice, parts.notice]
    for button, recorded in zip(parts.picture.examples, state.recorded, strict=False):
        free(button.click(_replay(state, replays, recorded), None, replay, **QUICK))
    for button, lesson in zip(parts.lessons, state.lessons, strict=True):
        free(button.click(_replay(state, replays, lesson.race, lesson), None, replay, **QUICK))
    file = parts.picture.race_file
    free(file.upload(open_file, file, replay, show_progress="hidden", api_visibility="private"))
    if state.dialogues is not None:
        connect_dialogue(state.dialogues, state.uploads, parts.player, [*shown[:3], parts.notice])
    free(parts.chip.back(None, None, None, js="() => {}", api_visibility="private"))
    page.unload(gone)
    connect_api(page, state)
    connect_chip(page, parts.chip, state.loading, lambda: state.backend().sees)
    page.load(None, None, None, js=NAMED_ONCE)
    page.load(open_link, None, [*shown, parts.notice], **QUICK)


def _replay(
    state: AppState, replays: RaceReplays, recorded: Recorded, lesson: Lesson | None = None
) -> Callable[[gr.Request], tuple[Any, ...]]:
    """Make the handler that shows a recorded race instead of the session's own."""

    def show(request: gr.Request) -> tuple[Any, ...]:
        session = request.session_hash or ""
        replace_race(state, session, recorded)
        step, words = (lesson.text.step, lesson.words) if lesson else (None, None)
        return *state.uploads.with_reference(session, replays.show(recorded, step, words)), "", ""

    return show


def connect_chip(page: gr.Blocks, chip: gr.HTML, loading: Future[RunInfo], sees: Callable[[], bool]) -> None:
    """Fill the chip for every visitor, also for one who finds the queue full: each poll answers at once.

    Args:
        page: that is being built.
        chip: says that the models are loading until ``loading`` is done; a visitor's page polls until then.
        loading: what runs, once it is loaded.
        sees: whether that reads pictures; asked once it is loaded.
    """
    timer = gr.Timer(SECONDS_BETWEEN_POLLS, active=False)

    def poll() -> tuple[Any, gr.Timer]:
        return (loaded(loading, sees), gr.Timer(active=False)) if loading.done() else (gr.skip(), gr.Timer(active=True))

    page.load(poll, None, [chip, timer], **QUICK)
    timer.tick(poll, None, [chip, timer], **QUICK)


def loaded(loading: Future[RunInfo], sees: Callable[[], bool]) -> str:
    """Return the chip's value, once loading is done."""
    if loading.exception():
        return widgets.chip_value("failed", "recorded races only: the models could not be loaded")
    info = loading.result()
    return widgets.chip_value("ready", f"{info.pair} · {info.device.upper()} · {info.dtype}", blind=not sees())
