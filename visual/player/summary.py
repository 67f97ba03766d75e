"""The settings of a run in one line, which names only what the run goes by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pydantic.fields import FieldInfo

from specllava.config import DecodingConfig, options_read

NAMED: Final = ("drafter", "rule")  # in front of all others
DRAFTERS: Final = {"model": "draft model", "prompt-lookup": "prompt lookup", "none": "target alone"}
SHORT: Final = {  # instead of the field's title
    "branching": "{} children by level",
    "rank_acceptance": "shaped for acceptance {}",
    "entropy_threshold": "branches above {} nats",
    "max_branches": "at most {} a node",
    "width": "{} nodes a level",
    "min_log_prob": "none below {} nats",
    "ngram": "up to {} tokens looked up",
    "depth": "{} levels",
    "nodes": "{} guesses a pass",
    "temperature": "temperature {}",
    "top_p": "top-p {}",
    "top_k": "top-k {}",
    "seed": "seed {}",
    "children": "{} guesses",
    "max_new_tokens": "at most {} tokens",
}
ALL: Final = {"top_p": 1.0, "top_k": 0}  # values at which the option leaves nothing out


def phrases(options: Mapping[str, FieldInfo]) -> dict[str, str]:
    """Return the words for the value of each option: short ones, or else the option's title. No option is left out."""
    titled = {name: f"{str(info.title)[:1].lower()}{str(info.title)[1:]} {{}}" for name, info in options.items()}
    own = {name: words for name, words in titled.items() if name not in (*SHORT, *NAMED)}
    return SHORT | own


PHRASES: Final = phrases(vars(DecodingConfig)["__pydantic_fields__"])


def drafter_name(drafter: str) -> str | None:
    """Return the name of a drafter that is no model of its own, in words; ``None`` for a draft model."""
    return None if drafter == "model" else DRAFTERS.get(drafter, drafter)


def settings_summary(
    config: DecodingConfig,
    rule: str | None = None,
    drafter: str | None = None,
    draft: str | None = None,
    asked: str | None = None,
) -> str:
    """Summarise a configuration: who drafts, the rule, and then the value of each option that these read.

    Args:
        rule, drafter: names of objects that served instead of those in ``config``, as in a trace.
        draft: what the draft is called, if it is not just the draft model.
        asked: settings of the target's ``generation_config.json`` that the run follows.
    """
    who, how = drafter or config.drafter, rule or config.rule
    read = options_read(who, how, config.temperature)
    parts = [draft if draft and who == "model" else DRAFTERS.get(who, who)]
    if "rule" in read or rule:
        parts.append(f"{how} rule")
    for name, phrase in PHRASES.items():
        value = getattr(config, name)
        if name in read and value != ALL.get(name):
            parts.append("greedy" if (name, value) == ("temperature", 0) else phrase.format(_format_value(value)))
    if asked:
        parts.append(f"generation_config.json: {asked}")
    return " · ".join(parts)


def _format_value(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_format_value, value))
    brief = f"{value:g}" if isinstance(value, float) else str(value)
    return brief if not isinstance(value, float) or float(brief) == value else repr(value)
