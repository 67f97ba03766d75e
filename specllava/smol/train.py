"""Training of the pair smol's target: SmolLM2 learns to give to a picture the answers that it gives to its truth."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaForCausalLM, LlavaForConditionalGeneration

from specllava.distill.config import LoopConfig, Objective
from specllava.distill.loop import Batch, Losses, fit
from specllava.distill.losses import IGNORE, answer_positions, chunked_cross_entropy, chunked_loss
from specllava.models.families.interface import tower_features
from specllava.runtime.vision import merge_features
from specllava.smol.answers import read_answers
from specllava.smol.checkpoint import SETTINGS, WEIGHTS
from specllava.smol.rows import SmolBatches
from specllava.smol.sight import SCALE, Sight
from specllava.toyworld.corpus import draw_pixels
from specllava.toyworld.draw import shown_at
from specllava.toyworld.hints import first_tokens
from specllava.toyworld.packing import packed_mask
from specllava.toyworld.phrases import NUMBERS
from specllava.toyworld.scene import Scene, sample_any_scene

PATCHES: Final = 8  # in a row and in a column


@dataclass(frozen=True, slots=True)
class SmolRecipe:
    """Sizes, steps and seeds of the pair's target."""

    rank: int = 16
    naming_batch: int = 16
    batch: int = 4
    kl_weight: float = 0.5
    naming: LoopConfig = field(default_factory=lambda: LoopConfig(600, 3e-3, warmup=20, weight_decay=0.0))
    looking: LoopConfig = field(
        default_factory=lambda: LoopConfig(400, 1e-3, warmup=20, weight_decay=0.0, checkpoint_every=25, seed=1)
    )
    talking: LoopConfig = field(
        default_factory=lambda: LoopConfig(1000, 7e-4, warmup=20, weight_decay=0.0, checkpoint_every=25, seed=2)
    )


class NamedPatches:
    """Batches by number: ``pixel_values [b, 3, h, w]`` and the words of each patch, ``words [b, patches, 5]``."""

    def __init__(self, processor: Any, batch: int) -> None:
        self.processor, self.batch = processor, batch

    def __call__(self, number: int) -> dict[str, Tensor]:
        scenes = [sample_any_scene(index) for index in range(number * self.batch, (number + 1) * self.batch)]
        words = torch.tensor([self._words(scene) for scene in scenes])
        return {"pixel_values": draw_pixels(self.processor.image_processor, scenes), "words": words}

    def _words(self, scene: Scene) -> list[list[int]]:
        whole = (scene.place, scene.weather, scene.time, NUMBERS[min(4, len(scene.things))], "background")
        named = [
            (thing.size, thing.colour, thing.kind, thing.column, thing.row) if thing else whole
            for thing in shown_at(scene, PATCHES)
        ]
        tokens = first_tokens(self.processor.tokenizer, {word for words in named for word in words})
        return [[tokens[word] for word in words] for words in named]


def naming_losses(sight: Sight, batch: Batch, model: LlavaForConditionalGeneration) -> Losses:
    """Return how far projected patches are from the embeddings of their words, as a share of their variance."""
    with torch.no_grad():
        features = tower_features(model, batch["pixel_values"].to(model.dtype)).float()
        words = model.get_input_embeddings()(batch["words"]).float().sum(-2) / batch["words"].shape[-1] ** 0.5
    return {"loss": F.mse_loss(sight.projector(features).float(), words) / words.var()}


def talking_losses(sight: Sight, batch: Batch, model: LlavaForConditionalGeneration, objective: Objective) -> Losses:
    """Return cross-entropy of all answers, and KL(language model that reads the truth ‖ model) of its own answers."""
    with torch.no_grad():
        features = tower_features(model, batch["pixel_values"].to(model.dtype))
    embeds = merge_features(model, batch["input_ids"], features)
    decoder = model.get_decoder()
    mask, positions = packed_mask(batch["segments"]), batch["position_ids"]
    states = decoder(inputs_embeds=embeds, attention_mask=mask, position_ids=positions, use_cache=False)[0]
    facts = torch.where(batch["own"] == IGNORE, batch["labels"], IGNORE)
    predicting, tokens = answer_positions(states, facts)
    told = chunked_cross_entropy(predicting, model.lm_head, tokens, objective.chunk)
    if "texts" not in batch:
        return {"loss": told, "facts": told}
    with torch.no_grad(), sight.without_adapters():
        read = decoder(input_ids=batch["texts"], use_cache=False)[0]
        theirs, known = answer_positions(read, batch["text_labels"])
    ours, tokens = answer_positions(states, batch["own"])
    assert torch.equal(known, tokens)
    own, kl = chunked_loss(ours, model.lm_head, theirs, model.lm_head, tokens, objective)
    return {"loss": told + own, "facts": told, "own": own, "kl": kl}


def train_sight(
    language_model: LlamaForCausalLM,
    build: Callable[[], tuple[LlavaForConditionalGeneration, Any]],
    answers: Path,
    output: Path,
    recipe: SmolRecipe,
    last: str = "talking",
) -> None:
    """Train projector and adapters in three stages, each resumable; ``output`` gets what :func:`assemble` reads."""
    model, processor = build()
    model.model.language_model.load_state_dict(language_model.model.state_dict())
    model.bfloat16().eval()
    sight = Sight(model, recipe.rank)
    accelerator = Accelerator(mixed_precision="bf16")
    talking = partial(talking_losses, model=model, objective=Objective(recipe.kl_weight))
    stages = (
        ("naming", partial(naming_losses, model=model), NamedPatches(processor, recipe.naming_batch), recipe.naming),
        ("looking", talking, SmolBatches(processor, recipe.batch), recipe.looking),
        ("talking", talking, SmolBatches(processor, recipe.batch, read_answers(answers)), recipe.talking),
    )
    for name, losses, batches, loop in stages:
        part = output / f"{name}.pt"
        if part.exists():
            sight.load_state_dict(torch.load(part, weights_only=True))
            continue
        log = fit(name, sight, losses, batches, loop, output / name, accelerator)
        (output / f"{name}.json").write_text(json.dumps(log.curve))
        torch.save(sight.state_dict(), part)
        if name == last:
            return


def export_sight(sight: Sight, model: LlavaForConditionalGeneration, output: Path) -> None:
    """Write ``sight.safetensors`` and ``sight.json``."""
    tower = {
        f"model.vision_tower.{name}": one.bfloat16().contiguous()
        for name, one in model.model.vision_tower.state_dict().items()
    }
    output.mkdir(parents=True, exist_ok=True)
    save_file(tower | sight.exported(), output / WEIGHTS)
    vision = model.config.vision_config.to_dict()
    (output / SETTINGS).write_text(json.dumps({"vision_config": vision, "adapter_scale": SCALE}, indent=1))
