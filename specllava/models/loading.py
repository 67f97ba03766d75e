"""Load a target and a draft that fits it, whole or quantised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin

from specllava.models.checkpoint import Checkpoint, Source
from specllava.models.drafts.draft_vlm import SlotDraft, SlotDraftConfig, draft_config, fuse, vision_source
from specllava.models.drafts.eagle import FeatureDraft, FeatureDraftConfig
from specllava.models.drafts.eagle_checkpoint import is_feature_draft, load_feature_draft, sizes_of
from specllava.models.families import FAMILIES, family_of, find_family, known_families, shared_tower_of
from specllava.models.family import Family, SharedTower
from specllava.models.language_model import (
    LANGUAGE_MODELS,
    check_decoder,
    checked_context,
    input_device,
    language_model_class,
    parse_device,
)
from specllava.models.memory import Build, check_memory, estimate, quantization_config, unquantized, without_storage
from specllava.models.options import DraftReading, LoadOptions
from specllava.models.tokens import check_tokens, eos_token_ids, resize_vocabulary, use_template

INIT = 'run "specllava draft init"'


def check_pair(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    processor: ProcessorMixin,
    draft_processor: ProcessorMixin | PreTrainedTokenizerBase,
) -> None:
    """Refuse a draft that does not fit the target.

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
        raise ValueError(f"draft vocabulary {sizes[1]} is not the target's {sizes[0]}: {INIT}")
    if (source := vision_source(draft)) == "none":
        return
    if not family_of(target.config).sees:
        raise ValueError("the draft reads pictures and the target none: take a language model as draft")
    slot, size = target.config.image_token_id, target.config.get_text_config().hidden_size
    compared = [("the draft's image token is {}, the target's {}", draft.config.image_token_id, slot)]
    if isinstance(draft, SlotDraft):
        kind = target.config.model_type
        compared.append(("the draft reads image slots of a {}, the target is a {}", draft.config.target_type, kind))
        line = "the draft reads image slots of size {}, the target's have {}"
        compared.append((line, draft.config.slot_size, size))
    for line, theirs, ours in compared:
        if theirs != ours:
            raise ValueError(f"{line.format(theirs, ours)}: {INIT}")
    if source == "shared" and not isinstance(draft, SlotDraft):
        _check_vision(target, draft)


def _check_vision(target: PreTrainedModel, draft: PreTrainedModel) -> None:
    """Refuse a draft that cannot read the features of the target's tower."""
    types = target.config.model_type, draft.config.model_type
    if types[0] != types[1]:
        raise ValueError(f"the draft reads features of a {types[1]}, the target is a {types[0]}: {INIT}")
    family = shared_tower_of(target.config)
    wide, narrow = family.slot_width(target.config), family.slot_width(draft.config)
    if wide != narrow:
        raise ValueError(f"the draft reads vision features of size {narrow}, the target's tower gives {wide}: {INIT}")
    for name, ours, theirs in differences(target.config, draft.config):
        raise ValueError(f"the draft was made for {name} {theirs}, the target has {ours}: {INIT}")


def differences(target: PretrainedConfig, draft: PretrainedConfig) -> list[tuple[str, object, object]]:
    """List the fields in which two models of one family read features differently: name, target's value, draft's."""
    compared = [(name, target, draft) for name in shared_tower_of(target).shared]
    towers = target.vision_config, draft.vision_config
    compared += [(name, *towers) for name in ("hidden_size", "image_size", "patch_size")]
    values = [(name.replace("_", " "), getattr(ours, name), getattr(theirs, name)) for name, ours, theirs in compared]
    return [(name, ours, theirs) for name, ours, theirs in values if ours != theirs]


def check_processor(name: str, family: Family, config: PretrainedConfig, processor: ProcessorMixin) -> None:
    """Refuse a processor that writes other image slots than the model fills, or cuts pictures in other ways.

    Raises:
        ValueError: with both numbers.
    """
    advice = "the processor does not fit the model, take both from one checkpoint"
    slot, written = config.image_token_id, processor.image_token_ids
    if slot not in written:
        ids = ", ".join(map(str, written))
        raise ValueError(f"{name}: the processor's image token is {ids}, the model's {slot}: {advice}")
    try:
        required = family.processor_requirements(config, processor)
    except (AttributeError, LookupError, TypeError) as error:  # a processor of other fields
        kinds = f"a {type(processor).__name__} with a {type(processor.image_processor).__name__}"
        raise ValueError(f"{name}: {kinds} is no processor of a {family.name} ({error}): {advice}") from error
    for field, (theirs, ours) in required.items():
        if theirs != ours:
            raise ValueError(f"{name}: the processor's {field} is {theirs}, the model's {ours}: {advice}")


TOWERLESS: Final = {family.draft.__name__ for family in FAMILIES if isinstance(family, SharedTower)}


@dataclass(frozen=True, slots=True)
class LoadedDraft:
    """A draft that fits a target; one with a tower of its own reads pictures with its own processor."""

    name: str
    model: PreTrainedModel
    processor: ProcessorMixin | None


@dataclass(frozen=True, slots=True)
class LoadedTarget:
    """A target with its processor.

    Args:
        context: tokens of prompt and answer that it takes: as many as requested, or as fit the memory.
        packed: there is memory for a packed copy of its weights.
    """

    name: str
    model: PreTrainedModel
    processor: ProcessorMixin
    context: int
    packed: bool


def load_target(
    name: str,
    target: Source,
    draft: Source | None,
    options: LoadOptions,
    notify: Callable[[str], None],
) -> LoadedTarget:
    """Load a target after checking that it fits the memory, together with the draft.

    Args:
        notify: receives a line on the memory that the pair needs, before anything is loaded.

    Raises:
        ValueError: no model there, a decoder that cannot verify trees, or more memory needed than there
            is; one line with the numbers.
    """
    checkpoint = Checkpoint.at(target)
    device = parse_device(options.device)
    auto = "float32" if device.type == "cpu" else "bfloat16"
    precision = getattr(torch, auto if options.dtype == "auto" else options.dtype)
    _check_no_draft(checkpoint)
    config = checkpoint.config()
    check_decoder(checkpoint.name, config.get_text_config())
    family = family_of(config)
    stored = quantization_config(
        options.quantization, device, lambda: unquantized(without_storage(family.target, config))
    )
    small = None if draft is None else _draft_build(Checkpoint.at(draft), config)
    context = checked_context(options.context, config)
    needed = estimate((family.target, config), small, precision, options.quantization, context)
    taken, line = check_memory(name, needed, device, options.device_map, shorten=options.context is None)
    notify(line)
    processor = family.read_processor(checkpoint)
    if options.chat_template is not None:
        use_template(processor, options.chat_template)
    if family.sees:
        check_processor(checkpoint.name, family, config, processor)
    arguments = _experts(device, precision) | ({} if stored is None else {"quantization_config": stored})
    if device.type != "cpu" or options.device_map:
        arguments["device_map"] = "auto" if options.device_map else {"": device}
    model = _prepare(checkpoint.load(family.target, dtype=precision, **arguments), device)
    try:
        eos_token_ids(model, processor.tokenizer)  # refused here, and not in the first answer
    except ValueError as error:
        raise ValueError(f"{checkpoint.name_or_path}: {error}") from error
    return LoadedTarget(checkpoint.name, model, processor, taken.context, taken.packed > 0)


def _check_no_draft(checkpoint: Checkpoint) -> None:
    """Refuse a draft in a target's place: one of this package, or of one layer that reads states."""
    settings = checkpoint.settings()
    own = settings.get("model_type") in (SlotDraftConfig.model_type, FeatureDraftConfig.model_type)
    towerless = not TOWERLESS.isdisjoint(settings.get("architectures") or ())
    single = settings.get("num_hidden_layers", 1) == 1
    if own or towerless or (single and is_feature_draft(checkpoint)):
        raise ValueError(f"{checkpoint.name_or_path} is a draft: name it with --draft, and its target with --target")


def _draft_build(checkpoint: Checkpoint, target: PretrainedConfig) -> Build:
    """Return class and configuration of a draft, by which its memory is estimated."""
    if is_feature_draft(checkpoint):
        return FeatureDraft, sizes_of(checkpoint, target)
    config = draft_config(checkpoint)
    return draft_class(checkpoint.name, config), config


def load_draft(
    draft: Source,
    target: PreTrainedModel,
    processor: ProcessorMixin,
    reading: DraftReading,
    notify: Callable[[str], None],
) -> LoadedDraft:
    """Load the draft of a directory or of the hub for a target, on its device and in its precision.

    Args:
        reading: of a draft that reads the target's states.
        notify: receives a line about weights that must be unpickled.

    Raises:
        ValueError: no model there, or one that does not fit the target.
    """
    checkpoint = Checkpoint.at(draft)
    if is_feature_draft(checkpoint):
        made = load_feature_draft(checkpoint, target, reading, notify)
        return LoadedDraft(checkpoint.name + reading.suffix, fuse(_prepare(made, input_device(target))), None)
    if reading.draft_format is not None:
        raise ValueError(f"{checkpoint.name} is no draft of format {reading.draft_format}: leave --draft-format out")
    if reading != DraftReading():
        raise ValueError(
            f"{checkpoint.name} does not read the target's states: leave --draft-state-layers and"
            " --draft-rope-theta out"
        )
    config = draft_config(checkpoint)
    build = draft_class(checkpoint.name, config)
    check_decoder(checkpoint.name, config.get_text_config())
    family, text, device = find_family(config), config.get_text_config(), input_device(target)
    reads = checkpoint.tokenizer(text) if family is None else checkpoint.processor(family.processor)
    where: dict[str, Any] = {} if device.type == "cpu" else {"device_map": {"": device}}
    shares = all(isinstance(one, SharedTower) for one in (family, family_of(target.config)))
    own_prompt = family is not None and not shares  # whose tower and prompt are its own
    words_alone = build is language_model_class(config) and not family_of(target.config).sees
    if own_prompt and not family_of(target.config).sees:
        raise ValueError(f"{checkpoint.name} reads pictures and the target none: take a language model as draft")
    if own_prompt and config.model_type != target.config.model_type:
        raise ValueError(
            f"{checkpoint.name} is a {config.model_type}, the target a {target.config.model_type}: a draft that reads"
            f" pictures by itself must be a {target.config.model_type}"
        )
    if own_prompt or words_alone:
        check_tokens(checkpoint.name, getattr(reads, "tokenizer", reads), "the target", processor.tokenizer)
    if family is not None and build is family.target:
        check_processor(checkpoint.name, family, config, reads)
    model = checkpoint.load(build, dtype=target.dtype, **where, **_experts(device, target.dtype))
    if not (own_prompt or words_alone):
        check_pair(target, model, processor, reads)
    elif (rows := target.config.get_text_config().vocab_size) != text.vocab_size:
        words = getattr(reads, "tokenizer", reads).get_vocab()
        resize_vocabulary(model, checkpoint.name, 1 + max(words.values()), rows)
    model = fuse(_prepare(model, device))
    return LoadedDraft(checkpoint.name, model, reads if vision_source(model) == "own" else None)


def draft_class(name: str, config: PretrainedConfig) -> type[PreTrainedModel]:
    """Return the class of a draft: a vision-language model with or without a tower, or a plain language model.

    Raises:
        ValueError: something else.
    """
    family = find_family(config)
    if isinstance(family, SharedTower) and family.draft.__name__ in (config.architectures or ()):
        return family.draft
    if family is not None:
        return family.target
    build = SlotDraft if isinstance(config, SlotDraftConfig) else language_model_class(config)
    if build is None:
        can = ", ".join(LANGUAGE_MODELS)
        raise ValueError(f"{name} is a {config.model_type}, which cannot draft: {known_families()} can, and {can}")
    return build


def _experts(device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Return how a mixture's experts multiply: one by one, or on a GPU as transformers groups them.

    Grouped products take no float64 and, on a CPU, no weights whose rows are not multiples of 16 bytes.
    """
    return {"experts_implementation": "eager"} if device.type == "cpu" or dtype == torch.float64 else {}


def _prepare(model: PreTrainedModel, device: torch.device) -> PreTrainedModel:
    """Prepare a model: without dropout, on a CPU with its weights laid out for a tree's number of rows.

    A linear layer's weight ``[out, in]`` stored column by column holds the same numbers. Multiplying 4 to 64 rows by
    it is faster that way (``python -m benchmarks.passes``), and every lane runs on the same weights. Quantised weights
    have a layout of their own, and those that accelerate moves are moved as they are stored.
    """
    model = model.eval()
    if device.type == "cpu" and not getattr(model, "hf_device_map", None):
        for module in model.modules():
            if isinstance(module, torch.nn.Linear) and type(module.weight.data) is torch.Tensor:
                module.weight.data = module.weight.data.t().contiguous().t()
    return model


def store_by_rows(layer: torch.nn.Linear) -> None:
    """Undo the layout by columns, for a layer through which gradients flow.

    oneDNN 3.12 divides by zero in that layout, where at most 32 rows times outputs are 3/4 of a core's L2 cache. It
    kills the process: 32 rows by 49,152 tokens, in bfloat16 with AMX. By rows it takes another way.
    """
    layer.weight.data = layer.weight.data.contiguous()
