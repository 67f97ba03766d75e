"""The lanes of a benchmark: a name each, and what answers a prompt and times it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from specllava.bench.timed_run import TimedRun
from specllava.config import CHAIN_OPTIONS, RULES, DecodingConfig
from specllava.trace import TARGET_ONLY, Prefill, StepTrace
from specllava.models.language_model import now
from specllava.models.presets import Tree
from specllava.pair import Pair
from specllava.prompt import Prompt
from specllava.spec_decode.loop import Lane, stream

REFERENCE: Final = TARGET_ONLY  # whose tokens all other lanes' are compared with
LARGEST: Final[Mapping[str, Mapping[str, int]]] = MappingProxyType(  # of rules that without a floor grow all levels
    {"topk": {"depth": 10, "nodes": 24, "width": 2}, "sequoia": {"depth": 10, "nodes": 8, "width": 4}}
)
Runner = Callable[[Prompt], TimedRun]


def bench_lanes(config: DecodingConfig, tree: Tree | None = None) -> dict[str, DecodingConfig]:
    """Return this project's lanes: target-only, every rule that is compared with the options that suit it best, and
    prompt lookup.

    Args:
        tree: options with which others measured the draft; the lane of its rule runs it as it is.

    Raises:
        ValueError: guesses drawn by chance; the lanes' answers differ then and cannot be compared.
    """
    if not config.keeps_tokens:
        raise ValueError(f"children are {config.children}: the benchmark compares tokens, so they must be best")
    rules: dict[str, DecodingConfig] = {
        rule: replace(config, drafter="model", rule=rule, **_suited_options(rule, config))
        for rule in RULES
    }
    if tree:
        rules[tree["rule"]] = replace(config, drafter="model", **tree)
    lookup = replace(config, drafter="prompt-lookup")
    return {REFERENCE: replace(config, drafter="none"), **rules, "prompt-lookup": lookup}


def _suited_options(rule: str, config: DecodingConfig) -> dict[str, Any]:
    """Return the options that suit a rule best (``docs/notes/defaults.md``), never beyond the configured ones."""
    if rule == CHAIN_OPTIONS["rule"]:  # a chain stops sooner than a tree
        return {"min_log_prob": max(CHAIN_OPTIONS["min_log_prob"], config.min_log_prob)}
    return {name: min(most, getattr(config, name)) for name, most in LARGEST.get(rule, {}).items()}


def own_runners(pair: Pair, lanes: Mapping[str, DecodingConfig]) -> dict[str, Runner]:
    """Return a runner for each of this project's lanes."""
    return {name: partial(_run_config, pair, name, config) for name, config in lanes.items()}


def runners_of(
    pair: Pair, config: DecodingConfig, only: Sequence[str] = (), tree: Tree | None = None
) -> dict[str, Runner]:
    """Return a runner for each lane of a benchmark, the reference first.

    Lanes that guess with a draft are left out where the pair has none, unless they are named.

    Args:
        only: names of lanes to run in addition to the reference; none means all.
        tree: as in :func:`bench_lanes`.

    Raises:
        ValueError: a name that no lane bears, or of a lane that cannot be had here; one line with the way out.
    """
    own = bench_lanes(config, tree)
    if unknown := [name for name in only if name not in own]:
        raise ValueError(f"there is no lane {unknown[0]}: choose among {', '.join(own)}")
    missing = [name for name, lane in own.items() if lane.drafter == "model" and pair.draft is None]
    if refused := [name for name in only if name in missing]:
        raise ValueError(
            f"the lane {refused[0]} cannot be run: the pair {pair.name} has no draft: {pair.way_to_draft}"
        )
    chosen = [name for name in own if name not in missing and (not only or name in (REFERENCE, *only))]
    return own_runners(pair, {name: own[name] for name in chosen})


def _run_config(pair: Pair, name: str, config: DecodingConfig, prompt: Prompt) -> TimedRun:
    return run_timed(pair, Lane(name, config, prompt))


def run_timed(pair: Pair, lane: Lane) -> TimedRun:
    """Decode a lane and time the whole run.

    A prompt is encoded once for all lanes. The towers' passes are added to the time of each lane that reads their
    features, as in its prefill. No time counts in which passes are captured.
    """
    started = now(pair.device) - pair.engines.capture_seconds
    request = pair.request(lane, record=False)
    steps, widths = list[StepTrace](), list[tuple[int, ...]]()
    with closing(stream(request)) as events:
        prefill = next(events)
        for step in events:
            assert isinstance(step, StepTrace)
            steps.append(step)
            widths.append(request.drafter.pass_tokens)
    seconds = now(pair.device) - pair.engines.capture_seconds - started + lane.prompt.vision_seconds
    assert isinstance(prefill, Prefill)
    if lane.config.drafter == "model" and lane.prompt.draft_prompt is not None:
        seconds += lane.prompt.draft_prompt.vision_seconds
    return TimedRun.of_events(prefill, steps, widths, seconds)
