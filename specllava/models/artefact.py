"""What lies on disk: a target with its vision tower, and a draft that has none and borrows the target's.

Both are ordinary Hugging Face directories: configuration, safetensors, tokenizer, processor.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from torch import nn
from transformers import LlavaConfig, LlavaForConditionalGeneration, LlavaProcessor

MAX_SHARD = "8MB"  # a hosted Space's git takes no file above 10 MB without extra tooling


class DraftLlava(LlavaForConditionalGeneration):
    """A LLaVA without eyes: projector and language model read the features of another model's tower."""

    def __init__(self, config: LlavaConfig) -> None:
        super().__init__(config)
        self.model.vision_tower = nn.Identity()


def save(
    model: LlavaForConditionalGeneration,
    processor: LlavaProcessor,
    directory: Path,
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    """Write a checkpoint; beside first, then renamed, so that a directory that exists is whole."""
    beside = directory.with_name(directory.name + ".writing")
    shutil.rmtree(beside, ignore_errors=True)
    model.to("cpu", dtype).save_pretrained(beside, max_shard_size=MAX_SHARD)
    processor.save_pretrained(beside)
    beside.rename(directory)
