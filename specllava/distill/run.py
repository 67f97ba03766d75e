"""One distillation from files to files: data, features, stages, validation, report. Resumable after a kill."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from functools import partial

import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs, is_tensorboard_available
from torch import Tensor, nn
from transformers.utils.logging import disable_progress_bar

from specllava.distill.batches import RowBatches, split
from specllava.distill.chats import ChatEncoder
from specllava.distill.features import kept_names, make_features
from specllava.distill.initial_draft import check_teachable, make_fresh, training_draft
from specllava.distill.job import Job
from specllava.distill.loop import TrainingLog
from specllava.distill.output import Output
from specllava.distill.pictures import Pixels
from specllava.distill.rows import Rows, index_rows
from specllava.distill.self_generated import self_generated_answers
from specllava.distill.stage import distil
from specllava.distill.validation import UNASKED, Validation, first_questions, replace_draft
from specllava.findings.distillation import SCHEMA_VERSION, Report, ReportState, ValidationResult
from specllava.models.drafts.draft_classes import save, saved_beside
from specllava.pair import Pair
from specllava.runtime.vision import projector_weights

MOST_POINTS = 2000  # of the curve in the report; a longer one is averaged
LONGEST_WAIT = timedelta(hours=12)  # wait of one process for another, which may be answering or encoding


@dataclass(frozen=True, slots=True)
class _Run:
    """Job, processes, output directory and models of a run."""

    job: Job
    accelerator: Accelerator
    output: Output
    pair: Pair


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
    accelerator = _accelerator(job)
    if not accelerator.is_main_process:
        disable_progress_bar()
        tell = _print_nothing
    output = Output(job.output)
    output.claim(job.identity(accelerator.num_processes), accelerator)
    if (done := output.finished()) is not None:
        tell(f"already done: {job.output}")
        return done if accelerator.is_main_process else None
    device = str(accelerator.device)
    target = Pair.load(job.target, name="distillation", device=device, dtype=job.dtype, context=job.context)
    run = _Run(job, accelerator, output, target if job.draft is None else target.with_draft(job.draft))
    check_teachable(run.pair, job.training)
    if job.training.tensorboard:
        accelerator.init_trackers("tensorboard")
    rows, batches, held_out = _data(run, tell)
    if job.makes_draft:
        make_fresh(output.fresh, job, run.pair, batches, _rows_needed(run), accelerator, tell)
        run = replace(run, pair=run.pair.with_draft(output.fresh))
    try:
        report = _learn(run, rows, batches, held_out, tell)
    except FloatingPointError as error:
        raise FloatingPointError(f"{error}: try a smaller --learning-rate, with another --output") from error
    if job.training.tensorboard:
        accelerator.get_tracker("tensorboard").finish()
    return report if accelerator.is_main_process else None


def _print_nothing(_line: str) -> None:
    pass


def _accelerator(job: Job) -> Accelerator:
    if job.training.tensorboard and not is_tensorboard_available():
        raise ValueError(
            'tensorboard is not installed: pip install "specllava[tensorboard]", or leave --tensorboard out'
        )
    return Accelerator(
        cpu=job.device == "cpu",
        mixed_precision=job.training.precision,
        log_with="tensorboard" if job.training.tensorboard else None,
        project_dir=job.output,
        kwargs_handlers=[InitProcessGroupKwargs(timeout=LONGEST_WAIT)],
    )


def _data(run: _Run, tell: Callable[[str], None]) -> tuple[Rows, RowBatches, Sequence[int]]:
    """Return all rows of the file, batches of those to train on, and the numbers of those held out."""
    job, config, accelerator = run.job, run.job.training, run.accelerator
    with accelerator.main_process_first():
        rows = index_rows(job.data, job.images, run.output.rows)
    if rows.reasons.counts:
        tell(f"left out of {job.data.name}: {rows.reasons.line()}")
    learnt, held_out = split(rows, config.validation_prompts, config.seed)
    target, processor = run.pair.target, run.pair.processor
    length, slot = min(config.length, run.pair.context), target.config.image_token_id
    encode = ChatEncoder(processor, length, run.pair.eos_token_ids, slot)
    encode(rows[int(learnt[0])].without_images(), [])  # raises for a template that cannot be used
    needed = _rows_needed(run)
    source, numbers = rows, learnt
    if config.answers == "target":
        chosen = learnt[:needed].tolist()
        decoding = job.decoding if run.pair.draft is not None else replace(job.decoding, drafter="prompt-lookup")
        source = self_generated_answers(run.pair, rows, chosen, job.images, decoding, run.output.answers, accelerator)
        numbers = torch.arange(len(source))
        if source.reasons.counts:
            tell(f"left out, without an answer of the target: {source.reasons.line()}")
        if not len(source):
            raise ValueError(f"the target answers none of {len(chosen)} rows")
    make = partial(RowBatches, source, numbers, encode, config.batch, config.seed, images=job.images)
    batches = make(see=Pixels(processor, target.config, job.images))
    if job.features is not None:
        met = batches.positions(needed // config.batch)
        shown = (source[batches.row_at(position)].images for position in met)
        names = [name for row in shown for name in kept_names(row, run.pair.family.several_differ)]
        cache = make_features(job.features, target, processor, job.images, names, accelerator)
        batches = make(see=cache)
    return rows, batches, held_out.tolist()


def _rows_needed(run: _Run) -> int:
    """Return the number of rows that all steps read, repeated ones counted again."""
    config = run.job.training
    steps = config.projector_steps + config.steps
    return steps * config.accumulation * config.batch * int(run.accelerator.num_processes)


def _learn(run: _Run, rows: Rows, batches: RowBatches, held_out: Sequence[int], tell: Callable[[str], None]) -> Report:
    """Run both stages with validation, and return the report."""
    job, config, accelerator, output = run.job, run.job.training, run.accelerator, run.output
    room = job.decoding.max_new_tokens
    prompts, readable = first_questions(run.pair, rows, held_out, job.images, room, accelerator)
    left_out = rows.reasons.counts | (batches.rows.reasons.counts if batches.rows is not rows else {})
    if readable < len(held_out):
        left_out = {**left_out, UNASKED: len(held_out) - readable}
    writer = _ReportWriter(run, len(batches.numbers), left_out, readable, tell)
    callback = Validation(run.pair, prompts, job.decoding, output.draft, config.patience, accelerator, writer.log)
    teach = partial(
        distil, target=run.pair.target, objective=config.objective, accelerator=accelerator, callback=callback
    )
    begin = output.fresh if job.draft is None or job.makes_draft else job.draft
    draft = training_draft(begin, run.pair.target)
    if config.projector_steps:
        if not output.aligned.exists():
            draft.requires_grad_(False)
            _set_trainable(projector_weights(draft), True)
            loop = config.loop(projector=True)
            log = teach("projector", draft, batches=batches, loop=loop, directory=output.checkpoints("projector"))
            if accelerator.is_main_process:
                output.write_stage({**log.state_dict(), **callback.state_dict()})
                save(draft, saved_beside(draft, run.pair.processor), output.aligned, torch.float32)
                output.remove_checkpoints("projector")
            accelerator.wait_for_everyone()
        stage = output.read_stage()
        callback.load_state_dict({"checks": stage.pop("checks")})
        writer.before.load_state_dict(stage)
        callback.offset = config.projector_steps
        draft = training_draft(output.aligned, run.pair.target)
    if config.freeze_projector:
        _set_trainable(projector_weights(draft), False)
    if config.gradient_checkpointing:
        draft.gradient_checkpointing_enable({"use_reentrant": False})
        draft.train()
    numbered = partial(_shift, batches, config.projector_steps * config.accumulation * accelerator.num_processes)
    log = teach("draft", draft, batches=numbered, loop=config.loop(), directory=output.checkpoints("draft"))
    if accelerator.is_main_process:
        replace_draft(draft, run.pair.processor, output.last)
    report = writer.report(callback.checks, log, "stopped" if log.stopped else "finished")
    if accelerator.is_main_process:
        output.remove_checkpoints("draft")
    return report


@dataclass(frozen=True, slots=True)
class _ReportWriter:
    """Writer of the validation log and the report.

    Args:
        rows, prompts: numbers of training rows and of validation prompts.
        before: log of the stage before the current one.
    """

    run: _Run
    rows: int
    left_out: dict[str, int]
    prompts: int
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
        processes, pair = self.run.accelerator.num_processes, self.run.pair
        made = Report(
            schema_version=SCHEMA_VERSION,
            target=pair.target_name,
            draft=pair.draft_name,
            rows=self.rows,
            left_out={**self.left_out, **_left_out_in_training(self.before, log)},
            prompts=self.prompts,
            config=self.run.job.identity(processes),
            setting=asdict(pair.info) | {"processes": processes},
            checks=tuple(checks),
            curve=_joined_curve(self.before, log),
            state=state,
        )
        if self.run.accelerator.is_main_process:
            self.run.output.write(made)
        return made


def _shift(batches: RowBatches, by: int, number: int) -> dict[str, Tensor]:
    """Return batch ``number`` of the second stage, which continues after the rows of the first one."""
    return batches(number + by)


def _set_trainable(weights: Sequence[nn.Parameter], trainable: bool) -> None:
    for weight in weights:
        weight.requires_grad_(trainable)


def _left_out_in_training(*logs: TrainingLog) -> dict[str, int]:
    """Count the rows found unusable or too long in training, over all stages."""
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
