"""Types of a trace's fields: what a file from anywhere may hold, and that its errors stay few. No torch.

A list stops at its first bad entry, and an object is refused for too many keys. So the errors of a damaged file cannot
outgrow it: pydantic keeps every one of them in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, Final, TypeVar

from pydantic import BeforeValidator, ConfigDict, FailFast, Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema, from_json
from pydantic_core.core_schema import no_info_before_validator_function

MAX_KEYS: Final = 64  # of an object, far more than any has
# What files hold and nothing reads any more: fields, by their record, and names of rules. Commit 6362268 has all of it.
RETIRED_FIELDS: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "DecodingConfig": frozenset({"shape", "verifier"}),
        "DecodeTrace": frozenset({"given"}),
        "Draw": frozenset({"credit"}),
    }
)
RETIRED_RULES: Final = ("cost-aware", "shape")
Item = TypeVar("Item")

Count = Annotated[int, Field(ge=0, le=2**53)]  # as far as a browser counts
Seconds = Annotated[float, Field(ge=0.0)]
Probability = Annotated[float, Field(ge=0.0, le=1.000001)]
Many = Annotated[tuple[Item, ...], FailFast()]


def few_keys(value: object) -> object:
    """Refuse an object with too many keys before each of them becomes an error."""
    if isinstance(value, dict) and len(value) > MAX_KEYS:
        raise ValueError(f"an object of {len(value):,} keys, and none has more than {MAX_KEYS}")
    return value


def without_retired(record: str, value: object) -> object:
    """Drop the fields of a record that files of earlier versions hold, whatever their values."""
    few_keys(value)
    retired = RETIRED_FIELDS.get(record, frozenset())
    if not isinstance(value, dict) or retired.isdisjoint(value):
        return value
    return {name: own for name, own in value.items() if name not in retired}


def retired_rule(rule: str) -> str:
    """Return why a run of a rule that is not known here can only be shown."""
    where = ": commit 6362268 has it" if rule in RETIRED_RULES else ""
    return f"the {rule} rule is not here, so a run of it is shown and not repeated{where}"


class Record:
    """Plain dataclasses in the decode loop, strict ones when read from a file: unknown keys and NaN are refused."""

    __slots__ = ()
    __pydantic_config__ = ConfigDict(extra="forbid", allow_inf_nan=False)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type[Any], handler: GetCoreSchemaHandler) -> CoreSchema:
        return no_info_before_validator_function(partial(without_retired, cls.__name__), handler(source))


def _token_texts(value: object) -> object:
    """Stop at the first entry that is no token id with its text."""
    for token, text in value.items() if isinstance(value, dict) else ():
        if not (token.isascii() and token.isdecimal() and len(token) < 16 and isinstance(text, str)):
            raise ValueError(f"{token[:40]!r} is no token id with a text")
    return value


TokenTexts = Annotated[dict[Count, str], BeforeValidator(_token_texts)]
Versions = Annotated[dict[str, str], BeforeValidator(few_keys)]


def parse_json(data: bytes | str) -> object:
    """Parse a JSON document, with or without a byte order mark as Windows editors write one.

    Raises:
        ValueError: not JSON; one line.
    """
    try:
        return from_json(data.removeprefix("\ufeff") if isinstance(data, str) else data.removeprefix(b"\xef\xbb\xbf"))
    except ValueError as error:
        raise ValueError(f"invalid JSON: {error}") from error
