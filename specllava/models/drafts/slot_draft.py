"""A draft VLM for a target of any family: a language model that reads what the target's image slots hold.

The target's tower and projector have made those embeddings already, so no picture is encoded twice, and whatever
positions and masks the target has, the draft reads one token after the other.
"""

from __future__ import annotations

from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel
from transformers.activations import ACT2FN

from specllava.models.checkpoints.checkpoint import Checkpoint
from specllava.models.drafts.compressors import compressor_of_config


@strict
class SlotDraftConfig(PretrainedConfig):
    """Language model and input of a draft that reads slot embeddings.

    Args:
        text_config: of the language model.
        target_type: model type of the targets whose slots it reads.
        slot_size: width of their embeddings.
        image_token_id, video_token_id: tokens of slots, as in the target; ``None`` where it has no videos.
        projector_hidden_act: between the projector's two layers.
        compressor: options of the visual compressor as :class:`CompressorConfig` has them, or none.
    """

    model_type = "slot_draft"
    sub_configs: ClassVar[dict[str, type]] = {"text_config": AutoConfig}

    text_config: dict[str, Any] | PretrainedConfig | None = None
    target_type: str = ""
    slot_size: int = 0
    image_token_id: int = -1
    video_token_id: int | None = None
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
    """A language model with a projector for the target's slot embeddings."""

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
