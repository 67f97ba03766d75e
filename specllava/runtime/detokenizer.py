"""Text of token ids."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase


class Detokenizer:
    """Decoder of token ids to text; the text that one token adds is computed once."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._anchor: list[int] = tokenizer.encode("a", add_special_tokens=False)
        self._before: str = tokenizer.decode(self._anchor)
        self._texts: dict[int, str] = {}

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, without special tokens."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text.strip()

    def text_of(self, token: int) -> str:
        """Return the text that one token adds, its leading space included.

        Decoded behind another token, because some tokenizers drop the space of a text's first one.
        """
        if token not in self._texts:
            whole: str = self._tokenizer.decode([*self._anchor, token])
            self._texts[token] = whole[len(self._before) :]
        return self._texts[token]
