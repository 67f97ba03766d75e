"""What the tests of chats share: a pair whose answers keep their tokens, turns held against fresh runs, counters."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

import pytest
import torch

from specllava.chat import Chat
from specllava.config import DecodingConfig
from specllava.models.drafts.draft_vlm import DraftLlava
from specllava.models.drafts.eagle import FeatureDraft
from specllava.pair import Pair
from specllava.trace import DecodeTrace
from support import models

SHORT = DecodingConfig(max_new_tokens=8, depth=3, nodes=6, min_log_prob=-50.0, entropy_threshold=1.0)
ALONE = replace(SHORT, drafter="none")
WORDS = ("Ġa", "Ġr", "Ġt", "ĠA", "Ġon", "Ġis")  # spelled and tokenised again, these stay the tokens that they were
QUESTIONS = ("What is this?", "Where?", "And now?")
Shown = tuple[int, ...]  # seeds of the pictures that come with a question


@cache
def talker() -> Pair:
    """A pair whose answers are words of :data:`WORDS`, and whose draft is its target."""
    model = copy.deepcopy(models.target())
    rows = torch.zeros_like(model.lm_head.weight.data)
    tokens = models.processor().tokenizer.convert_tokens_to_ids(list(WORDS))
    for one, other in zip(tokens[::2], tokens[1::2], strict=True):  # one of the two logits is above all others' zero
        rows[one], rows[other] = model.lm_head.weight.data[one], -model.lm_head.weight.data[one]
    model.lm_head.weight.data = rows
    model.generation_config.eos_token_id = []
    draft = DraftLlava(model.config).double().eval()
    draft.load_state_dict({name: weight for name, weight in model.state_dict().items() if "vision_tower" not in name})
    return Pair("talker", model, draft, models.processor(), "target", "draft")


@contextmanager
def columns_of(model: torch.nn.Module) -> Iterator[list[int]]:
    """Columns of each pass of a model, as its first layer is given them."""
    passes: list[int] = []
    layers = model.layers if isinstance(model, FeatureDraft) else model.get_decoder().layers
    count = lambda _, args, kwargs: passes.append([*args, *kwargs.values()][0].shape[1])  # noqa: E731
    hook = layers[0].register_forward_pre_hook(count, with_kwargs=True)
    try:
        yield passes
    finally:
        hook.remove()


@contextmanager
def failing_pass(chat: Chat, number: int) -> Iterator[None]:
    """Break the target's pass of that number off between two layers, and assert that this is what is raised."""
    passes: list[int] = []

    def tear(*_: object) -> None:
        passes.append(1)
        if len(passes) == number:
            raise RuntimeError("out of memory")

    hook = chat._pair.target.model.language_model.layers[1].register_forward_pre_hook(tear)
    try:
        with pytest.raises(RuntimeError, match="out of memory"):
            yield
    finally:
        hook.remove()


def ask(chat: Chat, text: str, shown: Shown = (), config: DecodingConfig = SHORT) -> DecodeTrace:
    """One turn, held against the target alone on the whole conversation, read afresh."""
    trace = chat.ask(text, [models.picture(seed) for seed in shown], config)
    check_last(chat)
    return trace


def check_last(chat: Chat) -> None:
    """The last turn says what the target alone says, as far as it got."""
    *before, last = chat.turns
    asked = chat.messages[: 2 * len(before) + 1]
    alone = replace(last.trace.config, drafter="none")
    fresh = chat._pair.generate(None, asked, alone)
    said = last.trace.token_ids
    assert said == fresh.token_ids[: len(said)]
    assert last.trace.finish_reason == "stopped" or len(said) == len(fresh.token_ids)
    assert (last.trace.turn, last.trace.prefill.prompt_tokens) == (len(before), fresh.prefill.prompt_tokens)
    assert (fresh.turn, fresh.prefill.reused_tokens) == (len(before), 0)
    assert (last.trace.image, last.trace.prompt) == (fresh.image, fresh.prompt)


def common(held: list[int], wanted: list[int]) -> int:
    return next((n for n, (a, b) in enumerate(zip(held, wanted, strict=False)) if a != b), min(len(held), len(wanted)))
