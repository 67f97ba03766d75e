"""Which models run for a visitor: the page's pair, with another draft, or in another precision; or another pair.

The form's setting ``drafter`` names a drafter, or another draft behind :data:`DRAFT`; ``precision`` names a precision,
``pair`` another pair, which has neither.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from specllava.core.config import short

PRECISION: Final = "precision"  # the setting that is no option of decoding
PAIR: Final = "pair"  # likewise
DRAFT: Final = "draft: "  # before the name of a draft, in the setting that is otherwise a drafter's name
OWN, AS_STARTED = "model", "as started"  # the draft and the precision that the page was started with
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Chosen:
    """The models of a request: a draft and a precision, or another pair, each by its name."""

    draft: str = OWN
    precision: str = AS_STARTED
    pair: str = AS_STARTED

    def __str__(self) -> str:
        if self.pair != AS_STARTED:
            return self.pair
        changed = (self.draft if self.draft != OWN else "", self.precision if self.precision != AS_STARTED else "")
        return ", ".join(filter(None, changed)) or AS_STARTED


@dataclass(frozen=True, slots=True)
class ModelChoices:
    """What a page offers beside the models that it was started with.

    Args:
        own: name of the draft that it was started with; "" where there is none.
        about: what that draft is.
        drafts, precisions: the others by name, and what they are.
        pairs: says which other pairs there are, as :meth:`visual.page.other_pairs.OtherPairs.offers`; not without any.
        tree: options of decoding with which others measured its own pair, which form and calls begin with.
    """

    own: str = ""
    about: str = ""
    drafts: Mapping[str, str] = field(default_factory=dict)
    precisions: Mapping[str, str] = field(default_factory=dict)
    pairs: Callable[[], list[dict[str, Any]]] | None = None
    tree: Mapping[str, Any] = field(default_factory=dict)

    def all_drafts(self) -> dict[str, str]:
        """Return all drafts by what they are called, in order: how :class:`Chosen` names each."""
        return ({self.own: OWN} if self.own else {}) | {name: name for name in self.drafts}


def read_models(settings: Mapping[str, Any] | None) -> Chosen:
    """Return the models that settings choose; they may be anything that a browser sent."""
    given = settings or {}
    pair = str(given.get(PAIR, AS_STARTED))
    if pair != AS_STARTED:
        return Chosen(pair=pair)
    drafter = str(given.get("drafter", OWN))
    draft = drafter.removeprefix(DRAFT) if drafter.startswith(DRAFT) else OWN
    return Chosen(draft, str(given.get(PRECISION, AS_STARTED)))


def chosen_models(others: Mapping[Chosen, Item], chosen: Chosen) -> Item | None:
    """Return what stands under the models that were chosen; ``None``: the page's own.

    Raises:
        ValueError: there are none of that name.
    """
    if chosen == Chosen():
        return None
    if chosen not in others:
        names = "; ".join(map(str, (Chosen(), *others)))
        raise ValueError(f"there are no models {short(str(chosen))}: choose {names}")
    return others[chosen]
