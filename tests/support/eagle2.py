"""EAGLE-2's drafting loop read plainly (SafeAILab/EAGLE, ``topK_genrate``): paths and sums, no tensors, no trees.

MSD, ViSpec and MMSpec have the same loop. Its three numbers are those of its authors: ``depth`` passes after the
root's, ``top_k`` nodes a level with as many children each, and ``total`` tokens to verify, the root among them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

Path = tuple[int, ...]  # tokens below the root
Scores = Callable[[Path], Sequence[float]]  # log-probability of each token after a path


def random_scores(seed: int, vocabulary: int, spread: float) -> Scores:
    """Return a draft that scores tokens at random, and the same path always the same."""

    def scores(path: Path) -> list[float]:
        source = random.Random(f"{seed} {path}")
        return [-spread * source.random() - 1e-3 for _ in range(vocabulary)]

    return scores


def best(scores: Sequence[float], count: int) -> list[int]:
    """Return the tokens with the highest scores, the best first."""
    return sorted(range(len(scores)), key=lambda token: -scores[token])[:count]


def verified_paths(scores: Scores, depth: int, top_k: int, total: int) -> set[Path]:
    """Return the guesses that EAGLE-2 verifies, each as the path that leads to it."""
    first = scores(())
    known: dict[Path, float] = {(token,): first[token] for token in best(first, top_k)}
    beam = list(known)
    for _ in range(depth):
        grown: dict[Path, float] = {}
        for path in beam:
            behind = scores(path)
            grown |= {(*path, token): known[path] + behind[token] for token in best(behind, top_k)}
        known |= grown
        beam = sorted(grown, key=lambda path: -grown[path])[:top_k]
    return set(sorted(known, key=lambda path: -known[path])[: total - 1])
