"""A lane: one way to answer a prompt, which a race runs and a trace records."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypedDict, Unpack

from specllava.core.config import DecodingConfig
from specllava.core.growth.rule import GrowthRule
from specllava.core.trace import SPECULATIVE as SPECULATIVE
from specllava.core.trace import TARGET_ONLY as TARGET_ONLY
from specllava.drafters.drafter import Drafter
from specllava.runtime.prompt import Prompt

SIDES = ("A", "B")  # the lanes of a comparison


class LaneOverrides(TypedDict, total=False):
    """Objects of the caller that replace those named by the configuration; a rule serves one answer."""

    rule: GrowthRule | None
    drafter: Drafter | None


@dataclass(frozen=True, slots=True)
class LaneFacts:
    """Facts of a lane for its trace: names and numbers, no tensors, so that they may cross to another process.

    Args:
        text, image_sizes, turn, forced_prefix: of its prompt.
        rule, drafter: names of the objects that replace those of ``config``, if any do.
    """

    name: str
    config: DecodingConfig
    text: str
    image_sizes: tuple[tuple[int, int], ...]
    turn: int
    forced_prefix: tuple[int, ...]
    rule: str | None
    drafter: str | None


@dataclass(frozen=True, slots=True)
class Lane:
    """One way to answer a prompt.

    Args:
        rule, drafter: objects that replace those of ``config``; a rule serves one answer.
    """

    name: str
    config: DecodingConfig
    prompt: Prompt
    rule: GrowthRule | None = None
    drafter: Drafter | None = None

    @property
    def facts(self) -> LaneFacts:
        """Facts for its trace."""
        prompt = self.prompt
        return LaneFacts(
            self.name, self.config, prompt.text, prompt.image_sizes, prompt.turn, prompt.forced_prefix,
            None if self.rule is None else self.rule.name, None if self.drafter is None else self.drafter.name,
        )  # fmt: skip


def lane_of(config: DecodingConfig, prompt: Prompt, **own: Unpack[LaneOverrides]) -> Lane:
    """Return a lane with its ordinary name."""
    drafts = own.get("drafter") is not None or config.drafter != "none"
    return Lane(SPECULATIVE if drafts else TARGET_ONLY, config, prompt, **own)


def race_lanes(lane: Lane) -> list[Lane]:
    """Return the lanes of a race: target-only in front of ``lane``; only target-only if ``lane`` drafts nothing."""
    alone = lane_of(replace(lane.config, drafter="none"), lane.prompt)
    return [alone] if lane.name == TARGET_ONLY else [alone, lane]
