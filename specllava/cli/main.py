"""Entry point of the command line."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any, Final

import tyro
from pydantic import ValidationError
from rich.console import Console

from specllava import __version__
from specllava.cli.commands import Bench, Compare, Distill, ExportDraft, ExportPage, Generate, Init, Presets, Site, View
from specllava.cli.options import typed_options
from specllava.config import one_line
from specllava.files import PAGE_HINT, broken_import, is_out_of_memory, is_panic, lacks_page

LISTS: Final = ("--image", "--lanes")  # options that take several values


def join_arguments(arguments: Sequence[str]) -> list[str]:
    """Join repetitions of an option that takes several values."""
    joined: list[str] = []
    lists: dict[str, list[str]] = {}
    values = joined
    for argument in arguments:
        name, _, first = argument.partition("=")
        if name in LISTS:
            values = lists.setdefault(name, [])
            values += [first] if first else []
        else:
            values = joined if argument.startswith("--") else values
            values.append(argument)
    return joined + [word for name, values in lists.items() for word in (name, *values)]


DEBUG: Final = "SPECLLAVA_DEBUG"  # environment variable: set, an error's stack trace is printed too

Command = (
    Annotated[Generate, tyro.conf.subcommand("generate")]
    | Annotated[Compare, tyro.conf.subcommand("compare")]
    | Annotated[Bench, tyro.conf.subcommand("bench")]
    | Annotated[Distill, tyro.conf.subcommand("distill")]
    | Annotated[Presets, tyro.conf.subcommand("presets")]
    | Annotated[Site, tyro.conf.subcommand("site")]
    | Annotated[
        Annotated[Init, tyro.conf.subcommand("init")]
        | Annotated[ExportDraft, tyro.conf.subcommand("export")],
        tyro.conf.subcommand("draft", description="Drafts for a target: make one, hand one on."),
    ]
    | Annotated[
        Annotated[View, tyro.conf.subcommand("view")]
        | Annotated[ExportPage, tyro.conf.subcommand("export")],
        tyro.conf.subcommand("trace", description="Saved races, with no model at hand."),
    ]
)


def main(
    arguments: list[str] | None = None,
    commands: Any = Command,
    prog: str = "specllava",
    description: str | None = __doc__,
) -> int:
    """Run a command; 0 only on success, 130 after Ctrl-C, errors in one line on stderr."""
    try:
        run: Callable[[Console], None] = _parse(arguments, commands, prog, description).run
        run(Console())
        return 0
    except KeyboardInterrupt:
        return _fail("stopped", 130)
    except BaseException as error:  # whatever went wrong, a stack trace is printed on request only
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        if os.environ.get(DEBUG):
            traceback.print_exc()
        return _fail(_error_line(error))


def _error_line(error: BaseException) -> str:
    """Write an error as one line: by its message alone where the program foresaw it, else with the way to more."""
    if isinstance(error, ValidationError):
        return one_line(error)
    if lacks_page(error):
        return PAGE_HINT
    if cause := broken_import(error):
        return f"an installed package cannot be imported, {cause}: install it anew to fit the others, or remove it"
    message = " ".join(str(error).split())
    if isinstance(error, ValueError | OSError | FloatingPointError) and message:
        return message
    if is_out_of_memory(error):
        return f"out of memory: {message[:300]}; try fewer --max-new-tokens, a smaller --dtype or --quantization"
    return f"{type(error).__name__}: {message[:300]} ({DEBUG}=1 shows where)"


def _parse(arguments: list[str] | None, commands: Any, prog: str, description: str | None) -> Any:
    """Parse the arguments into a command; usage errors leave the program with one line in place of tyro's box."""
    given = join_arguments(sys.argv[1:] if arguments is None else arguments)
    if given == ["--version"]:
        print(f"{prog} {__version__}")
        raise SystemExit(0)
    captured = io.StringIO()
    try:
        with contextlib.redirect_stderr(captured):
            command = tyro.cli(commands, args=given, prog=prog, description=description)
    except SystemExit as stop:
        if not stop.code:
            raise
        text = " ".join(re.sub(r"[─│╭╮╰╯]|-{3,}", " ", captured.getvalue()).split())
        text = re.sub(r"\[type=\w+, input_value=(.*?), input_type=\w+\].*", r"(given: \1)", text)
        text = re.sub(r".*validation errors? for \w+ ", "", text).split(" For full helptext")[0]
        raise SystemExit(_fail(f"{text}: see --help", 2)) from None
    return replace(command, typed=typed_options(given)) if hasattr(command, "typed") else command


def _fail(message: str, code: int = 1) -> int:
    print(f"specllava: {message}", file=sys.stderr)
    return code
