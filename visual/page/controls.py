"""The options of decoding as controls of the page: made from the fields of ``DecodingConfig``, no second list."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, get_args, get_origin

import gradio as gr
from annotated_types import Ge, Le
from pydantic.fields import FieldInfo

from specllava.config import DecodingConfig
from visual.page import widgets

FIELDS: dict[str, FieldInfo] = dict(vars(DecodingConfig)["__pydantic_fields__"])
LONGEST_SLIDER = 10_000  # above it a number is typed
SUMMARY = (
    "{drafter} drafts · {rule} rule · branches above {entropy_threshold} nats · depth {depth} · at most {nodes} nodes"
)


# What every visitor may want at hand; the other fields are for certain rules, and for sampling.
FIRST = (
    "drafter", "rule", "max_new_tokens", "depth", "nodes", "entropy_threshold", "max_branches", "width", "min_log_prob",
)  # fmt: skip


def settings_card() -> list[Any]:
    """A card with one control per field in two folds, and a summary that stays in view; the controls in field order."""
    made: dict[str, Any] = {}
    with gr.Column(elem_classes="card settings-card"):
        with gr.Accordion("Who drafts, and how the tree grows", open=False):
            made |= {name: _control(name, FIELDS[name]) for name in FIRST}
        with gr.Accordion("Sampling and special rules", open=False):
            made |= {name: _control(name, info) for name, info in FIELDS.items() if name not in FIRST}
        now = SUMMARY.format(**{name: info.default for name, info in FIELDS.items()})
        summary = gr.HTML(**widgets.text_arguments(now, widgets.SUMMARY))
    controls = [made[name] for name in FIELDS]
    changes = [control.change for control in controls]
    gr.on(changes, None, controls, summary, js=_summary_js(), show_progress="hidden", api_visibility="private")
    return controls


def decoding_config(values: Sequence[Any]) -> DecodingConfig:
    """The controls' values as a configuration. The sliders are a courtesy; this is the check.

    Raises:
        pydantic.ValidationError: a value outside its bounds.
    """
    given = dict(zip(FIELDS, values, strict=True))
    listed = {name: [part.strip() for part in str(given[name]).split(",")] for name in FIELDS if _is_list(FIELDS[name])}
    return DecodingConfig(**(given | listed))


def _control(name: str, info: FieldInfo) -> Any:
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
    """Typed as values with commas between them."""
    return get_origin(info.annotation) is tuple


def _summary_js() -> str:
    """Fills the summary in the browser; its arguments are the controls' values in field order."""
    template, names = json.dumps(SUMMARY, ensure_ascii=False), json.dumps(list(FIELDS))
    return f"(...values) => {template}.replace(/{{(\\w+)}}/g, (_, name) => values[{names}.indexOf(name)])"
