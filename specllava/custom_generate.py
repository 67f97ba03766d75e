"""Custom generation for transformers: the speculative loop in place of the one inside ``model.generate``.

``generate`` hands a callable its prepared token ids and settings, and each keyword that the callable's signature names.
So pixels arrive as the processor made them, before any tower has run.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from copy import copy, deepcopy
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from pydantic import ValidationError
from torch import Tensor
from transformers import GenerationConfig, GenerationMixin, PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin
from transformers.generation import GenerateDecoderOnlyOutput, StopStringCriteria

from specllava.config import DecodingConfig, one_line
from specllava.models.checkpoint import Checkpoint, Source
from specllava.models.drafts.draft_vlm import vision_source
from specllava.models.families import MEDIA, check_media, encode_media, family_of
from specllava.models.language_model import check_decoder, now
from specllava.models.loading import check_pair, check_processor
from specllava.models.tokens import TextProcessor
from specllava.pair import Pair
from specllava.prompt import Prompt, compressed_slots, compressor_of, num_image_tokens, slots_of, to_device
from specllava.spec_decode.logits_processing import REFUSED
from specllava.spec_decode.loop import Lane, RaceEvent, run_lanes
from specllava.trace import NO_DRAFT, DecodeTrace, Prefill

OPTIONS: Final = tuple(sorted({one.name for one in fields(DecodingConfig)} - vars(GenerationConfig()).keys()))
SEARCHES: Final = ("prompt_lookup_num_tokens", "assistant_early_exit", "use_mtp")  # by other drafts, beside REFUSED
GENERATE: Final = inspect.unwrap(GenerationMixin.generate)
# Its own arguments that are followed; ``generate`` itself reads the first ones.
FOLLOWED: Final = ("self", "inputs", "generation_config", "custom_generate", "kwargs", "stopping_criteria", "streamer")
# Pairs by model, for as long as the model lives: their target is a copy that shares its modules.
PAIRS: Final[WeakKeyDictionary[PreTrainedModel, dict[Any, Pair]]] = WeakKeyDictionary()


@dataclass
class SpeculativeOutput(GenerateDecoderOnlyOutput):
    """What ``generate`` returns with ``return_dict_in_generate``: ``sequences``, and the trace of the answer."""

    trace: DecodeTrace | None = None


def speculative_generate(
    model: PreTrainedModel,
    input_ids: Tensor,
    generation_config: GenerationConfig,
    draft: Source | PreTrainedModel | None = None,
    processor: ProcessorMixin | PreTrainedTokenizerBase | None = None,
    **given: Any,
) -> Tensor | SpeculativeOutput:
    """Decode by tree speculation: ``model.generate(**inputs, custom_generate=speculative_generate, draft=…)``.

    Args:
        draft: an id of the hub, a directory, or a loaded model; without one ``drafter`` names what guesses.
        processor: of the model, of a language model its tokenizer; by default that of ``model.name_or_path``.
        given: fields of :class:`DecodingConfig` by name, and what the processor made of pictures.

    Returns:
        Token ids of prompt and answer, ``[1, length]``; a :class:`SpeculativeOutput` with ``return_dict_in_generate``.

    Raises:
        ValueError: an argument or setting that is not followed, models that do not fit, or no room; one line.
    """
    frame = inspect.currentframe()  # of the running ``generate``, which does not pass on all of its arguments
    while frame is not None and frame.f_code is not GENERATE.__code__:
        frame = frame.f_back
    if frame is None:
        raise ValueError("speculative_generate is not called but given: model.generate(custom_generate=…)")
    arguments = dict(frame.f_locals)
    _check_arguments(arguments, generation_config, input_ids, given.get("attention_mask"))
    config = _decoding(given, generation_config, input_ids.shape[1])
    if draft is None and config.drafter == "model":
        raise ValueError('speculative_generate needs draft=, or drafter="prompt-lookup"')
    target = copy(model)
    target.generation_config = settings = deepcopy(generation_config)
    ends = generation_config._eos_token_tensor  # as ``generate`` resolved them
    settings.eos_token_id = [] if ends is None else ends.flatten().tolist()
    for one in arguments["stopping_criteria"]:
        settings.stop_strings = [*(settings.stop_strings or ()), *one.stop_strings]
    pair = replace(_pair(model, processor, draft), target=target)
    lane = Lane.of(config, _prompt(pair, input_ids, given))
    recorded, events = bool(generation_config.return_dict_in_generate), list[RaceEvent]()
    request = pair.request(lane, record=recorded)
    streamer = arguments["streamer"]  # which transformers drops on its way to a callable
    for event in run_lanes([request]):
        events.append(event)
        for token in (event.item.first_token,) if isinstance(event.item, Prefill) else event.item.emitted:
            if streamer is not None:
                streamer.put(torch.tensor([token]))
    if streamer is not None:
        streamer.end()
    sequences = torch.cat([input_ids, input_ids.new_tensor([request.emitted])], dim=1)
    return SpeculativeOutput(sequences=sequences, trace=pair.collect(events)[lane.name]) if recorded else sequences


speculative_generate.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [
        *list(inspect.signature(speculative_generate).parameters.values())[:-1],
        *(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in OPTIONS + MEDIA),
        inspect.Parameter("given", inspect.Parameter.VAR_KEYWORD),
    ]
)


def _check_arguments(
    arguments: Mapping[str, Any], settings: GenerationConfig, input_ids: Tensor, attention_mask: Tensor | None
) -> None:
    """Refuse what the loop does not do; without a mask of the caller's ``generate`` infers padding from the ids."""
    passed: Mapping[str, Any] = arguments["kwargs"]
    asked = {name: arguments[name] for name in inspect.signature(GENERATE).parameters if name not in FOLLOWED}
    asked |= {name: value for name, value in vars(settings).items() if name in SEARCHES or name.startswith("output_")}
    asked |= {name: value for name, refuses in REFUSED.items() if refuses(value := getattr(settings, name, None))}
    asked |= {name: passed[name] for name in passed.keys() - {"input_ids", "attention_mask"} - vars(settings).keys()}
    asked |= {type(one).__name__: one for one in arguments["stopping_criteria"] if type(one) is not StopStringCriteria}
    for name, value in asked.items():
        if not (value is None or value is False or (isinstance(value, list) and not value)):
            shown = f"{name} = {value}" if isinstance(value, str | int | float) else name
            raise ValueError(f"speculative_generate does not follow {shown}: leave it or custom_generate out")
    if len(input_ids) != 1:
        raise ValueError(f"speculative_generate answers one prompt at a time, not {len(input_ids)}: call it for each")
    for mask in (attention_mask, passed.get("attention_mask")):
        if mask is not None and (mask.shape != input_ids.shape or not mask.eq(1).all()):
            raise ValueError("speculative_generate reads no padding: give one prompt with an attention_mask of ones")


def _decoding(given: Mapping[str, Any], settings: GenerationConfig, prompt_tokens: int) -> DecodingConfig:
    """Return the options of decoding."""
    options = {name: given[name] for name in OPTIONS if given.get(name) is not None}
    if settings.do_sample:
        options.setdefault("seed", int(torch.randint(2**31 - 1, ())))  # of torch's chance, as generate draws
        sampling = {name: getattr(settings, name) for name in ("temperature", "top_p", "top_k")}
        options |= {"temperature": 1.0} | {name: value for name, value in sampling.items() if value is not None}
    try:
        return DecodingConfig(**options, max_new_tokens=settings.max_length - prompt_tokens)
    except ValidationError as error:
        raise ValueError(one_line(error)) from error


def _pair(
    model: PreTrainedModel,
    processor: ProcessorMixin | PreTrainedTokenizerBase | None,
    draft: Source | PreTrainedModel | None,
) -> Pair:
    """Return the pair of a model and a draft that fits it; what was loaded for the model is kept while it lives."""
    pairs, key = PAIRS.setdefault(model, {}), (model.device, model.dtype, id(processor))
    if key not in pairs:
        family, path = family_of(model.config), model.config.name_or_path
        name = Path(path).name or type(model).__name__
        check_decoder(name, model.config.get_text_config())
        if processor is None and not path:
            raise ValueError("speculative_generate needs processor=: the model was loaded from no directory or id")
        given = TextProcessor(processor) if isinstance(processor, PreTrainedTokenizerBase) else processor
        pairs.clear()
        given = given or family.read_processor(Checkpoint.at(path))
        # Captured passes would miss adapters and hooks that the model is given later.
        pairs[key] = Pair(name, copy(model), None, given, name, NO_DRAFT, passes="eager")
    if isinstance(draft, PreTrainedModel):
        name = Path(draft.config.name_or_path).name or type(draft).__name__
        if draft.device != model.device:
            raise ValueError(f"the draft is on {draft.device}, the model on {model.device}: move it there")
        if vision_source(draft) != "states":
            check_decoder(name, draft.config.get_text_config())
            check_pair(model, draft, pairs[key].processor, pairs[key].processor)
        return replace(pairs[key], draft=draft, draft_name=name)
    if draft is not None and str(draft) not in pairs:
        pairs[str(draft)] = pairs[key].with_draft(draft)
    return pairs[key if draft is None else str(draft)]


@torch.inference_mode()
def _prompt(pair: Pair, input_ids: Tensor, given: Mapping[str, Any]) -> Prompt:
    """Return the prompt that a processor prepared, for target and draft, if its pictures fill the image slots."""
    target, draft, source = pair.target, pair.draft, pair.draft_vision
    ids, started = input_ids.to(pair.device), now(pair.device)
    media = to_device({name: given[name] for name in MEDIA if given.get(name) is not None}, target, pair.device)
    check_media(target.config, pair.processor, ids, media)
    features, slots = encode_media(target, ids, media), slots_of(target.config, ids)
    seconds, words = now(pair.device) - started, ids[~slots][None]
    if (filled := sum(num_image_tokens(target, features))) != slots.sum():
        raise ValueError(f"the prompt has {int(slots.sum())} image slots, but pixel_values fill {filled}")
    text, other = pair.detokenizer.decode(words[0].tolist()), None
    if draft is not None and features is not None:
        if source == "none":
            other = Prompt(text, words)
        elif source == "own":
            check_processor(pair.draft_name, family_of(draft.config), draft.config, pair.processor)
            other = Prompt(text, ids, features=encode_media(draft, ids, to_device(media, draft, pair.device)))
        elif source == "shared" and compressor_of(draft) is not None:
            other = Prompt(text, ids[compressed_slots(draft, ids, features)][None], features=features)
    return Prompt(text, ids, features=features, vision_seconds=seconds, draft_prompt=other)
