"""The whole page: the stage with its native column, the tab Measure, and the handler of each event."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import gradio as gr

from specllava.core.scenes import SPLITS, scene_images
from specllava.core.trace import RunInfo
from specllava.models.media.images import is_animated, open_image
from visual.page.api import connect_api
from visual.page.measure import MeasureInputs, measure_tab
from visual.page.run import COMPUTE, PICTURE_PIXELS, Asked, refusal_line, run_frames, session_of
from visual.page.settings import FIELDS, read_draft, read_settings
from visual.page.state import PageState
from visual.player.frames import data_address, grounding_frames, race_frames, waiting_frames
from visual.player.recorded import Recorded, read_recorded
from visual.player.saved_page import PLOTLY_JS, STATIC, TITLE, TOY, catalog, halves, script, static_text

SUGGESTED: Final = {  # by family of pairs, and by what the chip says
    "toy": {
        "Describe it": "Describe this image in detail.",
        "Tell a story": "Tell me a story about this picture.",
        "Count things": "How many objects are there?",
    },
    "smol": {"Tell a story": "Tell me a story.", "A poem": "Write a poem about this.", "Count things": "How many objects are there?"},
}
FIRST_QUESTION: Final = "Describe this image in detail."
SHOWN_EXAMPLES: Final = 4
STRANGE: Final = "A strange scene: it has a thing in a colour in which training never showed it. Ask about it, and press Run."
NEW: Final = "A scene that neither model has answered about. Ask about it, and press Run."
PHOTO: Final = (
    "Your picture. The models here have seen nothing but toy scenes, so they will talk nonsense about it; watch that both"
    " talk the same nonsense. Press Run."
)
OWN_PICTURE: Final = "Your picture. Ask about it, and press Run."
SECONDS_BETWEEN_POLLS: Final = 1.0  # of whether the models are loaded
QUICK: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
MOUNT: Final = """
const ask = (race, turn) => trigger("open", { race, turn });
const needed = () => trigger("needed");
import(new URL(`gradio_api/file=${props.script}`, document.baseURI).href)
  .then((stage) => stage.startPage({ element, props, watch, server, ask, needed }));
"""


@cache
def script_file() -> Path:
    """Write the player's script where the browser may fetch it; its name has its hash, so that none runs an old one."""
    text = script()
    file = Path(tempfile.mkdtemp(prefix="specllava-")) / f"stage-{sha256(text.encode()).hexdigest()[:12]}.js"
    file.write_text(text, encoding="utf-8")
    return file


def build_page(state: PageState) -> gr.Blocks:
    """Build the page and register the player's files with gradio. Touches no model."""
    pictures = [picture for race in state.races.values() for picture in race.pictures if picture]
    scenes = [scene for split in SPLITS for scene in scene_images(split)] if state.is_toy else []
    gr.set_static_paths([STATIC, PLOTLY_JS, script_file().parent, *pictures, *scenes])
    page: gr.Blocks
    with gr.Blocks(title=TITLE, fill_width=True, delete_cache=(600, 900)) as page:
        gr.HTML("", html_template="<h1>specllava</h1>", js_on_load=None, apply_default_css=False, elem_id="mark")
        with gr.Tabs(elem_id="tabs"):
            with gr.Tab("Stage"):
                parts = _stage(state)
            with gr.Tab("Measure"):
                controls = measure_tab(state, MeasureInputs(parts["picture"], parts["question"], parts["player"]))
        _connect(state, page, parts, controls)
        connect_api(page, state)
    return page


def _stage(state: PageState) -> dict[str, Any]:
    """Build the player and the native column beside it. Return the components by name."""
    first = state.first
    frames = shown_frames(state, first) if first else waiting_frames(None, FIRST_QUESTION, NEW, "")
    with gr.Column(elem_id="stage"):
        player = gr.HTML(
            frames, html_template=static_text("stage.html"), js_on_load=MOUNT, apply_default_css=False, elem_id="player",
            catalog=catalog([first, *(race for race in state.recorded if race is not first)] if first else [], state.lessons),
            script=script_file().as_posix(), plotly=PLOTLY_JS.as_posix(), measures=state.lent is None,
            server_functions=[saved_page],
        )  # fmt: skip
        picture = gr.File(_path(first), visible=False, type="filepath")
        with gr.Column(elem_id="ask"):
            with gr.Row(elem_classes="thumbs-row"):
                examples = [
                    gr.Button("", icon=str(race.image), elem_classes="thumb", min_width=52, size="sm", elem_id=f"example-{number}")
                    for number, race in enumerate(state.recorded[:SHOWN_EXAMPLES])
                ]
                with gr.Column(min_width=96, elem_classes="ways"):
                    scene = gr.Button("New scene", size="sm", elem_classes="plain", visible=state.is_toy)
                    upload = gr.UploadButton("Upload", size="sm", file_types=["image", ".json"], elem_classes="plain", elem_id="upload")
            question = gr.Textbox(
                first.turns[-1].prompt if first else FIRST_QUESTION, label="Question", show_label=False, container=False,
                lines=1, max_lines=3, max_length=state.limits.prompt_characters, elem_id="question",
                placeholder="Ask about the picture",
            )  # fmt: skip
            with gr.Row(elem_classes="chips"):
                for name, suggestion in SUGGESTED.get(state.preset.split("-")[0], {}).items():
                    chip = gr.Button(name, size="sm", elem_classes="chip", min_width=40)
                    chip.click(None, None, question, js=f"() => {json.dumps(suggestion)}", api_visibility="private")
            with gr.Row(elem_classes="actions"):
                run = gr.Button("Run", elem_id="run", min_width=60)
                stop = gr.Button("Stop", elem_id="stop", min_width=60, visible=False)
                follow = gr.Button("Follow up", elem_id="follow", min_width=60)
            gr.HTML("", html_template=f'<p class="toy">{_toy(state)}</p>', js_on_load=None, apply_default_css=False, elem_id="toy")
            running = gr.HTML("", html_template=RUNNING, js_on_load=SHOW_RUNNING, apply_default_css=False, elem_id="running")
    return {
        "player": player, "picture": picture, "question": question, "run": run, "stop": stop, "follow": follow,
        "examples": examples, "scene": scene, "upload": upload, "running": running,
    }  # fmt: skip


RUNNING: Final = '<p class="running" role="status"></p>'
SHOW_RUNNING: Final = """
const place = element.querySelector(".running");
const show = () => { place.textContent = props.value; };
watch("value", show);
show();
"""


def _toy(state: PageState) -> str:
    if not state.is_toy:
        return "Both models look at the same picture and question; the answer is always the large one’s own."
    before, _, after = TOY.partition(":")
    return f"<b>{before}:</b>{after}"


def saved_page(_: object = None) -> tuple[str, str]:
    """Return a saved page before and after its frames, which the browser fills in."""
    return halves()


def _path(race: Recorded | None, turn: int = -1) -> str | None:
    picture = race.pictures[turn] if race is not None else None
    return str(picture) if picture else None


@cache
def _drawn(path: Path) -> str:
    return data_address(open_image(path))


def shown_frames(state: PageState, race: Recorded, turn: int | None = None) -> list[str]:
    """Make the frames of a race that was run before; the page's first example is told in beats first."""
    own = state.races.get(race.name) is race
    pictures = [_drawn(picture) if picture else None for picture in race.pictures]
    source = "recorded run" if own else f"from {race.name}.json"
    toured = race is next(iter(state.recorded), None)
    return race_frames(race, source, pictures, race.name if own else None, turn, toured)


def _connect(state: PageState, page: gr.Blocks, parts: Mapping[str, Any], controls: list[Any]) -> None:
    """Connect events with handlers. What computes shares one slot; everything else is instant."""
    player, picture, question = parts["player"], parts["picture"], parts["question"]
    run, stop, follow = parts["run"], parts["stop"], parts["follow"]
    shown = [player, picture, question]
    buttons = [run, stop]
    ticket = gr.State(0)
    made: dict[tuple[str, int | None], list[str]] = {}

    def open_race(name: str, turn: int | None, session: str) -> tuple[Any, ...]:
        race = state.races.get(name)
        if race is None:
            raise gr.Error(f"There is no recorded run {name[:40]!r}.", print_exception=False)
        turns = len(race.turns)
        place = turns - 1 if not isinstance(turn, int) else min(max(turn, 0), turns - 1)
        key = (name, place if turns > 1 else None)
        if key not in made:
            made[key] = shown_frames(state, race, key[1])
        state.runs.leave(session)
        state.chats.show(session, race)
        return made[key], _path(race, place), race.turns[place].prompt

    def opened(event: gr.EventData, request: gr.Request) -> tuple[Any, ...]:
        asked = event._data if isinstance(event._data, dict) else {}
        return open_race(str(asked.get("race", "")), asked.get("turn"), request.session_hash or "")

    def example(name: str) -> Callable[[gr.Request], tuple[Any, ...]]:
        def show(request: gr.Request) -> tuple[Any, ...]:
            return open_race(name, None, request.session_hash or "")

        return show

    def new_scene(asked: str, request: gr.Request) -> tuple[Any, ...]:
        split = random.choice(SPLITS)
        file = random.choice(scene_images(split))
        return waits(state, request, str(file), asked, STRANGE if split == "held-out" else NEW)

    def uploaded(path: str | None, asked: str, request: gr.Request) -> tuple[Any, ...]:
        try:
            return read_upload(state, path, asked, request)
        except ValueError as refusal:
            gr.Warning(f"This file cannot be used: {refusal}")
            return gr.skip(), gr.skip(), gr.skip()

    def ask(request: gr.Request) -> tuple[Any, ...]:
        number = state.runs.ask(session_of(request))
        return number, gr.update(visible=False), gr.update(visible=True)

    def race(
        number: int, path: str | None, asked: str, *values: Any, request: gr.Request, going_on: bool = False
    ) -> Generator[Any]:
        session = session_of(request)
        try:
            drafter = values[list(FIELDS).index("drafter")]
            config = read_settings(values, state.limits)
            made = Asked(session, number, path, (asked or "").strip(), config, read_draft(drafter), going_on)
            if not made.question:
                raise ValueError("the question is empty")
        except ValueError as refusal:
            state.runs.end(session, number)
            gr.Warning(f"This cannot run: {refusal_line(refusal)}")
            return
        yield from run_frames(state, made)

    def finish(request: gr.Request) -> tuple[Any, ...]:
        on = state.runs.is_on(request.session_hash or "")
        return gr.update(visible=not on), gr.update(visible=on)

    def halt(request: gr.Request) -> None:
        state.runs.stop(request.session_hash or "")

    def refused(request: gr.Request) -> tuple[Any, ...]:
        state.runs.leave(request.session_hash or "")
        gr.Warning(f"This did not run: {state.limits.waiting} runs are waiting already. Please try again in a minute.")
        return gr.update(visible=True), gr.update(visible=False)

    def begin(request: gr.Request) -> None:
        state.chats.show(request.session_hash or "", state.first)

    def gone(request: gr.Request) -> None:
        state.runs.leave(request.session_hash or "")
        state.chats.leave(request.session_hash or "")

    inputs = [ticket, picture, question, *controls]
    for events, going_on in (([run.click, question.submit], False), ([follow.click], True)):
        begun = gr.on(events, ask, None, [ticket, *buttons], trigger_mode="multiple", **QUICK)
        computed = begun.then(
            _generator(race, going_on), inputs, player, concurrency_id=COMPUTE, concurrency_limit=1,
            trigger_mode="multiple", show_progress="minimal", show_progress_on=parts["running"],
            api_visibility="private",
        )  # fmt: skip
        computed.then(finish, None, buttons, **QUICK)
        computed.failure(refused, None, buttons, **QUICK)
    follow.click(None, None, question, js="(text) => text", api_visibility="private")
    stop.click(halt, None, None, **QUICK)
    player.open(opened, None, shown, **QUICK)
    for button, recorded in zip(parts["examples"], state.recorded, strict=False):
        button.click(example(recorded.name), None, shown, **QUICK)
    parts["scene"].click(new_scene, question, shown, **QUICK)
    parts["upload"].upload(uploaded, [parts["upload"], question], shown, **QUICK)
    if state.lent is None:
        player.needed(
            _needed(state), None, player, concurrency_id=COMPUTE, concurrency_limit=1,
            show_progress="minimal", show_progress_on=parts["running"], api_visibility="private",
        )  # fmt: skip
    page.unload(gone)
    page.load(begin, None, None, **QUICK)
    _connect_loading(page, parts["running"], state.loading)


def _generator(race: Callable[..., Generator[Any]], going_on: bool) -> Callable[..., Generator[Any]]:
    """Return the handler of Run or of Follow up: gradio takes the request by its annotation."""

    def handler(request: gr.Request, *values: Any) -> Generator[Any]:
        yield from race(*values, request=request, going_on=going_on)

    return handler


def _needed(state: PageState) -> Callable[..., Generator[Any]]:
    """Return the handler that measures which words of the run on the stage needed the picture."""

    def needed(request: gr.Request) -> Generator[Any]:
        from specllava.lab.grounding import ground

        dialogue = state.chats.held(request.session_hash or "")
        try:
            if dialogue is None or not dialogue.frames or len(dialogue.turns) != 1:
                raise ValueError("it is measured of the first question of a dialogue that was run here")
            trace = None
            for trace in ground(state.pair(dialogue.draft), dialogue.media, dialogue.turns[0][0], dialogue.trace):
                yield gr.skip()
        except ValueError as refusal:
            gr.Warning(f"This cannot be measured: {refusal}")
            return
        if trace is not None:
            yield [*dialogue.frames, *grounding_frames(trace)]

    return needed


def read_upload(state: PageState, path: str | None, asked: str, request: gr.Request) -> tuple[Any, ...]:
    """Show an uploaded picture, or a race file.

    Raises:
        ValueError: a file that cannot be used; one line.
    """
    if path is None:
        raise ValueError("no file came")
    file, session = Path(path), request.session_hash or ""
    if file.suffix.lower() == ".json":
        race = read_recorded(file, state.limits.trace_bytes)
        state.runs.leave(session)
        state.chats.show(session, race)
        if race.filled:
            gr.Info(race.filled)
        return shown_frames(state, race), _path(race), race.turns[-1].prompt
    size = file.stat().st_size
    if size > state.limits.upload_bytes:
        raise ValueError(f"it has {size:,} bytes, and at most {state.limits.upload_bytes:,} are read: make it smaller")
    if is_animated(file):
        gr.Info("The picture is animated: the models see its first frame.")
    return waits(state, request, str(file), asked, PHOTO if state.is_toy else OWN_PICTURE)


def waits(state: PageState, request: gr.Request, path: str, asked: str, sentence: str) -> tuple[Any, ...]:
    """Show a picture that waits for its question; the run before it ends, and so does its dialogue.

    Raises:
        ValueError: a picture that cannot be read.
    """
    address = data_address(open_image(path, PICTURE_PIXELS, state.limits.pixels))
    session = request.session_hash or ""
    state.runs.leave(session)
    state.chats.show(session, None)
    question = asked if asked.strip() else FIRST_QUESTION
    return waiting_frames(address, question, sentence, "picture"), path, question


def _connect_loading(page: gr.Blocks, running: gr.HTML, loading: Future[RunInfo]) -> None:
    """Say what runs, once it is loaded: each visitor's page asks until then, past the queue."""
    timer = gr.Timer(SECONDS_BETWEEN_POLLS, active=False)

    def poll() -> tuple[Any, gr.Timer]:
        return (loaded(loading), gr.Timer(active=False)) if loading.done() else ("The models are loading.", gr.Timer(active=True))

    page.load(poll, None, [running, timer], **QUICK)
    timer.tick(poll, None, [running, timer], **QUICK)


def loaded(loading: Future[RunInfo]) -> str:
    """Say what runs, or that the models could not be loaded."""
    if loading.exception():
        return "Recorded runs only: the models could not be loaded."
    info = loading.result()
    return f"{info.pair} on {info.device.upper()}, {info.dtype}, {info.threads} threads"
