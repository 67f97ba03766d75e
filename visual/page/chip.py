"""The chip in the page's head: says what is running as soon as that is known. Imports gradio, not torch."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gradio as gr

from visual.page.runs import QUICK

SECONDS_BETWEEN_LOOKS = 1.0


def connect_chip(page: gr.Blocks, chip: gr.HTML, tell: Callable[[], str]) -> None:
    """Fill the chip for every visitor, also for one who finds the queue full: each look answers at once.

    Args:
        page: that is being built.
        chip: says that the models are loading until ``tell`` has returned; a visitor's page looks again until then.
        tell: waits for the models; its words. Called once, on a thread of its own.
    """
    thread = ThreadPoolExecutor(1, "chip")
    told = thread.submit(tell)
    thread.shutdown(wait=False)
    timer = gr.Timer(SECONDS_BETWEEN_LOOKS, active=False)

    def look() -> tuple[Any, gr.Timer]:
        return (told.result(), gr.Timer(active=False)) if told.done() else (gr.skip(), gr.Timer(active=True))

    page.load(look, None, [chip, timer], **QUICK)
    timer.tick(look, None, [chip, timer], **QUICK)
