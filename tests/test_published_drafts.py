"""Drafts that presets name, by the configurations of their authors, at their published sizes and without memory."""

from __future__ import annotations

import pytest
import torch
from support import published
from support.published_drafts import DRAFTS, tensors

from specllava.models.drafts.eagle import FeatureDraft
from specllava.models.drafts.eagle_checkpoint import feature_config, plain_name
from specllava.models.presets import presets

SEEN = {name: one for name, one in presets().items() if str(one.draft) in DRAFTS}


@pytest.mark.parametrize("name", SEEN)
def test_a_preset_fits_its_target_by_the_configuration_of_its_authors(name: str) -> None:
    """Every tensor of theirs has its place and none is missing; layers and rotations are those that it learnt with."""
    preset = SEEN[name]
    (kind, settings), (_, target) = DRAFTS[str(preset.draft)], published.models()[str(preset.target)]
    weights = {plain_name(one): tensor for one, tensor in tensors(kind, settings).items()}
    config = feature_config(name, settings, weights, target, preset.reading)
    assert config.format == kind
    with torch.device("meta"):
        draft = FeatureDraft(config)
    if not config.own_embeddings:
        del weights["embed_tokens.weight"]
    placed, stored = ({key: one.shape for key, one in held.items()} for held in (draft.state_dict(), weights))
    assert placed == stored
    count = target.get_text_config().num_hidden_layers
    usual = [2, count // 2, count - 3] if kind == "eagle3" else [-1]
    assert list(config.state_layers) == usual
    assert config.rope_parameters["rope_theta"] == float(settings.get("rope_theta", 10_000))
    assert config.mrope_section is None
