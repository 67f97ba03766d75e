"""specllava: vision-language models answer faster without changing one token of the answer.

Names are loaded when they are first used, so that reading traces and drawing them needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specllava.chat import Chat
    from specllava.config import DecodingConfig
    from specllava.custom_generate import speculative_generate
    from specllava.pair import Pair
    from specllava.trace import DecodeTrace, StepTrace

__version__ = "0.1.0"
__all__ = ["Chat", "DecodeTrace", "DecodingConfig", "Pair", "StepTrace", "__version__", "speculative_generate"]

_HOMES = {
    "Chat": "specllava.chat",
    "DecodingConfig": "specllava.config",
    "DecodeTrace": "specllava.trace",
    "StepTrace": "specllava.trace",
    "Pair": "specllava.pair",
    "speculative_generate": "specllava.custom_generate",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
