"""The pair that ships: the draft never changes a token, whatever is asked of whatever picture.

A sample of 110 cases; with ``SPECLLAVA_TESTS_ALL=1`` in the environment all 370.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from PIL import Image
from support.amount import sample

from recipes.toy.dialogue import SUGGESTIONS
from recipes.toy.draw import draw_scene
from recipes.toy.phrases import DETAIL_PROMPTS
from recipes.toy.scene import SPLITS, sample_scene
from specllava.core.config import RULES, DecodingConfig
from specllava.core.metrics import Comparison, compare
from specllava.lane import lane_of
from specllava.models.loading.load_options import DTypeName
from specllava.pair import Pair

Load = Callable[[DTypeName], Pair]
QUESTIONS = (*SUGGESTIONS, *DETAIL_PROMPTS)
BLOCK = 12
SHARE = 4  # cases that ask the same of the same picture, so that the target answers it once for all of them
MOST_NEW_TOKENS = 20


def asked(pair: Pair, rng: random.Random) -> tuple[Image.Image, str]:
    """A picture of a scene from either split, in the size that the tower reads, and a question."""
    side = pair.target.config.vision_config.image_size
    return draw_scene(sample_scene(rng.randrange(100_000), rng.choice(SPLITS)), side), rng.choice(QUESTIONS)


def any_tree(rng: random.Random, config: DecodingConfig) -> DecodingConfig:
    return replace(
        config,
        drafter="model",
        rule=rng.choice(RULES),
        depth=rng.randint(1, 10),
        width=rng.randint(1, 6),
        nodes=rng.randint(1, 40),
        max_branches=rng.randint(1, 6),
        entropy_threshold=rng.uniform(0, 2),
        min_log_prob=rng.choice((-50.0, -8.0, -5.0, -2.0)),
    )


def outcomes(pair: Pair, block: int, temperatures: tuple[float, ...] = (0.0,)) -> Iterator[tuple[str, Comparison]]:
    """The cases of a block: what comparing both lanes gives."""
    for first in range(block * BLOCK, (block + 1) * BLOCK, SHARE):
        rng = random.Random(f"shipped pair {first}")
        alone = DecodingConfig(
            drafter="none", temperature=rng.choice(temperatures), seed=rng.randrange(1000),
            max_new_tokens=MOST_NEW_TOKENS,
        )  # fmt: skip
        prompt = pair.prompt(*asked(pair, rng), MOST_NEW_TOKENS)
        plain = pair.run(lane_of(alone, prompt))
        for number in range(first, first + SHARE):
            config = any_tree(rng, alone)
            yield f"case {number}: {config}", compare(plain, pair.run(lane_of(config, prompt)))


@pytest.mark.parametrize("block", sample(range(7), 1))
def test_in_float64_the_answers_are_identical(shipped: Load, block: int):
    """Greedy ones, and with the same seed drawn ones too."""
    for case, verdict in outcomes(shipped("float64"), block, (0.0, 0.0, 0.8)):
        assert verdict.identical, case


@pytest.mark.parametrize("block", sample(range(10, 20), 1))
def test_in_float32_the_answers_part_at_near_ties_only(shipped: Load, block: int):
    for case, verdict in outcomes(shipped("float32"), block):
        assert verdict.identical or verdict.near_tie, f"{case}: {verdict}"


@pytest.mark.parametrize("block", sample(range(3), 1))
def test_target_only_is_what_transformers_generates(shipped: Load, block: int):
    """Inputs and loop are transformers' own; only pictures and questions are ours."""
    pair = shipped("float32")
    processor, model = pair.processor, pair.target
    for number in range(block * 10, (block + 1) * 10):
        picture, question = asked(pair, random.Random(f"generate {number}"))
        content = [{"type": "image"}, {"type": "text", "text": question}]
        text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
        inputs = processor(images=picture, text=text, return_tensors="pt")
        with torch.inference_mode():
            output = model.generate(**inputs, do_sample=False, max_new_tokens=MOST_NEW_TOKENS)
        generated = tuple(output[0, inputs["input_ids"].shape[1] :].tolist())
        config = DecodingConfig(drafter="none", max_new_tokens=MOST_NEW_TOKENS)
        assert pair.run(lane_of(config, pair.prompt(picture, question))).token_ids == generated, f"case {number}"
