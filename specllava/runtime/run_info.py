"""Circumstances of a run: models, device, precision and versions."""

from __future__ import annotations

import platform

import torch
import transformers
from transformers import PreTrainedModel

from specllava.core.trace import RunInfo
from specllava.models.checkpoints.language_model import input_device
from specllava.models.drafts.draft_classes import VisionSource
from specllava.models.loading.load_options import QuantizationName
from specllava.verification.answer_settings import settings_in_force


def run_info(
    pair: str,
    target: PreTrainedModel,
    target_name: str,
    draft_name: str,
    quantization: QuantizationName,
    draft_vision: VisionSource | None = None,
) -> RunInfo:
    """Describe models, device, precision and versions.

    Args:
        draft_vision: source of the draft's picture features; ``None`` without a draft.
    """
    device, precision = input_device(target), str(target.dtype).removeprefix("torch.")
    return RunInfo(
        pair=pair,
        target=target_name,
        draft=draft_name,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        dtype=precision if quantization == "none" else f"{precision} {quantization}",
        threads=torch.get_num_threads(),
        versions={
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        draft_reads="states" if draft_vision == "states" else None,
        generation_config=settings_in_force(target.generation_config, sampling=False),
    )
