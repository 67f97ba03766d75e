"""Tokens of tree passes against those of the target alone, by teacher forcing, so that one difference hides no other.

Trees are those of a lane with the target's own answer grafted to them: accepted nodes lie off the first branch and
their columns move, as with a trained draft. Every step keeps the answer's tokens, whatever the target says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from random import Random
from typing import Literal, get_args

import torch
from torch import Tensor

from benchmarks.gpu.lanes import LANES, PICTURE, QUESTION
from benchmarks.gpu.oracle import accepted_length, graft
from specllava.core.trace import StepTrace
from specllava.core.tree import DraftTree
from specllava.decoding import stream
from specllava.lane import Lane
from specllava.models.loading.load_options import PassesName
from specllava.pair import Pair
from specllava.runtime.engine import Engine
from specllava.runtime.kv_caches import KVCaches
from specllava.runtime.passes import PassInput
from specllava.runtime.prompt import Prompt

TREES = 8  # different ones, in turn
TAU = 3.5
Place = Literal["in place", "after a move", "out of place"]


@dataclass(frozen=True, slots=True)
class Row:
    """A compared token.

    Args:
        place: of its columns: as in the text alone; that too, but columns before the tree have moved; or elsewhere,
            its own or those of its branch.
        margin: gap of the target's best two logits.
    """

    place: Place
    equal_bits: bool
    equal_token: bool
    margin: float


@dataclass(frozen=True, slots=True)
class Identity:
    """Counts of tokens at one place.

    Args:
        tokens: that were compared.
        equal_bits, equal_tokens: whose logits are equal bit by bit, and whose likeliest token is.
        margin: largest one at a token that differs, 0 without any.
    """

    tokens: int
    equal_bits: int
    equal_tokens: int
    margin: float

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Identity:
        return cls(
            len(rows),
            sum(row.equal_bits for row in rows),
            sum(row.equal_token for row in rows),
            max((row.margin for row in rows if not row.equal_token), default=0.0),
        )


def compare_tokens(
    pair: Pair, lane: str, way: PassesName, exact: bool, prompts: int, tokens: int
) -> dict[Place, Identity]:
    """Compare the logits of a lane's trees with those of the target alone."""
    trees = _trees(pair, lane, way)
    running, rows = pair.running(way, exact), list[Row]()
    for number in range(prompts):
        prompt = running.prompt(PICTURE, f"{QUESTION} {number}", tokens)
        answer, alone = _alone(running, prompt, tokens, max(map(len, trees)))
        rows += _tree_rows(running, prompt, answer, alone, trees, Random(number))
    return {place: Identity.of([row for row in rows if row.place == place]) for place in get_args(Place)}


def _trees(pair: Pair, lane: str, way: PassesName) -> list[DraftTree]:
    """Return trees that a lane's draft grows."""
    request = pair.request(Lane(lane, LANES[lane], pair.prompt(PICTURE, QUESTION, 96)), record=False)
    steps = (event for event in stream(request) if isinstance(event, StepTrace))
    return [step.tree for _, step in zip(range(TREES), steps, strict=False)]


def _read(pair: Pair, caches: KVCaches, prompt: Prompt, tokens: int, rows: int) -> tuple[Engine, Tensor]:
    """Return an engine that has read a prompt, and the logits after it."""
    engine = caches.engine(pair.target, prompt.length + tokens + rows, rows=rows)
    return engine, engine.prefill(prompt.input_ids, prompt.features, prompt.image_keys).logits


def _alone(pair: Pair, prompt: Prompt, tokens: int, rows: int) -> tuple[list[int], Tensor]:
    """Return the answer of the target alone, and the logits after each of its tokens but the last."""
    caches = KVCaches(pair.engines)
    engine, logits = _read(pair, caches, prompt, tokens, rows)
    answer, after = [int(logits.argmax())], []
    while len(answer) < tokens:
        logits = engine.forward(PassInput(answer[-1:])).logits[-1]
        after.append(logits.clone())
        answer.append(int(logits.argmax()))
    return answer, torch.stack(after)


def _tree_rows(
    pair: Pair, prompt: Prompt, answer: Sequence[int], alone: Tensor, trees: Sequence[DraftTree], random: Random
) -> Iterator[Row]:
    """Yield the tokens of an answer as tree passes see them."""
    caches = KVCaches(pair.engines)
    engine, _ = _read(pair, caches, prompt, len(answer), max(map(len, trees)))
    root, moved = 0, False  # the root's number in the answer; whether a column before it has moved
    for number, tree in enumerate(cycle(trees)):
        levels = max(tree.depths())
        if root + levels + 2 > len(answer):
            break
        own = DraftTree((answer[root], *tree.tokens[1:]), tree.parents, tree.log_probs, tree.entropies)
        grafted, path = graft(own, answer[root + 1 :], accepted_length(levels, TAU, number), random)
        base = engine.cache.length
        place: Place = "after a move" if moved else "in place"
        logits = engine.forward(PassInput.of_tree(grafted, base)).logits
        for level, node in enumerate(path):
            place = place if node == level else "out of place"
            yield _row(logits[node], alone[root + level], place)
        engine.keep(base, path)
        root, moved = root + len(path), moved or place == "out of place"


def _row(logits: Tensor, alone: Tensor, place: Place) -> Row:
    best, second = alone.topk(2).values.float().tolist()
    return Row(place, torch.equal(logits, alone), int(logits.argmax()) == int(alone.argmax()), best - second)
