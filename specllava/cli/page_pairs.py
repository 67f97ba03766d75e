"""Pairs that a page's visitors may choose beside its own: which, what they take, and how they are loaded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from specllava.cli.options import PairOptions, load_pair
from specllava.cli.page_options import PageOptions, is_for_one
from specllava.models.checkpoints.hub_cache import is_cached
from specllava.models.loading.memory import GB, PRECISIONS, Machine, download_bytes, fit, preset_memory, this_machine
from specllava.models.loading.presets import Preset, preset_named, presets

if TYPE_CHECKING:
    from specllava.pair import Pair

ALL, NONE = "all", "none"


@dataclass(frozen=True, slots=True)
class PairFit:
    """Whether a pair fits in memory: its description, and why it cannot be loaded; "" if it can."""

    name: str
    about: str
    why: str


def offered_names(options: PageOptions) -> tuple[str, ...]:
    """Return the names of the presets that visitors may choose.

    Raises:
        ValueError: a name that is none of a preset.
    """
    running = options.running
    own = running.preset if running.target is None and running.draft is None else ""
    named = options.pairs or (ALL if is_for_one(options) else NONE,)
    if named == (NONE,):
        return ()
    if named == (ALL,):
        others = ((name, one) for name, one in presets().items() if one.fetched or not one.shipped)
        return tuple(name for name, one in others if (one.draft or one.fetched) and name != own)
    for name in named:
        preset_named(name)
    return tuple(name for name in dict.fromkeys(named) if name != own)


def pairs_with_memory(names: Sequence[str], running: PairOptions, held: Sequence[str]) -> Iterator[PairFit]:
    """Yield pairs and whether they fit the memory that is free now.

    Args:
        running: options of the page's own pair, for the device.
        held: pairs that would make room for another.
    """
    machine = this_machine(running.device)
    known = presets()
    machine = replace(machine, free=machine.free + sum(_memory_of(known[name], machine) for name in held))
    for name in names:
        preset, found = known[name], fit(known[name], machine)
        missing = f"; it would fit in {found.missing}, which is not installed" if found.missing else ""
        why = preset.missing or found.short + missing
        yield PairFit(name, _about(preset, found.precision), "" if name in held else why)


def load_offered(name: str, running: PairOptions) -> Pair:
    """Load a preset in the best precision that fits, on the device of the page's own pair.

    Raises:
        ValueError: it does not fit, or as :func:`specllava.cli.options.load_pair`.
    """
    found = fit(preset_named(name), this_machine(running.device))
    if not found.precision:
        raise ValueError(found.short)
    chosen = PairOptions(preset=name, device=running.device, dtype=found.dtype, quantization=found.quantization)
    return load_pair(chosen)


def _memory_of(preset: Preset, machine: Machine) -> int:
    """Count the memory of a preset that is loaded: at least what it takes in the smallest precision there is here."""
    kept = [preset_memory(preset, precision) for precision in machine.ways()]
    return min((int(one.total) for one in kept if one), default=0)


def _about(preset: Preset, precision: str) -> str:
    """Describe a pair that fits in ``precision``."""
    if preset.shipped:
        return "fetched before" if preset.fetched else "ships with the project"
    models = [str(one) for one in (preset.target, preset.draft) if one is not None]
    names = " + ".join(name.split("/")[-1] for name in models)
    kept = next((preset_memory(preset, one) for one in PRECISIONS if one.name == precision), None)
    takes = f": {kept.total / GB:.1f} GB in {precision}" if kept else ""
    there = all(map(is_cached, models))
    return f"{names}{takes}, {'downloaded' if there else f'downloads {download_bytes(preset) / GB:.1f} GB'}"
