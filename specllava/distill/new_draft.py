"""Drafts made for a target: of a plain language model or a stand-alone LLaVA, and the draft that a run begins with."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel, ProcessorMixin

from specllava.distill.config import DistillConfig
from specllava.distill.data import RowBatches
from specllava.files import check_free
from specllava.models.checkpoint import Checkpoint, Source
from specllava.models.drafts.compressor import add_compressor
from specllava.models.drafts.draft_vlm import SlotDraft, SlotDraftConfig, draft_config, save
from specllava.models.drafts.eagle import FeatureDraft, fresh_feature_draft
from specllava.models.drafts.eagle_checkpoint import is_feature_draft, read_feature_draft
from specllava.models.families import family_of, find_family, shared_tower_of
from specllava.models.family import SharedTower
from specllava.models.language_model import LANGUAGE_MODELS, check_decoder, input_device, language_model_class
from specllava.models.loading import differences, draft_class
from specllava.models.options import CompressorConfig
from specllava.models.tokens import check_tokens, resize_vocabulary
from specllava.pair import Pair
from specllava.prompt import projector_weights

SHARD = "2GB"


@dataclass(frozen=True, slots=True)
class MadeDraft:
    """A draft that was written, the number of its parameters, and notes for the user, line by line."""

    directory: Path
    parameters: int
    notes: tuple[str, ...]


def init_draft(source: Source, target: Source, output: Path, text_only: bool = False, seed: int = 0) -> MadeDraft:
    """Make a draft of a plain language model or of a stand-alone LLaVA: its vocabulary is aligned to the target's.

    A language model gets a new projector, for the states of a LLaVA's tower or for what the image slots of any other
    target hold. A LLaVA's tower that equals the target's is dropped. Another one is kept: the draft encodes each
    picture a second time, with its own image processor.

    Args:
        text_only: no projector: the draft of a language model reads no picture.
        seed: of the projector's first weights.

    Raises:
        ValueError: models that are not there or do not fit, or an output that is; in one line.
    """
    check_free(output)
    small, large = Checkpoint.at(source), Checkpoint.at(target)
    kind, config = small.config(), large.config()
    if language_model_class(kind) is not None:
        check_decoder(small.name, kind)
        return _of_language_model(small, large, output, text_only, seed)
    family = find_family(kind)
    if family is None:
        plain = ", ".join(LANGUAGE_MODELS)
        raise ValueError(f"{small.name} is a {kind.model_type}: a draft is made of a LLaVA or a plain one of {plain}")
    if not isinstance(family, SharedTower):
        raise ValueError(f"{small.name} is a {kind.model_type}, which drafts as it is: name it with --draft")
    if family.draft.__name__ in (kind.architectures or ()):
        raise ValueError(f"{small.name} has no tower, so it is a draft already: name it with --draft")
    if text_only:
        raise ValueError(f"{small.name} sees, and --text-only is for language models: leave it out")
    shared_tower_of(config)
    return _of_llava(small, large, family, output)


def _of_language_model(small: Checkpoint, large: Checkpoint, output: Path, text_only: bool, seed: int) -> MadeDraft:
    config = large.config()
    family, model_class = family_of(config), language_model_class(small.config())
    assert model_class is not None
    if not family.sees:
        raise ValueError(f"{large.name} is a language model: name {small.name} with --draft, it drafts as it is")
    processor = large.processor(family.processor)
    model = small.load(model_class, dtype="auto")
    before, size = model.config.vocab_size, config.text_config.vocab_size
    _align_vocabulary(model, small, large.name, processor, config)
    notes = [f"vocabulary {before} of {small.name}, {size} of {large.name}: {max(0, size - before)} rows added"]
    if text_only:
        save(model, processor, output, model.dtype, SHARD)
        return MadeDraft(output, model.num_parameters(), (*notes, "it never sees a picture"))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        draft = _with_projector(model, config)
    draft.get_decoder().load_state_dict(model.model.state_dict())
    draft.lm_head.load_state_dict(model.lm_head.state_dict())
    save(draft, processor, output, model.dtype, SHARD)
    fresh = sum(one.numel() for one in projector_weights(draft))
    notes.append(f"the projector is new ({fresh} weights): distil the draft before use")
    return MadeDraft(output, draft.num_parameters(), tuple(notes))


def _with_projector(model: PreTrainedModel, target: PretrainedConfig) -> PreTrainedModel:
    """Return a new draft of a language model's sizes that reads the target's features."""
    family = family_of(target)
    if isinstance(family, SharedTower):
        shared = copy.deepcopy(target)
        shared.text_config = model.config
        return family.draft(shared)
    return SlotDraft(
        SlotDraftConfig(
            text_config=model.config,
            target_type=target.model_type,
            slot_size=target.get_text_config().hidden_size,
            image_token_id=target.image_token_id,
        )
    )


def _of_llava(small: Checkpoint, large: Checkpoint, family: SharedTower, output: Path) -> MadeDraft:
    config, processor = large.config(), large.processor()
    model = small.load(family.target, dtype="auto")
    dtype = model.dtype
    _align_vocabulary(model, small, large.name, processor, config)
    model.config.image_token_index = config.image_token_id
    if why := _other_vision(model, large, config):
        own = small.processor()
        own.tokenizer, own.chat_template = processor.tokenizer, processor.chat_template
        save(model, own, output, dtype, SHARD)
        note = f"the tower is kept, so each picture is encoded twice: {why}"
        return MadeDraft(output, model.num_parameters(), (note,))
    draft = family.draft(model.config)
    draft.load_state_dict({name: one for name, one in model.state_dict().items() if ".vision_tower." not in name})
    save(draft, processor, output, dtype, SHARD)
    return MadeDraft(output, draft.num_parameters(), ("the tower equals the target's and is dropped",))


def _align_vocabulary(
    model: PreTrainedModel, small: Checkpoint, target_name: str, processor: ProcessorMixin, config: PretrainedConfig
) -> None:
    """Give a model the target's vocabulary: the same tokens by id, and as many rows."""
    tokenizer = small.tokenizer()
    check_tokens(small.name, tokenizer, target_name, processor.tokenizer)
    resize_vocabulary(model, small.name, 1 + max(tokenizer.get_vocab().values()), config.text_config.vocab_size)
    text = model.config.get_text_config()
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(text, name, getattr(config.text_config, name, None))


def _other_vision(model: PreTrainedModel, large: Checkpoint, config: PretrainedConfig) -> str | None:
    """Explain why a model cannot read the features of the target's tower; ``None`` if it can."""
    if model.config.model_type != config.model_type:
        return f"it is a {model.config.model_type}, the target a {config.model_type}"
    for name, ours, theirs in differences(config, model.config):
        return f"its {name} is {theirs}, the target's {ours}"
    theirs_, ours_ = model.model.vision_tower.state_dict(), large.tensors("vision_tower")
    differ = [name for name, one in theirs_.items() if name not in ours_ or not same(one, ours_[name])]
    if differ:
        return f"{len(differ)} of its {len(theirs_)} tensors are not the target's, such as {differ[0]}"
    return None


def same(one: Tensor, other: Tensor) -> bool:
    """Compare two tensors: whether they hold the same numbers, up to rounding to the coarser precision."""
    if one.shape != other.shape:
        return False
    if one.dtype == other.dtype:
        return torch.equal(one, other)
    coarse = max(torch.finfo(one.dtype).eps, torch.finfo(other.dtype).eps)
    smallest = max(torch.finfo(one.dtype).smallest_normal, torch.finfo(other.dtype).smallest_normal)
    return torch.allclose(one.double(), other.double(), rtol=coarse, atol=coarse * smallest)


def check_teachable(pair: Pair, config: DistillConfig) -> None:
    """Refuse drafts that the loss does not support, and options that a draft cannot have.

    Raises:
        ValueError: a draft of another kind than the drafter; one with a tower of its own, or rotations by rows of
            positions; options of a projector or a compressor that it cannot have.
    """
    name, vision = pair.draft_name, pair.draft_vision
    draft: Any = pair.draft
    states = isinstance(draft, FeatureDraft)
    kind = "vlm" if not states else "eagle3" if draft.config.format == "eagle3" else "eagle"
    compressed, leave = config.compressor is not None, f"leave --compressor {config.compressor} out"
    refusals = {
        f"{pair.target_name} is a language model, and distill teaches drafts of models that see": not pair.family.sees,
        f"the draft {name} learns with --drafter {kind}, not with --drafter {config.drafter}": (
            draft is not None and kind != config.drafter
        ),
        f"the draft {name} rotates by three rows of positions and distill teaches drafts that count plainly: begin a"
        f" new one with --drafter {kind}, without --draft": states and draft.config.mrope_section is not None,
        f"the draft {name} has a tower of its own, and distill teaches drafts that read the target's features or no"
        ' picture: make one of its language model with "specllava draft init", with --text-only or without': (
            vision == "own"
        ),
        f"the draft {name} never sees a picture and has no projector: leave --projector-only out": (
            vision == "none" and config.projector_only
        ),
        f"only vlm and eagle drafts take a compressor: {leave}": (
            compressed and (config.drafter == "eagle3" or (states and draft.config.format != "eagle"))
        ),
        "a gate reads the target's states, which a vlm does not: choose another --compressor": (
            config.drafter == "vlm" and config.compressor == "gate"
        ),
        f"the draft {name} has its sizes: leave --draft-heads, --draft-intermediate and --draft-vocabulary out": (
            draft is not None and max(config.draft_heads, config.draft_intermediate, config.draft_vocabulary) > 0
        ),
        "an eagle draft guesses every token: leave --draft-vocabulary out, or take --drafter eagle3": (
            config.drafter == "eagle" and config.draft_vocabulary > 0
        ),
        f"the draft {name} never sees a picture: {leave}": compressed and vision == "none",
        f"the draft {name} has a compressor already: {leave}": (
            compressed and getattr(draft, "compressor", None) is not None
        ),
    }
    if why := next((why for why, refused in refusals.items() if refused), None):
        raise ValueError(why)


def begin_draft(
    given: Path | None,
    pair: Pair,
    config: DistillConfig,
    batches: RowBatches,
    rows: int,
    notify: Callable[[str], None],
) -> PreTrainedModel:
    """Return the draft that a run begins with, the same in every call: a new one, or ``given`` with a new compressor.

    Where a draft cannot guess all tokens, it guesses the most frequent ones of the answers of ``rows`` rows.
    """
    if given is not None:
        draft = training_draft(given, pair.target)
    else:
        guessable, size = None, pair.target.config.get_text_config().vocab_size
        if config.drafter == "eagle3" and 0 < config.draft_vocabulary < size:
            guessable, share = batches.frequent_answers(config.draft_vocabulary, rows)
            notify(f"the draft can guess {len(guessable)} tokens, which are {share:.1%} of the answers")
        assert config.drafter != "vlm"
        draft = fresh_feature_draft(
            pair.target,
            config.drafter,
            guessable=guessable,
            seed=config.seed,
            heads=config.draft_heads,
            intermediate_size=config.draft_intermediate,
        )
    if config.compressor is not None:
        add_compressor(draft, CompressorConfig(config.compressor), config.seed)
    if config.projector_only:
        draft.requires_grad_(False)
        for weight in projector_weights(draft):
            weight.requires_grad_(True)
    return draft


def training_draft(directory: Path, target: PreTrainedModel) -> PreTrainedModel:
    """Load a draft for training, in float32 whatever the target's dtype."""
    checkpoint = Checkpoint.at(directory)
    if is_feature_draft(checkpoint):
        return read_feature_draft(checkpoint, target.config).to(input_device(target), torch.float32).bind(target)
    return checkpoint.load(draft_class(checkpoint.name, draft_config(checkpoint)), dtype=torch.float32)
