"""Training of the vision tower: a linear head for every attribute classifies the content of each patch.

The stage reads no text. Pictures of the held-out combinations are among its examples, with colour and kind
as separate labels. Only their combination in text is held out, as a real tower's training pictures are more
than its language model's text covers.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import CLIPVisionModel
from transformers.image_processing_utils import BaseImageProcessor

from recipes.toy.corpus import draw_pixels
from recipes.toy.draw import shown_at
from recipes.toy.scene import CELLS, COLOURS, KINDS, PLACES, SIZES, TIMES, WEATHERS, Scene, sample_any_scene

ABSENT = -100  # label of an attribute that a patch does not have: no loss
OBJECT_CLASSES = {"kind": KINDS, "colour": COLOURS, "size": SIZES, "cell": CELLS}
SCENE_CLASSES = {"place": PLACES, "weather": WEATHERS, "time": TIMES, "count": tuple(range(1, len(CELLS) + 1))}


class ToyVisionTower(nn.Module):
    """A vision tower with a linear head for each attribute, on every patch, because LLaVA reads patches one by one."""

    def __init__(self, tower: CLIPVisionModel) -> None:
        super().__init__()
        hidden = tower.config.hidden_size
        self.tower = tower
        self.norm = nn.LayerNorm(hidden)
        classes = OBJECT_CLASSES | SCENE_CLASSES
        self.heads = nn.ModuleDict({name: nn.Linear(hidden, len(values)) for name, values in classes.items()})

    def forward(self, pixel_values: Tensor) -> dict[str, Tensor]:
        """Return logits by attribute, ``[batch, patches, classes]``."""
        outputs = self.tower(pixel_values, output_hidden_states=True)
        patches = self.norm(outputs.hidden_states[-1][:, 1:])  # [batch, patches, hidden]: LLaVA's input
        return {name: head(patches) for name, head in self.heads.items()}


def patch_labels(scene: Scene, patches: int) -> dict[str, Tensor]:
    """Return class indices by attribute, ``[patches]``: of the object where there is one, of the scene elsewhere."""
    labels = {name: torch.full((patches,), ABSENT) for name in OBJECT_CLASSES | SCENE_CLASSES}
    for patch, thing in enumerate(shown_at(scene, math.isqrt(patches))):
        for name, values in (SCENE_CLASSES if thing is None else OBJECT_CLASSES).items():
            labels[name][patch] = values.index(getattr(thing or scene, name))
    return labels


class SceneBatches:
    """Batches by number: ``pixel_values [b, 3, h, w]`` and labels by attribute, ``[b, patches]``."""

    def __init__(self, images: BaseImageProcessor, batch: int, patches: int) -> None:
        self.images, self.batch, self.patches = images, batch, patches

    def __call__(self, number: int) -> dict[str, Tensor]:
        scenes = [sample_any_scene(index) for index in range(number * self.batch, (number + 1) * self.batch)]
        labels = [patch_labels(scene, self.patches) for scene in scenes]
        pixels = draw_pixels(self.images, scenes)
        return {"pixel_values": pixels} | {name: torch.stack([row[name] for row in labels]) for name in labels[0]}


def tower_losses(model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return summed cross-entropies, and the accuracy of the most important attribute: the kind where an object is."""
    logits = model(batch["pixel_values"])
    losses = [
        F.cross_entropy(rows.float().flatten(0, -2), batch[name].flatten(), ignore_index=ABSENT, reduction="sum")
        / (batch[name] != ABSENT).sum().clamp(min=1)
        for name, rows in logits.items()
    ]
    occupied = batch["kind"] != ABSENT
    right = logits["kind"].argmax(-1) == batch["kind"]
    return {"loss": torch.stack(losses).sum(), "kind": right[occupied].float().mean()}
