"""Targets with weights of 8 or 4 bits, through transformers' own configurations."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Final, Literal, get_args

import torch

QuantizationName = Literal["none", "int8", "int4", "torchao-int8"]
SCHEMES: Final[tuple[QuantizationName, ...]] = get_args(QuantizationName)
# Bytes of a linear layer's weight, and the library that stores it.
BYTES: Final[dict[QuantizationName, float]] = {"int8": 1.0, "int4": 0.5, "torchao-int8": 1.0}
LIBRARY: Final[dict[QuantizationName, str]] = {
    "int8": "bitsandbytes",
    "int4": "bitsandbytes",
    "torchao-int8": "torchao",
}
# What is small and what decides near-ties stays as it is: tower, projector and the head.
WHOLE: Final = ("vision_tower", "vision_model", "visual", "multi_modal_projector", "connector", "lm_head")


def quantization_config(scheme: QuantizationName, place: torch.device) -> Any:
    """Return the configuration that ``from_pretrained`` takes; ``None`` for ``none``.

    int8 is LLM.int8() (arXiv 2208.07339) and int4 is NF4 (arXiv 2305.14314), both by bitsandbytes and for a GPU;
    torchao-int8 stores int8 weights and computes in the model's precision, on any device.

    Raises:
        ValueError: another scheme, the library is not installed, or the scheme does not run on ``place``.
    """
    if scheme not in SCHEMES:
        raise ValueError(f"unknown quantization {scheme!r}: choose one of {', '.join(SCHEMES)}")
    if scheme == "none":
        return None
    library = LIBRARY[scheme]
    if library == "bitsandbytes" and place.type != "cuda":
        raise ValueError(f"quantization {scheme} needs a GPU, the device is {place.type}: use torchao-int8")
    if find_spec(library) is None:
        raise ValueError(f'quantization {scheme} needs {library}, which is not installed: pip install "{library}"')
    from transformers import BitsAndBytesConfig, TorchAoConfig

    skipped = list(WHOLE)
    if scheme == "int8":
        return BitsAndBytesConfig(load_in_8bit=True, llm_int8_skip_modules=skipped)
    if scheme == "int4":
        return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", llm_int8_skip_modules=skipped)
    from torchao.quantization import Int8WeightOnlyConfig

    return TorchAoConfig(Int8WeightOnlyConfig(), modules_to_not_convert=skipped)
