"""Conversations as tokens, through the target's own chat template, with answers as the only labelled tokens."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from transformers import ProcessorMixin

from specllava.distill.losses import IGNORE
from specllava.distill.pictures import written_picture
from specllava.distill.rows import Row
from specllava.models.tokens import apply_template
from specllava.models.tokens import beginning, bos_options
from specllava.models.families.interface import Size


@dataclass(frozen=True, slots=True)
class Encoded:
    """One encoded conversation for training.

    Args:
        ids: tokens, with the slots of each picture.
        labels: for each position the token to predict there, ``IGNORE`` outside of answers. It equals the token at that
            position, except after an answer whose template writes no end: there it is the end token.
        images: number of the row's pictures whose slots are included.
        cut: whether the conversation was longer.
    """

    ids: list[int]
    labels: list[int]
    images: int
    cut: bool


@dataclass(frozen=True)
class ChatEncoder:
    """Encoder of rows as tokens, the same as ``PromptBuilder.build`` gives for the same chat in decoding.

    Args:
        length: maximum tokens of a row, picture included.
        ends: tokens that end an answer in decoding; ``None`` for the tokenizer's own.
        slot: token of an image slot; ``None`` for the processor's image token.

    Raises:
        ValueError: the tokenizer does not give the offsets of its tokens in the text.
    """

    processor: ProcessorMixin
    length: int
    ends: frozenset[int] | None = None
    slot: int | None = None
    _pictures: dict[tuple[Size, bool], str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not self.processor.tokenizer.is_fast:
            raise ValueError("the target's tokenizer is a slow one, without the offsets of its tokens in the text")

    @property
    def end(self) -> int:
        """The end token of training answers: the tokenizer's, unless decoding continues after that one.

        Raises:
            ValueError: there is none.
        """
        own: int | None = self.processor.tokenizer.eos_token_id
        ends = self.ends or (frozenset() if own is None else frozenset({own}))
        if not ends:
            raise ValueError("nothing ends an answer: the target's files name no eos_token_id")
        return own if own is not None and own in ends else min(ends)

    @property
    def marker(self) -> int:
        """Token of an image slot."""
        own: int = self.processor.image_token_id
        return own if self.slot is None else self.slot

    def slots(self, size: Size, several: bool = False) -> int:
        """Return the number of image slots of a picture of this size, alone or one of several."""
        token: str = self.processor.tokenizer.convert_ids_to_tokens(self.marker)
        return self._picture(size, several).count(token)

    def __call__(self, row: Row, sizes: Sequence[Size]) -> Encoded:
        """Encode a row; one that is too long is cut at its end, and a picture is dropped if its slots would be split.

        Args:
            sizes: of the row's pictures.

        Raises:
            ValueError: the chat template does not write a chat as the beginning of its continuation.
        """
        several, tokenizer = len(sizes) > 1, self.processor.tokenizer
        text, answers = self._render(row, [self._picture(size, several) for size in sizes])
        text = beginning(tokenizer, text, self.length)  # of which as much is kept as of the whole
        tokens = tokenizer(text, return_offsets_mapping=True, **bos_options(tokenizer, text))
        ids, offsets = list(tokens["input_ids"]), tokens["offset_mapping"]
        labels = [IGNORE] * len(ids)
        end = self.end
        index = 0
        for (start, stop), ended in zip(answers, row.ended, strict=True):
            while index < len(offsets) and (offsets[index][0] < start or offsets[index][1] == 0):
                index += 1
            while index < len(offsets) and offsets[index][0] < stop:
                labels[index] = ids[index]
                index += 1
            if ended and stop <= len(text):
                if index == len(ids):
                    ids.append(end)
                    labels.append(end)
                labels[index] = end
        return self._cut(ids, labels, [self.slots(size, several) for size in sizes])

    def _picture(self, size: Size, several: bool) -> str:
        if (size, several) not in self._pictures:
            self._pictures[size, several] = written_picture(self.processor, size, several)
        return self._pictures[size, several]

    def _render(self, row: Row, pictures: Sequence[str]) -> tuple[str, list[tuple[int, int]]]:
        """Return the chat's text with its pictures, and the position of each answer in it."""
        chat = messages(row)
        text = self._text(chat, pictures)
        answers = []
        for index in range(1, len(chat), 2):
            before = self._text(chat[:index], pictures, add_generation_prompt=True)
            if not text.startswith(before):
                raise ValueError("the target's chat template writes a chat otherwise once it goes on: not supported")
            answer = chat[index]["content"][0]["text"]
            answers.append((len(before), text.index(answer, len(before)) + len(answer)))
        return text, answers

    def _text(self, chat: list[dict[str, Any]], pictures: Sequence[str], add_generation_prompt: bool = False) -> str:
        written = apply_template(self.processor, chat, "the target", add_generation_prompt)
        first, *rest = written.split(self.processor.image_token)
        # The beginning of a chat has fewer pictures than the whole.
        return str(first) + "".join(picture + text for picture, text in zip(pictures, rest, strict=False))

    def _cut(self, ids: list[int], labels: list[int], slots: Sequence[int]) -> Encoded:
        cut = len(ids) > self.length
        ids, labels = ids[: self.length], labels[: self.length]
        indices = [index for index, token in enumerate(ids) if token == self.marker]
        ends = list(accumulate(slots, initial=0))  # slots up to each picture
        images = bisect_right(ends, len(indices)) - 1
        begun = len(indices) - ends[images]
        if begun:
            ids, labels = ids[: indices[-begun]], labels[: indices[-begun]]
        return Encoded(ids, labels, images, cut)


def messages(row: Row) -> list[dict[str, Any]]:
    """Return a row as messages for a chat template, each question's pictures in front of it."""
    chat: list[dict[str, Any]] = []
    for number, text in enumerate(row.turns):
        pictures = [{"type": "image"}] * (row.images_per_question[number // 2] if number % 2 == 0 else 0)
        chat.append({"role": ("user", "assistant")[number % 2], "content": [*pictures, {"type": "text", "text": text}]})
    return chat
