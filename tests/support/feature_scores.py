"""What drafts that read the target's states score in whole answers, held against their plain references."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specllava.engine.engine import Output
from specllava.pair import Pair
from specllava.spec_decode.growth import TreeBuilder
from specllava.spec_decode.tree_drafter import TreeDrafter
from specllava.trace import DecodeTrace
from support import feature_checkpoints
from support.feature_checkpoints import Layout
from support.feature_reference import Reference, Text


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
def text_of(pair: Pair, layout: Layout, messages: list[dict[str, Any]], answer: Sequence[int]) -> Text:
    """A prompt with its answer, from transformers' own processor and one forward pass."""
    chat = []
    for message in messages:
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        chat.append({"role": message["role"], "content": parts})
    inputs = pair.processor.apply_chat_template(
        chat, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
    )
    ids = torch.cat([inputs.pop("input_ids"), torch.tensor([list(answer)], dtype=torch.int64)], 1)
    config = pair.target.config
    slots = torch.eq(ids, config.image_token_id)
    read = {name: one.double() if one.is_floating_point() else one for name, one in inputs.items()}
    read.pop("attention_mask", None)
    if "mm_token_type_ids" in read:
        read["mm_token_type_ids"] = slots.int()
    output = pair.target(input_ids=ids, **read, use_cache=False, output_hidden_states=True)
    hidden = output.hidden_states
    states = torch.cat([hidden[layer][0] for layer in layout.states], -1)
    return Text(ids[0], hidden[0][0], states, slots[0], _rows(pair, ids, read))


def _rows(pair: Pair, ids: Tensor, read: dict[str, Tensor]) -> Tensor:
    """Positions that the target's own code gives tokens in time, height and width, ``[3, length]``."""
    grids = "image_grid_thw", "mm_token_type_ids"
    named = {name: read[name] for name in grids if name in read}
    if len(named) < 2:
        return torch.arange(ids.shape[1]).expand(3, -1)
    return pair.target.model.get_rope_index(ids, **named)[0][:, 0]


@torch.inference_mode()
def check(reference: Reference, text: Text, root: int, tree: Sequence[Scored]) -> None:
    """Every score of a tree below token number ``root`` of a text is the reference's, of that node's path alone."""
    assert tree
    for node in tree:
        assert node.path[0] == int(text.ids[root])
        wanted = reference.logits(text, root, node.path[1:])
        torch.testing.assert_close(node.logits, wanted, rtol=1e-9, atol=1e-9)


def reference_of(pair: Pair, layout: Layout, directory: Path) -> Reference:
    return Reference(layout, feature_checkpoints.read_weights(directory, layout), pair.target)


def check_answer(reference: Reference, text: Text, trace: DecodeTrace, trees: Trees) -> None:
    """All trees of an answer, whose prompt and tokens are ``text``."""
    at = trace.prefill.prompt_tokens
    assert len(trees) >= len(trace.steps) - 1  # where one token is left, nothing is drafted
    for step, tree in zip(trace.steps, trees, strict=False):
        check(reference, text, at, tree)
        at += len(step.emitted)
