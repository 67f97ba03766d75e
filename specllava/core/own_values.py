"""Numbers that a caller's own rule or drafter returns: plain Python numbers, or a refusal in one line. No torch."""

from __future__ import annotations

import math
import operator
import reprlib
from collections.abc import Sequence
from typing import Any


def integer(value: Any, about: str) -> int:
    """Return an integer in any form, such as NumPy's or a tensor of one element, as a plain one.

    Args:
        about: begins the message, such as ``the drafter X proposes token``.

    Raises:
        ValueError: a truth value, or no integer.
    """
    try:
        if not isinstance(value, bool) and str(getattr(value, "dtype", "")) != "torch.bool":
            return int(operator.index(value))
    except TypeError:
        pass
    raise ValueError(f"{about} {short_repr(value)}, not an integer")


def integers(values: Any, about: str) -> list[int]:
    """Return integers in any form as plain ones.

    Raises:
        ValueError: no list, tuple or array of integers.
    """
    return [value if type(value) is int else integer(value, about) for value in listed(values, about)]


def finite(value: Any, about: str) -> float:
    """Return a real number in any form as a plain one.

    Raises:
        ValueError: NaN, infinite, or no number.
    """
    try:
        if not isinstance(value, bool | str | bytes) and math.isfinite(number := float(value)):
            return number
    except (TypeError, ValueError, RuntimeError, OverflowError):  # a tensor of several elements is a RuntimeError
        pass
    raise ValueError(f"{about} {short_repr(value)}, not a finite number")


def listed(values: Any, about: str) -> Sequence[Any]:
    """Return a sequence as it is, and an array as a list.

    Raises:
        ValueError: another value, such as a generator, which need not end.
    """
    plain = values.tolist() if hasattr(values, "tolist") else values
    if isinstance(plain, Sequence) and not isinstance(plain, str | bytes):
        return plain
    raise ValueError(f"{about} {short_repr(values)}, not a list")


def short_repr(value: object) -> str:
    """Return a shortened ``repr`` of a value, in one line."""
    return " ".join(reprlib.repr(value).split())
