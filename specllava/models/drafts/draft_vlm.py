"""Classes of drafts without a vision tower, and how models are saved.

Targets and drafts are ordinary Hugging Face directories: configuration, safetensors, tokenizer, processor. A draft
whose configuration has ``compressor`` reads fewer entries of each picture; see :class:`CompressorConfig`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from huggingface_hub.dataclasses import strict
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModel,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProcessorMixin,
)
from transformers.activations import ACT2FN

from specllava.files import whole_directory
from specllava.models.checkpoint import Checkpoint
from specllava.models.drafts.compressor import compressor_of_config
from specllava.models.drafts.eagle import FeatureDraft

MAX_SHARD = "8MB"  # a hosted Space's git takes no file above 10 MB without extra tooling
# The target's features, those of a tower of its own, the target's hidden states, no picture at all.
VisionSource = Literal["shared", "own", "states", "none"]


@strict
class SlotDraftConfig(PretrainedConfig):
    """Language model and input of a draft that reads slot embeddings.

    Args:
        target_type: model type of the targets whose slots it reads.
        slot_size: width of their embeddings.
        image_token_id: token of slots, as in the target.
        compressor: options of the visual compressor as :class:`CompressorConfig` has them, or none.
    """

    model_type = "slot_draft"
    sub_configs: ClassVar[dict[str, type]] = {"text_config": AutoConfig}

    text_config: dict[str, Any] | PretrainedConfig | None = None
    target_type: str = ""
    slot_size: int = 0
    image_token_id: int = -1
    projector_hidden_act: str = "gelu"
    compressor: dict[str, Any] | None = None
    tie_word_embeddings: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        if not isinstance(self.text_config, PretrainedConfig):
            options = {"model_type": "llama", **(self.text_config or {})}
            self.text_config = CONFIG_MAPPING[options["model_type"]](**options)
        super().__post_init__(**kwargs)


class SlotProjector(nn.Module):
    """Two-layer MLP from slot embeddings ``[slots, slot_size]`` to the draft's ``[slots, hidden]``."""

    def __init__(self, config: SlotDraftConfig) -> None:
        super().__init__()
        hidden = config.get_text_config().hidden_size
        self.linear_1 = nn.Linear(config.slot_size, hidden)
        self.act = ACT2FN[config.projector_hidden_act]
        self.linear_2 = nn.Linear(hidden, hidden)

    def forward(self, slots: Tensor) -> Tensor:
        projected: Tensor = self.linear_2(self.act(self.linear_1(slots)))
        return projected


class SlotDraft(PreTrainedModel):
    """A language model with a projector for the slot embeddings of a target of any family.

    The target's tower and projector have made those already, so no picture is encoded twice. Whatever positions and
    masks the target has, the draft reads one token after the other.
    """

    config_class = SlotDraftConfig
    config: SlotDraftConfig
    base_model_prefix = "model"
    _supports_sdpa = True
    supports_gradient_checkpointing = True

    def __init__(self, config: SlotDraftConfig) -> None:
        super().__init__(config)
        text = config.get_text_config()
        self.model = AutoModel.from_config(text)
        self.lm_head = nn.Linear(text.hidden_size, text.vocab_size, bias=False)
        self.projector = SlotProjector(config)
        self.compressor = compressor_of_config(config)
        self.post_init()


def draft_config(checkpoint: Checkpoint) -> PretrainedConfig:
    """Read the configuration of a draft, which transformers need not know.

    Raises:
        ValueError: as :meth:`Checkpoint.config`.
    """
    own = checkpoint.settings().get("model_type") == SlotDraftConfig.model_type
    return checkpoint.config(SlotDraftConfig) if own else checkpoint.config()


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
