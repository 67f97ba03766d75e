"""Costs of passes that others published, each with its source. Nothing of it was measured here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_VLLM: Final = "https://github.com/vllm-project/vllm/issues/20780"
_TPOT: Final = "table “TPOT ms”, batch of 1; a level is what each further guess adds to a pass there, K = 2 to 7"


@dataclass(frozen=True, slots=True)
class MeanStep:
    """A mean step: tokens per target pass, verified guesses, levels of the draft."""

    tau: float
    guesses: float
    levels: float


@dataclass(frozen=True, slots=True)
class PublishedCosts:
    """Costs in milliseconds as ``pays.CostPreset`` names them; ``None`` is what the source lacks.

    Args:
        name: the models, the engine, the GPU.
        source: address; ``where``: table or sentence there; ``date``: of the source.
        step: with the draft, as measured there.
    """

    name: str
    source: str
    where: str
    date: str
    one: float
    level: float | None = None
    step: MeanStep | None = None


PUBLISHED: Final = (
    PublishedCosts(
        "Llama-3.1-8B, its EAGLE-3 draft, vLLM, GPU not named", _VLLM, _TPOT, "2025-07-10",
        7.07, 1.26, MeanStep(3.08, 4, 4),
    ),
    PublishedCosts(
        "Llama-3.1-8B, its EAGLE draft, vLLM, GPU not named", _VLLM, _TPOT, "2025-07-10",
        7.07, 0.86, MeanStep(2.29, 3, 3),
    ),
    PublishedCosts(
        "Llama-2-7B, SGLang, one H100", "https://github.com/SafeAILab/EAGLE/pull/173",
        "“Normal decoding speed (SGLang): 156 token/s”", "2025-01-02", 6.41,
    ),
)  # fmt: skip
