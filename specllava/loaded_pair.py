"""The models of a pair in memory, and what follows from them."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from functools import cached_property

import torch
from transformers import PreTrainedModel, ProcessorMixin

from specllava.core.growth.cost_model import CostModel, Costs
from specllava.core.trace import RunInfo
from specllava.models.checkpoints.language_model import input_device
from specllava.models.checkpoints.tokens import Detokenizer, eos_token_ids
from specllava.models.drafts.draft_classes import VisionSource, vision_source
from specllava.models.families.family import family_of
from specllava.models.families.interface import Family
from specllava.models.loading.load_options import PassesName, QuantizationName
from specllava.models.loading.memory_estimate import checked_context
from specllava.runtime.engines import Engines, engines_for
from specllava.runtime.prompt_builder import PromptBuilder
from specllava.runtime.run_info import run_info
from specllava.runtime.timing import CostMeasurement, costs_key, costs_of_before, kept_costs


@dataclass(frozen=True)
class LoadedPair:
    """A target and a draft that guesses for it, with the processors that they read with.

    Args:
        name: display name of the pair.
        draft: ``None`` where there is no draft model.
        draft_processor: of a draft with a tower of its own, which it then reads pictures with.
        quantization: how the target's weights are stored.
        context_limit: tokens of prompt and answer, if fewer than the target can hold.
        costs: of passes on this machine; ``None``: measured when they are first needed.
        passes: how they run, see :func:`~specllava.runtime.engines.engines_for`.
        exact: target-only decodes by the very kernels that verify trees; others round differently in half precision.
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
    costs: Costs | None = None
    passes: PassesName = "auto"
    exact: bool = False

    @cached_property
    def device(self) -> torch.device:
        return input_device(self.target)

    @cached_property
    def engines(self) -> Engines:
        """The engines of its models, which outlive the answers that they serve.

        Raises:
            ValueError: passes that this device cannot run.
        """
        return engines_for(self.device, self.passes, self.exact)

    @cached_property
    def family(self) -> Family:
        return family_of(self.target.config)

    @cached_property
    def draft_vision(self) -> VisionSource | None:
        """Source of the draft's picture features; ``None`` without a draft."""
        return None if self.draft is None else vision_source(self.draft)

    @cached_property
    def eos_token_ids(self) -> frozenset[int]:
        """Ids that end an answer."""
        return eos_token_ids(self.target, self.processor.tokenizer)

    @cached_property
    def context(self) -> int:
        """Tokens of prompt and answer: as many as the target can hold, or ``context_limit`` if that is less."""
        return checked_context(self.context_limit, self.target.config)

    @cached_property
    def measured_costs(self) -> Costs:
        """Costs of passes on this machine, measured on first use unless they were given.

        Raises:
            ValueError: the pair has no draft.
        """
        return self.costs or self._measurement.finish()

    def measuring(self) -> Generator[None]:
        """Measure what :attr:`expected_costs` lack, a pass at a time. Who stops leaves the rest to the next caller."""
        known = self.costs is not None or not {"measured_costs", "expected_costs"}.isdisjoint(vars(self))
        if known or self.draft is None or costs_of_before(self._costs_key) is not None:
            return
        while self._measurement.advance():
            yield

    @cached_property
    def _measurement(self) -> CostMeasurement:
        return CostMeasurement(self.target, self._timed_draft, self.engines)

    @cached_property
    def _costs_key(self) -> str:
        return costs_key(self.target, self._timed_draft, self.quantization, self.passes, self.exact)

    @cached_property
    def expected_costs(self) -> Costs:
        """Costs that a cost model begins with and passes are priced at: given, measured by now, or here before.

        Raises:
            ValueError: the pair has no draft.
        """
        if self.costs is not None or "measured_costs" in vars(self):
            return self.measured_costs
        return kept_costs(self._costs_key, lambda: self.measured_costs)

    @property
    def _timed_draft(self) -> PreTrainedModel:
        if self.draft is None:
            raise ValueError(f"the pair {self.name} has no draft whose passes could be timed")
        return self.draft

    def cost_model(self, sampling: bool) -> CostModel:
        """Return the cost model, learnt since the pair was loaded and separate for greedy and for sampled answers.

        Raises:
            ValueError: the pair has no draft.
        """
        return self._cost_models[sampling]

    @cached_property
    def _cost_models(self) -> tuple[CostModel, CostModel]:
        return CostModel(self.expected_costs), CostModel(self.expected_costs)

    @cached_property
    def info(self) -> RunInfo:
        """Models, device, precision and versions."""
        names = self.target_name, self.draft_name
        return run_info(self.name, self.target, *names, self.quantization, self.draft_vision)

    @cached_property
    def detokenizer(self) -> Detokenizer:
        return Detokenizer(self.processor.tokenizer)

    @cached_property
    def prompt_builder(self) -> PromptBuilder:
        drafting = (self.draft, self.draft_processor, self.draft_vision)
        return PromptBuilder(self.target_name, self.processor, self.target, *drafting, self.context)
