"""The one line in which everything that computes waits, and how a Run and a Stop button lead through it. No torch."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from visual.notices import info, warning
from visual.turns import Turn, Turns, Wanted

QUICK: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
# A visitor who asks again before the handler has ended gets another turn behind it, not none.
COMPUTES: dict[str, Any] = {
    "concurrency_id": "compute", "concurrency_limit": 1, "trigger_mode": "always_last", "show_progress": "hidden",
    "api_visibility": "private",
}  # fmt: skip
REFUSED = warning("This did not run, most likely because too many are waiting. Please try again in a minute.")


@dataclass(frozen=True)
class Kind:
    """One kind of run that visitors ask for.

    Args:
        turns: who wants one.
        key: a session's, in the turns.
        asked: the turn that a click asks for, from its event and the values of the page.
        run: what a turn changes on the page, update by update, and for how long it is wanted.
        waits: words for one that others come before, by their number.
        stopped: the notice when one was stopped.
    """

    turns: Turns
    key: Callable[[str], Hashable]
    asked: Callable[..., Turn]
    run: Callable[[Turn, Wanted], Iterator[dict[Any, Any]]]
    waits: Callable[[int], str]
    stopped: str


@dataclass(frozen=True)
class Stand:
    """Where one kind of run is asked for and seen: two buttons, a notice, and what shows it."""

    run: gr.Button
    stop: gr.Button
    notice: gr.HTML
    shown: gr.HTML


def line_up(kind: Kind, on: Stand, clicks: Sequence[Any], values: Sequence[Any]) -> Callable[[Any], Any]:
    """Connect a kind of run with where it stands on the page.

    Args:
        kind: of run.
        on: where it is asked for.
        clicks: the events that ask for one.
        values: what of the page a turn is made from, as it stands at the click.

    Returns:
        Sets the buttons right behind an event that may have ended a run in another way.
    """

    def key(request: gr.Request) -> Hashable:
        return kind.key(request.session_hash or "")

    def buttons(request: gr.Request) -> tuple[Any, ...]:
        wanted = kind.turns.wish(key(request)) == "on"
        return gr.update(interactive=not wanted), gr.update(interactive=wanted)

    def begin(request: gr.Request, event: gr.EventData, *values: Any) -> tuple[Any, ...]:
        others = kind.turns.enter(key(request), kind.asked(event, *values))
        return *buttons(request), info(kind.waits(others) if others else "")

    def compute(request: gr.Request) -> Iterator[dict[Any, Any]]:
        yield from kind.turns.take(key(request), kind.run, {on.notice: kind.stopped})
        yield {on.notice: gr.skip()}  # at the end gradio sends once more what came last, over whatever is there by now

    def halt(request: gr.Request) -> tuple[Any, ...]:
        stopped = kind.turns.stop(key(request))
        return *buttons(request), kind.stopped if stopped else gr.skip()

    def refused(request: gr.Request) -> tuple[Any, ...]:
        kind.turns.leave(key(request))
        return *buttons(request), REFUSED

    pressed = [on.run, on.stop]
    computed = gr.on(clicks, begin, values, [*pressed, on.notice], **QUICK).then(
        compute, None, [on.shown, on.notice], **COMPUTES
    )
    computed.then(buttons, None, pressed, **QUICK)
    computed.failure(refused, None, [*pressed, on.notice], **QUICK)  # a full line, which gradio tells the browser alone
    on.stop.click(halt, None, [*pressed, on.notice], **QUICK)
    return lambda event: event.then(buttons, None, pressed, **QUICK)
