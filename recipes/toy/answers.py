"""Greedy answers of a target in float32, many at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from tqdm.auto import tqdm

from recipes.toy.corpus import messages
from recipes.toy.draw import draw_scene
from recipes.toy.language import QuestionAnswer
from recipes.toy.scene import Scene

PICTURE_SIZE = 256
BATCH = 48
TOKENS = 160  # of an answer, at most


@dataclass(frozen=True, slots=True)
class Asked:
    """A question about a scene, after the turns of a dialogue."""

    scene: Scene
    question: str
    history: tuple[QuestionAnswer, ...] = ()


@torch.inference_mode()
def answer_all(model: Any, processor: Any, asked: Sequence[Asked], title: str) -> list[str]:
    """Answer every question greedily, in batches of prompts of equal length, so that nothing is padded."""
    prompts = [prompt_ids(processor, one) for one in asked]
    order = sorted(range(len(asked)), key=lambda number: len(prompts[number]))
    texts = [""] * len(asked)
    bar = tqdm(total=len(asked), desc=title, mininterval=5.0)
    for length, same in groupby(order, key=lambda number: len(prompts[number])):
        for batch in torch.tensor(list(same)).split(BATCH):
            numbers = batch.tolist()
            pixels = torch.cat([_pixels(processor.image_processor, asked[number].scene) for number in numbers])
            ids = torch.tensor([prompts[number] for number in numbers])
            generated = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), pixel_values=pixels,
                                       do_sample=False, max_new_tokens=TOKENS)  # fmt: skip
            for number, tokens in zip(numbers, generated[:, length:], strict=True):
                texts[number] = processor.tokenizer.decode(tokens, skip_special_tokens=True).strip()
            bar.update(len(numbers))
    bar.close()
    return texts


def prompt_ids(processor: Any, asked: Asked) -> list[int]:
    """Return the tokens of a prompt, with every image slot."""
    chat = messages((*asked.history, QuestionAnswer(asked.question, "")))[:-1]
    text = processor.apply_chat_template(chat, add_generation_prompt=True)
    crop = processor.image_processor.crop_size
    slots = (crop["height"] // processor.patch_size) * (crop["width"] // processor.patch_size)
    ids: list[int] = processor.tokenizer(text.replace("<image>", "<image>" * slots))["input_ids"]
    return ids


@lru_cache(maxsize=2048)
def _pixels(images: Any, scene: Scene) -> Tensor:
    pixels: Tensor = images(draw_scene(scene, PICTURE_SIZE), return_tensors="pt")["pixel_values"]
    return pixels
