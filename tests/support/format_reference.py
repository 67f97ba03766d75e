"""What drafts that read the target's states compute: plain and slow, the whole text at once, without any cache.

Written from the descriptions of EAGLE (arXiv 2401.15077), MSD (2505.14260), ViSpec (2509.15235), EAGLE-3 (2503.01840)
and of the speculators layout, not from the code under test. Everything is float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from specllava.engine.engine import Output
from specllava.pair import Pair
from specllava.spec_decode.growth import TreeBuilder
from specllava.spec_decode.tree_drafter import TreeDrafter
from specllava.trace import DecodeTrace
from support import formats
from support.family_proofs import own_inputs
from support.formats import HEADS, HIDDEN, INNER, SIZE, Layout

EPS, LONGEST = 1e-6, 1024


@dataclass(frozen=True)
class Text:
    """A text as its target knows it."""

    ids: Tensor  # [length]
    merged: Tensor  # token embeddings with those of pictures in their slots, [length, hidden]
    states: Tensor  # that the draft reads, side by side, [length, layers * hidden]
    slots: Tensor  # whether a picture is there, [length]
    rows: Tensor  # its target's positions in time, height and width, [3, length]


class Reference:
    """One draft for one target; weights by their plain names."""

    def __init__(self, layout: Layout, weights: dict[str, Tensor], target: PreTrainedModel) -> None:
        self.layout, self.flags = layout, layout.does
        self.weights = {name: one.double() if one.is_floating_point() else one for name, one in weights.items()}
        self.table = target.get_input_embeddings().weight.double()
        if layout.eagle3 and layout.rows == len(self.table):
            self.table = self.weights["embed_tokens.weight"]
        self.head = target.get_output_embeddings().weight.double()
        rope = {"rope_type": "default", "rope_theta": layout.theta}
        places = LlamaRotaryEmbedding(LlamaConfig(head_dim=SIZE, rope_parameters=rope))
        cosines, sines = places(torch.zeros(1, dtype=torch.float64), torch.arange(LONGEST)[None])
        self.cosines, self.sines = cosines[0], sines[0]  # [longest, size]
        self.turning = torch.tensor([self._row(pair) for pair in range(SIZE // 2)] * 2)  # of each number of a head

    def _row(self, pair: int) -> int:
        """Time, height or width: whose position rotates a pair of numbers."""
        section = self.layout.section
        if section is None:
            return 0
        if self.layout.interleaved:  # time, height, width in turn, as long as height and width have pairs left
            return pair % 3 if (pair // 3 < section[pair % 3]) else 0
        return 0 if pair < section[0] else 1 if pair < section[0] + section[1] else 2

    def logits(self, text: Text, known: int, guesses: Sequence[int] = ()) -> Tensor:
        """Next-token logits ``[vocab]`` behind a text and guesses, from the states of its first ``known`` tokens.

        Token ``known`` is the last one of the text: the root, whose own state nobody knows yet.
        """
        inputs, places, image = self._read(text, known)
        positions = torch.tensor(places).expand(3, -1) if self.layout.section is None else text.rows[:, places]
        state = self._layer(inputs, positions)
        for guess in guesses:
            embed = self.table[guess][None]
            inputs = torch.cat([inputs, self._fused(embed, state, image, guessed=True)])
            positions = torch.cat([positions, positions[:, -1:] + 1], 1)
            state = self._layer(inputs, positions)
        return self._scored(state[0])

    def _read(self, text: Text, known: int) -> tuple[Tensor, list[int], Tensor]:
        """Entries of tokens 1 to ``known``, their places, and ViSpec's vector of the last picture."""
        ids, slots = text.ids[1 : known + 1], text.slots[1 : known + 1].tolist()
        embeds = self.table[ids] if self.layout.eagle3 else text.merged[1 : known + 1]
        image = torch.zeros(self.layout.width, dtype=torch.float64)
        entries, positions, place = [], [], 0
        while place < len(ids):
            if not slots[place] or self.layout.format != "vispec":
                entry = self._fused(embeds[place][None], text.states[place][None], image)
                if slots[place] and self.layout.format == "msd":
                    entry = embeds[place][None]
                entries.append(entry)
                positions.append(place)
                place += 1
                continue
            begin = place
            while place < len(ids) and slots[place]:
                place += 1
            adapted = self._adapted(embeds[begin:place])
            image = adapted[-1]
            for number in range(self.layout.queries - 1):
                entries.append(adapted[number][None])
                positions.append(place - (self.layout.queries - 1) + number)
        return torch.cat(entries), positions, image

    def _fused(self, embeds: Tensor, states: Tensor, image: Tensor, guessed: bool = False) -> Tensor:
        if self.layout.eagle3:
            return torch.cat([embeds, states if guessed else self._linear("fc", states)], -1)
        if self.layout.format == "vispec":
            states = self._linear("img_fc", torch.cat([states, image.expand(len(states), -1)], -1))
        return self._linear("fc", torch.cat([embeds, states], -1))

    def _layer(self, inputs: Tensor, positions: Tensor) -> Tensor:
        """State behind the last entry, which recurs, ``[1, hidden]``."""
        if self.layout.eagle3:
            embeds, states = inputs.chunk(2, -1)
            normed = self._norm("layers.0.hidden_norm", states)
            read = torch.cat([self._norm("layers.0.input_layernorm", embeds), normed], -1)
            residual = normed if self.flags.get("norm_before_residual") else states
        else:
            residual = inputs
            read = self._norm("layers.0.input_layernorm", inputs) if self.layout.input_norm else inputs
        states = residual[-1:] + self._attention(read, positions)
        normed = self._norm("layers.0.post_attention_layernorm", states)
        gate, up = (self._linear(f"layers.0.mlp.{name}_proj", normed) for name in ("gate", "up"))
        assert gate.shape[-1] == INNER
        states = states + self._linear("layers.0.mlp.down_proj", gate * torch.sigmoid(gate) * up)
        return self._norm("norm", states) if self.flags.get("norm_output") else states

    def _attention(self, read: Tensor, positions: Tensor) -> Tensor:
        """What the last entry gathers from all, ``[1, hidden]``."""
        queries, keys, values = (
            self._linear(f"layers.0.self_attn.{name}_proj", of).view(len(of), -1, SIZE).transpose(0, 1)
            for name, of in (("q", read[-1:]), ("k", read), ("v", read))
        )  # [heads, entries, size]
        if self.layout.qk_norm:
            queries = self._norm("layers.0.self_attn.q_norm", queries)
            keys = self._norm("layers.0.self_attn.k_norm", keys)
        queries, keys = self._turned(queries, positions[:, -1:]), self._turned(keys, positions)
        groups = HEADS // len(keys)
        keys, values = keys.repeat_interleave(groups, 0), values.repeat_interleave(groups, 0)
        seen = (queries @ keys.transpose(1, 2) / math.sqrt(SIZE)).softmax(-1) @ values
        return self._linear("layers.0.self_attn.o_proj", seen.transpose(0, 1).reshape(1, -1))

    def _turned(self, parts: Tensor, positions: Tensor) -> Tensor:
        at = positions[self.turning].T, torch.arange(SIZE)  # [entries, size]
        turned = torch.cat([-parts[..., SIZE // 2 :], parts[..., : SIZE // 2]], -1)
        return parts * self.cosines[at] + turned * self.sines[at]

    def _adapted(self, embeds: Tensor) -> Tensor:
        """ViSpec's queries over the embeddings of one picture, ``[queries, hidden]``."""
        keys, values = (self._linear(f"imadpt.{name}_proj", embeds).view(-1, HEADS, SIZE) for name in "kv")
        scores = torch.einsum("qhs,nhs->hqn", self.weights["imadpt.q"], keys) / math.sqrt(SIZE)
        seen = torch.einsum("hqn,nhs->qhs", scores.softmax(-1), values)
        return self._linear("imadpt.o_proj", seen.reshape(-1, HIDDEN))

    def _scored(self, state: Tensor) -> Tensor:
        if not self.layout.eagle3:
            return self.head @ state
        normed = state if self.flags.get("norm_output") else self._norm("norm", state)
        if not self.layout.own_head:
            return self.head @ normed
        own = self.weights["lm_head.weight"] @ normed
        logits = torch.full((len(self.head),), -torch.inf, dtype=torch.float64)
        offsets = self.weights.get("d2t", torch.zeros(len(own), dtype=torch.int64)).tolist()
        for number, offset in enumerate(offsets):
            logits[number + offset] = own[number]
        return logits

    def _linear(self, name: str, states: Tensor) -> Tensor:
        found = states @ self.weights[f"{name}.weight"].T
        return found + self.weights[f"{name}.bias"] if f"{name}.bias" in self.weights else found

    def _norm(self, name: str, states: Tensor) -> Tensor:
        return self.weights[f"{name}.weight"] * states / (states.square().mean(-1, keepdim=True) + EPS).sqrt()


@dataclass(frozen=True)
class Scored:
    """The scores of one node: the tokens from the root to it, and the logits behind it."""

    path: tuple[int, ...]
    logits: Tensor


Trees = list[list[Scored]]


@contextmanager
def scores() -> Iterator[Trees]:
    """What drafts score, one list for each tree."""
    trees: Trees = []
    plain = TreeDrafter._guesses
    paths: dict[int, tuple[int, ...]] = {}

    def noting(self: TreeDrafter, builder: TreeBuilder, level: Sequence[int], output: Output, *others: Any) -> Any:
        if 0 in level:
            trees.append([])
            paths.clear()
        for node, row in zip(level, output.logits, strict=True):
            paths[node] = (*paths.get(builder.parents[node], ()), builder.tokens[node])
            trees[-1].append(Scored(paths[node], row.clone()))
        return plain(self, builder, level, output, *others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TreeDrafter, "_guesses", noting)
        yield trees


@torch.inference_mode()
def text_of(pair: Pair, layout: Layout, number: int, answer: Sequence[int]) -> Text:
    """Chat ``number`` with its answer, from transformers' own processor and one forward pass."""
    read = own_inputs(pair, number)
    ids = torch.cat([read.pop("input_ids"), torch.tensor([list(answer)], dtype=torch.int64)], 1)
    slots = torch.eq(ids, pair.target.config.image_token_id)
    read.pop("attention_mask", None)
    if "mm_token_type_ids" in read:
        read["mm_token_type_ids"] = slots.int()
    hidden = pair.target(input_ids=ids, **read, use_cache=False, output_hidden_states=True).hidden_states
    states = torch.cat([hidden[layer][0] for layer in layout.states], -1)
    rows = torch.arange(ids.shape[1]).expand(3, -1)
    grids = {name: read[name] for name in ("image_grid_thw", "mm_token_type_ids") if name in read}
    if len(grids) == 2:
        rows = pair.target.model.get_rope_index(ids, **grids)[0][:, 0]
    return Text(ids[0], hidden[0][0], states, slots[0], rows)


@torch.inference_mode()
def check_answer(
    pair: Pair, layout: Layout, directory: Path, number: int, trace: DecodeTrace, trees: Trees
) -> None:
    """Every score of all trees of an answer is the reference's, of that node's path alone."""
    reference = Reference(layout, formats.read_weights(directory, layout), pair.target)
    text = text_of(pair, layout, number, trace.token_ids)
    root = trace.prefill.prompt_tokens
    assert len(trees) >= len(trace.steps) - 1  # where one token is left, nothing is drafted
    for step, tree in zip(trace.steps, trees, strict=False):
        assert tree
        for node in tree:
            assert node.path[0] == int(text.ids[root])
            wanted = reference.logits(text, root, node.path[1:])
            torch.testing.assert_close(node.logits, wanted, rtol=1e-9, atol=1e-9)
        root += len(step.emitted)
