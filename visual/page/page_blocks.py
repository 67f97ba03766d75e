"""The page as Gradio's ``Blocks``: what Gradio does not do for a page that strangers use for days."""

from __future__ import annotations

import logging
from textwrap import shorten
from typing import Any

import gradio as gr
from gradio.state_holder import SessionState

log = logging.getLogger("specllava.page")


class PageBlocks(gr.Blocks):
    """The page. What a forged call holds costs no stack trace, and a session keeps no component twice."""

    async def preprocess_data(
        self, block_fn: Any, inputs: list[Any], state: SessionState | None, explicit_call: bool = False
    ) -> list[Any]:
        """Return the values of a call as its handler takes them.

        Raises:
            gr.Error: a component does not take its value.
        """
        try:
            values: list[Any] = await super().preprocess_data(block_fn, inputs, state, explicit_call)
            return values
        except Exception as refusal:
            words = refusal.message if isinstance(refusal, gr.Error) else f"{type(refusal).__name__}: {refusal}"
            line = shorten(str(words), 200)
            log.warning("a value of a call was refused: %s", line)
            raise gr.Error(line, print_exception=False) from refusal
        finally:
            _forget_values(state)

    async def postprocess_data(self, block_fn: Any, predictions: Any, state: SessionState | None) -> list[Any]:
        """Return the values of a handler as the browser takes them.

        Gradio makes a component anew whenever a handler skips or updates it. It keeps each, with its next value, under
        a new number: for a long visit, one set of frames a run.
        """
        values: list[Any] = await super().postprocess_data(block_fn, predictions, state)
        if state is not None:
            for number in [number for number in state.blocks_config.blocks if number not in self.blocks]:
                del state.blocks_config.blocks[number]
        _forget_values(state)
        return values


def _forget_values(state: SessionState | None) -> None:
    """Drop the configuration of all components, with their latest values, that a session holds for links into it.

    This page has no such links, and a session that is merely named would hold all of it too.
    """
    if state is not None:
        state.config_values.clear()
