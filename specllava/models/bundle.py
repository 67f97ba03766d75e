"""A target and its draft, loaded and checked to fit each other."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, get_args

import torch
import transformers
from transformers import LlamaForCausalLM, PretrainedConfig, PreTrainedModel, ProcessorMixin

from specllava.costs import Costs, Experience
from specllava.models.artefact import Sight, sight_of
from specllava.models.checkpoint import Checkpoint, Source
from specllava.models.eos import eos_token_ids
from specllava.models.estimate import check_memory, checked_context, estimate
from specllava.models.family import FAMILIES, Family, family_of
from specllava.models.fit import check_fit
from specllava.models.fused import fuse
from specllava.models.place import DEVICE_AUTO, device_named, home
from specllava.models.quantisation import QuantizationName, quantization_config
from specllava.models.timing import measure_costs
from specllava.trace import NO_DRAFT, Setting

DTypeName = Literal["auto", "float32", "float64", "bfloat16", "float16"]


@dataclass(frozen=True)
class Bundle:
    """Models and processor of one pair, on one device.

    Args:
        name: shown wherever the pair is named.
        draft: ``None`` where nobody drafts.
        draft_processor: of a draft with a tower of its own, which it then reads pictures with.
        quantization: how the target's weights are stored.
        context_limit: tokens of prompt and answer, if fewer than the target can hold.
    """

    name: str
    target: PreTrainedModel
    draft: PreTrainedModel | None
    processor: ProcessorMixin
    target_name: str
    draft_name: str
    draft_processor: ProcessorMixin | None = None
    quantization: QuantizationName = "none"
    context_limit: int | None = None

    @cached_property
    def device(self) -> torch.device:
        return home(self.target)

    @cached_property
    def family(self) -> Family:
        return family_of(self.target.config)

    @cached_property
    def draft_sight(self) -> Sight | None:
        """How the draft comes to know a picture; ``None`` without a draft."""
        return None if self.draft is None else sight_of(self.draft)

    @cached_property
    def eos_token_ids(self) -> frozenset[int]:
        """Ids that end an answer, see :func:`~specllava.models.eos.eos_token_ids`."""
        return eos_token_ids(self.target, self.processor.tokenizer)

    @cached_property
    def context(self) -> int:
        """Tokens of prompt and answer: what the target can hold, or less where that was asked for."""
        return checked_context(self.context_limit, self.target.config)

    @cached_property
    def costs(self) -> Costs:
        """What passes cost here, measured on first use.

        Raises:
            ValueError: the pair has no draft.
        """
        if self.draft is None:
            raise ValueError(f"the pair {self.name} has no draft whose passes could be timed")
        return measure_costs(self.target, self.draft)

    def experience(self, drawn: bool) -> Experience:
        """What decoding has taught since the pair was loaded, apart for greedy answers and ``drawn`` ones.

        Raises:
            ValueError: the pair has no draft.
        """
        if drawn not in self._experiences:
            self._experiences[drawn] = Experience(self.costs)
        return self._experiences[drawn]

    @cached_property
    def _experiences(self) -> dict[bool, Experience]:
        return {}

    @cached_property
    def setting(self) -> Setting:
        return Setting(
            pair=self.name,
            target=self.target_name,
            draft=self.draft_name,
            device=torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else self.device.type,
            dtype=" ".join(
                [
                    str(self.target.dtype).removeprefix("torch."),
                    *([] if self.quantization == "none" else [self.quantization]),
                ]
            ),
            threads=torch.get_num_threads(),
            versions={
                "python": platform.python_version(),
                "torch": torch.__version__,
                "transformers": transformers.__version__,
            },
        )

    def decode(self, ids: Sequence[int]) -> str:
        """The answer that token ids spell, without special tokens."""
        text: str = self.processor.tokenizer.decode(list(ids), skip_special_tokens=True)
        return text.strip()

    def text_of(self, token: int) -> str:
        """What one token adds to a text, its leading space included.

        Decoded behind another token, because some tokenizers drop the space of a text's first one.
        """
        tokenizer = self.processor.tokenizer
        anchor = tokenizer.encode("a", add_special_tokens=False)
        before: str = tokenizer.decode(anchor)
        whole: str = tokenizer.decode([*anchor, token])
        return whole[len(before) :]


def load_bundle(
    name: str,
    target: Source,
    draft: Source | None,
    device: str = DEVICE_AUTO,
    dtype: DTypeName = "auto",
    device_map: bool = False,
    quantization: QuantizationName = "none",
    context: int | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> Bundle:
    """Load a pair, each model from a directory or by an id of the hub.

    Args:
        device: ``auto`` takes the GPU if there is one.
        dtype: ``auto`` is float32 on a CPU and bfloat16 elsewhere.
        device_map: let accelerate spread the target over all GPUs and the machine's memory.
        quantization: store the target's weights in fewer bits.
        context: tokens of prompt and answer that will do; as many as the target can hold without it.
        tell: is given a line on what memory the pair needs, before anything is loaded.

    Raises:
        ValueError: no model there, more memory needed than there is, or models that do not fit each other; one line
            with the numbers.
    """
    if dtype not in get_args(DTypeName):
        raise ValueError(f"unknown dtype {dtype!r}: choose one of {', '.join(get_args(DTypeName))}")
    checkpoint = Checkpoint.at(target)
    guessing = None if draft is None else Checkpoint.at(draft)
    place = device_named(device)
    precision = getattr(torch, ("float32" if place.type == "cpu" else "bfloat16") if dtype == "auto" else dtype)
    config, storing = checkpoint.config(), quantization_config(quantization, place)
    build, small = family_of(config).target, None
    if guessing is not None:
        small_config = guessing.config()
        small = (draft_class(guessing.name, small_config), small_config)
    longest = checked_context(context, config)
    tell(check_memory(name, estimate((build, config), small, precision, quantization, longest), place, device_map))
    processor = checkpoint.processor()
    where = {} if place.type == "cpu" and not device_map else {"device_map": "auto" if device_map else {"": place}}
    stored = {} if storing is None else {"quantization_config": storing}
    big = _ready(checkpoint.load(build, dtype=precision, **where, **stored), place)
    alone = Bundle(
        name, big, None, processor, checkpoint.name, NO_DRAFT, quantization=quantization, context_limit=context
    )
    try:
        _ = alone.eos_token_ids  # refused here, and not in the first answer
    except ValueError as error:
        raise ValueError(f"{checkpoint.place}: {error}") from error
    return alone if guessing is None else _paired(alone, guessing)


def with_draft(bundle: Bundle, draft: Source) -> Bundle:
    """The same target, not loaded again, with the draft of a directory or of the hub.

    Raises:
        ValueError: no model there, or one that does not fit the target.
    """
    return _paired(bundle, Checkpoint.at(draft))


def _paired(bundle: Bundle, checkpoint: Checkpoint) -> Bundle:
    config = checkpoint.config()
    build = draft_class(checkpoint.name, config)
    blind = build is LlamaForCausalLM
    reads = checkpoint.tokenizer() if blind else checkpoint.processor()
    place = bundle.device
    where = {} if place.type == "cpu" else {"device_map": {"": place}}
    small = checkpoint.load(build, dtype=bundle.target.dtype, **where)
    check_fit(bundle.target, small, bundle.processor, reads)
    small = fuse(_ready(small, place))
    own = reads if sight_of(small) == "own" else None
    return replace(bundle, draft=small, draft_name=checkpoint.name, draft_processor=own)


def draft_class(name: str, config: PretrainedConfig) -> type[PreTrainedModel]:
    """What a draft is: a vision-language model with or without a tower, or a plain Llama, which sees nothing.

    Raises:
        ValueError: something else.
    """
    for family in FAMILIES:
        if config.model_type == family.name:
            towerless = family.draft.__name__ in (config.architectures or ())
            build: type[PreTrainedModel] = family.draft if towerless else family.target
            return build
    if config.model_type == "llama":
        llama: type[PreTrainedModel] = LlamaForCausalLM
        return llama
    known = ", ".join(family.name for family in FAMILIES)
    raise ValueError(f"{name} is a {config.model_type}, which cannot draft: a draft is a {known} or llama")


def _ready(model: PreTrainedModel, place: torch.device) -> PreTrainedModel:
    """Without dropout; on a CPU with its weights laid out for a tree's worth of rows.

    A linear layer's weight ``[out, in]`` stored column by column holds the same numbers. Multiplying 4 to 64 rows by
    it is faster that way (``python -m benchmarks.passes``), and every lane runs on the same weights. Quantised weights
    have a layout of their own, and those that accelerate moves are moved as they are stored.
    """
    model = model.eval()
    if place.type == "cpu" and not getattr(model, "hf_device_map", None):
        for module in model.modules():
            if isinstance(module, torch.nn.Linear) and type(module.weight.data) is torch.Tensor:
                module.weight.data = module.weight.data.t().contiguous().t()
    return model
