"""One answer, guessed by drafts that know more or less. The target is the same throughout, and so is what it says."""

from __future__ import annotations

import heapq
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

from specllava.config import DecodingConfig
from specllava.findings.contrast import Contrast, Side, TreeComparison
from specllava.lab.run import run_lane
from specllava.lane import Lane
from specllava.pair import Pair
from specllava.runtime.prompt import Prompt, with_prefix
from specllava.runtime.scoring import expectations, reading

CLOSEUPS = 3
APART = 4  # tokens between two places that are looked at closely


@dataclass(frozen=True, slots=True)
class Setup:
    """One side of a contrast, before it ran: a draft and what it reads."""

    name: str
    pair: Pair
    prompt: Prompt


def contrast(setups: Sequence[Setup], config: DecodingConfig) -> Generator[Contrast]:
    """Decode with every setup and read the first one's answer with every draft; yield what is there by now.

    The unchanged finding is yielded after each decode step and each teacher-forced pass; a side more after each setup.

    Raises:
        ValueError: a pair without a draft.
    """
    found = Contrast(tuple(setup.name for setup in setups))
    yield found
    wanted = None
    for setup in setups:
        pair, prompt = setup.pair, setup.prompt
        if pair.draft is None:
            raise ValueError(f"the pair {pair.name} has no draft to compare")
        trace = yield from run_lane(pair, Lane(setup.name, config, prompt), found)
        answer = found.sides[0].trace.token_ids if found.sides else trace.token_ids
        if wanted is None:
            wanted = expectations(pair.target, prompt, answer)
            yield found
        guessed = expectations(pair.draft, prompt.draft_prompt or prompt, answer)
        found = replace(found, sides=(*found.sides, Side(setup.name, trace, reading(guessed, wanted, answer))))
        yield found


def with_tree_comparisons(found: Contrast, setups: Sequence[Setup], config: DecodingConfig) -> Generator[Contrast]:
    """Yield, last, the finished contrast with the trees of all sides where their drafts differ most from each other.

    Before it the unchanged finding, after each decode step. Where tokens are drawn by chance there are no trees to
    compare: a run that begins later would draw others.
    """
    if config.temperature > 0:
        yield found
        return
    answer = found.sides[0].trace.token_ids
    comparisons = []
    for place in telling_places(found):
        kept = answer[: place - 1]  # the root is the token before the place, decoded as the prompt's own first token
        short = replace(config, max_new_tokens=min(config.depth + 2, config.max_new_tokens - len(kept)))
        traces = []
        for setup in setups:
            lane = Lane(setup.name, short, with_prefix(setup.prompt, kept))
            traces.append((yield from run_lane(setup.pair, lane, found, max_steps=1)))
        comparisons.append(TreeComparison(place, tuple(traces)))
    yield replace(found, comparisons=tuple(comparisons))


def telling_places(found: Contrast, most: int = CLOSEUPS) -> tuple[int, ...]:
    """Places whose token the sides gave the most different chances; none near another, and none without a tree."""
    probs = [side.reading.probs for side in found.sides]
    spread = [max(column) - min(column) for column in zip(*probs, strict=True)]
    places: list[int] = []
    for place in heapq.nlargest(len(spread), range(1, len(spread)), key=spread.__getitem__):
        if all(abs(place - other) >= APART for other in places):
            places.append(place)
    return tuple(places[:most])
