"""Decode an answer on from a forced token."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace

from torch import Tensor

from specllava.core.config import DecodingConfig
from specllava.findings.forced_token import ForcedToken, Option
from specllava.lab.run import run_lane
from specllava.lane import lane_of
from specllava.models.checkpoints.tokens import slot_ids
from specllava.pair import Pair
from specllava.runtime.prompt import Prompt, with_prefix
from specllava.runtime.scoring import draft_log_probs, teacher_forced_log_probs

OPTIONS = 4  # alternatives per position that each model contributes


def token_options(pair: Pair, prompt: Prompt, config: DecodingConfig) -> Generator[None, None, ForcedToken]:
    """Return the answer, and for each of its tokens both models' likeliest alternatives.

    Yields ``None`` after each decode step and each teacher-forced pass, so that it can be closed there.

    Raises:
        ValueError: the pair has no draft.
    """
    if pair.draft is None:
        raise ValueError(f"the pair {pair.name} has no draft whose guesses could be forced")
    original = yield from run_lane(pair, lane_of(config, prompt), None)
    answer = original.token_ids
    target = teacher_forced_log_probs(pair.target, prompt, answer).exp()
    yield
    draft = draft_log_probs(pair.target, pair.draft, prompt, answer).exp()
    return ForcedToken(original, tuple(_options(pair, *rows) for rows in zip(answer, target, draft, strict=True)))


def force_token(
    pair: Pair, prompt: Prompt, config: DecodingConfig, tokens: Sequence[int]
) -> Generator[None, None, ForcedToken]:
    """Return the answer decoded on from ``tokens``: the original's beginning and, last, another token.

    Yields as :func:`token_options` does.

    Raises:
        ValueError: no such token, one after which nothing can follow, or a beginning that is not the original's.
    """
    vocabulary = pair.target.config.get_text_config().vocab_size
    if not tokens or not all(0 <= token < vocabulary for token in tokens):
        raise ValueError(f"tokens to go on from must be ids from 0 to {vocabulary - 1}, at least one")
    if tokens[-1] in pair.eos_token_ids:
        raise ValueError("this token ends the answer: nothing could follow")
    room = config.max_new_tokens - len(tokens)
    if room < 1:
        raise ValueError(
            f"the forced token is number {len(tokens)} of at most {config.max_new_tokens}: nothing could follow,"
            " so allow more new tokens"
        )
    opened = yield from token_options(pair, prompt, config)
    if tuple(tokens[:-1]) != opened.original.token_ids[: len(tokens) - 1]:
        raise ValueError("the answer begins otherwise by now: picture, question or settings were changed; run it again")
    shorter = replace(config, max_new_tokens=room)
    forced = yield from run_lane(pair, lane_of(shorter, with_prefix(prompt, tokens)), None)
    return replace(opened, forced=forced)


def _options(pair: Pair, emitted: int, target: Tensor, draft: Tensor) -> tuple[Option, ...]:
    """Return alternatives to ``emitted``; ``target`` and ``draft`` are probabilities ``[vocab]``."""
    likely = {*target.topk(OPTIONS + 1).indices.tolist(), *draft.topk(OPTIONS + 1).indices.tolist()}
    options = [
        Option(token, pair.detokenizer.text_of(token), float(target[token]), float(draft[token]))
        for token in likely - {emitted} - pair.eos_token_ids - set(slot_ids(pair.target.config))
    ]
    return tuple(sorted(options, key=lambda option: -max(option.target, option.draft)))
