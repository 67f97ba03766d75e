"""Validation of a draft during its training: KL, agreement, and τ by real speculative decoding.

Keeps the best draft so far in the run's directory, stops when patience is used up, and writes the report.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import nn
from tqdm.auto import tqdm
from transformers import PreTrainedModel, ProcessorMixin

from specllava.config import DecodingConfig
from specllava.metrics import summarise
from specllava.distill.loop import TrainingLog
from specllava.distill.rows import Row, Rows
from specllava.findings.distillation import ValidationResult
from specllava.models.drafts.draft_vlm import save, saved_beside
from specllava.pair import Pair
from specllava.prompt import Prompt
from specllava.scoring import draft_log_probs, score_draft, teacher_forced_log_probs
from specllava.spec_decode.loop import Lane

UNASKED = "validation prompts that cannot be read"


@dataclass(frozen=True, slots=True)
class _Sums:
    """Sums over the prompts of one process."""

    kl: float = 0.0
    agreed: int = 0
    read: int = 0
    tokens: int = 0
    passes: int = 0

    def __add__(self, other: _Sums) -> _Sums:
        return _Sums(*(one + more for one, more in zip(astuple(self), astuple(other), strict=True)))


def first_questions(
    pair: Pair, rows: Rows, numbers: Sequence[int], images: Path, new_tokens: int, accelerator: Accelerator
) -> tuple[list[Prompt], int]:
    """Return this process' prompts from the first questions of held-out rows, and the number of readable ones in all.

    Raises:
        ValueError: none can be read.
    """
    prompts, complaint = [], None
    for number in numbers[accelerator.process_index :: accelerator.num_processes]:
        row: Row = rows[number]
        shown = tuple(images / name for name in row.images[: row.images_per_question[0]])
        try:
            prompts.append(pair.prompt(shown, row.turns[0], new_tokens))
        except ValueError as error:
            complaint = str(error)
    readable = sum(gather_object([len(prompts)]))
    if not readable:
        raise ValueError(f"none of {len(numbers)} validation prompts can be read: {complaint}")
    return prompts, readable


class Validation:
    """Training callback that measures the draft, keeps the best, and stops the training early.

    Args:
        pair: the target; a draft in it is not used.
        prompts: this process' share.
        keep: directory of the best draft.
        patience: consecutive validations without improvement that end the training; 0 never does.
        log: called after each validation with all results and the training log so far.
    """

    offset = 0
    """Steps of the stages before this one."""

    def __init__(
        self,
        pair: Pair,
        prompts: Sequence[Prompt],
        config: DecodingConfig,
        keep: Path,
        patience: int,
        accelerator: Accelerator,
        log: Callable[[Sequence[ValidationResult], TrainingLog], None],
    ) -> None:
        self.pair, self.prompts, self.config, self.keep = pair, prompts, config, keep
        self.patience, self.accelerator, self.log = patience, accelerator, log
        self.checks: list[ValidationResult] = []

    def __call__(self, step: int, model: nn.Module, training_log: TrainingLog) -> bool:
        assert isinstance(model, PreTrainedModel)
        step += self.offset
        if self.checks and self.checks[-1].step == step:  # validated at the end of the stage before
            return False
        check = self._check(step, model)
        if all(check.rank > earlier.rank for earlier in self.checks) and self.accelerator.is_main_process:
            replace_draft(copy.deepcopy(model), self.pair.processor, self.keep)
        self.checks.append(check)
        shown = {"kl": check.kl, "agreement": check.agreement, "tau": check.tau or 0.0}
        self.accelerator.log({f"validation/{name}": value for name, value in shown.items()}, step=step)
        self.log(self.checks, training_log)
        self.accelerator.wait_for_everyone()
        best = max(self.checks, key=lambda check: check.rank)
        since = sum(later.step > best.step for later in self.checks)
        return bool(self.patience) and since >= self.patience

    def state_dict(self) -> dict[str, Any]:
        return {"checks": [asdict(check) for check in self.checks]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.checks = [ValidationResult(**check) for check in state["checks"]]

    def _check(self, step: int, model: PreTrainedModel) -> ValidationResult:
        """Validate the draft: every process decodes its prompts, and all return the same result."""
        training = model.training
        target = self.pair.target
        draft = model if model.dtype == target.dtype else _cast(copy.deepcopy(model), target.dtype)
        pair = replace(self.pair, draft=draft.eval(), draft_name=f"step {step}")
        bar = tqdm(
            self.prompts, f"validation at step {step}", leave=False, disable=not self.accelerator.is_main_process
        )
        sums = _Sums()
        for prompt in bar:
            sums += _measure(pair, prompt, self.config)
        model.train(training)
        total = sum((_Sums(*each) for each in gather_object([astuple(sums)])), start=_Sums())
        tau = total.tokens / total.passes if total.passes else None
        return ValidationResult(step, total.kl / total.read, total.agreed / total.read, tau, total.tokens, total.passes)


@torch.inference_mode()
def _measure(pair: Pair, prompt: Prompt, config: DecodingConfig) -> _Sums:
    """Decode one prompt, and run the draft on the target's answer."""
    assert pair.draft is not None
    trace = pair.run(Lane("validation", config, prompt), record=False)
    run = summarise([trace])
    ours = draft_log_probs(pair.target, pair.draft, prompt, trace.token_ids)
    theirs = teacher_forced_log_probs(pair.target, prompt, trace.token_ids)
    scores = score_draft(ours, theirs, trace.token_ids)
    agreed = sum(guess == token for guess, token in zip(scores.guesses, trace.token_ids, strict=True))
    return _Sums(sum(scores.divergences), agreed, len(scores), run.step_tokens, run.target_passes)


def _cast(draft: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """Cast a draft's weights alone, as loading does: rotary frequencies, which are no weights, stay in float32."""
    for weight in draft.parameters():
        weight.data = weight.data.to(dtype)
    return draft


def replace_draft(draft: PreTrainedModel, processor: ProcessorMixin, directory: Path) -> None:
    """Replace a saved draft; at every moment one of the two is there or beside it as ``.old``.

    Args:
        draft: is moved and cast.
    """
    new, old = (directory.with_name(directory.name + suffix) for suffix in (".new", ".old"))
    for left_over in (new, *((old,) if directory.exists() else ())):
        shutil.rmtree(left_over, ignore_errors=True)
    save(draft, saved_beside(draft, processor), new, torch.float32)
    if directory.exists():
        directory.rename(old)
    new.rename(directory)
    shutil.rmtree(old, ignore_errors=True)
