"""The draft that a run begins with: checked, made new, or loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from accelerate import Accelerator
from transformers import PreTrainedModel

from specllava.distill.batches import RowBatches
from specllava.distill.config import DistillConfig
from specllava.models.checkpoint import Checkpoint
from specllava.models.language_model import input_device
from specllava.models.drafts.compressor import CompressorConfig
from specllava.models.drafts.compressor import add_compressor
from specllava.models.drafts.draft_vlm import draft_config, save, saved_beside
from specllava.models.drafts.eagle_checkpoint import is_feature_draft, read_feature_draft
from specllava.models.drafts.eagle import FeatureDraft
from specllava.models.drafts.eagle import fresh_feature_draft
from specllava.models.loading import draft_class
from specllava.pair import Pair


def check_teachable(pair: Pair, config: DistillConfig) -> None:
    """Refuse drafts that the loss does not support.

    Raises:
        ValueError: a draft of another kind than the drafter; one with a tower of its own, or rotations by rows of
            positions; options of a projector or a compressor that it cannot have.
    """
    if not pair.family.sees:
        raise ValueError(f"{pair.target_name} is a language model, and distill teaches drafts of models that see")
    name = pair.draft_name
    kind = "vlm"
    if isinstance(pair.draft, FeatureDraft):
        kind = "eagle3" if pair.draft.config.format == "eagle3" else "eagle"
    if pair.draft is not None and kind != config.drafter:
        raise ValueError(f"the draft {name} learns with --drafter {kind}, not with --drafter {config.drafter}")
    if isinstance(pair.draft, FeatureDraft) and pair.draft.config.mrope_section is not None:
        raise ValueError(
            f"the draft {name} rotates by three rows of positions and distill teaches drafts that count plainly: begin"
            f" a new one with --drafter {kind}, without --draft"
        )
    if pair.draft_vision == "own":
        raise ValueError(
            f"the draft {name} has a tower of its own, and distill teaches drafts that read the target's features or no"
            ' picture: make one of its language model with "specllava draft init", with --text-only or without'
        )
    if pair.draft_vision == "none" and (config.projector_steps or config.freeze_projector):
        asked = "--freeze-projector" if config.freeze_projector else f"--projector-steps {config.projector_steps}"
        raise ValueError(f"the draft {name} never sees a picture and has no projector: leave {asked} out")
    if config.compressor is not None:
        _check_compressible(pair, config)


def _check_compressible(pair: Pair, config: DistillConfig) -> None:
    """Refuse a compressor for a draft that reads no picture, that has one, or of a kind that takes none."""
    leave, draft = f"leave --compressor {config.compressor} out", pair.draft
    if config.drafter == "eagle3" or (isinstance(draft, FeatureDraft) and draft.config.format != "eagle"):
        raise ValueError(f"only vlm and eagle drafts take a compressor: {leave}")
    if config.drafter == "vlm" and config.compressor == "gate":
        raise ValueError("a gate reads the target's states, which a vlm does not: choose another --compressor")
    if pair.draft_vision == "none":
        raise ValueError(f"the draft {pair.draft_name} never sees a picture: {leave}")
    if getattr(draft, "compressor", None) is not None:
        raise ValueError(f"the draft {pair.draft_name} has a compressor already: {leave}")


def make_fresh(
    directory: Path,
    given: Path | None,
    pair: Pair,
    config: DistillConfig,
    batches: RowBatches,
    rows: int,
    accelerator: Accelerator,
    tell: Callable[[str], None],
) -> None:
    """Write the draft that a run begins with, if it is a new one or gets a compressor; an earlier call may have.

    Args:
        given: draft that gets the compressor; ``None`` for a new one.
        rows: that are read for the tokens of answers, where the draft cannot guess all.
    """
    with accelerator.main_process_first():
        if directory.exists():
            return
        if given is not None:
            draft = training_draft(given, pair.target)
        else:
            draft = _new_draft(pair.target, config, batches, rows, tell)
        if config.compressor is not None:
            add_compressor(draft, CompressorConfig(config.compressor), config.seed)
        save(draft, saved_beside(draft, pair.processor), directory, torch.float32)


def _new_draft(
    target: PreTrainedModel, config: DistillConfig, batches: RowBatches, rows: int, tell: Callable[[str], None]
) -> PreTrainedModel:
    assert config.drafter != "vlm"
    guessable = None
    if config.drafter == "eagle3" and 0 < config.draft_vocabulary < target.config.get_text_config().vocab_size:
        guessable, share = batches.frequent_answers(config.draft_vocabulary, rows)
        tell(f"the draft can guess {len(guessable)} tokens, which are {share:.1%} of the answers")
    return fresh_feature_draft(
        target,
        config.drafter,
        config.input_norm,
        guessable,
        seed=config.seed,
        heads=config.draft_heads,
        intermediate_size=config.draft_intermediate,
    )


def training_draft(directory: Path, target: PreTrainedModel) -> PreTrainedModel:
    """Load a draft for training, in float32 whatever the target's dtype."""
    checkpoint = Checkpoint.at(directory)
    if is_feature_draft(checkpoint):
        return read_feature_draft(checkpoint, target.config).to(input_device(target), torch.float32).bind(target)
    return checkpoint.load(draft_class(checkpoint.name, draft_config(checkpoint)), dtype=torch.float32)
