"""Building of a prompt from pictures and chat; a picture is encoded once for target, draft and later turns."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from PIL import Image
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel, ProcessorMixin

from specllava.core.errors import is_panic
from specllava.models.checkpoints.chat_template import apply_template
from specllava.models.checkpoints.language_model import input_device
from specllava.models.checkpoints.tokens import beginning, bos_options, check_text, special_tokens
from specllava.models.drafts.draft_classes import VisionSource
from specllava.models.families.family import family_of
from specllava.models.families.interface import Family, ImageFeatures, Picture, ProcessedPrompt, picture_key
from specllava.models.media.images import open_image
from specllava.models.media.media import Media, Video, all_frames, for_draft, metadata
from specllava.runtime.prompt import Prompt, with_draft_prompt
from specllava.runtime.timing import now
from specllava.runtime.vision import compressor_of, kept_slots, slots_of, to_device

Message = dict[str, Any]
Messages = str | Sequence[Message]
ROLES = ("user", "assistant")
VIDEO_INPUTS: Final = ("pixel_values_videos", "video_grid_thw", "second_per_grid_ts")  # of processors, beside pictures'


def as_chat(
    messages: Messages, first: Sequence[Media], special: Sequence[str]
) -> tuple[list[Message], list[Media]]:
    """Convert messages to the form of chat templates; also return their pictures and videos.

    Those of a message come before its text.

    Args:
        first: media of the first message of the user, in front of its own.
        special: tokens that no text may hold.

    Raises:
        TextError: a text holds one of them, or is no UTF-8.
        ValueError: roles that do not alternate from the user to the user, an empty question, or a malformed message.
    """
    plain = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
    if not plain or plain[-1].get("role") != "user":
        raise ValueError("a chat must end with a message of the user")
    chat: list[Message] = []
    media_of_all: list[Media] = []
    for number, message in enumerate(plain):
        role, text, media = _parts(number, message)
        whose = "the prompt" if number == len(plain) - 1 else f"message {number}"
        if not text and role == "user":  # an assistant's message may be empty
            raise ValueError(f"{whose} is empty")
        check_text(text, special, whose)
        if role != ROLES[number % 2]:
            raise ValueError(f"message {number} is the {role}'s: the user begins, and the two take turns")
        if number == 0:
            media = [*first, *media]
        media_of_all += media
        kinds = [{"type": "video" if isinstance(one, Video) else "image"} for one in media]
        chat.append({"role": role, "content": [*kinds, {"type": "text", "text": text}]})
    return chat, media_of_all


def _parts(number: int, message: Message) -> tuple[str, str, list[Media]]:
    """Split a message into role, text and media; several texts are joined by a space."""
    role, content = message.get("role"), message.get("content")
    if role not in ROLES or not isinstance(content, str | list | tuple):
        raise ValueError(f"message {number} needs a role (user or assistant) and its text or parts as content")
    texts: list[str] = []
    media: list[Media] = []
    for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
        match part:
            case {"type": "text", "text": str(text)}:
                texts.append(text.strip())
            case {"type": "image", "image": Image.Image() | str() | Path() as source} if role == "user":
                media.append(open_image(source))
            case {"type": "video", "video": Video() as video} if role == "user":
                media.append(video)
            case _:
                raise ValueError(
                    f"message {number} has a part that is neither a text nor a picture or video of the user:"
                    f" {str(part)[:80]!r}"
                )
    return role, " ".join(filter(None, texts)), media


def with_video_parts(
    chat: Sequence[Message], media: Sequence[Media], parts: Callable[[Video], Sequence[Message]]
) -> list[Message]:
    """Return a chat with the parts for its videos in a model's template.

    Args:
        media: pictures and videos of the chat, in order.
    """
    left = iter(media)

    def expand(part: Message) -> Sequence[Message]:
        one = None if part["type"] == "text" else next(left)
        return parts(one) if isinstance(one, Video) else [part]

    return [
        message | {"content": [new for part in message["content"] for new in expand(part)]} for message in chat
    ]


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
        media: Sequence[Media],
        messages: Messages,
        new_tokens: int = 0,
        known: Mapping[str, ImageFeatures] | None = None,
    ) -> Prompt:
        """Tokenise a chat and encode its pictures.

        Args:
            media: pictures and videos of the first message.
            messages: one question, or messages with ``role`` and ``content`` that end with the user's. A content is
                text, or parts ``{"type": "text", "text": …}`` and, from the user, ``{"type": "image", "image": picture
                or path}`` and ``{"type": "video", "video": Video}``; media come before the text of their
                message, as in LLaVA's own chats.
            new_tokens: room that an answer will need.
            known: features of pictures by key, as ``Prompt.features_by_key`` gives them, which are not encoded again.

        Raises:
            TextError: a text that holds a special token of the tokenizer, or is not Unicode.
            NoRoomError: a prompt and ``new_tokens`` that do not fit the context.
            ValueError: an empty prompt, a malformed chat, a failing chat template, an unreadable picture, or fewer
                frames for a draft that reads none; all before any model runs.
        """
        chat, media_of_all = as_chat(messages, media, special_tokens(self.processor.tokenizer))
        if media_of_all and not family_of(self.target.config).sees:
            raise ValueError(f"{self.name} is a language model, which reads no pictures: ask without one")
        sparse = any(isinstance(one, Video) and one.draft_frames is not None for one in media_of_all)
        if sparse and self.vision not in ("shared", "own"):
            raise ValueError(f"no fewer frames for the draft than for the target: {self._why_not_sparse()}")
        self._check_text(" ".join(message["content"][-1]["text"] for message in chat))  # before a template reads it
        inputs = self._process(self.processor, chat, media_of_all)
        plain = self._plain(chat, media_of_all, inputs)
        if plain.length + new_tokens > self.context:
            fit = self._frames_that_fit(chat, media_of_all, plain.length, new_tokens)
            fit = fit or self._pictures_that_fit(chat, media_of_all, new_tokens)
            check_room(self.context, plain.length, new_tokens, plain.turn, fit)
        if not media_of_all:
            return plain
        known = known or {}
        prompt = _with_features(plain, self.target, self.processor, media_of_all, inputs, known)
        if self.vision == "none":
            words = plain.input_ids[~slots_of(self.target.config, plain.input_ids)]
            return with_draft_prompt(prompt, replace(plain, input_ids=words[None], image_sizes=()))
        watched = for_draft(media_of_all)
        if self.draft is not None and self.draft_processor is not None:  # it has a tower of its own
            inputs = self._process(self.draft_processor, chat, watched)
            own = self._plain(chat, watched, inputs)
            own = _with_features(own, self.draft, self.draft_processor, watched, inputs, known, "own ")
            return replace(prompt, draft_prompt=own)
        compressed = self.draft is not None and compressor_of(self.draft) is not None
        if self.draft is None or self.vision != "shared" or not (sparse or compressed):
            return prompt
        read = replace(prompt, vision_seconds=0.0)  # the tower has read it
        if sparse:  # so it has where frames are pictures
            inputs = self._process(self.processor, chat, watched)
            read = self._plain(chat, watched, inputs)
            read = _with_features(read, self.target, self.processor, watched, inputs, prompt.features_by_key)
        if compressed:
            kept = read.input_ids[kept_slots(self.draft, read.input_ids, read.features)]
            read = replace(read, input_ids=kept[None])
        return with_draft_prompt(prompt, read)

    def _process(
        self, processor: ProcessorMixin, chat: Sequence[Message], media: Sequence[Media]
    ) -> Mapping[str, Tensor]:
        """Write a chat by the target's template, and tokenise it with what it shows."""
        family = family_of(self.target.config)
        text = apply_template(self.processor, with_video_parts(chat, media, family.video_parts), self.name)
        self._check_text(text)
        return _call(processor, media if family.reads_videos else all_frames(media), text)

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

    def _plain(self, chat: Sequence[Message], media: Sequence[Media], inputs: Mapping[str, Tensor]) -> Prompt:
        """Return the prompt of a chat without features."""
        return Prompt(
            text=chat[-1]["content"][-1]["text"],
            input_ids=inputs["input_ids"].to(input_device(self.target)),
            image_inputs={},
            pictures=(),
            features=None,
            image_keys=(),
            image_sizes=tuple(one.size for one in all_frames(media)),
            vision_seconds=0.0,
            turn=sum(message["role"] == "user" for message in chat) - 1,
        )

    def _why_not_sparse(self) -> str:
        match self.vision:
            case None:
                return "there is no draft model"
            case "states":
                return "the draft reads the target's states, which hold every frame"
            case _:
                return "the draft reads words alone"

    def _frames_that_fit(
        self, chat: Sequence[Message], media: Sequence[Media], length: int, new_tokens: int
    ) -> str:
        """Return how many frames of a chat's only video would fit, in words; "" if none, or there is no such video.

        Args:
            length: tokens of the chat with all frames.
        """
        videos = [one for one in media if isinstance(one, Video)]
        if len(videos) != 1:
            return ""
        count, room = len(videos[0].frames), self.context - new_tokens

        def taken(frames: int) -> int:
            fewer = [replace(one, draft_frames=frames) if isinstance(one, Video) else one for one in media]
            return int(self._process(self.processor, chat, for_draft(fewer))["input_ids"].shape[1])

        least = taken(1)
        fit = 0 if least > room else 1 + (room - least) * (count - 1) // max(1, length - least)
        while fit > 1 and taken(fit) > room:  # where several frames share their slots, one more may take many
            fit -= 1
        return f"{fit} frames" if fit else ""

    def _pictures_that_fit(self, chat: Sequence[Message], media: Sequence[Media], new_tokens: int) -> str:
        """Return how many of the last message's pictures fit, in words; "" if none, or it shows no two, or a video."""
        *before, last = chat
        *kinds, _ = parts = last["content"]
        asked = len(kinds)
        if asked < 2 or {"type": "video"} in kinds:
            return ""

        def length(count: int) -> int:
            fewer = [*before, last | {"content": parts[asked - count :]}]
            kept = media[: len(media) - asked + count]
            return int(self._process(self.processor, fewer, kept)["input_ids"].shape[1])

        count = bisect_right(range(1, asked), self.context - new_tokens, key=length)
        return f"{count} picture{'s' if count > 1 else ''}" if count else ""


def _call(processor: ProcessorMixin, media: Sequence[Media], text: str) -> Mapping[str, Tensor]:
    """Tokenise a text with what it shows as ``apply_chat_template`` would: no second beginning, pictures of one chat.

    Raises:
        ValueError: settings of the processor, which come with the checkpoint, that do not work.
    """
    given: dict[str, Any] = dict(bos_options(processor.tokenizer, text))
    pictures = [one for one in media if not isinstance(one, Video)]
    videos = [one for one in media if isinstance(one, Video)]
    if videos:
        given |= {"videos": [list(one.frames) for one in videos], "video_metadata": [metadata(one) for one in videos]}
    try:
        read: Mapping[str, Tensor] = processor(
            images=[pictures] if pictures else None, text=text, return_tensors="pt", **given
        )
    except BaseException as error:  # whatever its settings make it raise
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        why = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        what = f"{len(pictures)} pictures" + (f" and {len(videos)} videos" if videos else "")
        raise ValueError(f"the {type(processor).__name__} cannot read {what}: {why}") from error
    return read


def _with_features(
    prompt: Prompt,
    model: PreTrainedModel,
    processor: ProcessorMixin,
    media: Sequence[Media],
    inputs: Mapping[str, Tensor],
    known: Mapping[str, ImageFeatures],
    whose: str = "",
) -> Prompt:
    """Add the features of what a prompt shows; only what is not known runs through the model's tower.

    Args:
        whose: in front of the keys, where features are not the target's.
    """
    family, device = family_of(model.config), prompt.input_ids.device
    given = _split(family, model.config, processor, media, inputs)
    read = [to_device(one, model, device) for one in given]
    keys = tuple(whose + picture_key(one) for one in given)
    started = now(device)
    new = {key: number for number, key in enumerate(keys) if key not in known}
    found = dict(known)
    if new:
        found |= zip(new, family.encode(model, [read[number] for number in new.values()]), strict=True)
    features = family.stack([found[key] for key in keys])
    names = (*processor.image_processor.model_input_names, *VIDEO_INPUTS)
    own = {name: inputs[name] for name in names if isinstance(inputs.get(name), Tensor)}
    return replace(
        prompt,
        image_inputs=to_device(own, model, device),
        pictures=tuple(read),
        features=features,
        image_keys=keys,
        vision_seconds=now(device) - started,
    )


def _split(
    family: Family,
    config: PretrainedConfig,
    processor: ProcessorMixin,
    media: Sequence[Media],
    inputs: Mapping[str, Tensor],
) -> list[Picture]:
    """Split the processor's output into pictures and videos, in their order."""
    shown = [one for one in media if not isinstance(one, Video)] if family.reads_videos else all_frames(media)
    prompt = ProcessedPrompt(config, processor, inputs, [one.size[::-1] for one in shown])
    pictures = iter(family.pictures(prompt) if shown else ())
    if not family.reads_videos:
        return list(pictures)
    videos = iter(family.videos(prompt) if len(shown) < len(media) else ())
    return [next(videos if isinstance(one, Video) else pictures) for one in media]


def check_room(context: int, length: int, new_tokens: int, turn: int = 0, fit: str = "") -> None:
    """Refuse a prompt and answer that do not fit the context.

    Args:
        fit: how many of the prompt's frames or pictures would fit, in words, if any would.

    Raises:
        NoRoomError: with the numbers, and the number that would fit.
    """
    if length + new_tokens <= context:
        return
    ways = [f"take {fit} at most" if fit else "shorten the prompt"]
    if turn:
        ways.append("edit an earlier turn or begin a new chat")
    if length < context:
        ways.append(f"ask for {context - length} at most")
    raise NoRoomError(
        f"{length} prompt tokens and {new_tokens} new ones do not fit the context of {context}:"
        f" {', or '.join(ways)}"
    )
