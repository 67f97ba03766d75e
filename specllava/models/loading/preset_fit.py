"""Which presets a machine can hold, and in which precision: weighed by their published sizes, with nothing loaded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, Literal

from specllava.models.loading.model_size import ENOUGH, GB, Estimate, pair_memory
from specllava.models.loading.presets import Preset
from specllava.models.loading.published import PUBLISHED

if TYPE_CHECKING:
    from specllava.models.loading.load_options import DTypeName, QuantizationName

Kind = Literal["cpu", "cuda"]


@dataclass(frozen=True, slots=True)
class Precision:
    """How weights are held.

    Args:
        number: bytes of a weight.
        linear: bytes of one in the linear layers of the target's decoder, where that is quantised.
        dtype: option of loading that asks for it.
        schemes: options of loading that quantise the target so, by the kind of device that can run it.
        library: what quantises, by the kind of device.
    """

    name: str
    number: int
    dtype: DTypeName
    linear: float | None = None
    schemes: tuple[tuple[Kind, QuantizationName, str], ...] = ()


PRECISIONS: Final = (
    Precision("float32", 4, "float32"),
    Precision("bfloat16", 2, "bfloat16"),
    Precision("int8", 2, "bfloat16", 1.0, (("cpu", "torchao-int8", "torchao"), ("cuda", "int8", "bitsandbytes"))),
    Precision("int4", 2, "bfloat16", 0.5, (("cuda", "int4", "bitsandbytes"),)),
)


@dataclass(frozen=True, slots=True)
class Machine:
    """What models would run on.

    Args:
        free: bytes of memory that are free there.
        libraries: those that quantise and are installed.
    """

    kind: Kind
    free: int
    libraries: tuple[str, ...] = ()

    def ways(self) -> Iterator[tuple[Precision, QuantizationName, str]]:
        """Yield precisions that it can run, the one that is taken without being asked first, and their library."""
        for precision in PRECISIONS:
            if self.kind == "cuda" and precision.name == "float32":
                continue
            if not precision.schemes:
                yield precision, "none", ""
            for kind, scheme, library in precision.schemes:
                if kind == self.kind:
                    yield precision, scheme, library


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether a preset fits a machine.

    Args:
        precision: the best that does, "" if none.
        dtype, quantization: options of loading for it.
        short: what is needed and what is free, where none does.
        missing: the precision that would, and the library that is not installed for it.
    """

    precision: str
    dtype: DTypeName = "auto"
    quantization: QuantizationName = "none"
    short: str = ""
    missing: str = ""


def this_machine(device: str = "auto") -> Machine:
    """Return the machine with its free memory, that of a GPU if there is one and ``device`` is not the CPU."""
    import torch

    from specllava.models.loading.free_memory import free_bytes

    kind: Kind = "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"
    free = free_bytes(torch.device(kind if device in ("auto", "cpu") else device), spread=False)
    return Machine(kind, free, tuple(one for one in ("bitsandbytes", "torchao") if find_spec(one)))


def preset_memory(preset: Preset, precision: Precision, context: int = ENOUGH) -> Estimate | None:
    """Count the memory of a preset of the hub, with caches for ``context`` tokens; ``None`` for one that ships."""
    if preset.shipped:
        return None
    draft = None if preset.draft is None else PUBLISHED[str(preset.draft)].size
    return pair_memory(PUBLISHED[str(preset.target)].size, draft, context, precision.number, precision.linear)


def download_bytes(preset: Preset) -> int:
    """Count the bytes of a preset's weights on the hub, about; none of one that ships."""
    models = () if preset.shipped else filter(None, (preset.target, preset.draft))
    return sum(PUBLISHED[str(one)].download for one in models)


def fit(preset: Preset, machine: Machine) -> Fit:
    """Return the best precision in which a preset fits the machine's free memory, or why none does."""
    if preset.shipped:
        return Fit("float32")
    short = ""
    for precision, scheme, library in machine.ways():
        needed = preset_memory(preset, precision)
        assert needed is not None
        if needed.total > machine.free:
            short = f"needs {needed.total / GB:.1f} GB in {precision.name}, {machine.free / GB:.1f} are free"
        elif library and library not in machine.libraries:
            return Fit("", short=short, missing=f"{precision.name}, with {library}")
        else:
            return Fit(precision.name, precision.dtype, scheme)
    return Fit("", short=short)
