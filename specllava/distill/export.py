"""Export of an EAGLE-3 draft in the layout that vLLM and SGLang both load.

Names, shapes and configuration are those that vLLM's ``llama_eagle3.py`` and ``configs/`` and SGLang's
``llama_eagle3.py`` read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PretrainedConfig

from specllava.distill.new_draft import MadeDraft
from specllava.files import check_free
from specllava.models.checkpoint import SINGLE, Checkpoint, Source
from specllava.models.drafts.draft_vlm import checkpoint_directory
from specllava.models.drafts.eagle import MROPE_KEYS, FeatureDraft
from specllava.models.drafts.eagle_checkpoint import AUX_LAYERS, VARIANTS, is_feature_draft, read_feature_draft

TAPS = 3  # hidden states that both engines hand to an EAGLE-3 draft
LLAMA: Final = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "head_dim", "hidden_act", "rms_norm_eps", "max_position_embeddings", "initializer_range", "attention_bias",
    "mlp_bias",
)  # fmt: skip
DISTIL: Final = "distil one with --drafter eagle3"


def export_draft(
    draft: Source, target: Source, output: Path, notify: Callable[[str], None] = lambda line: None
) -> MadeDraft:
    """Write an EAGLE-3 draft in the layout that inference engines load.

    Args:
        draft: in any format that :func:`read_feature_draft` knows.
        target: only its configuration is read, and its token embeddings where its decoder multiplies them.

    Raises:
        ValueError: models that are not there or do not fit, an output that is, or what the layout cannot hold, with the
            way out; in one line.
        OSError: it cannot be written; nothing of it remains.
    """
    check_free(output)
    small, large = Checkpoint.at(draft), Checkpoint.at(target)
    if not is_feature_draft(small):
        raise ValueError(
            f"{small.name} does not read the target's states, so it cannot be exported: engines take such a draft as it"
            " is"
        )
    config = large.config()
    made = read_feature_draft(small, config, None, notify)
    if why := _missing_in_layout(made, config):
        raise ValueError(f"the layout of engines cannot hold {small.name}: {why}")
    weights, text = _tensors(made), config.get_text_config()
    if str(text.model_type).startswith("gemma") and not made.config.own_embeddings:
        # Gemma's decoder multiplies its token embeddings; an engine's draft looks them up, no more.
        dtype = made.fc.weight.dtype
        scale = torch.tensor(text.hidden_size**0.5, dtype=dtype)
        weights["embed_tokens.weight"] = large.tensors("embed_tokens")["weight"].to(dtype) * scale
    settings = _settings(made) | {"target_model_type": config.model_type}
    with checkpoint_directory(output) as beside:
        beside.mkdir(parents=True)
        save_file({name: one.contiguous() for name, one in weights.items()}, beside / SINGLE, {"format": "pt"})
        (beside / "config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    note = f"{len(weights)} tensors for vLLM and SGLang: not tried on an engine yet (docs/use.md)"
    return MadeDraft(output, sum(one.numel() for one in weights.values()), (note,))


def _missing_in_layout(draft: FeatureDraft, target: PretrainedConfig) -> str | None:
    """Name the part of a draft that the layout cannot hold, and the way out; ``None`` if it holds all of it."""
    config = draft.config
    if config.format != "eagle3":
        return f"its format is {config.format}: {DISTIL}"
    if config.qkv_bias or config.attention_bias or config.mlp_bias:
        return f"its layers have biases, which engines leave out: {DISTIL}, which has none"
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act}, and engines have silu alone: {DISTIL}"
    count, layers = int(target.get_text_config().num_hidden_layers), list(config.state_layers)
    if len(layers) != TAPS or any(not 0 < one < count for one in layers):
        return f"engines give it {TAPS} of the hidden states 1 to {count - 1}, and it reads {layers}: {DISTIL}"
    parts = {
        "norms of queries and keys": config.qk_norm,
        "a bias of fc": config.fc_bias,
        "no head of its own": not config.own_head,
        f"{config.num_hidden_layers} layers": config.num_hidden_layers > 1,
        **{name: getattr(config, name) for name in VARIANTS},
    }
    if extra := [part for part, present in parts.items() if present]:
        return f"it has {' and '.join(extra)}: hand on the files that it is of"
    return None


def _tensors(draft: FeatureDraft) -> dict[str, Tensor]:
    """Return EAGLE-3's tensors; ``d2t`` and ``t2d`` unless it guesses all tokens."""
    weights = {name.replace("layers.0.", "midlayer."): one for name, one in draft.state_dict().items()}
    offsets, size = weights.pop("d2t"), draft.config.vocab_size
    if len(offsets) == size:
        return weights
    guessable = torch.zeros(size, dtype=torch.bool)
    guessable[offsets + torch.arange(len(offsets))] = True
    return weights | {"d2t": offsets, "t2d": guessable}


def _settings(draft: FeatureDraft) -> dict[str, Any]:
    """Return the configuration: that of a Llama, its rotations as older transformers write them, and EAGLE-3's fields.

    vLLM numbers states as transformers does, SGLang the layers that give them, one less.
    """
    config, precision = draft.config, draft.fc.weight.dtype
    rotations: Mapping[str, Any] = config.rope_parameters
    scaling = {name: value for name, value in rotations.items() if name != "rope_theta"}
    if config.mrope_section is not None:
        scaling |= {name: getattr(config, name) for name in MROPE_KEYS}
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        **{name: getattr(config, name) for name in LLAMA},
        "rope_theta": rotations["rope_theta"],
        "rope_scaling": None if scaling == {"rope_type": "default"} else scaling,
        "tie_word_embeddings": False,
        "torch_dtype": str(precision).removeprefix("torch."),
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        AUX_LAYERS: list(config.state_layers),
        "eagle_aux_layer_semantics": "vllm",  # of the numbers outside eagle_config
        "eagle_config": {"use_aux_hidden_state": True, AUX_LAYERS: [one - 1 for one in config.state_layers]},
    }
