"""Teacher-forced scores: no decoding. Of a draft on an answer, and of an answer without its picture."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch
from PIL import Image
from torch import Tensor
from transformers import PreTrainedModel

from specllava.engine.decoders import Batch, prompt_entries
from specllava.engine.engine import Engine
from specllava.models.drafts.eagle import FeatureDraft
from specllava.models.tokens import Messages
from specllava.pair import Pair
from specllava.prompt import Prompt
from specllava.trace import DecodeTrace, Grounding


@dataclass(frozen=True, slots=True)
class DraftScores:
    """Scores of a draft on the target's answer; every tuple has one entry per token.

    Args:
        guesses: the draft's likeliest token.
        divergences: KL(target ‖ draft) in nats: how far the draft's distribution is from the target's.
    """

    guesses: tuple[int, ...]
    divergences: tuple[float, ...]


@torch.inference_mode()
def teacher_forced_log_probs(model: PreTrainedModel, prompt: Prompt, answer: Sequence[int]) -> Tensor:
    """Return log-probabilities ``[answer, vocab]`` in float64: row ``i`` predicts token ``i`` from those before."""
    engine = Engine.of(model, prompt.length + len(answer))
    rows = [engine.prefill(prompt.input_ids, prompt.features, prompt.image_keys).logits[None]]
    if len(answer) > 1:
        rows.append(engine.forward(Batch(answer[:-1])).logits)
    return torch.log_softmax(torch.cat(rows).double(), dim=-1)


@torch.inference_mode()
def draft_log_probs(target: PreTrainedModel, draft: PreTrainedModel, prompt: Prompt, answer: Sequence[int]) -> Tensor:
    """Return a draft's log-probabilities as :func:`teacher_forced_log_probs` does, whatever the draft reads.

    One that reads the target's states is given the true ones of prompt and answer.
    """
    if not isinstance(draft, FeatureDraft):
        return teacher_forced_log_probs(draft, prompt.draft_prompt or prompt, answer)
    length = prompt.length + len(answer)
    engine, reader = Engine.of(target, length, tuple(draft.config.state_layers)), Engine.of(draft, length)
    known = engine.prefill(prompt.input_ids, prompt.features, prompt.image_keys).states
    assert known is not None
    reader.prefill_entries(*prompt_entries(draft, target, prompt, known))
    first = reader.cache.length - 1
    if len(answer) > 1:
        states = engine.forward(Batch(answer[:-1])).states
        assert states is not None
        reader.forward(Batch(answer[:-1], states=torch.cat([known[-1:], states[:-1]])))
    own = reader.cache.states_from(first)
    assert own is not None
    return torch.log_softmax(draft.logits(own).double(), dim=-1)


def score_draft(draft: Tensor, target: Tensor) -> DraftScores:
    """Score a draft on an answer by both models' log-probabilities ``[answer, vocab]``.

    Of a draft that cannot guess every token (its log-probability is -inf), the divergence is over those that it can.
    """
    reach = ~draft.isneginf()
    if not bool(reach.all()):
        target = torch.log_softmax(target.masked_fill(~reach, -torch.inf), dim=-1)
    target_probs = target.exp()
    # A token of target probability 0 adds nothing, even where the draft's is 0 too.
    divergences = torch.where(target_probs > 0, target_probs * (target - draft), 0.0).sum(-1)
    return DraftScores(
        guesses=tuple(draft.argmax(-1).tolist()),
        divergences=tuple(divergences.clamp_min(0.0).tolist()),  # rounding may leave it a hair below
    )


GREY = (128, 128, 128)  # about zero after the vision tower's normalisation
GRID, WINDOW = 8, 3  # tiles a side: of the picture, of the grey square
FACTOR = 10.0  # times less likely with a grey picture
DIGITS = 4


def ground(pair: Pair, media: Sequence[Image.Image], messages: Messages, trace: DecodeTrace) -> Generator[DecodeTrace]:
    """Score an answer with its pictures and with grey ones, and one picture part by part; yield the trace with it.

    The trace comes again, unchanged, after each teacher-forced pass. Several pictures are greyed as a whole
    only. Source: the occlusion maps of Zeiler & Fergus (arXiv 1311.2901, section 4.2).

    Raises:
        ValueError: no picture.
    """
    if not media:
        raise ValueError("the question came without a picture, so no word can need it: choose a picture")
    answer = trace.token_ids
    seen = _probs(pair, media, messages, answer)
    yield trace
    blank = _probs(pair, [blank_picture(one) for one in media], messages, answer)
    choices = tuple(blank.argmax(-1).tolist())
    whole = Grounding(_of_answer(seen, answer), _of_answer(blank, answer), choices, FACTOR)
    texts = trace.texts | {token: pair.detokenizer.text_of(token) for token in choices}
    trace = replace(trace, texts=dict(sorted(texts.items())), grounding=whole)
    yield trace
    picture = media[0]
    if len(media) > 1 or not whole.grounded:
        return
    parts = []
    for row, column in product(range(GRID - WINDOW + 1), repeat=2):
        occluded = _of_answer(_probs(pair, (occlude(picture, row, column),), messages, answer), answer)
        parts.append([occluded[position] for position in whole.grounded])
        yield trace
    rows = tuple(zip(*parts, strict=True))
    yield replace(trace, grounding=replace(whole, grid=GRID, window=WINDOW, occluded=rows))


def blank_picture(picture: Image.Image) -> Image.Image:
    """Return a grey picture of the same size."""
    return Image.new("RGB", picture.size, GREY)


def occlude(picture: Image.Image, row: int, column: int) -> Image.Image:
    """Return the picture with the grey square at a tile, counted from 0 at the left above."""
    left, right = (picture.width * at // GRID for at in (column, column + WINDOW))
    top, bottom = (picture.height * at // GRID for at in (row, row + WINDOW))
    occluded = picture.copy()
    occluded.paste(GREY, (left, top, right, bottom))
    return occluded


def _probs(pair: Pair, media: Sequence[Image.Image], messages: Messages, answer: Sequence[int]) -> Tensor:
    """Return the target's probabilities ``[answer, vocab]``."""
    return teacher_forced_log_probs(pair.target, pair.prompt(tuple(media), messages), answer).exp()


def _of_answer(probs: Tensor, answer: Sequence[int]) -> tuple[float, ...]:
    return tuple(round(float(row[token]), DIGITS) for row, token in zip(probs, answer, strict=True))
