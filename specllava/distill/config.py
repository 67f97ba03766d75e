"""A distillation: the only source of its options' defaults, its inputs and output, and its report. No torch.

The command line is made from these fields: the docstring under a field is its help text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass as plain_dataclass
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass

from specllava.config import DecodingConfig, one_line
from specllava.models.options import CompressorKind, DTypeName


@plain_dataclass(frozen=True, slots=True)
class LoopConfig:
    """Options of a training loop."""

    steps: Annotated[int, Field(ge=1)]
    """Steps of the optimiser."""

    learning_rate: Annotated[float, Field(gt=0.0)]
    """At its highest, after the warm-up."""

    warmup: Annotated[int, Field(ge=0)] = 200
    """Steps in which the learning rate rises, at most half of all; a cosine takes it down to zero afterwards."""

    weight_decay: Annotated[float, Field(ge=0.0)] = 0.05
    """Of AdamW."""

    clip: Annotated[float, Field(gt=0.0)] = 1.0
    """Norm that gradients are clipped to."""

    checkpoint_every: Annotated[int, Field(ge=1)] = 200
    """Steps between checkpoints, from which a killed run resumes."""

    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Of the order of the rows and of which are held out."""

    accumulation: Annotated[int, Field(ge=1)] = 1
    """Batches of each process that go into one step."""

    validate_every: Annotated[int, Field(ge=0)] = 0
    """Steps between validations; 0 validates before and after only."""

    workers: Annotated[int, Field(ge=1)] = 1
    """Processes that prepare batches."""

    def rate(self, step: int) -> float:
        """Return the share of the learning rate at a step: linear warm-up, then a cosine down to zero."""
        warmup = min(self.warmup, self.steps // 2)
        if step < warmup:
            return (step + 1) / warmup
        progress = (step - warmup) / max(1, self.steps - warmup)
        return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


@plain_dataclass(frozen=True, slots=True)
class Objective:
    """Training objective of a draft: ``(1 - kl_weight) CE + kl_weight T² KL(target || draft)`` over answer tokens.

    The temperature ``T`` softens both distributions of the KL. ``T²`` keeps its gradients as large as those of the
    cross-entropy (Hinton et al., arXiv 1503.02531, section 2). Logits of ``chunk`` answer tokens exist at a time.
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
    """

    ce_weight: float = 0.1
    feature_weight: float = 1.0
    rollout: int = 1
    chunk: int = 256


@dataclass(frozen=True, slots=True, config=ConfigDict(use_attribute_docstrings=True, extra="forbid"))
class DistillConfig(LoopConfig):
    """How a draft learns from its target: the options of its loop, what learns, from what data, and how it is checked.

    Raises:
        pydantic.ValidationError: a value outside its bounds; a ``ValueError`` that names field and bound.
    """

    steps: Annotated[int, Field(ge=1)] = 2000
    learning_rate: Annotated[float, Field(gt=0.0)] = 3e-4
    warmup: Annotated[int, Field(ge=0)] = 100
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.0
    validate_every: Annotated[int, Field(ge=0)] = 200

    drafter: Literal["vlm", "eagle", "eagle3"] = "vlm"
    """What learns: a small vision-language model, one layer on the target's last states (EagleVLM), or one layer on the
    states of three of the target's (EAGLE-3)."""

    projector_only: bool = False
    """Only the projector of a vlm learns (LLaVA's first stage): distil OUTPUT/last with all of its weights next."""

    batch: Annotated[int, Field(ge=1)] = 8
    """Rows that one process reads at a time."""

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

    compressor: CompressorKind | None = None
    """The draft reads fewer entries of each picture: what makes them, or gate, which chooses one of prune, pool, conv,
    resampler and text by the question; for a vlm all but gate."""

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

    validation_prompts: Annotated[int, Field(ge=1)] = 16
    """Rows held out of training, whose first questions τ, KL and agreement are measured on."""

    @property
    def objective(self) -> Objective | FeatureObjective:
        if self.drafter == "vlm":
            return Objective(self.kl_weight, self.temperature, self.chunk)
        return FeatureObjective(self.ce_weight, self.feature_weight, self.rollout, self.chunk)

    @model_validator(mode="after")
    def _check_drafter(self) -> Self:
        if self.drafter != "vlm" and self.projector_only:
            raise ValueError(f"the drafter {self.drafter} is one layer without a projector: leave --projector-only out")
        if self.drafter == "eagle" and not self.ce_weight + self.feature_weight:
            raise ValueError("--ce-weight 0 and --feature-weight 0 leave nothing to learn: give one of them a weight")
        return self


@plain_dataclass(frozen=True, kw_only=True)
class Job:
    """One distillation, from files to files."""

    target: str
    """The target, of any family: an id of the hub, or a directory."""

    data: Path
    """Rows in LLaVA's instruction format: a JSON list, or a .jsonl."""

    images: Path
    """Directory in which the rows' image paths begin."""

    output: Path
    """Directory of the run: draft (the best by τ), last, report.json and curve.html appear in it."""

    draft: Path | None = None
    """Directory of the draft to begin with. --drafter eagle and eagle3 make a new one without it."""

    device: Literal["auto", "cpu"] = "auto"
    """cpu, or auto for what accelerate finds."""

    dtype: DTypeName = "auto"
    """Precision of the target; auto is float32 on a CPU and bfloat16 elsewhere. The draft learns in float32."""

    training: DistillConfig = field(default_factory=DistillConfig)
    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    """How validation drafts. Its token limit also bounds the target's own answers."""


SCHEMA_VERSION: Final = 1
ReportState = Literal["running", "finished"]
STRICT: Final = ConfigDict(extra="forbid", ser_json_inf_nan="constants")


@dataclass(frozen=True, slots=True, config=STRICT)
class ValidationResult:
    """Scores of the draft after some steps, on the target's own greedy answers to prompts held out of training.

    Args:
        step: 0 is before the first.
        kl: KL(target ‖ draft) in nats per token, at temperature 1.
        agreement: share of tokens that are the draft's likeliest too.
        tau: tokens per target pass of real speculative decoding, pooled over the prompts; ``None`` if every answer
            was a single token.
        tokens, passes: what τ is made of: tokens that steps emitted, and target passes.
    """

    step: int
    kl: float
    agreement: float
    tau: float | None
    tokens: int
    passes: int

    @property
    def rank(self) -> tuple[float, float]:
        """Greater is better: τ, and among equals the lower KL."""
        return (self.tau or 0.0, -self.kl)


@dataclass(frozen=True, slots=True, config=STRICT)
class Report:
    """A run so far, or finished.

    Args:
        rows: rows of the data that are trained on.
        left_out: rows that are not, or not wholly: how many by reason.
        checks: validations in the order of their steps.
        curve: losses by step: ``step``, ``rate``, ``loss`` and ``kl`` at temperature 1, all in nats per answer token;
            no ``kl`` where its weight is 0, since the target's distributions are then not computed.
        state: ``running``; ``finished`` with all steps.
    """

    schema_version: Literal[1]
    target: str
    draft: str
    rows: int
    left_out: dict[str, int]
    prompts: int
    config: dict[str, Any]
    setting: dict[str, Any]
    checks: tuple[ValidationResult, ...]
    curve: tuple[dict[str, float], ...]
    state: ReportState

    @property
    def best(self) -> ValidationResult:
        """The validation whose draft is kept."""
        return max(self.checks, key=lambda check: check.rank)

    def to_json(self) -> bytes:
        return _ADAPTER.dump_json(self, indent=1) + b"\n"

    @classmethod
    def read(cls, file: Path) -> Report:
        """Read a report from its file.

        Raises:
            ValueError: not a report of this schema.
        """
        try:
            return _ADAPTER.validate_json(file.read_bytes())
        except ValidationError as error:
            why = f"{file} is no distillation report (schema {SCHEMA_VERSION}): {one_line(error)}"
            raise ValueError(why) from error


_ADAPTER: TypeAdapter[Report] = TypeAdapter(Report)
