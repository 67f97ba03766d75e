"""Checks that processor and draft fit a target: by tokens, and by features of the same vision tower."""

from __future__ import annotations

from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin

from specllava.models.checkpoints.tokens import check_tokens
from specllava.models.drafts.draft_classes import SlotDraft, SlotDraftConfig, vision_source
from specllava.models.families.family import family_of, shared_tower_of
from specllava.models.families.interface import Family

INIT = 'run "specllava draft init"'


def check_pair(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    processor: ProcessorMixin,
    draft_processor: ProcessorMixin | PreTrainedTokenizerBase,
) -> None:
    """Refuse a draft that does not fit the target.

    Args:
        draft_processor: of the draft; its tokenizer is enough for a text-only draft.

    Raises:
        ValueError: other tokens, another vocabulary size, or a projector for other vision features.
    """
    theirs = getattr(draft_processor, "tokenizer", draft_processor).get_vocab()
    ours = processor.tokenizer.get_vocab()
    if not theirs.items() <= ours.items():
        differ = len(set(ours.items()) ^ set(theirs.items()))
        raise ValueError(f"the draft's tokenizer is not the target's: {differ} entries differ")
    sizes = target.config.get_text_config().vocab_size, draft.config.get_text_config().vocab_size
    if sizes[0] != sizes[1]:
        way = f": {INIT}" if sizes[1] < sizes[0] else ""
        raise ValueError(f"draft vocabulary {sizes[1]} does not cover the target's {sizes[0]}{way}")
    source = vision_source(draft)
    if source == "none":
        return
    if not family_of(target.config).sees:
        raise ValueError("the draft reads pictures and the target none: take a language model as draft")
    markers = target.config.image_token_id, draft.config.image_token_id
    if markers[0] != markers[1]:
        raise ValueError(f"the draft's image token is {markers[1]}, the target's {markers[0]}: {INIT}")
    if isinstance(draft, SlotDraft):
        _check_slots(target.config, draft.config)
    elif source == "shared":
        _check_vision(target, draft)


def check_same_family(
    name: str,
    config: PretrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    target: PretrainedConfig,
    target_tokenizer: PreTrainedTokenizerBase,
) -> None:
    """Refuse a draft with a tower and a prompt of its own that is no model of the target's family.

    Raises:
        ValueError: another family, or other tokens for the ids that both have.
    """
    if config.model_type != target.model_type:
        raise ValueError(
            f"{name} is a {config.model_type}, the target a {target.model_type}: a draft that reads pictures by itself"
            f" must be a {target.model_type}"
        )
    check_tokens(name, tokenizer, "the target", target_tokenizer)


def _check_slots(target: PretrainedConfig, draft: SlotDraftConfig) -> None:
    """Refuse a draft that cannot read what the target's image slots hold."""
    made, size = draft.target_type, target.get_text_config().hidden_size
    if made != target.model_type:
        raise ValueError(f"the draft reads image slots of a {made}, the target is a {target.model_type}: {INIT}")
    if draft.slot_size != size:
        raise ValueError(f"the draft reads image slots of size {draft.slot_size}, the target's have {size}: {INIT}")


def _check_vision(target: PreTrainedModel, draft: PreTrainedModel) -> None:
    """Refuse a draft that cannot read the features of the target's tower."""
    types = target.config.model_type, draft.config.model_type
    if types[0] != types[1]:
        raise ValueError(f"the draft reads features of a {types[1]}, the target is a {types[0]}: {INIT}")
    family = shared_tower_of(target.config)
    wide, narrow = family.slot_width(target.config), family.slot_width(draft.config)
    if wide != narrow:
        raise ValueError(f"the draft reads vision features of size {narrow}, the target's tower gives {wide}: {INIT}")
    layers = target.config.vision_feature_layer, draft.config.vision_feature_layer
    if layers[0] != layers[1]:
        raise ValueError(f"the draft reads vision layer {layers[1]}, the target layer {layers[0]}: {INIT}")
    for name, ours, theirs in differences(target.config, draft.config):
        raise ValueError(f"the draft was made for {name} {theirs}, the target has {ours}: {INIT}")


def differences(target: PretrainedConfig, draft: PretrainedConfig) -> list[tuple[str, object, object]]:
    """List the fields in which two models of one family read features differently: name, target's value, draft's."""
    shared = shared_tower_of(target).shared
    found = [(name.replace("_", " "), getattr(target, name), getattr(draft, name)) for name in shared]
    found += [
        (name.replace("_", " "), getattr(target.vision_config, name), getattr(draft.vision_config, name))
        for name in ("hidden_size", "image_size", "patch_size")
    ]
    return [(name, ours, theirs) for name, ours, theirs in found if ours != theirs]


def check_processor(name: str, family: Family, config: PretrainedConfig, processor: ProcessorMixin) -> None:
    """Refuse a processor that writes other image slots than the model fills, or cuts pictures in other ways.

    Raises:
        ValueError: with both numbers.
    """
    way = "the processor does not fit the model, take both from one checkpoint"
    slot, written = config.image_token_id, processor.image_token_ids
    if slot not in written:
        ids = ", ".join(map(str, written))
        raise ValueError(f"{name}: the processor's image token is {ids}, the model's {slot}: {way}")
    try:
        required = family.processor_requirements(config, processor)
    except (AttributeError, LookupError, TypeError) as error:  # a processor of other fields
        kinds = f"a {type(processor).__name__} with a {type(processor.image_processor).__name__}"
        raise ValueError(f"{name}: {kinds} is no processor of a {family.name}: {way}") from error
    for field, (theirs, ours) in required.items():
        if theirs != ours:
            raise ValueError(f"{name}: the processor's {field} is {theirs}, the model's {ours}: {way}")
