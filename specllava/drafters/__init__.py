"""List of drafters, by which one joins the command line, the page and the benchmark. No torch.

``build.py`` has their classes, apart from here, so that options can be listed without loading models.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


@dataclass(frozen=True, slots=True)
class DrafterInfo:
    """A drafter that the package offers by name.

    Args:
        name: as on the command line and in traces.
        help: one clause for ``--help`` and the page.
        options: fields of ``DecodingConfig`` that the drafter reads; with ``rule``, also what that rule reads.
    """

    name: str
    help: str
    options: tuple[str, ...] = ()


DRAFTER_INFOS: Final = MappingProxyType(
    {
        info.name: info
        for info in (
            DrafterInfo("model", "the draft", ("rule", "depth", "children")),
            DrafterInfo(
                "prompt-lookup",
                "what followed the same words earlier in the text, no model",
                ("depth", "nodes", "ngram"),
            ),
            DrafterInfo("none", "nobody, which is target-only decoding in the same loop"),
        )
    }
)
