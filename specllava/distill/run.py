"""One distillation from files to files: data, stages, validation, report. Resumable after a kill."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs, is_tensorboard_available
from torch import Tensor, nn
from transformers.utils.logging import disable_progress_bar

from specllava.distill.batches import RowBatches, split
from specllava.distill.chats import ChatEncoder
from specllava.distill.config import DistillConfig
from specllava.distill.initial_draft import check_teachable, make_fresh, training_draft
from specllava.distill.job import Job
from specllava.distill.loop import TrainingLog
from specllava.distill.output import Output
from specllava.distill.pictures import Pixels
from specllava.distill.rows import Row, Rows, index_rows
from specllava.distill.self_generated import self_generated_answers
from specllava.distill.stage import distil
from specllava.distill.validation import UNASKED, Validation, first_questions, replace_draft
from specllava.findings.distillation import SCHEMA_VERSION, Report, ReportState, ValidationResult
from specllava.models.checkpoint import Checkpoint
from specllava.models.drafts.draft_vlm import save, saved_beside
from specllava.models.loading import store_by_rows
from specllava.pair import Pair
from specllava.prompt import projector_weights

MOST_POINTS = 2000  # of the curve in the report; a longer one is averaged
LONGEST_WAIT = timedelta(hours=12)  # wait of one process for another, which may be answering


def distil_files(job: Job, tell: Callable[[str], None]) -> Report | None:
    """Run a job to its end, resuming from the state of an earlier call of the same job.

    Args:
        tell: receives the lines of output for the user; called in the main process only.

    Returns:
        The report in the main process, ``None`` in the others.

    Raises:
        ValueError, OSError: bad input, or an output directory of another run; one line.
        FloatingPointError: the loss is not finite; the last checkpoint and the best draft are kept.
    """
    config = job.training
    if job.draft is None and config.drafter == "vlm":
        raise ValueError(
            "--draft is missing: name a directory (draft init makes one), or let --drafter eagle make a new one"
        )
    accelerator = _accelerator(job.output, job.device, config)
    main = accelerator.is_main_process
    if not main:
        disable_progress_bar()
    run = _Run(job, Output(job.output), accelerator, tell if main else _print_nothing)
    identity = _identity(job, accelerator.num_processes)
    run.output.claim(identity, accelerator)
    if (done := run.output.finished()) is not None:
        run.tell(f"already done: {job.output}")
        return done if main else None
    pair = _load_pair(run)
    if config.tensorboard:
        accelerator.init_trackers("tensorboard")
    with accelerator.main_process_first():
        rows = index_rows(job.data, job.images, run.output.rows)
    if rows.reasons.counts:
        run.tell(f"left out of {job.data.name}: {rows.reasons.line()}")
    learnt, held_out = split(rows, config.validation_prompts, config.seed)
    source, batches = _batches(run, pair, rows, learnt)
    begin = job.draft
    if begin is None or config.compressor is not None:
        make_fresh(run.output.fresh, begin, pair, config, batches, run.rows_read, accelerator, run.tell)
        begin, pair = run.output.fresh, pair.with_draft(run.output.fresh)
    new_tokens = job.decoding.max_new_tokens
    prompts, readable = first_questions(pair, rows, held_out.tolist(), job.images, new_tokens, accelerator)
    left_out = rows.reasons.counts | (source.reasons.counts if source is not rows else {})
    if readable < len(held_out):
        left_out = {**left_out, UNASKED: len(held_out) - readable}
    blank = _blank_report(pair, identity, accelerator.num_processes, len(batches.numbers), left_out, readable)
    writer = _ReportWriter(blank, run.output, main, run.tell)
    callback = Validation(pair, prompts, job.decoding, run.output.draft, config.patience, accelerator, writer.log)
    try:
        report = _learn(run, begin, pair, batches, callback, writer)
    except FloatingPointError as error:
        raise FloatingPointError(f"{error}: try a smaller --learning-rate, with another --output") from error
    if config.tensorboard:
        accelerator.get_tracker("tensorboard").finish()
    return report if main else None


@dataclass(frozen=True, slots=True)
class _Run:
    """What every part of a run needs."""

    job: Job
    output: Output
    accelerator: Accelerator
    tell: Callable[[str], None]

    @property
    def rows_read(self) -> int:
        """Rows that all training steps read, repeated ones again."""
        return self.job.training.rows(self.accelerator.num_processes)


def _print_nothing(_line: str) -> None:
    pass


def _accelerator(output: Path, device: str, config: DistillConfig) -> Accelerator:
    if config.tensorboard and not is_tensorboard_available():
        raise ValueError(
            'tensorboard is not installed: pip install "specllava[tensorboard]", or leave --tensorboard out'
        )
    return Accelerator(
        cpu=device == "cpu",
        mixed_precision=config.precision,
        log_with="tensorboard" if config.tensorboard else None,
        project_dir=output,
        kwargs_handlers=[InitProcessGroupKwargs(timeout=LONGEST_WAIT)],
    )


def _identity(job: Job, processes: int) -> dict[str, Any]:
    """Return everything that determines the result, as JSON data."""
    target = Checkpoint.at(job.target)

    def resolved(path: Path | None) -> str | None:
        return None if path is None else str(path.resolve())

    values: dict[str, Any] = {
        "draft": resolved(job.draft),
        "data": resolved(job.data),
        "images": resolved(job.images),
        "target": resolved(Path(target.name_or_path)) if target.local else target.name_or_path,
        "dtype": job.dtype,
        "processes": processes,
    }
    values |= {name: value for name, value in asdict(job.training).items() if name not in ("tensorboard", "workers")}
    values |= {f"decoding.{name}": value for name, value in asdict(job.decoding).items()}
    if job.context is not None:
        values["context"] = job.context
    plain: dict[str, Any] = json.loads(json.dumps(values))
    return plain


def _encoder(pair: Pair, length: int, row: Row) -> ChatEncoder:
    """Return the encoder of rows for a target, tried on one of them.

    Raises:
        ValueError: a chat template that cannot be used.
    """
    length, slot = min(length, pair.context), pair.target.config.image_token_id
    encode = ChatEncoder(pair.processor, length, pair.eos_token_ids, slot)
    encode(row.without_images(), [])
    return encode


def _load_pair(run: _Run) -> Pair:
    """Load the target, with the draft that learns if there is one; refuse what the loss does not support."""
    job, device = run.job, str(run.accelerator.device)
    pair = Pair.load(job.target, name="distillation", device=device, dtype=job.dtype, context=job.context)
    pair = replace(pair, packed=False)  # validation reads weights that learn
    pair = pair if job.draft is None else pair.with_draft(job.draft)
    check_teachable(pair, job.training)
    store_by_rows(pair.target.get_output_embeddings())
    return pair


def _batches(run: _Run, pair: Pair, rows: Rows, learnt: Tensor) -> tuple[Rows, RowBatches]:
    """Return the rows that are learnt from, with the answers to learn, and their batches.

    Args:
        learnt: numbers of the training rows.
    """
    job, config = run.job, run.job.training
    encode = _encoder(pair, config.length, rows[int(learnt[0])])
    source, numbers = rows, learnt
    if config.answers == "target":
        source = _answered(run, pair, rows, learnt[: run.rows_read].tolist())
        numbers = torch.arange(len(source))
    see = Pixels(pair.processor, pair.target.config, job.images)
    return source, RowBatches(source, numbers, encode, config.batch, config.seed, see, job.images)


def _answered(run: _Run, pair: Pair, rows: Rows, numbers: Sequence[int]) -> Rows:
    """Return the rows ``numbers`` with the target's own answers.

    Raises:
        ValueError: it answers none of them.
    """
    job = run.job
    decoding = job.decoding if pair.draft is not None else replace(job.decoding, drafter="prompt-lookup")
    source = self_generated_answers(pair, rows, numbers, job.images, decoding, run.output.answers, run.accelerator)
    if source.reasons.counts:
        run.tell(f"left out, without an answer of the target: {source.reasons.line()}")
    if not len(source):
        raise ValueError(f"the target answers none of {len(numbers)} rows")
    return source


def _learn(
    run: _Run, begin: Path, pair: Pair, batches: RowBatches, callback: Validation, writer: _ReportWriter
) -> Report:
    """Train the draft at ``begin`` in both stages with validation, and return the report."""
    config, output, accelerator = run.job.training, run.output, run.accelerator
    teach = partial(distil, target=pair.target, objective=config.objective, accelerator=accelerator, callback=callback)
    draft = training_draft(begin, pair.target)
    if config.projector_steps:
        if not output.aligned.exists():
            draft.requires_grad_(False)
            _set_trainable(projector_weights(draft), True)
            loop = config.loop(projector=True)
            log = teach("projector", draft, batches=batches, loop=loop, directory=output.checkpoints("projector"))
            if accelerator.is_main_process:
                output.write_stage({**log.state_dict(), **callback.state_dict()})
                save(draft, saved_beside(draft, pair.processor), output.aligned, torch.float32)
                output.remove_checkpoints("projector")
            accelerator.wait_for_everyone()
        stage = output.read_stage()
        callback.load_state_dict({"checks": stage.pop("checks")})
        writer.before.load_state_dict(stage)
        callback.offset = config.projector_steps
        draft = training_draft(output.aligned, pair.target)
    if config.freeze_projector:
        _set_trainable(projector_weights(draft), False)
    if config.gradient_checkpointing:
        draft.gradient_checkpointing_enable({"use_reentrant": False})
        draft.train()
    numbered = partial(_shift, batches, config.projector_steps * config.accumulation * accelerator.num_processes)
    log = teach("draft", draft, batches=numbered, loop=config.loop(), directory=output.checkpoints("draft"))
    if accelerator.is_main_process:
        replace_draft(draft, pair.processor, output.last)
    report = writer.report(callback.checks, log, "stopped" if log.stopped else "finished")
    if accelerator.is_main_process:
        output.remove_checkpoints("draft")
    return report


def _blank_report(
    pair: Pair, identity: dict[str, Any], processes: int, rows: int, left_out: dict[str, int], prompts: int
) -> Report:
    """Make the report of a run before its first validation."""
    return Report(
        schema_version=SCHEMA_VERSION,
        target=pair.target_name,
        draft=pair.draft_name,
        rows=rows,
        left_out=left_out,
        prompts=prompts,
        config=identity,
        setting=asdict(pair.info) | {"processes": processes},
        checks=(),
        curve=(),
        state="running",
    )


@dataclass(frozen=True, slots=True)
class _ReportWriter:
    """Writer of the validation log and the report.

    Args:
        blank: the report before the first validation.
        writes: whether this process writes it.
        before: log of the stage before the current one.
    """

    blank: Report
    output: Output
    writes: bool
    tell: Callable[[str], None]
    before: TrainingLog = field(default_factory=TrainingLog)

    def log(self, checks: Sequence[ValidationResult], log: TrainingLog) -> None:
        """Print the last validation, and write the report so far."""
        check = checks[-1]
        tau = "–" if check.tau is None else f"{check.tau:.3f}"
        self.tell(f"step {check.step}: KL {check.kl:.4f} nats, agreement {check.agreement:.3f}, τ {tau}")
        self.report(checks, log, "running")

    def report(self, checks: Sequence[ValidationResult], log: TrainingLog, state: ReportState) -> Report:
        """Make the report, and write it in the main process."""
        left_out = {**self.blank.left_out, **_left_out_in_training(self.before, log)}
        curve = _joined_curve(self.before, log)
        made = replace(self.blank, left_out=left_out, checks=tuple(checks), curve=curve, state=state)
        if self.writes:
            self.output.write(made)
        return made


def _shift(batches: RowBatches, by: int, number: int) -> dict[str, Tensor]:
    """Return batch ``number`` of the second stage, which continues after the rows of the first one."""
    return batches(number + by)


def _set_trainable(weights: Sequence[nn.Parameter], trainable: bool) -> None:
    for weight in weights:
        weight.requires_grad_(trainable)


def _left_out_in_training(*logs: TrainingLog) -> dict[str, int]:
    """Count the rows that are unusable or too long in training, over all stages."""
    names = {name for log in logs for name, count in log.counts.items() if count}
    return {name: sum(log.counts.get(name, 0) for log in logs) for name in sorted(names)}


def _joined_curve(*logs: TrainingLog) -> tuple[dict[str, float], ...]:
    points: list[dict[str, float]] = []
    for log in logs:
        offset = len(points)
        points += [{**point, "step": point["step"] + offset} for point in log.curve]
    size = -(-len(points) // MOST_POINTS)
    return tuple(_mean(points[start : start + size]) for start in range(0, len(points), size or 1))


def _mean(points: Sequence[dict[str, float]]) -> dict[str, float]:
    """Average several steps into one point; its step is the last of them."""
    names = [name for name in points[-1] if name != "step"]
    means = {name: sum(point[name] for point in points) / len(points) for name in names}
    return {"step": points[-1]["step"], **means}
