"""Teaching the vision tower to see: a CLIP-style tower learns the attributes of scenes through a small head.

The stage reads no text. Pictures of the held-out combinations are among its examples, with colour and kind
as separate labels: what is held out is saying them together, as a real tower has seen more than its
language model has read about.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import CLIPVisionModel
from transformers.image_processing_utils import BaseImageProcessor

from specllava.toyworld.draw import draw_scene
from specllava.toyworld.scene import CELLS, COLOURS, KINDS, PLACES, SIZES, TIMES, WEATHERS, Scene, sample_any_scene

ABSENT = -100  # label of an empty cell's colour and size: nothing to learn
CELL_CLASSES = {"kind": len(KINDS) + 1, "colour": len(COLOURS), "size": len(SIZES)}  # kind 0: the cell is empty
SCENE_CLASSES = {"place": len(PLACES), "weather": len(WEATHERS), "time": len(TIMES)}


class Seer(nn.Module):
    """A vision tower with a reading head: one query per grid cell and one for the whole, pooled by attention."""

    def __init__(self, tower: CLIPVisionModel) -> None:
        super().__init__()
        hidden = tower.config.hidden_size
        self.tower = tower
        self.norm = nn.LayerNorm(hidden)
        self.queries = nn.Parameter(torch.randn(len(CELLS) + 1, hidden) * 0.02)
        self.pool = nn.MultiheadAttention(hidden, tower.config.num_attention_heads, batch_first=True)
        classes = {**CELL_CLASSES, **SCENE_CLASSES}
        self.heads = nn.ModuleDict({name: nn.Linear(hidden, count) for name, count in classes.items()})

    def forward(self, pixel_values: Tensor) -> dict[str, Tensor]:
        """Logits by attribute: ``[batch, cells, classes]`` for objects, ``[batch, classes]`` for the scene."""
        outputs = self.tower(pixel_values, output_hidden_states=True)
        patches = self.norm(outputs.hidden_states[-1][:, 1:])  # [batch, patches, hidden]: what LLaVA will read
        queries = self.queries.expand(len(patches), -1, -1)
        pooled, _ = self.pool(queries, patches, patches, need_weights=False)
        cells, whole = pooled[:, :-1], pooled[:, -1]
        logits = {name: self.heads[name](cells) for name in CELL_CLASSES}
        return logits | {name: self.heads[name](whole) for name in SCENE_CLASSES}


def scene_labels(scene: Scene) -> dict[str, Tensor]:
    """Class indices: ``[cells]`` for each object attribute, a scalar for each attribute of the scene."""
    cells = {name: torch.full((len(CELLS),), 0 if name == "kind" else ABSENT) for name in CELL_CLASSES}
    for thing in scene.things:
        cell = CELLS.index((thing.column, thing.row))
        cells["kind"][cell] = KINDS.index(thing.kind) + 1
        cells["colour"][cell] = COLOURS.index(thing.colour)
        cells["size"][cell] = SIZES.index(thing.size)
    whole = {"place": PLACES.index(scene.place), "weather": WEATHERS.index(scene.weather)}
    return cells | {k: torch.tensor(v) for k, v in (whole | {"time": TIMES.index(scene.time)}).items()}


class SceneBatches:
    """Batch number to ``pixel_values [b, 3, h, w]`` and labels by attribute."""

    def __init__(self, images: BaseImageProcessor, batch: int, first_sample: int = 0) -> None:
        self.images, self.batch, self.first_sample = images, batch, first_sample

    def __call__(self, number: int) -> dict[str, Tensor]:
        first = self.first_sample + number * self.batch
        scenes = [sample_any_scene(index) for index in range(first, first + self.batch)]
        size = self.images.crop_size["height"]
        pixels = self.images([draw_scene(scene, size) for scene in scenes], return_tensors="pt")["pixel_values"]
        labels = [scene_labels(scene) for scene in scenes]
        return {"pixel_values": pixels} | {name: torch.stack([row[name] for row in labels]) for name in labels[0]}


def seeing_losses(model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Summed cross-entropies, and the accuracy of what matters most: the kind in occupied cells."""
    logits = model(batch["pixel_values"])
    losses = [
        F.cross_entropy(logits[name].float().flatten(0, -2), batch[name].flatten(), ignore_index=ABSENT)
        for name in logits
    ]
    occupied = batch["kind"] > 0
    right = logits["kind"].argmax(-1) == batch["kind"]
    return {"loss": torch.stack(losses).sum(), "kind": right[occupied].float().mean()}


@torch.inference_mode()
def seeing_accuracy(model: Seer, batches: SceneBatches, count: int) -> dict[str, float]:
    """Accuracy by attribute over ``count`` batches (objects: where one stands)."""
    right = dict.fromkeys((*CELL_CLASSES, *SCENE_CLASSES), 0)
    total = dict.fromkeys(right, 0)
    for number in range(count):
        batch = batches(number)
        logits = model(batch["pixel_values"].to(model.queries.device))
        occupied = batch["kind"] > 0
        for name in right:
            hits = logits[name].argmax(-1).cpu() == batch[name]
            hits = hits[occupied] if name in CELL_CLASSES else hits
            right[name] += int(hits.sum())
            total[name] += hits.numel()
    return {name: right[name] / total[name] for name in right}
