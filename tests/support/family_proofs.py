"""What every family is held to on any checkpoint: what it says is its own ``generate``."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.shared.random_settings import random_settings
from benchmarks.transformers_lanes import TRANSFORMERS, transformers_lane
from specllava.chat import Chat
from specllava.config import RULE_CHOICES, DecodingConfig
from specllava.engine.decoders import Batch
from specllava.engine.engine import Engine
from specllava.models.drafts.draft_vlm import save
from specllava.models.drafts.eagle import fresh_feature_draft
from specllava.models.families.family import family_of
from specllava.models.options import DraftFormat
from specllava.pair import Pair
from specllava.prompt import Prompt
from specllava.spec_decode.loop import Lane
from specllava.tree import DraftTree
from support import checkpoints, models
from support.chats import check_last
from support.family_kinds import KINDS, WORDS, FamilyName

FAST = DecodingConfig(max_new_tokens=8, depth=3, nodes=6, width=2, min_log_prob=-50.0, entropy_threshold=1.0)
ALONE = replace(FAST, drafter="none")


def said(pair: Pair, prompt: Prompt, config: DecodingConfig) -> tuple[tuple[int, ...], int]:
    """Token ids of an answer, and the target's passes."""
    trace = pair.run(Lane("x", config, prompt))
    return trace.token_ids, len(trace.steps)


def own_inputs(pair: Pair, number: int) -> dict[str, Tensor]:
    """What the family's processor makes of a chat, without the code under test."""
    chat = [
        {
            "role": one["role"],
            "content": [{"type": "text", "text": one["content"]}]
            if isinstance(one["content"], str)
            else one["content"],
        }
        for one in checkpoints.messages(number)
    ]
    made = pair.processor.apply_chat_template(
        chat, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
    )
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
        prompt = pair.prompt(None, checkpoints.messages(number))
        assert torch.equal(prompt.input_ids, inputs["input_ids"])
        assert said(pair, prompt, ALONE)[0] == tuple(answer[0, prompt.length :].tolist())


@torch.inference_mode()
def check_settings(pair: Pair, numbers: Iterable[int]) -> None:
    """Settings of ``generation_config.json`` are followed by both lanes as by the family's own ``generate``."""
    rng = random.Random(pair.family.name)
    for number in numbers:
        target, inputs = copy.copy(pair.target), own_inputs(pair, number)
        target.generation_config = copy.deepcopy(pair.target.generation_config)
        vocabulary = target.config.get_text_config().vocab_size
        settings = random_settings(rng, vocabulary, ALONE.max_new_tokens, sampled=False)
        target.generation_config.update(**settings | {"repetition_penalty": 1.3, "min_length": 0, "min_new_tokens": 0})
        whole = target.generate(
            **inputs, do_sample=False, max_new_tokens=ALONE.max_new_tokens, tokenizer=pair.processor.tokenizer
        )
        asked, prompt = replace(pair, target=target), pair.prompt(None, checkpoints.messages(number))
        wanted = tuple(whole[0, prompt.length :].tolist())
        for config in (ALONE, FAST, replace(FAST, drafter="prompt-lookup")):
            assert said(asked, prompt, config)[0] == wanted, settings


def check_lane(pair: Pair, numbers: Iterable[int]) -> None:
    """The benchmark hands ``generate`` what the prompt was built of."""
    for number in numbers:
        prompt = pair.prompt(None, checkpoints.messages(number))
        assert transformers_lane(pair, TRANSFORMERS, ALONE)(prompt).token_ids == said(pair, prompt, ALONE)[0]


def check_speculation(drafted: Callable[[int], Pair], numbers: Iterable[int]) -> int:
    """No rule, drafter or temperature changes a token; returns the passes that guesses saved.

    Args:
        drafted: pair for each chat.
    """
    saved = 0
    rules = [*RULE_CHOICES]
    for number in numbers:
        pair = drafted(number)
        prompt = pair.prompt(None, checkpoints.messages(number))
        for turn, heat in enumerate(({}, {"temperature": 0.8, "top_p": 0.9, "seed": number})):
            plain, passes = said(pair, prompt, replace(ALONE, **heat))
            if turn == number % 2:
                assert said(pair, prompt, replace(FAST, drafter="prompt-lookup", **heat))[0] == plain
            for rule in rules[(number + turn) % 3 :: 3]:
                fast, fewer = said(pair, prompt, replace(FAST, rule=rule, **heat))
                assert fast == plain
                saved += passes - fewer
    return saved


def check_state_drafts(pair: Pair, directory: Path) -> None:
    """Fresh drafts that read states change no token; their image entries lie where the target's slots do."""
    kinds: tuple[DraftFormat, ...] = ("eagle", "eagle3")
    for kind in kinds:
        save(fresh_feature_draft(pair.target, kind), None, directory / kind)
        drafted = pair.with_draft(directory / kind)
        prompt = drafted.prompt(None, checkpoints.messages(4))
        assert said(drafted, prompt, FAST)[0] == said(drafted, prompt, ALONE)[0]


@torch.inference_mode()
def check_tree_pass(pair: Pair, family: FamilyName, prompts: Iterable[Prompt]) -> None:
    """The logits of a tree pass are those of each path alone, read without any cache."""
    for seed, prompt in enumerate(prompts, 1):
        plain = models.random_tree(seed)
        words = [len(KINDS[family].first) + token % WORDS for token in plain.tokens]
        tree = DraftTree(tuple(words), plain.parents, plain.log_probs, plain.entropies)
        reader, engine = (Engine.of(pair.target, prompt.length + room) for room in (0, len(tree)))
        reader.prefill(prompt.input_ids, prompt.features, prompt.image_keys)
        engine.copy_from(reader)  # as where a chat outgrows its cache
        logits = engine.forward(Batch.of_tree(tree, prompt.length)).logits
        for leaf in (node for node, children in enumerate(tree.children()) if not children):
            path = tree.path(leaf)
            ids = torch.cat([prompt.input_ids, torch.tensor([[words[node] for node in path]])], dim=1)
            named = family_of(pair.target.config).prompt_arguments(pair.target.config, ids)
            whole = pair.target(input_ids=ids, **prompt.image_inputs, **named, use_cache=False).logits[0, -len(path) :]
            torch.testing.assert_close(logits[list(path)], whole, rtol=0, atol=1e-9)


def check_chat(pair: Pair) -> None:
    """A chat that keeps its caches says what a fresh reading says.

    No picture at first, then some in several turns, some of them again, and an earlier turn edited.
    """
    chat = Chat(pair)
    reused = 0
    for question, shown in (("What?", ()), ("What is this?", (1, 2)), ("Where?", ()), ("And here?", (2, 3))):
        trace = chat.ask(question, [checkpoints.picture(number) for number in shown], FAST)
        assert trace.prefill.reused_tokens >= reused
        reused = trace.prefill.reused_tokens
        check_last(chat)
    assert reused > 0
    chat.ask("Why?", None, FAST, 2)
    check_last(chat)


@torch.inference_mode()
def check_rest(pair: Pair) -> None:
    """Reading the rest of a prompt is reading the whole: a cache is cut between pictures, never within one.

    What is decoded next goes on behind this text, and nothing of the one before it is left.
    """

    def prompt(*shown: int, text: str = "What?") -> Prompt:
        parts = [{"type": "image", "image": checkpoints.picture(number)} for number in shown]
        return pair.prompt(None, [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}])

    first, used = prompt(1, 2, 4), Engine.of(pair.target, 1000, (1, -1))
    others = prompt(1, 2, 6), prompt(1, 5, 4), prompt(2, 1), prompt(), prompt(1, 2, 4, text="Where?"), prompt(1, 2)
    for second in others:
        fresh = Engine.of(pair.target, 1000, (1, -1))
        used.prefill(first.input_ids, first.features, first.image_keys)
        reading, whole = (
            engine.prefill(second.input_ids, second.features, second.image_keys) for engine in (used, fresh)
        )
        torch.testing.assert_close(reading.states, whole.states, rtol=0, atol=1e-9)
        after, behind = (engine.forward(Batch((20, 30, 40))) for engine in (used, fresh))
        for ours, theirs in ((reading, whole), (after, behind)):
            torch.testing.assert_close(ours.logits, theirs.logits, rtol=0, atol=1e-9)
    assert reading.reused > 0
