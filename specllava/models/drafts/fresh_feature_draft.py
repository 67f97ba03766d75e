"""A new feature draft for a target, before it has learnt anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from specllava.models.language_model import FULL
from specllava.models.options import DraftFormat
from specllava.models.drafts.eagle import LAST, FeatureDraft, FeatureDraftConfig, rotary_settings

SIZES: Final = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "max_position_embeddings",
    "vocab_size", "initializer_range",
)  # fmt: skip


def fresh_feature_draft(
    target: PreTrainedModel,
    kind: DraftFormat = "eagle",
    input_norm: bool = True,
    guessable: Sequence[int] | None = None,
    seed: int = 0,
    heads: int = 0,
    intermediate_size: int = 0,
) -> FeatureDraft:
    """Return a new draft of one layer for ``target``, in float32 and bound to it.

    Args:
        input_norm: norm in front of the layer, as in EagleVLM; not for EAGLE-3, which has norms of its own.
        guessable: ids that the head of an EAGLE-3 draft scores; all without.
        heads: of its attention, keys and values included, each as wide as the target's; 0 for as many as the target.
        intermediate_size: of its MLP; 0 for the target's.

    Raises:
        ValueError: more heads than the target's.
    """
    text = target.config.get_text_config()
    rotations = text.rope_parameters
    sizes = {name: getattr(text, name) for name in SIZES}
    sizes |= rotary_settings("the target", {"rope_parameters": rotations.get(FULL, rotations)}, in_rows=False)
    sizes |= {"hidden_act": "silu"}  # whatever the target's: engines have no other in a draft's layer
    sizes |= {"rms_norm_eps": getattr(text, "rms_norm_eps", None) or text.layer_norm_eps}  # as Cohere names it
    sizes |= _narrower(text, heads, intermediate_size)
    count, eagle3 = int(text.num_hidden_layers), kind == "eagle3"
    ids = None if guessable is None else sorted(set(guessable))
    config = FeatureDraftConfig(
        **sizes,
        format=kind,
        state_layers=[min(2, count), count // 2, max(0, count - 3)] if eagle3 else LAST,
        draft_vocab_size=len(ids) if eagle3 and ids is not None else None,
        input_norm=input_norm and not eagle3,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        draft = FeatureDraft(config)
    if eagle3:
        _take_over_head(draft, target, ids)
    else:
        _pass_states_through(draft.fc)
    return draft.bind(target)


def _narrower(text: PretrainedConfig, heads: int, intermediate_size: int) -> dict[str, int]:
    """Return the sizes that may differ from the target's."""
    if heads > text.num_attention_heads:
        raise ValueError(f"{heads} heads for a draft of a target with {text.num_attention_heads}: ask for no more")
    sizes = {"head_dim": getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads}
    if intermediate_size:
        sizes["intermediate_size"] = intermediate_size
    if heads:
        sizes |= {"num_attention_heads": heads, "num_key_value_heads": heads}
    return sizes


@torch.no_grad()
def _pass_states_through(fusion: nn.Linear) -> None:
    """Let a fusion begin with the sum of embedding and state."""
    width = fusion.out_features
    fusion.weight += torch.eye(width).repeat(1, fusion.in_features // width)


@torch.no_grad()
def _take_over_head(draft: FeatureDraft, target: PreTrainedModel, ids: Sequence[int] | None) -> None:
    """Begin with the target's final norm and the rows of its head that score ``ids``."""
    norm = target.get_decoder().norm
    signs = torch.ones_like(norm.weight)
    signs[1::2] = -1.0  # of mean 0 and mean square 1, so that any norm leaves its scale, however it is stored
    draft.norm.weight.copy_(signs * norm(signs))
    rows = target.get_output_embeddings().weight
    if ids is None:
        draft.lm_head.weight.copy_(rows)
        return
    chosen = torch.tensor(ids)
    draft.lm_head.weight.copy_(rows[chosen.to(rows.device)])
    draft.d2t.copy_(chosen - torch.arange(len(ids)))
