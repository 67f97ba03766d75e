"""Devices of a model: one, or several that accelerate's hooks move its states between."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel


def input_device(model: PreTrainedModel) -> torch.device:
    """Return the device that takes a model's token ids and pictures.

    Of a model on several devices that is where its word embeddings run, whose weights may lie elsewhere until then.
    """
    embeddings = model.get_input_embeddings()
    device = getattr(getattr(embeddings, "_hf_hook", None), "execution_device", None)
    return embeddings.weight.device if device is None else torch.device(device)


def parse_device(name: str) -> torch.device:
    """Return the device of a name; ``auto`` is the GPU if there is one.

    Raises:
        ValueError: no such device, or none here.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"unknown device {name!r}: use auto, cpu, cuda or cuda:N") from error
    if device.type == "mps":
        raise ValueError(f"device {name} computes no float64, which answers are chosen in: use cpu")
    other = torch.accelerator.current_accelerator()
    if device.type not in ("cpu", "cuda") and (other is None or device.type != other.type):  # such as meta
        raise ValueError(f"unknown device {name!r}: use auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device {name} is not there: {torch.cuda.device_count()} GPUs are available")
    return device
