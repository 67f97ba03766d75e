"""Scenes that ship, as pictures of the page."""

from __future__ import annotations

from visual.page.pictures import Picture

from specllava.files import Split, scene_images


def scene(number: int = 0, split: Split = "train") -> Picture:
    """Return the picture of a scene that ships."""
    return Picture(file=str(scene_images(split)[number]))
