"""A target and its draft, loaded and checked to fit each other."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Final, Literal, TypeVar

import torch
import transformers
from transformers import AutoProcessor, LlavaForConditionalGeneration, LlavaProcessor

from specllava.costs import Costs, Experience
from specllava.models.artefact import DraftLlava
from specllava.models.timing import measure_costs
from specllava.trace import NO_DRAFT, Setting

ASSETS = Path(__file__).resolve().parents[2] / "assets"
DTypeName = Literal["auto", "float32", "float64", "bfloat16", "float16"]
DEVICE_AUTO = "auto"
FROM_FILES: Final = {"use_safetensors": True, "local_files_only": True}
Model = TypeVar("Model", bound=LlavaForConditionalGeneration)


@dataclass(frozen=True, slots=True)
class Preset:
    """Where the models of a named pair are.

    Args:
        before: the draft as it was before distillation, if it is there too.
    """

    target: Path
    draft: Path
    before: Path | None = None


def presets() -> dict[str, Preset]:
    """Pairs that ship with the project."""
    toy = ASSETS / "toy"
    return {
        "toy": Preset(toy / "target", toy / "draft", before=toy / "draft-before"),
        "toy-before": Preset(toy / "target", toy / "draft-before"),
    }


@dataclass(frozen=True)
class Bundle:
    """Models and processor of one pair, on one device.

    Args:
        name: shown wherever the pair is named.
        draft: ``None`` where nobody drafts.
    """

    name: str
    target: LlavaForConditionalGeneration
    draft: DraftLlava | None
    processor: LlavaProcessor
    target_name: str
    draft_name: str

    @cached_property
    def device(self) -> torch.device:
        device: torch.device = self.target.device
        return device

    @cached_property
    def eos_token_ids(self) -> frozenset[int]:
        """Ids that end an answer, as the target's own generation settings have them."""
        ids = self.target.generation_config.eos_token_id
        if ids is None:
            return frozenset()
        return frozenset(ids if isinstance(ids, list) else [ids])

    @cached_property
    def context(self) -> int:
        """Tokens that the target can hold."""
        return int(self.target.config.text_config.max_position_embeddings)

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
            dtype=str(self.target.dtype).removeprefix("torch."),
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
    name: str, target: Path, draft: Path | None, device: str = DEVICE_AUTO, dtype: DTypeName = "auto"
) -> Bundle:
    """Load a pair from two directories.

    Args:
        device: ``auto`` takes the GPU if there is one.
        dtype: ``auto`` is float32 on a CPU and bfloat16 elsewhere.

    Raises:
        ValueError: a directory that is none, or models that do not fit each other; one line with the numbers.
    """
    for directory in (target, draft):
        if directory is not None:
            _check_there(directory)
    place = _device(device)
    precision = ("float32" if place.type == "cpu" else "bfloat16") if dtype == "auto" else dtype
    kwargs = {"dtype": getattr(torch, precision), **FROM_FILES}
    processor = AutoProcessor.from_pretrained(target, local_files_only=True)
    big = _ready(LlavaForConditionalGeneration.from_pretrained(target, **kwargs), place)
    alone = Bundle(name, big, None, processor, target.name, NO_DRAFT)
    return alone if draft is None else with_draft(alone, draft)


def with_draft(bundle: Bundle, draft: Path) -> Bundle:
    """The same target, not loaded again, with the draft of a directory.

    Raises:
        ValueError: no model there, or one that does not fit the target.
    """
    _check_there(draft)
    other = AutoProcessor.from_pretrained(draft, local_files_only=True)
    small = _ready(DraftLlava.from_pretrained(draft, dtype=bundle.target.dtype, **FROM_FILES), bundle.device)
    check_fit(bundle.target, small, bundle.processor, other)
    return replace(bundle, draft=small, draft_name=draft.name)


def _check_there(directory: Path) -> None:
    if not (directory / "config.json").is_file():
        raise ValueError(f"no model at {directory}: a directory with config.json is expected")


def _ready(model: Model, place: torch.device) -> Model:
    """On its device, without dropout; on a CPU with its weights laid out for a tree's worth of rows.

    A linear layer's weight ``[out, in]`` stored column by column holds the same numbers. Multiplying 4 to 64 rows by
    it is faster that way (``python -m benchmarks.passes``), and every lane runs on the same weights.
    """
    model = model.to(place).eval()
    if place.type == "cpu":
        for module in model.modules():
            if isinstance(module, torch.nn.Linear):
                module.weight.data = module.weight.data.t().contiguous().t()
    return model


def _device(name: str) -> torch.device:
    if name == DEVICE_AUTO:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        place = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"unknown device {name!r}: use auto, cpu, cuda or cuda:N") from error
    if place.type == "cuda" and (place.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device {name} is not there: {torch.cuda.device_count()} GPUs are available")
    return place


def check_fit(
    target: LlavaForConditionalGeneration, draft: DraftLlava, processor: LlavaProcessor, draft_processor: LlavaProcessor
) -> None:
    """Refuse a draft that cannot speak for this target.

    Raises:
        ValueError: other tokens, another vocabulary size, or a projector for other vision features.
    """
    ours, theirs = processor.tokenizer.get_vocab(), draft_processor.tokenizer.get_vocab()
    if ours != theirs:
        differ = len(set(ours.items()) ^ set(theirs.items()))
        raise ValueError(f"the draft's tokenizer is not the target's: {differ} entries differ")
    sizes = target.config.text_config.vocab_size, draft.config.text_config.vocab_size
    if sizes[0] != sizes[1]:
        raise ValueError(f"draft vocabulary {sizes[1]} does not cover the target's {sizes[0]}")
    wide = target.model.multi_modal_projector.linear_1.in_features
    narrow = draft.model.multi_modal_projector.linear_1.in_features
    if wide != narrow:
        raise ValueError(f"the draft reads vision features of size {narrow}, the target's tower gives {wide}")
    layers = target.config.vision_feature_layer, draft.config.vision_feature_layer
    if layers[0] != layers[1]:
        raise ValueError(f"the draft reads vision layer {layers[1]}, the target layer {layers[0]}")
