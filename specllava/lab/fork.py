"""An answer with one token forced: what the target would have gone on to say."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace

from torch import Tensor

from specllava.config import DecodingConfig
from specllava.findings.fork import Fork, Option
from specllava.lab.run import run_lane
from specllava.lane import lane_of
from specllava.pair import Pair
from specllava.runtime.prompt import Prompt, with_prefix
from specllava.runtime.scoring import expectations

OPTIONS = 4  # other tokens per place that each model contributes


def open_fork(pair: Pair, prompt: Prompt, config: DecodingConfig) -> Generator[None, None, Fork]:
    """Return the answer, and for each of its tokens what either model would have liked in its place.

    Yields nothing found yet after each decode step and each teacher-forced pass, so that it can be closed there.

    Raises:
        ValueError: the pair has no draft.
    """
    if pair.draft is None:
        raise ValueError(f"the pair {pair.name} has no draft whose guesses could be forced")
    original = yield from run_lane(pair, lane_of(config, prompt), None)
    answer = original.token_ids
    target = expectations(pair.target, prompt, answer).exp()
    yield
    draft = expectations(pair.draft, prompt.draft_prompt or prompt, answer).exp()
    return Fork(original, tuple(_options(pair, *rows) for rows in zip(answer, target, draft, strict=True)))


def take_fork(pair: Pair, prompt: Prompt, config: DecodingConfig, given: Sequence[int]) -> Generator[None, None, Fork]:
    """Return the fork with the answer decoded on from ``given``: the original's beginning and, last, another token.

    Yields as :func:`open_fork` does.

    Raises:
        ValueError: no such token, one after which nothing can follow, or a beginning that is not the original's.
    """
    vocabulary = pair.target.config.text_config.vocab_size
    if not given or not all(0 <= token < vocabulary for token in given):
        raise ValueError(f"tokens to go on from must be ids from 0 to {vocabulary - 1}, at least one")
    if given[-1] in pair.eos_token_ids:
        raise ValueError("this token ends the answer: nothing could follow")
    room = config.max_new_tokens - len(given)
    if room < 1:
        raise ValueError(
            f"the forced token is number {len(given)} of at most {config.max_new_tokens}: nothing could follow,"
            " so allow more new tokens"
        )
    fork = yield from open_fork(pair, prompt, config)
    if tuple(given[:-1]) != fork.original.token_ids[: len(given) - 1]:
        raise ValueError("the answer begins otherwise by now: picture, question or settings were changed; run it again")
    shorter = replace(config, max_new_tokens=room)
    forced = yield from run_lane(pair, lane_of(shorter, with_prefix(prompt, given)), None)
    return replace(fork, forced=forced)


def _options(pair: Pair, said: int, target: Tensor, draft: Tensor) -> tuple[Option, ...]:
    """Other tokens than ``said``; ``target`` and ``draft`` are probabilities ``[vocab]``."""
    likely = {*target.topk(OPTIONS + 1).indices.tolist(), *draft.topk(OPTIONS + 1).indices.tolist()}
    options = [
        Option(token, pair.detokenizer.text_of(token), float(target[token]), float(draft[token]))
        for token in likely - {said} - pair.eos_token_ids - {pair.target.config.image_token_id}
    ]
    return tuple(sorted(options, key=lambda option: -max(option.target, option.draft)))
