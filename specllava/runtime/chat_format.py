"""Conversion of users' messages to the form that chat templates read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from specllava.models.checkpoints.tokens import check_text
from specllava.models.media.images import open_image
from specllava.models.media.media import Media, Video

Message = dict[str, Any]
Messages = str | Sequence[Message]
ROLES = ("user", "assistant")


def as_chat(
    messages: Messages, first: Sequence[Media], special: Sequence[str]
) -> tuple[list[Message], list[Media]]:
    """Convert messages to the form of chat templates; also return what they show, pictures and videos.

    What a message shows stands in front of its text.

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
    """Split a message into role, text and what it shows; several texts are joined by a space."""
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
    """Return a chat with the parts that stand for its videos in a model's template.

    Args:
        media: pictures and videos of the chat, in order.
        parts: those of one video.
    """
    left = iter(media)

    def expand(part: Message) -> Sequence[Message]:
        one = None if part["type"] == "text" else next(left)
        return parts(one) if isinstance(one, Video) else [part]

    return [
        message | {"content": [new for part in message["content"] for new in expand(part)]} for message in chat
    ]
