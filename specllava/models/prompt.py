"""From picture and chat to what the models read; the picture is encoded once, for target and draft together."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from specllava.models.bundle import Bundle
from specllava.models.vision import tower_features

Message = dict[str, Any]
Messages = str | Sequence[Message]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt, ready for every lane.

    Args:
        text: the last user message, for display.
        input_ids: ``[1, length]``, with image slots.
        pixel_values: ``[images, 3, height, width]`` as the vision tower reads them, or ``None``.
        features: ``[images, patches, vision_hidden]`` or ``None``.
        image_size: width and height of the picture as it came, or ``None``.
        vision_seconds: what encoding the picture took.
    """

    text: str
    input_ids: Tensor
    pixel_values: Tensor | None
    features: Tensor | None
    image_size: tuple[int, int] | None
    vision_seconds: float

    @property
    def length(self) -> int:
        return self.input_ids.shape[1]


@torch.inference_mode()
def build_prompt(bundle: Bundle, image: Image.Image | None, messages: Messages) -> Prompt:
    """Tokenise a chat and encode its picture.

    Args:
        messages: one question, or messages with ``role`` and ``content`` (text) that end with the user's.
            The picture belongs to the first of them.

    Raises:
        ValueError: an empty prompt, a malformed chat, an image marker in the text, or as many image slots as no
            features fit.
    """
    chat = as_chat(messages, with_image=image is not None)
    text = bundle.processor.apply_chat_template(chat, add_generation_prompt=True)
    inputs = bundle.processor(images=image, text=text, return_tensors="pt")
    pixels, features, seconds = None, None, 0.0
    if image is not None:
        pixels = inputs["pixel_values"].to(bundle.device, bundle.target.dtype)
        start = now(bundle.device)
        features = tower_features(bundle.target, pixels)
        seconds = now(bundle.device) - start
    return Prompt(
        text=chat[-1]["content"][-1]["text"],
        input_ids=inputs["input_ids"].to(bundle.device),
        pixel_values=pixels,
        features=features,
        image_size=image.size if image is not None else None,
        vision_seconds=seconds,
    )


def as_chat(messages: Messages, with_image: bool) -> list[Message]:
    """Messages in the form that chat templates read, the picture in front of the first."""
    plain = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
    if not plain or plain[-1].get("role") != "user":
        raise ValueError("a chat must end with a message of the user")
    chat: list[Message] = []
    for number, message in enumerate(plain):
        role, content = message.get("role"), message.get("content")
        if role not in ("user", "assistant") or not isinstance(content, str):
            raise ValueError(f"message {number} needs a role (user or assistant) and its text as content")
        if not content.strip():
            raise ValueError("the prompt is empty" if number == len(plain) - 1 else f"message {number} is empty")
        if "<image>" in content:
            raise ValueError("the prompt contains <image>: the picture's place is set by the chat, not in the text")
        image = [{"type": "image"}] if with_image and number == 0 else []
        chat.append({"role": role, "content": [*image, {"type": "text", "text": content.strip()}]})
    return chat


def now(device: torch.device) -> float:
    """Wall-clock seconds after all work given to the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
