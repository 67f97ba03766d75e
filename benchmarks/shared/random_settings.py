"""Random settings of a ``generation_config.json``, each so strong that it often changes an answer."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

Draw = Callable[[random.Random, int, int], Any]  # of a source, the vocabulary's size, and the longest answer


def _ids(rng: random.Random, vocabulary: int, most: int) -> list[int]:
    return rng.sample(range(vocabulary), rng.randint(1, most))


def _sequences(rng: random.Random, vocabulary: int) -> list[list[int]]:
    """Draw token sequences of lengths 1 to 3, the short ones more often."""
    return [rng.choices(range(vocabulary), k=rng.choice((1, 1, 1, 2, 3))) for _ in range(rng.randint(1, vocabulary))]


GREEDY: Final[dict[str, Draw]] = {
    "sequence_bias": lambda rng, size, most: [[one, rng.uniform(-9, 9)] for one in _sequences(rng, size)],
    "encoder_repetition_penalty": lambda rng, size, most: rng.uniform(0.5, 2.0),
    "repetition_penalty": lambda rng, size, most: rng.uniform(0.7, 2.0),
    "no_repeat_ngram_size": lambda rng, size, most: rng.randint(1, 3),
    "encoder_no_repeat_ngram_size": lambda rng, size, most: rng.randint(1, 2),
    "bad_words_ids": lambda rng, size, most: _sequences(rng, size),
    "min_length": lambda rng, size, most: rng.randint(1, 4 * most),
    "min_new_tokens": lambda rng, size, most: rng.randint(1, most + 1),
    "forced_bos_token_id": lambda rng, size, most: 0,
    "forced_eos_token_id": lambda rng, size, most: 0,
    "remove_invalid_values": lambda rng, size, most: True,
    "exponential_decay_length_penalty": lambda rng, size, most: [rng.randint(0, most), rng.uniform(1.01, 2.0)],
    "suppress_tokens": lambda rng, size, most: _ids(rng, size, size // 2),
    "begin_suppress_tokens": lambda rng, size, most: _ids(rng, size, size // 2),
    "renormalize_logits": lambda rng, size, most: True,
    "stop_strings": lambda rng, size, most: rng.sample("aeinorst dlu", rng.randint(1, 3)),
}
SAMPLED: Final[dict[str, Draw]] = {
    "top_h": lambda rng, size, most: rng.uniform(0.2, 0.9),
    "min_p": lambda rng, size, most: rng.uniform(0.02, 0.5),
    "typical_p": lambda rng, size, most: rng.uniform(0.3, 0.95),
    "epsilon_cutoff": lambda rng, size, most: rng.uniform(0.001, 0.2),
    "eta_cutoff": lambda rng, size, most: rng.uniform(0.001, 0.2),
}


def random_settings(rng: random.Random, vocabulary: int, longest: int, sampled: bool) -> dict[str, Any]:
    """Draw one to four settings, and tokens that end answers.

    Args:
        longest: tokens of the longest answer.
        sampled: cutoffs of sampling may be among them.
    """
    offered = {**GREEDY, **SAMPLED} if sampled else GREEDY
    names = rng.sample(sorted(offered), rng.randint(1, 4))
    drawn = {name: offered[name](rng, vocabulary, longest) for name in names}
    free = [one for one in range(vocabulary) if one not in drawn.get("suppress_tokens", ())]
    for name in drawn.keys() & {"forced_bos_token_id", "forced_eos_token_id"}:
        drawn[name] = rng.choice(free)  # transformers refuses what forces and suppresses
    return {"eos_token_id": rng.sample(range(vocabulary), vocabulary // 40)} | drawn
