"""Drafting with a small vision-language model that shares the target's vision features."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from specllava.config import DecodingConfig
from specllava.growth import Guess, grow, growth_rule
from specllava.models.artefact import DraftLlava
from specllava.models.engine import Engine
from specllava.models.prompt import Prompt
from specllava.tree import DraftTree


class ModelSession:
    """Draft-model drafting for one answer.

    The draft's cache holds the context up to the last root and, behind it, the nodes of the growing tree in
    the order in which they were expanded. A leaf was never run through the draft: if it is accepted, it is
    fed together with the next root.
    """

    def __init__(self, model: DraftLlava, prompt: Prompt, capacity: int) -> None:
        self._engine = Engine(model, capacity)
        self._engine.prefill(prompt.input_ids, prompt.features)
        self._unfed: list[int] = []  # emitted tokens that the cache lacks
        self._tree = DraftTree.only_root(0)
        self._columns: list[int | None] = [None]  # cache column of each node of the last tree

    def propose(self, root: int, depth: int, config: DecodingConfig) -> DraftTree:
        rule = growth_rule(config)
        level = _Level(self._engine, [*self._unfed, root], rule.most)
        self._tree, kept = grow(root, level.expand, rule, config, depth)
        self._columns = [level.columns.get(node) for node in kept]
        return self._tree

    def keep(self, path: Sequence[int]) -> None:
        columns = [column for node in path if (column := self._columns[node]) is not None]
        if columns:  # the root was fed, and everything emitted before it
            self._engine.cache.keep(columns[0], [column - columns[0] for column in columns])
            self._unfed = []
        self._unfed += [self._tree.tokens[node] for node in path if self._columns[node] is None]


class _Level:
    """Expands the nodes of one tree, level by level, against the draft's cache."""

    def __init__(self, engine: Engine, context: Sequence[int], most: int) -> None:
        self._engine = engine
        self._context = context
        self._most = most
        self._lines: dict[int, list[int]] = {}  # columns of a node and its ancestors below the context
        self._position = 0
        self.columns: dict[int, int] = {}

    def expand(self, nodes: Sequence[int], tokens: Sequence[int], parents: Sequence[int]) -> list[Guess]:
        start = self._engine.cache.length
        if not self.columns:  # the root: it closes the context, whose columns everybody sees
            logits = self._engine.forward(self._context, last=1)
            self._position = start + len(self._context) - 1
            self.columns[0] = self._position
            self._lines[0] = []
            return guesses(logits, self._most)
        for place, (node, parent) in enumerate(zip(nodes, parents, strict=True), start=start):
            self.columns[node] = place
            self._lines[node] = [*self._lines[parent], place]
        visible = np.zeros((len(nodes), start + len(nodes)), dtype=np.bool_)
        visible[:, : self._position + 1] = True
        for row, node in enumerate(nodes):
            visible[row, self._lines[node]] = True
        positions = [self._position + len(self._lines[node]) for node in nodes]
        return guesses(self._engine.forward(tokens, visible, positions), self._most)


def guesses(logits: Tensor, most: int) -> list[Guess]:
    """The ``most`` likely next tokens of each row of ``logits [rows, vocab]``, and each row's entropy."""
    log_probs = torch.log_softmax(logits.float(), dim=-1)
    entropies = -(log_probs.exp() * log_probs).sum(-1)
    top = log_probs.topk(min(most, log_probs.shape[-1]), dim=-1)
    return [
        Guess(tokens, values, entropy)
        for tokens, values, entropy in zip(
            top.indices.tolist(), top.values.tolist(), entropies.tolist(), strict=True
        )
    ]
