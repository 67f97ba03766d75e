"""Interface of a drafter: it opens a session per answer, which proposes trees and receives the target's verdicts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from transformers import PreTrainedModel

from specllava.core.config import DecodingConfig
from specllava.core.growth.rule import GrowthRule
from specllava.core.own_values import finite, integer, integers, listed, short_repr
from specllava.core.tree import DraftTree, Pruned
from specllava.runtime.kv_caches import KVCaches
from specllava.runtime.passes import PrefillOutput
from specllava.runtime.prompt import Prompt
from specllava.verification.answer_settings import AnswerSettings
from specllava.verification.sampling import RandomSource


@dataclass(frozen=True, slots=True)
class DraftContext:
    """Inputs of a drafter for one answer.

    Args:
        prompt: of the answer; ``prompt.draft_prompt`` if the draft model reads another one.
        rule: how trees grow; a drafter without a draft model needs none.
        random: the answer's source of randomness, which verification shares.
        settings: what the target's logits pass through, which a draft's may pass through too.
        caches: KV caches, which a chat reuses.
        length: tokens of prompt and answer that the caches are for.
        prefill: output of the target's prefill, with the states of ``Drafter.state_layers``.
    """

    prompt: Prompt
    config: DecodingConfig
    rule: GrowthRule | None
    random: RandomSource
    settings: AnswerSettings
    target: PreTrainedModel
    draft: PreTrainedModel | None
    caches: KVCaches
    length: int
    prefill: PrefillOutput


class DraftSession(ABC):
    """Session of drafting for one answer; ``propose`` and ``keep`` take turns."""

    draft_probs: Tensor | None = None
    """The distributions that the children of the last tree's nodes were drawn from, ``[nodes, vocab]``; ``None`` if
    they were chosen. Rows of nodes without children mean nothing."""

    pruned: tuple[Pruned, ...] = ()
    """Guesses that the last tree was grown with and then without."""

    pass_tokens: tuple[int, ...] = ()
    """Tokens of each pass that the draft made for the last tree."""

    @abstractmethod
    def propose(self, root: int, depth: int) -> DraftTree:
        """Return a tree of guesses below ``root``, the last emitted token, at most ``depth`` levels deep."""

    def keep(self, path: Sequence[int], states: Tensor | None = None) -> None:
        """Record that the target kept these nodes of the last tree, the root first.

        Args:
            states: the target's hidden states of these nodes, ``[nodes, layers * hidden]``, if the drafter
                names any in ``state_layers``.
        """
        return

    def observe(self, draft_seconds: float, target_seconds: float) -> None:
        """Record the seconds of drafting and verifying the last tree."""
        return


class Drafter(ABC):
    """Interface of a drafter. ``pair.stream(..., drafter=MyDrafter())`` takes one of your own."""

    state_layers: tuple[int, ...] = ()
    """Hidden states of the target that sessions want, numbered as transformers does; none costs nothing."""

    needs_draft: bool = False
    """It works with the pair's draft model."""

    grows: bool = False
    """It grows trees by a :class:`GrowthRule`, which its context then holds."""

    @property
    def name(self) -> str:
        """Name in a trace."""
        return type(self).__name__

    @abstractmethod
    def open(self, context: DraftContext) -> DraftSession:
        """Open a session for an answer, after the target's prefill."""


def check_proposal(name: str, tree: DraftTree, root: int, depth: int, nodes: int, vocabulary: int) -> DraftTree:
    """Return a tree in plain numbers; refuse one that the target cannot verify below ``root``, the last emitted token.

    Args:
        tree: with integers and numbers of any form.
        depth, nodes: levels and guesses that are allowed; the target's KV cache has columns for no more.
        vocabulary: token ids that the target knows.

    Raises:
        ValueError: no tree, another root, a token that the target does not know; no integer or no finite number;
            more levels or guesses. One line.
    """
    about = f"the drafter {name} proposes"
    if not isinstance(tree, DraftTree):
        raise ValueError(f"{about} {short_repr(tree)}, not a DraftTree")
    tree = DraftTree(
        tuple(integers(tree.tokens, f"{about} token")),
        tuple(integers(tree.parents, f"{about} parent")),
        tuple(finite(one, f"{about} log-probability") for one in listed(tree.log_probs, f"{about} log-probabilities")),
        tuple(None if one is None else finite(one, f"{about} entropy") for one in listed(tree.entropies, about)),
    )
    if tree.tokens[0] != root:
        raise ValueError(f"{about} a tree below token {tree.tokens[0]}, not below the last token {root}")
    if tree.drafted > nodes:
        raise ValueError(f"{about} {tree.drafted} tokens, at most {nodes} are allowed")
    if (levels := max(tree.depths())) > depth:
        raise ValueError(f"{about} {levels} levels, at most {depth} are allowed")
    _check_known(about, tree.tokens, vocabulary)
    return tree


def check_pruned(name: str, pruned: Sequence[Pruned], nodes: int, vocabulary: int) -> tuple[Pruned, ...]:
    """Return guesses that a tree of ``nodes`` nodes was grown without, in plain numbers.

    Raises:
        ValueError: guesses below no node, or as :func:`check_proposal`; one line.
    """
    about, guesses = f"the drafter {name} prunes", list[Pruned]()
    for guess in listed(pruned, about):
        if not isinstance(guess, Pruned):
            raise ValueError(f"{about} {short_repr(guess)}, not a Pruned")
        parent, token = integer(guess.parent, f"{about} a guess of parent"), integer(guess.token, f"{about} token")
        if not 0 <= parent < nodes:
            raise ValueError(f"{about} a guess of parent {parent}, of a tree of {nodes} nodes")
        guesses.append(Pruned(parent, token, finite(guess.log_prob, f"{about} a guess of log-probability")))
    _check_known(about, [guess.token for guess in guesses], vocabulary)
    return tuple(guesses)


def _check_known(about: str, tokens: Sequence[int], vocabulary: int) -> None:
    unknown = next((token for token in tokens if not 0 <= token < vocabulary), None)
    if unknown is not None:
        raise ValueError(f"{about} token {unknown}, of a vocabulary of {vocabulary}")


class NoDraft(Drafter, DraftSession):
    """Drafter without guesses: the target decodes one token per pass."""

    name = "none"

    def open(self, context: DraftContext) -> DraftSession:
        return self

    def propose(self, root: int, depth: int) -> DraftTree:
        return DraftTree.only_root(root)
