"""Drafting that grows trees by a rule, level by level, whatever scores the nodes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from torch import Tensor

from specllava.core.config import DecodingConfig
from specllava.core.growth.grow import GrowthLimits, grow
from specllava.core.growth.rule import GrowthRule, TopTokens
from specllava.core.tree import DraftTree
from specllava.drafters.drafter import DraftSession
from specllava.drafters.top_tokens import Drawing, TopTokensOf, TopTokensReduction, top_tokens
from specllava.models.loading.memory import max_expansions
from specllava.runtime.passes import LogitsReduction, PassInput, PassOutput
from specllava.verification.answer_settings import AnswerSettings, Processing
from specllava.verification.sampling import RandomSource


class Scorer(Protocol):
    """Interface of what scores the nodes of one tree against a draft's KV cache, one pass a level."""

    @property
    def cached(self) -> int:
        """Columns of the KV cache."""
        ...

    def root(self, reduction: LogitsReduction | None) -> PassOutput:
        """Read the root and what else the KV cache lacks of the text; score what follows the root, ``[1, vocab]``."""
        ...

    def level(
        self, batch: PassInput, nodes: Sequence[int], parents: Sequence[int], reduction: LogitsReduction | None
    ) -> PassOutput:
        """Append nodes whose parents were scored before; score what follows each, ``[nodes, vocab]``."""
        ...


class Expansion:
    """Expansion of the nodes of one tree. ``columns`` tells the KV cache's column of each expanded node, ``widths`` how
    many tokens each pass had.

    Args:
        count: guesses behind each node.
        processing: of the draft's logits.
        position_offset: position in the text minus column, where the KV cache holds a shorter text.
    """

    def __init__(
        self, scorer: Scorer, count: int, top_tokens: TopTokensOf, processing: Processing, position_offset: int = 0
    ) -> None:
        self._scorer, self._count, self._top_tokens, self._position_offset = scorer, count, top_tokens, position_offset
        self._processing = processing
        self._reduction = None if processing or isinstance(top_tokens, Drawing) else TopTokensReduction(count)
        self._paths: dict[int, list[int]] = {}  # tokens of a node and its ancestors below the root
        self._branches: dict[int, list[int]] = {}  # columns of a node and its ancestors below the root
        self._root = 0  # its column
        self.columns: dict[int, int] = {}
        self.widths: list[int] = []

    def expand(self, nodes: Sequence[int], tokens: Sequence[int], parents: Sequence[int]) -> list[TopTokens]:
        """Return the guesses behind each node; the root comes first and by itself."""
        if not self.columns:  # it closes the context, whose columns are visible to all
            before = self._scorer.cached
            output = self._scorer.root(self._reduction)
            self.columns[0] = self._root = self._scorer.cached - 1
            self.widths.append(self._scorer.cached - before)
            self._branches[0], self._paths[0] = [], []
            return self._guesses(output, nodes)
        start = self._scorer.cached
        for column, (node, token, parent) in enumerate(zip(nodes, tokens, parents, strict=True), start=start):
            self.columns[node] = column
            self._branches[node] = [*self._branches[parent], column]
            self._paths[node] = [*self._paths[parent], token]
        self.widths.append(len(nodes))
        batch = self._level(nodes, tokens, start)
        return self._guesses(self._scorer.level(batch, nodes, parents, self._reduction), nodes)

    def _guesses(self, output: PassOutput, nodes: Sequence[int]) -> list[TopTokens]:
        if output.numbers is None or self._reduction is None:
            logits = output.logits
            if self._processing:
                logits = self._processing.of_draft(logits, [self._paths[node] for node in nodes])
            return self._top_tokens(logits, self._count, nodes)
        return self._reduction.decode(output.numbers, output.logits)

    def _level(self, nodes: Sequence[int], tokens: Sequence[int], start: int) -> PassInput:
        """Build the input of a level's nodes behind ``start`` columns: each attends to the context and its branch."""
        positions = [self._root + self._position_offset + len(self._branches[node]) for node in nodes]
        if len(nodes) == 1 and len(self._branches[nodes[0]]) == start - self._root:  # no branch yet: all is visible
            return PassInput(tokens, positions=positions if self._position_offset else None)
        visible = np.zeros((len(nodes), start + len(nodes)), dtype=np.bool_)
        visible[:, : self._root + 1] = True
        for row, node in enumerate(nodes):
            visible[row, self._branches[node]] = True
        return PassInput(tokens, visible, positions)


class GrowingSession(DraftSession):
    """Session that grows trees by a rule; subclasses score the nodes and keep their KV cache."""

    def __init__(
        self, config: DecodingConfig, random: RandomSource, rule: GrowthRule, settings: AnswerSettings
    ) -> None:
        self._config, self._rule, self._processing = config, rule, settings.processing
        drawn = config.children == "drawn"
        self._top_tokens: TopTokensOf = Drawing(settings.warpers, random) if drawn else top_tokens
        self._tree = DraftTree.only_root(0)
        self._columns: list[int | None] = [None]  # column of each node of the last tree, if it was expanded
        self._grown = False  # by the rule: a tree of depth 0 teaches it nothing

    @abstractmethod
    def _expansion(self, root: int) -> Expansion:
        """Return the expansion of a tree below ``root``."""

    @abstractmethod
    def _keep(self, path: Sequence[int], states: Tensor | None) -> None:
        """Keep what belongs to the accepted nodes of the last tree."""

    def propose(self, root: int, depth: int) -> DraftTree:
        expansion = self._expansion(root)
        limits = GrowthLimits(depth, self._config.nodes, max_expansions(self._config))
        grown = grow(root, expansion.expand, self._rule, limits)
        self._tree, self.pruned, self._grown = grown.tree, grown.pruned, depth > 0
        self.widths = tuple(expansion.widths)
        drawing = self._top_tokens
        self.draft_probs = drawing.of(grown.expansion_ids) if isinstance(drawing, Drawing) else None
        self._columns = [expansion.columns.get(node) for node in grown.expansion_ids]
        return self._tree

    def keep(self, path: Sequence[int], states: Tensor | None = None) -> None:
        if self._grown:
            self._rule.update(self._tree, path)
        self._keep(path, states)

    def observe(self, draft_seconds: float, target_seconds: float) -> None:
        if self._grown:
            self._rule.observe(draft_seconds, target_seconds)
