"""Tokens of a vision tower."""

from __future__ import annotations

from copy import deepcopy

import torch
from transformers import AutoModel, PretrainedConfig


def count_prefix_tokens(vision: PretrainedConfig) -> int:
    """Count the tokens that a tower puts before a picture's patches: a class token, registers or none."""
    shallow = deepcopy(vision)
    shallow.num_hidden_layers = 1
    with torch.device("meta"):
        states = AutoModel.from_config(shallow)(torch.empty(1, 3, vision.image_size, vision.image_size))[0]
    return int(states.shape[1] - (vision.image_size // vision.patch_size) ** 2)
