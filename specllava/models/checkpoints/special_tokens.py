"""Special tokens in texts: ``</s>``, ``<image>`` and others, which only the chat template may write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from transformers import PretrainedConfig, PreTrainedTokenizerBase

IMAGE_MARKER = "<image>"
CHARACTERS: Final = 16  # of a token, more than texts have on average; of a longer text a beginning is tokenised first


class TextError(ValueError):
    """Error of a text that cannot be given to a model unchanged."""


def bos_options(tokenizer: PreTrainedTokenizerBase, text: str) -> dict[str, bool]:
    """Return tokenizer options for a chat template's text: no second BOS token where the text begins with one."""
    begun = bool(tokenizer.bos_token) and text.startswith(str(tokenizer.bos_token))
    return {"add_special_tokens": False} if begun else {}


def beginning(tokenizer: PreTrainedTokenizerBase, text: str, length: int) -> str:
    """Return a text, or a part from its start that alone has more than twice ``length`` tokens.

    So a text of any size costs what its context costs: tokenising 100 MB takes a minute.
    """
    end = CHARACTERS * length
    while end < len(text):
        if len(tokenizer(text[:end], add_special_tokens=False, verbose=False)["input_ids"]) > 2 * length:
            return text[:end]
        end *= 2
    return text


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
    """Return the strings that the tokenizer reads as one token wherever they stand in a text; longest first."""
    added = (token.content for token in tokenizer.added_tokens_decoder.values() if token.special)
    return tuple(sorted({*added, *tokenizer.all_special_tokens, IMAGE_MARKER}, key=lambda one: (-len(one), one)))


def check_text(text: str, special: Sequence[str], whose: str) -> None:
    """Refuse a text that would not be read as text.

    Args:
        whose: its name in the message.

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
        position, half = error.start, text[error.start]
        raise TextError(f"{whose} is no UTF-8 text: {half!r} at character {position + 1} is none") from error


def escape_special_tokens(text: str, special: Sequence[str]) -> str:
    """Insert a space into each string of a model's text that spells one of the ``special`` tokens."""
    for token in special:
        text = text.replace(token, f"{token[0]} {token[1:]}")
    return text


def slot_ids(config: PretrainedConfig) -> tuple[int, ...]:
    """Return the ids of the tokens that stand for parts of pictures and videos; none for a plain language model."""
    found = (getattr(config, name, None) for name in ("image_token_id", "video_token_id"))
    return tuple(one for one in found if one is not None)
