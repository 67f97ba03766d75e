"""Targets with weights of 8 or 4 bits, through transformers' own configurations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any, Final, get_args

import torch
from torch import nn
from transformers import PreTrainedModel

from specllava.models.options import QuantizationName

SCHEMES: Final[tuple[QuantizationName, ...]] = get_args(QuantizationName)
BYTES: Final[dict[QuantizationName, float]] = {"int8": 1.0, "int4": 0.5}  # of a linear layer's weight


def decoder_weights(model: PreTrainedModel) -> list[nn.Linear]:
    """Return the layers that are stored in fewer bits: the linear ones of the decoder.

    What is small and what decides near-ties stays as it is: tower, projector and the head.
    """
    return [module for module in model.get_decoder().modules() if isinstance(module, nn.Linear)]


def kept_whole(model: PreTrainedModel) -> list[str]:
    """Return the full names of the modules that are not: the outermost ones without the decoder in them."""
    decoder = model.get_decoder()

    def outside(module: nn.Module, before: str) -> Iterator[str]:
        for name, part in module.named_children():
            if part is not decoder and decoder in part.modules():
                yield from outside(part, f"{before}{name}.")
            elif part is not decoder:
                yield before + name

    return list(outside(model, ""))


def quantization_config(scheme: QuantizationName, device: torch.device, whole: Callable[[], list[str]] = list) -> Any:
    """Return the configuration that ``from_pretrained`` takes; ``None`` for ``none``.

    Args:
        whole: returns the names of the modules that stay as they are; called where anything is quantised.

    int8 is LLM.int8() (arXiv 2208.07339) and int4 is NF4 (arXiv 2305.14314), both by bitsandbytes and for a GPU.

    Raises:
        ValueError: another scheme, bitsandbytes is not installed, or ``device`` is no GPU.
    """
    if scheme not in SCHEMES:
        raise ValueError(f"unknown quantization {scheme!r}: choose one of {', '.join(SCHEMES)}")
    if scheme == "none":
        return None
    if device.type != "cuda":
        raise ValueError(f"quantization {scheme} needs a GPU, the device is {device.type}: leave --quantization out")
    if find_spec("bitsandbytes") is None:
        raise ValueError(f"quantization {scheme} needs bitsandbytes, which is not installed: pip install bitsandbytes")
    from transformers import BitsAndBytesConfig

    skipped = whole()
    if scheme == "int8":
        return BitsAndBytesConfig(load_in_8bit=True, llm_int8_skip_modules=skipped)
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", llm_int8_skip_modules=skipped)
