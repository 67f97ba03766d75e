"""Several drafts of one target on one prompt, and prompt lookup, which needs none."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace

from specllava.core.config import DecodingConfig
from specllava.core.growth.cost_model import Costs
from specllava.findings.sweep import Sweep
from specllava.lab.comparison import costs_beside, measuring, same_shape
from specllava.lab.sweep import SweepRun, sweep_runs
from specllava.models.media.media import Pictures
from specllava.pair import Pair
from specllava.runtime.chat_format import Messages
from specllava.runtime.prompt import Prompt

LOOKUP = "prompt lookup"


def compare_drafters(
    pairs: Mapping[str, Pair], present: str, image: Pictures, messages: Messages, config: DecodingConfig
) -> Generator[Sweep]:
    """Race every draft, prompt lookup and the target alone, see :func:`specllava.lab.sweep.sweep_runs`.

    Args:
        pairs: by what their drafts are called; all of one target.
        present: the one that was chosen before, "" if that was none of them.

    Raises:
        ValueError: only one draft, a pair without one, or another target.
    """
    if len(pairs) < 2:
        raise ValueError(f"there is no second draft to compare with: this page has {', '.join(pairs) or 'none'}")
    first = pairs.get(present) or next(iter(pairs.values()))
    if any(pair.target is not first.target for pair in pairs.values()):
        raise ValueError("drafts are compared on one target, and these belong to several")
    config = replace(config, drafter="model")
    prompts = [pair.prompt(image, messages, config.max_new_tokens) for pair in pairs.values()]
    return _measured_and_run(Sweep("drafter", (*pairs, LOOKUP), present), pairs, first, prompts, config)


def _measured_and_run(
    found: Sweep, pairs: Mapping[str, Pair], first: Pair, prompts: Sequence[Prompt], config: DecodingConfig
) -> Generator[Sweep]:
    for pair in pairs.values():
        for _ in measuring(first, pair):
            yield found
    costs = _costs([first, *pairs.values()])[1:]
    runs = [
        SweepRun(name, pair, prompt, config, of_pair)
        for (name, pair), prompt, of_pair in zip(pairs.items(), prompts, costs, strict=True)
    ]
    own = next(run for run in runs if run.pair is first)
    runs.append(replace(own, value=LOOKUP, config=replace(config, drafter="prompt-lookup")))
    yield from sweep_runs(found, runs)


def _costs(pairs: Sequence[Pair]) -> list[Costs]:
    """Return the costs of every pair's passes; drafts of one shape are timed once, and so is the target."""
    timed: list[tuple[Pair, Costs]] = []
    for pair in pairs:
        alike = (costs for one, costs in timed if same_shape(one.draft, pair.draft))
        timed.append((pair, next(alike, None) or costs_beside(pairs[0], pair)))
    return [costs for _, costs in timed]
