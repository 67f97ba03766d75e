"""Drafting without a model: the tokens that followed the last words at earlier occurrences.

Prompt lookup (Saxena 2023; "LLMA", arXiv 2304.04487): works with any target, nothing is trained. Where the words
occurred more than once, their continuations are merged into a tree.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import takewhile

import numpy as np
from torch import Tensor

from specllava.engine.engine import PrefillOutput
from specllava.engine.pool import KVCaches
from specllava.prompt import Prompt
from specllava.spec_decode.drafter import Drafter
from specllava.tree import ROOT_PARENT, DraftTree

MAX_MATCHES = 16  # latest first


class NgramDrafter(Drafter):
    """Drafter of the tokens that followed the last ones earlier in the text.

    Args:
        opaque: tokens that are never proposed nor looked for, such as the image marker.
    """

    name = "prompt-lookup"

    def __init__(self, ngram: int, nodes: int, opaque: frozenset[int] = frozenset()) -> None:
        self._ngram, self._nodes, self._opaque = ngram, nodes, opaque

    def begin(self, prompt: Prompt, prefill: PrefillOutput, caches: KVCaches) -> None:
        self._text = prompt.input_ids[0].tolist()

    def propose(self, root: int, depth: int) -> DraftTree:
        paths = continuations([*self._text, root], self._ngram, depth, self._opaque)
        self._tree = merge(root, paths, self._nodes)
        return self._tree

    def commit(self, path: Sequence[int], states: Tensor | None) -> None:
        self._text += [self._tree.tokens[node] for node in path]


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
            following = [words[start + length :][:depth].tolist() for start in starts.tolist()]
            return [tuple(takewhile(lambda token: token not in opaque, tokens)) for tokens in following]
    return []


def merge(root: int, paths: Sequence[tuple[int, ...]], nodes: int) -> DraftTree:
    """Merge continuations into a tree; a guess's probability is its share among those that reached its parent."""
    counts: Counter[tuple[int, ...]] = Counter(path[:end] for path in paths for end in range(1, len(path) + 1))
    scores = {path: math.log(count / len(paths)) for path, count in counts.items()}
    best = sorted(counts, key=lambda path: (-scores[path], len(path)))[:nodes]  # a stable sort: the latest goes first
    in_tree: list[tuple[int, ...]] = [(), *sorted(best, key=len)]
    node_of = {path: node for node, path in enumerate(in_tree)}
    scores[()] = 0.0
    below: defaultdict[tuple[int, ...], list[float]] = defaultdict(list)
    for path in counts:
        below[path[:-1]].append(scores[path] - scores[path[:-1]])
    return DraftTree(
        tokens=(root, *(path[-1] for path in in_tree[1:])),
        parents=(ROOT_PARENT, *(node_of[path[:-1]] for path in in_tree[1:])),
        log_probs=(0.0, *(round(scores[path] - scores[path[:-1]], 7) for path in in_tree[1:])),
        entropies=tuple(_entropy(below[path]) if path in below else None for path in in_tree),
    )


def _entropy(log_shares: Sequence[float]) -> float:
    """Compute the entropy in nats of the shares and of the rest to one (continuations that ended here)."""
    missing = max(0.0, 1.0 - sum(map(math.exp, log_shares)))
    rest = missing * math.log(missing) if missing > 1e-12 else 0.0
    return round(max(0.0, -sum(math.exp(share) * share for share in log_shares) - rest), 7)
