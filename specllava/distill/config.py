"""Options of training: frozen, validated, documented. The only source of their defaults; no torch.

The command line is made from these fields: the docstring under a field is its help text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass as plain_dataclass
from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

from specllava.models.drafts.compressor import CompressorKind


@plain_dataclass(frozen=True, slots=True)
class LoopConfig:
    """Length and learning rate of a training loop.

    Args:
        accumulation: batches of each process per optimiser step.
        ema: decay of a running mean of the weights, which is then the result of a run; 0 keeps none.
        validate_every: steps between two calls of the callback, if there is one; 0 calls it at the start and end only.
        workers: processes that prepare batches.
    """

    steps: int
    learning_rate: float
    warmup: int = 200
    weight_decay: float = 0.05
    clip: float = 1.0
    checkpoint_every: int = 200
    seed: int = 0
    accumulation: int = 1
    ema: float = 0.0
    validate_every: int = 0
    workers: int = 1

    def rate(self, step: int) -> float:
        """Return the share of the learning rate at a step: linear warm-up, then a cosine down to zero."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        progress = (step - self.warmup) / max(1, self.steps - self.warmup)
        return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


@plain_dataclass(frozen=True, slots=True)
class Objective:
    """Training objective of a draft: ``(1 - kl_weight) CE + kl_weight T² KL(target || draft)`` over answer tokens.

    The temperature ``T`` softens both distributions of the KL. ``T²`` keeps its gradients as large as those of the
    cross-entropy (Hinton et al., arXiv 1503.02531, section 2).

    Args:
        chunk: maximum answer positions whose logits are in memory at a time.
    """

    kl_weight: float = 0.5
    temperature: float = 1.0
    chunk: int = 256


@plain_dataclass(frozen=True, slots=True)
class FeatureObjective:
    """Training objective of a draft that reads the target's states: the tokens that its own predict, and the states.

    ``Σ 0.8^s (ce_weight CE_s + feature_weight SmoothL1_s)`` over ``rollout`` steps ``s``, the first on the target's
    states (EAGLE, arXiv 2401.15077, section 4.2; SpecVLM, 2509.11815), each further one on the draft's own (EAGLE-3,
    2503.01840). The CE is soft, against the target's distribution. A draft of format ``eagle3`` has it alone.

    Args:
        noise: width of the uniform noise on the target's states, for a text of 512 tokens; longer ones get less.
        chunk: maximum answer positions whose logits are in memory at a time.
    """

    ce_weight: float = 0.1
    feature_weight: float = 1.0
    rollout: int = 1
    noise: float = 0.0
    chunk: int = 256


@dataclass(frozen=True, slots=True, config=ConfigDict(use_attribute_docstrings=True, extra="forbid"))
class DistillConfig:
    """How a draft learns from its target.

    Raises:
        pydantic.ValidationError: a value outside its bounds; a ``ValueError`` that names field and bound.
    """

    drafter: Literal["vlm", "eagle", "eagle3"] = "vlm"
    """What learns: a small vision-language model, one layer on the target's last states (EagleVLM), or one layer on the
    states of three of the target's (EAGLE-3)."""

    steps: Annotated[int, Field(ge=1)] = 2000
    """Steps of the optimiser with all of the draft learning."""

    projector_steps: Annotated[int, Field(ge=0)] = 0
    """Steps before those in which only the projector learns (LLaVA's first stage)."""

    freeze_projector: bool = False
    """The projector stays as it is; only the language model learns."""

    batch: Annotated[int, Field(ge=1)] = 8
    """Rows that one process reads at a time."""

    accumulation: Annotated[int, Field(ge=1)] = 1
    """Batches of each process that go into one step."""

    learning_rate: Annotated[float, Field(gt=0.0)] = 3e-4
    """At its highest, after the warm-up."""

    projector_learning_rate: Annotated[float, Field(gt=0.0)] = 1e-3
    """The same for the projector's own steps."""

    warmup: Annotated[int, Field(ge=0)] = 100
    """Steps in which the learning rate rises; a cosine takes it down to zero afterwards."""

    weight_decay: Annotated[float, Field(ge=0.0)] = 0.0
    """Of AdamW."""

    clip: Annotated[float, Field(gt=0.0)] = 1.0
    """Norm that gradients are clipped to."""

    kl_weight: Annotated[float, Field(ge=0.0, le=1.0)] = 0.5
    """λ of the loss (1-λ)·CE + λ·T²·KL(target ‖ draft)."""

    temperature: Annotated[float, Field(gt=0.0, le=20.0)] = 1.0
    """T of the loss: both distributions of the KL are softened by it."""

    ce_weight: Annotated[float, Field(ge=0.0, le=100.0)] = 0.1
    """Of the cross-entropy with the target's distribution, for --drafter eagle."""

    feature_weight: Annotated[float, Field(ge=0.0, le=100.0)] = 1.0
    """Of the smooth L1 distance to the target's states, for --drafter eagle."""

    rollout: Annotated[int, Field(ge=1, le=16)] = 1
    """Steps that eagle and eagle3 learn to draft in a row, those after the first on states of their own."""

    noise: Annotated[float, Field(ge=0.0, le=10.0)] = 0.0
    """Width of uniform noise on the states that eagle and eagle3 learn from, at 512 tokens (EAGLE: 0.2)."""

    compressor: CompressorKind | None = None
    """The draft reads fewer entries of each picture: what makes them, or gate, which chooses one of prune, pool, conv,
    resampler and text by the question; for a vlm all but gate."""

    input_norm: bool = True
    """A new eagle draft has a norm in front of its layer, as EagleVLM has and EAGLE has not."""

    draft_heads: Annotated[int, Field(ge=0)] = 0
    """Attention heads of a new eagle or eagle3 draft; 0 for as many as the target has."""

    draft_intermediate: Annotated[int, Field(ge=0)] = 0
    """Intermediate size of its MLP; 0 for the target's. Both make a level of the tree cheaper where reading weights is
    what it costs."""

    draft_vocabulary: Annotated[int, Field(ge=0)] = 0
    """Tokens that a new eagle3 draft can guess: the most frequent of the answers; 0 for all."""

    chunk: Annotated[int, Field(ge=1)] = 256
    """Answer tokens whose logits exist at a time; fewer take less memory."""

    answers: Literal["data", "target"] = "data"
    """Learn on the answers of the data, or on what the target itself answers, greedily (MASSV)."""

    length: Annotated[int, Field(ge=16)] = 2048
    """Tokens of a row at most, picture included; what is longer is cut, and counted."""

    precision: Literal["no", "bf16"] = "no"
    """bf16 computes in bfloat16 while the draft's own weights stay float32."""

    gradient_checkpointing: bool = False
    """Compute the draft's layers twice to hold less of them in memory."""

    ema: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Decay of a running mean of the weights, which is then what is validated and kept; 0 for none."""

    validation_prompts: Annotated[int, Field(ge=1)] = 16
    """Rows held out of training, whose first questions τ, KL and agreement are measured on."""

    validate_every: Annotated[int, Field(ge=0)] = 200
    """Steps between validations; 0 validates before and after only."""

    patience: Annotated[int, Field(ge=0)] = 0
    """Stop after so many validations in a row without a better τ; 0 never does."""

    checkpoint_every: Annotated[int, Field(ge=1)] = 200
    """Steps between checkpoints, from which a run that was killed goes on."""

    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Of the order of the rows and of which are held out."""

    workers: Annotated[int, Field(ge=1)] = 1
    """Processes that prepare batches."""

    tensorboard: bool = False
    """Write loss curves for TensorBoard to OUTPUT/tensorboard."""

    @property
    def objective(self) -> Objective | FeatureObjective:
        if self.drafter == "vlm":
            return Objective(self.kl_weight, self.temperature, self.chunk)
        return FeatureObjective(self.ce_weight, self.feature_weight, self.rollout, self.noise, self.chunk)

    def rows(self, processes: int) -> int:
        """Count the rows that all steps of this many processes read, repeated ones again."""
        return (self.projector_steps + self.steps) * self.accumulation * self.batch * processes

    def loop(self, projector: bool = False) -> LoopConfig:
        """Return the loop options of the main stage, or of the projector's own."""
        steps = self.projector_steps if projector else self.steps
        return LoopConfig(
            steps=steps,
            learning_rate=self.projector_learning_rate if projector else self.learning_rate,
            warmup=min(self.warmup, steps // 2),
            weight_decay=self.weight_decay,
            clip=self.clip,
            checkpoint_every=self.checkpoint_every,
            seed=self.seed,
            accumulation=self.accumulation,
            ema=0.0 if projector else self.ema,
            validate_every=0 if projector else self.validate_every,
            workers=self.workers,
        )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.freeze_projector and self.projector_steps:
            raise ValueError(f"a frozen projector cannot learn for {self.projector_steps} steps: choose one of the two")
        if self.drafter != "vlm" and (self.projector_steps or self.freeze_projector or self.gradient_checkpointing):
            raise ValueError(
                f"the drafter {self.drafter} is one layer without a projector: leave --projector-steps,"
                " --freeze-projector and --gradient-checkpointing out"
            )
        if self.drafter == "eagle" and not self.ce_weight + self.feature_weight:
            raise ValueError("--ce-weight 0 and --feature-weight 0 leave nothing to learn: give one of them a weight")
        return self
