"""Pictures that visitors ask about: an example's file, an upload, or a scene of the toy world."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import gradio as gr
from PIL import Image

from specllava.limits import Limits
from specllava.models.images import EncodedImage, open_image
from specllava.toyworld.draw import draw_scene
from specllava.toyworld.scene import sample_scene
from visual.page.notices import error, info
from visual.player.picture import data_address

Split = Literal["train", "held-out"]
TOY_KNOWS = "The toy pair knows only its own cartoon scenes."
STRANGE = "This scene has a thing in a colour in which training never showed it."
SCENE_PIXELS = 384  # of a scene on the page
UPLOAD_PIXELS = 1344  # on the longer side: no family of models looks at more


@dataclass(frozen=True, eq=False)
class Picture:
    """A picture of the page: a file that stays, an upload, decoded or not, or a scene that is drawn when it is needed.

    Gradio tells states apart by their hash, so two pictures are equal only if they are the same object.
    """

    file: str | None = None
    upload: Image.Image | None = None
    encoded: EncodedImage | None = None
    seed: int = 0
    split: Split = "train"

    def open(self) -> Image.Image:
        """Return the picture as the models get it; scenes at the size of their training."""
        return self._image() or draw_scene(sample_scene(self.seed, self.split))

    def shown(self) -> Image.Image:
        """Return the picture as the visitor sees it; scenes with sides of ``SCENE_PIXELS``."""
        return self._image() or draw_scene(sample_scene(self.seed, self.split), SCENE_PIXELS)

    @property
    def address(self) -> str:
        """The picture as the visitor sees it, as the ``data:`` address that a race about it holds too."""
        return data_address(self.shown())

    def _image(self) -> Image.Image | None:
        if self.encoded:
            return open_image(self.encoded, UPLOAD_PIXELS)
        return open_image(self.file) if self.file else self.upload


def new_scene(split: Split) -> tuple[Picture, str, str]:
    """Draw a random scene. Returns state, image and notice; ``held-out`` ones hold a mix that training never had."""
    picture = Picture(seed=random.randrange(10**9), split=split)
    return picture, picture.address, info(STRANGE) if split == "held-out" else ""


def uploaded_picture(path: str | None, limits: Limits) -> Picture:
    """Decode an uploaded file, here and nowhere else, and keep what models get: Gradio deletes the file after a while.

    Raises:
        ValueError: no picture, or one beyond the limits; one line.
    """
    if path is None or not Path(path).is_file():
        raise ValueError("no file came")
    size = Path(path).stat().st_size
    if size > limits.upload_bytes:
        raise ValueError(f"the file has {size:,} bytes, and at most {limits.upload_bytes:,} are read: make it smaller")
    return Picture(upload=open_image(path, UPLOAD_PIXELS, limits.pixels))


def read_upload(path: str | None, limits: Limits | None = None) -> tuple[Any, Any, str]:
    """Read an uploaded file. Returns state, image and notice; a file that is no picture changes only the notice."""
    try:
        picture = uploaded_picture(path, limits or Limits())
        return picture, picture.address, ""
    except ValueError as refusal:
        return gr.skip(), gr.skip(), error(f"This picture cannot be used: {refusal}")
