"""Export of a feature draft: EAGLE-1 for SGLang or for vLLM, EAGLE-3 for both, the layout of speculators for vLLM.

Names, shapes and configuration are those that vLLM's ``llama_eagle.py``, ``llama_eagle3.py`` and ``configs/``, SGLang's
models of the same names and ``Eagle3SpeculatorConfig`` of vllm-project/speculators read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, get_args

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor
from transformers import PretrainedConfig

from specllava.core.files import check_free, whole_directory
from specllava.distill.make_draft import MadeDraft
from specllava.models.checkpoints.checkpoint import Checkpoint, Source
from specllava.models.checkpoints.hub_cache import SINGLE
from specllava.models.drafts.draft_reading import LayoutName
from specllava.models.drafts.feature_checkpoint import (
    AUX_LAYERS,
    LAYER_CONFIG,
    VARIANTS,
    is_feature_draft,
    read_feature_draft,
)
from specllava.models.drafts.feature_draft import LAST, MROPE_KEYS, FeatureDraft, FeatureDraftConfig

LAYOUTS: Final[tuple[LayoutName, ...]] = get_args(LayoutName)
EAGLE: Final = LAYOUTS[:2]  # those of EAGLE-1
TAPS = 3  # hidden states that both engines hand to an EAGLE-3 draft
PROPOSED = 3  # tokens a pass that an engine is asked for where the command line does not say
LLAMA: Final = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "head_dim", "hidden_act", "rms_norm_eps", "max_position_embeddings", "initializer_range", "attention_bias",
    "mlp_bias",
)  # fmt: skip


def export_draft(
    draft: Source,
    target: Source,
    output: Path,
    layout: LayoutName,
    identity_layer: bool = False,
    tell: Callable[[str], None] = lambda line: None,
) -> MadeDraft:
    """Write a feature draft in a layout that inference engines load.

    Args:
        draft: in any format that :func:`read_feature_draft` knows.
        target: only its configuration is read and, for ``eagle-sglang``, its token embeddings.
        identity_layer: put a layer that changes nothing in front of one that has an input norm, which the first layer
            of EAGLE-1 cannot have.
        tell: receives a line if weights must be unpickled.

    Raises:
        ValueError: models that are not there or do not fit, an output that is, or what the layout cannot hold, with the
            way out; in one line.
        OSError: it cannot be written; nothing of it remains.
    """
    check_free(output)
    small, large = Checkpoint.at(draft), Checkpoint.at(target)
    if not is_feature_draft(small):
        raise ValueError(
            f"{small.name} does not read the target's states, so it has none of the layouts {', '.join(LAYOUTS)}:"
            " engines take such a draft as it is"
        )
    config = large.config()
    made = read_feature_draft(small, config, None, tell)
    why = _missing_in(layout, made, config, identity_layer)
    if why:
        raise ValueError(f"the layout {layout} cannot hold {small.name}: {why}")
    if layout in EAGLE:
        weights, settings = _eagle(made, layout, identity_layer)
    elif layout == "eagle3":
        weights, settings = _eagle3(made, "midlayer."), _llama(made) | _heads(made.config) | _engines(made.config)
    else:
        weights, settings = _eagle3(made, "layers.0."), _speculators(made, large)
    if layout == "eagle-sglang" or (_is_scaled(config) and not made.config.own_embeddings):
        weights["embed_tokens.weight"] = _embeddings(large, config, made.fc.weight.dtype)
    if layout != "speculators":
        settings["target_model_type"] = config.model_type
    _write(output, weights, settings)
    notes = [f"layout {layout}, {len(weights)} tensors: not tried on an engine yet (docs/drafters.md)"]
    if layout == "eagle-vllm":
        notes.append("vLLM's class for EAGLE-1 serves text models alone: with pictures take EAGLE-3")
    if layout == "speculators" and large.local:
        notes.append(
            f"its config.json names {large.name_or_path} as the target: write the id of the hub there if it moves"
        )
    return MadeDraft(output, "states", sum(one.numel() for one in weights.values()), tuple(notes))


def _missing_in(layout: LayoutName, draft: FeatureDraft, target: PretrainedConfig, identity_layer: bool) -> str | None:
    """Name the part of a draft that a layout cannot hold, and the way out; ``None`` if it holds all of it."""
    config = draft.config
    kind = config.format
    if config.qkv_bias or config.attention_bias or config.mlp_bias:
        return "its layers have biases, which engines leave out: distil one, which has none"
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act}, and engines have silu alone: distil a new one"
    if config.compressor is not None:
        return "it reads compressed pictures, which no engine does: distil one without a compressor"
    if kind in ("msd", "vispec"):
        return f"it reads pictures as {kind} does, which no engine does: distil one with --drafter eagle or eagle3"
    if (kind == "eagle") != (layout in EAGLE):
        return f"its format is {kind}: use --format {' or '.join(EAGLE if kind == 'eagle' else LAYOUTS[2:])}"
    if kind == "eagle":
        return _missing_in_eagle(layout, draft, target, identity_layer)
    count, layers = int(target.get_text_config().num_hidden_layers), list(config.state_layers)
    if len(layers) != TAPS or any(not 0 < one < count for one in layers):
        given = f"{TAPS} of the hidden states 1 to {count - 1}"
        return f"engines give it {given}, and it reads {layers}: distil one with --drafter eagle3"
    variants = [name for name in VARIANTS if getattr(config, name)]
    if layout == "eagle3" and variants:
        return f"it has {', '.join(variants)}: use --format speculators"
    if layout == "eagle3" and config.num_hidden_layers > 1:
        return f"it has {config.num_hidden_layers} layers, and SGLang takes 1: use --format speculators, for vLLM"
    return None


def _missing_in_eagle(
    layout: LayoutName, draft: FeatureDraft, target: PretrainedConfig, identity_layer: bool
) -> str | None:
    """Name the part of an EAGLE-1 draft that a layout cannot hold, as :func:`_missing_in`."""
    config = draft.config
    if config.own_embeddings or config.hidden_size != target.get_text_config().hidden_size:
        return "engines give it the target's token embeddings, and it has its own: distil one with the target's"
    if _is_scaled(target):
        return (
            "engines give it the target's token embeddings without the factor of the target's decoder:"
            " distil one with --drafter eagle3, whose norm makes up for it"
        )
    if tuple(config.state_layers) != LAST:
        layers = list(config.state_layers)
        return f"engines give it the target's last states, and it reads {layers}: distil one with --drafter eagle"
    if layout == "eagle-vllm" and draft.fc.bias is not None and draft.fc.bias.any():
        return (
            "its fusion has a bias, and vLLM's has none: use --format eagle-sglang, or distil one with --drafter eagle3"
        )
    if config.input_norm and not identity_layer:
        return (
            "its first layer has an input norm, which engines leave out there: add --identity-layer, which costs"
            " one more layer a pass, or distil one with --no-input-norm"
        )
    return None


def _eagle(draft: FeatureDraft, layout: LayoutName, identity_layer: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return tensors and configuration of EAGLE-1; SGLang's fusion has a bias, vLLM's has none."""
    own, settings = dict(draft.state_dict()), _llama(draft)
    if identity_layer and draft.config.input_norm:
        own = {_one_later(name): one for name, one in own.items()}
        own |= {f"layers.0.{name}": _changing_nothing(one) for name, one in draft.layers[0].state_dict().items()}
        del own["layers.0.input_layernorm.weight"]
        settings["num_hidden_layers"] += 1
    bias = own.pop("fc.bias", own["fc.weight"].new_zeros(len(own["fc.weight"])))
    if layout == "eagle-vllm":  # which puts Eagle in front of the architecture's name
        return own, settings | {"architectures": ["LlamaForCausalLM"]}
    return own | {"fc.bias": bias}, settings | {"architectures": ["LlamaForCausalLMEagle"]}


def _embeddings(target: Checkpoint, config: PretrainedConfig, dtype: torch.dtype) -> Tensor:
    """Return the target's token embeddings as its decoder reads them; a draft of an engine looks them up, no more."""
    rows = target.tensors("embed_tokens")["weight"].to(dtype)
    scale = torch.tensor(config.get_text_config().hidden_size**0.5, dtype=dtype)
    return rows * scale if _is_scaled(config) else rows


def _is_scaled(target: PretrainedConfig) -> bool:
    """Whether a decoder multiplies its token embeddings, as Gemma's does."""
    return str(target.get_text_config().model_type).startswith("gemma")


def _one_later(name: str) -> str:
    """Return a tensor's name where its layer has one more in front."""
    part, _, rest = name.partition(".")
    if part != "layers":
        return name
    number, _, rest = rest.partition(".")
    return f"layers.{int(number) + 1}.{rest}"


def _changing_nothing(weight: Tensor) -> Tensor:
    """Return a weight for a layer whose products are zero, so that only its residual is left."""
    return torch.ones_like(weight) if weight.dim() == 1 else torch.zeros_like(weight)


def check_exportable(config: FeatureDraftConfig) -> None:
    """Refuse an EAGLE-3 draft with what is read here and not written.

    Raises:
        ValueError: it has any of it.
    """
    parts = {
        "norms of queries and keys": config.qk_norm,
        "no fc": not config.fusion,
        "a bias of fc": config.fusion and config.fc_bias,
        "no head of its own": not config.own_head,
    }
    if extra := [part for part, present in parts.items() if present]:
        raise ValueError(f"it has {' and '.join(extra)}, which export does not write: hand on the files that it is of")


def _eagle3(draft: FeatureDraft, layer: str) -> dict[str, Tensor]:
    """Return EAGLE-3's tensors, its decoder layer named ``layer``; ``d2t`` and ``t2d`` unless it guesses all."""
    check_exportable(draft.config)
    weights = {name.replace("layers.0.", layer): one for name, one in draft.state_dict().items()}
    offsets, size = weights.pop("d2t"), draft.config.vocab_size
    if len(offsets) == size:
        return weights
    guessable = torch.zeros(size, dtype=torch.bool)
    guessable[offsets + torch.arange(len(offsets))] = True
    return weights | {"d2t": offsets, "t2d": guessable}


def _llama(draft: FeatureDraft) -> dict[str, Any]:
    """Return the configuration of the draft's layers as a Llama's, its rotations as older transformers write them."""
    config, precision = draft.config, draft.fc.weight.dtype
    rotations: Mapping[str, Any] = config.rope_parameters
    scaling = {name: value for name, value in rotations.items() if name != "rope_theta"}
    if config.mrope_section is not None:
        scaling |= {name: getattr(config, name) for name in MROPE_KEYS}
    return {
        "model_type": "llama",
        **{name: getattr(config, name) for name in LLAMA},
        "rope_theta": rotations["rope_theta"],
        "rope_scaling": None if scaling == {"rope_type": "default"} else scaling,
        "tie_word_embeddings": False,
        "torch_dtype": str(precision).removeprefix("torch."),
    }


def _heads(config: FeatureDraftConfig) -> dict[str, Any]:
    """Return the fields of EAGLE-3's head and states, which vLLM and speculators number as transformers does."""
    return {"draft_vocab_size": config.draft_vocab_size, AUX_LAYERS: list(config.state_layers)}


def _engines(config: FeatureDraftConfig) -> dict[str, Any]:
    """Return the fields that vLLM and SGLang read besides; SGLang numbers the layers that give the states, one less."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "target_hidden_size": config.target_hidden_size,
        "eagle_aux_layer_semantics": "vllm",  # of the numbers outside eagle_config
        "eagle_config": {"use_aux_hidden_state": True, AUX_LAYERS: [one - 1 for one in config.state_layers]},
    }


def _speculators(draft: FeatureDraft, target: Checkpoint) -> dict[str, Any]:
    """Return the configuration of the speculators layout."""
    config, nested = draft.config, _llama(draft)
    wider = config.target_hidden_size != config.hidden_size
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_config": {
            "algorithm": "eagle3",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": PROPOSED}],
            "default_proposal_method": "greedy",
            "verifier": {
                "name_or_path": target.name_or_path, "architectures": target.settings().get("architectures") or [],
            },
        },
        LAYER_CONFIG: nested,
        **_heads(config),
        "target_hidden_size": config.target_hidden_size if wider else None,
        "embed_requires_grad": config.own_embeddings,
        **{name: bool(getattr(config, name)) for name in VARIANTS},
        **{name: nested[name] for name in ("tie_word_embeddings", "torch_dtype")},
    }


def _write(output: Path, weights: Mapping[str, Tensor], settings: Mapping[str, Any]) -> None:
    try:
        with whole_directory(output) as beside:
            beside.mkdir(parents=True)
            save_file({name: one.contiguous() for name, one in weights.items()}, beside / SINGLE, {"format": "pt"})
            (beside / "config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    except (SafetensorError, OSError) as error:
        raise OSError(f"{output} cannot be written: {error}") from error
