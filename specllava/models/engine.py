"""One model and its cache: tokens in, logits out. Target and draft both run through it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from transformers import LlavaForConditionalGeneration

from specllava.cache import BranchCache
from specllava.models.vision import merge_features


class Engine:
    """A language model over a branch cache, batch 1.

    Args:
        model: a LLaVA; its vision tower is not used here.
        capacity: cache columns that fit.
    """

    def __init__(self, model: LlavaForConditionalGeneration, capacity: int) -> None:
        self.model = model
        self.decoder, self.head = model.model.language_model, model.lm_head
        self.device = model.get_input_embeddings().weight.device
        self.dtype = model.dtype
        self.cache = BranchCache(model.config.text_config.num_hidden_layers, capacity)

    def prefill(self, input_ids: Tensor, features: Tensor | None) -> Tensor:
        """Read the prompt ``[1, length]``; logits ``[vocab]`` after its last token."""
        embeds = merge_features(self.model, input_ids, features)
        output = self.decoder(inputs_embeds=embeds, past_key_values=self.cache, use_cache=True)
        logits: Tensor = self.head(output.last_hidden_state[0, -1])
        return logits

    def forward(
        self,
        tokens: Sequence[int],
        visible: npt.NDArray[np.bool_] | None = None,
        positions: Sequence[int] | None = None,
        last: int = 0,
    ) -> Tensor:
        """Append tokens to the cache and score them.

        Args:
            tokens: one column each, behind what the cache holds.
            visible: ``[tokens, cached + tokens]``; which columns each token attends to. Default: all before it.
            positions: position of each token in the text. Default: one after the other behind the cache.
            last: score only that many tokens from the end; 0 for all.

        Returns:
            Logits ``[tokens or last, vocab]``.
        """
        mask = None
        if visible is not None:
            hidden = torch.from_numpy(~visible).to(self.device)
            mask = torch.zeros(hidden.shape, dtype=self.dtype, device=self.device)
            mask = mask.masked_fill_(hidden, torch.finfo(self.dtype).min)[None, None]  # [1, 1, tokens, columns]
        start = self.cache.length
        places = range(start, start + len(tokens)) if positions is None else positions
        output = self.decoder(
            input_ids=torch.tensor([list(tokens)], device=self.device),
            attention_mask=mask,
            position_ids=torch.tensor([list(places)], device=self.device),
            past_key_values=self.cache,
            use_cache=True,
        )
        logits: Tensor = self.head(output.last_hidden_state[0, -last:])
        return logits
