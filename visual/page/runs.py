"""Runs that visitors request, races and experiments alike: one waiting line, Stop, the deadline, errors. No torch.

The way of one click on Run:

1. The browser calls ``begin`` (:func:`connect_run`) at once, past gradio's queue. It makes a ``RunRequest`` of the
   page as it is and enters it into the ``RunRequests`` that the whole page shares. It turns Run off and Stop on, and
   says how many other runs come first. Where ``begin`` fails, the browser says so by itself (``UNBEGUN``).
2. The browser then joins gradio's queue for ``compute``. All of these share one slot, so one run computes at a time.
   Where the queue is full, ``refuse`` cancels the request and says so.
3. In its slot ``compute`` draws from :func:`run_updates`, the one generator of this module. It takes the latest request
   of this session and kind, which may be another than that of the click. It checks its settings and starts the run:
   ``RunKind.start``, of ``visual.page.race`` or ``visual.page.lab``.
4. The run's events come from ``Pair.race`` or ``Lab``, one for each decode step. After each, ``Run.show`` turns what is
   there into an update of the page, and the request's state decides. ``on`` goes on, ``stopped`` and the deadline end
   the run with a last update, ``left`` ends it without one.
5. A click on Stop only sets the state (``halt``). Another Run of the same kind sets the state of the one before to
   ``left``, as whatever else replaces what the run shows does.
6. A failure becomes a notice. At the end the request is removed, a line about the run is logged, and ``buttons`` sets
   Run and Stop.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, Protocol

import gradio as gr
from gradio.context import LocalContext

from specllava.config import DecodingConfig
from specllava.files import is_out_of_memory
from specllava.config import Limits
from specllava.metrics import RunTotals
from specllava.question import Messages, with_system
from visual.page.controls import decoding_config, read_system
from visual.page.model_choice import OWN, read_draft
from visual.page.notices import error, failure, info, refusal_notice, warning
from visual.page.pictures import NoPicture, PictureSource
from visual.page.run_requests import QueuePosition, RunKey, RunRequest, RunRequests
from visual.player.recorded import check_question
from visual.player.frames import Ending

log = logging.getLogger("specllava.page")
RUN_LOG = logging.getLogger("specllava.runs")
COMPUTE: Final = "compute"  # concurrency id of whatever computes: one such event runs at a time
QUICK: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
# A visitor who asks again before the handler has ended gets another run after it, not none.
COMPUTES: dict[str, Any] = {
    "concurrency_id": COMPUTE, "concurrency_limit": 1, "trigger_mode": "always_last", "show_progress": "hidden",
    "api_visibility": "private",
}  # fmt: skip
CLOSED = "The server is being restarted. Please try again in a minute."
SECONDS_PER_LOOK: Final = 3.0  # between two looks at how many runs still come first
LATE: Final = "Your click took too long to reach the waiting line: press the button again."
FAILED = "Something went wrong and {} was stopped. Please try again."
OUT_OF_MEMORY = (
    "This machine ran out of memory. Please ask for fewer new tokens or with fewer nodes, or try again in a minute."
)
UNBEGUN = error("This did not start: a setting may be outside its bounds. Please check the settings and try again.")

# ``left``: for something else, or by a visitor who is gone. ``refused``: for what the visitor can change.
Outcome = Literal["finished", "stopped", "deadline", "closed", "left", "refused", "failed"]
Update = tuple[Any, str]  # a value for what shows the run, ``None`` to leave it, and a notice


@dataclass(frozen=True)
class RunInputs:
    """A request of a session whose settings and picture have been checked; fields as of :class:`RunRequest`."""

    session: str
    picture: PictureSource
    question: str
    config: DecodingConfig
    more: Any
    draft: str = OWN
    system: str | None = None

    @property
    def messages(self) -> Messages:
        """The question as a pair takes it, after the system turn."""
        return with_system(self.question, self.system)


def seen_picture(inputs: RunInputs, sees: bool) -> PictureSource:
    """Return the picture of a run, none for a language model."""
    return inputs.picture if sees else NoPicture()


class Run(Protocol):
    """A run that has been started.

    ``events`` computes, one event for each decode step; it is closed by whoever draws from it.
    """

    @property
    def events(self) -> Generator[Any]: ...

    def show(self, event: Any) -> Update | None:
        """Take in an event. Return an update of the page, ``None`` if nothing changes."""

    def end(self, ending: Ending) -> Any:
        """Return the last value for what shows the run, ``None`` if there is none."""

    def summary(self) -> RunTotals | None:
        """Return the totals of the lane that answers, ``None`` if there is none."""


class OutOfTime(Exception):
    """Raised by a run's events: the time that it was granted is over, which the message says."""


@dataclass(frozen=True)
class RunKind:
    """A race, or one of the experiments.

    Args:
        name: unique on the page.
        noun: what failed, in a notice.
        kept: a sentence on what stays when a run ends early.
        request: makes a request of a click's event and the values of the page.
        start: starts a run; a ``ValueError`` says what the visitor can change.
        advise: says what to look at after a finished run, empty for nothing.
    """

    name: str
    noun: str
    kept: str
    request: Callable[..., RunRequest]
    start: Callable[[RunInputs], Run]
    advise: Callable[[Any], str] = lambda run: ""

    def notice(self, ending: Ending | Literal["closed"], limits: Limits) -> str:
        """Make the notice of a run that has ended, or that the server ends because it is closed itself."""
        if ending == "finished":
            return ""
        if ending == "stopped":
            return info(f"Stopped. {self.kept}")
        if ending == "closed":
            return warning(f"{CLOSED} {self.kept}")
        return warning(f"Stopped after {limits.seconds_per_run:.0f} seconds. {self.kept}")


def run_updates(requests: RunRequests, kind: RunKind, key: RunKey) -> Generator[Update]:
    """Run the latest request of a session, if there is one, and yield what changes on the page."""
    request = requests.latest(key)
    if request is None:
        if requests.is_late(key):
            yield None, warning(LATE)
        return
    began = time.monotonic()
    outcome: Outcome = "left"
    run: Run | None = None
    try:
        state = request.state  # a local variable: other threads set the attribute meanwhile
        if state in ("stopped", "closed"):
            outcome = state
            yield None, kind.notice(state, requests.limits)
            return
        requests.begin(request)
        inputs = check_request(request, key[0], requests.limits)
        yield None, info("Getting ready: models, picture, question.")
        run = kind.start(inputs)
        outcome = yield from _show_events(run, request, requests.limits.seconds_per_run)
        if outcome != "left":
            ending: Ending = "stopped" if outcome == "closed" else outcome
            yield run.end(ending), kind.notice(outcome, requests.limits) or warning(kind.advise(run))
    except OutOfTime as over:
        outcome = "deadline"
        yield None if run is None else run.end(outcome), warning(f"{over} {kind.kept}")
    except ValueError as refusal:
        outcome = "refused"
        yield None, refusal_notice(refusal)
    except Exception as problem:
        outcome = "failed"
        log.exception("%s failed", kind.noun)
        yield None, failure(OUT_OF_MEMORY if is_out_of_memory(problem) else FAILED.format(kind.noun))
    finally:
        requests.remove(key, request)
        log_run(kind.name, outcome, time.monotonic() - began, None if run is None else run.summary())


def log_run(kind: str, outcome: Outcome, seconds: float, summary: RunTotals | None) -> None:
    """Log how a run ended: a line of JSON, without a word of what was asked or answered.

    Args:
        kind: name of the kind of run.
        seconds: from when it left the waiting line.
        summary: of the lane that answered; ``None`` where there is none, as of an experiment.
    """
    ended = datetime.now(UTC).isoformat(timespec="seconds")
    line: dict[str, Any] = {"run": kind, "outcome": outcome, "ended": ended, "seconds": round(seconds, 3)}
    if summary is not None:
        line |= {"tokens": summary.tokens, "tau": None if math.isnan(summary.tau) else round(summary.tau, 3)}
    RUN_LOG.info(json.dumps(line))


def _show_events(
    run: Run, request: RunRequest, seconds: float
) -> Generator[Update, None, Ending | Literal["closed", "left"]]:
    """Draw events and yield updates until the run, its request or the clock ends it. Return which."""
    started = time.monotonic()
    with closing(run.events):
        for event in run.events:
            update, state = run.show(event), request.state
            if state != "on":
                return state
            if time.monotonic() - started > seconds:
                return "deadline"
            if update is not None:
                yield update
    return "finished"


def check_request(request: RunRequest, session: str, limits: Limits) -> RunInputs:
    """Check the settings and the picture of a request; raises a ``ValueError`` that says what is wrong."""
    config = decoding_config(request.settings, limits)
    if request.picture is None:
        raise ValueError("choose a picture first, or No picture")
    draft, system = read_draft(request.settings), read_system(request.settings)
    check_question(request.question, limits.prompt_characters)
    check_question(system or "", limits.prompt_characters, "system turn")
    return RunInputs(session, request.picture, request.question, config, request.more, draft, system)


def waiting_notice(position: QueuePosition | None) -> str:
    """Make the notice of a run that has to wait; empty if no other comes first."""
    if position is None or not position.before:
        return ""
    line = f"{position.before} other run{'s' if position.before > 1 else ''} before this one"
    if position.seconds is not None:
        seconds = max(1, math.ceil(position.seconds))
        line += f", about {seconds} second{'s' if seconds > 1 else ''} at the pace of the latest runs"
    return info(f"{line}; it starts by itself.")


def refused_notice(limits: Limits) -> str:
    """Make the notice of a run that did not fit into the waiting line; only the browser learns why."""
    return warning(
        f"This did not run: {limits.waiting} runs are waiting already, or more than {limits.runs_per_minute} came from"
        " your address within a minute. Please try again in a minute."
    )


@dataclass(frozen=True)
class RunControls:
    """Components of one kind of run: its buttons, a notice, and what shows it.

    Args:
        more: other buttons that request a run.
    """

    run: gr.Button
    stop: gr.Button
    notice: gr.HTML
    shown: gr.HTML
    more: Sequence[gr.Button] = ()


def session_of(request: gr.Request) -> str:
    """Return the session that a call belongs to.

    Raises:
        gr.Error: it belongs to none, so that nobody could follow or stop its run.
    """
    if not request.session_hash:
        raise gr.Error("a run needs the session of an open page", print_exception=False)
    return request.session_hash


def connect_run(
    requests: RunRequests, kind: RunKind, controls: RunControls, clicks: Sequence[Any], values: Sequence[Any]
) -> Callable[[Any], Any]:
    """Connect a kind of run with its controls.

    Args:
        clicks: the events that request a run.
        values: of the page, for ``kind.request``.

    Returns:
        Sets the buttons right after an event that may have ended a run in another way.
    """

    def buttons(request: gr.Request) -> tuple[Any, ...]:
        on = requests.is_on((session_of(request), kind.name))
        off = [gr.update(interactive=not on) for _ in controls.more]
        return gr.update(interactive=not on), gr.update(interactive=on), *off

    def begin(request: gr.Request, event: gr.EventData, *values: Any) -> tuple[Any, ...]:
        requests.request((session_of(request), kind.name), kind.request(event, *values))
        return *buttons(request), *poll_line(request)

    def poll_line(request: gr.Request) -> tuple[Any, ...]:
        requests.forget_absent(joined_sessions())
        position = requests.position((session_of(request), kind.name), waiting_calls())
        if position is None:  # the run has begun, or is no longer wanted: its notice must stay
            return gr.skip(), gr.Timer(active=False)
        return waiting_notice(position), gr.Timer(active=position.before > 0)

    def finish(request: gr.Request) -> tuple[Any, ...]:
        return *buttons(request), gr.Timer(active=False)

    def compute(request: gr.Request) -> Iterator[dict[Any, Any]]:
        for value, notice in run_updates(requests, kind, (session_of(request), kind.name)):
            yield {controls.notice: notice} if value is None else {controls.notice: notice, controls.shown: value}
        # At the end gradio sends once more what came last, over whatever is there by now.
        yield {controls.notice: gr.skip()}

    def halt(request: gr.Request) -> tuple[Any, ...]:
        stopped = requests.stop((session_of(request), kind.name))
        return *buttons(request), kind.notice("stopped", requests.limits) if stopped else gr.skip()

    def refuse(request: gr.Request) -> tuple[Any, ...]:
        requests.cancel((session_of(request), kind.name))
        return *buttons(request), refused_notice(requests.limits)

    pressed = [controls.run, controls.stop, *controls.more]
    poll = gr.Timer(SECONDS_PER_LOOK, active=False)
    poll.tick(poll_line, None, [controls.notice, poll], **QUICK)
    begun = gr.on(clicks, begin, values, [*pressed, controls.notice, poll], **QUICK)
    begun.failure(None, None, controls.notice, js=f"() => {json.dumps(UNBEGUN)}", **QUICK)
    computed = begun.then(compute, None, [controls.shown, controls.notice], **COMPUTES)
    computed.then(finish, None, [*pressed, poll], **QUICK)
    computed.failure(refuse, None, [*pressed, controls.notice], **QUICK)  # a full queue: only the browser learns of it
    controls.stop.click(halt, None, [*pressed, controls.notice], **QUICK)
    return lambda event: event.then(buttons, None, pressed, **QUICK)


# --- gradio's own queue: a call enters it before any code of the page runs. It has no public interface for these
# --- questions; tests/test_api.py notices if the one that is used here changes.


def waiting_calls() -> list[float]:
    """Return when each call of the API that waits was made, on the clock of ``time.monotonic``. Within a handler."""
    blocks = LocalContext.blocks.get(None)
    line = blocks._queue.event_queue_per_concurrency_id.get(COMPUTE) if blocks else None
    return [event.enqueue_time for event in list(line.queue) if event.fn.api_visibility == "public"] if line else []


def joined_sessions() -> set[str]:
    """Return the sessions that have a call of what computes in the queue, waiting or running. Within a handler."""
    blocks = LocalContext.blocks.get(None)
    events = list(blocks._queue.event_ids_to_events.values()) if blocks else []
    return {event.session_hash for event in events if event.concurrency_id == COMPUTE}


def watch_call() -> Callable[[], bool]:
    """Return a function that checks whether this call's client still waits. Within the call's handler."""
    blocks, call = LocalContext.blocks.get(None), LocalContext.event_id.get(None)

    def is_wanted() -> bool:
        event = blocks._queue.event_ids_to_events.get(call) if blocks and call else None
        return event is not None and event.alive

    return is_wanted


def is_awaited(page: gr.Blocks, name: str) -> bool:
    """Return whether answers go to a session or a call of this name. Gradio logs a stack trace for any other."""
    queue = page._queue
    if name in queue.event_ids_to_events or name in queue.pending_messages_per_session:
        return True
    return any(name in calls for calls in list(queue.pending_event_ids_session.values()))
