"""The training loop: one optimiser, warm-up and cosine, checkpoints, exact resume. Independent of model and data.

Batch number ``k`` is a pure function of ``k``. So after a kill a run resumes with the first batch not yet used, and
ends with the weights of an uninterrupted run. Several processes share the batches of a step:
two of them are equal to one with twice the accumulation.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset
from tqdm.auto import tqdm

from specllava.distill.config import LoopConfig

Batch = dict[str, Tensor]
Losses = dict[str, Tensor]  # "loss" is minimised, the others are logged
STRIDE = 1_000_003  # between the random numbers of two seeds
COUNT = "count "  # prefix of batch entries that are summed over a run; every batch has the same entries


@dataclass(slots=True)
class TrainingLog:
    """Losses and counts of a training so far.

    Args:
        curve: one entry per step: ``step``, the learning rate, and every loss, averaged over the step's batches.
        counts: the ``count`` entries of all batches, added up.
        stopped: whether the callback ended the training.
    """

    curve: list[dict[str, float]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    stopped: bool = False

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.curve, self.counts, self.stopped = state["curve"], state["counts"], state["stopped"]


class TrainingCallback(Protocol):
    """Callback that receives the model during training. Its state is part of the checkpoint."""

    def __call__(self, step: int, model: nn.Module, training_log: TrainingLog) -> bool:
        """Handle the model after ``step`` steps, 0 being before the first; return True to end the training."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class _Numbered(Dataset[Batch | ValueError]):
    """Data set of batches by a range of their numbers, for a data loader's worker process.

    An error in the data is returned as a value: raised in a worker, its text would be the worker's traceback.
    """

    def __init__(self, make: Callable[[int], Batch], numbers: range) -> None:
        self.make, self.numbers = make, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> Batch | ValueError:
        try:
            return self.make(self.numbers[index])
        except ValueError as error:
            return error


class _LossModule(nn.Module):
    """Model and losses as one forward pass, around which processes share gradients."""

    def __init__(self, model: nn.Module, losses: Callable[[Any, Batch], Losses]) -> None:
        super().__init__()
        self.model, self.losses = model, losses

    def forward(self, batch: Batch) -> Losses:
        return self.losses(self.model, batch)


class _Trainer:
    """The model with optimiser, scheduler and averaged weights; one optimiser step at a time."""

    def __init__(
        self,
        name: str,
        model: nn.Module,
        losses: Callable[[Any, Batch], Losses],
        config: LoopConfig,
        accelerator: Accelerator,
    ) -> None:
        self.name, self.config, self.accelerator = name, config, accelerator
        self.trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(
            self.trainable, lr=config.learning_rate, betas=(0.9, 0.95), weight_decay=config.weight_decay, fused=True
        )
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, config.rate)
        self.model = model.to(accelerator.device)
        self.module, self.optimizer = accelerator.prepare(_LossModule(self.model, losses), optimizer)
        ema = get_ema_multi_avg_fn(config.ema)
        self.averaged = AveragedModel(self.model, multi_avg_fn=ema) if config.ema else None
        self.log = TrainingLog()

    @property
    def kept_model(self) -> nn.Module:
        """The model with the weights that would be kept now."""
        return self.model if self.averaged is None else self.averaged.module

    @property
    def parts(self) -> list[Any]:
        """The parts of a checkpoint, in its order."""
        parts = (self.model, self.optimizer, self.scheduler, self.log, self.averaged)
        return [part for part in parts if part is not None]

    def step(self, number: int, group: Sequence[Batch], batch_weight: Callable[[Batch], int] | None) -> None:
        """Train on the batches of a step.

        Raises:
            FloatingPointError: the loss is not finite; the weights are as they were.
        """
        # What a loss draws depends on step and process alone, so a run that goes on draws what an unbroken one would.
        shared = self.accelerator.num_processes
        torch.manual_seed((self.config.seed * STRIDE + number) * shared + self.accelerator.process_index)
        rate = float(self.scheduler.get_last_lr()[0])
        parts = _learn(self.module, group, batch_weight, self.accelerator, self.log)
        if not math.isfinite(parts["loss"]):
            raise FloatingPointError(
                f"{self.name}: the loss is {parts['loss']} at step {number}; the last checkpoint is kept"
            )
        self.accelerator.clip_grad_norm_(self.trainable, self.config.clip)
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.averaged is not None:
            self.averaged.update_parameters(self.model)
        point = {"step": number, "rate": rate, **parts}
        self.log.curve.append(point)
        shown = {f"{self.name}/{key}": value for key, value in point.items() if key != "step"}
        self.accelerator.log(shown, step=number)

    def end(self) -> None:
        """Put the weights that are kept into the model."""
        if self.averaged is not None:
            self.model.load_state_dict(self.averaged.module.state_dict())


def fit(
    name: str,
    model: nn.Module,
    losses: Callable[[Any, Batch], Losses],
    batches: Callable[[int], Batch],
    config: LoopConfig,
    directory: Path,
    accelerator: Accelerator,
    callback: TrainingCallback | None = None,
    batch_weight: Callable[[Batch], int] | None = None,
) -> TrainingLog:
    """Train ``model`` in place; resume from ``directory`` if an earlier call was cut short.

    The last checkpoint is kept in case of a kill before the model is saved: remove the directory afterwards.

    Args:
        name: label of the progress bar, and prefix of the names of what the accelerator tracks.
        losses: model and batch to losses, of which ``loss`` is minimised.
        batches: batch number to batch, on the CPU; called in a worker process.
        callback: called before the first step, every ``config.validate_every`` steps, and after the last.
        batch_weight: weight of a batch in the mean of a step's batches; equal weights without it.

    Raises:
        FloatingPointError: the loss is not finite; the last checkpoint is left as it is.
        ValueError: what ``batches`` raises.
    """
    torch.manual_seed(config.seed)
    release_freed_memory()  # which each worker would hold as well
    trainer = _Trainer(name, model, losses, config, accelerator)
    log = trainer.log
    kept = [*trainer.parts, *([] if callback is None else [callback])]
    first = step = _resume(directory, accelerator, *kept)
    if callback is not None and first == 0:
        log.stopped = callback(0, trainer.kept_model, log)
    bar = tqdm(
        _steps(batches, config, first, accelerator),
        desc=name, initial=first, total=config.steps, unit="step", mininterval=2.0,
        disable=not accelerator.is_main_process,
    )  # fmt: skip
    for group in () if log.stopped else bar:
        trainer.step(step, group, batch_weight)
        bar.set_postfix(_recent(log.curve), refresh=False)
        step += 1
        due = step == config.steps or (config.validate_every and step % config.validate_every == 0)
        if callback is not None and due:
            log.stopped = callback(step, trainer.kept_model, log)
        if log.stopped:
            break
        if step % config.checkpoint_every == 0 and step < config.steps:
            _checkpoint(directory, accelerator, step, *kept)
    bar.close()
    if step > first:
        _checkpoint(directory, accelerator, step, *kept)
    trainer.end()
    return log


def _steps(
    batches: Callable[[int], Batch], config: LoopConfig, first: int, accelerator: Accelerator
) -> Iterator[list[Batch]]:
    """Yield this process' batches of each step; the batches of one step are distributed in turn."""
    share, each = accelerator.num_processes, config.accumulation
    numbers = range(first * each * share + accelerator.process_index, config.steps * each * share, share)
    loader = DataLoader(_Numbered(batches, numbers), batch_size=None, num_workers=config.workers, prefetch_factor=4)
    group: list[Batch] = []
    for batch in loader:
        if isinstance(batch, ValueError):
            raise batch
        group.append(batch)
        if len(group) == each:
            yield group
            group = []


def _learn(
    module: nn.Module,
    group: Sequence[Batch],
    batch_weight: Callable[[Batch], int] | None,
    accelerator: Accelerator,
    log: TrainingLog,
) -> dict[str, float]:
    """Compute the gradients of one step from all its batches, in all processes; return its losses as weighted means."""
    weights = [1 if batch_weight is None else batch_weight(batch) for batch in group]
    whole = int(_sum_over_processes(torch.tensor(sum(weights)), accelerator))
    shown: dict[str, Tensor] = {}
    for index, (batch, weight) in enumerate(zip(group, weights, strict=True)):
        moved = {key: value.to(accelerator.device) for key, value in batch.items() if not key.startswith(COUNT)}
        last = index == len(group) - 1
        with contextlib.nullcontext() if last else accelerator.no_sync(module):
            with accelerator.autocast():
                parts = module(moved)
            # Processes average their gradients, so each share is multiplied by their number.
            accelerator.backward(parts["loss"] * (weight * accelerator.num_processes / whole))
        for key, value in parts.items():
            shown[key] = shown.get(key, 0.0) + value.detach().float() * (weight / whole)
    for key in filter(lambda key: key.startswith(COUNT), group[0]):
        total = int(_sum_over_processes(torch.stack([batch[key] for batch in group]).sum(), accelerator))
        log.counts[key.removeprefix(COUNT)] = log.counts.get(key.removeprefix(COUNT), 0) + total
    return {key: float(_sum_over_processes(value, accelerator)) for key, value in shown.items()}


def _sum_over_processes(value: Tensor, accelerator: Accelerator) -> Tensor:
    """Return the sum over all processes, the same in each."""
    if accelerator.num_processes == 1:
        return value
    summed: Tensor = accelerator.reduce(value.to(accelerator.device), reduction="sum")
    return summed


def _recent(curve: Sequence[dict[str, float]], steps: int = 50) -> dict[str, str]:
    """Return the mean losses of the last ``steps`` steps, for the progress bar."""
    tail = curve[-steps:]
    names = [key for key in tail[-1] if key not in ("step", "rate")]
    return {key: f"{sum(point[key] for point in tail) / len(tail):.4f}" for key in names}


def _checkpoint(directory: Path, accelerator: Accelerator, step: int, *parts: Any) -> None:
    """Write a checkpoint to a temporary name, then rename it: a kill in between leaves the earlier one intact."""
    if accelerator.is_main_process:
        directory.mkdir(parents=True, exist_ok=True)
        beside = directory / "writing.pt"
        torch.save({"step": step, "parts": [part.state_dict() for part in parts]}, beside)
        beside.replace(directory / "last.pt")
    release_freed_memory()
    accelerator.wait_for_everyone()


def release_freed_memory() -> None:
    """Return freed memory to the system: on a CPU glibc keeps that of many sizes, gigabytes in some hundred steps."""
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


def _resume(directory: Path, accelerator: Accelerator, *parts: Any) -> int:
    path = directory / "last.pt"
    if not path.exists():
        return 0
    state = torch.load(path, map_location=accelerator.device, weights_only=True)
    for part, saved in zip(parts, state["parts"], strict=True):
        part.load_state_dict(saved)
    return int(state["step"])
