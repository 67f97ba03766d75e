"""What every family that reads videos as such is held to, beside the proofs of all families."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from specllava.bench.transformers_lanes import TRANSFORMERS, transformers_lane
from specllava.core.growth.rules import RULE_INFOS
from specllava.models.families.family import family_of
from specllava.models.media.media import Video, metadata
from specllava.pair import Pair
from support import checkpoints
from support.clips import clip
from support.family_kinds import QWENS, FamilyName
from support.family_proofs import ALONE, FAST, said

READERS: tuple[FamilyName, ...] = ("llava_next_video", "video_llava", *QWENS)
CHATS = range(3)


def chat(number: int, sparse: int | None = None) -> list[dict[str, Any]]:
    """Chat ``number``: a video, a picture and a video, a video and a later turn."""
    shown = {
        0: [clip(3, sparse)], 1: [checkpoints.picture(4), clip(4, sparse, 1)], 2: [clip(5, sparse, 2)],
    }[number]  # fmt: skip
    kinds = ["video" if isinstance(one, Video) else "image" for one in shown]
    parts = [{"type": kind, kind: one} for kind, one in zip(kinds, shown, strict=True)]
    asked = {"role": "user", "content": [*parts, {"type": "text", "text": "What happens?"}]}
    answer = {"role": "assistant", "content": "A bus stands."}
    return [asked, answer, {"role": "user", "content": "Where?"}] if number == 2 else [asked]


def own_inputs(pair: Pair, messages: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """What the family's processor makes of a chat with a video, by the family's own template."""
    plain = [
        {**one, "content": [{"type": "text", "text": one["content"]}]} if isinstance(one["content"], str) else one
        for one in messages
    ]
    parts = [part for one in plain for part in one["content"]]
    videos = [part["video"] for part in parts if part["type"] == "video"]
    pictures = [part["image"] for part in parts if part["type"] == "image"]
    text = pair.processor.apply_chat_template(plain, add_generation_prompt=True)
    made = pair.processor(
        text=text, images=pictures or None, videos=[list(one.frames) for one in videos],
        video_metadata=[metadata(one) for one in videos], return_tensors="pt",
    )  # fmt: skip
    pixels = ("pixel_values", "pixel_values_videos")
    return {name: one.to(pair.target.dtype) if name in pixels else one for name, one in made.items()}


@torch.inference_mode()
def generated(pair: Pair, messages: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
    """Answer of the family's own ``generate``, which reads the whole chat."""
    inputs = own_inputs(pair, messages)
    ids = inputs["input_ids"]
    assert torch.equal(pair.prompt(None, messages).input_ids, ids)
    named = family_of(pair.target.config).prompt_arguments(pair.target.config, ids)
    wanted = pair.target.generate(**inputs | named, do_sample=False, max_new_tokens=ALONE.max_new_tokens)
    return tuple(wanted[0, ids.shape[1] :].tolist())


def check_generate(pair: Pair, chats: Iterable[list[dict[str, Any]]] | None = None) -> None:
    """Target-only decoding about videos is the family's own ``generate`` on the same pixels, token by token."""
    for messages in map(chat, CHATS) if chats is None else chats:
        prompt, wanted = pair.prompt(None, messages), generated(pair, messages)
        assert said(pair, prompt, ALONE)[0] == wanted
        assert transformers_lane(pair, TRANSFORMERS, ALONE)(prompt).token_ids == wanted


def check_speculation(pair: Pair) -> int:
    """No rule, drafter, temperature or number of the draft's frames changes a token; returns the passes saved."""
    rules, saved = [*RULE_INFOS], 0
    for number, sparse in ((0, None), (0, 1), (1, 2), (2, 3)):
        prompt = pair.prompt(None, chat(number, sparse))
        assert prompt.draft_prompt is not None
        if sparse:
            assert prompt.draft_prompt.length < pair.prompt(None, chat(number)).draft_prompt.length
        for heat in ({}, {"temperature": 0.8, "seed": number}):
            plain, passes = said(pair, prompt, replace(ALONE, **heat))
            assert said(pair, prompt, replace(FAST, drafter="prompt-lookup", **heat))[0] == plain
            for rule in rules[number % 2 :: 2]:
                fast, fewer = said(pair, prompt, replace(FAST, rule=rule, **heat))
                assert fast == plain
                saved += passes - fewer
    return saved
