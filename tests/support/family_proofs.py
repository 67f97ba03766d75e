"""What every family is held to on any checkpoint: what it says is its own ``generate``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from specllava.config import RULE_CHOICES, DecodingConfig
from specllava.pair import Pair
from specllava.prompt import Prompt
from specllava.spec_decode.loop import Lane
from support import checkpoints

FAST = DecodingConfig(max_new_tokens=8, depth=3, nodes=6, width=2, min_log_prob=-50.0, entropy_threshold=1.0)
ALONE = replace(FAST, drafter="none")


def said(pair: Pair, prompt: Prompt, config: DecodingConfig) -> tuple[tuple[int, ...], int]:
    """Token ids of an answer, and the target's passes."""
    trace = pair.run(Lane("x", config, prompt))
    return trace.token_ids, len(trace.steps)


def chat_of(pair: Pair, number: int) -> list[dict[str, Any]]:
    """Chat ``number``, in texts alone for a language model."""
    chat = checkpoints.messages(number)
    if pair.family.sees:
        return chat
    texts = [one["content"] if isinstance(one["content"], str) else one["content"][-1]["text"] for one in chat]
    return [one | {"content": text} for one, text in zip(chat, texts, strict=True)]


def own_inputs(pair: Pair, number: int) -> dict[str, Tensor]:
    """What the family's processor makes of a chat, without the code under test."""
    chat, reader = chat_of(pair, number), pair.processor if pair.family.sees else pair.processor.tokenizer
    if pair.family.sees:
        chat = [one if isinstance(one["content"], list) else
                one | {"content": [{"type": "text", "text": one["content"]}]} for one in chat]  # fmt: skip
    made = reader.apply_chat_template(
        chat, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
    )
    if not pair.family.sees:
        made = {"input_ids": made["input_ids"], "attention_mask": torch.ones_like(made["input_ids"])}
    return {name: one.to(pair.target.dtype) if one.is_floating_point() else one for name, one in made.items()}


@torch.inference_mode()
def check_generate(pair: Pair, numbers: Iterable[int]) -> None:
    """Target-only decoding is the family's own ``generate``, token by token; nothing that it leaves behind is read."""
    made = {number: own_inputs(pair, number) for number in numbers}
    wanted = [
        pair.target.generate(**inputs, do_sample=False, max_new_tokens=ALONE.max_new_tokens)
        for inputs in made.values()
    ]
    for (number, inputs), answer in zip(made.items(), wanted, strict=True):
        prompt = pair.prompt(None, chat_of(pair, number))
        assert torch.equal(prompt.input_ids, inputs["input_ids"])
        assert said(pair, prompt, ALONE)[0] == tuple(answer[0, prompt.length :].tolist())


def check_speculation(drafted: Callable[[int], Pair], numbers: Iterable[int]) -> int:
    """No rule, drafter or temperature changes a token; returns the passes that guesses saved.

    Args:
        drafted: pair for each chat.
    """
    saved, rules = 0, [*RULE_CHOICES]
    for number in numbers:
        pair = drafted(number)
        prompt = pair.prompt(None, chat_of(pair, number))
        for turn, heat in enumerate(({}, {"temperature": 0.8, "top_p": 0.9, "seed": number})):
            plain, passes = said(pair, prompt, replace(ALONE, **heat))
            if turn == number % 2:
                assert said(pair, prompt, replace(FAST, drafter="prompt-lookup", **heat))[0] == plain
            for rule in rules[(number + turn) % 3 :: 3]:
                fast, fewer = said(pair, prompt, replace(FAST, rule=rule, **heat))
                assert fast == plain
                saved += passes - fewer
    return saved
