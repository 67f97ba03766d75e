"""Which draft of the page's target guesses for a visitor. No models are imported here.

The form's setting ``drafter`` names a drafter, or another draft after :data:`DRAFT`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from specllava.config import short

DRAFT: Final = "draft: "  # before the name of a draft, in the setting that is otherwise a drafter's name
OWN: Final = "model"  # the draft that the page was started with
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class DraftChoices:
    """The drafts of the target that a page offers.

    Args:
        own: name of the draft that it was started with; "" where there is none.
        about: what that draft is.
        drafts: the others by name, and what they are.
        tree: options of decoding with which others measured its own pair, which form and calls begin with.
    """

    own: str = ""
    about: str = ""
    drafts: Mapping[str, str] = field(default_factory=dict)
    tree: Mapping[str, Any] = field(default_factory=dict)

    def all_drafts(self) -> dict[str, str]:
        """Return all drafts by what they are called, in order: how :func:`read_draft` names each."""
        return ({self.own: OWN} if self.own else {}) | {name: name for name in self.drafts}


def read_draft(settings: Mapping[str, Any] | None) -> str:
    """Return the draft that settings choose; they may be anything that a browser sent."""
    drafter = str((settings or {}).get("drafter", OWN))
    return drafter.removeprefix(DRAFT) if drafter.startswith(DRAFT) else OWN


def chosen_models(others: Mapping[str, Item], draft: str) -> Item | None:
    """Return the value of the models with a draft; ``None``: the page's own.

    Raises:
        ValueError: there is no draft of that name.
    """
    if draft == OWN:
        return None
    if draft not in others:
        raise ValueError(f"there is no draft {short(draft)}: choose {'; '.join((OWN, *others))}")
    return others[draft]
