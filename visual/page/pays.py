"""Does it pay on my GPU? Three numbers and one sentence, from stated assumptions."""

from __future__ import annotations

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
PASS: Final = 1.1  # a pass over a tree costs so many times one over a token: assumed of a large model on a GPU


def token_seconds(model: str, card: str) -> float:
    """Return the seconds of a pass over one token, in which every weight is read once."""
    return MODELS[model].parameters * BYTES / CARDS[card]


def speed_up(tau: float, cost: float, draft: float) -> float:
    """Return how many times as fast the answer comes: tau tokens for one pass over a tree and the drafting before it.

    Args:
        cost: of a pass over a tree, in passes over one token.
        draft: of a pass of the draft, likewise.
    """
    return tau / (cost + LEVELS * draft)


def verdict(milliseconds: float, cost: float, tau: float, draft: float) -> str:
    """Say whether it pays, how much, and where it stops paying."""
    ratio, least = speed_up(tau, cost, draft), cost + LEVELS * draft
    before, after = 1000 / milliseconds, 1000 * ratio / milliseconds
    rates = f"{after:.0f} instead of {before:.0f} tokens a second while answering"
    limit = f"Below {least:.1f} tokens a pass it would not pay."
    if ratio >= 1.05:
        return f"Yes: about {ratio:.1f} times as fast, {rates}. {limit}"
    if ratio > 0.95:
        return f"Hardly: about as fast, {rates}. It pays above {least:.1f} tokens a pass."
    return f"No: about {ratio:.1f} times as fast, {rates}. It pays above {least:.1f} tokens a pass."


def numbers(model: str, card: str) -> tuple[float, float, float]:
    """Return milliseconds of a pass over one token, what one over a tree costs beside it, and tokens per pass."""
    return round(1000 * token_seconds(model, card), 1), PASS, MODELS[model].tau


def assumptions(model: str, card: str, given: tuple[float, float, float]) -> str:
    """Say where the three numbers come from; one that is not of :func:`numbers` is the visitor's own."""
    chosen = MODELS[model]
    weights = chosen.parameters * BYTES / 1e9
    computed = f"computed, {weights:.1f} GB of weights at {CARDS[card] / 1e12:.2f} TB/s, the least that it can take"
    sources = [
        source if one == known else "yours"
        for one, known, source in zip(given, numbers(model, card), (computed, "assumed", chosen.source), strict=True)
    ]
    return (
        f"One token: {sources[0]}. A pass over {GUESSES} tokens: {sources[1]}. Tokens a pass: {sources[2]}."
        f" Drafting: {LEVELS} levels, assumed, each {chosen.draft:g} of a pass, its share of the weights."
    )


def start_lines(model: str) -> str:
    """Return the command that tries it there."""
    return f"python app.py --preset {MODELS[model].preset}"
