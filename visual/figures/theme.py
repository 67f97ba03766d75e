"""Colours and markers that figures share: Okabe-Ito, each with a symbol or a line style of its own."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

ACCEPTED: Final = "#0072B2"
REJECTED: Final = "#D55E00"
TARGET: Final = "#009E73"
SAVED: Final = "#CC79A7"
QUIET: Final = "#8b9096"  # legible on light and dark alike
RULE_MARKERS: Final = MappingProxyType({
    "entropy": {"color": "#0072B2", "symbol": "circle"},
    "chain": {"color": "#D55E00", "symbol": "square"},
    "fixed": {"color": "#009E73", "symbol": "diamond"},
    "topk": {"color": "#CC79A7", "symbol": "triangle-up"},
    "sequoia": {"color": "#56B4E9", "symbol": "x"},
})  # fmt: skip
