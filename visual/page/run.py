"""One race of a visitor, from a request to frames: the latest one counts, one computes at a time, Stop, a deadline."""

from __future__ import annotations

import html
import json
import logging
import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

import gradio as gr
from pydantic import ValidationError

from specllava.config import DecodingConfig, one_line
from specllava.files import is_out_of_memory
from specllava.metrics import summarise, unused_draft
from specllava.models.images import open_image
from specllava.trace import NO_DRAFT, SPECULATIVE, TARGET_ONLY, DecodeTrace, RunInfo
from visual.page.state import Dialogue, PageState, RunState
from visual.player.frames import Ending, FrameList, data_address
from visual.player.recorded import check_question

if TYPE_CHECKING:
    from specllava.pair import Pair


log = logging.getLogger("specllava.page")
RUN_LOG = logging.getLogger("specllava.runs")
COMPUTE: Final = "compute"  # concurrency id of whatever computes: one such event runs at a time
COMPUTES: Final[dict[str, Any]] = {
    "concurrency_id": COMPUTE, "concurrency_limit": 1, "show_progress": "minimal", "api_visibility": "private",
}  # fmt: skip
QUICK: Final[dict[str, Any]] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
SECONDS_PER_UPDATE: Final = 0.5  # a browser on the same machine slows the lanes whenever it draws
PICTURE_PIXELS: Final = 1344  # on the longer side: no family of models looks at more
OUT_OF_MEMORY: Final = (
    "This machine ran out of memory. Please ask for fewer new tokens or fewer guesses, or try again in a minute."
)
FAILED: Final = "Something went wrong and the run was stopped. Please try again."
Ended = Ending | Literal["left"]
Outcome = Ended | Literal["refused", "failed"]


@dataclass(frozen=True, slots=True)
class Asked:
    """A run that a session asked for, checked.

    Args:
        number: of the run, as ``Runs`` counts them.
        picture: path of the picture, ``None`` for a question about none.
        draft: another draft than the page's own.
        dialogue: the question goes on with it.
    """

    session: str
    number: int
    picture: str | None
    question: str
    config: DecodingConfig
    draft: str | None = None
    dialogue: Dialogue = field(default_factory=Dialogue)


def run_frames(state: PageState, asked: Asked) -> Generator[list[str]]:
    """Run a race and yield its frames so far, the last time with their end; warnings go to the visitor's page."""
    began, outcome = time.monotonic(), "left"
    last: Mapping[str, DecodeTrace] = {}
    runs = state.runs
    try:
        if runs.state(asked.session, asked.number) != "on":
            return
        outcome, last = yield from _race(state, asked)
    except (ValueError, gr.Error) as refusal:
        outcome = "refused"
        warn(f"This cannot run: {refusal_line(refusal)}")
    except Exception as problem:
        outcome = "failed"
        log.exception("a run failed")
        warn(failure_line(problem))
    finally:
        runs.end(asked.session, asked.number)
        log_run("race", outcome, time.monotonic() - began, last)


def _race(state: PageState, asked: Asked) -> Generator[list[str], None, tuple[Outcome, Mapping[str, DecodeTrace]]]:
    """Start a race and yield frames until it, its request or the clock ends it. Return which, and the traces."""
    check_question(asked.question, state.limits.prompt_characters)
    if state.lent is not None:
        frames: list[str] = []
        with closing(state.lent(asked.picture, asked.question, asked.config)) as lists:
            for frames in lists:
                if state.runs.state(asked.session, asked.number) == "left":
                    return "left", {}
                yield frames
        return "finished", {}
    pair = state.pair(asked.draft)
    config, absent = lanes_config(pair.info, asked.config)
    images = open_pictures(asked.picture, state.limits.pixels) if pair.sees else ()
    dialogue, before = asked.dialogue, asked.dialogue.turns
    events = dialogue.ask(pair, asked.draft, asked.question, asked.picture, images, config)
    assert dialogue.chat is not None  # as it was asked
    state.keep_caches(dialogue.chat)
    shown = data_address(images[0]) if images else None
    lanes = (TARGET_ONLY,) if absent else (TARGET_ONLY, SPECULATIVE)
    made = FrameList(live=True, picture=shown, lanes=lanes, absent=absent, before=before)
    race = Bounded(events, state.limits.seconds_per_run, lambda: state.runs.state(asked.session, asked.number))
    traces = yield from draw_race(made, pair.collect, race)
    speculative = traces.get(SPECULATIVE)
    if race.outcome == "deadline":
        warn(f"Stopped after {state.limits.seconds_per_run:.0f} seconds. What is shown so far stays.")
    elif speculative is not None:
        advice = unused_draft(speculative.setting.draft, speculative.config.drafter, summarise([speculative]))
        if advice:
            warn(advice)
    return race.outcome, traces


@dataclass(eq=False)
class Bounded:
    """Events of a run until it is stopped, left or out of time; ``outcome`` is how they ended.

    Args:
        state: what became of the run meanwhile.
    """

    events: Generator[Any]
    seconds: float
    state: Callable[[], RunState]
    outcome: Ended = "finished"

    def __iter__(self) -> Iterator[Any]:
        last = time.monotonic() + self.seconds
        with closing(self.events):
            for event in self.events:
                yield event
                state = self.state()
                if state != "on" or time.monotonic() > last:
                    self.outcome = "deadline" if state == "on" else state
                    return


def draw_race(
    made: FrameList, collect: Callable[[list[Any]], Mapping[str, DecodeTrace]], events: Bounded
) -> Generator[list[str], None, Mapping[str, DecodeTrace]]:
    """Yield frames of a race that runs, the end frame last, unless nobody wants it. Return its traces."""
    past, shown = list[Any](), time.monotonic()
    for event in events:
        past.append(event)
        if time.monotonic() - shown >= SECONDS_PER_UPDATE:
            shown = time.monotonic()
            if frames := made.update(collect(past)):
                yield frames
    traces = collect(past)
    if events.outcome != "left" and (frames := made.update(traces, events.outcome)):
        yield frames
    return traces


def connect_run(
    state: PageState, ways: Sequence[tuple[Sequence[Any], Sequence[Any]]], buttons: Sequence[gr.Button],
    run: Callable[..., Generator[Any]], outputs: Sequence[Any], running: Any,
) -> None:  # fmt: skip
    """Connect clicks with what computes: past the queue they end the visitor's run before, and one computes at a time.

    Args:
        ways: clicks, and inputs of what they begin.
        buttons: one that begins, and its Stop.
        run: gets the request, the number of its run, as ``Runs`` counts them, and the inputs.
        running: where progress is shown, and that the queue is full.
    """
    number = gr.Number(0, precision=0, visible=False)  # as it was at the click; a state would be read after the wait

    def ask(request: gr.Request) -> tuple[Any, ...]:
        return state.runs.ask(session_of(request)), gr.update(visible=False), gr.update(visible=True)

    def stop(request: gr.Request) -> None:
        state.runs.stop(session_of(request))

    def finish(request: gr.Request, latest: int) -> tuple[Any, ...]:
        on = state.runs.state(session_of(request), latest) != "left"
        return gr.update(visible=not on), gr.update(visible=on)

    def refuse(request: gr.Request) -> tuple[Any, ...]:  # only the browser learns that the queue or a limit is full
        state.runs.leave(session_of(request))
        line = "This did not run: too many runs are waiting, or came from your address. Try again in a minute."
        return gr.update(visible=True), gr.update(visible=False), line

    for clicks, inputs in ways:
        begun = gr.on(clicks, ask, None, [number, *buttons], trigger_mode="multiple", **QUICK)
        given: dict[str, Any] = {"inputs": [number, *inputs], "outputs": outputs, "show_progress_on": running}
        computed = begun.then(run, trigger_mode="multiple", **given, **COMPUTES)
        computed.then(finish, number, buttons, **QUICK)
        computed.failure(refuse, None, [*buttons, running], **QUICK)
    buttons[1].click(stop, None, None, **QUICK)


def warn(line: str) -> None:
    """Show a visitor a line as it is: Gradio reads markup in what it shows."""
    gr.Warning(html.escape(line, quote=False))


def failure_line(problem: Exception) -> str:
    """Return what a visitor reads of an error that nobody expected."""
    return OUT_OF_MEMORY if is_out_of_memory(problem) else FAILED


def refusal_line(refusal: Exception) -> str:
    """Return why something was refused, in one line."""
    return one_line(refusal) if isinstance(refusal, ValidationError) else str(getattr(refusal, "message", refusal))


def session_of(request: gr.Request) -> str:
    """Return the session that a call belongs to.

    Raises:
        gr.Error: it belongs to none, so that nobody could follow or stop its run.
    """
    if not request.session_hash:
        raise gr.Error("a run needs the session of an open page", print_exception=False)
    return request.session_hash


def lanes_config(info: RunInfo, config: DecodingConfig) -> tuple[DecodingConfig, str | None]:
    """Return the configuration that runs, and why only the target runs; ``None`` if a drafter does."""
    if config.drafter == "none":
        return config, "Speculation is off, because the settings say that nobody guesses."
    if config.drafter == "model" and info.draft == NO_DRAFT:
        why = f"Speculation is off: the pair {info.pair} has no draft. Choose prompt-lookup under Measure, Settings."
        return replace(config, drafter="none"), why
    return config, None


def open_pictures(path: str | None, pixels: int) -> tuple[Any, ...]:
    """Open the picture of a run, no larger than models look at; none without one.

    Raises:
        ValueError: it is no longer there, or cannot be read.
    """
    return () if path is None else (open_image(path, PICTURE_PIXELS, pixels),)


def log_run(kind: str, outcome: str, seconds: float, traces: Mapping[str, DecodeTrace]) -> None:
    """Log how a run ended: a line of JSON, without a word of what was asked or answered."""
    line: dict[str, Any] = {
        "run": kind, "outcome": outcome, "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 3),
    }  # fmt: skip
    answer = traces.get(SPECULATIVE) or traces.get(TARGET_ONLY)
    if answer is not None:
        totals = summarise([answer])
        line |= {"tokens": totals.tokens, "tau": None if math.isnan(totals.tau) else round(totals.tau, 3)}
    RUN_LOG.info(json.dumps(line))


# Estimates for a target of 7 billion parameters in bfloat16, not measured on ZeroGPU.
START: Final = 6.0  # seconds until the prompt is read
TOKEN: Final = 0.07  # seconds of a token in both lanes
MOST: Final = 60  # seconds that are asked for


def granted(path: str | None, question: str, config: DecodingConfig) -> int:
    """Return the seconds for which a GPU is asked: what is asked for decides whether a visitor may run."""
    return min(MOST, math.ceil(START + TOKEN * config.max_new_tokens))


def lent_race(pair: Pair, gpu: Callable[..., Any], pixels: int) -> Callable[..., Generator[list[str]]]:
    """Return a race that runs where a GPU is lent; made in the thread that loaded the pair, before the launch."""

    def race(path: str | None, question: str, config: DecodingConfig) -> Generator[list[str]]:
        began = time.monotonic()
        chosen, absent = lanes_config(pair.info, config)
        images = open_pictures(path, pixels) if pair.sees else ()
        lanes = (TARGET_ONLY,) if absent else (TARGET_ONLY, SPECULATIVE)
        made = FrameList(True, data_address(images[0]) if images else None, lanes=lanes, absent=absent)
        seconds = granted(path, question, config) - START - (time.monotonic() - began)
        events = pair.race(pair.lane(images, question, chosen).with_target_only())
        yield from draw_race(made, pair.collect, Bounded(events, seconds, lambda: "on"))

    lent: Callable[..., Generator[list[str]]] = gpu(duration=granted)(race)
    return lent
