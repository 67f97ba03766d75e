"""How weights are stored, and whether a pair fits into memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, Final, get_args

import psutil
import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from specllava.config import DecodingConfig
from specllava.models.drafts.eagle import FeatureDraftConfig
from specllava.models.options import QuantizationName

SCHEMES: Final[tuple[QuantizationName, ...]] = get_args(QuantizationName)
BYTES: Final[dict[QuantizationName, float]] = {"int8": 1.0, "int4": 0.5}  # of a linear layer's weight
GB: Final = 1e9
SHORTEST: Final = 64  # tokens of context that are worth proposing
ENOUGH: Final = 4096  # tokens of context that are taken without being asked, where all that the target holds do not fit
Build = tuple[type[PreTrainedModel], PretrainedConfig]


def unquantized(model: PreTrainedModel) -> list[str]:
    """Return the full names of the outermost modules without the decoder in them, such as tower, projector and head.

    They stay as they are: they are small, or decide near-ties. The decoder's linear layers are stored in fewer bits.
    """
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

    int8 is LLM.int8() (arXiv 2208.07339) and int4 is NF4 (arXiv 2305.14314), both by bitsandbytes and for a GPU.

    Args:
        whole: returns the names of the modules that stay as they are; called where anything is quantised.

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

    kind = {"load_in_8bit": True} if scheme == "int8" else {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    return BitsAndBytesConfig(**kind, llm_int8_skip_modules=whole())


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Numbers of a model that its memory follows from.

    Args:
        weights: all of them; a head that is tied to the embeddings counts once.
        linear: those of the decoder's linear layers, which a quantised target stores in fewer bits.
        column: numbers in one column of its KV cache: the keys and values of a token, and a draft's own state.
        states: numbers of the target's states that are held for each of its columns, where a draft reads them.
    """

    weights: int
    linear: int
    column: int
    states: int

    def weight_bytes(self, itemsize: int, linear_itemsize: float | None = None) -> float:
        """Count the bytes of the weights; ``linear_itemsize`` is that of the decoder's linear layers, if another."""
        return float(self.weights * itemsize) + self.linear * ((linear_itemsize or itemsize) - itemsize)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes by purpose. Activations come on top; they are small beside weights, batch 1.

    Args:
        caches: keys and values of both models, and the target's states if the draft reads them. They have columns for
            ``context`` tokens and a tree of the default options, which a dialogue may take. A single answer takes less;
            a race holds a second cache of the target.
        column: bytes of them for one more token.
        packed: a second copy of the target's weights, in the layout of a CPU's fastest products.
    """

    target: float
    draft: float
    caches: float
    context: int
    column: int
    packed: float = 0.0

    @property
    def total(self) -> float:
        return self.target + self.draft + self.caches + self.packed

    def __str__(self) -> str:
        return (
            f"{self.total / GB:.2f} GB of memory: target {self.target / GB:.2f}, draft {self.draft / GB:.2f},"
            f" caches for {self.context} tokens {self.caches / GB:.2f}"
            + (f", packed weights {self.packed / GB:.2f}" if self.packed else "")
        )


def estimate(
    target: Build, draft: Build | None, dtype: torch.dtype, scheme: QuantizationName, context: int
) -> Estimate:
    """Estimate the memory of two classes and configurations; models are built without storage, to count weights.

    Args:
        context: tokens of prompt and answer.

    Raises:
        ValueError: a configuration that no model can be built of.
    """
    large, small = size_of(*target), ModelSize(0, 0, 0, 0) if draft is None else size_of(*draft)
    tree, itemsize = DecodingConfig(), dtype.itemsize
    numbers = tree.target_slots(context) * (large.column + small.states) + tree.draft_slots(context) * small.column
    return Estimate(
        target=large.weight_bytes(itemsize, BYTES.get(scheme)),
        draft=small.weight_bytes(itemsize),
        caches=float(numbers * itemsize),
        context=context,
        column=(large.column + small.column + small.states) * itemsize,
    )


def size_of(build: type[PreTrainedModel], config: PretrainedConfig) -> ModelSize:
    """Count the numbers of a model that its memory follows from; it is built without storage.

    Raises:
        ValueError: no model can be built of the configuration.
    """
    model = without_storage(build, config)
    text = config.get_text_config()
    heads = int(text.num_attention_heads)  # some types have one of keys and values for each
    kv_heads = int(getattr(text, "num_key_value_heads", None) or heads)
    head_dim = int(getattr(text, "head_dim", None) or text.hidden_size // heads)
    states = own = 0
    if isinstance(config, FeatureDraftConfig):
        own = config.hidden_size
        states = len(config.state_layers) * int(config.target_hidden_size or own)
    return ModelSize(
        weights=sum(weight.numel() for weight in model.parameters()),
        linear=sum(one.weight.numel() for one in model.get_decoder().modules() if isinstance(one, nn.Linear)),
        column=2 * text.num_hidden_layers * kv_heads * head_dim + own,
        states=states,
    )


def without_storage(build: type[PreTrainedModel], config: PretrainedConfig) -> PreTrainedModel:
    """Build a model without storage for its weights.

    Raises:
        ValueError: no model can be built of the configuration.
    """
    try:
        with torch.device("meta"):
            return build(config)
    except Exception as error:  # of sizes that fit nowhere, torch and transformers raise whatever they meet
        why = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        raise ValueError(f"{config.name_or_path} has a configuration that no model can be built of: {why}") from error


def free_bytes(device: torch.device, spread: bool) -> int:
    """Return the bytes free on a device; with ``spread`` those of all GPUs and of the machine together."""
    here = int(psutil.virtual_memory().available)
    if spread:
        return here + sum(torch.cuda.mem_get_info(number)[0] for number in range(torch.cuda.device_count()))
    return int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else here


def check_memory(
    name: str, needed: Estimate, device: torch.device, spread: bool, shorten: bool = False
) -> tuple[Estimate, str]:
    """Check that an estimate fits. Return it as it is taken, and a line with the memory needed and free.

    On a CPU packed weights are counted too, where all of it takes half of the free memory at most.

    Args:
        shorten: where the context that was counted does not fit, take as many tokens as do, :data:`ENOUGH` at least.

    Raises:
        ValueError: more is needed than is free.
    """
    free = free_bytes(device, spread)
    if device.type == "cpu" and not spread:
        packed = replace(needed, packed=needed.target)
        needed = packed if packed.total <= free / 2 else needed
    where = "all devices" if spread else str(device)
    line = f"{name} needs {needed}; {where} has {free / GB:.2f} GB free"
    if needed.total <= free:
        return needed, line
    room = needed.context - math.ceil((needed.total - free) / needed.column)  # tokens
    if shorten and room >= ENOUGH:
        line = f"{line}, which is enough for {room}: prompt and answer have as many at most"
        return replace(needed, context=room), line
    shorter = f"--context {room}, " if room >= SHORTEST else ""
    raise ValueError(f"{line}: try {shorter}a smaller --dtype, --quantization, --device-map or another --device")
