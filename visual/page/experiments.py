"""The experiments of the lab: titles, how each is started, and its view."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from PIL import Image

from specllava.config import DecodingConfig
from specllava.findings.ablation import Ablation
from specllava.findings.comparison import PairedComparison
from specllava.findings.forced_token import ForcedToken
from specllava.findings.sweep import Sweep
from specllava.models.media import Pictures
from specllava.question import Question
from visual.page.lab_views import (
    View,
    distillation_view,
    drafters_view,
    forced_token_view,
    image_ablation_view,
    rules_view,
    sweep_view,
)


class Experiments(Protocol):
    """Interface that the lab needs of a pair of models: ``specllava.lab.Lab``, or a stand-in in tests.

    A generator yields after each decode step, the same finding again where there is no new one, so that it can be
    closed there. Bad input raises a ``ValueError`` that a visitor can read.
    """

    def rules(self, image: Pictures, messages: str, config: DecodingConfig) -> Generator[Sweep]: ...

    def drafters(
        self, image: Pictures, messages: str, others: Mapping[str, Any], config: DecodingConfig
    ) -> Generator[Sweep]: ...  # others: experiments with each draft of the target, by what it is called

    def sweep(self, image: Pictures, messages: str, field: str, config: DecodingConfig) -> Generator[Sweep]: ...

    def image_ablation(
        self, image: Pictures, messages: str, other: Image.Image, config: DecodingConfig
    ) -> Generator[Ablation]: ...

    def distillation(self, image: Pictures, messages: str, config: DecodingConfig) -> Generator[Ablation]: ...

    def forced_token(
        self, image: Pictures, messages: str, given: Sequence[int], config: DecodingConfig
    ) -> Generator[ForcedToken | None]: ...

    def compare(
        self, questions: Iterable[Question], count: int, a: DecodingConfig, b: DecodingConfig, other: Any = None
    ) -> Generator[PairedComparison]: ...  # other: experiments on the models of B, where these are not those of A


# An experiment on a picture, a question and the settings, with one thing more that only some need.
Start = Callable[[Experiments, Pictures, str, Any, DecodingConfig], Generator[Any]]


@dataclass(frozen=True)
class Experiment:
    """One card of the lab."""

    name: str
    title: str
    about: str
    button: str
    start: Start
    view: Callable[[Any], tuple[str, View]]


EXPERIMENTS = (
    Experiment(
        "rules", "Rules side by side",
        "The same question with every way to grow a tree: what a rule guesses right, and what that saves.",
        "Compare the rules", lambda lab, image, question, _, config: lab.rules(image, question, config), rules_view,
    ),
    Experiment(
        "drafters", "Who guesses best?",
        "The same question, guessed by every draft of the large model, and by looking up what the text said before.",
        "Compare the drafters",
        lambda lab, image, question, others, config: lab.drafters(image, question, others, config), drafters_view,
    ),
    Experiment(
        "seeing", "Does seeing help?",
        "The large model always looks at your picture, so the answer stays the same. The small one guesses it three"
        " times: with your picture, with a grey one, and with this other one.",
        "Blindfold the draft",
        lambda lab, image, question, other, config: lab.image_ablation(image, question, other.open(), config),
        image_ablation_view,
    ),
    Experiment(
        "distillation", "Does distillation help?",
        "The small model learnt first from texts and then from the large one. Both stages guess the same answer.",
        "Compare before and after",
        lambda lab, image, question, _, config: lab.distillation(image, question, config), distillation_view,
    ),
    Experiment(
        "knob", "Turn the knob",
        "One number of your settings, turned from one end to the other while all else stays.",
        "Turn it", lambda lab, image, question, field, config: lab.sweep(image, question, field, config), sweep_view,
    ),
    Experiment(
        "fork", "Force a token",
        "Put another word into the answer: what stands before it stays, and the large model goes on from there.",
        "Show the answer",
        lambda lab, image, question, tokens, config: lab.forced_token(image, question, tokens, config),
        forced_token_view,
    ),
)  # fmt: skip
