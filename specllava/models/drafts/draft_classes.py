"""Classes of drafts without a vision tower, which read the features of the target's, and how models are saved.

Targets and drafts are ordinary Hugging Face directories: configuration, safetensors, tokenizer, processor. A draft
whose configuration has ``compressor`` reads fewer entries of each picture; see :class:`CompressorConfig`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import (
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProcessorMixin,
)

from specllava.core.files import whole_directory
from specllava.models.drafts.compressors import compressor_of_config
from specllava.models.drafts.feature_draft import FeatureDraft
from specllava.models.drafts.slot_draft import SlotDraft

MAX_SHARD = "8MB"  # a hosted Space's git takes no file above 10 MB without extra tooling
# The target's features, those of a tower of its own, the target's hidden states, no picture at all.
VisionSource = Literal["shared", "own", "states", "none"]


class DraftLlava(LlavaForConditionalGeneration):
    """A LLaVA without a tower: projector and language model read the features of another model's tower."""

    def __init__(self, config: LlavaConfig) -> None:
        super().__init__(config)
        self.model.vision_tower = nn.Identity()
        self.compressor = compressor_of_config(config)


class DraftLlavaNext(LlavaNextForConditionalGeneration):
    """A LLaVA-NeXT without a tower: projector, newline and language model read another tower's features."""

    def __init__(self, config: LlavaNextConfig) -> None:
        super().__init__(config)
        self.model.vision_tower = nn.Identity()
        self.compressor = compressor_of_config(config)


def vision_source(draft: PreTrainedModel) -> VisionSource:
    """Return the source of a draft's picture features; a plain language model has none."""
    if isinstance(draft, FeatureDraft):
        return "states"
    if isinstance(draft, SlotDraft):
        return "shared"
    if getattr(draft.config, "vision_config", None) is None:
        return "none"
    return "shared" if isinstance(getattr(draft.model, "vision_tower", None), nn.Identity) else "own"


def saved_beside(draft: PreTrainedModel, processor: ProcessorMixin) -> ProcessorMixin | PreTrainedTokenizerBase | None:
    """Return the processor or tokenizer to save with a draft of the target that ``processor`` belongs to.

    A draft that reads the target's states has no tokens of its own; only one that reads a tower's needs a processor.
    """
    source = vision_source(draft)
    if source == "states":
        return None
    words_alone = source == "none" or isinstance(draft, SlotDraft)
    beside: ProcessorMixin | PreTrainedTokenizerBase = processor.tokenizer if words_alone else processor
    return beside


def save(
    model: PreTrainedModel,
    processor: ProcessorMixin | PreTrainedTokenizerBase | None,
    directory: Path,
    dtype: torch.dtype = torch.bfloat16,
    max_shard: str = MAX_SHARD,
) -> None:
    """Write a checkpoint under a temporary name and rename it, so that a directory that exists is complete.

    Args:
        processor: what is saved with it; see :func:`saved_beside`.

    Raises:
        OSError: it cannot be written, such as on a full disk; nothing of it remains.
    """
    try:
        with whole_directory(directory) as beside:
            model.to("cpu", dtype).save_pretrained(beside, max_shard_size=max_shard)
            if processor is not None:
                processor.save_pretrained(beside)
    except (SafetensorError, OSError) as error:
        raise OSError(f"{directory} cannot be written: {error}") from error
