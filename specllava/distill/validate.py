"""Validation of a draft during its training: KL, agreement, and τ by real speculative decoding."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from tqdm.auto import tqdm
from transformers import PreTrainedModel, ProcessorMixin

from specllava.config import DecodingConfig
from specllava.distill.report import ValidationResult
from specllava.distill.rows import Row
from specllava.metrics import summarise
from specllava.models.drafts.draft_vlm import save, saved_beside
from specllava.pair import Pair
from specllava.prompt import Prompt
from specllava.scoring import draft_log_probs, score_draft, teacher_forced_log_probs
from specllava.spec_decode.loop import Lane


def first_questions(
    pair: Pair, rows: Sequence[Row], images: Path, new_tokens: int, accelerator: Accelerator
) -> tuple[list[Prompt], int]:
    """Return this process' prompts from the first questions of held-out rows, and the number of readable ones in all.

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
    """Validate a draft after some steps: every process decodes its prompts, and all return the same result.

    Args:
        pair: the target; a draft in it is not used.
        prompts: this process' share.
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
    """Decode one prompt, and run the draft on the target's answer.

    Returns:
        Sums over the answer's tokens: KL, agreed guesses, tokens read; tokens of all steps, and target passes.
    """
    assert pair.draft is not None
    trace = pair.run(Lane("validation", config, prompt), record=False)
    run = summarise([trace])
    ours = draft_log_probs(pair.target, pair.draft, prompt, trace.token_ids)
    theirs = teacher_forced_log_probs(pair.target, prompt, trace.token_ids)
    scores = score_draft(ours, theirs, trace.token_ids)
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
    save(copy.deepcopy(draft), saved_beside(draft, processor), new, torch.float32)
    if directory.exists():
        shutil.rmtree(old, ignore_errors=True)
        directory.rename(old)
    new.rename(directory)
    shutil.rmtree(old, ignore_errors=True)
