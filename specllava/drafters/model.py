"""Drafting with a small vision-language model that shares the target's vision features."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from specllava.config import DecodingConfig
from specllava.drafters.drafter import DraftContext, Drafter, DraftSession
from specllava.growth.grow import GrowthLimits, grow
from specllava.growth.rule import GrowthRule
from specllava.growth.tree_builder import TopTokens
from specllava.models.memory_estimate import draft_columns, max_expansions
from specllava.runtime.engine import Engine
from specllava.runtime.passes import PassInput
from specllava.runtime.prompt import Prompt
from specllava.tree import DraftTree
from specllava.verification.sampling import RandomSource, draw_children, warp
from specllava.verification.verifier import check_finite

TopTokensOf = Callable[[Tensor, int, Sequence[int]], list[TopTokens]]  # of logits, how many, after which nodes


class ModelDrafter(Drafter):
    """Drafter that grows trees with the pair's draft model."""

    name = "model"
    needs_draft = grows = True

    def open(self, context: DraftContext) -> DraftSession:
        if context.draft is None or context.rule is None:
            raise ValueError("the model drafter needs a draft model and a tree rule")
        return ModelSession(
            context.caches.engine(context.draft, _columns(context)),
            context.prompt,
            context.config,
            context.random,
            context.rule,
        )


def _columns(context: DraftContext) -> int:
    """Count the columns of the draft's KV cache; a tower of its own may take more slots for a picture."""
    own = context.prompt.draft_prompt
    longer = 0 if own is None else max(0, own.length - context.prompt.length)
    return draft_columns(context.length, context.config) + longer


class ModelSession(DraftSession):
    """Session of the draft model for one answer; an engine that serves several answers reads only what is new.

    The draft's cache holds the context up to the last root and, behind it, the nodes of the growing tree in
    the order in which they were expanded. A leaf was never run through the draft: if it is accepted, it is
    fed together with the next root.
    """

    def __init__(
        self, engine: Engine, prompt: Prompt, config: DecodingConfig, random: RandomSource, rule: GrowthRule
    ) -> None:
        self._top_tokens = _Drawing(config, random) if config.children == "drawn" else top_tokens
        self._rule, self._config = rule, config
        self._engine = engine
        read = prompt.draft_prompt or prompt
        self._engine.prefill(read.input_ids, read.features, read.image_keys)
        self._unfed: list[int] = []  # emitted tokens that the cache lacks
        self._tree = DraftTree.only_root(0)
        self._columns: list[int | None] = [None]  # cache column of each node of the last tree
        self._grown = False  # by the rule: a tree of depth 0 teaches it nothing

    def propose(self, root: int, depth: int) -> DraftTree:
        expansion = _Expansion(self._engine, [*self._unfed, root], self._rule.max_children, self._top_tokens)
        limits = GrowthLimits(depth, self._config.nodes, max_expansions(self._config))
        grown = grow(root, expansion.expand, self._rule, limits)
        self._tree, self.pruned, self._grown = grown.tree, grown.pruned, depth > 0
        drawing = self._top_tokens
        self.draft_probs = drawing.of(grown.expansion_ids) if isinstance(drawing, _Drawing) else None
        self._columns = [expansion.columns.get(node) for node in grown.expansion_ids]
        return self._tree

    def keep(self, path: Sequence[int], states: Tensor | None = None) -> None:
        if self._grown:
            self._rule.update(self._tree, path)
        columns = [column for node in path if (column := self._columns[node]) is not None]
        if columns:  # the root was fed, and everything emitted before it
            self._engine.keep(columns[0], [column - columns[0] for column in columns])
            self._unfed = []
        self._unfed += [self._tree.tokens[node] for node in path if self._columns[node] is None]

    def observe(self, draft_seconds: float, target_seconds: float) -> None:
        if self._grown:
            self._rule.observe(draft_seconds, target_seconds)


class _Expansion:
    """Expansion of the nodes of one tree, level by level, against the draft's cache."""

    def __init__(self, engine: Engine, context: Sequence[int], count: int, top_tokens: TopTokensOf) -> None:
        self._engine = engine
        self._context = context
        self._count = count
        self._top_tokens = top_tokens
        self._branches: dict[int, list[int]] = {}  # columns of a node and its ancestors below the context
        self._root = 0  # column, and position, of the root
        self.columns: dict[int, int] = {}

    def expand(self, nodes: Sequence[int], tokens: Sequence[int], parents: Sequence[int]) -> list[TopTokens]:
        start = self._engine.cache.length
        if not self.columns:  # the root: it closes the context, whose columns are visible to all
            output = self._engine.forward(PassInput(self._context, last=1))
            self._root = start + len(self._context) - 1
            self.columns[0] = self._root
            self._branches[0] = []
            return self._top_tokens(output.logits, self._count, nodes)
        for column, (node, parent) in enumerate(zip(nodes, parents, strict=True), start=start):
            self.columns[node] = column
            self._branches[node] = [*self._branches[parent], column]
        return self._top_tokens(self._engine.forward(self._level(nodes, tokens, start)).logits, self._count, nodes)

    def _level(self, nodes: Sequence[int], tokens: Sequence[int], start: int) -> PassInput:
        """Build the input of a level's nodes behind ``start`` columns: each attends to the context and its branch."""
        if len(nodes) == 1 and len(self._branches[nodes[0]]) == start - self._root:
            return PassInput(tokens)  # no branch yet: all columns are visible
        visible = np.zeros((len(nodes), start + len(nodes)), dtype=np.bool_)
        visible[:, : self._root + 1] = True
        for row, node in enumerate(nodes):
            visible[row, self._branches[node]] = True
        return PassInput(tokens, visible, [self._root + len(self._branches[node]) for node in nodes])


class _Drawing:
    """Draws of guesses from the draft's warped distributions, which are kept for one tree."""

    def __init__(self, config: DecodingConfig, random: RandomSource) -> None:
        self._config, self._random = config, random
        self._rows: dict[int, Tensor] = {}

    def __call__(self, logits: Tensor, count: int, nodes: Sequence[int]) -> list[TopTokens]:
        probs = warp(logits, self._config.temperature, self._config.top_p, self._config.top_k)
        if 0 in nodes:
            self._rows = {}
        drawn = []
        entropies = torch.special.entr(probs).sum(-1).tolist()
        if any(map(math.isnan, entropies)):
            check_finite(logits, "draft")
        for node, row, entropy in zip(nodes, probs, entropies, strict=True):
            self._rows[node] = row
            tokens = draw_children(row, count, self._random)
            drawn.append(TopTokens(tokens, row[tokens].log().tolist(), entropy))
        return drawn

    def of(self, nodes: Sequence[int]) -> Tensor | None:
        """Return the distributions of these nodes' children, ``[nodes, vocab]``; zeros where none were drawn."""
        if not self._rows:
            return None
        nothing = torch.zeros_like(self._rows[0])
        return torch.stack([self._rows.get(node, nothing) for node in nodes])


def top_tokens(logits: Tensor, count: int, nodes: Sequence[int] = ()) -> list[TopTokens]:
    """Return the ``count`` likeliest next tokens of each row of ``logits [rows, vocab]``, and its entropy in nats.

    Raises:
        ValueError: logits that are no numbers.
    """
    log_probs = torch.log_softmax(logits.float(), dim=-1)
    entropies = (-(log_probs.exp() * log_probs).sum(-1)).tolist()
    possible = log_probs.shape[-1]
    if any(map(math.isnan, entropies)):
        check_finite(logits, "draft")
        entropies = torch.special.entr(log_probs.exp()).sum(-1).tolist()  # of suppressed tokens, whose logits are -inf
        possible = int((log_probs > -torch.inf).sum(-1).min())
    top = log_probs.topk(min(count, possible), dim=-1)
    return [
        TopTokens(tokens, values, entropy)
        for tokens, values, entropy in zip(top.indices.tolist(), top.values.tolist(), entropies, strict=True)
    ]
