"""Calls that no page makes; a seed gives the same ones again."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Final

ODD_VALUES: Final[tuple[Any, ...]] = (
    None, True, -1, 0, 1, 2**31, -(2**63), 10**400, 0.5, -1e308, 1e308, 1e-320, float("nan"), float("inf"),
    "", " ", "x" * 70_000, "<img src=x onerror=alert(1)>", "</script><script>alert(1)</script>",
    "\u202e\u2066right to left", "\ud800", "\x00", "é" * 500, "${7*7}{{7*7}}", "../../etc/passwd", "file:///etc/passwd",
    [], {}, [[]], [None] * 1_000, {"": ""}, {"__proto__": {"x": 1}}, [[[[[[]]]]]],
)  # fmt: skip


def odd_call(source: random.Random, calls: Mapping[int, int]) -> dict[str, Any]:
    """Return the body of a call that no page makes.

    Args:
        calls: the numbers of handlers, with how many values each takes.
    """
    number: Any = source.choice((*calls, *calls, -1, 10**9, None, "0", 1.5, []))
    wanted = calls.get(number, 0) if isinstance(number, int) else 0
    count = max(0, wanted + source.choice((0, 0, 0, -1, 1, 40)))
    body: dict[str, Any] = {
        "fn_index": number,
        "data": [source.choice(ODD_VALUES) for _ in range(count)],
        "session_hash": source.choice(("odd", "odd", "", None, 7, "x" * 5_000)),
    }
    if source.random() < 0.4:
        body["event_data"] = source.choice(ODD_VALUES)
    if source.random() < 0.3:
        body["trigger_id"] = source.choice((0, 10**9, "x", None))
    if source.random() < 0.1:
        del body[source.choice(list(body))]
    return body
