"""The training loop: one optimiser, warm-up and cosine, checkpoints, exact resume. Knows no model and no data.

Batch number ``k`` is a pure function of ``k``, so a run that was killed goes on with the batch it had not
yet seen, and ends with the weights that an unbroken run would have.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from tqdm.auto import tqdm

Batch = dict[str, Tensor]
Losses = dict[str, Tensor]  # "loss" is minimised, the others are shown


@dataclass(frozen=True, slots=True)
class LoopConfig:
    """How long and how fast to learn."""

    steps: int
    learning_rate: float
    warmup: int = 200
    weight_decay: float = 0.05
    clip: float = 1.0
    checkpoint_every: int = 200
    seed: int = 0

    def rate(self, step: int) -> float:
        """Share of the learning rate at a step: linear warm-up, then a cosine down to zero."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        progress = (step - self.warmup) / max(1, self.steps - self.warmup)
        return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


class _Numbered(Dataset[Batch]):
    """Batches ``start, start + 1, …`` for a data loader's worker process."""

    def __init__(self, make: Callable[[int], Batch], start: int, stop: int) -> None:
        self.make, self.start, self.stop = make, start, stop

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, index: int) -> Batch:
        return self.make(self.start + index)


def fit(
    name: str,
    model: nn.Module,
    losses: Callable[[nn.Module, Batch], Losses],
    batches: Callable[[int], Batch],
    config: LoopConfig,
    directory: Path,
    accelerator: Accelerator,
) -> None:
    """Train ``model`` in place; resume from ``directory`` if an earlier call was cut short.

    Args:
        name: shown beside the progress bar.
        losses: model and batch to losses, of which ``loss`` is minimised.
        batches: batch number to batch, on the CPU; called in a worker process.

    Raises:
        FloatingPointError: the loss is not finite; the last checkpoint is left as it is.
    """
    torch.manual_seed(config.seed)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(
        trainable, lr=config.learning_rate, betas=(0.9, 0.95), weight_decay=config.weight_decay, fused=True
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, config.rate)
    model, optimizer = accelerator.prepare(model, optimizer)
    first = _resume(directory, accelerator, model, optimizer, scheduler)
    loader = DataLoader(_Numbered(batches, first, config.steps), batch_size=None, num_workers=1, prefetch_factor=4)
    shown: dict[str, float] = {}
    bar = tqdm(loader, desc=name, initial=first, total=config.steps, unit="batch", mininterval=2.0)
    for step, batch in enumerate(bar, start=first):
        moved = {key: value.to(accelerator.device) for key, value in batch.items()}
        with accelerator.autocast():
            parts = losses(model, moved)
        accelerator.backward(parts["loss"])
        accelerator.clip_grad_norm_(trainable, config.clip)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        for key, value in parts.items():
            number = float(value.detach())
            shown[key] = number if key not in shown else 0.98 * shown[key] + 0.02 * number
        if not math.isfinite(shown["loss"]):
            raise FloatingPointError(f"{name}: the loss is {shown['loss']} at step {step}; the last checkpoint is kept")
        bar.set_postfix({key: f"{value:.4f}" for key, value in shown.items()})
        if (step + 1) % config.checkpoint_every == 0 and step + 1 < config.steps:
            _checkpoint(directory, step + 1, model, optimizer, scheduler)
    shutil.rmtree(directory, ignore_errors=True)


def _checkpoint(directory: Path, step: int, *parts: Any) -> None:
    """Write beside, then rename: a kill in between leaves the earlier checkpoint whole."""
    directory.mkdir(parents=True, exist_ok=True)
    beside = directory / "writing.pt"
    torch.save({"step": step, "parts": [part.state_dict() for part in parts]}, beside)
    beside.replace(directory / "last.pt")


def _resume(directory: Path, accelerator: Accelerator, *parts: Any) -> int:
    path = directory / "last.pt"
    if not path.exists():
        return 0
    state = torch.load(path, map_location=accelerator.device, weights_only=True)
    for part, saved in zip(parts, state["parts"], strict=True):
        part.load_state_dict(saved)
    return int(state["step"])
