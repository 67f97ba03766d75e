"""Native controls made from the fields of ``DecodingConfig``, and four cards that set them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, get_args, get_origin

import gradio as gr
from annotated_types import Ge, Le
from pydantic.fields import FieldInfo

from specllava.config import CHAIN_OPTIONS, DecodingConfig, Limits, SliderRange, eagle2_tree, options_read

FIELDS: Final[dict[str, FieldInfo]] = dict(vars(DecodingConfig)["__pydantic_fields__"])
COUNTS: Final = {  # by option that is a number: the limit that holds for it
    "max_new_tokens": "new_tokens", "depth": "depth", "nodes": "nodes", "width": "width", "max_branches": "branches",
}  # fmt: skip
DRAFT: Final = "draft: "  # before the name of another draft, in the setting that is otherwise a drafter's name


@dataclass(frozen=True, slots=True)
class Card:
    """Settings under one name; options that ``changes`` leaves out get their defaults."""

    title: str
    because: str
    changes: Mapping[str, Any] = field(default_factory=dict)


CARDS: Final = (
    Card("Chain", "One best guess after the other.", CHAIN_OPTIONS),
    Card("Entropy tree (Spec-LLaVA)", "Branches where the small model is in doubt."),
    Card("Top-k tree (EAGLE-2)", "The likeliest guesses of every level, ranked again.", eagle2_tree(7, 10, 60)),
    Card("Sampling at 0.8", "Words are drawn. Same seed, same draws: the same words.", {"temperature": 0.8}),
)


def settings_controls(drafts: Sequence[str], limits: Limits) -> list[Any]:
    """Build the cards and, under "More", a control per option. Return the controls, in the order of the fields."""
    cards = gr.Radio(
        [(f"{card.title}: {card.because}", card.title) for card in CARDS], value=CARDS[1].title, show_label=False,
        container=False, label="Settings", elem_id="cards",
    )  # fmt: skip
    with gr.Accordion("More", open=False):
        controls = [_control(name, drafts, limits) for name in FIELDS]

    def choose(title: str) -> list[Any]:
        changes = next(card.changes for card in CARDS if card.title == title)
        return [_shown(name, changes.get(name, info.default), limits) for name, info in FIELDS.items()]

    cards.change(choose, cards, controls, queue=False, show_progress="hidden", api_visibility="private")
    return controls


def _control(name: str, drafts: Sequence[str], limits: Limits) -> Any:
    """Build the control of one option: its choices, its usual range as a slider, or a field to type in."""
    info = FIELDS[name]
    shared: dict[str, Any] = {"label": info.title, "info": info.description}
    value = _shown(name, info.default, limits)
    choices = [choice for choice in get_args(info.annotation) if isinstance(choice, str)]
    if name == "drafter":
        choices += [f"{DRAFT}{draft}" for draft in drafts]
    if choices:
        return gr.Dropdown(choices, value=value, **shared)
    if get_origin(info.annotation) is tuple:
        return gr.Textbox(value, **shared)
    usual = next((one for one in info.metadata if isinstance(one, SliderRange)), None)
    low = float(next((bound.ge for bound in info.metadata if isinstance(bound, Ge)), -math.inf))  # type: ignore[arg-type]
    high = next((bound.le for bound in info.metadata if isinstance(bound, Le)), math.inf)
    high = float(_shown(name, high, limits))
    if usual is None:
        return gr.Number(value, minimum=low, maximum=high, precision=0 if info.annotation is int else None, **shared)
    return gr.Slider(low, min(high, max(usual.high, value)), value, step=usual.step, **shared)


def _shown(name: str, value: Any, limits: Limits) -> Any:
    """Return what a control shows of a value: at most the page's limit; several, with commas."""
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return min(value, getattr(limits, COUNTS[name])) if name in COUNTS else value


def read_draft(drafter: Any) -> str | None:
    """Return the draft that a choice of drafter names besides the page's own; ``None`` for that."""
    return str(drafter).removeprefix(DRAFT) if str(drafter).startswith(DRAFT) else None


def make_config(given: Mapping[str, Any], limits: Limits) -> DecodingConfig:
    """Make a configuration of options; those that decoding would not read keep their defaults.

    Raises:
        ValueError: a value outside its bounds or beyond a limit of the page.
    """
    drafter = "model" if read_draft(given.get("drafter")) else given.get("drafter", "model")
    warm = given.get("temperature") or 0.0
    read = options_read(str(drafter), str(given.get("rule", "entropy")), warm if isinstance(warm, int | float) else 0.0)
    used = {name: _typed(name, value) for name, value in given.items() if name in read}
    config = DecodingConfig(**{**used, "drafter": drafter})
    sizes = [(name, getattr(config, name), getattr(limits, limit)) for name, limit in COUNTS.items()]
    for name, value, most in (*sizes, ("branching", max(config.branching), limits.branches)):
        if name in read and value > most:
            raise ValueError(f"{name} is {value:,}, and at most {most:,} are allowed here: choose fewer")
    return config


def _typed(name: str, value: Any) -> Any:
    if get_origin(FIELDS[name].annotation) is tuple and isinstance(value, str):
        return [part.strip() for part in value.split(",")]
    return value
