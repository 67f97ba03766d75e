"""Chat templates, which come with a checkpoint; transformers renders them in jinja2's sandbox."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import ProcessorMixin

from specllava.models.checkpoints.text_processor import TextProcessor, plain_chat


def apply_template(
    processor: ProcessorMixin, chat: Sequence[dict[str, Any]], name: str, add_generation_prompt: bool = True
) -> str:
    """Write a chat by the template of the model called ``name``; each content is a list of parts, of a text its text.

    Raises:
        ValueError: the template fails.
    """
    if isinstance(processor, TextProcessor):
        chat = plain_chat(chat)
    try:
        return str(processor.apply_chat_template(chat, add_generation_prompt=add_generation_prompt))
    except Exception as error:  # whatever that program raises
        why = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        raise ValueError(f"the chat template of {name} fails: {why}") from error
