"""Limits of a page on the options of decoding, below what the options themselves allow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from specllava.core.config import DecodingConfig, options_read
from specllava.core.limits import Limits

COUNTS: Final = {  # by option that is a number: the limit that holds for it
    "max_new_tokens": "new_tokens", "depth": "depth", "nodes": "nodes", "width": "width", "max_branches": "branches",
}  # fmt: skip
LISTS: Final = {"branching": "list_items", "rank_acceptance": "list_items", "shape": "nodes"}


class OptionRefused(ValueError):
    """Error of an option beyond a limit: one line with the value, the limit and the way out.

    Args:
        option: name of the option.
        what: what of it is too large, "" for its value.
    """

    def __init__(self, option: str, what: str, value: int, most: int) -> None:
        super().__init__(f"{what}{option} is {value:,}, and at most {most:,} are allowed here: choose fewer")
        self.option = option


def limit_option(name: str, value: Any, limits: Limits) -> Any:
    """Return a number of an option as this page offers it: the limit, where that is smaller."""
    return min(value, getattr(limits, COUNTS[name])) if name in COUNTS else value


def check_options(config: DecodingConfig, limits: Limits) -> None:
    """Refuse options beyond a limit of the page; those that decoding would not read do not count.

    Raises:
        OptionRefused: the first such option.
    """
    read = options_read(config.drafter, config.rule, config.temperature, config.children)
    for option, what, value, most in _sizes(config, limits):
        if option in read and value > most:
            raise OptionRefused(option, what, value, most)


def _sizes(config: DecodingConfig, limits: Limits) -> Iterator[tuple[str, str, int, int]]:
    """Yield each option that has a limit: its name, what is counted, how much that is, and the limit."""
    for name, limit in COUNTS.items():
        yield name, "", getattr(config, name), getattr(limits, limit)
    for name, limit in LISTS.items():
        yield name, "the length of ", len(getattr(config, name)), getattr(limits, limit)
    yield "branching", "the largest of ", max(config.branching), limits.branches
    yield "shape", "the most children in ", max(Counter(config.shape).values()), limits.branches
