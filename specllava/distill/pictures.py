"""Pictures of rows: how a text writes them, what the target's tower reads of them, and their entries in a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from PIL import Image
from transformers import PretrainedConfig, ProcessorMixin

from specllava.distill.loop import Batch
from specllava.models.families.family import family_of
from specllava.models.families.interface import Picture, ProcessedPrompt, Size
from specllava.models.images import open_image

_ENTRY: Final = "picture "  # and its number and the name of a tensor: an entry of a batch


def written_picture(processor: ProcessorMixin, size: Size, several: bool) -> str:
    """Return the text of a picture of this size, its image slots and what is around them: that of a blank one.

    Args:
        several: it is one of several pictures of a prompt.
    """
    blanks = [Image.new("RGB", size[::-1])] * (1 + several)
    text = processor.image_token * len(blanks)
    made = processor(images=[blanks], text=text, return_text_replacement_offsets=True)
    written: str = made["text_replacement_offsets"][0][0]["replacement"]
    return written


@dataclass(frozen=True, slots=True)
class Pixels:
    """Function from picture paths below ``images`` to what the tower of the target with ``config`` reads of each."""

    processor: ProcessorMixin
    config: PretrainedConfig
    images: Path

    def __call__(self, names: Sequence[str], shown: int | None = None) -> list[Picture]:
        """Return the pictures of one row; of some families each tile of a picture is one.

        Args:
            shown: only the first of them, as they are beside the others; all without it.

        Raises:
            ValueError: a picture that cannot be read.
        """
        family = family_of(self.config)
        opened = [open_image(self.images / name) for name in (names if family.several_differ else names[:shown])]
        text = self.processor.image_token * len(opened)
        inputs = self.processor(images=[opened], text=text, return_tensors="pt")
        sizes = [(one.height, one.width) for one in opened]
        pictures = family.pictures(ProcessedPrompt(self.config, self.processor, inputs, sizes))
        return pictures[:shown] if family.several_differ else pictures


def batch_entries(pictures: Sequence[Picture]) -> Batch:
    """Return the entries of a batch that hold its pictures, in the order of their slots."""
    return {
        f"{_ENTRY}{number} {name}": tensor
        for number, picture in enumerate(pictures)
        for name, tensor in picture.items()
    }


def batch_pictures(batch: Batch) -> list[Picture]:
    """Return the pictures of a batch; of one with ``pixel_values`` each is one square."""
    if "pixel_values" in batch:
        read = zip(batch["pixel_values"].split(1), batch["image_sizes"].split(1), strict=True)
        return [{"pixel_values": pixels, "image_sizes": size} for pixels, size in read]
    pictures: dict[int, Picture] = {}
    for entry, tensor in batch.items():
        if entry.startswith(_ENTRY):
            number, _, name = entry.removeprefix(_ENTRY).partition(" ")
            pictures.setdefault(int(number), {})[name] = tensor
    return [pictures[number] for number in sorted(pictures)]
