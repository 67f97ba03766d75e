"""Memory of a pair from its models' sizes, and which presets fit a machine. No torch: nothing is loaded."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, Literal

import psutil

from specllava.config import DecodingConfig
from specllava.models.presets import Preset

if TYPE_CHECKING:
    import torch

    from specllava.models.options import DTypeName, QuantizationName


GB: Final = 1e9
SHORTEST: Final = 64  # tokens of context that are worth proposing
ENOUGH: Final = 4096  # tokens of context that are taken without being asked, where all that the target holds do not fit
Kind = Literal["cpu", "cuda"]


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Numbers of a model that its memory follows from.

    Args:
        weights: all of them; a head that is tied to the embeddings counts once.
        layers, kv_heads, head_dim: of its KV cache.
        linear: weights of the decoder's linear layers, which a quantised target stores in fewer bits.
        states: numbers of the target's states that are held for each of its columns, where a draft reads them.
        own_states: numbers of its own states in a column of a draft that reads those of the target.
    """

    weights: int
    layers: int
    kv_heads: int
    head_dim: int
    linear: int = 0
    states: int = 0
    own_states: int = 0

    @property
    def column(self) -> int:
        """Numbers in one column of its KV cache: the keys and values of a token, and its own states."""
        return 2 * self.layers * self.kv_heads * self.head_dim + self.own_states

    def weight_bytes(self, itemsize: int, linear_itemsize: float | None = None) -> float:
        """Count the bytes of the weights.

        Args:
            itemsize: bytes of one.
            linear_itemsize: bytes of one in the decoder's linear layers; as the others without it.
        """
        return float(self.weights * itemsize) + self.linear * ((linear_itemsize or itemsize) - itemsize)


@dataclass(frozen=True, slots=True)
class Estimate:
    """Bytes by purpose. Activations come on top; they are small beside weights, batch 1.

    Args:
        caches: keys and values of both models, and the target's states if the draft reads them. They have columns for
            ``context`` tokens and a tree of the default options, which a dialogue may take; a single answer takes less.
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

    def with_packed(self, free: int) -> Estimate:
        """Count packed weights too, at most as many bytes again, where all of it takes half of ``free`` at most."""
        more = replace(self, packed=self.target)
        return more if more.total <= free / 2 else self

    def room(self, free: float) -> int:
        """Return how many tokens of context fit into ``free`` bytes; below zero if not even the weights do."""
        return self.context - math.ceil((self.total - free) / self.column)

    def __str__(self) -> str:
        return (
            f"{self.total / GB:.2f} GB of memory: target {self.target / GB:.2f}, draft {self.draft / GB:.2f},"
            f" caches for {self.context} tokens {self.caches / GB:.2f}"
            + (f", packed weights {self.packed / GB:.2f}" if self.packed else "")
        )


def pair_memory(
    target: ModelSize, draft: ModelSize | None, context: int, itemsize: int, linear_itemsize: float | None = None
) -> Estimate:
    """Count the memory of a pair.

    Args:
        itemsize: bytes of a weight, and of a number of the caches.
        linear_itemsize: bytes of a weight in the linear layers of the target's decoder, if that is quantised.
    """
    tree = DecodingConfig()
    columns = tree.target_slots(context)
    caches, column = columns * target.column, target.column
    if draft is not None:
        caches += tree.draft_slots(context) * draft.column + columns * draft.states
        column += draft.column + draft.states
    return Estimate(
        target=target.weight_bytes(itemsize, linear_itemsize),
        draft=0.0 if draft is None else draft.weight_bytes(itemsize),
        caches=float(caches * itemsize),
        context=context,
        column=column * itemsize,
    )


@dataclass(frozen=True, slots=True)
class Published:
    """A model of the hub.

    Args:
        stored: bytes of a weight in its files.
        copied: numbers in its files that are not held: a copy of the target's embeddings.
    """

    size: ModelSize
    stored: int = 2
    copied: int = 0

    @property
    def download(self) -> int:
        """Bytes of its weights' files, about."""
        return self.stored * (self.size.weights + self.copied)


def _eagle(weights: int, kv_heads: int, hidden: int, vocabulary: int) -> Published:
    """Build a draft of one layer that reads the target's last state, with a copy of its embeddings in the files."""
    return Published(ModelSize(weights, 1, kv_heads, 128, states=hidden, own_states=hidden), copied=vocabulary * hidden)


def _eagle3(weights: int, kv_heads: int, hidden: int) -> Published:
    """Build a draft of one layer that reads three of the target's states."""
    return Published(ModelSize(weights, 1, kv_heads, 128, states=3 * hidden, own_states=hidden))


PUBLISHED: Final[Mapping[str, Published]] = {
    "llava-hf/llava-1.5-7b-hf": Published(ModelSize(7_063_427_072, 32, 32, 128, 6_476_005_376)),
    "llava-hf/llava-v1.6-vicuna-7b-hf": Published(ModelSize(7_063_431_168, 32, 32, 128, 6_476_005_376)),
    "HuggingFaceTB/SmolVLM2-256M-Video-Instruct": Published(ModelSize(256_484_928, 30, 3, 64), stored=4),
    "HuggingFaceTB/SmolVLM2-2.2B-Instruct": Published(ModelSize(2_246_784_880, 24, 32, 64, 1_610_612_736), stored=4),
    "Qwen/Qwen2.5-VL-7B-Instruct": Published(ModelSize(8_292_166_656, 28, 4, 128, 6_525_288_448)),
    "lmsys/vicuna-7b-v1.3@refs/pr/4": Published(ModelSize(6_738_415_616, 32, 32, 128, 6_476_005_376)),
    "meta-llama/Llama-3.1-8B-Instruct": Published(ModelSize(8_030_261_248, 32, 8, 128, 6_979_321_856)),
    "Qwen/Qwen3-8B": Published(ModelSize(8_190_735_360, 36, 8, 128, 6_945_767_424)),
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": Published(ModelSize(1_711_376_384, 24, 32, 64, 1_610_612_736)),
    "HuggingFaceTB/SmolLM2-135M-Instruct": Published(ModelSize(134_515_008, 30, 3, 64)),
    "yuhuili/EAGLE-Vicuna-7B-v1.3": _eagle(235_937_792, 32, 4096, 32000),
    "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B": _eagle3(424_689_664, 8, 4096),
    "AngelSlim/Qwen3-8B_eagle3": _eagle3(399_523_840, 8, 4096),
    "Cloudriver/MSD-LLaVA1.5-7B": _eagle(235_937_792, 32, 4096, 32064),
    "Cloudriver/ViSpec-LLaVA1.5-7B": _eagle(319_836_160, 32, 4096, 32064),
    "Cloudriver/EAGLE-LLaVA-1.5-7B": _eagle(235_937_792, 32, 4096, 32064),
    "JLKang/ViSpec-llava-v1.6-vicuna-7b-hf": _eagle(319_836_160, 32, 4096, 32064),
    "JLKang/ViSpec-Qwen2.5-VL-7B-Instruct": _eagle(344_999_424, 28, 3584, 152064),
}


@dataclass(frozen=True, slots=True)
class Precision:
    """How weights are held.

    Args:
        itemsize: bytes of a weight.
        linear_itemsize: bytes of one in the linear layers of the target's decoder, where that is quantised.
        dtype: option of loading that asks for it.
        quantization: option of loading that quantises the target so, on a GPU.
    """

    name: str
    itemsize: int
    dtype: DTypeName
    linear_itemsize: float | None = None
    quantization: QuantizationName = "none"


PRECISIONS: Final = (
    Precision("float32", 4, "float32"),
    Precision("bfloat16", 2, "bfloat16"),
    Precision("int8", 2, "bfloat16", 1.0, "int8"),
    Precision("int4", 2, "bfloat16", 0.5, "int4"),
)


@dataclass(frozen=True, slots=True)
class Machine:
    """What models would run on.

    Args:
        free: bytes of memory that are free there.
        quantises: bitsandbytes is installed.
    """

    kind: Kind
    free: int
    quantises: bool = False

    def ways(self) -> list[Precision]:
        """Return the precisions that it can run, the one that is taken without being asked first."""
        if self.kind == "cuda":
            return [one for one in PRECISIONS if one.name != "float32"]
        return [one for one in PRECISIONS if one.quantization == "none"]


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether a preset fits a machine.

    Args:
        precision: the best that does, "" if none.
        short: what is needed and what is free, where none does.
        missing: the precision that would, and bitsandbytes, which is not installed for it.
    """

    precision: str
    dtype: DTypeName = "auto"
    quantization: QuantizationName = "none"
    short: str = ""
    missing: str = ""


def free_bytes(device: torch.device, spread: bool) -> int:
    """Return the bytes free on a device; with ``spread`` those of all GPUs and of the machine together."""
    import torch

    try:
        here = int(psutil.virtual_memory().available)
    except OSError:  # Linux without /proc: what the kernel could still reclaim is not counted
        here = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if spread:
        return here + sum(torch.cuda.mem_get_info(number)[0] for number in range(torch.cuda.device_count()))
    return int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else here


def this_machine(device: str = "auto") -> Machine:
    """Return the machine with its free memory, that of a GPU if there is one and ``device`` is not the CPU."""
    import torch

    kind: Kind = "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"
    free = free_bytes(torch.device(kind if device in ("auto", "cpu") else device), spread=False)
    return Machine(kind, free, find_spec("bitsandbytes") is not None)


def preset_memory(preset: Preset, precision: Precision, context: int = ENOUGH) -> Estimate | None:
    """Count the memory of a preset of the hub, with caches for ``context`` tokens; ``None`` for one that ships."""
    if preset.shipped:
        return None
    draft = None if preset.draft is None else PUBLISHED[str(preset.draft)].size
    target = PUBLISHED[str(preset.target)].size
    return pair_memory(target, draft, context, precision.itemsize, precision.linear_itemsize)


def download_bytes(preset: Preset) -> int:
    """Count the bytes of a preset's weights on the hub, about; none of one that ships."""
    models = () if preset.shipped else filter(None, (preset.target, preset.draft))
    return sum(PUBLISHED[str(one)].download for one in models)


def fit(preset: Preset, machine: Machine) -> Fit:
    """Return the best precision in which a preset fits the machine's free memory, or why none does."""
    if preset.shipped:
        return Fit("float32")
    short = ""
    for precision in machine.ways():
        needed = preset_memory(preset, precision)
        assert needed is not None
        if needed.total > machine.free:
            short = f"needs {needed.total / GB:.1f} GB in {precision.name}, {machine.free / GB:.1f} are free"
        elif precision.quantization != "none" and not machine.quantises:
            return Fit("", short=short, missing=f"{precision.name}, with bitsandbytes")
        else:
            return Fit(precision.name, precision.dtype, precision.quantization)
    return Fit("", short=short)
