"""Custom generation for transformers: the speculative loop in place of the one inside ``model.generate``.

``generate`` hands a callable its prepared token ids and settings, and each keyword that the callable's signature names.
So pixels arrive as the processor made them, before any tower has run.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from pydantic import ValidationError
from torch import Tensor
from transformers import GenerationConfig, GenerationMixin, PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin
from transformers.generation import GenerateDecoderOnlyOutput, StopStringCriteria

from specllava.core.config import DecodingConfig, one_line
from specllava.core.growth.rule import GrowthRule
from specllava.core.trace import NO_DRAFT, DecodeTrace, Prefill
from specllava.decoding import Event, stream
from specllava.drafters.drafter import Drafter
from specllava.lane import LaneOverrides, lane_of
from specllava.models.checkpoints.checkpoint import Checkpoint, Source
from specllava.models.checkpoints.language_model import check_decoder
from specllava.models.checkpoints.text_processor import TextProcessor
from specllava.models.drafts.draft_reading import DraftReading
from specllava.models.families.family import family_of
from specllava.models.families.interface import Picture, ProcessedPrompt
from specllava.pair import Pair
from specllava.runtime.prompt import Prompt, with_draft_prompt
from specllava.runtime.timing import now
from specllava.runtime.vision import compressor_of, kept_slots, slots_of, to_device
from specllava.verification.answer_settings import REFUSED

SETTINGS: Final = ("max_new_tokens", "temperature", "top_p", "top_k")  # of decoding, which ``generate`` has as well
OPTIONS: Final = tuple(one.name for one in fields(DecodingConfig) if one.name not in SETTINGS)
READING: Final = tuple(one.name for one in fields(DraftReading))
MEDIA: Final = (  # what processors make of pictures
    "pixel_values", "pixel_values_images", "pixel_values_videos", "pixel_attention_mask", "image_sizes",
    "image_grid_thw", "batch_num_images", "mm_token_type_ids", "token_type_ids",
)  # fmt: skip
# Arguments of ``generate`` that the loop does not follow, and settings beside those of REFUSED.
UNREAD: Final = (
    "logits_processor", "prefix_allowed_tokens_fn", "assistant_model", "negative_prompt_ids",
    "negative_prompt_attention_mask", "synced_gpus",
)  # fmt: skip
UNMADE: Final = (
    "output_scores", "output_logits", "output_attentions", "output_hidden_states", "prompt_lookup_num_tokens",
)  # fmt: skip
READ: Final = ("input_ids", "attention_mask")
WAY_OUT: Final = "leave it out, or leave custom_generate out"
GENERATE: Final = inspect.unwrap(GenerationMixin.generate).__code__
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
    draft_inputs: Mapping[str, Any] | None = None,
    **given: Any,
) -> Tensor | SpeculativeOutput:
    """Decode by tree speculation: ``model.generate(**inputs, custom_generate=speculative_generate, draft=…)``.

    Args:
        draft: an id of the hub, a directory, or a loaded model; without one ``drafter`` says who guesses.
        processor: of the model, of a language model its tokenizer; by default that of ``model.name_or_path``.
        draft_inputs: what the draft's own processor made of the same chat. Needed by a draft with a tower of its own
            whose pictures are cut in other ways.
        given: fields of :class:`DecodingConfig` and :class:`DraftReading` by name, a rule or drafter as an object too;
            what the processor made of pictures; the rest of what ``generate`` prepared.

    Returns:
        Token ids of prompt and answer, ``[1, length]``; a :class:`SpeculativeOutput` with ``return_dict_in_generate``.

    Raises:
        ValueError: an argument or setting that is not followed, models that do not fit, or no room; one line.
    """
    arguments = _arguments_of_generate()
    _check_arguments(arguments, generation_config, input_ids, given.get("attention_mask"))
    reading = DraftReading(**{name: given[name] for name in READING if name in given})
    pair = _pair(model, processor, draft, reading)
    config, own = _decoding(given, generation_config, input_ids.shape[1])
    if draft is None and config.drafter == "model" and "drafter" not in own:
        raise ValueError('speculative_generate needs draft=, or drafter="prompt-lookup"')
    target = copy(pair.target)
    target.generation_config = _settings(generation_config, arguments.get("stopping_criteria") or ())
    pair = replace(pair, target=target)
    shown = {name: given[name] for name in MEDIA if given.get(name) is not None}
    lane = lane_of(config, _prompt(pair, input_ids, shown, draft_inputs), **own)
    recorded = bool(generation_config.return_dict_in_generate)
    request, events = pair.request(lane, record=recorded), list[Event]()
    streamer = given.get("streamer") or arguments.get("streamer")
    for event in stream(request):
        events.append(event)
        for token in (event.first_token,) if isinstance(event, Prefill) else event.emitted:
            if streamer is not None:
                streamer.put(torch.tensor([token]))
    if streamer is not None:
        streamer.end()
    sequences = torch.cat([input_ids, input_ids.new_tensor([request.emitted])], dim=1)
    return SpeculativeOutput(sequences=sequences, trace=pair.collect(lane, events)) if recorded else sequences


speculative_generate.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [
        *list(inspect.signature(speculative_generate).parameters.values())[:-1],
        *(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in OPTIONS + READING + MEDIA),
        inspect.Parameter("given", inspect.Parameter.VAR_KEYWORD),
    ]
)


def _arguments_of_generate() -> Mapping[str, Any]:
    """Return the arguments of the running ``generate``: it drops some, such as a streamer, on the way to a callable.

    Raises:
        ValueError: none is running.
    """
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not GENERATE:
        frame = frame.f_back
    if frame is None:
        raise ValueError("speculative_generate is not called but given: model.generate(custom_generate=…)")
    return dict(frame.f_locals)


def _check_arguments(
    arguments: Mapping[str, Any], settings: GenerationConfig, input_ids: Tensor, attention_mask: Tensor | None
) -> None:
    """Refuse what the loop does not do.

    Raises:
        ValueError: it is asked for; one line that names it.
    """
    asked = {name: arguments.get(name) for name in UNREAD}
    asked |= {name: value for name in UNMADE if (value := getattr(settings, name, None))}
    asked |= {name: value for name, refuses in REFUSED.items() if refuses(value := getattr(settings, name, None))}
    others: Mapping[str, Any] = arguments["kwargs"]
    asked |= {name: value for name, value in others.items() if name not in READ and not hasattr(settings, name)}
    for name, value in asked.items():
        if not (value is None or value is False or (isinstance(value, list) and not value)):
            told = f"{name} = {value}" if isinstance(value, str | int | float) else name
            raise ValueError(f"speculative_generate does not follow {told}: {WAY_OUT}")
    if len(input_ids) != 1:
        raise ValueError(f"speculative_generate answers one prompt at a time, not {len(input_ids)}: call it for each")
    if attention_mask is not None and not attention_mask.all():
        raise ValueError("speculative_generate reads no padding: give one prompt with an attention_mask of ones")


def _settings(asked: GenerationConfig, stopping_criteria: Sequence[Any]) -> GenerationConfig:
    """Return the settings of one answer: its end tokens as ``generate`` resolved them, and strings that stop it.

    Raises:
        ValueError: another stopping criterion.
    """
    settings, ends = deepcopy(asked), asked._eos_token_tensor
    settings.eos_token_id = [] if ends is None else ends.flatten().tolist()
    for one in stopping_criteria:
        if not isinstance(one, StopStringCriteria):
            raise ValueError(f"speculative_generate does not follow a {type(one).__name__}: {WAY_OUT}")
        settings.stop_strings = [*(settings.stop_strings or ()), *one.stop_strings]
    return settings


def _decoding(
    given: Mapping[str, Any], settings: GenerationConfig, prompt_tokens: int
) -> tuple[DecodingConfig, LaneOverrides]:
    """Return the options of decoding, and the rule and drafter that are given as objects.

    Raises:
        ValueError: a value outside its bounds; one line.
    """
    options = {name: given[name] for name in OPTIONS if given.get(name) is not None}
    own: LaneOverrides = {}
    if isinstance(options.get("rule"), GrowthRule):
        own["rule"] = options.pop("rule")
    if isinstance(options.get("drafter"), Drafter):
        own["drafter"] = options.pop("drafter")
    if settings.do_sample:
        options.setdefault("seed", int(torch.randint(2**31 - 1, ())))  # of torch's chance, as generate draws
        sampling = {"temperature": settings.temperature, "top_p": settings.top_p, "top_k": settings.top_k}
        options |= {"temperature": 1.0} | {name: value for name, value in sampling.items() if value is not None}
    try:
        return DecodingConfig(**options, max_new_tokens=settings.max_length - prompt_tokens), own
    except ValidationError as error:
        raise ValueError(one_line(error)) from error


def _pair(
    model: PreTrainedModel,
    processor: ProcessorMixin | PreTrainedTokenizerBase | None,
    draft: Source | PreTrainedModel | None,
    reading: DraftReading,
) -> Pair:
    """Return the pair of a model and a draft; what was loaded for the model is kept while it lives.

    Raises:
        ValueError: a model that cannot be a target, no processor, or a draft that does not fit.
    """
    held = PAIRS.setdefault(model, {})
    alone = held.get(None)
    reads = TextProcessor(processor) if isinstance(processor, PreTrainedTokenizerBase) else processor
    if alone is None or reads not in (None, alone.processor):
        held.clear()
        alone = held[None] = _target(model, reads)
    if draft is None:
        return alone
    if isinstance(draft, PreTrainedModel):
        return _with_loaded(alone, draft)
    key = str(draft), reading, model.device, model.dtype
    if key not in held:
        held[key] = alone.with_draft(draft, **asdict(reading))
    return held[key]


def _target(model: PreTrainedModel, processor: ProcessorMixin | None) -> Pair:
    """Return a model without a draft."""
    family, name = family_of(model.config), model.config.name_or_path
    _check_attention(model)
    if processor is None and not name:
        raise ValueError("speculative_generate needs processor=: the model was loaded from no directory or id")
    reads = processor or family.read_processor(Checkpoint.at(name))
    shown = Path(name).name or type(model).__name__
    return Pair(shown, copy(model), None, reads, shown, NO_DRAFT)


def _check_attention(model: PreTrainedModel) -> None:
    """Refuse a model whose layers take no tree masks.

    Raises:
        ValueError: by their kind, or by the attention that it was loaded with.
    """
    config = model.config.get_text_config()
    check_decoder(model.config.name_or_path, config)
    if config._attn_implementation not in ("sdpa", "eager"):
        raise ValueError(
            f'{config._attn_implementation} takes no tree masks: load {type(model).__name__} with'
            ' attn_implementation="sdpa"'
        )


def _with_loaded(pair: Pair, draft: PreTrainedModel) -> Pair:
    """Return a pair with a draft that the caller loaded.

    Raises:
        ValueError: it does not fit.
    """
    drafted = replace(pair, draft=draft, draft_name=Path(draft.config.name_or_path).name or type(draft).__name__)
    ours, theirs = (one.config.get_text_config().vocab_size for one in (pair.target, draft))
    if drafted.draft_vision != "states":
        _check_attention(draft)
        if ours != theirs:
            raise ValueError(f"the draft has a vocabulary of {theirs} tokens, the model of {ours}: name its directory")
    if draft.device != pair.target.device:
        raise ValueError(f"the draft is on {draft.device}, the model on {pair.target.device}: move it there")
    if drafted.draft_vision == "own" and draft.config.model_type != pair.family.name:
        raise ValueError(f"the draft is a {draft.config.model_type}, the model a {pair.family.name}: take one family")
    return drafted


def _prompt(
    pair: Pair, input_ids: Tensor, shown: Mapping[str, Any], draft_inputs: Mapping[str, Any] | None
) -> Prompt:
    """Return the prompt that a processor prepared, for target and draft.

    Raises:
        ValueError: pictures that the family or the draft does not read in this form.
    """
    prompt, draft, source = _read(pair.target, pair.device, input_ids, shown), pair.draft, pair.draft_vision
    words = prompt.input_ids[~slots_of(pair.target.config, prompt.input_ids)]
    prompt = replace(prompt, text=pair.detokenizer.decode(words.tolist()))
    if draft_inputs is not None and source != "own":
        raise ValueError("draft_inputs has no use: the draft reads no pictures by itself")
    if draft is None or prompt.features is None:
        return prompt
    if source == "none":
        return with_draft_prompt(prompt, replace(prompt, input_ids=words[None], features=None, vision_seconds=0.0))
    if source == "own":
        inputs = _shared_inputs(pair, input_ids, shown) if draft_inputs is None else draft_inputs
        media = {name: inputs[name] for name in MEDIA if inputs.get(name) is not None}
        return replace(prompt, draft_prompt=_read(draft, pair.device, inputs["input_ids"], media))
    if source == "shared" and compressor_of(draft) is not None:
        kept = prompt.input_ids[kept_slots(draft, prompt.input_ids, prompt.features)]
        return with_draft_prompt(prompt, replace(prompt, input_ids=kept[None], vision_seconds=0.0))
    return prompt


def _shared_inputs(pair: Pair, input_ids: Tensor, shown: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the target's inputs for a draft with a tower of its own.

    Raises:
        ValueError: it cuts pictures in other ways.
    """
    assert pair.draft is not None
    config = pair.draft.config
    required = {"image token": (pair.target.config.image_token_id, config.image_token_id)}
    for name, (ours, theirs) in (required | pair.family.processor_requirements(config, pair.processor)).items():
        if ours != theirs:
            raise ValueError(
                f"the draft reads pictures with {name} {theirs}, these were made with {ours}: give draft_inputs=, what"
                " the draft's own processor makes of the same chat"
            )
    return {"input_ids": input_ids, **shown}


@torch.inference_mode()
def _read(model: PreTrainedModel, device: torch.device, input_ids: Tensor, shown: Mapping[str, Any]) -> Prompt:
    """Return a model's prompt with the features of what it shows."""
    ids, family = input_ids.to(device), family_of(model.config)
    prompt = Prompt("", ids)
    if "pixel_values_images" in shown:  # the name that some processors give
        shown = {"pixel_values": shown["pixel_values_images"], **shown}
    if "pixel_values_videos" in shown:
        raise ValueError("speculative_generate reads no videos: give the processor the frames as images")
    if "pixel_values" not in shown:
        return prompt
    started = now(device)
    try:
        pictures = _pictures(model, {"input_ids": input_ids, **shown})
    except KeyError as error:
        raise ValueError(f"a {family.name} needs {error.args[0]}: give all that its processor made") from error
    features = family.stack(family.encode(model, [to_device(one, model, device) for one in pictures]))
    return replace(prompt, features=features, vision_seconds=now(device) - started)


def _pictures(model: PreTrainedModel, inputs: Mapping[str, Any]) -> list[Picture]:
    """Split the processor's output into pictures; tiles whose pictures it does not tell apart are one."""
    family, pixels = family_of(model.config), inputs["pixel_values"]
    if family.name in ("idefics3", "smolvlm"):
        return [{name: inputs[name] for name in ("pixel_values", "pixel_attention_mask")}]
    sizes = inputs["image_sizes"].tolist() if "image_sizes" in inputs else [pixels.shape[-2:]] * len(pixels)
    return family.pictures(ProcessedPrompt(model.config, None, inputs, [(height, width) for height, width in sizes]))
