"""Drafting with a model: a draft VLM that reads tokens, or an EAGLE head that reads the target's hidden states.

Both grow a tree level by level, one pass a level. They differ in what the root reads, what a level reads, and what a
commit keeps in the draft's KV cache.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from specllava.config import DecodingConfig
from specllava.engine.decoders import Batch, prompt_entries
from specllava.engine.engine import Output, PrefillOutput
from specllava.engine.kv_cache import upload
from specllava.engine.pool import KVCaches
from specllava.models.drafts.eagle import FeatureDraft
from specllava.prompt import Prompt
from specllava.spec_decode.drafter import Drafter
from specllava.spec_decode.growth import GrowthRule, TopTokens, TreeBuilder, grow, max_children
from specllava.spec_decode.logits_processing import AnswerSettings
from specllava.spec_decode.rejection_sampler import SeededRandom, check_finite, draw_children, warp
from specllava.tree import DraftTree


class TreeDrafter(Drafter):
    """Drafter that grows trees by a rule with the pair's draft.

    A draft VLM's cache holds the text up to the last root, then the expanded nodes in the order of their passes. A leaf
    was never run: if it is accepted, it is read together with the next root.

    An EAGLE head's cache holds the text with the target's states; expanded nodes follow with states of its own. They do
    not outlive the tree: accepted tokens are read again with the target's states (arXiv 2401.15077, section 4.1).

    Args:
        length: tokens of prompt and answer that its KV cache is for.
    """

    name = "model"

    def __init__(
        self,
        target: PreTrainedModel,
        draft: PreTrainedModel,
        config: DecodingConfig,
        rule: GrowthRule,
        settings: AnswerSettings,
        random: SeededRandom,
        length: int,
    ) -> None:
        self.rule = rule
        self._target, self._config = target, config
        self._settings, self._random, self._length = settings, random, length
        self._eagle = draft if isinstance(draft, FeatureDraft) else None
        self.state_layers = () if self._eagle is None else tuple(self._eagle.config.state_layers)
        self._drawn = config.children == "drawn"

    def begin(self, prompt: Prompt, prefill: PrefillOutput, caches: KVCaches) -> None:
        read, config = prompt.draft_prompt or prompt, self._config
        longer = max(0, read.length - prompt.length)  # a tower of its own may take more slots for a picture
        self._engine = caches.draft(config.draft_slots(self._length) + longer)
        self._unread: list[int] = []  # emitted tokens that the cache lacks, the root left out
        self._states: Tensor | None = None  # the target's, of the token before each unread one and before the root
        if self._eagle is None:
            self._engine.prefill(read.input_ids, read.features, read.image_keys)
        else:
            assert prefill.states is not None
            self._engine.prefill_entries(*prompt_entries(self._eagle, self._target, prompt, prefill.states))
            self._states = prefill.states[-1:]
        rows = max(config.nodes, config.width, config.depth + 1)
        self._engine.warm_up(rows, config.draft_slots(config.max_new_tokens), self._reduction)

    def propose(self, root: int, depth: int) -> DraftTree:
        self._slots: dict[int, int] = {}  # of each expanded node
        self._probs: dict[int, Tensor] = {}  # that its children were drawn from
        self.pass_tokens = ()
        grown = grow(root, self._expand, self.rule, depth, self._config, self._settings.eos_token_ids)
        self._tree, self.pruned, self._builder_ids = grown.tree, grown.pruned, grown.builder_ids
        self.draft_probs = None
        if self._probs:
            nothing = torch.zeros_like(self._probs[0])  # where no children were drawn
            self.draft_probs = torch.stack([self._probs.get(node, nothing) for node in self._builder_ids])
        return self._tree

    def commit(self, path: Sequence[int], states: Tensor | None) -> None:
        tokens = [self._tree.tokens[node] for node in path]
        if self._eagle is None:
            slots = [self._slots[self._builder_ids[node]] for node in path if self._builder_ids[node] in self._slots]
            if slots:  # the root was read, and everything emitted before it
                self._engine.commit(slots[0], [slot - slots[0] for slot in slots])
                self._unread = []
            self._unread += tokens[len(slots) :]
            return
        assert states is not None
        if self._slots:
            self._engine.truncate(self._slots[0] + 1)
            self._unread, self._states = tokens[1:], states
        else:
            assert self._states is not None
            self._unread, self._states = [*self._unread, *tokens], torch.cat([self._states, states])

    @property
    def _top_k(self) -> TopK:
        return TopK(min(max_children(self.rule), self._engine.decoder.vocabulary))

    @property
    def _reduction(self) -> TopK | None:
        """What a pass computes of its logits; ``None`` where they are processed or drawn from first."""
        return None if self._settings.processing or self._drawn else self._top_k

    def _expand(self, builder: TreeBuilder, level: Sequence[int]) -> list[TopTokens]:
        """Return the draft's guesses after each node of a level; the root comes first and by itself."""
        start = self._engine.cache.length
        if not self._slots:
            batch = Batch([*self._unread, builder.tokens[0]], last=1, states=self._states)
            self._slots[0] = start + len(self._unread)
        else:
            batch = self._level(builder, level, start)
            self._slots.update(zip(level, range(start, start + len(level)), strict=True))
        self.pass_tokens = (*self.pass_tokens, len(batch.tokens))
        return self._guesses(builder, level, self._engine.forward(batch, self._reduction))

    def _level(self, builder: TreeBuilder, level: Sequence[int], start: int) -> Batch:
        """Build the pass of a level: each node sees the context, the nodes above it and itself."""
        root, cache = self._slots[0], self._engine.cache
        tokens = [builder.tokens[node] for node in level]
        states = None
        if self._eagle is not None:
            assert cache.states is not None
            parents = [self._slots[builder.parents[node]] for node in level]
            states = cache.states.index_select(0, upload(parents, cache.states.device))
        branches = [[self._slots[above] for above in _branch(builder, node)[1:]] for node in level]
        if len(level) == 1 and len(branches[0]) == start - root - 1:  # a chain so far: all is visible
            return Batch(tokens, states=states, drafted=states is not None)
        visible = np.zeros((len(level), start + len(level)), dtype=np.bool_)
        visible[:, : root + 1] = True
        for row, branch in enumerate(branches):
            visible[row, [*branch, start + row]] = True
        positions = [root + 1 + len(branch) for branch in branches]
        return Batch(tokens, visible, positions, states=states, drafted=states is not None)

    def _guesses(self, builder: TreeBuilder, level: Sequence[int], output: Output) -> list[TopTokens]:
        """Return the likeliest next tokens after each node, or draws from the draft's distribution.

        Raises:
            ValueError: logits that are no numbers.
        """
        logits, reduced = output.logits, output.reduced
        if self._settings.processing:
            paths = [[builder.tokens[above] for above in reversed(_branch(builder, node))] for node in level]
            logits = self._settings.processing.of_draft(logits, paths)
        if self._drawn:
            return self._draw(logits, level)
        if reduced is None:
            reduced = self._top_k(logits).tolist()
        if any(math.isnan(row[0]) for row in reduced):
            check_finite(logits, "draft")
        return self._top_k.decode(reduced)

    def _draw(self, logits: Tensor, level: Sequence[int]) -> list[TopTokens]:
        """Draw guesses from the draft's warped distributions, which verification divides by."""
        probs = warp(logits, self._settings.warpers)
        entropies = torch.special.entr(probs).sum(-1)
        if bool(entropies.isnan().any()):
            check_finite(logits, "draft")
            probs = probs.nan_to_num(0.0)  # where every token is forbidden
            entropies = torch.special.entr(probs).sum(-1)
        guesses = []
        for node, row, entropy in zip(level, probs, entropies.tolist(), strict=True):
            self._probs[node] = row
            tokens = draw_children(row, max_children(self.rule), self._random)
            guesses.append(TopTokens(tokens, row[tokens].log().tolist(), entropy))
        return guesses


@dataclass(frozen=True, slots=True)
class TopK:
    """Reduction of logits to the ``count`` likeliest tokens and the entropy of each row, for one small download."""

    count: int

    @property
    def width(self) -> int:
        return 1 + 2 * self.count

    def __call__(self, logits: Tensor) -> Tensor:
        """Return entropy in nats, log-probabilities and tokens, ``[rows, width]``; ids below 2^24 are float32."""
        log_probs = torch.log_softmax(logits.float(), dim=-1)
        possible = log_probs.clamp(min=torch.finfo(log_probs.dtype).min)  # 0 times -inf is no number
        entropies = -(log_probs.exp() * possible).sum(-1, keepdim=True)
        top = log_probs.topk(self.count, dim=-1)
        return torch.cat([entropies, top.values, top.indices.float()], dim=-1)

    def decode(self, reduced: Sequence[Sequence[float]]) -> list[TopTokens]:
        """Decode the reduction of each row; tokens that the draft cannot guess are left out."""
        tops = []
        for entropy, *rest in reduced:
            values = [value for value in rest[: self.count] if value > -math.inf]
            tokens = [int(token) for token in rest[self.count :][: len(values)]]
            tops.append(TopTokens(tokens, values, 0.0 if math.isnan(entropy) else entropy))
        return tops


def _branch(builder: TreeBuilder, node: int) -> list[int]:
    """Return a node and those above it, the root left out."""
    branch = []
    while node:
        branch.append(node)
        node = builder.parents[node]
    return branch
