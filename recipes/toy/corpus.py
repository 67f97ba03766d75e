"""Scenes and conversations about them as token batches.

Sample number ``i`` of a corpus is a pure function of ``i``; batches group samples of similar length so
that little is padded.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from recipes.toy.dialogue import ask, converse, describe_as_typed, discuss, look_ups
from recipes.toy.draw import draw_scene
from recipes.toy.hints import Hints, first_tokens
from recipes.toy.language import QuestionAnswer, describe, polish, where
from recipes.toy.parsed_text import PLACE_WORDS, TIME_WORDS, WEATHER_WORDS
from recipes.toy.phrases import COLUMN_WORDS, NUMBERS, ROW_WORDS, SIZE_WORDS
from recipes.toy.scene import COLOURS, KINDS, SIZES, Scene, sample_scene
from specllava.distill.data import pad_texts
from specllava.distill.losses import IGNORE

GROUP = 16  # batches sorted by length together
Questioner = Callable[[Scene, random.Random], tuple[QuestionAnswer, ...]]
PICTURE, PADDING = 0, -1  # segments of a packed row; its conversations are numbered from 1
# What pads a packed row.
FILLERS: Final = {"labels": IGNORE, "cells": IGNORE, "words": IGNORE, "position_ids": 0, "segments": PADDING}
LENGTH_STEP = 64  # padded lengths are multiples of it, so that few shapes occur


def conversation(index: int) -> tuple[Scene, tuple[QuestionAnswer, ...]]:
    """Return scene and conversation number ``index``."""
    scene = sample_scene(index)
    return scene, converse(scene, random.Random(f"specllava talk train {index}"))


def list_objects(scene: Scene, rng: random.Random) -> tuple[QuestionAnswer, ...]:
    """List the objects and their positions, in the words of descriptions, and in their order or a random one.

    For aligning a fresh language model with the vision tower: in free conversation few words need the picture. In a
    random order, only the position determines which object is next, so the model learns which object is at a named
    position. In order, the picture determines which position is next, so the model learns to name no position twice
    and none that is empty.
    """
    ordered = rng.random() < 0.5
    question = "Name every place and what is there" + (", from left to right." if ordered else ".")
    things = scene.things if ordered else rng.sample(scene.things, len(scene.things))
    listed = [
        f"{where(thing, rng)}: a {rng.choice(SIZE_WORDS[thing.size])} {thing.colour} {thing.kind}" for thing in things
    ]
    return (QuestionAnswer(question, polish("; ".join(listed))),)


def description(scene: Scene, rng: random.Random) -> tuple[QuestionAnswer, ...]:
    """Return one description."""
    return (describe(scene, rng),)


LOOKING = (list_objects, list_objects, list_objects, list_objects)
TALKING = (list_objects, converse, description, description)
DRAFTING = (*TALKING, ask, ask, discuss)
ASKING = (describe_as_typed, discuss, discuss, *(ask,) * 8, look_ups)


def content_ids(tokenizer: Any) -> list[int]:
    """Return the tokens that begin a word determined by the picture: objects, positions, counts, and the scene."""
    spots = (word for words in (*COLUMN_WORDS.values(), *ROW_WORDS.values()) for word in words)
    scene = (*PLACE_WORDS, *WEATHER_WORDS, *TIME_WORDS, *NUMBERS)
    words = (*KINDS, *COLOURS, *spots, *scene, *SIZES, "Yes", "No", "yes")
    return sorted(set(first_tokens(tokenizer, words).values()))


def messages(turns: tuple[QuestionAnswer, ...]) -> list[dict[str, Any]]:
    """Return a conversation as chat messages; the image belongs to the first question."""
    chat: list[dict[str, Any]] = []
    for number, turn in enumerate(turns):
        image = [{"type": "image"}] if number == 0 else []
        chat.append({"role": "user", "content": [*image, {"type": "text", "text": turn.question}]})
        chat.append({"role": "assistant", "content": [{"type": "text", "text": turn.answer}]})
    return chat


def corpus_text(count: int) -> Iterator[str]:
    """Yield the tokenizer's training text: questions and answers of the first ``count`` conversations."""
    for index in range(count):
        for turn in conversation(index)[1]:
            yield f"USER: {turn.question} ASSISTANT: {turn.answer}"


class ChatBatches:
    """Batches by number: ``pixel_values [b, 3, h, w]`` of pictures of ``image_sizes [b, 2]``, ``input_ids`` and
    ``labels [b, length]``.

    Only answers (and the token that ends them) carry a label. Padding is on the right, where causal attention
    does not reach, so that no mask is needed.

    Args:
        first: number that is added to each batch's.
    """

    def __init__(self, processor: Any, batch: int, image_tokens: int, first: int = 0) -> None:
        self.processor, self.batch, self.image_tokens, self.first = processor, batch, image_tokens, first

    def __call__(self, number: int) -> dict[str, Tensor]:
        group, member = divmod(self.first + number, GROUP)
        samples = self._make_group(group)[member]
        pad = self.processor.tokenizer.pad_token_id
        images = self.processor.image_processor
        pixels = draw_pixels(images, [scene for scene, _, _ in samples])
        sizes = torch.full((len(samples), 2), images.crop_size["height"])
        texts = pad_texts([(ids, labels) for _, ids, labels in samples], pad, LENGTH_STEP)
        return {"pixel_values": pixels, "image_sizes": sizes, **texts}

    @lru_cache(maxsize=2)  # noqa: B019 - keeps two groups and their corpus alive
    def _make_group(self, group: int) -> list[list[tuple[Scene, list[int], list[int]]]]:
        size, tokenizer = GROUP * self.batch, self.processor.tokenizer
        talks = map(conversation, range(group * size, (group + 1) * size))
        samples = [(scene, *encode_chat(tokenizer, turns, self.image_tokens)) for scene, turns in talks]
        samples.sort(key=lambda sample: len(sample[1]))
        rows = [samples[start : start + self.batch] for start in range(0, size, self.batch)]
        random.Random(group).shuffle(rows)
        return rows


class PackedBatches:
    """Batches by number of rows with several conversations about one picture, which is encoded once.

    ``pixel_values [b, 3, h, w]``, ``patch_names [b, patches, NAMES]``, and ``input_ids``, ``labels``, ``cells``,
    ``words`` (that end there in questions), ``position_ids``, ``segments`` ``[b, length]``. A conversation attends to
    the picture and itself, at the positions that it would have alone.
    """

    def __init__(
        self, processor: Any, batch: int, image_tokens: int, talks: Sequence[Questioner], first: int = 0
    ) -> None:
        self.processor, self.batch, self.image_tokens, self.talks = processor, batch, image_tokens, talks
        self.first = first
        self.hints = Hints(processor.tokenizer, image_tokens)

    def __call__(self, number: int) -> dict[str, Tensor]:
        start = self.first + number * self.batch
        scenes = [sample_scene(index) for index in range(start, start + self.batch)]
        rows = [self.row(scene, index) for index, scene in enumerate(scenes, start)]
        fillers = {"input_ids": self.processor.tokenizer.pad_token_id, **FILLERS}
        batch = {
            name: pad_sequence([torch.tensor(row[name]) for row in rows], batch_first=True, padding_value=filler)
            for name, filler in fillers.items()
        }
        batch["pixel_values"] = draw_pixels(self.processor.image_processor, scenes)
        batch["patch_names"] = torch.stack([self.hints.name_patches(scene) for scene in scenes])
        return batch

    def row(self, scene: Scene, index: int) -> dict[str, list[int]]:
        """Return a row: the picture's prefix once, then the tokens that each conversation adds to it."""
        tokenizer = self.processor.tokenizer
        image = tokenizer.convert_tokens_to_ids("<image>")
        row: dict[str, list[int]] = {name: [] for name in ("input_ids", *FILLERS)}
        for segment, talk in enumerate(self.talks, 1):
            turns = talk(scene, random.Random(f"specllava packed {index} {segment}"))
            ids, labels = encode_chat(tokenizer, turns, self.image_tokens)
            shared = ids.index(image) + self.image_tokens + 1  # with the line break after the picture
            start = shared if row["input_ids"] else 0
            row["input_ids"] += ids[start:]
            row["labels"] += labels[start:]
            row["cells"] += self.hints.cells(scene, ids, labels)[start:]
            words = self.hints.words_of_questions(ids, labels)
            row["words"] += [words[index][1] if index in words else IGNORE for index in range(start, len(ids))]
            row["position_ids"] += range(start, len(ids))
            row["segments"] += [PICTURE] * (shared - start) + [segment] * (len(ids) - shared)
        return row


def packed_mask(segments: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the mask ``[b, 1, length, length]``, added to scores: earlier tokens of the conversation, the picture."""
    length = segments.shape[-1]
    earlier = torch.ones(length, length, dtype=torch.bool, device=segments.device).tril()
    keys = segments[:, None, :]  # [b, 1, length]
    own = keys.eq(segments[:, :, None])
    seen = (earlier & (own | keys.eq(PICTURE)))[:, None]
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, torch.finfo(dtype).min)


def draw_pixels(images: Any, scenes: Sequence[Scene]) -> Tensor:
    """Draw scenes as an image processor gives them to a model, ``[scenes, 3, height, width]``."""
    size = images.crop_size["height"]
    pixels: Tensor = images([draw_scene(scene, size) for scene in scenes], return_tensors="pt")["pixel_values"]
    return pixels


def encode_chat(tokenizer: Any, turns: tuple[QuestionAnswer, ...], image_tokens: int) -> tuple[list[int], list[int]]:
    """Encode a conversation about a picture as ids and labels; the ids equal those of the chat template (a test)."""
    ids = [tokenizer.bos_token_id]
    labels = [IGNORE]
    for number, turn in enumerate(turns):
        image = "<image>" * image_tokens + "\n" if number == 0 else ""
        question = tokenizer.encode(f"USER: {image}{turn.question} ASSISTANT:", add_special_tokens=False)
        answer = [*tokenizer.encode(f" {turn.answer}", add_special_tokens=False), tokenizer.eos_token_id]
        ids += question + answer
        labels += [IGNORE] * len(question) + answer
    return ids, labels
