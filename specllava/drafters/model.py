"""Drafting with a small vision-language model that shares the target's vision features."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from specllava.config import DecodingConfig
from specllava.costs import Experience
from specllava.growth import Guess, grow
from specllava.models.engine import Engine
from specllava.models.prompt import Prompt
from specllava.rules import growth_rule
from specllava.sampling import Chance, draw_children, warp
from specllava.tree import DraftTree, Pruned

Guesser = Callable[[Tensor, int, Sequence[int]], list[Guess]]  # logits, how many guesses, of which nodes


class ModelSession:
    """Draft-model drafting for one answer; an engine that serves answer after answer reads only what is new.

    The draft's cache holds the context up to the last root and, behind it, the nodes of the growing tree in
    the order in which they were expanded. A leaf was never run through the draft: if it is accepted, it is
    fed together with the next root.
    """

    def __init__(
        self,
        engine: Engine,
        prompt: Prompt,
        config: DecodingConfig,
        chance: Chance,
        known: Experience | None = None,
    ) -> None:
        self._guess = _Drawing(config, chance) if config.children == "drawn" else guesses
        self._rule = growth_rule(config, known)
        self._engine = engine
        read = prompt.for_draft or prompt
        self._engine.prefill(read.input_ids, read.features, read.pictures)
        self.drawn: Tensor | None = None
        self.pruned: tuple[Pruned, ...] = ()
        self._unfed: list[int] = []  # emitted tokens that the cache lacks
        self._tree = DraftTree.only_root(0)
        self._columns: list[int | None] = [None]  # cache column of each node of the last tree

    def propose(self, root: int, depth: int) -> DraftTree:
        level = _Level(self._engine, [*self._unfed, root], self._rule.most, self._guess)
        grown = grow(root, level.expand, self._rule, depth)
        self._tree, self.pruned = grown.tree, grown.pruned
        self.drawn = self._guess.of(grown.names) if isinstance(self._guess, _Drawing) else None
        self._columns = [level.columns.get(name) for name in grown.names]
        return self._tree

    def keep(self, path: Sequence[int]) -> None:
        self._rule.learn(self._tree, path)
        columns = [column for node in path if (column := self._columns[node]) is not None]
        if columns:  # the root was fed, and everything emitted before it
            self._engine.cache.keep(columns[0], [column - columns[0] for column in columns])
            self._unfed = []
        self._unfed += [self._tree.tokens[node] for node in path if self._columns[node] is None]


class _Level:
    """Expands the nodes of one tree, level by level, against the draft's cache."""

    def __init__(self, engine: Engine, context: Sequence[int], most: int, guess: Guesser) -> None:
        self._engine = engine
        self._context = context
        self._most = most
        self._guess = guess
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
            return self._guess(logits, self._most, nodes)
        for place, (node, parent) in enumerate(zip(nodes, parents, strict=True), start=start):
            self.columns[node] = place
            self._lines[node] = [*self._lines[parent], place]
        if len(nodes) == 1 and len(self._lines[nodes[0]]) == start - self._position:
            return self._guess(self._engine.forward(tokens), self._most, nodes)  # no branch yet: it sees all there is
        visible = np.zeros((len(nodes), start + len(nodes)), dtype=np.bool_)
        visible[:, : self._position + 1] = True
        for row, node in enumerate(nodes):
            visible[row, self._lines[node]] = True
        positions = [self._position + len(self._lines[node]) for node in nodes]
        return self._guess(self._engine.forward(tokens, visible, positions), self._most, nodes)


class _Drawing:
    """Draws guesses from the draft's warped distributions, and keeps these for one tree."""

    def __init__(self, config: DecodingConfig, chance: Chance) -> None:
        self._config, self._chance = config, chance
        self._rows: dict[int, Tensor] = {}

    def __call__(self, logits: Tensor, most: int, nodes: Sequence[int]) -> list[Guess]:
        probs = warp(logits, self._config.temperature, self._config.top_p, self._config.top_k)
        if 0 in nodes:
            self._rows = {}
        found = []
        for node, row, entropy in zip(nodes, probs, torch.special.entr(probs).sum(-1).tolist(), strict=True):
            self._rows[node] = row
            tokens = draw_children(row, most, self._chance)
            found.append(Guess(tokens, row[tokens].log().tolist(), entropy))
        return found

    def of(self, nodes: Sequence[int]) -> Tensor | None:
        """The distributions of these nodes' children, ``[nodes, vocab]``; zeros where none were drawn."""
        if not self._rows:
            return None
        nothing = torch.zeros_like(self._rows[0])
        return torch.stack([self._rows.get(node, nothing) for node in nodes])


def guesses(logits: Tensor, most: int, nodes: Sequence[int] = ()) -> list[Guess]:
    """The ``most`` likely next tokens of each row of ``logits [rows, vocab]``, and each row's entropy in nats."""
    log_probs = torch.log_softmax(logits.float(), dim=-1)
    entropies = -(log_probs.exp() * log_probs).sum(-1)
    top = log_probs.topk(min(most, log_probs.shape[-1]), dim=-1)
    return [
        Guess(tokens, values, entropy)
        for tokens, values, entropy in zip(top.indices.tolist(), top.values.tolist(), entropies.tolist(), strict=True)
    ]
