"""The whole page: the stage with its native column, the tab Measure, and what its events do."""

from __future__ import annotations

import html
import json
import logging
import random
import tempfile
import uuid
from collections.abc import Generator
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import gradio as gr

from specllava.files import SPLITS, scene_images
from specllava.models.images import is_animated, open_image
from visual.page.api import connect_api
from visual.page.measure import measure_tab
from visual.page.run import (
    COMPUTES,
    PICTURE_PIXELS,
    QUICK,
    Asked,
    Bounded,
    connect_run,
    failure_line,
    refusal_line,
    run_frames,
    session_of,
    warn,
)
from visual.page.settings import FIELDS, make_config, read_draft
from visual.page.state import Dialogue, PageState, opened_dialogue, picture_path
from visual.player.frames import data_address, frame_json, grounding_frames, race_frames, waiting_frames, with_id
from visual.player.labels import counted
from visual.player.recorded import Recorded, read_recorded, titles
from visual.player.saved_page import PLOTLY_JS, STATIC, TITLE, TOY, catalog, halves, script, static_text

log = logging.getLogger("specllava.page")
SUGGESTED: Final = {  # by what the chip says
    "Describe it": "Describe this image in detail.",
    "Tell a story": "Tell me a story about this picture.",
    "Count things": "How many objects are there?",
}
FIRST_QUESTION: Final = "Describe this image in detail."
STRANGE: Final = (
    "A strange scene: it has a thing in a colour in which training never showed it. Ask about it, and press Run."
)
NEW: Final = "A scene that neither model has answered about. Ask about it, and press Run."
PHOTO: Final = (
    "Your picture. These models have seen nothing but toy scenes, so they will talk nonsense about it: the same"
    " nonsense, alone and together. Press Run."
)
OWN_PICTURE: Final = "Your picture. Ask about it, and press Run."
LOST: Final = "your dialogue is no longer kept: press Run to begin another"
NONE_YET: Final = "there is no dialogue to go on with: press Run first"
SHOWN_EXAMPLES: Final = 4
QUIET_ICONS: Final = '() => document.querySelectorAll("#ask .thumb img").forEach((image) => { image.alt = ""; })'
NO_TOY: Final = "Both models look at the same picture and question; the answer is always the large one’s own."
UNMEASURED: Final = frame_json({"kind": "grounding", "words": [], "say": "", "grid": 0})
SECONDS_BETWEEN_POLLS: Final = 1.0  # of whether the models are loaded
MOUNT: Final = """
const ask = (race, turn, id) => trigger("open", { race, turn, id });
const needed = () => trigger("needed");
import(new URL(`gradio_api/file=${props.script}`, document.baseURI).href)
  .then((stage) => stage.startPage({ element, props, watch, server, ask, needed }));
"""


Shown = tuple[Any, ...]  # values of player, picture, question and dialogue


@dataclass(frozen=True)
class Stage:
    """The components of the first tab that runs start from or change; ``shown``: what every race or picture changes."""

    shown: list[Any]
    run: gr.Button
    stop: gr.Button
    follow: gr.Button
    running: gr.HTML


@cache
def script_file() -> Path:
    """Write the player's script where the browser may fetch it; its name has its hash, so that none runs an old one."""
    text = script()
    file = Path(tempfile.mkdtemp(prefix="specllava-")) / f"stage-{sha256(text.encode()).hexdigest()[:12]}.js"
    file.write_text(text, encoding="utf-8")
    return file


def build_page(state: PageState) -> gr.Blocks:
    """Build the page and register the player's files with gradio. Touches no model."""
    races = [*state.races.values(), *([state.opened] if state.opened else [])]
    pictures = [picture for race in races for picture in race.pictures if picture]
    scenes = [scene for split in SPLITS for scene in scene_images(split)] if state.is_toy else []
    gr.set_static_paths([STATIC, PLOTLY_JS, script_file().parent, *pictures, *scenes])
    handlers = Handlers(state)
    page: gr.Blocks
    with gr.Blocks(title=TITLE, fill_width=True, delete_cache=(600, 900)) as page:
        _constant("<h1>specllava</h1>", "mark")
        with gr.Tabs(elem_id="tabs"):
            with gr.Tab("Stage"):
                stage = _stage(handlers)
            with gr.Tab("Measure"):
                controls = measure_tab(state, stage.shown)
        _connect(handlers, page, stage, controls)
        _connect_loading(page, stage.running, controls[list(FIELDS).index("nodes")], state.loading)
        connect_api(page, state)
    return page


def _constant(template: str, name: str) -> gr.HTML:
    return gr.HTML("", html_template=template, js_on_load=None, apply_default_css=False, elem_id=name)


def _stage(handlers: Handlers) -> Stage:
    """Build the player, and below its picture the native column."""
    state = handlers.state
    asked = state.first.turns[-1].prompt if state.first else FIRST_QUESTION
    question = gr.Textbox(
        asked, label="Question", show_label=False, container=False, lines=1, max_lines=3, render=False,
        max_length=state.limits.prompt_characters, elem_id="question", placeholder="Ask about the picture",
    )  # fmt: skip
    with gr.Column(elem_id="stage"):
        player = _player(handlers)
        picture = gr.File(picture_path(state.first), visible=False, type="filepath")
        shown = [player, picture, question, gr.State()]
        player.open(handlers.opened, None, shown, trigger_mode="multiple", **QUICK)
        with gr.Column(elem_id="ask"):
            _pictures(handlers, shown)
            question.render()
            with gr.Row(elem_classes="chips"):
                for name, suggestion in SUGGESTED.items():
                    chip = gr.Button(name, size="sm", elem_classes="chip", min_width=40)
                    chip.click(None, None, question, js=f"() => {json.dumps(suggestion)}", api_visibility="private")
            with gr.Row(elem_classes="actions"):
                run = gr.Button("Run", elem_id="run", min_width=60)
                stop = gr.Button("Stop", elem_id="stop", min_width=60, visible=False)
                follow = gr.Button("Follow up", elem_id="follow", min_width=60, visible=state.lent is None)
            before, _, after = TOY.partition(":")
            toy = f"<b>{before}:</b>{after}" if state.is_toy else NO_TOY
            _constant(f'<p class="toy">{toy}</p>', "toy")
            running = _constant('<p class="running" role="status">{{value}}</p>', "running")
    return Stage(shown, run, stop, follow, running)


def _player(handlers: Handlers) -> gr.HTML:
    state = handlers.state

    def saved_page(_: object = None) -> tuple[str, str, dict[str, list[str]]]:
        """Return a saved page before and after its data, and the frames of tour and lessons; the browser adds a run."""
        races = [*state.recorded[:1], *(race for lesson in state.lessons for race in lesson.races)]
        return *halves(), {race.name: handlers.frames(race) for race in races}

    return gr.HTML(
        handlers.first_frames, html_template=static_text("stage.html"), js_on_load=MOUNT, apply_default_css=False,
        elem_id="player",
        catalog=catalog(state.recorded, state.lessons), script=script_file().as_posix(), plotly=PLOTLY_JS.as_posix(),
        measures=state.lent is None, server_functions=[saved_page],
    )  # fmt: skip


def _pictures(handlers: Handlers, shown: list[Any]) -> None:
    """Build the thumbnails of recorded races, and the ways to another picture."""
    warns: dict[str, Any] = {"concurrency_limit": None, "show_progress": "hidden", "api_visibility": "private"}
    with gr.Row(elem_classes="thumbs-row"):
        examples = handlers.state.recorded[:SHOWN_EXAMPLES]
        for at, (race, title) in enumerate(zip(examples, titles(examples), strict=True)):
            looks: dict[str, Any] = {"icon": str(race.image), "elem_classes": "thumb", "elem_id": f"example-{at}"}
            button = gr.Button(title, min_width=52, size="sm", **looks)  # read aloud; a style hides the text
            button.click(handlers.example, gr.State(race.name), shown, **QUICK)
        with gr.Column(min_width=96, elem_classes="ways"):
            scene = gr.Button("New scene", size="sm", elem_classes="plain", visible=handlers.state.is_toy)
            scene.click(handlers.new_scene, None, shown, **QUICK)
            kinds = ["image", ".json"]
            upload = gr.UploadButton("Upload", size="sm", file_types=kinds, elem_classes="plain", elem_id="upload")
            upload.upload(handlers.uploaded, [upload, shown[2]], shown, **warns)


def _connect(handlers: Handlers, page: gr.Blocks, stage: Stage, controls: list[Any]) -> None:
    """Connect events with handlers. What computes shares one slot; everything else is instant."""
    player, picture, question, dialogue = stage.shown
    inputs = [picture, question, dialogue, *controls]
    begin, go_on = ([gr.State(follow), *inputs] for follow in (False, True))
    ways = [([stage.run.click, question.submit], begin), ([stage.follow.click], go_on)]
    connect_run(handlers.state, ways, [stage.run, stage.stop], handlers.run, [player, dialogue], stage.running)
    if handlers.state.lent is None:
        number = gr.Number(0, precision=0, visible=False)  # as it was at the click
        asked = player.needed(handlers.asked, None, number, **QUICK)
        asked.then(handlers.needed, [number, dialogue], player, show_progress_on=stage.running, **COMPUTES)
    page.load(lambda: opened_dialogue(handlers.state.first, handlers.first_frames), None, dialogue, **QUICK)
    page.load(None, None, None, js=QUIET_ICONS)
    page.unload(handlers.leave)


def _connect_loading(page: gr.Blocks, running: gr.HTML, nodes: Any, loading: Future[Any]) -> None:
    """Say what runs, once it is loaded, and set its device's number of nodes: each visitor's page asks until then."""
    timer = gr.Timer(SECONDS_BETWEEN_POLLS, active=False)

    def poll() -> tuple[Any, ...]:
        if not loading.done():
            return "The models are loading.", gr.Timer(active=True), gr.skip()
        measured = None if loading.exception() else loading.result().nodes
        return loaded(loading), gr.Timer(active=False), gr.update(value=measured) if measured else gr.skip()

    page.load(poll, None, [running, timer, nodes], **QUICK)
    timer.tick(poll, None, [running, timer, nodes], **QUICK)


def loaded(loading: Future[Any]) -> str:
    """Say what runs, or that the models could not be loaded."""
    if loading.exception():
        return "Recorded runs only: the models could not be loaded."
    info = loading.result().info
    return f"{info.pair} on {info.device.upper()}, {info.dtype}, {counted(info.threads, 'thread')}"


# --- what events do: open a race, show a picture that waits, run, stop, measure what needed it ---


@cache
def _drawn(path: Path) -> str:
    return data_address(open_image(path))


@dataclass(frozen=True)
class Handlers:
    """Handlers of one page's events. Gradio gives the request by its annotation."""

    state: PageState
    made: dict[tuple[str, int | None], list[str]] = field(default_factory=dict)  # frames of recorded races

    def leave(self, request: gr.Request) -> None:
        """End the run of a visitor who is gone, or wants something else."""
        self.state.runs.leave(request.session_hash or "")

    def opened(self, event: gr.EventData, request: gr.Request) -> Shown:
        """Open the recorded race, and the turn, that the player asks for; it knows the answer by its own id."""
        asked = event._data if isinstance(event._data, dict) else {}
        return self._open(str(asked.get("race", "")), asked.get("turn"), request, str(asked.get("id", ""))[:64])

    def example(self, name: str, request: gr.Request) -> Shown:
        """Open the recorded race of a thumbnail."""
        return self._open(name, None, request)

    def frames(self, race: Recorded, turn: int | None = None, run_id: str = "") -> list[str]:
        """Return the frames of a race that was run before; the page's first example begins with its beats.

        Args:
            run_id: a new one if it is not given, so that the player's value always changes.
        """
        own = self.state.races.get(race.name) is race
        made = self.made.get((race.name, turn)) if own else None
        if made is None:
            pictures = [_drawn(picture) if picture else None for picture in race.pictures]
            toured = race is next(iter(self.state.recorded), None)
            made = race_frames(race, pictures, race.name if own else None, turn, toured)
        if own:
            self.made[race.name, turn] = made
        return [with_id(made[0], run_id or uuid.uuid4().hex), *made[1:]]

    @cached_property
    def first_frames(self) -> list[str]:
        """The frames that the page opens with."""
        first = self.state.first
        return self.frames(first) if first else waiting_frames(None, FIRST_QUESTION, NEW)

    def _open(self, name: str, turn: Any, request: gr.Request, run_id: str = "") -> Shown:
        race = self.state.races.get(name)
        if race is None:
            raise gr.Error(html.escape(f"There is no recorded run {name[:40]!r}."), print_exception=False)
        turns = len(race.turns)
        at = min(max(turn, 0), turns - 1) if isinstance(turn, int) else turns - 1
        frames = self.frames(race, at if turns > 1 and turn is not None else None, run_id)
        self.leave(request)
        return frames, picture_path(race, at), race.turns[at].prompt, opened_dialogue(race, frames)

    def new_scene(self, request: gr.Request) -> Shown:
        """Show one of the scenes that ship."""
        split = random.choice(SPLITS)
        path = str(random.choice(scene_images(split)))
        return self._waits(request, path, "", STRANGE if split == "held-out" else NEW)

    def uploaded(self, path: str | None, asked: str | None, request: gr.Request) -> Shown:
        """Show an uploaded picture, or a race file; what cannot be used is reported and changes nothing."""
        try:
            return self._read(path, asked, request)
        except ValueError as refusal:
            warn(f"This file cannot be used: {refusal}")
            return (gr.skip(),) * 4

    def _read(self, path: str | None, asked: str | None, request: gr.Request) -> Shown:
        if path is None:
            raise ValueError("no file came")
        file, limits = Path(path), self.state.limits
        if file.suffix.lower() == ".json":
            race = read_recorded(file, limits.trace_bytes)
            frames = self.frames(race)
            self.leave(request)
            if race.filled:
                gr.Info(html.escape(race.filled))
            return frames, picture_path(race), race.turns[-1].prompt, opened_dialogue(race, frames)
        size = file.stat().st_size
        if size > limits.upload_bytes:
            raise ValueError(f"it has {size:,} bytes, and at most {limits.upload_bytes:,} are read: make it smaller")
        if is_animated(file):
            gr.Info("The picture is animated: the models see its first frame.")
        return self._waits(request, path, asked, PHOTO if self.state.is_toy else OWN_PICTURE)

    def _waits(self, request: gr.Request, path: str, asked: str | None, sentence: str) -> Shown:
        """Show a picture that waits for its question; the run before it ends, and so does its dialogue."""
        address = data_address(open_image(path, PICTURE_PIXELS, self.state.limits.pixels))
        self.leave(request)
        question = asked if asked and asked.strip() else FIRST_QUESTION
        return waiting_frames(address, question, sentence), path, question, Dialogue()

    def run(
        self, request: gr.Request, number: int, follow: bool, path: str | None, asked: str | None,
        dialogue: Dialogue | None, *values: Any,
    ) -> Generator[Any]:  # fmt: skip
        """Race on Run or Follow up. Yield frames and the dialogue that the next question goes on with."""
        session, question = session_of(request), (asked or "").strip()
        try:
            given = dict(zip(FIELDS, values, strict=True))
            draft, config = read_draft(given["drafter"]), make_config(given, self.state.limits)
            if not question:
                raise ValueError("the question is empty")
            if follow and (dialogue is None or not dialogue.turns):
                raise ValueError(LOST if dialogue is None else NONE_YET)
        except ValueError as refusal:
            self.state.runs.end(session, number)
            warn(f"This cannot run: {refusal_line(refusal)}")
            return
        after = dialogue if follow and dialogue is not None else Dialogue()
        for frames in run_frames(self.state, Asked(session, number, path, question, config, draft, after)):
            after.frames = frames
            yield frames, after

    def asked(self, request: gr.Request) -> int:
        """Count what the visitor asks for; an answer that comes after another click is not shown."""
        return self.state.runs.ask(session_of(request))

    def needed(self, request: gr.Request, number: int, dialogue: Dialogue | None) -> Generator[Any]:
        """Measure which words of the run on the stage needed the picture, as far as its time allows."""
        from specllava.scoring import ground

        session, runs, measured = session_of(request), self.state.runs, None
        seconds = self.state.limits.seconds_per_run
        if runs.state(session, number) != "on":
            return
        try:
            if dialogue is None or dialogue.last is None or len(dialogue.turns) != 1:
                raise ValueError("it is measured of the first question of a dialogue that was run here")
            turn = dialogue.last
            passes = ground(self.state.pair(dialogue.draft), turn.media, turn.text, turn.trace)
            race = Bounded(passes, seconds, lambda: runs.state(session, number))
            for measured in race:  # noqa: B007 - the last one is shown
                yield gr.skip()
            if race.outcome == "left":
                return
            if race.outcome == "deadline":
                warn(f"Stopped after {seconds:.0f} seconds. What was found so far stays.")
        except ValueError as refusal:
            warn(f"This cannot be measured: {refusal}")
        except Exception as problem:
            log.exception("what needed the picture was not measured")
            warn(failure_line(problem))
        finally:
            runs.end(session, number)
        if dialogue is not None and dialogue.frames:
            found = [] if measured is None else grounding_frames(measured)
            yield [*dialogue.frames, *(found or [UNMEASURED])]
