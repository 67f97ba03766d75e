"""Tokens that end an answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase


def eos_token_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return the ids of the first source that names any, of generation settings, configuration, decoder and tokenizer.

    An empty list names none on purpose: answers then end at the limit only.

    Raises:
        ValueError: a source names something that is no token id.
    """
    for source, value in _sources(model, tokenizer):
        if value is not None:
            ids = list(value) if isinstance(value, list | tuple) else [value]
            if wrong := [one for one in ids if not isinstance(one, int) or isinstance(one, bool) or one < 0]:
                raise ValueError(
                    f"eos_token_id in {source} is {str(wrong[0])[:40]!r}: a token's id (a number) ends answers"
                )
            return frozenset(ids)
    return frozenset()


def _sources(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Iterator[tuple[str, Any]]:
    yield "the generation settings", getattr(model.generation_config, "eos_token_id", None)
    yield "the configuration", getattr(model.config, "eos_token_id", None)
    yield "the configuration", getattr(model.config.get_text_config(), "eos_token_id", None)
    yield "the tokenizer", tokenizer.eos_token_id
