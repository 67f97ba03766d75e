"""What gradio's own queue knows of calls: when those that wait were made, by whom, and whether a caller is still there.

A call enters the queue before any of our code runs, so nobody else can tell. The queue has no public interface for
any of these questions; ``tests/test_api.py`` notices if the one that is used here changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import gradio as gr
from gradio.context import LocalContext

COMPUTE: Final = "compute"  # concurrency id of whatever computes: one such event runs at a time


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
    """Return what tells whether the client of this call still waits for its answer. Within the call's handler."""
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
