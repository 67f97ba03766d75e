"""What commands share: options from the command line, one kind of table, and ports."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import tyro
from rich.console import Console


def run_command(main: Callable[..., Any], options: type | None = None) -> NoReturn:
    """Call ``main`` with options from the command line and exit with what it returns; bad input prints one line.

    Args:
        options: dataclass that ``main`` takes, if it takes one.
    """
    try:
        sys.exit(tyro.cli(main) if options is None else main(tyro.cli(options, description=main.__doc__)))
    except (OSError, ValueError) as error:
        sys.exit(str(error))


def show(text: str) -> None:
    """Print text as it is, however wide the terminal."""
    Console().print(text, markup=False, highlight=False, soft_wrap=True)


def show_table(heads: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> None:
    """Print a table in Markdown, as documents show it, below its title."""
    lines = [f"| {' | '.join(line)} |" for line in (heads, ["---"] * len(heads), *rows)]
    show("\n".join([title, "", *lines] if title else lines))


def free_port() -> int:
    """Return a port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
