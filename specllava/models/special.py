"""Special tokens in texts: ``</s>``, ``<image>`` and others, which belong to the chat template and to nobody else."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

IMAGE_MARKER = "<image>"


class TextError(ValueError):
    """A text that cannot be put to a model as it is."""


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
    """What the tokenizer reads as a token of its own wherever it stands in a text; longest first."""
    added = (token.content for token in tokenizer.added_tokens_decoder.values() if token.special)
    return tuple(sorted({*added, *tokenizer.all_special_tokens, IMAGE_MARKER}, key=lambda one: (-len(one), one)))


def check_text(text: str, special: Sequence[str], whose: str) -> None:
    """Refuse a text that would not be read as text.

    Args:
        whose: how the message calls it.

    Raises:
        TextError: it holds one of the ``special`` tokens, or half of a character.
    """
    for token in special:
        if token in text:
            sets = "the picture's place is" if token == IMAGE_MARKER else "special tokens are"
            raise TextError(f"{whose} contains {token}: {sets} set by the chat, not in the text")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        place, half = error.start, text[error.start]
        raise TextError(f"{whose} is no UTF-8 text: {half!r} at character {place + 1} is none") from error


def defused(text: str, special: Sequence[str]) -> str:
    """A model's own text, with a space in what it spelled like one of the ``special`` tokens."""
    for token in special:
        text = text.replace(token, f"{token[0]} {token[1:]}")
    return text
