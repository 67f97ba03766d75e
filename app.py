"""The page: layout, handlers, launch. No tensors, no maths: races come from a backend, pictures from ``visual``.

Run ``python app.py``: the page is up at once with a recorded race, while the models load behind it.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # read when gradio is imported: no visit is reported

import gradio as gr
import tyro
from PIL import Image
from pydantic import ValidationError

from specllava.cli.options import Place, load
from specllava.config import one_line
from specllava.models.images import open_image
from specllava.shipped import shipped
from specllava.toyworld.dialogue import SUGGESTIONS
from specllava.toyworld.draw import draw_scene
from specllava.toyworld.scene import sample_scene
from visual.page import markup
from visual.page import widgets as pieces
from visual.page.app_state import AppState, running
from visual.page.chip import connect_chip
from visual.page.controls import settings_card
from visual.page.experiments import Experiments
from visual.page.first_paint import FirstPaint
from visual.page.input_cards import PictureCard, QuestionCard, picture_card, question_card
from visual.page.lab import Inputs, LabState, lab_section
from visual.page.learn import lessons_card
from visual.page.notices import error, info, notice_arguments, warning
from visual.page.race import RACE, race_kind
from visual.page.runs import QUICK, RunControls, connect_run
from visual.page.serving import serve
from visual.player.frames import component_arguments, recorded_frames, static_paths
from visual.player.lessons import Lesson, load_lessons
from visual.player.link import follow_link
from visual.player.picture import data_address
from visual.player.recorded import Recorded, load_recorded, read_recorded
from visual.player.replays import Replays
from visual.player.standalone import saved_page

EXAMPLES = shipped("assets") / "examples"
LESSONS = shipped("assets") / "lessons"
FIRST_PAINT = shipped("assets") / "first_paint.html"
SCENE_PIXELS = 384
UPLOAD_PIXELS = 1344  # on the longer side: no family of models looks at more
SHOWN_SUGGESTIONS = 4
log = logging.getLogger("specllava.page")


@dataclass(frozen=True, eq=False)
class Picture:
    """What a visitor asks about: a file that stays, an upload, or a scene of the toy world, drawn when it is needed."""

    file: str | None = None
    upload: Image.Image | None = None
    seed: int = 0
    split: Literal["train", "held-out"] = "train"

    def open(self) -> Image.Image:
        """As the models get it: scenes are drawn at the size of their training."""
        return self._given() or draw_scene(sample_scene(self.seed, self.split))

    def shown(self) -> Image.Image:
        """As the visitor sees it."""
        return self._given() or draw_scene(sample_scene(self.seed, self.split), SCENE_PIXELS)

    def _given(self) -> Image.Image | None:
        return open_image(self.file) if self.file else self.upload


# --- what the page does -------------------------------------------------------------------------------------------


def new_scene(unseen: bool) -> tuple[Picture, Image.Image]:
    """A scene that nobody has drawn before; ``unseen`` ones hold a combination that training never showed."""
    picture = Picture(seed=random.randrange(10**9), split="held-out" if unseen else "train")
    return picture, picture.shown()


def uploaded(path: str | None) -> tuple[Any, Any, str]:
    """Take a visitor's file if it is a picture; otherwise keep the present one and say why.

    It is decoded here and nowhere else, and kept as what the models get: Gradio forgets the file after a while.
    """
    try:
        if path is None:
            raise ValueError("no file came")
        picture = Picture(upload=open_image(path, UPLOAD_PIXELS))
        return picture, picture.shown(), ""
    except ValueError as refusal:
        return gr.skip(), gr.skip(), error(f"This picture cannot be used: {refusal}")


def as_shown(
    site: AppState, race: Recorded, step: int | None = None, lesson: Mapping[str, str] | None = None
) -> tuple[Any, ...]:
    """A race that was run before, for the picture, its image, the question and the player.

    Args:
        step: the one to open with, from 0; the most instructive one if it is not given.
        lesson: what it is to teach.
    """
    own = any(race is one for one in site.recorded)
    source = "recorded run" if own or lesson else f"from {race.name}.json"
    image = str(race.image) if race.image else None
    drawn = data_address(open_image(race.image)) if race.image else None
    name = race.name if own else None
    frames = recorded_frames(race.target_only, race.speculative, source, drawn, name, step, lesson)
    return Picture(file=image) if image else None, image, race.prompt, frames


def opened(site: AppState, path: str | None, session: str) -> tuple[Any, ...]:
    """Show a visitor's race file in place of what they saw, and stop their own race; or keep both and say why."""
    try:
        if path is None:
            raise ValueError("no file came")
        race = read_recorded(Path(path))
        parts = as_shown(site, race)
    except ValueError as refusal:
        return *(gr.skip() for _ in range(4)), error(f"This file cannot be opened: {refusal}")
    except Exception:
        log.exception("a race file could not be drawn")
        return *(gr.skip() for _ in range(4)), error("This file cannot be opened: it could not be drawn.")
    site.requests.cancel((session, RACE))
    return *parts, info(race.filled)


def linked(site: AppState, replays: Replays, query: Mapping[str, str]) -> tuple[Any, ...]:
    """What the page's address asks for, if it asks for a recorded example."""
    link = follow_link(query, site.recorded)
    if link is None:
        return tuple(gr.skip() for _ in range(5))
    return *replays.show(link.race, link.show), warning(link.notice)


# --- what the page looks like -------------------------------------------------------------------------------------


@dataclass
class Widgets:
    """What a visitor can touch or see change."""

    chip: gr.HTML
    picture: PictureCard
    question: QuestionCard
    lessons: list[gr.Button]
    notice: gr.HTML
    settings: list[Any]
    player: gr.HTML


def build_page(site: AppState) -> gr.Blocks:
    """The whole page. Building it registers the player's files with gradio and touches no model."""
    page: gr.Blocks
    races = [*site.recorded, *(lesson.race for lesson in site.lessons), *([site.opened] if site.opened else [])]
    # Served from where they lie: copies in Gradio's cache are deleted after an hour.
    gr.set_static_paths([*static_paths(), *(race.image for race in races if race.image)])
    first = site.first
    with gr.Blocks(title="specllava", fill_width=True, delete_cache=(3600, 3600)) as page:
        with gr.Row(elem_id="masthead"):
            gr.HTML(**pieces.constant_arguments(markup.masthead()), elem_id="title")
            chip = gr.HTML(**pieces.chip_arguments(), elem_id="running")
        with gr.Row(elem_id="columns"):
            with gr.Column(elem_id="ask", min_width=270):
                notice = gr.HTML(**notice_arguments(), elem_id="notice", render=False)
                file = str(first.image) if first and first.image else None
                state = Picture(file=file) if file else None
                scene = new_scene if site.toy else None
                picture = picture_card(state, file, site.recorded, notice, uploaded, scene)
                suggestions = SUGGESTIONS[:SHOWN_SUGGESTIONS] if site.toy else ()
                question = question_card(first.prompt if first else SUGGESTIONS[0], suggestions, notice)
                lessons = lessons_card(site.lessons)
                settings = settings_card()
                gr.HTML(**pieces.constant_arguments(markup.legend()), elem_id="legend")
            with gr.Column(elem_id="show", min_width=270):
                frames = as_shown(site, first)[-1] if first else []
                forks = site.lab is not None
                arguments = component_arguments(frames, forks)
                player = gr.HTML(**arguments, elem_id="player", server_functions=[saved_page])
                if site.lab is not None:
                    lab = LabState(site.lab, lambda: new_scene(False)[0], site.requests)
                    lab_section(lab, Inputs(picture.state, question.question, settings, player))
        _connect(site, page, Widgets(chip, picture, question, lessons, notice, settings, player))
    return page


def _connect(site: AppState, page: gr.Blocks, on: Widgets) -> None:
    """Which click does what. Everything that computes shares one slot; everything else is instant."""

    replays = Replays(partial(as_shown, site))

    def gone(request: gr.Request) -> None:
        site.requests.cancel_session(request.session_hash or "")

    def open_file(path: str | None, request: gr.Request) -> tuple[Any, ...]:
        return opened(site, path, request.session_hash or "")

    def open_link(request: gr.Request) -> tuple[Any, ...]:
        return linked(site, replays, request.query_params)

    controls = RunControls(on.question.run, on.question.stop, on.notice, on.player)
    clicks = [on.question.run.click, on.question.question.submit]
    values = [on.picture.state, on.question.question, *on.settings]
    free = connect_run(site.requests, race_kind(site), controls, clicks, values)
    replay = [on.picture.state, on.picture.shown, on.question.question, on.player, on.notice]
    for button, recorded in zip(on.picture.examples, site.recorded, strict=False):
        free(button.click(_replay(site, replays, recorded), None, replay, **QUICK))
    for button, lesson in zip(on.lessons, site.lessons, strict=True):
        free(button.click(_replay(site, replays, lesson.race, lesson), None, replay, **QUICK))
    file = on.picture.trace
    free(file.upload(open_file, file, replay, show_progress="hidden", api_visibility="private"))
    page.unload(gone)
    connect_chip(page, on.chip, lambda: running(site))
    page.load(open_link, None, replay, **QUICK)


def _replay(
    site: AppState, replays: Replays, recorded: Recorded, lesson: Lesson | None = None
) -> Callable[[gr.Request], tuple[Any, ...]]:
    def show(request: gr.Request) -> tuple[Any, ...]:
        site.requests.cancel((request.session_hash or "", RACE))
        taught = (lesson.told.step, lesson.words) if lesson else ()
        return *replays.show(recorded, *taught), ""

    return show


# --- launch -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Serving:
    """Watch lossless tree speculative decoding of a vision-language model."""

    running: Place

    host: str = field(
        default_factory=lambda: _from("GRADIO_SERVER_NAME") or ("0.0.0.0" if _from("SPACE_ID") else "127.0.0.1")
    )
    """Who may connect: GRADIO_SERVER_NAME; without it everybody on a hosted Space, otherwise this machine alone."""

    port: int = field(default_factory=lambda: int(_from("GRADIO_SERVER_PORT", "PORT") or 7860))
    """Where the page is served: GRADIO_SERVER_PORT or PORT, 7860 without them."""

    root_path: str = field(default_factory=lambda: _from("GRADIO_ROOT_PATH"))
    """Path or whole address under which a proxy shows the page, such as /demo: GRADIO_ROOT_PATH."""

    open: Path | None = None
    """A race file to show first, in place of an example."""


def _from(*names: str) -> str:
    """The first of these environment variables that is set."""
    return next((os.environ[name] for name in names if os.environ.get(name)), "")


def main() -> int:
    """Serve the page until it is stopped. The exit code; whatever goes wrong is told in one line on stderr."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a container's stop ends like Ctrl-C: visitors are told
    try:
        _start(tyro.cli(Serving, description=Serving.__doc__))
    except KeyboardInterrupt:
        return _ended("stopped", 0)
    except ValidationError as error:
        return _ended(one_line(error))
    except (ValueError, OSError) as error:
        return _ended(str(error))
    except Exception as error:  # noqa: BLE001 - told, and the end of everything
        return _ended(f"{type(error).__name__}: {error}")
    return 0


def _ended(why: str, code: int = 1) -> int:
    print("app.py:", *why.split(), file=sys.stderr)
    return code


def _start(options: Serving) -> None:
    """Read what is shown before any model, load the models in the background, serve."""
    race = read_recorded(options.open) if options.open else None
    recorded, lessons = load_recorded(EXAMPLES), load_lessons(LESSONS)
    for shown in (*([race] if race else []), *recorded, *(lesson.race for lesson in lessons)):
        if shown.image:
            open_image(shown.image)
    loading = ThreadPoolExecutor(1, "models").submit(load, options.running)
    toy = options.running.preset.startswith("toy") and options.running.target is None
    site = AppState(
        loading.result, recorded, toy=toy, opened=race, lessons=lessons, lab=lambda: _lab(loading.result())
    )
    serve(build_page(site), options.host, options.port, FirstPaint(site, FIRST_PAINT), root_path=options.root_path)


def _lab(pair: Any) -> Experiments:
    from specllava.lab import Lab

    return Lab(pair)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # a model that is still being loaded is not waited for
