"""The chip in the page's head, which names the pair, device and precision once the models are loaded."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gradio as gr

from visual.page.runs import QUICK

SECONDS_BETWEEN_POLLS = 1.0


def connect_chip(page: gr.Blocks, chip: gr.HTML, describe: Callable[[], str]) -> None:
    """Fill the chip for every visitor, also for one who finds the queue full: each poll answers at once.

    Args:
        page: that is being built.
        chip: says that the models are loading until ``describe`` has returned; a visitor's page polls until then.
        describe: waits for the models and returns the chip's value. Called once, on a thread of its own.
    """
    thread = ThreadPoolExecutor(1, "chip")
    described = thread.submit(describe)
    thread.shutdown(wait=False)
    timer = gr.Timer(SECONDS_BETWEEN_POLLS, active=False)

    def poll() -> tuple[Any, gr.Timer]:
        return (described.result(), gr.Timer(active=False)) if described.done() else (gr.skip(), gr.Timer(active=True))

    page.load(poll, None, [chip, timer], **QUICK)
    timer.tick(poll, None, [chip, timer], **QUICK)
