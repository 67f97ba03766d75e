"""Whether a processor fits its model: both by their files alone, before weights are read."""

from __future__ import annotations

from transformers import PretrainedConfig, ProcessorMixin

from specllava.models.families.family import Family


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
