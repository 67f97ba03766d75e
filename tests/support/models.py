"""Tiny random models, prompts and hypothesis strategies. Everything is cached and must not be changed in place."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Literal
from unittest.mock import patch

import torch
from hypothesis import strategies as st
from PIL import Image
from transformers import LlavaForConditionalGeneration, LlavaProcessor

from recipes.toy.build import build_processor, special_ids
from recipes.toy.recipe import ToyRecipe
from specllava.config import RULES, DecodingConfig
from specllava.engine.pool import KVCaches
from specllava.models.drafts.draft_vlm import DraftLlava
from specllava.pair import Pair
from specllava.prompt import Prompt
from specllava.spec_decode.loop import Event, Lane, RaceEvent, stream
from specllava.trace import DecodeTrace
from specllava.tree import ROOT_PARENT, DraftTree

DraftKind = Literal["bad", "mixed", "perfect"]
KINDS: tuple[DraftKind, ...] = ("bad", "mixed", "perfect")
RECIPE = replace(ToyRecipe.tiny(), vocabulary=280)
SEEDS = (0, 1)
LONGEST = 24  # tokens that a reference answer has
NOISE = 0.02  # on every weight of the mixed draft: it then gets about one more token right per step

CHATS: tuple[tuple[int | None, tuple[str, ...]], ...] = (  # seed of the picture, then user and assistant in turn
    (0, ("Describe this.",)),
    (1, ("How many cats?",)),
    (2, ("What?", "A red bus.", "Where is it?")),
    (None, ("Tell me a story.",)),
)


@cache
def processor() -> LlavaProcessor:
    """Processor whose tokens do not depend on the words of the toy world: tests name some of them."""
    sentences = [
        f"USER: {text} ASSISTANT: A red bus is on the left, a cat on the right." for _, texts in CHATS for text in texts
    ]
    with patch("recipes.toy.build.corpus_text", lambda count: sentences):
        return build_processor(RECIPE)


@cache
@torch.inference_mode(False)  # others learn on them, whoever asked first
def target(seed: int = 0) -> LlavaForConditionalGeneration:
    """A random target in float64 whose answers vary; it never says the image marker."""
    config = RECIPE.llava_config(RECIPE.target_layers, RECIPE.target_hidden, special_ids(processor()))
    return _random(LlavaForConditionalGeneration, config, seed)


@cache
@torch.inference_mode(False)
def draft(kind: DraftKind, seed: int = 0) -> DraftLlava:
    """Other weights and another size, the target's weights with noise, or the target's own."""
    if kind == "bad":
        config = RECIPE.llava_config(RECIPE.draft_layers, RECIPE.draft_hidden, special_ids(processor()))
        return _random(DraftLlava, config, 1000 + seed)
    model = DraftLlava(target(seed).config).double().eval()
    own = target(seed).state_dict()
    model.load_state_dict({name: own[name] for name in model.state_dict()})
    if kind == "mixed":
        source = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for weight in model.parameters():
                weight += NOISE * torch.randn(weight.shape, generator=source, dtype=weight.dtype)
    return model


def pair(kind: DraftKind | None, seed: int = 0, eos: int | list[int] | None = None) -> Pair:
    """A tiny pair; ``eos`` ends an answer. ``None`` as ``kind``: no draft."""
    speaker = copy.copy(target(seed))  # shares the weights
    speaker.generation_config = copy.deepcopy(speaker.generation_config)
    speaker.generation_config.eos_token_id = [] if eos is None else eos
    small = None if kind is None else draft(kind, seed)
    return Pair("tiny", speaker, small, processor(), f"target {seed}", f"{kind} draft")


def picture(seed: int) -> Image.Image:
    pixels = torch.randint(256, (40, 48, 3), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    return Image.fromarray(pixels.numpy())


def messages(number: int) -> list[dict[str, str]]:
    """Chat ``number`` as the project takes it."""
    roles = ("user", "assistant")
    return [{"role": roles[turn % 2], "content": text} for turn, text in enumerate(CHATS[number][1])]


@cache
def prompt(number: int, seed: int = 0) -> Prompt:
    seen = CHATS[number][0]
    return pair(None, seed).prompt(None if seen is None else picture(seen), messages(number))


@cache
def plain_inputs(number: int) -> dict[str, Any]:
    """Chat ``number`` as transformers' own ``generate`` takes it, made without the code under test."""
    seen, texts = CHATS[number]
    chat = []
    for turn, text in enumerate(texts):
        image = [{"type": "image"}] if turn == 0 and seen is not None else []
        chat.append({"role": ("user", "assistant")[turn % 2], "content": [*image, {"type": "text", "text": text}]})
    spelled = processor().apply_chat_template(chat, add_generation_prompt=True)
    inputs = processor()(images=None if seen is None else picture(seen), text=spelled, return_tensors="pt")
    return {name: value.double() if value.is_floating_point() else value for name, value in inputs.items()}


@cache
@torch.inference_mode()
def reference(number: int, seed: int = 0) -> tuple[int, ...]:
    """The greedy answer by whole forward passes without any cache: what decoding means."""
    inputs = plain_inputs(number)
    ids, pixels = inputs["input_ids"], inputs.get("pixel_values")
    answer: list[int] = []
    for _ in range(LONGEST):
        logits = target(seed)(input_ids=ids, pixel_values=pixels, use_cache=False).logits[0, -1]
        answer.append(int(logits.argmax()))
        ids = torch.cat([ids, torch.tensor([[answer[-1]]])], dim=1)
    return tuple(answer)


def expected(number: int, seed: int, limit: int, eos: Sequence[int] = ()) -> tuple[int, ...]:
    """The reference answer up to its end or the limit."""
    answer = reference(number, seed)[:limit]
    ends = [position for position, token in enumerate(answer) if token in eos]
    return answer[: ends[0] + 1] if ends else answer


def events(asked: Pair, prompt: Prompt, config: DecodingConfig, caches: KVCaches | None = None) -> Generator[Event]:
    """One run, step by step."""
    return stream(asked.request(Lane("speculative", config, prompt), caches))


def collected(asked: Pair, lane: Lane, items: Iterable[Event]) -> DecodeTrace:
    """The trace of the events of one lane."""
    return asked.collect(RaceEvent(lane, item, 0.0) for item in items)[lane.name]


def decode(asked: Pair, prompt: Prompt, config: DecodingConfig) -> DecodeTrace:
    """One whole run."""
    return asked.run(Lane("speculative", config, prompt))


@st.composite
def trees(draw: st.DrawFn, vocabulary: int = 6) -> DraftTree:
    """Any tree of at most 12 guesses whose siblings differ, as a draft's best guesses do."""
    tokens, parents = [draw(st.integers(0, vocabulary - 1))], [ROOT_PARENT]
    families: list[set[int]] = [set()]
    for _ in range(draw(st.integers(0, 12))):
        parent = draw(st.integers(0, len(tokens) - 1))
        token = draw(st.integers(0, vocabulary - 1))
        if token not in families[parent]:
            families[parent].add(token)
            families.append(set())
            tokens.append(token)
            parents.append(parent)
    guesses = len(tokens) - 1
    log_probs = draw(st.lists(st.floats(-5, 0), min_size=guesses, max_size=guesses))
    entropies = draw(st.lists(st.none() | st.floats(0, 6), min_size=guesses + 1, max_size=guesses + 1))
    return DraftTree(tuple(tokens), tuple(parents), (0.0, *log_probs), tuple(entropies))


def configs() -> st.SearchStrategy[DecodingConfig]:
    """Small trees of every shape, short answers."""
    return st.builds(
        DecodingConfig,
        rule=st.sampled_from(RULES),
        max_new_tokens=st.integers(1, LONGEST),
        depth=st.integers(1, 6),
        width=st.integers(1, 4),
        nodes=st.integers(1, 12),
        max_branches=st.integers(1, 5),
        entropy_threshold=st.floats(0, 3),
        min_log_prob=st.sampled_from((-50.0, -50.0, -5.0, -1.0)),
    )


def random_tree(seed: int, guesses: int = 10) -> DraftTree:
    """A tree over the tiny models' whole vocabulary, for tests of tensors rather than of shapes."""
    source = torch.Generator().manual_seed(seed)
    parents = [ROOT_PARENT, *(int(torch.randint(node, (), generator=source)) for node in range(1, guesses + 1))]
    tokens = torch.randperm(RECIPE.vocabulary, generator=source)[: guesses + 1].tolist()
    return DraftTree(tuple(tokens), tuple(parents), (0.0,) + (-math.log(2),) * guesses, (None,) * (guesses + 1))


def seeded(build: Callable[[Any], Any], config: Any, seed: int) -> Any:
    """The model that ``build`` makes; its first weights are drawn with ``seed`` and nothing else is."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build(config)


def _random(build: Callable[[Any], Any], config: Any, seed: int) -> Any:
    source = torch.Generator().manual_seed(seed)
    model = seeded(build, config, seed).double().eval()  # its vectors, as the tower's class embedding, stay as drawn
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                std = 1.0 if name == "lm_head.weight" else 0.25
                weight.copy_(std * torch.randn(weight.shape, generator=source, dtype=weight.dtype))
        model.lm_head.weight[model.config.image_token_id] = 0.0
    return model
