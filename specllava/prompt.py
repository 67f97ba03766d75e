"""Prompts: chat template, processor, image features and the slots that they fill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel, ProcessorMixin

from specllava.files import is_panic
from specllava.models.drafts.compressor import Compressor, Operator
from specllava.models.drafts.draft_vlm import SlotDraft, VisionSource
from specllava.models.families import family_of, features_family, shared_tower_of
from specllava.models.family import Features, ImageFeatures, ProcessedPrompt, picture_key
from specllava.models.images import open_image
from specllava.models.language_model import input_device, now
from specllava.models.tokens import (
    Content,
    Message,
    Messages,
    apply_template,
    beginning,
    bos_options,
    check_text,
    slot_ids,
    special_tokens,
    text_of,
)

Label = int | str | None  # a token; in an image slot the picture's key, or None for a picture without one


def to_device(inputs: Mapping[str, Tensor], model: PreTrainedModel, device: torch.device) -> dict[str, Tensor]:
    """Move inputs to a device, pixels in the model's precision; times, which are vectors, keep their own."""
    return {
        name: one.to(device, model.dtype) if one.is_floating_point() and one.dim() > 1 else one.to(device)
        for name, one in inputs.items()
    }


def projector_weights(draft: PreTrainedModel) -> list[nn.Parameter]:
    """Return the weights by which a draft without a tower reads the target's features."""
    if isinstance(draft, SlotDraft):
        return list(draft.projector.parameters())
    return shared_tower_of(draft.config).projector(draft)


def num_image_tokens(model: PreTrainedModel, features: Features | None) -> list[int]:
    """Return the number of image slots that a model reads of each picture; a compressor leaves fewer."""
    if features is None:
        return []
    counts, compressor = features_family(model.config).num_image_tokens(model, features), compressor_of(model)
    return counts if compressor is None else [compressor.output_length(count) for count in counts]


def compressor_of(model: PreTrainedModel) -> Operator | None:
    """Return the operator that a draft's projected pictures go through, if any."""
    compressor: Compressor | None = getattr(model, "compressor", None)
    return None if compressor is None else compressor.operator(compressor.names[0])


def slots_of(config: PretrainedConfig, input_ids: Tensor) -> Tensor:
    """Mark the tokens of image slots."""
    return torch.isin(input_ids, torch.tensor(slot_ids(config), dtype=input_ids.dtype, device=input_ids.device))


def prompt_labels(
    model: PreTrainedModel, ids: Sequence[int], features: Features | None, image_keys: Sequence[str]
) -> list[Label]:
    """Return the label of each token of a prompt: itself, or in an image slot its picture's key, if it has one."""
    counts, markers = num_image_tokens(model, features), slot_ids(model.config)
    keys = chain.from_iterable(repeat(key, count) for key, count in zip(image_keys, counts, strict=False))
    return [next(keys, None) if token in markers else token for token in ids]


def compressed_slots(model: PreTrainedModel, input_ids: Tensor, features: Features | None) -> Tensor:
    """Mark the tokens that a draft with a compressor reads: of each picture's slots as many as are left.

    Args:
        input_ids: ``[batch, length]``, with all slots of the pictures.

    Returns:
        Truth values ``[batch, length]``.
    """
    keep_mask = torch.ones_like(input_ids, dtype=torch.bool)
    if features is None:
        return keep_mask
    slots = slots_of(model.config, input_ids).nonzero()
    counts = features_family(model.config).num_image_tokens(model, features)
    for own, count in zip(slots.split(counts), num_image_tokens(model, features), strict=True):
        keep_mask[tuple(own[count:].t())] = False
    return keep_mask


def merge_features(model: PreTrainedModel, input_ids: Tensor, features: Features | None) -> Tensor:
    """Return token embeddings with projected picture features in the image slots: ``[batch, length, hidden]``.

    Args:
        model: a vision-language model, or a plain language model for a prompt without pictures.
        input_ids: ``[batch, length]``; of a draft with a compressor only :func:`compressed_slots`.
        features: of the pictures in the order of the slots, for LLaVA-1.5 ``[images, patches, vision_hidden]``;
            ``None`` if there is no picture.

    Raises:
        ValueError: the prompt has another number of image slots than there are features.
    """
    embeds: Tensor = model.get_input_embeddings()(input_ids)
    slots = slots_of(model.config, input_ids)
    count, available = int(slots.sum()), sum(num_image_tokens(model, features))
    if count != available:
        raise ValueError(
            f"{count} image slots in the prompt but {available} vision features: the processor does not fit the model"
        )
    if features is None:
        return embeds
    projected = _project(model, features).to(embeds.device, embeds.dtype)
    return embeds.masked_scatter(slots.unsqueeze(-1), projected)


def _project(model: PreTrainedModel, features: Features) -> Tensor:
    """Project features to all image slots that the model reads, ``[slots, hidden]``."""
    family, compressor = features_family(model.config), compressor_of(model)
    projected = family.project(model, features)
    if isinstance(model, SlotDraft):  # as the target reads them
        projected = model.projector(projected.to(model.dtype))
    if compressor is None:
        return projected
    return torch.cat([compressor(one) for one in projected.split(family.num_image_tokens(model, features))])


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt, ready for every lane.

    Args:
        text: the last user message, for display.
        input_ids: ``[1, length]``, with image slots.
        image_inputs: of pictures as the processor gives them, on the host, by the names of the target's ``forward``;
            for LLaVA-1.5 ``pixel_values [images, 3, height, width]``. None without pictures.
        features: of all pictures, for LLaVA-1.5 ``[images, patches, vision_hidden]``, or ``None``.
        image_keys: a key for each picture; equal keys mean equal features.
        image_sizes: width and height of each picture as given.
        vision_seconds: time of encoding the pictures, those left out whose features were known.
        turn: messages of the user before the last one.
        draft_prompt: prompt of the draft model; ``None`` if it reads the same. A text-only draft reads
            no image slots, one with a tower of its own other features.
    """

    text: str
    input_ids: Tensor
    image_inputs: Mapping[str, Tensor] = field(default_factory=dict)
    features: Features | None = None
    image_keys: tuple[str, ...] = ()
    image_sizes: tuple[tuple[int, int], ...] = ()
    vision_seconds: float = 0.0
    turn: int = 0
    draft_prompt: Prompt | None = None

    @property
    def length(self) -> int:
        return self.input_ids.shape[1]

    @property
    def features_by_key(self) -> dict[str, ImageFeatures]:
        """Features of its pictures, those for the draft included, which a later prompt need not compute."""
        own = {} if self.features is None else dict(zip(self.image_keys, self.features, strict=True))
        return own if self.draft_prompt is None else own | self.draft_prompt.features_by_key


TURNS = ("user", "assistant")


def as_chat(
    messages: Messages, first: Sequence[Image.Image], special: Sequence[str]
) -> tuple[list[Message], list[Image.Image]]:
    """Convert messages to what chat templates read, texts and parts as they were given; also return their pictures.

    Args:
        first: pictures of the first message of the user, in front of its own parts.
        special: tokens that no text may hold.

    Raises:
        TextError: a text holds one of them, or is no UTF-8.
        ValueError: roles that do not alternate from the user to the user, but for a system turn in front; an empty
            question, or a malformed message.
    """
    plain = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
    roles = [message.get("role") if isinstance(message, Mapping) else None for message in plain]
    if not plain or roles[-1] != "user":
        raise ValueError("a chat must end with a message of the user")
    begun = int(roles[0] == "system")
    chat: list[Message] = []
    media_of_all: list[Image.Image] = []
    for number, message in enumerate(plain):
        content, media = _content(number, message)
        role, text = roles[number], text_of(content)
        names = {0: "the system turn"} if begun else {}
        whose = (names | {len(plain) - 1: "the prompt"}).get(number, f"message {number}")
        if role == "user" and not text.strip():  # others may be empty
            raise ValueError(f"{whose} is empty")
        check_text(text, special, whose)
        if number >= begun and role != TURNS[(number - begun) % 2]:
            raise ValueError(f"message {number} is the {role}'s: the user begins, and the two take turns")
        if number == begun and first:
            parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
            content, media = [*[{"type": "image"}] * len(first), *parts], [*first, *media]
        media_of_all += media
        chat.append({"role": role, "content": content})
    return chat, media_of_all


def _content(number: int, message: Message) -> tuple[Content, list[Image.Image]]:
    """Return the text or the parts of a message, and its pictures."""
    role, content = (message.get("role"), message.get("content")) if isinstance(message, Mapping) else (None, None)
    if role not in ("system", *TURNS) or not isinstance(content, str | list | tuple):
        raise ValueError(f"message {number} needs a role (system, user or assistant) and its text or parts as content")
    if isinstance(content, str):
        return content, []
    parts: list[dict[str, Any]] = []
    media: list[Image.Image] = []
    for part in content:
        match part:
            case {"type": "text", "text": str(text)}:
                parts.append({"type": "text", "text": text})
            case {"type": "image", "image": source} if role == "user" and source is not None:
                parts.append({"type": "image"})
                media.append(open_image(source))
            case _:
                raise ValueError(
                    f"message {number} has a part that is neither a text nor a picture of the user: {str(part)[:80]!r}"
                )
    return parts, media


class NoRoomError(ValueError):
    """Error of a prompt and answer that do not fit the context."""


@dataclass(frozen=True)
class PromptBuilder:
    """Tokeniser of chats and encoder of their pictures for a pair.

    Args:
        target, draft: the models; ``draft`` may be ``None``.
        draft_processor: of a draft with a tower of its own.
        vision: source of the draft's picture features; ``None`` without a draft.
    """

    name: str
    processor: ProcessorMixin
    target: PreTrainedModel
    draft: PreTrainedModel | None
    draft_processor: ProcessorMixin | None
    vision: VisionSource | None
    context: int

    @torch.inference_mode()
    def build(
        self,
        media: Sequence[Image.Image],
        messages: Messages,
        new_tokens: int = 0,
        known: Mapping[str, ImageFeatures] | None = None,
    ) -> Prompt:
        """Tokenise a chat and encode its pictures.

        Args:
            media: pictures of the first message.
            messages: one question, or messages with ``role`` and ``content`` that end with the user's; the first may be
                the system's. A content is text, or parts ``{"type": "text", "text": …}`` and, from the user,
                ``{"type": "image", "image": …}``, as :func:`open_image` takes it. The template reads them so.
            new_tokens: room that an answer will need.
            known: features of pictures by key, as ``Prompt.features_by_key`` gives them, which are not encoded again.

        Raises:
            TextError: a text that holds a special token of the tokenizer, or is not Unicode.
            NoRoomError: a prompt and ``new_tokens`` that do not fit the context.
            ValueError: an empty prompt, a malformed chat, a failing chat template or an unreadable picture; all before
                any model runs.
        """
        chat, media_of_all = as_chat(messages, media, special_tokens(self.processor.tokenizer))
        if media_of_all and not family_of(self.target.config).sees:
            raise ValueError(f"{self.name} is a language model, which reads no pictures: ask without one")
        self._check_text(" ".join(text_of(message["content"]) for message in chat))  # before a template reads it
        inputs = self._process(self.processor, chat, media_of_all)
        plain = self._plain(chat, media_of_all, inputs)
        parts = chat[-1]["content"]
        shown = 0 if isinstance(parts, str) else sum(part["type"] == "image" for part in parts)
        check_room(self.context, plain.length, new_tokens, plain.turn, shown)
        if not media_of_all:
            return plain
        known = known or {}
        prompt = _with_features(plain, self.target, self.processor, media_of_all, inputs, known)
        if self.vision == "none":
            words = plain.input_ids[~slots_of(self.target.config, plain.input_ids)]
            return replace(prompt, draft_prompt=replace(plain, input_ids=words[None], image_sizes=()))
        if self.draft is not None and self.draft_processor is not None:  # it has a tower of its own
            inputs = self._process(self.draft_processor, chat, media_of_all)
            own = self._plain(chat, media_of_all, inputs)
            own = _with_features(own, self.draft, self.draft_processor, media_of_all, inputs, known, "own ")
            return replace(prompt, draft_prompt=own)
        if self.draft is None or self.vision != "shared" or compressor_of(self.draft) is None:
            return prompt
        ids = prompt.input_ids[compressed_slots(self.draft, prompt.input_ids, prompt.features)]
        # The tower has read the pictures.
        return replace(prompt, draft_prompt=replace(prompt, input_ids=ids[None], vision_seconds=0.0))

    def _process(
        self, processor: ProcessorMixin, chat: Sequence[Message], media: Sequence[Image.Image]
    ) -> Mapping[str, Tensor]:
        """Write a chat by the target's template, and tokenise it with what it shows."""
        text = apply_template(self.processor, chat, self.name)
        self._check_text(text)
        return _call(processor, media, text)

    def _check_text(self, text: str) -> None:
        """Refuse a text of far more tokens than the context by its beginning: it is not tokenised whole.

        Raises:
            NoRoomError: it has so many.
        """
        if len(beginning(self.processor.tokenizer, text, self.context)) < len(text):
            raise NoRoomError(
                f"{len(text):,} characters of prompt do not fit the context of {self.context} tokens:"
                " shorten the prompt"
            )

    def _plain(self, chat: Sequence[Message], media: Sequence[Image.Image], inputs: Mapping[str, Tensor]) -> Prompt:
        """Return the prompt of a chat without features."""
        return Prompt(
            text=text_of(chat[-1]["content"]),
            input_ids=inputs["input_ids"].to(input_device(self.target)),
            image_sizes=tuple(one.size for one in media),
            turn=sum(message["role"] == "user" for message in chat) - 1,
        )


def _call(processor: ProcessorMixin, media: Sequence[Image.Image], text: str) -> Mapping[str, Tensor]:
    """Tokenise a text with what it shows as ``apply_chat_template`` would: no second beginning, pictures of one chat.

    Raises:
        ValueError: settings of the processor, which come with the checkpoint, that do not work.
    """
    given: dict[str, Any] = {"text": text, "return_tensors": "pt", **bos_options(processor.tokenizer, text)}
    try:
        read: Mapping[str, Tensor] = processor(images=[list(media)] if media else None, **given)
    except BaseException as error:  # whatever its settings make it raise
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        why = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        raise ValueError(f"the {type(processor).__name__} cannot read {len(media)} pictures: {why}") from error
    return read


def _with_features(
    prompt: Prompt,
    model: PreTrainedModel,
    processor: ProcessorMixin,
    media: Sequence[Image.Image],
    inputs: Mapping[str, Tensor],
    known: Mapping[str, ImageFeatures],
    whose: str = "",
) -> Prompt:
    """Add the features of what a prompt shows; only what is not known runs through the model's tower.

    Args:
        whose: in front of the keys, where features are not the target's.
    """
    family, device = family_of(model.config), prompt.input_ids.device
    sizes = [one.size[::-1] for one in media]
    given = family.pictures(ProcessedPrompt(model.config, processor, inputs, sizes))
    keys = tuple(whose + picture_key(one) for one in given)
    started = now(device)
    new = {key: number for number, key in enumerate(keys) if key not in known}
    encoded = dict(known)
    if new:
        read = [to_device(given[number], model, device) for number in new.values()]
        encoded |= zip(new, family.encode(model, read), strict=True)
    features = family.stack([encoded[key] for key in keys])
    names = processor.image_processor.model_input_names
    return replace(
        prompt,
        image_inputs={name: inputs[name] for name in names if isinstance(inputs.get(name), Tensor)},
        features=features,
        image_keys=keys,
        vision_seconds=now(device) - started,
    )


def check_room(context: int, length: int, new_tokens: int, turn: int = 0, pictures: int = 0) -> None:
    """Refuse a prompt and answer that do not fit the context.

    Args:
        turn, pictures: number of the turn and pictures that its message shows, for what can be left out.

    Raises:
        NoRoomError: with the numbers, and the number of new tokens that would fit.
    """
    if length + new_tokens <= context:
        return
    ways = ["take fewer pictures" if pictures > 1 else "shorten the prompt"]
    if turn:
        ways.append("begin a new chat")
    if length < context:
        ways.append(f"ask for {context - length} at most")
    raise NoRoomError(
        f"{length} prompt tokens and {new_tokens} new ones do not fit the context of {context}: {', or '.join(ways)}"
    )
