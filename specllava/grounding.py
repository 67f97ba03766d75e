"""Measure what each token of an answer owes to the picture: image ablation of the target, whole and part by part."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from itertools import product

from PIL import Image
from torch import Tensor

from specllava.pair import Pair
from specllava.question import Messages
from specllava.scoring import teacher_forced_log_probs
from specllava.trace import DecodeTrace, Grounding

GREY = (128, 128, 128)  # about zero after the vision tower's normalisation
GRID, WINDOW = 8, 3  # tiles a side: of the picture, of the grey square
FACTOR = 10.0  # times less likely with a grey picture
DIGITS = 4


def ground(pair: Pair, media: Sequence[Image.Image], messages: Messages, trace: DecodeTrace) -> Generator[DecodeTrace]:
    """Score an answer with its pictures and with grey ones, and one picture part by part; yield the trace with it.

    The trace comes again, unchanged, after each teacher-forced pass. Several pictures are greyed as a whole
    only. Source: the occlusion maps of Zeiler & Fergus (arXiv 1311.2901, section 4.2).

    Raises:
        ValueError: no picture, or an answer that begins with forced tokens.
    """
    if not media:
        raise ValueError("the question came without a picture, so no word can need it: choose a picture")
    if trace.forced_prefix:
        raise ValueError("the answer begins with forced tokens, which the target did not choose")
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
    left, right = (picture.width * place // GRID for place in (column, column + WINDOW))
    top, bottom = (picture.height * place // GRID for place in (row, row + WINDOW))
    occluded = picture.copy()
    occluded.paste(GREY, (left, top, right, bottom))
    return occluded


def _probs(pair: Pair, media: Sequence[Image.Image], messages: Messages, answer: Sequence[int]) -> Tensor:
    """Return the target's probabilities ``[answer, vocab]``."""
    return teacher_forced_log_probs(pair.target, pair.prompt(tuple(media), messages), answer).exp()


def _of_answer(probs: Tensor, answer: Sequence[int]) -> tuple[float, ...]:
    return tuple(round(float(row[token]), DIGITS) for row, token in zip(probs, answer, strict=True))
