"""Drafting from the target's hidden states: EAGLE-1 to 3, MSD, ViSpec and EagleVLM."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specllava.drafters.drafter import DraftContext, Drafter, DraftSession
from specllava.drafters.growing import GrowingSession
from specllava.models.drafts.feature_draft import FeatureDraft
from specllava.runtime.feature_engine import prompt_entries
from specllava.runtime.passes import PassInput, PassOutput


class FeatureDrafter(Drafter):
    """Drafter that grows trees with a draft that reads the target's states."""

    name = "model"
    needs_draft = grows = True

    def __init__(self, state_layers: Sequence[int]) -> None:
        self.state_layers = tuple(state_layers)

    def open(self, context: DraftContext) -> DraftSession:
        return FeatureSession(context)


class FeatureSession(GrowingSession):
    """Session of a feature draft for one answer.

    The draft's cache holds the text up to the last root with the target's states. After it are the nodes of the growing
    tree with the draft's own states. They do not outlive the tree: accepted tokens are read again with the states of
    the target's pass (EAGLE, arXiv 2401.15077, section 4.1).
    """

    def __init__(self, context: DraftContext) -> None:
        draft, rule, states = context.draft, context.rule, context.prefill.states
        assert isinstance(draft, FeatureDraft)
        assert rule is not None
        assert states is not None
        self._engine = context.caches.feature_engine(draft, context.config.draft_columns(context.length))
        super().__init__(self._engine, context.config, context.random, rule, context.settings)
        entries, contents = prompt_entries(draft, context.target, context.prompt, states)
        self._engine.prefill(entries, contents)
        self._prepare(self._engine)
        self._position_offset = self._engine.position_offset
        self._read = 0  # columns once the root is read
        self._states = states[-1:]  # of the token before each of them, and before the root
        self._node_states: dict[int, Tensor] = {}  # of the draft, after each expanded node

    def _read_root(self, root: int) -> PassOutput:
        output = self._engine.read([*self._unread, root], self._states, self._reduction)
        assert output.states is not None
        self._read, self._node_states = self._engine.cache.length, {0: output.states[-1]}
        return output

    def _read_level(self, batch: PassInput, nodes: Sequence[int], parents: Sequence[int]) -> PassOutput:
        before = torch.stack([self._node_states[parent] for parent in parents])
        output = self._engine.forward(batch, before, self._reduction)
        assert output.states is not None
        self._node_states.update(zip(nodes, output.states, strict=True))
        return output

    def _keep(self, path: Sequence[int], states: Tensor | None) -> None:
        assert states is not None
        root, *accepted = (self._tree.tokens[node] for node in path)
        if self._kept_columns[0] is None:  # it was not expanded, so nothing was read
            self._unread, self._states = [*self._unread, root, *accepted], torch.cat([self._states, states])
            return
        self._engine.keep(self._read, [])
        self._unread, self._states = accepted, states
