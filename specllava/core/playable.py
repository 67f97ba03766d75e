"""What a notebook plays: the result of a run, shown by ``visual.notebook``, which is imported at that moment only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specllava.files import PAGE_HINT

if TYPE_CHECKING:
    from pathlib import Path

    from PIL import Image


class Playable:
    """A trace or a race, which a notebook shows in the player where it is the last expression of a cell."""

    __slots__ = ()

    def show(self, picture: Image.Image | str | Path | None = None) -> None:
        """Show the run in the player, in the output of a notebook's cell.

        Args:
            picture: what the models looked at; a race of ``Pair.compare`` knows it.

        Raises:
            ValueError: no notebook, no lane, more than can be drawn, a run that did not record its steps, or what draws
                is not installed.
        """
        try:
            from visual.notebook import show
        except ModuleNotFoundError as missing:
            raise ValueError(PAGE_HINT) from missing
        show(self, picture)

    def _repr_html_(self) -> str | None:
        """Return the player as HTML; ``None`` for what cannot be drawn, which a notebook then prints as text."""
        try:
            from visual.notebook import run_html

            return run_html(self)
        except (ValueError, ModuleNotFoundError):
            return None
