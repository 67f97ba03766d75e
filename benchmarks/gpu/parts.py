"""The parts of the benchmark, in the order of their worth: each measures one thing, and fails by itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, Final

from benchmarks.gpu.checks import check_bits, check_memory, check_waits
from benchmarks.gpu.generation import generate_steps
from benchmarks.gpu.identity import compare_tokens
from benchmarks.gpu.lanes import ALONE, DRAFT_ROWS
from benchmarks.gpu.passes import Model, pass_medians
from benchmarks.gpu.steps import answer_of, known_steps, steps_of
from benchmarks.gpu.watch import read_bandwidth
from benchmarks.shared.random_pair import feature_draft
from specllava.models.drafts.draft_reading import DraftFormat
from specllava.models.loading.load_options import PassesName
from specllava.pair import Pair
from specllava.runtime.padded_passes import ROWS

OWN: Final = "160M"  # the draft of the pair, by its size at 7b
WAYS: Final[tuple[PassesName, ...]] = ("eager", "graphs")
GRAPHS: Final[PassesName] = "graphs"
CHAIN, TREE = "chain", "top 10, EAGLE-2"
TAUS: Final = (2.0, 3.0, 4.0)  # that acceptance is drawn for


@dataclass(frozen=True, slots=True)
class Amount:
    """How much is measured.

    Args:
        repeats: passes of each kind.
        steps: steady steps of each lane.
        prompts, tokens: that are compared, and the tokens of each.
        passes: after which memory is compared.
        nbytes: that are read to measure bandwidth.
    """

    repeats: int = 10
    steps: int = 24
    prompts: int = 4
    tokens: int = 96
    passes: int = 1000
    nbytes: tuple[int, ...] = (5 * 10**8, 2 * 10**9)


@dataclass(frozen=True)
class Bench:
    """A pair on a device, and how much of it is measured."""

    pair: Pair
    amount: Amount

    @cached_property
    def answer(self) -> list[int]:
        """The target's own, which is grafted to trees."""
        return answer_of(self.pair, GRAPHS)

    def with_draft(self, kind: DraftFormat | None) -> Pair:
        """Return the pair with a new draft of a format, or with its own."""
        return self.pair if kind is None else feature_draft(self.pair, kind)


Part = Callable[[Bench], dict[str, Any]]


def _told(pair: Pair) -> str:
    """Return how a pair's passes have run, in words."""
    return pair.passes_told or "eager"


def target(bench: Bench) -> dict[str, Any]:
    """Measure passes and steps of the target alone, against what reading its weights takes."""
    pair, amount = bench.pair, bench.amount
    passes, ways = _passes(pair, "target", ROWS, amount.repeats)
    return {
        "bytes": sum(weight.nbytes for weight in pair.target.model.language_model.parameters()),
        "bandwidth": {nbytes: read_bandwidth(pair.device, nbytes) for nbytes in amount.nbytes},
        "passes": passes,
        "ways": ways,
        "steps": {way: asdict(steps_of(pair, ALONE, way, amount.steps)) for way in WAYS},
    }


def _passes(
    pair: Pair, model: Model, rows: Sequence[int], repeats: int
) -> tuple[dict[PassesName, dict[int, float]], dict[PassesName, str]]:
    """Return seconds of a model's passes by the way that was asked for, and how they then ran."""
    passes, ways = {}, {}
    for way in WAYS:
        running = pair.running(way)
        passes[way], ways[way] = pass_medians(running, {model: rows}, repeats)[model], _told(running)
    return passes, ways


def drafting(bench: Bench, kind: DraftFormat | None) -> dict[str, Any]:
    """Measure passes of a draft, and steps of its lanes."""
    pair, amount = bench.with_draft(kind), bench.amount
    passes, ways = _passes(pair, "draft", DRAFT_ROWS, amount.repeats)
    steps = {way: {lane: asdict(steps_of(pair, lane, way, amount.steps)) for lane in (CHAIN, TREE)} for way in WAYS}
    return {"passes": passes, "ways": ways, "steps": steps}


def known(bench: Bench, kind: DraftFormat | None) -> dict[str, Any]:
    """Measure steps that are accepted by design."""
    pair, amount = bench.with_draft(kind), bench.amount
    return {
        lane: [asdict(known_steps(pair, lane, GRAPHS, amount.steps, bench.answer, tau)) for tau in TAUS]
        for lane in (CHAIN, TREE)
    }


def identity(bench: Bench) -> dict[str, Any]:
    """Compare tokens of tree passes with those of the target alone."""
    amount, found = bench.amount, dict[str, Any]()
    for lane, exact in ((CHAIN, False), (CHAIN, True), (TREE, False)):
        running = bench.pair.running(GRAPHS, exact)
        places = compare_tokens(running, lane, GRAPHS, exact, amount.prompts, amount.tokens)
        name = f"{lane}, {'exact' if exact else 'not exact'}"
        found[name] = {"way": _told(running), "places": {at: asdict(one) for at, one in places.items() if one.tokens}}
    return found


def bits(bench: Bench, kind: DraftFormat | None) -> dict[str, Any]:
    running = bench.with_draft(kind).running(GRAPHS)
    return {**asdict(check_bits(running, GRAPHS)), "way": _told(running)}


def memory(bench: Bench) -> dict[str, Any]:
    running = bench.pair.running(GRAPHS)
    return {**asdict(check_memory(running, GRAPHS, bench.amount.passes)), "way": _told(running)}


def waits(bench: Bench) -> dict[str, Any]:
    running = bench.pair.running(GRAPHS)
    return {**asdict(check_waits(running, GRAPHS)), "way": _told(running)}


def generation(bench: Bench) -> dict[str, Any]:
    """Measure transformers' ``generate``, whose compiled passes are another lane of the target alone."""
    return asdict(generate_steps(bench.pair, bench.answer))


def page(bench: Bench) -> dict[str, Any]:
    """Let the page race, the only part that needs it."""
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    from benchmarks.gpu.page_race import page_race

    running = bench.pair.running(GRAPHS)
    return {**asdict(page_race(running, GRAPHS)), "way": _told(running)}


FORMATS: Final[tuple[DraftFormat, ...]] = ("eagle3", "msd", "vispec")  # whose passes are much like EAGLE's
BITS: Final = "captured {} passes are the called ones, bit by bit"
GENERATION: Final = "transformers' generate"
NEEDS: Final = MappingProxyType({GENERATION: 180.0})  # seconds that a part needs: compiling takes minutes
PARTS: Final[Mapping[str, Part]] = MappingProxyType({
    "target": target,
    "eagle": partial(drafting, kind="eagle"),
    OWN: partial(drafting, kind=None),
    "eagle, known answer": partial(known, kind="eagle"),
    f"{OWN}, known answer": partial(known, kind=None),
    "identity": identity,
    BITS.format("eagle"): partial(bits, kind="eagle"),
    BITS.format(OWN): partial(bits, kind=None),
    "passes leave memory as it was": memory,
    "no step waits but for its downloads": waits,
    **{kind: partial(drafting, kind=kind) for kind in FORMATS},
    **{BITS.format(kind): partial(bits, kind=kind) for kind in FORMATS},
    GENERATION: generation,
    "a race on the page ends": page,
})  # fmt: skip
