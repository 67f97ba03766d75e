"""A stand-in for the lab: findings made of synthetic races. No model, no torch."""

from __future__ import annotations

import random
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from PIL import Image

from specllava.config import RULES, DecodingConfig
from specllava.trace import Grounding
from specllava.trace import DecodeTrace
from specllava.findings.ablation import Ablation, DraftScores, TreeComparison, VariantResult
from specllava.findings.sweep import SWEEP_VALUES, Sweep, Value
from support.visual_traces import first_steps, retexted, synthetic_race


def synthetic_sweep(field: str, values: Sequence[Value], config: DecodingConfig) -> Generator[Sweep]:
    """A run more per finding, the target-only one first."""
    found = Sweep(field, tuple(values), getattr(config, field))
    yield found
    for seed, value in enumerate(values):
        lanes = synthetic_race(seed, replace(config, **{field: value}))
        found = replace(found, alone=lanes["target-only"], runs=(*found.runs, (value, lanes["speculative"])))
        yield found


def synthetic_drafters(names: Sequence[str], config: DecodingConfig) -> Generator[Sweep]:
    """A drafter more per finding; the last one has no draft."""
    depths = range(2, 2 + len(names))
    named = dict(zip(depths, names, strict=True))
    costs = tuple((name, 0.001 * place) for place, name in enumerate(names[:-1], start=1))
    for found in synthetic_sweep("depth", depths, config):
        runs = tuple((named[value], run) for value, run in found.runs)  # type: ignore[index]
        yield replace(found, field="drafter", values=tuple(names), current=names[0], runs=runs, draft_pass=costs)


def synthetic_reading(trace: DecodeTrace, seed: int) -> DraftScores:
    """Believable numbers; the first seeds are the surest."""
    rng = random.Random(seed)
    doubts = tuple(round(rng.uniform(0.0, 0.5 + seed), 4) for _ in trace.token_ids)
    probs = tuple(round(1 / (1 + doubt), 4) for doubt in doubts)
    guesses = tuple(token if prob > 0.5 else token + 1 for token, prob in zip(trace.token_ids, probs, strict=True))
    return DraftScores(doubts, probs, guesses, tuple(round(doubt / 2, 4) for doubt in doubts))


def synthetic_ablation(
    names: Sequence[str], config: DecodingConfig, texts: dict[int, str] | None = None
) -> Generator[Ablation]:
    """A side more per finding."""
    found = Ablation(tuple(names))
    yield found
    for seed, name in enumerate(names):
        trace = retexted(synthetic_race(seed, config)["speculative"], texts or {})
        found = replace(found, results=(*found.results, VariantResult(name, trace, synthetic_reading(trace, seed))))
        yield found


def with_tree_comparison(found: Ablation, place: int = 1) -> Ablation:
    """The trees of all sides where the answer begins, if it has a step."""
    if not all(side.trace.steps for side in found.results):
        return found
    traces = tuple(first_steps(side.trace, 1) for side in found.results)
    return replace(found, comparisons=(TreeComparison(place, traces),))


def synthetic_grounding(
    config: DecodingConfig, texts: dict[int, str] | None = None, seed: int = 0
) -> Generator[DecodeTrace]:
    """The answer, then which of its tokens need the picture, then where."""
    trace, rng = retexted(synthetic_race(seed, config)["speculative"], texts or {}), random.Random(7)
    yield trace
    probs, blank = ([round(rng.random(), 4) for _ in trace.token_ids] for _ in range(2))
    whole = Grounding(tuple(probs), tuple(blank), tuple(rng.choices(sorted(trace.texts), k=len(probs))), 2.0)
    yield replace(trace, grounding=whole)
    rows = tuple(tuple(round(rng.random(), 4) for _ in range(9)) for _ in whole.grounded)
    yield replace(trace, grounding=replace(whole, grid=4, window=2, occluded=rows))




@dataclass(frozen=True)
class FakeLab:
    """What ``specllava.lab.Lab`` offers, at once. Questions that start with ``fail`` break; empty ones are refused."""

    texts: dict[int, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def _ask(self, messages: str) -> None:
        if not messages.strip():
            raise ValueError("the prompt is empty")
        if messages.startswith("fail"):
            raise RuntimeError("a secret inside")
        self.asked.append(messages)

    def rules(self, image: Image.Image, messages: str, config: DecodingConfig) -> Generator[Sweep]:
        self._ask(messages)
        return synthetic_sweep("rule", RULES, config)

    def drafters(
        self, image: Image.Image, messages: str, others: Mapping[str, FakeLab], config: DecodingConfig
    ) -> Generator[Sweep]:
        self._ask(messages)
        return synthetic_drafters((*others, "prompt lookup"), config)

    def sweep(self, image: Image.Image, messages: str, field: str, config: DecodingConfig) -> Generator[Sweep]:
        self._ask(messages)
        return synthetic_sweep(field, sorted({*SWEEP_VALUES[field], getattr(config, field)}), config)

    def image_ablation(
        self, image: Image.Image, messages: str, other: Image.Image, config: DecodingConfig
    ) -> Generator[Ablation]:
        self._ask(messages)
        return synthetic_ablation(("the picture", "a blank picture", "another picture"), config, self.texts)

    def grounding(self, image: Image.Image, messages: str, config: DecodingConfig) -> Generator[DecodeTrace]:
        self._ask(messages)
        return synthetic_grounding(config, self.texts, sum(map(ord, messages)))  # of the stand-in's race

    def distillation(self, image: Image.Image, messages: str, config: DecodingConfig) -> Generator[Ablation]:
        self._ask(messages)
        *found, end = synthetic_ablation(("before distillation", "after distillation"), config, self.texts)
        yield from found
        yield with_tree_comparison(end)

