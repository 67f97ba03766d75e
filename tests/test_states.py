"""Hidden states that a drafter asks for are transformers' own, of each branch alone; positions follow the family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from support import models
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from specllava.core.config import DecodingConfig
from specllava.core.tree import DraftTree
from specllava.drafters.drafter import DraftContext, Drafter, DraftSession
from specllava.lane import Lane
from specllava.models.families.llava import Llava
from specllava.pair import Pair
from specllava.runtime.engine import Engine
from specllava.runtime.passes import PassInput

CAPACITY, PROMPT = 64, 11
LAYERS = (-1, 0, 2, 1)  # out of order; the last one is normed
SIZES: dict[str, Any] = {
    "vocab_size": models.RECIPE.vocabulary, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": CAPACITY,
}  # fmt: skip
KINDS = {"llama": (LlamaForCausalLM, LlamaConfig), "qwen2": (Qwen2ForCausalLM, Qwen2Config)}


def decoder(kind: str, seed: int) -> PreTrainedModel:
    build, config = KINDS[kind]
    model = models.seeded(build, config(**SIZES), seed).double().eval()
    for name, weight in model.named_parameters():
        if weight.dim() == 1 and "norm" in name:
            weight.data *= torch.linspace(0.5, 2.0, len(weight))  # a gain that tells normed states from others
    return model


def plain_states(model: PreTrainedModel, ids: Sequence[int], **arguments: Any) -> Tensor:
    """``[tokens, layers * hidden]`` by a whole forward pass without a cache."""
    hidden = model(torch.tensor([ids]), use_cache=False, output_hidden_states=True, **arguments).hidden_states
    return torch.cat([hidden[layer][0] for layer in LAYERS], dim=-1)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_states_of_passes_are_those_of_each_branch_alone(kind: str, seed: int):
    model, ids = decoder(kind, seed), list(range(3, 3 + PROMPT))
    engine = Engine(model, CAPACITY, LAYERS)
    read = engine.prefill(torch.tensor([ids]), None)
    torch.testing.assert_close(read.states, plain_states(model, ids), rtol=0, atol=1e-9)
    tree = models.random_tree(seed)
    states = engine.forward(PassInput.of_tree(tree, PROMPT)).states
    assert states is not None and states.shape == (len(tree), len(LAYERS) * 32)
    for node in range(len(tree)):
        alone = plain_states(model, [*ids, *(tree.tokens[step] for step in tree.path(node))])
        torch.testing.assert_close(states[node], alone[-1], rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_a_reused_beginning_keeps_its_rows(kind: str):
    """A drafter that reads states needs those of the whole text, however little of it was read anew."""
    model, ids = decoder(kind, 0), list(range(3, 3 + PROMPT))
    engine = Engine(model, CAPACITY, LAYERS)
    engine.prefill(torch.tensor([ids]), None)
    longer = [*ids[:7], 90, 91, 92]
    again = engine.prefill(torch.tensor([longer]), None)
    assert again.reused == 7
    torch.testing.assert_close(again.states, plain_states(model, longer), rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_without_layers_nothing_is_gathered(kind: str, monkeypatch: pytest.MonkeyPatch):
    engine = Engine(decoder(kind, 0), CAPACITY)
    asked, plain = [], engine.decoder.forward

    def recording(*args: Any, **arguments: Any) -> Any:
        asked.append(arguments.get("output_hidden_states"))
        return plain(*args, **arguments)

    monkeypatch.setattr(engine.decoder, "forward", recording)
    assert engine.prefill(torch.tensor([[3, 4, 5]]), None).states is None
    assert engine.forward(PassInput.of_tree(models.random_tree(0), 3)).states is None
    assert asked and not any(asked)


@dataclass
class Kept:
    """What a session was given."""

    tokens: list[int]
    rows: list[Tensor]
    layers: tuple[int, ...]


class Recording(Drafter):
    """Propose the branches of a random tree with the target's own answer on one of them; note all states."""

    def __init__(self, answer: Sequence[int], layers: tuple[int, ...] = LAYERS) -> None:
        self.answer, self.state_layers, self.kept = list(answer), layers, Kept([], [], layers)

    def open(self, context: DraftContext) -> DraftSession:
        self.prefill = context.prefill
        return _RecordingSession(self)


class _RecordingSession(DraftSession):
    def __init__(self, drafter: Recording) -> None:
        self._drafter = drafter

    def propose(self, root: int, depth: int) -> DraftTree:
        drafter = self._drafter
        known = len(drafter.kept.tokens) + 1
        right = drafter.answer[known : known + min(depth, 3)]
        wrong = [(token + 1) % 200 for token in right]  # beside each right one, and before it in the tree
        tokens, parents, parent = [root], [-1], 0
        for bad, good in zip(wrong, right, strict=True):
            tokens += [bad, good]
            parents += [parent, parent]
            parent = len(tokens) - 1
        count = len(tokens)
        self.tree = DraftTree(tuple(tokens), tuple(parents), (0.0,) + (-1.0,) * (count - 1), (None,) * count)
        return self.tree

    def keep(self, path: Sequence[int], states: Tensor | None = None) -> None:
        kept = self._drafter.kept
        kept.tokens += [self.tree.tokens[node] for node in path]
        if self._drafter.state_layers:
            assert states is not None and len(states) == len(path)
            kept.rows.append(states)
        else:
            assert states is None


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("seed", models.SEEDS)
def test_a_drafter_is_given_the_states_of_the_accepted_branch_in_order(seed: int, temperature: float):
    """Prompt and kept rows together are what one forward pass over prompt and answer gives."""
    pair, prompt = models.pair(None, seed), models.prompt(2, seed)
    config = DecodingConfig(max_new_tokens=16, temperature=temperature, seed=seed)
    alone = pair.run(Lane("alone", replace(config, drafter="none"), prompt))
    drafter = Recording(alone.token_ids)
    trace = pair.run(Lane("own", config, prompt, drafter=drafter))
    assert trace.token_ids == alone.token_ids
    assert max(len(step.verification.accepted) for step in trace.steps) == 3
    inputs = models.plain_inputs(2)
    ids = [*inputs["input_ids"][0].tolist(), *drafter.kept.tokens]
    with torch.inference_mode():
        layers = drafter.state_layers
        hidden = pair.target(
            input_ids=torch.tensor([ids]), pixel_values=inputs["pixel_values"], use_cache=False,
            output_hidden_states=True,
        ).hidden_states  # fmt: skip
    wanted = torch.cat([hidden[layer][0] for layer in layers], dim=-1)
    rows = torch.cat([drafter.prefill.states, *drafter.kept.rows])
    torch.testing.assert_close(rows, wanted, rtol=0, atol=1e-9)


def test_a_drafter_that_asks_for_no_states_is_given_none():
    drafter = Recording(models.reference(0), layers=())
    models.pair(None).run(Lane("own", DecodingConfig(max_new_tokens=6), models.prompt(0), drafter=drafter))
    assert drafter.prefill.states is None


class Shifted(Llava):
    """A family whose pictures take fewer or more positions than slots, as those with two-dimensional positions do."""

    def __init__(self, offset: int, rows: int) -> None:
        self.offset, self.position_rows = offset, rows

    def prefill_positions(self, model: PreTrainedModel, input_ids: Tensor, features: Any) -> Tensor:
        places = torch.arange(input_ids.shape[1])[None] + self.offset
        return places if self.position_rows == 1 else places.expand(self.position_rows, 1, -1)


@pytest.mark.parametrize("offset", [-3, 5])
@pytest.mark.parametrize("rows", [1, 3])
@torch.inference_mode()
def test_passes_go_on_with_the_offset_of_the_family(rows: int, offset: int, monkeypatch: pytest.MonkeyPatch):
    """Position ids of every pass are places in the text plus the offset, in as many rows as the family has."""
    engine = Engine(decoder("qwen2", 0), CAPACITY)
    engine._family = Shifted(offset, rows)
    ids: list[Tensor] = []
    plain = engine.decoder.rotary_emb.forward

    def recording(states: Tensor, position_ids: Tensor) -> Any:
        ids.append(position_ids)
        return plain(states, position_ids if rows == 1 else position_ids[0])

    monkeypatch.setattr(engine.decoder.rotary_emb, "forward", recording)
    engine.prefill(torch.arange(3, 14)[None], None)
    tree = models.random_tree(1)
    engine.forward(PassInput.of_tree(tree, PROMPT))
    engine.keep(PROMPT, [0])
    engine.forward(PassInput([9]))
    texts = [range(PROMPT), [PROMPT + depth for depth in tree.depths()], [PROMPT + 1]]
    for found, text in zip(ids, texts, strict=True):
        assert found.shape == ((1, len(text)) if rows == 1 else (3, 1, len(text)))
        assert {tuple(row) for row in found.reshape(rows, -1).tolist()} == {tuple(place + offset for place in text)}


@torch.inference_mode()
def test_a_llama_rotates_by_shifted_positions_too():
    model, ids = decoder("llama", 0), list(range(3, 3 + PROMPT))
    engine = Engine(model, CAPACITY, LAYERS)
    engine._family = Shifted(5, 1)
    read = engine.prefill(torch.tensor([[*ids[:4]]]), None)
    more = engine.forward(PassInput(ids[4:])).states
    gap = torch.tensor([[*range(5, 5 + PROMPT)]])
    assert read.states is not None and more is not None
    wanted = plain_states(model, ids, position_ids=gap)
    torch.testing.assert_close(torch.cat([read.states, more]), wanted, rtol=0, atol=1e-9)


def test_hidden_states_leave_the_answer_as_it_is(tiny: Pair):
    trace = tiny.run(Lane("own", DecodingConfig(max_new_tokens=12), models.prompt(1), drafter=Recording([7] * 40)))
    assert trace.token_ids == models.expected(1, 0, 12)
