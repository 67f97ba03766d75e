"""Drafts that are language models: with the target's tower, with slots, and with fused layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from huggingface_hub.dataclasses import strict
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModel,
    Cache,
    LlamaModel,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    PretrainedConfig,
    PreTrainedModel,
    ProcessorMixin,
)
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from specllava.files import whole_directory
from specllava.models.checkpoint import Checkpoint
from specllava.models.drafts.compressor import compressor_of_config
from specllava.models.drafts.eagle import EagleLayer, FeatureDraft

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


@contextmanager
def checkpoint_directory(directory: Path) -> Iterator[Path]:
    """Give a directory with a temporary name that is renamed at the end, so that one that exists is complete.

    Raises:
        OSError: it cannot be written, such as on a full disk; nothing of it remains.
    """
    try:
        with whole_directory(directory) as beside:
            yield beside
    except (SafetensorError, OSError) as error:
        raise OSError(f"{directory} cannot be written: {error}") from error


def save(
    model: PreTrainedModel,
    processor: ProcessorMixin | None,
    directory: Path,
    dtype: torch.dtype = torch.bfloat16,
    max_shard: str = MAX_SHARD,
) -> None:
    """Write a checkpoint, with the part of its target's processor that it reads by.

    Args:
        processor: nothing of it is written beside a draft that reads states, the tokenizer beside a language model.

    Raises:
        OSError: it cannot be written, such as on a full disk; nothing of it remains.
    """
    with checkpoint_directory(directory) as beside:
        model.to("cpu", dtype).save_pretrained(beside, max_shard_size=max_shard)
        if processor is not None and (source := vision_source(model)) != "states":
            words_alone = source == "none" or isinstance(model, SlotDraft)
            (processor.tokenizer if words_alone else processor).save_pretrained(beside)


def fuse(model: PreTrainedModel) -> PreTrainedModel:
    """Fuse the decoder layers of a model in place if they are a Llama's with plain weights; return the model."""
    if isinstance(model, FeatureDraft):
        if all(isinstance(layer, EagleLayer) and _is_plain(layer) for layer in model.layers):
            model.layers = nn.ModuleList(FusedLayer(layer) for layer in model.layers)
        return model
    decoder = model.get_decoder()
    if isinstance(decoder, LlamaModel) and all(_is_plain(layer) for layer in decoder.layers):
        decoder.layers = nn.ModuleList(FusedLayer(layer) for layer in decoder.layers)
        gain = decoder.norm.weight
        decoder.norm = nn.RMSNorm(gain.shape, decoder.norm.variance_epsilon, device="meta")
        decoder.norm.weight = gain
    return model


def _is_plain(layer: LlamaDecoderLayer) -> bool:
    """Check that a layer's products have no quantised weights, and no biases but queries, keys and values all three."""
    named = {**dict(layer.self_attn.named_children()), **dict(layer.mlp.named_children())}
    products = {name: module for name, module in named.items() if hasattr(module, "weight")}
    if not all(type(each) is nn.Linear and type(each.weight.data) is Tensor for each in products.values()):
        return False
    biased = {name for name, each in products.items() if each.bias is not None}
    return biased in (set(), {"q_proj", "k_proj", "v_proj"})


class FusedLayer(nn.Module):
    """A Llama layer with queries, keys and values in one product, and gate and up in another.

    It is called as transformers calls its own, for a batch of 1.
    """

    def __init__(self, layer: LlamaDecoderLayer) -> None:
        super().__init__()
        attention, mlp = layer.self_attn, layer.mlp
        self.number, self.size = attention.layer_idx, attention.head_dim
        self.queries = attention.q_proj.out_features // self.size
        self.keys = attention.k_proj.out_features // self.size
        self.hidden, self.eps = (attention.q_proj.in_features,), layer.post_attention_layernorm.variance_epsilon
        self.activation: Callable[[Tensor], Tensor] = mlp.act_fn
        gain = getattr(layer.input_layernorm, "weight", None)  # EAGLE has no norm in front of its first layer
        self.normed = gain is not None
        inward = attention.q_proj, attention.k_proj, attention.v_proj
        self.biased = attention.q_proj.bias is not None
        absent = attention.o_proj.weight.data.new_ones(0)
        weights = (
            absent if gain is None else gain.data,
            torch.cat([each.bias.data for each in inward]) if self.biased else absent,
            _stack_weights(*inward),
            attention.o_proj.weight.data.t(),
            layer.post_attention_layernorm.weight.data,
            _stack_weights(mlp.gate_proj, mlp.up_proj),
            mlp.down_proj.weight.data.t(),
        )
        self.sources = nn.ParameterList(nn.Parameter(weight, requires_grad=False) for weight in weights)
        self.weights = _raw(self)
        self.register_load_state_dict_post_hook(_refresh)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> FusedLayer:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.weights = _raw(self)
        return self

    def __setstate__(self, state: dict[str, Any]) -> None:  # of a copy
        super().__setstate__(state)
        self.weights = _raw(self)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        past_key_values: Cache | None = None,
        **_: object,
    ) -> Tensor:
        """Run the layer, ``[1, tokens, hidden]`` in and out; without gradients.

        Args:
            attention_mask: added to the scores, ``[1, 1, tokens, columns]``; without it attention is causal.
            position_embeddings: cosines and sines ``[1, tokens, size of a head]``.

        Raises:
            ValueError: several rows.
        """
        assert position_embeddings is not None
        if len(hidden_states) != 1:
            raise ValueError(f"a fused draft reads one row, not {len(hidden_states)}: load one that learns apart")
        first_gain, bias, inward, outward, second_gain, widening, narrowing = self.weights
        states = hidden_states[0]
        tokens = len(states)
        normed = F.rms_norm(states, self.hidden, first_gain, self.eps) if self.normed else states
        made = torch.addmm(bias, normed, inward) if self.biased else torch.mm(normed, inward)
        parts = made.view(1, tokens, -1, self.size).transpose(1, 2)
        turned = _rotate(parts[:, : -self.keys], *position_embeddings)  # [1, queries + keys, tokens, size]
        keys, values = turned[:, self.queries :], parts[:, -self.keys :]
        if past_key_values is not None:
            keys, values = past_key_values.update(keys, values, self.number)
        seen = F.scaled_dot_product_attention(
            turned[:, : self.queries],
            keys,
            values,
            attn_mask=attention_mask,
            is_causal=attention_mask is None and tokens > 1,
            enable_gqa=self.queries != self.keys,
        )
        gathered = seen[0].transpose(0, 1).reshape(tokens, -1)  # [tokens, queries * size]
        states = torch.addmm(states, gathered, outward)
        normed = F.rms_norm(states, self.hidden, second_gain, self.eps)
        gate, up = torch.mm(normed, widening).chunk(2, -1)
        return torch.addmm(states, self.activation(gate) * up, narrowing)[None]


def _raw(layer: FusedLayer) -> tuple[Tensor, ...]:
    """Return the layer's weights as plain tensors: looking up a module's parameter takes as long as an addition."""
    return tuple(weight.data for weight in layer.sources)


def _refresh(layer: FusedLayer, _: object) -> None:
    layer.weights = _raw(layer)


def _rotate(parts: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotate queries and keys ``[1, heads, tokens, size]`` by their positions: a head's halves form one plane."""
    first, second = parts.chunk(2, -1)
    return torch.addcmul(parts * cosines, torch.cat([-second, first], -1), sines)


def _stack_weights(*products: nn.Linear) -> Tensor:
    """Concatenate the weights of several products, ``[in, out]``, so that their results follow one another."""
    return torch.cat([each.weight.data.t() for each in products], dim=1)
