"""Batches of packed rows: a picture once, then several conversations about it, each at its own positions."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

from recipes.smol.answers import Answer
from recipes.smol.plain import PlainText
from recipes.smol.questions import fact
from recipes.toy.corpus import draw_pixels, list_objects
from recipes.toy.language import QuestionAnswer, caption
from recipes.toy.packing import PADDING, PICTURE
from recipes.toy.scene import sample_scene
from specllava.distill.data import lru_get, pad_texts
from specllava.distill.losses import IGNORE

Turns = tuple[QuestionAnswer, ...]
GROUP: Final = 16  # batches whose rows are sorted by length together
FACTS: Final = 3  # questions of fact of a picture, and as many in one dialogue


@dataclass(slots=True)
class _Row:
    """Tokens of a row under construction, with their labels, positions and conversations."""

    input_ids: list[int]
    labels: list[int] = field(default_factory=list)
    own: list[int] = field(default_factory=list)  # labels of the language model's own answers alone
    position_ids: list[int] = field(default_factory=list)
    segments: list[int] = field(default_factory=list)

    def extend(self, ids: Sequence[int], labels: Sequence[int], own: bool, start: int, segment: int) -> None:
        self.input_ids += ids
        self.labels += labels
        self.own += labels if own else [IGNORE] * len(ids)
        self.position_ids += range(start, start + len(ids))
        self.segments += [segment] * len(ids)


class SmolBatches:
    """Batches by number: ``pixel_values [b, 3, h, w]``; ``input_ids``, ``labels``, ``own``, ``position_ids`` and
    ``segments`` ``[b, length]``; the texts that the language model reads in the picture's stead, with their labels,
    ``texts`` and ``text_labels`` ``[own answers, length]``; plain English, ``plain [2, 256]``.

    Args:
        answers: by scene; what is not there is not asked.
    """

    def __init__(self, processor: Any, batch: int, answers: Sequence[Answer] = (), first: int = 0) -> None:
        self.processor, self.batch, self.first = processor, batch, first
        self.answers: Mapping[int, list[Answer]] = defaultdict(list)
        for answer in answers:
            self.answers[answer.scene].append(answer)
        self.scenes = sorted(self.answers)
        self.plain = PlainText(processor.tokenizer)
        self._groups: dict[int, list[tuple[list[int], list[_Row]]]] = {}

    def __call__(self, number: int) -> dict[str, Tensor]:
        group, member = divmod(self.first + number, GROUP)
        numbers, rows = lru_get(self._groups, group, self._make_group)[member]
        pad = self.processor.tokenizer.pad_token_id
        fillers = {"input_ids": pad, "labels": IGNORE, "own": IGNORE, "position_ids": 0, "segments": PADDING}
        batch = {name: _pad([getattr(row, name) for row in rows], filler) for name, filler in fillers.items()}
        read = [self._encode(own.instruction, own.answer) for scene in numbers for own in self.answers[scene]]
        if read:
            batch["texts"], batch["text_labels"] = pad_texts(read, pad).values()
            batch["plain"] = self.plain(self.first + number)
        batch["pixel_values"] = draw_pixels(self.processor.image_processor, [sample_scene(each) for each in numbers])
        return batch

    def _make_group(self, group: int) -> list[tuple[list[int], list[_Row]]]:
        """Make the batches of a group: rows of one batch have about the same length."""
        size = GROUP * self.batch
        rows = [(self._scene(index), index) for index in range(group * size, (group + 1) * size)]
        made = [(scene, self._row(scene, index)) for scene, index in rows]
        made.sort(key=lambda one: len(one[1].input_ids))
        batches = [made[start : start + self.batch] for start in range(0, size, self.batch)]
        random.Random(group).shuffle(batches)
        return [([scene for scene, _ in batch], [row for _, row in batch]) for batch in batches]

    def _scene(self, index: int) -> int:
        """Return the scene of a row: those with answers in an order drawn for each pass over them, else any."""
        if not self.scenes:
            return index
        epoch, place = divmod(index, len(self.scenes))
        return random.Random(epoch).sample(self.scenes, len(self.scenes))[place]

    def _row(self, number: int, index: int) -> _Row:
        scene, rng = sample_scene(number), random.Random(f"smol row {index}")
        talks: list[tuple[Turns, bool]] = [
            ((QuestionAnswer(own.question, own.answer),), True) for own in self.answers[number]
        ]
        talks += [((fact(scene, rng),), False) for _ in range(FACTS)]
        talks += [(tuple(fact(scene, rng) for _ in range(FACTS)), False), (list_objects(scene, rng), False)]
        talks += [] if self.answers[number] else [((caption(scene, rng),), False), (list_objects(scene, rng), False)]
        shared = self.processor.apply_chat_template([_user("", picture=True)], tokenize=False)
        shared = shared.removesuffix("<|im_end|>\n").replace("<image>", "<image>" * self.image_tokens)
        row = _Row([])
        prefix = self.processor.tokenizer.encode(shared, add_special_tokens=False)
        row.extend(prefix, [IGNORE] * len(prefix), False, 0, PICTURE)
        for segment, (turns, own) in enumerate(talks, 1):
            ids, labels = self._talk(turns)
            row.extend(ids, labels, own, len(prefix), segment)
        return row

    @property
    def image_tokens(self) -> int:
        images = self.processor.image_processor
        return int((images.crop_size["height"] // self.processor.patch_size) ** 2)

    def _talk(self, turns: Turns) -> tuple[list[int], list[int]]:
        """Encode turns that begin after the picture of the first question."""
        ids: list[int] = []
        labels: list[int] = []
        for number, turn in enumerate(turns):
            begin = "" if number == 0 else "\n<|im_start|>user\n"
            question = self._tokens(f"{begin}{turn.question}<|im_end|>\n<|im_start|>assistant\n")
            answer_ids = self._tokens(f"{turn.answer}<|im_end|>")
            ids += question + answer_ids
            labels += [IGNORE] * len(question) + answer_ids
        return ids, labels

    def _encode(self, text: str, answer: str) -> tuple[list[int], list[int]]:
        """Encode a chat of one turn without a picture."""
        question = self._tokens(
            self.processor.apply_chat_template([_user(text)], tokenize=False, add_generation_prompt=True)
        )
        answer_ids = self._tokens(f"{answer}<|im_end|>")
        return question + answer_ids, [IGNORE] * len(question) + answer_ids

    def _tokens(self, text: str) -> list[int]:
        ids: list[int] = self.processor.tokenizer.encode(text, add_special_tokens=False)
        return ids


def _user(text: str, picture: bool = False) -> dict[str, Any]:
    image = [{"type": "image"}] if picture else []
    return {"role": "user", "content": [*image, {"type": "text", "text": text}]}


def _pad(rows: Sequence[Sequence[int]], filler: int) -> Tensor:
    length = max(map(len, rows))
    return torch.tensor([[*row, *[filler] * (length - len(row))] for row in rows])
