"""Training of a draft: a distillation from files to files, and the loop that every training runs.

Batch number ``k`` is a pure function of ``k``. So after a kill a run resumes with the first batch not yet used, and
ends with the weights of an uninterrupted run. Several processes share the batches of a step:
two of them are equal to one with twice the accumulation.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import json
import math
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs, gather_object
from torch import Tensor, nn
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import PreTrainedModel, ProcessorMixin
from transformers.utils.logging import disable_progress_bar

from specllava.config import DecodingConfig
from specllava.distill.config import (
    SCHEMA_VERSION,
    FeatureObjective,
    Job,
    LoopConfig,
    Objective,
    Report,
    ReportState,
    ValidationResult,
)
from specllava.distill.data import LEFT_OUT, RowBatches, RowEncoder, self_generated_rows, split, without_images
from specllava.distill.losses import Batch, Losses, batch_losses, count_answer_tokens
from specllava.distill.new_draft import begin_draft, check_teachable
from specllava.distill.rows import Row, count_reasons, load_rows
from specllava.files import write_whole
from specllava.metrics import summarise
from specllava.models.drafts.draft_vlm import save
from specllava.models.loading import store_by_rows
from specllava.pair import Pair
from specllava.prompt import Prompt
from specllava.scoring import draft_log_probs, score_draft, teacher_forced_log_probs
from specllava.spec_decode.loop import Lane

REPORT, CHECKPOINT = "report.json", "last.pt"
STRIDE = 1_000_003  # between the random numbers of two seeds


@dataclass(slots=True)
class TrainingLog:
    """Losses, counts and validations of a training so far; part of its checkpoint.

    Args:
        curve: one entry per step: ``step``, the learning rate, and every loss, averaged over the step's batches.
        left_out: sum of the ``left_out`` counts of all batches; empty if they have none.
        checks: validations, as JSON data.
    """

    curve: list[dict[str, float]] = field(default_factory=list)
    left_out: list[int] = field(default_factory=list)
    checks: list[dict[str, Any]] = field(default_factory=list)


Validate = Callable[[int, nn.Module, TrainingLog], None]


def distil_files(job: Job, notify: Callable[[str], None]) -> Report | None:
    """Run a job to its end, resuming from the checkpoint of an earlier call of the same job.

    Args:
        notify: receives the lines of output for the user; called in the main process only.

    Returns:
        The report in the main process, ``None`` in the others.

    Raises:
        ValueError, OSError: bad input, or an output directory of another run; one line.
        FloatingPointError: the loss is not finite; the last checkpoint and the best draft are kept.
    """
    config, output = job.training, job.output
    if job.draft is None and config.drafter == "vlm":
        raise ValueError("--draft is missing: name one (draft init makes it), or let --drafter eagle make a new one")
    if job.decoding.drafter != "model" or job.decoding.temperature:
        raise ValueError("validation decodes greedily with the draft: leave --decoding.drafter and its temperature out")
    waiting = InitProcessGroupKwargs(timeout=timedelta(hours=12))  # for a process that answers or validates
    cpu = job.device == "cpu" or not torch.cuda.is_available()  # no other device runs a pair
    accelerator = Accelerator(cpu=cpu, mixed_precision=config.precision, kwargs_handlers=[waiting])
    main = accelerator.is_main_process
    if not main:
        notify = list[str]().append  # the main process alone prints
        disable_progress_bar()
    identity = _identity(job, accelerator.num_processes)
    earlier = _earlier_report(output, identity)
    if earlier is not None and earlier.state != "running":
        notify(f"already done: {output}")
        return earlier if main else None
    pair = _load_pair(job, str(accelerator.device))
    rows, unusable = load_rows(job.data, job.images)
    if unusable:
        notify(f"left out of {job.data.name}: {count_reasons(unusable)}")
    learnt, held_out = split(rows, config.validation_prompts, config.seed)
    encode = RowEncoder.of(pair, job.images, config.length)
    encode.render(without_images(learnt[0]))  # whether the chat template can be used
    left_out = {reason: len(numbers) for reason, numbers in unusable.items()}
    report = _claim(output, pair, identity, left_out, accelerator)
    work, rows_read = output / "work", config.steps * config.accumulation * config.batch * accelerator.num_processes
    if config.answers == "target":
        learnt, silent = self_generated_rows(pair, learnt[:rows_read], job.images, job.decoding, work, accelerator)
        left_out |= silent
    batches = RowBatches(learnt, encode, config.batch, config.seed)
    draft = begin_draft(job.draft, pair, config, batches, rows_read, notify)
    pair = replace(pair, draft=draft)
    prompts, asked = first_questions(pair, held_out, job.images, job.decoding.max_new_tokens, accelerator)
    report = replace(report, rows=len(learnt), left_out=left_out, prompts=asked)
    progress = _Progress(job, report, pair, prompts, accelerator, notify)
    objective = config.objective
    try:
        log = distil("draft", draft, pair.target, batches, objective, config, work, accelerator, progress.validate)
    except FloatingPointError as error:
        raise FloatingPointError(f"{error}: try a smaller --learning-rate, with another --output") from error
    if main:
        replace_draft(draft, pair.processor, output / "last")
    report = progress.write_report(log, "finished")
    if main:
        (work / CHECKPOINT).unlink()
    return report if main else None


def _identity(job: Job, processes: int) -> dict[str, Any]:
    """Return the options that determine the result, as JSON data; files count by their paths alone."""
    values: dict[str, Any] = asdict(job)
    values |= {name: value.resolve() for name, value in values.items() if isinstance(value, Path)}
    values |= values.pop("training") | {f"decoding.{name}": one for name, one in values.pop("decoding").items()}
    aside = ("output", "device", "workers")
    plain: dict[str, Any] = json.loads(json.dumps(values | {"processes": processes}, default=str))
    return {name: value for name, value in plain.items() if name not in aside}


def _earlier_report(output: Path, identity: dict[str, Any]) -> Report | None:
    """Return the report that an earlier call of this run wrote; another run's directory is refused."""
    if not (output / REPORT).is_file():
        if output.exists() and not (output.is_dir() and all(one.suffix == ".writing" for one in output.iterdir())):
            raise ValueError(f"{output} exists and is no distillation run: choose another --output")
        return None
    report = Report.read(output / REPORT)
    sides = [(name, report.config.get(name), identity.get(name)) for name in {**identity, **report.config}]
    if differ := ", ".join(f"{name} {there} there, {here} here" for name, there, here in sides if there != here):
        raise ValueError(f"{output} holds another run ({differ}): choose another --output")
    return report


def _load_pair(job: Job, device: str) -> Pair:
    """Load the target, with the draft that learns if there is one; refuse what the loss does not support."""
    pair = Pair.load(job.target, name="distillation", device=device, dtype=job.dtype)
    pair = replace(pair, packed=False)  # a second copy of its weights would take the room of the optimiser
    pair = pair if job.draft is None else pair.with_draft(job.draft)
    check_teachable(pair, job.training)
    store_by_rows(pair.target.get_output_embeddings())
    return pair


def _claim(
    output: Path, pair: Pair, identity: dict[str, Any], left_out: dict[str, int], accelerator: Accelerator
) -> Report:
    """Write the first report of a run, by which its directory is known; return it."""
    report = Report(
        schema_version=SCHEMA_VERSION,
        target=pair.target_name,
        draft=f"a new {identity['drafter']}" if pair.draft is None else pair.draft_name,
        rows=0,
        left_out=left_out,
        prompts=0,
        config=identity,
        setting=asdict(pair.info) | {"processes": accelerator.num_processes},
        checks=(),
        curve=(),
        state="running",
    )
    accelerator.wait_for_everyone()
    if accelerator.is_main_process and not (output / REPORT).is_file():
        output.mkdir(parents=True, exist_ok=True)
        write_whole(output / REPORT, report.to_json())
    accelerator.wait_for_everyone()
    return report


@dataclass(frozen=True, slots=True)
class _Progress:
    """Validation of a run by this process' share of prompts, and the report that it begins with."""

    job: Job
    report: Report
    pair: Pair
    prompts: Sequence[Prompt]
    accelerator: Accelerator
    notify: Callable[[str], None]

    def validate(self, step: int, model: nn.Module, log: TrainingLog) -> None:
        """Measure the draft, save it if it is the best so far, and write the report."""
        assert isinstance(model, PreTrainedModel)
        check = validate_draft(self.pair, model, self.prompts, self.job.decoding, step, self.accelerator)
        best = all(check.rank > ValidationResult(**earlier).rank for earlier in log.checks)
        if best and self.accelerator.is_main_process:
            replace_draft(model, self.pair.processor, self.job.output / "draft")
        log.checks.append(asdict(check))
        tau = "–" if check.tau is None else f"{check.tau:.3f}"
        self.notify(f"step {step}: KL {check.kl:.4f} nats, agreement {check.agreement:.3f}, τ {tau}")
        self.write_report(log, "running")
        self.accelerator.wait_for_everyone()

    def write_report(self, log: TrainingLog, state: ReportState) -> Report:
        """Make the report, and write it in the main process."""
        counts = {reason: count for reason, count in zip(LEFT_OUT, log.left_out, strict=False) if count}
        checks = tuple(ValidationResult(**check) for check in log.checks)
        left_out = self.report.left_out | counts
        made = replace(self.report, left_out=left_out, checks=checks, curve=tuple(log.curve), state=state)
        if self.accelerator.is_main_process:
            write_whole(self.job.output / REPORT, made.to_json())
        return made


def first_questions(
    pair: Pair, rows: Sequence[Row], images: Path, new_tokens: int, accelerator: Accelerator
) -> tuple[list[Prompt], int]:
    """Return this process' prompts, the first questions of held-out rows, and the number of readable ones in all.

    Raises:
        ValueError: none can be read.
    """
    prompts, complaint = [], None
    for row in rows[accelerator.process_index :: accelerator.num_processes]:
        shown = tuple(images / name for name in row.images[: row.images_per_question[0]])
        try:
            prompts.append(pair.prompt(shown, row.turns[0], new_tokens))
        except ValueError as error:
            complaint = str(error)
    readable = sum(gather_object([len(prompts)]))
    if not readable:
        raise ValueError(f"none of {len(rows)} validation prompts can be read: {complaint}")
    return prompts, readable


def validate_draft(
    pair: Pair,
    draft: PreTrainedModel,
    prompts: Sequence[Prompt],
    config: DecodingConfig,
    step: int,
    accelerator: Accelerator,
) -> ValidationResult:
    """Measure a draft after some steps: KL, agreement, and τ by real speculative decoding.

    Every process decodes its own prompts, and all return the same result. A draft in ``pair`` is not used.
    """
    training = draft.training
    cast = draft if draft.dtype == pair.target.dtype else cast_weights(copy.deepcopy(draft), pair.target.dtype)
    pair = replace(pair, draft=cast.eval(), draft_name=f"step {step}")
    bar = tqdm(prompts, f"validation at step {step}", leave=False, disable=not accelerator.is_main_process)
    measured = [_measure(pair, prompt, config) for prompt in bar]
    draft.train(training)
    kl, agreed, read, tokens, passes = (sum(one) for one in zip(*gather_object(measured), strict=True))
    tau = tokens / passes if passes else None
    return ValidationResult(step, kl / read, agreed / read, tau, int(tokens), int(passes))


@torch.inference_mode()
def _measure(pair: Pair, prompt: Prompt, config: DecodingConfig) -> tuple[float, int, int, int, int]:
    """Return of one prompt's answer the summed KL, agreed guesses, tokens read, step tokens and target passes."""
    assert pair.draft is not None
    trace = pair.run(Lane("validation", config, prompt), record=False)
    run = summarise([trace])
    ours = draft_log_probs(pair.target, pair.draft, prompt, trace.token_ids)
    theirs = teacher_forced_log_probs(pair.target, prompt, trace.token_ids)
    scores = score_draft(ours, theirs)
    agreed = sum(guess == token for guess, token in zip(scores.guesses, trace.token_ids, strict=True))
    return sum(scores.divergences), agreed, len(scores.guesses), run.step_tokens, run.target_passes


def cast_weights(draft: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """Cast a draft's weights alone, as loading does: rotary frequencies, which are no weights, stay in float32."""
    for weight in draft.parameters():
        weight.data = weight.data.to(dtype)
    return draft


def replace_draft(draft: PreTrainedModel, processor: ProcessorMixin, directory: Path) -> None:
    """Replace a saved draft by a copy of this one; at every moment one of the two is there or beside it as ``.old``."""
    new, old = (directory.with_name(directory.name + suffix) for suffix in (".new", ".old"))
    shutil.rmtree(new, ignore_errors=True)
    save(copy.deepcopy(draft), processor, new, torch.float32)
    if directory.exists():
        shutil.rmtree(old, ignore_errors=True)
        directory.rename(old)
    new.rename(directory)
    shutil.rmtree(old, ignore_errors=True)


def distil(
    name: str,
    draft: PreTrainedModel,
    target: PreTrainedModel,
    batches: Callable[[int], Batch],
    objective: Objective | FeatureObjective,
    loop: LoopConfig,
    directory: Path,
    accelerator: Accelerator,
    validate: Validate | None = None,
) -> TrainingLog:
    """Train ``draft``, as :func:`fit` does; parameters that need no gradient are unchanged.

    The target is in evaluation mode on the accelerator's device, and batches are what :func:`batch_losses` reads.

    Raises:
        FloatingPointError: the loss is not finite; the last checkpoint is kept.
    """
    target.requires_grad_(False)
    draft.train()
    losses = batch_losses(target, objective)
    return fit(name, draft, losses, batches, loop, directory, accelerator, validate, count_answer_tokens)


def fit(
    name: str,
    model: nn.Module,
    losses: Callable[[Any, Batch], Losses],
    batches: Callable[[int], Batch],
    config: LoopConfig,
    directory: Path,
    accelerator: Accelerator,
    validate: Validate | None = None,
    batch_weight: Callable[[Batch], int] | None = None,
) -> TrainingLog:
    """Train ``model`` in place; resume from the checkpoint in ``directory`` if an earlier call was cut short.

    The last checkpoint is kept in case of a kill before the model is saved: remove it afterwards.

    Args:
        losses: model and batch to losses, of which ``loss`` is minimised.
        batches: batch number to batch, on the CPU; called in a worker process.
        validate: called before the first step, every ``config.validate_every`` steps, and after the last.
        batch_weight: weight of a batch in the mean of a step's batches; equal weights without it.

    Raises:
        FloatingPointError: the loss is not finite; the last checkpoint is left as it is.
        ValueError: what ``batches`` raises.
    """
    torch.manual_seed(config.seed)
    release_freed_memory()  # which each worker would hold as well
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    adamw = torch.optim.AdamW(
        weights, lr=config.learning_rate, betas=(0.9, 0.95), weight_decay=config.weight_decay, fused=True
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(adamw, config.rate)
    module, optimizer = accelerator.prepare(_LossModule(model.to(accelerator.device), losses), adamw)
    parts = (model, optimizer, scheduler)
    first, log = _load_checkpoint(directory, accelerator, parts)
    if validate is not None and first == 0:
        validate(0, model, log)
    bar = tqdm(
        _steps(batches, config, first, accelerator), name, initial=first, total=config.steps, unit="step",
        mininterval=2.0, disable=not accelerator.is_main_process,
    )  # fmt: skip
    for step, group in enumerate(bar, first):
        # What a loss draws depends on step and process alone: a resumed run draws what an unbroken one would.
        torch.manual_seed((config.seed * STRIDE + step) * accelerator.num_processes + accelerator.process_index)
        rate = float(scheduler.get_last_lr()[0])
        means = _accumulate_gradients(module, group, batch_weight, accelerator, log)
        if not math.isfinite(means["loss"]):
            raise FloatingPointError(f"{name}: the loss is {means['loss']} at step {step}; the last checkpoint is kept")
        accelerator.clip_grad_norm_(weights, config.clip)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        log.curve.append({"step": step, "rate": rate, **means})
        bar.set_postfix({key: f"{value:.4f}" for key, value in means.items()}, refresh=False)
        done = step + 1
        if validate is not None and (done == config.steps or done % (config.validate_every or config.steps) == 0):
            validate(done, model, log)
        if done == config.steps or done % config.checkpoint_every == 0:
            _save_checkpoint(directory, accelerator, done, log, parts)
    return log


class _LossModule(nn.Module):
    """Model and losses as one forward pass, around which processes share gradients."""

    def __init__(self, model: nn.Module, losses: Callable[[Any, Batch], Losses]) -> None:
        super().__init__()
        self.model, self.losses = model, losses

    def forward(self, batch: Batch) -> Losses:
        return self.losses(self.model, batch)


def _make_batch(batches: Callable[[int], Batch], number: int) -> Batch | ValueError:
    """Return an error in the data as a value: raised in a worker process, its text would be the worker's traceback."""
    try:
        return batches(number)
    except ValueError as error:
        return error


def _steps(
    batches: Callable[[int], Batch], config: LoopConfig, first: int, accelerator: Accelerator
) -> Iterator[list[Batch]]:
    """Yield this process' batches of each step; the batches of one step are distributed in turn."""
    share, each = accelerator.num_processes, config.accumulation
    numbers: Any = range(first * each * share + accelerator.process_index, config.steps * each * share, share)
    make = partial(_make_batch, batches)
    group: list[Batch] = []
    for batch in DataLoader(numbers, None, num_workers=config.workers, prefetch_factor=4, collate_fn=make):
        if isinstance(batch, ValueError):
            raise batch
        group.append(batch)
        if len(group) == each:
            yield group
            group = []


def _accumulate_gradients(
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
        moved = {
            name: value.to(accelerator.device) if isinstance(value, Tensor) else value for name, value in batch.items()
        }
        last = index == len(group) - 1
        with contextlib.nullcontext() if last else accelerator.no_sync(module):
            with accelerator.autocast():
                parts = module(moved)
            # Processes average their gradients, so each share is multiplied by their number.
            accelerator.backward(parts["loss"] * (weight * accelerator.num_processes / whole))
        for name, value in parts.items():
            shown[name] = shown.get(name, 0.0) + value.detach().float() * (weight / whole)
    if "left_out" in group[0]:
        counts = _sum_over_processes(torch.stack([batch["left_out"] for batch in group]).sum(dim=0), accelerator)
        log.left_out = (torch.tensor(log.left_out or [0]) + counts.cpu()).tolist()
    return {name: float(_sum_over_processes(value, accelerator)) for name, value in shown.items()}


def _sum_over_processes(value: Tensor, accelerator: Accelerator) -> Tensor:
    """Return the sum over all processes, the same in each."""
    summed: Tensor = accelerator.reduce(value.to(accelerator.device), reduction="sum")
    return summed


def _save_checkpoint(
    directory: Path, accelerator: Accelerator, step: int, log: TrainingLog, parts: Sequence[Any]
) -> None:
    """Write a checkpoint to a temporary name, then rename it: a kill in between leaves the earlier one intact."""
    if accelerator.is_main_process:
        directory.mkdir(parents=True, exist_ok=True)
        beside = directory / "writing.pt"
        torch.save({"step": step, "log": asdict(log), "parts": [part.state_dict() for part in parts]}, beside)
        beside.replace(directory / CHECKPOINT)
    release_freed_memory()
    accelerator.wait_for_everyone()


def _load_checkpoint(directory: Path, accelerator: Accelerator, parts: Sequence[Any]) -> tuple[int, TrainingLog]:
    """Load the checkpoint into the parts, if there is one; return its step and its log."""
    path = directory / CHECKPOINT
    if not path.exists():
        return 0, TrainingLog()
    state = torch.load(path, map_location=accelerator.device, weights_only=True)
    for part, saved in zip(parts, state["parts"], strict=True):
        part.load_state_dict(saved)
    return int(state["step"]), TrainingLog(**state["log"])


def release_freed_memory() -> None:
    """Return freed memory to the system: on a CPU glibc keeps that of many sizes, gigabytes in some hundred steps."""
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)
