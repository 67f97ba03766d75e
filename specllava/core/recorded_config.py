"""The options of a run as a trace holds them: its rule may be one that is not known here."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import ValidatorFunctionWrapHandler, WrapValidator

from specllava.core.config import DecodingConfig
from specllava.core.growth.rules import RULE_INFOS
from specllava.core.trace_fields import few_keys

MAX_NAME: Final = 100  # characters of a rule's name


def _any_rule(value: object, read: ValidatorFunctionWrapHandler) -> DecodingConfig:
    """Read options whose rule is not known here: drawing a tree needs the rule's name alone."""
    few_keys(value)
    rule = value.get("rule") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(rule, str) or rule in RULE_INFOS:
        known: DecodingConfig = read(value)
        return known
    if not rule.isprintable() or not 0 < len(rule) <= MAX_NAME:
        raise ValueError(f"a rule's name has 1 to {MAX_NAME} printable characters")
    stand_in = next(info.name for info in RULE_INFOS.values() if info.drawable)  # it goes with all other options
    config: DecodingConfig = read({**value, "rule": stand_in})
    object.__setattr__(config, "rule", rule)
    return config


RecordedConfig = Annotated[DecodingConfig, WrapValidator(_any_rule)]
