"""Interface of a drafter, which proposes trees for one answer and receives the target's verdicts."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor

from specllava.config import short
from specllava.engine.engine import PrefillOutput
from specllava.engine.pool import KVCaches
from specllava.prompt import Prompt
from specllava.spec_decode.growth import integers
from specllava.tree import DraftTree, Pruned


class Drafter(ABC):
    """Interface of a drafter: ``begin`` an answer, then ``propose`` and ``commit`` in turn.

    ``pair.stream(..., drafter=MyDrafter())`` takes one of your own. It serves one answer at a time.
    """

    state_layers: tuple[int, ...] = ()
    """Hidden states of the target that it reads, numbered as in transformers; none costs nothing."""

    draft_probs: Tensor | None = None
    """Distributions that the children of the last tree's nodes were drawn from, ``[nodes, vocab]``; ``None`` if they
    were chosen. Rows of nodes without children are not read."""

    pruned: tuple[Pruned, ...] = ()
    """Guesses that the last tree was grown with and then without."""

    pass_tokens: tuple[int, ...] = ()
    """Tokens of each pass that the draft made for the last tree."""

    @property
    def name(self) -> str:
        """Name in a trace."""
        return type(self).__name__

    def begin(self, prompt: Prompt, prefill: PrefillOutput, caches: KVCaches) -> None:
        """Start an answer, after the target's prefill.

        Args:
            prompt: of the answer; ``prompt.draft_prompt`` if a draft model reads another one.
            prefill: with the target's states of ``state_layers``.
            caches: KV caches, which a chat goes on with.
        """
        return

    @abstractmethod
    def propose(self, root: int, depth: int) -> DraftTree:
        """Return a tree of guesses below ``root``, the last emitted token, at most ``depth`` levels deep."""

    def commit(self, path: Sequence[int], states: Tensor | None) -> None:
        """Learn that the target accepted these nodes of the last tree, the root first.

        Args:
            states: the target's hidden states of these nodes, ``[nodes, layers * hidden]``, if ``state_layers`` names
                any.
        """
        return


class NoDraft(Drafter):
    """Drafter without guesses: the target decodes one token per pass."""

    name = "none"

    def propose(self, root: int, depth: int) -> DraftTree:
        return DraftTree.chain([root])


def check_proposal(name: str, tree: DraftTree, root: int, depth: int, nodes: int, vocabulary: int) -> DraftTree:
    """Return a tree in plain numbers; refuse one that the target cannot verify below ``root``, the last emitted token.

    Args:
        tree: with integers and numbers of any form.
        depth, nodes: levels and guesses that are allowed; the target's KV cache has slots for no more.
        vocabulary: token ids that the target knows.

    Raises:
        ValueError: no tree, another root, a token that the target does not know; no integer or no finite number; more
            levels or guesses. One line.
    """
    about = f"the drafter {name} proposes"
    if not isinstance(tree, DraftTree):
        raise ValueError(f"{about} {short(tree)}, not a DraftTree")
    tokens = tuple(integers(tree.tokens, f"{about} tokens"))
    parents = tuple(integers(tree.parents, f"{about} parents"))
    try:
        log_probs = tuple(map(float, tree.log_probs))
        entropies = tuple(None if one is None else float(one) for one in tree.entropies)
    except (TypeError, RuntimeError) as error:
        raise ValueError(f"{about} log-probabilities or entropies that are no numbers: {error}") from error
    if not all(math.isfinite(one) for one in (*log_probs, *entropies) if one is not None):
        raise ValueError(f"{about} log-probabilities or entropies that are not finite")
    tree = DraftTree(tokens, parents, log_probs, entropies)
    if tree.tokens[0] != root:
        raise ValueError(f"{about} a tree below token {tree.tokens[0]}, not below the last token {root}")
    if tree.drafted > nodes:
        raise ValueError(f"{about} {tree.drafted} tokens, at most {nodes} are allowed")
    if (levels := max(tree.depths())) > depth:
        raise ValueError(f"{about} {levels} levels, at most {depth} are allowed")
    unknown = next((token for token in tree.tokens if not 0 <= token < vocabulary), None)
    if unknown is not None:
        raise ValueError(f"{about} token {unknown}, of a vocabulary of {vocabulary}")
    return tree
