"""Drafts made for a target, from a plain language model or from a stand-alone LLaVA."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel, ProcessorMixin

from specllava.files import check_free
from specllava.models.checkpoint import Checkpoint, Source
from specllava.models.language_model import LANGUAGE_MODELS, check_decoder, language_model_class
from specllava.models.tokens import check_tokens, resize_vocabulary
from specllava.models.drafts.draft_vlm import SlotDraft, SlotDraftConfig, VisionSource, save, saved_beside
from specllava.models.families.family import family_of, find_family, shared_tower_of
from specllava.models.families.interface import SharedTower
from specllava.models.loading import differences
from specllava.prompt import projector_weights

SHARD = "2GB"


@dataclass(frozen=True, slots=True)
class MadeDraft:
    """A draft that was written.

    Args:
        vision: source of its picture features.
        parameters: their number.
        notes: notes for the user, line by line.
    """

    directory: Path
    vision: VisionSource
    parameters: int
    notes: tuple[str, ...]


def init_draft(llm: Source, target: Source, output: Path, text_only: bool = False, seed: int = 0) -> MadeDraft:
    """Make a draft of a plain language model: vocabulary aligned to the target's, a new projector for its features.

    It reads the states of a LLaVA's tower, and what the image slots of any other target hold.

    Args:
        text_only: no projector: the draft reads no picture.
        seed: of the projector's first weights.

    Raises:
        ValueError: models that are not there or do not fit, or an output that is; in one line.
    """
    check_free(output)
    small, large = Checkpoint.at(llm), Checkpoint.at(target)
    kind, config = small.config(), large.config()
    model_class = language_model_class(kind)
    if model_class is None:
        way = " (draft import takes it)" if isinstance(find_family(kind), SharedTower) else ""
        *plain, last = LANGUAGE_MODELS
        raise ValueError(
            f"{small.name} is a {kind.model_type}: a draft is made of a plain {', '.join(plain)} or {last}{way}"
        )
    check_decoder(small.name, kind)
    family = family_of(config)
    if not family.sees:
        raise ValueError(f"{large.name} is a language model: name {small.name} with --draft, it drafts as it is")
    processor = large.processor(family.processor)
    model = small.load(model_class, dtype="auto")
    before, size = model.config.vocab_size, config.text_config.vocab_size
    _align_vocabulary(model, small, large.name, processor, config)
    notes = [f"vocabulary {before} of {small.name}, {size} of {large.name}: {max(0, size - before)} rows added"]
    if text_only:
        save(model, processor.tokenizer, output, model.dtype, SHARD)
        return MadeDraft(output, "none", model.num_parameters(), (*notes, "it never sees a picture"))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        draft = _with_projector(model, config)
    draft.get_decoder().load_state_dict(model.model.state_dict())
    draft.lm_head.load_state_dict(model.lm_head.state_dict())
    save(draft, saved_beside(draft, processor), output, model.dtype, SHARD)
    fresh = sum(one.numel() for one in projector_weights(draft))
    notes.append(f"the projector is new ({fresh} weights): distil the draft before use")
    return MadeDraft(output, "shared", draft.num_parameters(), tuple(notes))


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


def import_draft(source: Source, target: Source, output: Path) -> MadeDraft:
    """Make a draft of a stand-alone LLaVA-style model. A tower that equals the target's is dropped, another one kept.

    A draft with its own tower encodes each picture a second time, with its own image processor.

    Raises:
        ValueError: as :func:`init_draft`.
    """
    check_free(output)
    small, large = Checkpoint.at(source), Checkpoint.at(target)
    theirs, config = small.config(), large.config()
    family = find_family(theirs)
    if family is None:
        raise ValueError(f'{small.name} is a {theirs.model_type}, no LLaVA: of a language model "draft init" makes one')
    if not isinstance(family, SharedTower):
        raise ValueError(f"{small.name} is a {theirs.model_type}, which drafts as it is: name it with --draft")
    if family.draft.__name__ in (theirs.architectures or ()):
        raise ValueError(f"{small.name} has no tower, so it is a draft already: name it with --draft")
    shared_tower_of(config)
    processor = large.processor()
    model = small.load(family.target, dtype="auto")
    dtype = model.dtype
    _align_vocabulary(model, small, large.name, processor, config)
    model.config.image_token_index = config.image_token_id
    why = _other_vision(model, large, config)
    if why:
        notes = f"the tower is kept, so each picture is encoded twice: {why}"
        save(model, _own_processor(small.processor(), processor), output, dtype, SHARD)
        return MadeDraft(output, "own", model.num_parameters(), (notes,))
    draft = family.draft(model.config)
    draft.load_state_dict({name: one for name, one in model.state_dict().items() if ".vision_tower." not in name})
    save(draft, processor, output, dtype, SHARD)
    return MadeDraft(output, "shared", draft.num_parameters(), ("the tower equals the target's and is dropped",))


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


def _own_processor(theirs: ProcessorMixin, target: ProcessorMixin) -> ProcessorMixin:
    """Combine their image processor with the target's tokenizer."""
    return type(theirs)(
        image_processor=theirs.image_processor,
        tokenizer=target.tokenizer,
        patch_size=theirs.patch_size,
        vision_feature_select_strategy=theirs.vision_feature_select_strategy,
        num_additional_image_tokens=theirs.num_additional_image_tokens,
        chat_template=target.chat_template,
    )
