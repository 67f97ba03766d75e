"""How fast are ``transformers``' own ``generate`` and its assistants on the same models, inputs and stop rule?

    python -m benchmarks.transformers_lanes --prompts 40 --rounds 2

The lanes, rounds and options are those of ``python -m specllava bench``, with lanes of greedy ``generate`` among them.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Final

import torch
from rich.console import Console
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel
from transformers.generation.streamers import BaseStreamer
from transformers.utils import logging

from benchmarks.shared.command import run_command
from specllava.bench import REFERENCE, Runner, TimedRun, runners_of
from specllava.cli.commands import Bench
from specllava.cli.options import typed_options
from specllava.config import DecodingConfig
from specllava.metrics import RunTotals
from specllava.models.drafts.draft_vlm import SlotDraft
from specllava.models.drafts.eagle import FeatureDraft
from specllava.models.families import family_of
from specllava.models.language_model import now
from specllava.models.presets import Tree
from specllava.models.tokens import slot_ids
from specllava.pair import Pair
from specllava.prompt import Prompt, compressor_of, merge_features, to_device
from specllava.spec_decode.loop import clip

TRANSFORMERS: Final = "transformers"
COMPILED: Final = "transformers-compiled"
LOOKUP_TOKENS: Final = 10  # that transformers' prompt lookup guesses, as in its own documentation
Arguments = Callable[[Pair, Prompt], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class TransformersLane:
    """One way to call ``generate``.

    Args:
        arguments: in addition to the prompt's.
        why_not: why a pair cannot have the lane, ``None`` if it can.
        needs_draft: it drafts with the pair's draft.
    """

    arguments: Arguments
    why_not: Callable[[Pair], str | None] = lambda pair: None
    needs_draft: bool = False


def _assistant(pair: Pair) -> PreTrainedModel:
    assert pair.draft is not None
    return pair.draft


def _reads_states(pair: Pair) -> str | None:
    return "transformers drafts with no draft that reads states" if isinstance(pair.draft, FeatureDraft) else None


def _no_cuda(pair: Pair) -> str | None:
    return None if pair.device.type == "cuda" else f"a static cache is compiled on CUDA only, and this is {pair.device}"


def _lookup(pair: Pair, prompt: Prompt) -> dict[str, Any]:
    """Return arguments of prompt lookup; guesses end in front of a picture's slots, whose copies it fails on."""
    suppressed = pair.target.generation_config.suppress_tokens or []
    slots = slot_ids(pair.target.config)
    return {"prompt_lookup_num_tokens": LOOKUP_TOKENS, "suppress_tokens": [*suppressed, *slots]}


def why_blind(pair: Pair) -> str | None:
    """Return why the assistant of a pair cannot be made to see, ``None`` if it can."""
    draft = pair.draft
    alike = pair.draft_vision == "shared" and not isinstance(draft, SlotDraft)
    if draft is None or (alike and compressor_of(draft) is None):
        return None
    return f"the draft {pair.draft_name} has other image slots than the target's, which assisted generation gives it"


class SightedAssistant:
    """A draft model as assistant, whose KV cache holds the prompt with the picture before it first guesses.

    ``transformers`` 5.23 hands an assistant the target's encoded pictures and never merges them, so that it reads bare
    image slots. This one reads the prompt itself, up to its last token, when it is first asked; everything else is the
    draft's own.
    """

    def __init__(self, draft: PreTrainedModel, prompt: Prompt) -> None:
        self._draft, self._prompt = draft, prompt

    def __getattr__(self, name: str) -> Any:
        return getattr(self._draft, name)

    @torch.inference_mode()
    def generate(self, **arguments: Any) -> Any:
        """Guess as the draft does, after a prompt that it has seen."""
        if arguments.get("past_key_values") is None:
            arguments["past_key_values"] = self._read()
        arguments.pop("mm_encoder_outputs", None)
        return self._draft.generate(**arguments)

    def _read(self) -> DynamicCache:
        """Return the KV cache of the prompt up to its last token."""
        cache = DynamicCache(config=self._draft.config.get_text_config())
        embeds = merge_features(self._draft, self._prompt.input_ids, self._prompt.features)[:, :-1]
        self._draft.get_decoder()(inputs_embeds=embeds, past_key_values=cache, use_cache=True)
        return cache


TRANSFORMERS_LANES: Final[dict[str, TransformersLane]] = {
    TRANSFORMERS: TransformersLane(lambda pair, prompt: {}),
    "transformers-assisted": TransformersLane(
        lambda pair, prompt: {"assistant_model": _assistant(pair)}, _reads_states, needs_draft=True
    ),
    "transformers-assisted-sighted": TransformersLane(
        lambda pair, prompt: {"assistant_model": SightedAssistant(_assistant(pair), prompt)},
        why_blind,
        needs_draft=True,
    ),
    "transformers-prompt-lookup": TransformersLane(_lookup),
    COMPILED: TransformersLane(lambda pair, prompt: {"cache_implementation": "static"}, _no_cuda),
}


def transformers_lane(pair: Pair, name: str, config: DecodingConfig) -> Callable[[Prompt], TimedRun]:
    """Return a runner of a lane of ``transformers``."""
    return partial(run_transformers, pair, TRANSFORMERS_LANES[name], config)


@torch.inference_mode()
def run_transformers(pair: Pair, lane: TransformersLane, config: DecodingConfig, prompt: Prompt) -> TimedRun:
    """Run greedy ``generate`` on a prompt. What comes at once is a step; the first of them is the prompt's reading.

    Tokens after the end of the answer are dropped, and the time that they took is not: the library computed them.

    Raises:
        ValueError: whatever ``generate`` raised.
    """
    target, draft = pair.target, pair.draft
    device, ends = pair.device, sorted(pair.eos_token_ids)
    ids = prompt.input_ids
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "do_sample": False}
    inputs |= {"max_new_tokens": config.max_new_tokens, "eos_token_id": ends or None, "use_cache": True}
    if target.generation_config.stop_strings:
        inputs["tokenizer"] = pair.processor.tokenizer
    started = now(device)
    if prompt.image_inputs:
        inputs |= to_device(prompt.image_inputs, target, ids.device)
        inputs |= family_of(target.config).prompt_arguments(target.config, ids)
    with ExitStack() as watching:
        target_widths = watching.enter_context(_widths(target))
        draft_widths = watching.enter_context(_widths(draft)) if draft is not None and lane.needs_draft else []
        tower = watching.enter_context(_tower_seconds(target, device))
        arrivals = _Arrivals(device, target_widths, draft_widths)
        watching.enter_context(_quiet())
        try:
            target.generate(**inputs, **lane.arguments(pair, prompt), streamer=arrivals)
        except Exception as error:
            raise ValueError(f"{type(error).__name__}: {' '.join(str(error).split())[:200]}") from error
        wall_seconds = now(device) - started
    return arrivals.run(started, wall_seconds, sum(tower), frozenset(ends), config.max_new_tokens)


class _Arrivals(BaseStreamer):
    """Streamer that records when tokens arrive, and which passes were made until then.

    Args:
        target_widths, draft_widths: tokens of each pass, as they are made.
    """

    def __init__(self, device: torch.device, target_widths: list[int], draft_widths: list[int]) -> None:
        self._device, self._widths = device, (target_widths, draft_widths)
        self._times: list[float] = []
        self._tokens: list[list[int]] = []  # the prompt's, then those of each step
        self._passes: list[tuple[tuple[int, ...], tuple[int, ...]]] = []  # of target and draft

    def put(self, value: Tensor) -> None:
        self._times.append(now(self._device))
        self._tokens.append(value.flatten().tolist())
        self._passes.append((tuple(self._widths[0]), tuple(self._widths[1])))
        for widths in self._widths:
            widths.clear()

    def end(self) -> None:
        """Nothing is left to print."""

    def run(
        self, started: float, wall_seconds: float, vision: float, ends: frozenset[int], limit: int
    ) -> TimedRun:
        """Make the run of what arrived."""
        emitted_ids = [token for tokens in self._tokens[1:] for token in tokens]
        kept = clip(emitted_ids, limit, ends)
        first = min(len(self._tokens[1]), len(kept))
        left, accepted, steps = len(kept) - first, 0, self._tokens[2:]
        for tokens in steps:
            emitted = min(len(tokens), left)
            left -= emitted
            accepted += min(len(tokens) - 1, emitted)
        widths, seconds = self._passes[2:], self._times[-1] - self._times[1]
        totals = RunTotals(
            1, len(kept), len(steps), sum(sum(target) - 1 for target, _ in widths), accepted, seconds,
            max(vision, self._times[1] - started), verify_seconds=seconds, vision_seconds=vision,
            wall_seconds=wall_seconds, first_tokens=first, draft_passes=sum(len(draft) for _, draft in widths),
        )  # fmt: skip
        return TimedRun(kept, totals)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what ``generate`` warns of, such as arguments that its own assisted generation passes, from the terminal."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(before)


@contextmanager
def _widths(model: PreTrainedModel) -> Iterator[list[int]]:
    """Append the number of tokens of every pass of a model's decoder to the list that is yielded."""
    widths: list[int] = []

    def note(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        inputs = named.get("inputs_embeds")
        if inputs is None:
            inputs = named["input_ids"] if "input_ids" in named else given[0]
        widths.append(inputs.shape[1])

    hook = model.get_decoder().register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield widths
    finally:
        hook.remove()


@contextmanager
def _tower_seconds(model: PreTrainedModel, device: torch.device) -> Iterator[list[float]]:
    """Append the seconds of every pass of a model's vision tower to the list that is yielded."""
    seconds, begins = list[float](), list[float]()
    towers = (getattr(model.model, name, None) for name in ("vision_tower", "vision_model", "visual"))
    tower = next((each for each in towers if each is not None), None)
    if tower is None:
        yield seconds
        return
    hooks = [
        tower.register_forward_pre_hook(lambda _, given: begins.append(now(device))),
        tower.register_forward_hook(lambda _, given, output: seconds.append(now(device) - begins[-1])),
    ]
    try:
        yield seconds
    finally:
        for hook in hooks:
            hook.remove()


def runners_with_transformers(
    pair: Pair, config: DecodingConfig, only: Sequence[str] = (), tree: Tree | None = None
) -> dict[str, Runner]:
    """Return the runners of :func:`specllava.bench.runners_of`, and those of ``transformers``.

    Raises:
        ValueError: as there.
    """
    own = [name for name in only if name not in TRANSFORMERS_LANES]
    runners = runners_of(pair, config, own or ([REFERENCE] if only else ()), tree)
    missing = {name: _why_not(pair, config, name) for name in TRANSFORMERS_LANES if name in only or not only}
    if refused := [name for name in only if missing.get(name)]:
        raise ValueError(f"the lane {refused[0]} cannot be run: {missing[refused[0]]}")
    return runners | {name: transformers_lane(pair, name, config) for name, why in missing.items() if why is None}


def _why_not(pair: Pair, config: DecodingConfig, name: str) -> str | None:
    """Return why a lane cannot be had here, ``None`` if it can."""
    if TRANSFORMERS_LANES[name].needs_draft and pair.draft is None:
        return f"the pair {pair.name} has no draft: {pair.draft_advice}"
    if config.temperature > 0:
        return "transformers draws from another random stream: set --temperature 0"
    return TRANSFORMERS_LANES[name].why_not(pair)


@dataclass(frozen=True)
class TransformersBench(Bench):
    """Time this project's lanes and those of transformers on the same prompts."""

    program: ClassVar[str] = "benchmarks.transformers_lanes"
    alone: ClassVar[tuple[str, ...]] = (REFERENCE, TRANSFORMERS, COMPILED)

    def runners(self, pair: Pair) -> dict[str, Runner]:
        return runners_with_transformers(pair, self.config(pair), self.lanes, self.tree)


def main(options: TransformersBench) -> None:
    """Time this project's lanes and those of transformers on the same prompts."""
    replace(options, typed=typed_options(sys.argv[1:])).run(Console())


if __name__ == "__main__":
    run_command(main, TransformersBench)
