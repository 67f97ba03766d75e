"""Drafts that presets name, by the configurations of their authors, at their published sizes and without memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support import checkpoints, published
from support.published_drafts import DRAFTS, tensors

from specllava.models.checkpoints.checkpoint import Checkpoint
from specllava.models.drafts.feature_checkpoint import AUX_LAYERS, feature_config, is_feature_draft, plain_name
from specllava.models.drafts.feature_draft import FeatureDraft
from specllava.models.loading.presets import presets

READING = {name: one for name, one in presets().items() if not one.shipped and one.draft and not one.family}
SEEN = {name: one for name, one in READING.items() if "was not seen" not in one.measured}
SECTIONS = {"Rayzl": ([16, 24, 24], False), "AngelSlim": ([24, 20, 20], True)}


def test_every_named_draft_has_a_configuration_or_its_preset_says_that_it_was_not_seen() -> None:
    assert {str(one.draft) for one in SEEN.values()} == set(DRAFTS)


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
    assert list(config.state_layers) == ([0, 1, 2] if "Cloudriver/EAGLE3" in str(preset.draft) else usual)
    theta = 10_000.0 if preset.reading.draft_rope_theta else float(settings.get("rope_theta", 10_000))
    assert config.rope_parameters["rope_theta"] == theta and preset.reading.draft_rope_theta in (None, 10_000.0)
    rotates = settings.get("rope_scaling") is not None
    sections = SECTIONS.get(str(preset.draft).split("/")[0] if rotates else "", (None, False))
    assert (config.mrope_section, config.mrope_interleaved) == sections


def test_the_drafts_that_mmspec_trained_on_the_first_states_name_none(tmp_path: Path) -> None:
    """Read as EAGLE-3's usual they had the states of layers 2, 16 and 29, which they never saw."""
    for name in ("llava-1.5-7b-eagle3", "qwen2.5-vl-7b-eagle3-mmspec"):
        preset = presets()[name]
        kind, settings = DRAFTS[str(preset.draft)]
        assert AUX_LAYERS not in settings and preset.reading.draft_state_layers == (0, 1, 2)
        weights = {plain_name(one): tensor for one, tensor in tensors(kind, settings).items()}
        target = published.models()[str(preset.target)][1]
        assert feature_config(name, settings, weights, target).state_layers[0] == 2
        directory = tmp_path / name
        directory.mkdir()
        checkpoints.write(directory / "config.json", settings)
        (directory / "pytorch_model.bin").touch()
        assert is_feature_draft(Checkpoint.at(directory))
