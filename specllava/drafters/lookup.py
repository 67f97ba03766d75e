"""Drafting without a model: the tokens that followed the last words at earlier occurrences.

Prompt lookup (Saxena 2023; "LLMA", arXiv 2304.04487): works with any target, nothing is trained. Where the words
occurred more than once, their continuations are merged into a tree.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from specllava.core.config import DecodingConfig
from specllava.core.tree import ROOT_PARENT, DraftTree
from specllava.drafters.drafter import DraftContext, Drafter, DraftSession
from specllava.models.checkpoints.tokens import slot_ids

MAX_MATCHES = 16  # latest first


class LookupDrafter(Drafter):
    """Drafter of the tokens that followed the last ones earlier in the text."""

    name = "prompt-lookup"

    def open(self, context: DraftContext) -> DraftSession:
        opaque = frozenset(slot_ids(context.target.config))
        return LookupSession(context.prompt.input_ids[0].tolist(), context.config, opaque)


class LookupSession(DraftSession):
    """Session of lookup for one answer.

    Args:
        opaque: tokens that are never proposed nor looked for, such as the image marker.
    """

    def __init__(self, prompt: Sequence[int], config: DecodingConfig, opaque: frozenset[int] = frozenset()) -> None:
        self._history = list(prompt)
        self._config = config
        self._opaque = opaque
        self._tree = DraftTree.only_root(0)

    def propose(self, root: int, depth: int) -> DraftTree:
        found = continuations([*self._history, root], self._config.ngram, depth, self._opaque)
        self._tree = merge(root, found, self._config.nodes)
        return self._tree

    def keep(self, path: Sequence[int], states: Tensor | None = None) -> None:
        self._history += [self._tree.tokens[node] for node in path]


def continuations(
    text: Sequence[int], longest: int, depth: int, opaque: frozenset[int] = frozenset()
) -> list[tuple[int, ...]]:
    """List continuations of earlier occurrences of the text's longest ending that occurred before, latest first.

    Args:
        longest: tokens of the ending at most; shorter ones are tried until one occurred.
        depth: tokens of a continuation at most.
    """
    words = np.asarray(text)
    for length in range(min(longest, len(words) - 1), 0, -1):
        ending = words[-length:]
        if opaque & set(ending.tolist()):
            continue
        windows = np.lib.stride_tricks.sliding_window_view(words[:-1], length)  # [starts, length]
        starts = np.flatnonzero((windows == ending).all(-1))[::-1][:MAX_MATCHES]
        if len(starts):
            return [_until(words[start + length :][:depth].tolist(), opaque) for start in starts.tolist()]
    return []


def _until(tokens: list[int], opaque: frozenset[int]) -> tuple[int, ...]:
    end = next((index for index, token in enumerate(tokens) if token in opaque), len(tokens))
    return tuple(tokens[:end])


def merge(root: int, found: Sequence[tuple[int, ...]], nodes: int) -> DraftTree:
    """Merge continuations into a tree; a guess's probability is its share among those that reached its parent."""
    counts: Counter[tuple[int, ...]] = Counter(path[:end] for path in found for end in range(1, len(path) + 1))
    scores = {path: math.log(count / len(found)) for path, count in counts.items()}
    best = sorted(counts, key=lambda path: (-scores[path], len(path)))[:nodes]  # a stable sort: the latest goes first
    kept: list[tuple[int, ...]] = [(), *sorted(best, key=len)]
    node_of = {path: node for node, path in enumerate(kept)}
    scores[()] = 0.0
    below: defaultdict[tuple[int, ...], list[float]] = defaultdict(list)
    for path in counts:
        below[path[:-1]].append(scores[path] - scores[path[:-1]])
    return DraftTree(
        tokens=(root, *(path[-1] for path in kept[1:])),
        parents=(ROOT_PARENT, *(node_of[path[:-1]] for path in kept[1:])),
        log_probs=(0.0, *(round(scores[path] - scores[path[:-1]], 7) for path in kept[1:])),
        entropies=tuple(_entropy(below[path]) if path in below else None for path in kept),
    )


def _entropy(log_shares: Sequence[float]) -> float:
    """Compute the entropy in nats of the shares and of the rest to one (continuations that ended here)."""
    missing = max(0.0, 1.0 - sum(map(math.exp, log_shares)))
    rest = missing * math.log(missing) if missing > 1e-12 else 0.0
    return round(max(0.0, -sum(math.exp(share) * share for share in log_shares) - rest), 7)
