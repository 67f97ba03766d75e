"""Does the picture lower doubt, and whose, and where? The first tokens of answers apart from the later ones.

    python -m benchmarks.early --json benchmarks/results/early.json --picture docs/science-early.svg

Both models read the target's own answer, with its picture, with a grey one and with none. Text and positions are the
same, so only the picture differs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from PIL import Image
from torch import Tensor

from benchmarks.shared.command import run_command, show_table
from benchmarks.shared.guessing import GuessingConfig, alone, cells, draw_rates, interval, speculate, write_rates
from specllava.findings.bootstrap import pooled_rate, pooled_ratio
from specllava.lab.grounding import blank_picture
from specllava.pair import Pair
from specllava.runtime.prompt import Prompt
from specllava.runtime.scoring import draft_log_probs, score_draft, teacher_forced_log_probs

EARLY: Final = 8  # tokens at the beginning of an answer
SEEN: Final[dict[str, Callable[[Image.Image], Image.Image | None]]] = {
    "its picture": lambda own: own, "a grey one": blank_picture, "none": lambda own: None,
}  # fmt: skip
PARTS: Final = {f"first {EARLY} tokens": slice(EARLY), "later tokens": slice(EARLY, None)}
NAMES: Final = ("target_entropy", "entropy", "kl")
Scores = dict[str, Sequence[float]]  # by name, of each token


def main(config: GuessingConfig) -> None:
    """Score both models on the same answers with every picture, and draw."""
    pair = config.load_pair()
    scores: dict[str, list[Scores]] = {seen: [] for seen in SEEN}
    for asked in config.questions():
        assert isinstance(asked.image, Image.Image)
        prompt = pair.prompt(asked.image, asked.text)
        own = alone(pair, prompt, config.decoding)
        speculate(pair, prompt, config.decoding, own)
        for seen, change in SEEN.items():
            read = pair.prompt(change(asked.image), asked.text)
            scores[seen].append(scores_of(pair, read, own.token_ids))
    found = {part: rows_of(scores, where) for part, where in PARTS.items()}
    heads = ("tokens", "both see", "entropy of the target, nats", "over its picture", "entropy of the draft, nats",
             "over its picture", "KL, nats", "over its picture")  # fmt: skip
    shown = [column for name in NAMES for column in (name, f"{name}_over_own")]
    lines = [(part, row["seen"], *cells(row, *shown, digits=3)) for part, rows in found.items() for row in rows]
    show_table(heads, lines)
    write_rates(config.json, pair, config, found)
    draw_rates(config.picture, found, NAMES, list(SEEN), "picture that both see", joined=False)


@torch.inference_mode()
def scores_of(pair: Pair, prompt: Prompt, answer: Sequence[int]) -> Scores:
    """Score both models on every token of an answer."""
    assert pair.draft is not None
    target = teacher_forced_log_probs(pair.target, prompt, answer)
    draft = score_draft(draft_log_probs(pair.target, pair.draft, prompt, answer), target, answer)
    return {"target_entropy": entropies(target), "entropy": draft.entropies, "kl": draft.divergences}


def entropies(log_probs: Tensor) -> list[float]:
    """Return the entropy of each row, in nats."""
    found: list[float] = torch.special.entr(log_probs.exp()).sum(-1).tolist()
    return found


def rows_of(scores: dict[str, list[Scores]], where: slice) -> list[dict[str, Any]]:
    """Pool a part of all answers: a row for each picture, its means also over those with an answer's own picture."""

    def parts(seen: str, name: str) -> list[tuple[float, float]]:
        taken = [one[name][where] for one in scores[seen]]
        return [(math.fsum(one), len(one)) for one in taken]

    base, *_ = scores
    return [
        {
            "seen": seen, **{name: interval(pooled_rate(parts(seen, name))) for name in NAMES},
            **{f"{name}_over_own": interval(pooled_ratio(parts(base, name), parts(seen, name))) for name in NAMES},
        }
        for seen in scores
    ]  # fmt: skip


if __name__ == "__main__":
    run_command(main, GuessingConfig)
