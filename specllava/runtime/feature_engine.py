"""A feature draft and its KV cache: token embeddings fused with states in, logits and states of its own out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from specllava.models.drafts.feature_draft import DraftInputs, FeatureDraft
from specllava.models.families.family import family_of
from specllava.runtime.cache import BranchCache, Content
from specllava.runtime.passes import AttentionMasks, LogitsReduction, PassInput, PassOutput
from specllava.runtime.prompt import Prompt
from specllava.runtime.vision import merge_features, prompt_contents


class FeatureEngine:
    """A feature draft over a branch cache, batch 1. It begins with token 1 of a text: see :class:`FeatureDraft`.

    Args:
        capacity: cache columns that fit, and plain positions.
    """

    def __init__(self, model: FeatureDraft, capacity: int) -> None:
        self.model = model
        self.device, self.dtype = model.device, model.dtype
        self.cache = self._new_cache(capacity)
        self.position_offset = 0  # positions against columns: a compressed picture takes fewer columns
        self.image: Tensor | None = None  # of the last picture, see :class:`DraftInputs`
        self._masks = AttentionMasks(model.config, self.device, self.dtype)
        self._table: Tensor | None = None  # of rotations by position; what pictures shift has no largest one
        if model.config.mrope_section is None:
            with torch.inference_mode():
                self._table = torch.stack(model.rotations(torch.arange(capacity, device=self.device)[None]))

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values."""
        return self.cache.nbytes

    def prefill(self, entries: DraftInputs, contents: Sequence[Content]) -> Tensor:
        """Read a text, which replaces the cache's columns; a common beginning is not read again.

        Returns the draft's states of the entries that were read, ``[read, hidden]``.

        Args:
            contents: of each entry; equal beginnings have equal states.
        """
        assert entries.bias is None, "a draft in training mode weighs all that its gate could choose"
        reused = self.cache.common_prefix(contents)
        self.cache.keep(reused, [])
        position = 1 + max(entries.positions, default=-1) if entries.rows is None else int(entries.rows[0, -1])
        self.position_offset, self.image = position - len(contents), entries.image
        if reused == len(contents):
            return entries.inputs.new_empty((0, self.model.config.hidden_size))
        if entries.rows is None:
            rotations = self._rotations(entries.positions[reused:])
        else:
            rotations = self.model.rotations(entries.rows[:, None, reused:-1])
        return self._run(entries.inputs[reused:], rotations, None, contents[reused:])

    def read(self, tokens: Sequence[int], states: Tensor, reduction: LogitsReduction | None = None) -> PassOutput:
        """Append tokens with the target's states before them ``[tokens, layers * hidden]``; only the last is scored."""
        inputs = self.model.inputs(self._embed(tokens), states, image=self.image)
        own = self._run(inputs, self._rotations(self._next(len(tokens))), None, tokens)
        return PassOutput(self.model.logits(own[-1:]), own)

    def forward(
        self, batch: PassInput, states: Tensor | None = None, reduction: LogitsReduction | None = None
    ) -> PassOutput:
        """Append tokens with the draft's own states before them, and score each.

        Args:
            states: ``[tokens, hidden]``; zeros without, for timing.
        """
        embeds = self._embed(batch.tokens)
        states = torch.zeros_like(embeds) if states is None else states
        inputs = self.model.inputs(embeds, states, guessed=True, image=self.image)
        positions = batch.positions or self._next(len(batch.tokens))
        own = self._run(inputs, self._rotations(positions), batch, batch.tokens)
        return PassOutput(self.model.logits(own), own)

    def prepare(self, rows: int, columns: int, reduction: LogitsReduction | None) -> None:
        """Get ready for passes; see :meth:`Engine.prepare`."""
        return

    def copy_from(self, other: FeatureEngine) -> None:
        """Take over the columns of an engine of smaller capacity."""
        self.cache.copy_from(other.cache)

    def keep(self, base: int, offsets: Sequence[int]) -> None:
        """Keep columns; see :meth:`BranchCache.keep`."""
        self.cache.keep(base, offsets)

    def _new_cache(self, capacity: int) -> BranchCache:
        return BranchCache(self.model.config.num_hidden_layers, capacity)

    def _next(self, count: int) -> range:
        """Return the positions of the next tokens."""
        start = self.cache.length + self.position_offset
        return range(start, start + count)

    def _embed(self, tokens: Sequence[int]) -> Tensor:
        return self.model.embed(torch.tensor(list(tokens), device=self.device))

    def _rotations(self, positions: Sequence[int] | Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and sines of positions ``[entries]`` that are the same in all rows."""
        if self._table is not None and isinstance(positions, range):
            cosines, sines = self._table[:, :, positions.start : positions.stop]
            return cosines, sines
        at = torch.as_tensor(positions, device=self.device)
        if self._table is None:
            return self.model.rotations(at[None])
        cosines, sines = self._table[:, :, at]
        return cosines, sines

    def _run(
        self,
        inputs: Tensor,
        rotations: tuple[Tensor, Tensor],
        batch: PassInput | None,
        contents: Sequence[Content],
    ) -> Tensor:
        """Run the layers on ``[entries, width]`` after the cached columns; returns ``[entries, hidden]``."""
        start, count = self.cache.length, len(inputs)
        self.cache.check_room(count)
        visible = None if batch is None else batch.visible
        if visible is None and count > 1:
            visible = np.tri(count, start + count, start, dtype=np.bool_)
        mask = None if visible is None else self._masks.additive(visible)
        states = self.model(inputs[None], rotations, mask, self.cache)
        self.cache.contents += contents
        own: Tensor = states[0]
        return own


def prompt_entries(
    draft: FeatureDraft, target: PreTrainedModel, prompt: Prompt, states: Tensor
) -> tuple[DraftInputs, list[Content]]:
    """Return the entries of a prompt whose next token is unknown yet, and the content of each.

    Args:
        states: the target's, of all its tokens, ``[length, layers * hidden]``.

    Raises:
        ValueError: a prompt of its own for the draft.
    """
    if prompt.draft_prompt is not None:
        raise ValueError("the draft reads the target's states, so it cannot be given a prompt of its own")
    ids = prompt.input_ids[0]
    embeds = merge_features(target, prompt.input_ids, prompt.features)[0]
    entries = draft.entries(ids[1:], embeds[1:], states[:-1], question=states[-1])
    if draft.config.mrope_section is not None:
        entries = replace(entries, rows=_position_rows(target, prompt))
    contents = prompt_contents(target, ids.tolist(), prompt.features, prompt.image_keys)
    return entries, entry_contents(entries, contents)


def _position_rows(target: PreTrainedModel, prompt: Prompt) -> Tensor:
    """Return the positions that the target gives a prompt's tokens in time, height and width, ``[3, length]``."""
    given = family_of(target.config).prefill_positions(target, prompt.input_ids, prompt.features)
    if given is None:
        return torch.arange(prompt.length, device=prompt.input_ids.device).expand(3, -1)
    return given.reshape(-1, prompt.length).expand(3, -1)


def entry_contents(entries: DraftInputs, contents: Sequence[Content]) -> list[Content]:
    """Return the content of each entry: the text after the entry before it, up to its own position.

    So the first holds two tokens, and what follows a dropped picture depends on that picture. What an entry makes of a
    picture depends on the gate's choice too. A picture without a key equals none, as in the cache.

    Args:
        contents: of each token of the text: itself, or its picture's key.
    """
    held: list[Content] = []
    begin = 0
    for position in entries.positions:
        end = position + 2
        covered = contents[begin:end] or contents[end - 1 : end]
        begin = max(begin, end)
        words = all(isinstance(one, int) for one in covered)
        if None in covered or (words and len(covered) == 1):
            held.append(None if None in covered else covered[0])
        else:
            covered_text = " ".join(f"{len(list(same))} x {one}" for one, same in groupby(covered))
            held.append(covered_text if words or entries.choice is None else f"{covered_text} {entries.choice}")
    return held
