"""Plain English without pictures: Python's documentation, some topics to train on, others to measure perplexity on."""

from __future__ import annotations

import random
from pydoc_data.topics import topics
from typing import Final

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

HELD_OUT: Final = 40  # topics by name that no training reads
OVERLAP: Final = 80  # characters that must not be in a measured and in a trained topic
CHARACTERS: Final = 3000  # measured of a topic
ROWS: Final = 2  # in a batch
WINDOW: Final = 256  # tokens of a row


def trained_text() -> str:
    """Return the topics that training reads, as one text."""
    return "\n".join(topics[name] for name in sorted(topics)[HELD_OUT:])


def measured_texts() -> list[str]:
    """Return the texts that perplexity is measured on: other topics, unless they share a passage with those."""
    trained = trained_text()
    texts = [topics[name][:CHARACTERS] for name in sorted(topics)[:HELD_OUT]]
    passages = {text: [text[at : at + OVERLAP] for at in range(0, len(text) - OVERLAP, OVERLAP // 4)] for text in texts}
    return [text for text, own in passages.items() if not any(passage in trained for passage in own)]


class PlainText:
    """Batches by number: ``[2, 256]`` tokens of the topics that are not measured, from random positions."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokens = torch.tensor(tokenizer.encode(trained_text(), add_special_tokens=False, verbose=False))

    def __call__(self, number: int) -> Tensor:
        rng = random.Random(f"plain {number}")
        starts = [rng.randrange(len(self.tokens) - WINDOW) for _ in range(ROWS)]
        return torch.stack([self.tokens[start : start + WINDOW] for start in starts])
