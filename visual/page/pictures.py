"""Pictures that visitors ask about: an example's file, an upload, or a scene of the toy world."""

from __future__ import annotations

import random
from dataclasses import dataclass

from PIL import Image

from specllava.models.media.images import EncodedImage, open_image
from specllava.toyworld.draw import draw_scene
from specllava.toyworld.scene import Split, sample_scene
from visual.page.notices import info
from visual.player.picture import data_address

TOY_KNOWS = "The toy pair knows only its own cartoon scenes."
STRANGE = "This scene has a thing in a colour in which training never showed it."
SCENE_PIXELS = 384  # of a scene on the page
PICTURE_PIXELS = 1344  # on the longer side: no family of models looks at more


@dataclass(frozen=True, eq=False)
class Picture:
    """A picture of the page: a file that stays, an upload, decoded or not, or a scene that is drawn when it is needed.

    Two are equal only if they are the same object.
    """

    file: str | None = None
    upload: Image.Image | None = None
    encoded: EncodedImage | None = None
    seed: int = 0
    split: Split = "train"

    @property
    def uploaded(self) -> bool:
        """Whether a visitor uploaded it."""
        return self.upload is not None

    @property
    def nbytes(self) -> int:
        """Bytes of memory that it holds."""
        if self.upload is not None:
            return image_bytes(self.upload)
        return len(self.encoded.data) if self.encoded else 0

    def open(self) -> Image.Image:
        """Return the picture as the models get it; scenes at the size of their training."""
        return self._image() or draw_scene(sample_scene(self.seed, self.split))

    def preview(self) -> Image.Image:
        """Return the picture as the visitor sees it; scenes with sides of ``SCENE_PIXELS``."""
        return self._image() or draw_scene(sample_scene(self.seed, self.split), SCENE_PIXELS)

    @property
    def address(self) -> str:
        """The picture as the visitor sees it, as the ``data:`` address that a race about it holds too."""
        return data_address(self.preview())

    def _image(self) -> Image.Image | None:
        if self.encoded:
            return open_image(self.encoded, PICTURE_PIXELS)
        return open_image(self.file) if self.file else self.upload


def image_bytes(image: Image.Image) -> int:
    """Return the bytes of a decoded picture."""
    return image.width * image.height * len(image.getbands())


def new_scene(split: Split) -> tuple[Picture, str, str]:
    """Draw a random scene. Returns state, image and notice; ``held-out`` ones hold a mix that training never had."""
    picture = Picture(seed=random.randrange(10**9), split=split)
    return picture, picture.address, info(STRANGE) if split == "held-out" else ""
