"""Race files and calls that somebody broke, by accident or on purpose; a seed gives the same ones again."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from typing import Any, Final

ODD_VALUES: Final[tuple[Any, ...]] = (
    None, True, -1, 0, 1, 2**31, -(2**63), 10**400, 0.5, -1e308, 1e308, 1e-320, float("nan"), float("inf"),
    "", " ", "x" * 70_000, "<img src=x onerror=alert(1)>", "</script><script>alert(1)</script>",
    "\u202e\u2066right to left", "\ud800", "\x00", "é" * 500, "${7*7}{{7*7}}", "../../etc/passwd", "file:///etc/passwd",
    [], {}, [[]], [None] * 1_000, {"": ""}, {"__proto__": {"x": 1}}, [[[[[[]]]]]],
)  # fmt: skip
MAX_COPIES: Final = 2_000  # of an item in a list

Change = Callable[[random.Random, str], bytes]


def mutated(source: random.Random, text: str) -> bytes:
    """Return a race file with one to three things broken, in its bytes or in what it says."""
    change = source.choice(CHANGES)
    return change(source, text)


def _flipped(source: random.Random, text: str) -> bytes:
    data = bytearray(text.encode())
    for _ in range(source.choice((1, 4, 64))):
        data[source.randrange(len(data))] = source.randrange(256)
    return bytes(data)


def _cut(source: random.Random, text: str) -> bytes:
    return text.encode()[: source.randrange(len(text))]


def _nested(source: random.Random, text: str) -> bytes:
    depth = source.choice((50, 1_000, 100_000))
    return (b"[" * depth + b"]" * depth) if source.random() < 0.5 else b'{"a":' * depth + b"1" + b"}" * depth


def _reworded(source: random.Random, text: str) -> bytes:
    """Break values, keys and lists of the document, which stays JSON of a kind."""
    document = json.loads(text)
    for _ in range(source.randint(1, 3)):
        holder, key = _place(source, document)
        if holder is None:
            continue
        kind = source.choice(("value", "gone", "more", "swapped"))
        if kind == "gone":
            del holder[key]
        elif kind == "more" and isinstance(holder[key], list) and holder[key]:
            holder[key] = holder[key] * source.choice((2, 10, max(1, MAX_COPIES // len(holder[key]))))
        elif kind == "swapped" and isinstance(holder, dict):
            holder[source.choice(("steps", "lanes", "x" * 300, "\ud800", "schema_version"))] = holder.pop(key)
        else:
            holder[key] = source.choice(ODD_VALUES)
    return json.dumps(document).encode()


def _place(source: random.Random, document: Any) -> tuple[Any, Any]:
    """Return a holder and a key somewhere in a document; places near the top are as likely as those far down."""
    holder, key, deepest = None, None, source.randint(1, 8)
    for _ in range(deepest):
        keys = (
            list(document)
            if isinstance(document, dict)
            else list(range(len(document)))
            if isinstance(document, list)
            else []
        )
        if not keys:
            break
        holder, key = document, source.choice(keys)
        document = holder[key]
    return holder, key


CHANGES: Final[tuple[Change, ...]] = (_flipped, _cut, _nested, _reworded, _reworded, _reworded, _reworded)


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
