"""Makes the toy pair from nothing: tokenizer, vision tower, target, draft before and after distillation.

Each stage leaves its part in the output directory and is skipped when the part is there, and each training
loop resumes from its checkpoint; so the one command may be killed and repeated.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import Tensor
from transformers import AutoProcessor, CLIPVisionModel, LlavaConfig, LlavaForConditionalGeneration, LlavaProcessor

from specllava.distill.config import LoopConfig, Objective
from specllava.distill.loop import Batch, Losses, fit
from specllava.distill.losses import next_token_loss
from specllava.distill.stage import distil
from specllava.models.artefact import DraftLlava, save
from specllava.models.vision import merge_features, tower_features
from specllava.toyworld.build import build_processor, special_ids
from specllava.toyworld.corpus import ChatBatches, Talk, content_ids, conversation, refresher, roll_call
from specllava.toyworld.recipe import ToyRecipe, Workspace
from specllava.toyworld.vision import SceneBatches, Seer, seeing_accuracy, seeing_losses

ChatLosses = Callable[[Any, Batch], Losses]
VALIDATION_START = 50_000_000  # sample numbers that no training run reaches


@dataclass(frozen=True, slots=True)
class _Run:
    """What every training stage works with."""

    place: Workspace
    recipe: ToyRecipe
    processor: LlavaProcessor
    accelerator: Accelerator
    compiled: bool

    def chats(self, batch: int, talk: Talk = conversation) -> ChatBatches:
        return ChatBatches(self.processor, batch, self.recipe.image_tokens, talk)

    def llava(self, layers: int, hidden: int) -> LlavaConfig:
        return self.recipe.llava_config(layers, hidden, special_ids(self.processor))

    def teacher(self) -> LlavaForConditionalGeneration:
        """The finished target."""
        target = LlavaForConditionalGeneration.from_pretrained(self.place.target, dtype=torch.float32)
        return target.to(self.accelerator.device).eval()


def train(
    output: Path, recipe: ToyRecipe | None = None, start: Path | None = None, compiled: bool | None = None
) -> None:
    """Run every stage that is not done yet.

    Args:
        output: directory of the run; ``target``, ``draft`` and ``draft-before`` appear in it.
        start: an earlier run or pair to go on from. Its target takes the place of every stage before the last one
            of the target, and the draft begins as its ``draft-before``.
        compiled: compile the language models (about 1.4 times faster on two cores); default: where a C++
            compiler is found or on a GPU.
    """
    recipe = recipe or ToyRecipe()
    place = Workspace(output)
    accelerator = Accelerator(mixed_precision="bf16" if _bfloat16_is_fast() else "no")
    if start is not None:
        _go_on_from(start, place)
    if compiled is None:
        compiled = accelerator.device.type != "cpu" or shutil.which("g++") is not None
    if not place.processor.exists():
        _log(output, "tokenizer", _timed(lambda: build_processor(recipe).save_pretrained(place.processor)))
    run = _Run(place, recipe, AutoProcessor.from_pretrained(place.processor), accelerator, compiled)
    if not place.talking.exists():
        _first_stages(run)
    if not place.target.exists():
        _done(place, "target", _timed(lambda: _refine(run)))
    if not place.draft_before.exists():
        _done(place, "draft", _timed(lambda: _train_draft(run)))
    if not place.draft.exists():
        _done(place, "distilled draft", _timed(lambda: _distil(run)))


def _bfloat16_is_fast() -> bool:
    """Without its own instructions a CPU multiplies bfloat16 several times slower than float32."""
    return torch.cuda.is_available() or bool(torch.cpu.get_capabilities().get("amx_bf16"))


def _go_on_from(start: Path, place: Workspace) -> None:
    """Put the models of an earlier run where the stages that are left look for them, unless this run has begun."""
    if place.talking.exists():
        return
    processor = AutoProcessor.from_pretrained(start / "target")
    processor.save_pretrained(place.processor)
    first = DraftLlava.from_pretrained(start / "draft-before", dtype=torch.float32)
    save(first, processor, place.first_draft, torch.float32)
    target = LlavaForConditionalGeneration.from_pretrained(start / "target", dtype=torch.float32)
    save(target, processor, place.talking, torch.float32)


def _first_stages(run: _Run) -> None:
    """From nothing to a target that talks."""
    if not run.place.tower.exists():
        _done(run.place, "vision tower", _timed(lambda: _train_tower(run)))
    if not run.place.aligned.exists():
        _done(run.place, "aligned target", _timed(lambda: _align(run)))
    _done(run.place, "talking target", _timed(lambda: _talk(run)))


def _train_tower(run: _Run) -> None:
    set_seed(run.recipe.vision.seed)
    seer = Seer(CLIPVisionModel(run.recipe.vision_config()))
    if run.compiled:
        seer.tower.compile()
    images = run.processor.image_processor
    batches = SceneBatches(images, run.recipe.vision_batch)
    checkpoints = run.place.checkpoints("vision tower")
    fit("vision tower", seer, seeing_losses, batches, run.recipe.vision, checkpoints, run.accelerator)
    seer.eval()
    accuracy = seeing_accuracy(seer, SceneBatches(images, run.recipe.vision_batch, VALIDATION_START), 8)
    _log(run.place.root, "vision accuracy", {name: round(value, 4) for name, value in accuracy.items()})
    seer.tower.save_pretrained(run.place.tower)


def _align(run: _Run) -> None:
    """A fresh target learns to look: bare lists of what stands where, the tower frozen."""
    set_seed(run.recipe.align.seed)
    target = LlavaForConditionalGeneration(run.llava(run.recipe.target_layers, run.recipe.target_hidden))
    target.model.vision_tower = CLIPVisionModel.from_pretrained(run.place.tower)
    batches = run.chats(run.recipe.align_batch, roll_call)
    _fit_chat("aligned target", target, corpus_losses(), batches, run.recipe.align, run)
    save(target, run.processor, run.place.aligned, torch.float32)


def _talk(run: _Run) -> None:
    set_seed(run.recipe.target.seed)
    target = LlavaForConditionalGeneration.from_pretrained(run.place.aligned, dtype=torch.float32)
    batches = run.chats(run.recipe.chat_batch)
    _fit_chat("talking target", target, corpus_losses(), batches, run.recipe.target, run)
    save(target, run.processor, run.place.talking, torch.float32)


def _refine(run: _Run) -> None:
    """The target goes on with fresh talk and registers, and what the picture decides counts more than the wording."""
    set_seed(run.recipe.refine.seed)
    target = LlavaForConditionalGeneration.from_pretrained(run.place.talking, dtype=torch.float32)
    batches = run.chats(run.recipe.refine_batch, refresher)
    weight = torch.ones(run.recipe.vocabulary, device=run.accelerator.device)
    weight[content_ids(run.processor.tokenizer)] = run.recipe.content_weight
    _fit_chat("target", target, corpus_losses(weight), batches, run.recipe.refine, run)
    save(target, run.processor, run.place.target)


def _train_draft(run: _Run) -> None:
    set_seed(run.recipe.draft.seed)
    if run.place.first_draft.exists():
        draft = DraftLlava.from_pretrained(run.place.first_draft, dtype=torch.float32)
    else:
        draft = DraftLlava(run.llava(run.recipe.draft_layers, run.recipe.draft_hidden))
    batches = run.chats(run.recipe.chat_batch)
    _teach("draft", draft, batches, Objective(kl_weight=0.0), run.recipe.draft, run)
    save(draft, run.processor, run.place.draft_before)


def _distil(run: _Run) -> None:
    """The second draft goes on from the first, taught by the target's distributions as well as the corpus."""
    set_seed(run.recipe.distill.seed)
    draft = DraftLlava.from_pretrained(run.place.draft_before, dtype=torch.float32)
    batches = run.chats(run.recipe.distill_batch)
    _teach("distilled draft", draft, batches, Objective(run.recipe.kl_weight), run.recipe.distill, run)
    save(draft, run.processor, run.place.draft)


def _teach(
    name: str, draft: DraftLlava, batches: ChatBatches, objective: Objective, loop: LoopConfig, run: _Run
) -> None:
    """The stage that the ``distill`` command runs too."""
    target = run.teacher()
    if run.compiled:
        for model in (target, draft):
            model.model.language_model.compile()
    checkpoints = run.place.checkpoints(name)
    distil(name, draft, target, batches, objective, loop, checkpoints, run.accelerator)


def _fit_chat(
    name: str,
    model: LlavaForConditionalGeneration,
    losses: ChatLosses,
    batches: ChatBatches,
    loop: LoopConfig,
    run: _Run,
) -> None:
    model.model.vision_tower.requires_grad_(False)
    if run.compiled:
        model.model.language_model.compile()
    fit(name, model, losses, batches, loop, run.place.checkpoints(name), run.accelerator)


def corpus_losses(weight: Tensor | None = None) -> ChatLosses:
    """Cross-entropy of a target on the corpus' answers; its tower stays as it is.

    Args:
        weight: of each token, ``[vocab]``.
    """

    def losses(model: LlavaForConditionalGeneration, batch: Batch) -> Losses:
        with torch.no_grad():
            features = tower_features(model, batch["pixel_values"])
        return {"loss": next_token_loss(chat_logits(model, batch, features), batch["labels"], weight)}

    return losses


def chat_logits(model: LlavaForConditionalGeneration, batch: Batch, features: Tensor) -> Tensor:
    """Logits ``[batch, length, vocab]``. Padding is on the right, so causal attention needs no mask for it."""
    embeds = merge_features(model, batch["input_ids"], features)
    logits: Tensor = model(inputs_embeds=embeds, use_cache=False).logits
    return logits


def _timed(stage: Callable[[], object]) -> dict[str, float]:
    start = time.perf_counter()
    stage()
    return {"seconds": round(time.perf_counter() - start, 1)}


def _done(place: Workspace, stage: str, facts: dict[str, float]) -> None:
    """A stage's part is saved, so its checkpoints may go."""
    shutil.rmtree(place.checkpoints(stage), ignore_errors=True)
    _log(place.root, stage, facts)


def _log(output: Path, stage: str, facts: dict[str, float]) -> None:
    with (output / "log.jsonl").open("a") as file:
        file.write(json.dumps({"stage": stage, **facts}) + "\n")
