"""Drafting from the target's hidden states: EAGLE-1 to 3, MSD, ViSpec and EagleVLM."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specllava.drafters.drafter import DraftContext, Drafter, DraftSession
from specllava.drafters.growing import Expansion, GrowingSession
from specllava.models.drafts.feature_draft import FeatureDraft
from specllava.models.loading.memory import draft_columns
from specllava.runtime.feature_engine import FeatureEngine, prompt_entries
from specllava.runtime.passes import LogitsReduction, PassInput, PassOutput


class FeatureDrafter(Drafter):
    """Drafter that grows trees with a draft that reads the target's states."""

    name = "model"
    needs_draft = grows = True

    def __init__(self, state_layers: Sequence[int]) -> None:
        self.state_layers = tuple(state_layers)

    def open(self, context: DraftContext) -> DraftSession:
        assert isinstance(context.draft, FeatureDraft)
        assert context.rule is not None
        assert context.prefill.states is not None
        return FeatureSession(context)


class FeatureSession(GrowingSession):
    """Session of a feature draft for one answer.

    The draft's cache holds the text up to the last root with the target's true states and, behind it, the nodes of the
    growing tree with the states that the draft made for itself. None of these outlives the tree: accepted tokens are
    read again with the states that the target's pass revealed (EAGLE, arXiv 2401.15077, section 4.1).
    """

    def __init__(self, context: DraftContext) -> None:
        draft, rule, states = context.draft, context.rule, context.prefill.states
        assert isinstance(draft, FeatureDraft)
        assert rule is not None
        assert states is not None
        super().__init__(context.config, context.random, rule, context.settings)
        self._engine = context.caches.feature_engine(draft, draft_columns(context.length, context.config))
        entries, contents = prompt_entries(draft, context.target, context.prompt, states)
        self._engine.prefill(entries, contents)
        self._unread: list[int] = []  # emitted tokens that the cache lacks, the root left out
        self._states = states[-1:]  # of the token before each of them, and before the root

    def _expansion(self, root: int) -> Expansion:
        self._read = self._engine.cache.length + len(self._unread) + 1  # columns once the root is read
        self._scorer = _FeatureScorer(self._engine, [*self._unread, root], self._states)
        guesses = self._rule.max_children, self._top_tokens
        return Expansion(self._scorer, *guesses, self._processing, self._engine.position_offset)

    def _keep(self, path: Sequence[int], states: Tensor | None) -> None:
        assert states is not None
        root, *accepted = (self._tree.tokens[node] for node in path)
        if self._columns[0] is None:  # it was not expanded, so nothing was read
            self._unread, self._states = [*self._unread, root, *accepted], torch.cat([self._states, states])
            return
        self._engine.keep(self._read, [])
        self._unread, self._states = accepted, states


class _FeatureScorer:
    """Scorer of nodes by a feature draft, which keeps the state that each node's children are drafted from."""

    def __init__(self, engine: FeatureEngine, context: Sequence[int], states: Tensor) -> None:
        self._engine, self._context, self._known = engine, context, states
        self._rows: dict[int, Tensor] = {}

    @property
    def cached(self) -> int:
        return self._engine.cache.length

    def root(self, reduction: LogitsReduction | None) -> PassOutput:
        output = self._engine.read(self._context, self._known, reduction)
        assert output.states is not None
        self._rows[0] = output.states[-1]
        return output

    def level(
        self, batch: PassInput, nodes: Sequence[int], parents: Sequence[int], reduction: LogitsReduction | None
    ) -> PassOutput:
        output = self._engine.forward(batch, torch.stack([self._rows[parent] for parent in parents]), reduction)
        assert output.states is not None
        self._rows.update(zip(nodes, output.states, strict=True))
        return output
