"""Building of a prompt from pictures and chat; a picture is encoded once for target, draft and later turns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from PIL import Image
from torch import Tensor
from transformers import PreTrainedModel, ProcessorMixin

from specllava.models.device import input_device
from specllava.models.draft_classes import VisionSource
from specllava.models.family import ImageFeatures, family_of
from specllava.models.special import special_tokens
from specllava.models.vision import compressor_of, encode_images, kept_slots
from specllava.runtime.chat_format import Messages, apply_template, as_chat
from specllava.runtime.prompt import Prompt, with_draft_prompt
from specllava.runtime.timing import now


class NoRoomError(ValueError):
    """Error of a prompt and answer that do not fit the context."""


@dataclass(frozen=True)
class PromptBuilder:
    """Tokeniser of chats and encoder of their pictures for a pair.

    Args:
        name: of the target.
        processor: of the target.
        target, draft: the models; ``draft`` may be ``None``.
        draft_processor: of a draft with a tower of its own.
        vision: source of the draft's picture features; ``None`` without a draft.
        context: tokens that fit.
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
        image: Image.Image | None,
        messages: Messages,
        new_tokens: int = 0,
        known: Mapping[str, ImageFeatures] | None = None,
    ) -> Prompt:
        """Tokenise a chat and encode its pictures.

        Args:
            image: belongs to the first message of the user.
            messages: one question, or messages with ``role`` and ``content`` that end with the user's. A content is
                text, or parts ``{"type": "text", "text": …}`` and, from the user, ``{"type": "image", "image": picture
                or path}``; pictures stand before the text of their message, as in LLaVA's own chats.
            new_tokens: room that an answer will need.
            known: features of pictures by key, as ``Prompt.features_by_key`` gives them, which are not encoded again.

        Raises:
            TextError: a text that holds a special token of the tokenizer, or is not Unicode.
            NoRoomError: a prompt and ``new_tokens`` that do not fit the context.
            ValueError: an empty prompt, a malformed chat, a chat template that fails, or a picture that cannot be read;
                all before any model runs.
        """
        chat, images = as_chat(messages, image, special_tokens(self.processor.tokenizer))
        text = apply_template(self.processor, chat, self.name)
        inputs = self.processor(images=images or None, text=text, return_tensors="pt")
        turn = sum(message["role"] == "user" for message in chat) - 1
        check_room(self.context, inputs["input_ids"].shape[1], new_tokens, turn)
        device = input_device(self.target)
        plain = Prompt(
            text=chat[-1]["content"][-1]["text"],
            input_ids=inputs["input_ids"].to(device),
            pixel_values=None,
            features=None,
            image_keys=(),
            image_sizes=tuple(one.size for one in images),
            vision_seconds=0.0,
            turn=turn,
        )
        if not images:
            return plain
        known = known or {}
        prompt = _with_features(plain, self.target, inputs["pixel_values"], known)
        if self.vision == "none":
            words = plain.input_ids[plain.input_ids != self.target.config.image_token_id]
            return with_draft_prompt(prompt, replace(plain, input_ids=words[None], image_sizes=()))
        if self.draft is not None and self.draft_processor is not None:  # it has a tower of its own
            inputs = self.draft_processor(images=images, text=text, return_tensors="pt")
            own = replace(plain, input_ids=inputs["input_ids"].to(device))
            return replace(prompt, draft_prompt=_with_features(own, self.draft, inputs["pixel_values"], known, "own "))
        if self.draft is not None and self.vision == "shared" and compressor_of(self.draft) is not None:
            kept = prompt.input_ids[kept_slots(self.draft, prompt.input_ids, prompt.features)]
            return with_draft_prompt(prompt, replace(prompt, input_ids=kept[None], vision_seconds=0.0))
        return prompt


def _with_features(
    prompt: Prompt, model: PreTrainedModel, pixel_values: Tensor, known: Mapping[str, ImageFeatures], whose: str = ""
) -> Prompt:
    """Add the features of its pictures to a prompt; only pictures that are not known run through the model's tower.

    Args:
        whose: in front of the keys, where features are not the target's.
    """
    family, device = family_of(model.config), prompt.input_ids.device
    sizes = [(height, width) for width, height in prompt.image_sizes]
    read = family.pixels(model.config, pixel_values, sizes)
    keys = tuple(whose + family.key(*one) for one in zip(read, sizes, strict=True))
    started = now(device)
    new = {key: number for number, key in enumerate(keys) if key not in known}
    found = dict(known)
    if new:
        pixels = [read[number].to(device, model.dtype) for number in new.values()]
        found |= zip(new, encode_images(model, pixels, [sizes[number] for number in new.values()]), strict=True)
    features = family.stack([found[key] for key in keys])
    return replace(
        prompt,
        pixel_values=pixel_values.to(device, model.dtype),
        features=features,
        image_keys=keys,
        vision_seconds=now(device) - started,
    )


def check_room(context: int, length: int, new_tokens: int, turn: int = 0) -> None:
    """Refuse a prompt and answer that do not fit the context.

    Raises:
        NoRoomError: with the numbers, and the number that would fit.
    """
    if length + new_tokens <= context:
        return
    ways = ["shorten the prompt"]
    if turn:
        ways.append("edit an earlier turn or begin a new chat")
    if length < context:
        ways.append(f"ask for {context - length} at most")
    raise NoRoomError(
        f"{length} prompt tokens and {new_tokens} new ones do not fit the context of {context}:"
        f" {', or '.join(ways)}"
    )
