"""From pictures and chat to what the models read; a picture is encoded once, for target and draft and later turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import PreTrainedModel

from specllava.models.bundle import Bundle
from specllava.models.family import Features, Seen, family_of
from specllava.models.images import open_image
from specllava.models.special import check_text, special_tokens
from specllava.models.timing import now
from specllava.models.vision import see

Message = dict[str, Any]
Messages = str | Sequence[Message]
ROLES = ("user", "assistant")


class NoRoomError(ValueError):
    """Prompt and answer do not fit the context."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt, ready for every lane.

    Args:
        text: the last user message, for display.
        input_ids: ``[1, length]``, with image slots.
        pixel_values: as the processor gives them, for LLaVA-1.5 ``[images, 3, height, width]``, or ``None``.
        features: of all pictures, for LLaVA-1.5 ``[images, patches, vision_hidden]``, or ``None``.
        pictures: a key for each picture; equal keys mean equal features.
        image_sizes: width and height of each picture as it came.
        vision_seconds: what encoding the pictures took, those left out whose features were known.
        turn: messages of the user before the last one.
        given: the last ids of ``input_ids``, if they are the beginning of the answer: read, not decoded.
        for_draft: what a draft model reads instead; ``None`` if it reads the same. A draft that sees nothing reads no
            image slots, one with a tower of its own other features; see also :func:`shown_to_draft`.
    """

    text: str
    input_ids: Tensor
    pixel_values: Tensor | None
    features: Features | None
    pictures: tuple[str, ...]
    image_sizes: tuple[tuple[int, int], ...]
    vision_seconds: float
    turn: int = 0
    given: tuple[int, ...] = ()
    for_draft: Prompt | None = None

    @property
    def length(self) -> int:
        return self.input_ids.shape[1]

    @property
    def seen(self) -> dict[str, Seen]:
        """Features of its pictures by key, those for the draft among them: what a later prompt need not compute."""
        mine = {} if self.features is None else dict(zip(self.pictures, self.features, strict=True))
        return mine if self.for_draft is None else mine | self.for_draft.seen


@torch.inference_mode()
def build_prompt(
    bundle: Bundle,
    image: Image.Image | None,
    messages: Messages,
    new_tokens: int = 0,
    known: Mapping[str, Seen] | None = None,
) -> Prompt:
    """Tokenise a chat and encode its pictures.

    Args:
        image: belongs to the first message of the user.
        messages: one question, or messages with ``role`` and ``content`` that end with the user's. A content is text,
            or parts ``{"type": "text", "text": …}`` and, from the user, ``{"type": "image", "image": picture or
            path}``; pictures stand before the text of their message, as in LLaVA's own chats.
        new_tokens: room that an answer will need.
        known: features of pictures by key, as ``Prompt.seen`` gives them, which are then not encoded again.

    Raises:
        TextError: a text that holds a special token of the tokenizer, or is not Unicode.
        NoRoomError: a prompt and ``new_tokens`` that do not fit the context.
        ValueError: an empty prompt, a malformed chat, a chat template that fails, or a picture that cannot be read; all
            before any model runs.
    """
    chat, images = as_chat(messages, image, special_tokens(bundle.processor.tokenizer))
    text = _written(bundle, chat)
    inputs = bundle.processor(images=images or None, text=text, return_tensors="pt")
    turn = sum(message["role"] == "user" for message in chat) - 1
    check_room(bundle, inputs["input_ids"].shape[1], new_tokens, turn)
    plain = Prompt(
        text=chat[-1]["content"][-1]["text"],
        input_ids=inputs["input_ids"].to(bundle.device),
        pixel_values=None,
        features=None,
        pictures=(),
        image_sizes=tuple(one.size for one in images),
        vision_seconds=0.0,
        turn=turn,
    )
    if not images:
        return plain
    prompt = _looked_at(plain, bundle.target, inputs["pixel_values"], known or {})
    if bundle.draft_sight == "blind":
        words = plain.input_ids[plain.input_ids != bundle.target.config.image_token_id]
        return shown_to_draft(prompt, replace(plain, input_ids=words[None], image_sizes=()))
    if bundle.draft is not None and bundle.draft_processor is not None:  # it has a tower of its own
        inputs = bundle.draft_processor(images=images, text=text, return_tensors="pt")
        own = replace(plain, input_ids=inputs["input_ids"].to(bundle.device))
        return replace(prompt, for_draft=_looked_at(own, bundle.draft, inputs["pixel_values"], known or {}, "own "))
    return prompt


def shown_to_draft(prompt: Prompt, other: Prompt) -> Prompt:
    """``prompt`` for the target, ``other`` for the draft: the same words with another picture, say.

    The target decides every token, so the answer stays what it was; only the guesses change.

    Raises:
        ValueError: ``other`` is longer, so the draft would run out of room before the target.
    """
    read = other.for_draft or other
    if read.length > prompt.length:
        raise ValueError(f"the draft's prompt has {read.length} tokens, more than the target's {prompt.length}")
    return replace(prompt, for_draft=read)


def continued(prompt: Prompt, given: Sequence[int]) -> Prompt:
    """The prompt with the beginning of its answer: decoding goes on behind it."""
    tail = torch.tensor([list(given)], dtype=prompt.input_ids.dtype, device=prompt.input_ids.device)
    return replace(
        prompt,
        input_ids=torch.cat([prompt.input_ids, tail], dim=1),
        given=(*prompt.given, *given),
        for_draft=None if prompt.for_draft is None else continued(prompt.for_draft, given),
    )


def _looked_at(
    prompt: Prompt, model: PreTrainedModel, pixel_values: Tensor, known: Mapping[str, Seen], whose: str = ""
) -> Prompt:
    """The prompt with its pictures' features; only pictures that are not known run through the model's tower.

    Args:
        whose: in front of the keys, where features are not the target's.
    """
    family, device = family_of(model.config), prompt.input_ids.device
    sizes = [(height, width) for width, height in prompt.image_sizes]
    read = family.pixels(model.config, pixel_values, sizes)
    keys = tuple(whose + family.key(*one) for one in zip(read, sizes, strict=True))
    started = now(device)
    new = {key: place for place, key in enumerate(keys) if key not in known}
    found = dict(known)
    if new:
        pixels = [read[place].to(device, model.dtype) for place in new.values()]
        found |= zip(new, see(model, pixels, [sizes[place] for place in new.values()]), strict=True)
    features = family.gathered([found[key] for key in keys])
    return replace(
        prompt,
        pixel_values=pixel_values.to(device, model.dtype),
        features=features,
        pictures=keys,
        vision_seconds=now(device) - started,
    )


def check_room(bundle: Bundle, length: int, new_tokens: int, turn: int = 0) -> None:
    """Refuse what does not fit the context.

    Raises:
        NoRoomError: with the numbers, and what would fit.
    """
    if length + new_tokens <= bundle.context:
        return
    ways = ["shorten the prompt"]
    if turn:
        ways.append("edit an earlier turn or begin a new chat")
    if length < bundle.context:
        ways.append(f"ask for {bundle.context - length} at most")
    raise NoRoomError(
        f"{length} prompt tokens and {new_tokens} new ones do not fit the context of {bundle.context}:"
        f" {', or '.join(ways)}"
    )


def _written(bundle: Bundle, chat: Sequence[Message]) -> str:
    """The chat as the target's template writes it.

    Raises:
        ValueError: the template fails: it is a program that comes with the checkpoint.
    """
    try:
        return str(bundle.processor.apply_chat_template(chat, add_generation_prompt=True))
    except Exception as error:  # whatever that program raises
        why = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        raise ValueError(f"the chat template of {bundle.target_name} fails: {why}") from error


def as_chat(
    messages: Messages, image: Image.Image | None, special: Sequence[str]
) -> tuple[list[Message], list[Image.Image]]:
    """Messages in the form that chat templates read, each with its pictures in front; and the pictures in order.

    Args:
        special: tokens that no text may hold.

    Raises:
        TextError: a text holds one of them, or is no UTF-8.
        ValueError: roles that do not alternate from the user to the user, an empty question, or a malformed message.
    """
    plain = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
    if not plain or plain[-1].get("role") != "user":
        raise ValueError("a chat must end with a message of the user")
    chat: list[Message] = []
    images: list[Image.Image] = []
    waiting = [] if image is None else [image]
    for number, message in enumerate(plain):
        role, text, shown = _parts(number, message)
        whose = "the prompt" if number == len(plain) - 1 else f"message {number}"
        if not text and role == "user":  # an assistant may have said nothing
            raise ValueError(f"{whose} is empty")
        check_text(text, special, whose)
        if role != ROLES[number % 2]:
            raise ValueError(f"message {number} is the {role}'s: the user begins, and the two take turns")
        if role == "user":
            shown, waiting = waiting + shown, []
        images += shown
        chat.append({"role": role, "content": [{"type": "image"}] * len(shown) + [{"type": "text", "text": text}]})
    return chat, images


def _parts(number: int, message: Message) -> tuple[str, str, list[Image.Image]]:
    """Role, text and pictures of a message; several texts are joined by a space."""
    role, content = message.get("role"), message.get("content")
    if role not in ROLES or not isinstance(content, str | list | tuple):
        raise ValueError(f"message {number} needs a role (user or assistant) and its text or parts as content")
    texts: list[str] = []
    shown: list[Image.Image] = []
    for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
        match part:
            case {"type": "text", "text": str(text)}:
                texts.append(text.strip())
            case {"type": "image", "image": Image.Image() | str() | Path() as source} if role == "user":
                shown.append(open_image(source))
            case _:
                raise ValueError(
                    f"message {number} has a part that is neither a text nor a picture of the user: {str(part)[:80]!r}"
                )
    return role, " ".join(filter(None, texts)), shown
