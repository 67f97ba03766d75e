"""The classes of the drafters that the package offers by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from transformers import PreTrainedModel

from specllava.drafters.drafter import Drafter, NoDraft
from specllava.drafters.feature import FeatureDrafter
from specllava.drafters.lookup import LookupDrafter
from specllava.drafters.model import ModelDrafter
from specllava.models.drafts.feature_draft import FeatureDraft

DRAFTERS: Final[Mapping[str, Callable[[], Drafter]]] = MappingProxyType(
    {"model": ModelDrafter, "prompt-lookup": LookupDrafter, "none": NoDraft}
)


def build_drafter(name: str, draft: PreTrainedModel | None = None) -> Drafter:
    """Build the drafter of a name; what works with a draft that reads the target's states asks for them."""
    if name == "model" and isinstance(draft, FeatureDraft):
        return FeatureDrafter(draft.config.state_layers)
    return DRAFTERS[name]()
