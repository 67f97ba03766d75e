"""Options of decoding as controls of the page, made from the fields of ``DecodingConfig``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, get_args, get_origin

import gradio as gr
from annotated_types import Ge, Le
from pydantic.fields import FieldInfo

from specllava.config import DecodingConfig
from specllava.drafters import DRAFTER_INFOS
from specllava.growth.rules import RULE_INFOS
from visual.page import widgets

FIELDS: dict[str, FieldInfo] = dict(vars(DecodingConfig)["__pydantic_fields__"])
LONGEST_SLIDER = 10_000  # above it a number is typed
SUMMARY = (
    "{drafter} drafts · {rule} rule · branches above {entropy_threshold} nats · depth {depth} · at most {nodes} nodes"
)


def folds() -> dict[str, list[str]]:
    """Group the fields by title: of the default drafter and rule, of any other, and of neither; in field order."""
    default = DecodingConfig()
    first = {"drafter", *DRAFTER_INFOS[default.drafter].options, *RULE_INFOS[default.rule].options}
    bound = {name for rule in RULE_INFOS.values() for name in rule.options}
    bound |= {name for drafter in DRAFTER_INFOS.values() for name in drafter.options}
    return {
        "Who drafts, and how the tree grows": [name for name in FIELDS if name in first],
        "Length and sampling": [name for name in FIELDS if name not in first | bound],
        "Other rules and drafters": [name for name in FIELDS if name in bound - first],
    }


def settings_card() -> list[Any]:
    """Build a card with a control per field in folds, and a summary that stays in view.

    Returns:
        The controls in field order.
    """
    made: dict[str, Any] = {}
    with gr.Column(elem_classes="card settings-card"):
        for title, names in folds().items():
            with gr.Accordion(title, open=False):
                made |= {name: _control(name, FIELDS[name]) for name in names}
        now = SUMMARY.format(**{name: info.default for name, info in FIELDS.items()})
        summary = gr.HTML(**widgets.text_arguments(now, widgets.SUMMARY))
    controls = [made[name] for name in FIELDS]
    changes = [control.change for control in controls]
    gr.on(changes, None, controls, summary, js=_summary_js(), show_progress="hidden", api_visibility="private")
    return controls


def decoding_config(values: Sequence[Any]) -> DecodingConfig:
    """Make a configuration of the controls' values in field order. Bounds are checked here, not by the sliders.

    Raises:
        pydantic.ValidationError: a value outside its bounds.
    """
    named = dict(zip(FIELDS, values, strict=True))
    listed = {name: [part.strip() for part in str(named[name]).split(",")] for name in FIELDS if _is_list(FIELDS[name])}
    return DecodingConfig(**(named | listed))


def _control(name: str, info: FieldInfo) -> Any:
    """Build the control of a field: typed, chosen or slid, as its annotation and bounds allow."""
    label = name.replace("_", " ")
    if _is_list(info):
        return gr.Textbox(", ".join(map(str, info.default)), label=label, info=info.description, max_lines=1)
    if choices := get_args(info.annotation):
        return gr.Radio(list(choices), value=info.default, label=label, info=info.description)
    low: Any = next(bound.ge for bound in info.metadata if isinstance(bound, Ge))
    high: Any = next(bound.le for bound in info.metadata if isinstance(bound, Le))
    if high > LONGEST_SLIDER:
        return gr.Number(info.default, label=label, info=info.description, precision=0)  # bounds: decoding_config
    step = 1 if info.annotation is int else 0.01 if high <= 1 and low >= 0 else 0.1
    return gr.Slider(low, high, value=info.default, step=step, label=label, info=info.description)


def _is_list(info: FieldInfo) -> bool:
    """Return whether a field is typed as values with commas between them."""
    return get_origin(info.annotation) is tuple


def _summary_js() -> str:
    """Return the browser's function from the controls' values, in field order, to the summary."""
    template, names = json.dumps(SUMMARY, ensure_ascii=False), json.dumps(list(FIELDS))
    return f"(...values) => {template}.replace(/{{(\\w+)}}/g, (_, name) => values[{names}.indexOf(name)])"
