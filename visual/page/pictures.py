"""Pictures that visitors ask about: an example's file, an upload, or a scene of the toy world."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Literal

import gradio as gr
from PIL import Image

from specllava.models.images import open_image
from specllava.toyworld.draw import draw_scene
from specllava.toyworld.scene import sample_scene
from visual.page.notices import error

SCENE_PIXELS = 384  # of a scene on the page
UPLOAD_PIXELS = 1344  # on the longer side: no family of models looks at more


@dataclass(frozen=True, eq=False)
class Picture:
    """A picture of the page: a file that stays, an upload, or a scene that is drawn when it is needed.

    Gradio tells states apart by their hash, so two pictures are equal only if they are the same object.
    """

    file: str | None = None
    upload: Image.Image | None = None
    seed: int = 0
    split: Literal["train", "held-out"] = "train"

    def open(self) -> Image.Image:
        """Return the picture as the models get it; scenes at the size of their training."""
        return self._image() or draw_scene(sample_scene(self.seed, self.split))

    def shown(self) -> Image.Image:
        """Return the picture as the visitor sees it; scenes with sides of ``SCENE_PIXELS``."""
        return self._image() or draw_scene(sample_scene(self.seed, self.split), SCENE_PIXELS)

    def _image(self) -> Image.Image | None:
        return open_image(self.file) if self.file else self.upload


def new_scene(unseen: bool) -> tuple[Picture, Image.Image]:
    """Draw a random scene; ``unseen`` ones hold a combination that training never had."""
    picture = Picture(seed=random.randrange(10**9), split="held-out" if unseen else "train")
    return picture, picture.shown()


def read_upload(path: str | None) -> tuple[Any, Any, str]:
    """Decode an uploaded file. Returns state, image and notice; a file that is no picture changes only the notice.

    The file is decoded here and nowhere else, and kept as what the models get: Gradio deletes it after a while.
    """
    try:
        if path is None:
            raise ValueError("no file came")
        picture = Picture(upload=open_image(path, UPLOAD_PIXELS))
        return picture, picture.shown(), ""
    except ValueError as refusal:
        return gr.skip(), gr.skip(), error(f"This picture cannot be used: {refusal}")
