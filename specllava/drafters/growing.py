"""Drafting that grows trees by a rule, level by level, with a draft's engine."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from specllava.core.config import DecodingConfig
from specllava.core.growth.grow import GrowthLimits, grow
from specllava.core.growth.rule import GrowthRule, TopTokens
from specllava.core.tree import DraftTree
from specllava.drafters.drafter import DraftSession
from specllava.drafters.top_tokens import Drawing, TopTokensOf, TopTokensReduction, top_tokens
from specllava.runtime.kv_caches import AnyEngine
from specllava.runtime.passes import PassInput, PassOutput
from specllava.verification.answer_settings import AnswerSettings
from specllava.verification.sampling import RandomSource
from specllava.verification.verifier import check_finite


class GrowingSession(DraftSession):
    """Session that grows trees by a rule; subclasses run the passes, one a level, and keep the KV cache.

    The state of a growing tree is by node: its column, if it was expanded, and its branch. A branch has the columns and
    tokens from below the root to the node.
    """

    _position_offset = 0  # position in the text minus column, where the KV cache holds a shorter text

    def __init__(
        self,
        engine: AnyEngine,
        config: DecodingConfig,
        random: RandomSource,
        rule: GrowthRule,
        settings: AnswerSettings,
    ) -> None:
        self._cache, self._config, self._rule, self._processing = engine.cache, config, rule, settings.processing
        drawn = config.children == "drawn"
        self._top_tokens: TopTokensOf = Drawing(settings.warpers, random) if drawn else top_tokens
        self._tree = DraftTree.only_root(0)
        self._kept_columns: list[int | None] = [None]  # column of each node of the last tree, if it was expanded
        self._rule_used = False  # for the last tree: not for one of depth 0
        self._reduction: TopTokensReduction | None = None
        self._columns: dict[int, int] = {}
        self._branches: dict[int, list[int]] = {}
        self._paths: dict[int, list[int]] = {}
        self._unread: list[int] = []  # emitted tokens that the KV cache lacks, the root left out

    @abstractmethod
    def _read_root(self, root: int) -> PassOutput:
        """Read the root and what else the KV cache lacks of the text; score what follows the root, ``[1, vocab]``."""

    @abstractmethod
    def _read_level(self, batch: PassInput, nodes: Sequence[int], parents: Sequence[int]) -> PassOutput:
        """Append nodes whose parents were read before; score what follows each, ``[nodes, vocab]``."""

    @abstractmethod
    def _keep(self, path: Sequence[int], states: Tensor | None) -> None:
        """Keep what belongs to the accepted nodes of the last tree."""

    def propose(self, root: int, depth: int) -> DraftTree:
        self._reduction = self._next_reduction()
        limits = GrowthLimits(depth, self._config.nodes, self._config.max_expanded_nodes)
        self._columns, self._branches, self._paths, self.pass_tokens = {}, {}, {}, ()
        grown = grow(root, self._expand, self._rule, limits)
        self._tree, self.pruned, self._rule_used = grown.tree, grown.pruned, depth > 0
        drawing = self._top_tokens
        self.draft_probs = drawing.of(grown.builder_ids) if isinstance(drawing, Drawing) else None
        self._kept_columns = [self._columns.get(node) for node in grown.builder_ids]
        return self._tree

    def keep(self, path: Sequence[int], states: Tensor | None = None) -> None:
        if self._rule_used:
            self._rule.update(self._tree, path)
        self._keep(path, states)

    def observe(self, draft_seconds: float, target_seconds: float) -> None:
        if self._rule_used:
            self._rule.observe(draft_seconds, target_seconds)

    def _prepare(self, engine: AnyEngine) -> None:
        """Prepare passes over a root with what is unread before it, and over levels, up to the answer's end."""
        config = self._config
        rows, columns = max(config.nodes, config.width, config.depth + 1), config.draft_columns(config.max_new_tokens)
        engine.prepare(rows, columns, self._next_reduction())

    def _next_reduction(self) -> TopTokensReduction | None:
        needs_logits = self._processing or isinstance(self._top_tokens, Drawing)
        return None if needs_logits else TopTokensReduction(self._rule.max_children)

    def _expand(self, nodes: Sequence[int], tokens: Sequence[int], parents: Sequence[int]) -> list[TopTokens]:
        """Return the draft's guesses after each node; the root comes first and by itself."""
        start = self._cache.length
        if not self._columns:  # it closes the context, whose columns are visible to all
            output = self._read_root(tokens[0])
            self._columns[0] = self._cache.length - 1
            self._branches[0], self._paths[0] = [], []
        else:
            for column, (node, token, parent) in enumerate(zip(nodes, tokens, parents, strict=True), start=start):
                self._columns[node] = column
                self._branches[node] = [*self._branches[parent], column]
                self._paths[node] = [*self._paths[parent], token]
            output = self._read_level(self._level_input(nodes, tokens, start), nodes, parents)
        self.pass_tokens = (*self.pass_tokens, self._cache.length - start)
        return self._guesses(output, nodes)

    def _guesses(self, output: PassOutput, nodes: Sequence[int]) -> list[TopTokens]:
        if output.numbers is not None and self._reduction is not None:
            if self._reduction.undefined(output.numbers):
                check_finite(output.logits, "draft")
            return self._reduction.decode(output.numbers)
        logits = output.logits
        if self._processing:
            logits = self._processing.of_draft(logits, [self._paths[node] for node in nodes])
        return self._top_tokens(logits, self._rule.max_children, nodes)

    def _level_input(self, nodes: Sequence[int], tokens: Sequence[int], start: int) -> PassInput:
        """Build the input of a level's nodes after ``start`` columns: each attends to the context and its branch."""
        root = self._columns[0]
        positions = [root + self._position_offset + len(self._branches[node]) for node in nodes]
        if len(nodes) == 1 and len(self._branches[nodes[0]]) == start - root:  # no branch yet: all is visible
            return PassInput(tokens, positions=positions if self._position_offset else None)
        visible = np.zeros((len(nodes), start + len(nodes)), dtype=np.bool_)
        visible[:, : root + 1] = True
        for row, node in enumerate(nodes):
            visible[row, self._branches[node]] = True
        return PassInput(tokens, visible, positions)
