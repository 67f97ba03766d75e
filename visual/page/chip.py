"""The chip in the page's head, which names the pair, device and precision once the models are loaded."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import gradio as gr

from specllava.core.trace import RunInfo
from visual.page.runs import QUICK
from visual.page.widgets import chip_value

SECONDS_BETWEEN_POLLS = 1.0


def connect_chip(page: gr.Blocks, chip: gr.HTML, loading: Future[RunInfo]) -> None:
    """Fill the chip for every visitor, also for one who finds the queue full: each poll answers at once.

    Args:
        page: that is being built.
        chip: says that the models are loading until ``loading`` is done; a visitor's page polls until then.
        loading: what runs, once it is loaded.
    """
    timer = gr.Timer(SECONDS_BETWEEN_POLLS, active=False)

    def poll() -> tuple[Any, gr.Timer]:
        return (loaded(loading), gr.Timer(active=False)) if loading.done() else (gr.skip(), gr.Timer(active=True))

    page.load(poll, None, [chip, timer], **QUICK)
    timer.tick(poll, None, [chip, timer], **QUICK)


def loaded(loading: Future[RunInfo]) -> str:
    """Return the chip's value, once loading is done."""
    if loading.exception():
        return chip_value("failed", "recorded races only: the models could not be loaded")
    info = loading.result()
    return chip_value("ready", f"{info.pair} · {info.device.upper()} · {info.dtype}")
