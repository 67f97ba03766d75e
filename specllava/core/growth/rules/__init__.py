"""The tree rules, one per file. A rule joins the command line, the page, the lab and the benchmark by this list."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Final

from specllava.core.growth.rule import GrowthRule
from specllava.core.growth.rules.chain import CHAIN
from specllava.core.growth.rules.entropy import ENTROPY
from specllava.core.growth.rules.shaped import FIXED, SEQUOIA
from specllava.core.growth.rules.topk import TOPK
from specllava.core.trace_fields import retired_rule

RULE_INFOS: Final = MappingProxyType({info.name: info for info in (ENTROPY, CHAIN, FIXED, TOPK, SEQUOIA)})


def build_rule(config: Any) -> GrowthRule:
    """Build the rule that a ``DecodingConfig`` names.

    Raises:
        ValueError: a rule that is not known here, as in a file of another version.
    """
    if config.rule not in RULE_INFOS:
        raise ValueError(retired_rule(config.rule))
    info = RULE_INFOS[config.rule]
    return info.build(**{name: getattr(config, name) for name in info.options})
