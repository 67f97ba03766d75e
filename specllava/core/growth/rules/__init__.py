"""The tree rules, one per file. A rule joins the command line, the page, the lab and the benchmark by this list."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Final

from specllava.core.growth.cost_model import CostModel
from specllava.core.growth.rule import COST_MODEL, GrowthRule
from specllava.core.growth.rules.chain import CHAIN
from specllava.core.growth.rules.cost_aware import COST_AWARE
from specllava.core.growth.rules.entropy import ENTROPY
from specllava.core.growth.rules.shaped import FIXED, SEQUOIA
from specllava.core.growth.rules.topk import TOPK
from specllava.core.trace_fields import RETIRED_RULES

RULE_INFOS: Final = MappingProxyType(
    {info.name: info for info in (ENTROPY, CHAIN, FIXED, TOPK, SEQUOIA, COST_AWARE)}
)


def build_rule(config: Any, cost_model: CostModel | None = None) -> GrowthRule:
    """Build the rule that a ``DecodingConfig`` names.

    Args:
        cost_model: of the pair on this machine; only a rule that goes by costs needs it, and updates it.

    Raises:
        ValueError: such a rule without it; or a rule that is not known here, as in a file of another version.
    """
    if config.rule not in RULE_INFOS:
        where = ": commit 6362268 has it" if config.rule in RETIRED_RULES else ""
        raise ValueError(f"the {config.rule} rule is not here, so a run of it is shown and not repeated{where}")
    info = RULE_INFOS[config.rule]
    options = {name: getattr(config, name) for name in info.options}
    if info.costed:
        if cost_model is None:
            raise ValueError(f"the {config.rule} rule needs the measured costs of the pair's passes")
        options[COST_MODEL] = cost_model
    return info.build(**options)
