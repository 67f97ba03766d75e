"""Limits on what one visitor, or one call, may ask of a page. The only source of these numbers.

Bounds of options and of files use the same numbers (``config.py``, ``visual.player.bounds``), so a page can only have
smaller ones. ``python app.py --help`` lists the options that set them.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

from annotated_types import Le
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass
from pydantic.fields import FieldInfo

MIB: Final = 2**20


@dataclass(frozen=True, slots=True, config=ConfigDict(use_attribute_docstrings=True, extra="forbid"))
class Limits:
    """Limits of a page.

    Raises:
        pydantic.ValidationError: a limit below 1, or above what options, files or models bear; names field and bound.
    """

    upload_bytes: Annotated[int, Field(ge=1)] = 20 * MIB
    """Bytes of an uploaded picture."""

    pixels: Annotated[int, Field(ge=1, le=16_000_000)] = 16_000_000
    """Pixels of a picture that is decoded; decoders need up to 15 bytes for each."""

    prompt_characters: Annotated[int, Field(ge=1, le=20_000)] = 20_000
    """Characters of a question."""

    turns: Annotated[int, Field(ge=1, le=16)] = 16
    """Questions of a dialogue."""

    new_tokens: Annotated[int, Field(ge=1, le=4096)] = 4096
    """Tokens of an answer; models themselves give as many as their context holds."""

    depth: Annotated[int, Field(ge=1, le=32)] = 32
    """Levels of a tree."""

    nodes: Annotated[int, Field(ge=1, le=256)] = 256
    """Guesses of a tree."""

    width: Annotated[int, Field(ge=1, le=64)] = 64
    """Nodes of one level that grow children."""

    branches: Annotated[int, Field(ge=1, le=16)] = 16
    """Children of one node."""

    list_items: Annotated[int, Field(ge=1, le=16)] = 16
    """Numbers of an option that is a list."""

    seconds_per_run: Annotated[float, Field(gt=0)] = 120.0
    """Seconds that a race, an experiment or a call computes; what is there by then is kept."""

    waiting: Annotated[int, Field(ge=1)] = 32
    """Runs that wait, of all visitors; who comes behind them is told to come again."""

    runs_per_minute: Annotated[int, Field(ge=1)] = 60
    """Runs that one address may begin in a minute, page and calls together."""

    events_per_minute: Annotated[int, Field(ge=1)] = 1200
    """Other requests, such as clicks and looks at the waiting line, that one address may send in a minute."""

    uploads_per_minute: Annotated[int, Field(ge=1)] = 60
    """Uploads that one address may send in a minute, and as many that it may have opened."""

    trace_bytes: Annotated[int, Field(ge=1, le=4 * MIB)] = 4 * MIB
    """Bytes of a race file that is opened."""


def highest(name: str) -> int:
    """Return the largest value that a limit may be given: the bound of the option or of the file that it is about."""
    field: FieldInfo = vars(Limits)["__pydantic_fields__"][name]
    bounds: list[Any] = [bound.le for bound in field.metadata if isinstance(bound, Le)]
    return int(bounds[0])
