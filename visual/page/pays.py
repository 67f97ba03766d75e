"""Does it pay on my GPU? Four numbers and one sentence, from stated assumptions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

LEVELS: Final = 5  # draft passes before each pass of the target: assumed
GUESSES: Final = 20  # tokens that a pass over a tree reads
BYTES: Final = 2  # of a weight in half precision
CARDS: Final = {"A100 (80 GB)": 2.04e12, "H100 (SXM)": 3.35e12, "L4": 0.30e12, "RTX 4090": 1.01e12}  # bytes a second


@dataclass(frozen=True, slots=True)
class Model:
    """A target with a published draft.

    Args:
        parameters: of its language model, which every pass reads.
        draft: share of them that a pass of the draft reads.
        tau: tokens per pass.
        source: whence ``tau`` is.
        preset: its name here.
    """

    parameters: float
    draft: float
    tau: float
    source: str
    preset: str


MODELS: Final = {
    "Qwen2.5-VL-7B": Model(
        7.1e9, 0.12, 3.2, "published by the authors of ViSpec for this model", "qwen2.5-vl-7b-vispec"
    ),
    "LLaVA-1.5-7B": Model(6.7e9, 0.05, 4.0, "measured by MMSpec (arXiv 2603.14989)", "llava-1.5-7b-vispec"),
}
FIELDS: Final = (
    "One token alone, ms", f"A pass over {GUESSES} tokens, in passes over one",
    "Drafting before it, in passes over one", "Tokens a pass, τ",
)  # fmt: skip
Numbers = Sequence[float]  # of FIELDS
OFF: Final = 0.2  # a number that nobody measured on the visitor's GPU may be off by so much: assumed
PASS: Final = 1.1  # a pass over a tree costs so many times one over a token: assumed of a large model on a GPU


def verdict(given: Numbers, known: Numbers) -> str:
    """Say whether it pays, how much, and where it stops paying; numbers that are not the visitor's own may be off.

    Tau tokens come for one pass over a tree and the drafting before it, both counted in passes over one token.
    """
    milliseconds, cost, drafting, tau = given
    least, before = cost + drafting, 1000 / milliseconds
    ratio = tau / least
    off_cost, off_drafting, off_tau = (OFF if one == its else 0 for one, its in zip(given[1:], known[1:], strict=True))
    low = tau * (1 - off_tau) / (cost * (1 + off_cost) + drafting * (1 + off_drafting))
    high = tau * (1 + off_tau) / (cost * (1 - off_cost) + drafting * (1 - off_drafting))
    answer = "Yes" if low >= 1.05 else "No" if high <= 0.95 else "Perhaps"
    span = "" if low == high else f" ({low:.1f} to {high:.1f})"
    rates = f"{before * ratio:.0f} instead of {before:.0f} tokens a second while answering"
    return f"{answer}: about {ratio:.1f} times as fast{span}, {rates}. It pays above {least:.1f} tokens a pass."


def numbers(model: str, card: str) -> Numbers:
    """Return the numbers of :data:`FIELDS` for a model and a GPU, before anything was measured.

    A pass over one token takes the time in which every weight is read once.
    """
    chosen = MODELS[model]
    return round(1000 * chosen.parameters * BYTES / CARDS[card], 1), PASS, round(LEVELS * chosen.draft, 2), chosen.tau


def assumptions(model: str, card: str, given: Sequence[float | None]) -> str:
    """Say where the numbers come from; one that is not of :func:`numbers` is the visitor's own."""
    chosen = MODELS[model]
    weights = chosen.parameters * BYTES / 1e9
    sources = (
        f"computed, {weights:.1f} GB of weights at {CARDS[card] / 1e12:.2f} TB/s, the least that it can take",
        "assumed", f"assumed, {LEVELS} levels of {chosen.draft:g}, the draft's share of the weights", chosen.source,
    )  # fmt: skip
    named = zip(FIELDS, given, numbers(model, card), sources, strict=True)
    origins = " ".join(f"{field}: {source if one == known else 'yours'}." for field, one, known, source in named)
    return f"{origins} The range: each of the last three that is not yours may be {100 * OFF:.0f} % off, all at once."
