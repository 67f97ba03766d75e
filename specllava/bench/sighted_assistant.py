"""An assistant for ``transformers``' assisted generation that sees the picture."""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel

from specllava.models.drafts.draft_classes import SlotDraft
from specllava.pair import Pair
from specllava.runtime.prompt import Prompt
from specllava.runtime.vision import compressor_of, merge_features


def why_blind(pair: Pair) -> str | None:
    """Return why the assistant of a pair cannot be made to see, ``None`` if it can."""
    source, name = pair.draft_vision, pair.draft_name
    if source == "states":
        return "transformers drafts with no draft that reads states"
    if isinstance(pair.draft, SlotDraft):
        return "transformers drafts with no draft that reads the target's image slots"
    if source == "none":
        return f"the draft {name} reads text alone"
    if pair.draft is not None and (source == "own" or compressor_of(pair.draft) is not None):
        return f"the draft {name} has other image slots than the target, and assisted generation gives it the target's"
    return None


class SightedAssistant:
    """A draft model as assistant, whose KV cache holds the prompt with the picture before it first guesses.

    ``transformers`` 5.23 hands an assistant the target's encoded pictures and never merges them, so that it reads bare
    image slots. This one reads the prompt itself, up to its last token, when it is first asked; everything else is the
    draft's own.
    """

    def __init__(self, draft: PreTrainedModel, prompt: Prompt) -> None:
        self._draft, self._prompt = draft, prompt

    def __getattr__(self, name: str) -> Any:
        return getattr(self._draft, name)

    @torch.inference_mode()
    def generate(self, **arguments: Any) -> Any:
        """Guess as the draft does, after a prompt that it has seen."""
        if arguments.get("past_key_values") is None:
            arguments["past_key_values"] = self._read()
        arguments.pop("mm_encoder_outputs", None)
        return self._draft.generate(**arguments)

    def _read(self) -> DynamicCache:
        """Return the KV cache of the prompt up to its last token."""
        cache = DynamicCache(config=self._draft.config.get_text_config())
        embeds = merge_features(self._draft, self._prompt.input_ids, self._prompt.features)[:, :-1]
        self._draft.get_decoder()(inputs_embeds=embeds, past_key_values=cache, use_cache=True)
        return cache
