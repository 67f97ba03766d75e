"""Arguments as dataclasses, with errors of one line."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Sequence
from typing import Any, Final

import tyro

LISTS: Final = ("--image", "--lanes", "--categories")  # options that take several values


class UsageError(ValueError):
    """Error of arguments that cannot be understood; the message is one line."""


def parse(kind: Any, arguments: Sequence[str] | None, **options: Any) -> Any:
    """Parse arguments into a value of ``kind``; ``options`` as of ``tyro.cli``.

    Raises:
        UsageError: instead of the box of lines that would be printed.
        SystemExit: help was asked for, and printed.
    """
    captured = io.StringIO()
    try:
        with contextlib.redirect_stderr(captured):
            return tyro.cli(kind, args=arguments, **options)
    except SystemExit as stop:
        if not stop.code:
            raise
        text = " ".join(re.sub(r"[─│╭╮╰╯]|-{3,}", " ", captured.getvalue()).split())
        text = re.sub(r"\[type=\w+, input_value=(.*?), input_type=\w+\].*", r"(given: \1)", text)
        text = re.sub(r".*validation errors? for \w+ ", "", text).split(" For full helptext")[0]
        raise UsageError(text) from stop


def join_arguments(arguments: Sequence[str]) -> list[str]:
    """Join ``--a`` and ``--b`` with what follows, which begins as an option does, and repetitions of a list."""
    joined: list[str] = []
    lists: dict[str, list[str]] = {}
    values = joined
    for argument in arguments:
        name, _, first = argument.partition("=")
        if joined and joined[-1] in ("--a", "--b"):
            joined[-1] += f"={argument}"
        elif name in LISTS:
            values = lists.setdefault(name, [])
            values += [first] if first else []
        else:
            values = joined if argument.startswith("--") else values
            values.append(argument)
    return joined + [word for name, values in lists.items() for word in (name, *values)]
