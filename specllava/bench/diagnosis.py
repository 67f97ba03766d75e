"""Why drafting is not faster here: measured costs and acceptance in words, and what would change it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from specllava.bench.draft_quality import DraftQuality
from specllava.bench.measured import Measured
from specllava.bench.pass_prices import PassPrices, Price
from specllava.bench.results import TARGET_ONLY_LANES, LaneResult
from specllava.bench.timed_run import TimedRun

WIDTHS: Final = (2, 4, 8, 16, 32)
DEEPEST: Final = 32  # chain that is considered


@dataclass(frozen=True, slots=True)
class Chain:
    """A chain of guesses at measured costs: its depth and its speed-up."""

    depth: int
    speedup: float


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What drafting costs and brings; seconds are of passes.

    Args:
        context: columns of the KV cache before the passes, the median of the runs.
        one: seconds of a target pass over one token.
        wider: passes over more tokens against that, by their number of tokens.
        level: share of ``one`` that a draft pass over one token takes.
        quality: of the draft.
        perfect: the chain that is best if every guess is right; a tree brings no more.
        chain: the chain that is best at the draft's own agreement.
        lane: the fastest lane of this project that guesses, and ``speedup`` as measured.
        without: speed-ups of its steps at the costs of passes alone. Four: as they were, with drafting at half its
            cost, with drafting for nothing, with wide passes at the cost of one token.
    """

    context: int
    one: float
    wider: dict[int, float]
    level: float
    quality: DraftQuality
    perfect: Chain
    chain: Chain
    lane: str
    speedup: float
    overhead: float
    without: dict[str, float]

    def as_json(self) -> dict[str, Any]:
        """Return the figures and the lines."""
        return {**asdict(self), "lines": self.lines()}

    def lines(self) -> list[str]:
        """Return the answers in words."""
        wider = ", ".join(f"{ratio:.2f} over {width}" for width, ratio in self.wider.items())
        steps, quality = self.without, self.quality
        found = [
            f"a target pass over one token takes {1e3 * self.one:.2f} ms after {self.context} columns; times as long: "
            f"{wider} tokens",
            f"a draft level costs {self.level:.3f} of a target pass",
            f"the draft is {quality.divergence:.2f} nats from the target (KL) and guesses "
            f"{100 * quality.agreement:.0f} % of its tokens ({quality.tokens} tokens)",
            f"a perfect draft of this cost would bring {self.perfect.speedup:.2f}× by chains of {self.perfect.depth}; "
            f"as it agrees, a chain of {self.chain.depth} brings about {self.chain.speedup:.2f}×",
            f"the fastest lane is {self.lane} with {self.speedup:.2f}× over target-only; its passes alone would give "
            f"{steps['passes alone']:.2f}×, so what runs around them costs {100 * self.overhead:.0f} %",
            f"the same steps would give {steps['drafting at half its cost']:.2f}× with drafting at half its cost, "
            f"{steps['drafting for nothing']:.2f}× for nothing, {steps['wide passes for nothing']:.2f}× if wide passes "
            "cost no more than one token",
        ]
        return [*found, *self._advice()]

    def _advice(self) -> list[str]:
        """Return the change that would help most."""
        if self.speedup <= 1.0 and self.perfect.speedup <= 1.0:
            return ["no draft of this cost can pay here: decode with --drafter none, or take a smaller draft"]
        if self.speedup <= 1.0:
            return ["drafting does not pay here: decode with --drafter none, or with a draft that agrees more often"]
        base = self.without["passes alone"]
        gains = {
            "a cheaper draft (fewer layers, a smaller vocabulary, specllava draft init)":
                self.without["drafting for nothing"] / base,
            "a draft that agrees more often (specllava distill)": self.perfect.speedup / base,
            "cheaper wide passes, or smaller trees (--nodes)": self.without["wide passes for nothing"] / base,
            "less work around the passes": 1 + max(0.0, self.overhead),
        }  # fmt: skip
        best = max(gains, key=lambda name: gains[name])
        advice = [f"what could help most is {best}: up to {gains[best]:.2f} times as fast as these passes"]
        setting = f"--rule {self.lane}" if self.lane != "prompt-lookup" else "--drafter prompt-lookup"
        return [*advice, f"of the settings measured here take {setting}"]


def diagnose(measured: Measured, results: Mapping[str, LaneResult], quality: DraftQuality) -> Diagnosis:
    """Answer why drafting is not faster, from what was measured.

    Raises:
        ValueError: no lane that guesses with the draft, or no times of its passes.
    """
    own = {name: lane for name, lane in results.items() if lane.totals.draft_passes and "transformers" not in name}
    if not own or not any(one.model == "draft" for one in measured.raw_passes):
        raise ValueError("a diagnosis needs a lane that guesses with the draft: name one with --lanes, such as entropy")
    prices = PassPrices(measured.raw_passes)
    alone = measured.runs[TARGET_ONLY_LANES[0]]
    context = int(statistics.median(run.prompt_tokens + len(run.token_ids) // 2 for run in alone))
    best = min(own, key=lambda name: own[name].per_token.value)
    one = prices.seconds("target", 1, context)

    def chain(rate: float) -> Chain:
        """Return the best chain if a guess after an accepted one is accepted with that probability."""
        chains = (_chain(prices, context, depth, rate) for depth in range(1, DEEPEST + 1))
        return max(chains, key=lambda found: found.speedup)

    overhead = own[best].overhead
    return Diagnosis(
        context=context,
        one=one,
        wider={width: prices.seconds("target", width, context) / one for width in WIDTHS},
        level=prices.seconds("draft", 1, context) / one,
        quality=quality,
        perfect=chain(1.0),
        chain=chain(quality.agreement),
        lane=best,
        speedup=results[TARGET_ONLY_LANES[0]].per_token.value / own[best].per_token.value,
        overhead=math.nan if overhead is None else overhead,
        without=_what_ifs(measured.runs[best], prices),
    )


def _chain(prices: PassPrices, context: int, depth: int, rate: float) -> Chain:
    tokens = math.fsum(rate**level for level in range(depth + 1))
    drafting = math.fsum(prices.seconds("draft", 1, context + level) for level in range(depth))
    one = prices.seconds("target", 1, context)
    return Chain(depth, tokens * one / (drafting + prices.seconds("target", depth + 1, context)))


def _what_ifs(runs: tuple[TimedRun, ...], prices: PassPrices) -> dict[str, float]:
    """Return the speed-ups of some runs' steps over single tokens, at the costs of passes alone and at others."""

    def speedup(price: Price) -> float:
        alone = taken = 0.0
        for run in runs:
            alone += prices.alone(run)
            taken += prices.of_run(run, price)
        return alone / taken if taken else math.nan

    def drafting_at(share: float) -> Price:
        shares = {"target": 1.0, "draft": share}
        return lambda model, width, context: shares[model] * prices.seconds(model, width, context)

    def narrow(model: str, width: int, context: int) -> float:
        return prices.seconds(model, 1, context)

    return {
        "passes alone": speedup(prices.seconds),
        "drafting at half its cost": speedup(drafting_at(0.5)),
        "drafting for nothing": speedup(drafting_at(0.0)),
        "wide passes for nothing": speedup(narrow),
    }
