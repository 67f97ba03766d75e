"""Settings of a checkpoint's ``generation_config.json`` for one answer, by transformers' own processors in its order.

``generate`` hands each step's logits and the tokens before them to a list of processors. A tree has a step at each of
its nodes: there the tokens before are prompt, answer so far and the path to the node. The draft's logits pass through
the same processors, so tokens that are forbidden to the target are not guessed either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor
from transformers import GenerationConfig, GenerationMixin, PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation import InfNanRemoveLogitsProcessor, LogitsProcessorList, StopStringCriteria

from specllava.config import DecodingConfig, short
from specllava.files import is_out_of_memory
from specllava.spec_decode.rejection_sampler import Reduced, check_finite
from specllava.trace import MAX_SETTINGS
from specllava.tree import DraftTree

# Settings that are applied, with the value that asks for nothing; the last five are of sampling alone.
APPLIED: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "sequence_bias": None,
        "encoder_repetition_penalty": 1.0,
        "repetition_penalty": 1.0,
        "no_repeat_ngram_size": 0,
        "encoder_no_repeat_ngram_size": 0,
        "bad_words_ids": None,
        "min_length": 0,
        "min_new_tokens": 0,
        "forced_bos_token_id": None,
        "forced_eos_token_id": None,
        "remove_invalid_values": False,
        "exponential_decay_length_penalty": None,
        "suppress_tokens": None,
        "begin_suppress_tokens": None,
        "renormalize_logits": False,
        "stop_strings": None,
        "top_h": None,
        "min_p": None,
        "typical_p": 1.0,
        "epsilon_cutoff": 0.0,
        "eta_cutoff": 0.0,
    }
)
OF_SAMPLING: Final = ("top_h", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")
# Settings of an answer that is not decoded one token after the other. What only says how ``generate`` searches faster
# (caches, assistants, prompt lookup) changes no token, and what only beams read has no effect without them.
REFUSED: Final[Mapping[str, Callable[[Any], bool]]] = MappingProxyType(
    {
        "num_beams": lambda value: value != 1,
        "num_beam_groups": lambda value: value != 1,
        "num_return_sequences": lambda value: value != 1,
        "penalty_alpha": lambda value: value != 0,
        "guidance_scale": lambda value: value != 1,
        "cache_implementation": lambda value: value == "quantized",
        "dola_layers": lambda value: True,
        "constraints": lambda value: True,
        "force_words_ids": lambda value: True,
        "watermarking_config": lambda value: True,
        "max_time": lambda value: True,
        "token_healing": bool,
        "is_assistant": bool,
    }
)
COLDEST: Final = 1e-260  # any float32 logit over it is a float64; below it the likeliest token has probability 1


def check_settings(asked: GenerationConfig) -> None:
    """Refuse a checkpoint whose settings cannot be followed.

    Raises:
        ValueError: one of :data:`REFUSED`; one line that names it.
    """
    for name, refuses in REFUSED.items():
        value = getattr(asked, name, None)
        if value is not None and refuses(value):
            raise ValueError(
                f"generation_config.json asks for {name} = {short(value)}, which is not one token after the other:"
                f" remove {name} from that file"
            )


def settings_in_force(asked: GenerationConfig, sampling: bool) -> str | None:
    """Name the settings that an answer follows, with their values; ``None`` if there are none."""
    names = [name for name in APPLIED if sampling or name not in OF_SAMPLING]
    values = {name: getattr(asked, name, None) for name in names}
    force = [f"{name} {short(value)}" for name, value in values.items() if value not in (None, [], APPLIED[name])]
    return ", ".join(force)[:MAX_SETTINGS] or None


def warpers(
    temperature: float,
    top_p: float = 1.0,
    top_k: int = 0,
    asked: GenerationConfig | None = None,
    device: torch.device | None = None,
) -> LogitsProcessorList:
    """Build what turns logits into the distribution to sample from, in the order of transformers' ``generate``.

    Args:
        asked: settings of a checkpoint, whose other cutoffs of sampling are applied too.

    Raises:
        ValueError: a value that means nothing.
    """
    config = GenerationConfig(do_sample=True, **{name: getattr(asked, name, None) for name in OF_SAMPLING})
    config.num_beams, config.top_p, config.top_k = 1, top_p, top_k
    config.temperature = max(float(temperature), COLDEST) if temperature > 0 else temperature
    processors: LogitsProcessorList = GenerationMixin()._get_logits_processor(config, device=device)
    return processors


class LogitsProcessing:
    """Processing of logits by the tokens before them, for the target and its draft; empty if nothing is asked for.

    Args:
        input_ids: of the prompt, ``[1, length]``.
    """

    def __init__(self, processors: LogitsProcessorList, input_ids: Tensor) -> None:
        self._processors, self._ids = processors, input_ids

    def __bool__(self) -> bool:
        return bool(self._processors)

    def __call__(self, logits: Tensor, paths: Sequence[Sequence[int]]) -> Tensor:
        """Process logits ``[rows, vocab]`` as ``generate`` does, in float32.

        Args:
            paths: of each row, the tokens after those that were emitted.

        Raises:
            ValueError: a setting that does not fit the model.
        """
        scores = logits.to(torch.float32, copy=True)
        for length in {len(path) for path in paths}:
            rows = [row for row, path in enumerate(paths) if len(path) == length]
            ends = self._ids.new_tensor([list(paths[row]) for row in rows])
            ids = torch.cat([self._ids.expand(len(rows), -1), ends], dim=1)
            with _naming_source():
                scores[rows] = self._processors(ids, scores[rows])
        return scores

    def of_tree(self, tree: DraftTree, logits: Tensor) -> Tensor:
        """Process the logits after each node of a tree, ``[nodes, vocab]``, whose root was emitted."""
        return self(logits, [[tree.tokens[step] for step in tree.path(node)[1:]] for node in range(len(tree))])

    def of_draft(self, logits: Tensor, paths: Sequence[Sequence[int]]) -> Tensor:
        """Process a draft's logits; what it cannot guess at all stays impossible.

        A score that overflows is the largest number, and so is NaN: ``argmax`` takes both.

        Raises:
            ValueError: logits that are no numbers.
        """
        self.check(logits, "draft")
        most = torch.finfo(torch.float32).max
        scores = self(logits, paths).nan_to_num(nan=most, posinf=most, neginf=-torch.inf)
        return scores.masked_fill(logits == -torch.inf, -torch.inf)

    def check(self, logits: Tensor, whose: str, reduced: Reduced | None = None) -> None:
        """Refuse logits that are no numbers, unless the checkpoint wants those removed.

        Raises:
            ValueError: as :func:`~specllava.spec_decode.rejection_sampler.check_finite`.
        """
        if not any(isinstance(one, InfNanRemoveLogitsProcessor) for one in self._processors):
            check_finite(logits, whose, reduced)

    def append(self, emitted: Sequence[int]) -> None:
        """Append emitted tokens to those that come before whatever is processed next."""
        if self._processors:
            self._ids = torch.cat([self._ids, self._ids.new_tensor([list(emitted)])], dim=1)


class StopStrings:
    """Search for the strings that end an answer, in prompt and answer as ``generate`` does it."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, strings: str | list[str], input_ids: Tensor) -> None:
        self._criteria, self._ids = StopStringCriteria(tokenizer, strings), input_ids.cpu()

    def end(self, tokens: Sequence[int]) -> int | None:
        """Append tokens up to the one that completes a string, and count them; ``None`` if none does."""
        for count, token in enumerate(tokens, start=1):
            self._ids = torch.cat([self._ids, torch.tensor([[token]])], dim=1)
            if bool(self._criteria(self._ids, None)):
                return count
        return None


@dataclass(frozen=True, slots=True)
class AnswerSettings:
    """Settings of one answer.

    Args:
        processing: of logits, by the tokens before them.
        warpers: what makes distributions of them; empty for a greedy answer.
        eos_token_ids: tokens that end the answer.
        stops: what ends it beside these and its limit, if anything does.
    """

    processing: LogitsProcessing
    warpers: LogitsProcessorList
    eos_token_ids: frozenset[int]
    stops: StopStrings | None


def answer_settings(
    target: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    config: DecodingConfig,
    input_ids: Tensor,
    eos_token_ids: frozenset[int],
) -> AnswerSettings:
    """Build the settings of an answer.

    Args:
        input_ids: of the prompt, ``[1, length]``, as ``generate`` is given them.

    Raises:
        ValueError: settings that cannot be followed, or values that mean nothing; one line.
    """
    check_settings(target.generation_config)
    asked = deepcopy(target.generation_config)
    length, device = input_ids.shape[1], input_ids.device
    asked.do_sample, asked.max_length = False, length + config.max_new_tokens
    if asked.min_new_tokens is not None:
        asked.min_length = length + asked.min_new_tokens
    asked._eos_token_tensor = torch.tensor(sorted(eos_token_ids), device=device) if eos_token_ids else None
    with _naming_source():
        processors = target._get_logits_processor(asked, length, input_ids, device=device)
        sampling = LogitsProcessorList()
        if config.temperature > 0:
            sampling = warpers(config.temperature, config.top_p, config.top_k, asked, device)
        stops = StopStrings(tokenizer, asked.stop_strings, input_ids) if asked.stop_strings else None
    return AnswerSettings(LogitsProcessing(processors, input_ids), sampling, eos_token_ids, stops)


@contextmanager
def _naming_source() -> Iterator[None]:
    """Name the file in an error of transformers about a setting.

    Raises:
        ValueError: transformers refuses one.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        if is_out_of_memory(error):
            raise
        words = " ".join(str(error).split())[:300]
        raise ValueError(f"transformers refuses a setting of generation_config.json: {words}") from error
