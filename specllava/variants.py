"""Variants of a setting on one prompt: every rule, one option at several values, every draft of a target."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Final

from specllava.config import RULE_CHOICES, RULES, SWEEP_VALUES, DecodingConfig
from specllava.models.images import Pictures, open_media
from specllava.models.tokens import Messages
from specllava.pair import Pair
from specllava.spec_decode.loop import Lane, RaceEvent, run_lanes
from specllava.trace import TARGET_ONLY, DecodeTrace

LOOKUP: Final = "prompt lookup"


@dataclass(frozen=True, slots=True)
class Variant:
    """A setting that is compared with others."""

    name: str
    pair: Pair
    config: DecodingConfig


def rule_variants(pair: Pair, config: DecodingConfig) -> list[Variant]:
    """Return every rule that is compared.

    Raises:
        ValueError: guesses that are drawn, or another drafter than the draft model.
    """
    _check_comparable(config)
    return [Variant(rule, pair, replace(config, rule=rule)) for rule in RULES]


def sweep_variants(pair: Pair, config: DecodingConfig, option: str) -> list[Variant]:
    """Return the values of an option of :data:`SWEEP_VALUES`, the present one among them.

    Raises:
        ValueError: as :func:`rule_variants`, or an option that cannot be swept or that the rule does not use.
    """
    _check_comparable(config)
    if option not in SWEEP_VALUES:
        raise ValueError(f"{option!r} cannot be swept: choose one of {', '.join(SWEEP_VALUES)}")
    if option != "depth" and option not in RULE_CHOICES[config.rule].options:
        users = ", ".join(name for name, choice in RULE_CHOICES.items() if option in choice.options)
        raise ValueError(f"the {config.rule} rule does not use {option}: take {users}, or sweep another option")
    changes: list[dict[str, Any]] = [{option: value} for value in {*SWEEP_VALUES[option], getattr(config, option)}]
    changes.sort(key=lambda change: change[option])
    return [Variant(str(change[option]), pair, replace(config, **change)) for change in changes]


def draft_variants(pairs: Mapping[str, Pair], config: DecodingConfig) -> list[Variant]:
    """Return every draft of one target, and prompt lookup.

    Raises:
        ValueError: fewer than two drafts, or drafts of several targets.
    """
    if len(pairs) < 2:
        raise ValueError(f"there is no second draft to compare with: there is {', '.join(pairs) or 'none'}")
    first = next(iter(pairs.values()))
    if any(pair.target is not first.target for pair in pairs.values()):
        raise ValueError("drafts are compared on one target, and these belong to several")
    drafting = replace(config, drafter="model")
    _check_comparable(drafting)
    lookup = Variant(LOOKUP, first, replace(config, drafter="prompt-lookup"))
    return [*(Variant(name, pair, drafting) for name, pair in pairs.items()), lookup]


def race_variants(
    variants: Sequence[Variant], image: Pictures, messages: Messages
) -> Generator[None, None, dict[str, DecodeTrace]]:
    """Race variants and the first one's target alone, and return a trace of each by name.

    They take turns step by step, so that a busy machine slows all alike. A pair encodes the pictures once. Yields after
    each step, so that it can be closed there.
    """
    first, media = variants[0], open_media(image)
    raced = (Variant(TARGET_ONLY, first.pair, replace(first.config, drafter="none")), *variants)
    different = {id(one.pair): one.pair for one in variants}
    prompts = {key: pair.prompt(media, messages, first.config.max_new_tokens) for key, pair in different.items()}
    requests = [one.pair.request(Lane(one.name, one.config, prompts[id(one.pair)])) for one in raced]
    events: dict[str, list[RaceEvent]] = {one.name: [] for one in raced}
    with closing(run_lanes(requests)) as race_events:
        for event in race_events:
            events[event.lane.name].append(event)
            yield
    return {one.name: one.pair.collect(events[one.name])[one.name] for one in raced}


def _check_comparable(config: DecodingConfig) -> None:
    if config.drafter != "model":
        raise ValueError(f"the drafter is {config.drafter}, and the draft model is what varies here: set it to model")
    if not config.keeps_tokens:
        raise ValueError("guesses are drawn by chance, so runs would say different things: set children to best")
