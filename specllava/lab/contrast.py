"""One answer, guessed by drafts that know more or less. The target is the same throughout, and so is what it says."""

from __future__ import annotations

import heapq
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice

from specllava.config import DecodingConfig
from specllava.decoding import Lane, collect, stream
from specllava.findings.contrast import Closeup, Contrast, Side
from specllava.models.bundle import Bundle
from specllava.models.prompt import Prompt, continued
from specllava.models.reading import expectations, reading
from specllava.trace import DecodeTrace

CLOSEUPS = 3
APART = 4  # tokens between two places that are looked at closely


@dataclass(frozen=True, slots=True)
class Setup:
    """One side of a contrast, before it ran: a draft and what it reads."""

    name: str
    bundle: Bundle
    prompt: Prompt


def contrast(setups: Sequence[Setup], config: DecodingConfig) -> Generator[Contrast]:
    """Decode with every setup and read the first one's answer with every draft; after each, what is there.

    Raises:
        ValueError: a pair without a draft.
    """
    found = Contrast(tuple(setup.name for setup in setups))
    yield found
    wanted = None
    for setup in setups:
        bundle, prompt = setup.bundle, setup.prompt
        if bundle.draft is None:
            raise ValueError(f"the pair {bundle.name} has no draft to compare")
        trace = _run(setup, prompt, config)
        answer = found.sides[0].trace.token_ids if found.sides else trace.token_ids
        wanted = expectations(bundle.target, prompt, answer) if wanted is None else wanted
        guessed = expectations(bundle.draft, prompt.for_draft or prompt, answer)
        found = replace(found, sides=(*found.sides, Side(setup.name, trace, reading(guessed, wanted, answer))))
        yield found


def with_closeups(found: Contrast, setups: Sequence[Setup], config: DecodingConfig) -> Contrast:
    """The finished contrast with the trees of all sides where their drafts differ most from each other.

    Without any where tokens are drawn by chance: a run that begins later would draw others.
    """
    if config.temperature > 0:
        return found
    answer = found.sides[0].trace.token_ids
    closeups = []
    for place in telling_places(found):
        kept = answer[: place - 1]  # the root is the token before the place, decoded as the prompt's own first token
        short = replace(config, max_new_tokens=min(config.depth + 2, config.max_new_tokens - len(kept)))
        traces = tuple(_run(setup, continued(setup.prompt, kept), short, steps=1) for setup in setups)
        closeups.append(Closeup(place, traces))
    return replace(found, closeups=tuple(closeups))


def telling_places(found: Contrast, most: int = CLOSEUPS) -> tuple[int, ...]:
    """Places whose token the sides gave the most different chances; none near another, and none without a tree."""
    probs = [side.reading.probs for side in found.sides]
    spread = [max(column) - min(column) for column in zip(*probs, strict=True)]
    places: list[int] = []
    for place in heapq.nlargest(len(spread), range(1, len(spread)), key=spread.__getitem__):
        if all(abs(place - other) >= APART for other in places):
            places.append(place)
    return tuple(places[:most])


def _run(setup: Setup, prompt: Prompt, config: DecodingConfig, steps: int | None = None) -> DecodeTrace:
    """The side's answer, or as much of it as its first ``steps`` steps give."""
    with closing(stream(setup.bundle, prompt, config)) as events:
        said = list(events if steps is None else islice(events, 1 + steps))
    return collect(setup.bundle, Lane(setup.name, config, prompt), said)
