"""The experiments of the lab: titles, how each is started, and its view."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specllava.core.config import DecodingConfig
from specllava.models.media.media import Pictures
from visual.page.lab_views import (
    View,
    distillation_view,
    drafters_view,
    forced_token_view,
    image_ablation_view,
    rules_view,
    sweep_view,
)

if TYPE_CHECKING:
    from specllava.lab import Lab


@dataclass(frozen=True)
class Experiment:
    """One card of the lab.

    Args:
        start: runs it on a picture, a question and the settings, with one thing more that only some need.
    """

    name: str
    title: str
    about: str
    button: str
    start: Callable[[Lab, Pictures, str, Any, DecodingConfig], Generator[Any]]
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
