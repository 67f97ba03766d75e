"""Settings: what is shown of them, what is said of them, and what the page makes of them."""

from __future__ import annotations

import json
import math
import re
from contextlib import suppress
from dataclasses import replace
from itertools import product
from typing import Any, get_args

import gradio as gr
import pytest
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from specllava.config import DRAFTER_CHOICES, RULE_CHOICES, DecodingConfig, options_read
from visual.page.controls import FIELDS, decoding_config, described_settings, settings_drawer
from visual.page.notices import refusal_notice
from visual.player.summary import DRAFTERS, NAMED, PHRASES, phrases, settings_summary

CHANGED = {
    "entropy_threshold": 1.7, "max_branches": 7, "width": 11, "min_log_prob": -13.5, "branching": (5, 4),
    "rank_acceptance": (0.71, 0.23), "ngram": 6, "depth": 29, "nodes": 157, "max_new_tokens": 1234,
    "top_p": 0.83, "top_k": 619, "seed": 424242,
}  # fmt: skip
COMBINATIONS = [
    config
    for drafter, rule, temperature, children in product(DRAFTER_CHOICES, RULE_CHOICES, (0.0, 0.9), ("best", "drawn"))
    if children == "best" or (temperature and RULE_CHOICES[rule].drawable)
    for names in [{"drafter": drafter, "rule": rule, "children": children}]
    for config in [DecodingConfig(**CHANGED, **names, temperature=temperature)]
]


def read(config: DecodingConfig) -> frozenset[str]:
    return options_read(config.drafter, config.rule, config.temperature)


@pytest.mark.parametrize("config", COMBINATIONS)
def test_a_summary_names_all_that_is_read_and_nothing_else(config: DecodingConfig) -> None:
    summary = settings_summary(config)
    for name, phrase in PHRASES.items():
        words = re.escape(phrase).replace(r"\{\}", "[-0-9., a-z]+")
        greedy = name == "temperature" and config.temperature == 0
        said = re.search(f"(^| · ){words}( · |$)", summary) is not None
        assert said == (name in read(config) and not greedy), (name, summary)
    assert ("greedy" in summary) == (config.temperature == 0)
    assert summary.startswith(DRAFTERS[config.drafter])
    named = [rule for rule in RULE_CHOICES if f"{rule} rule" in summary]
    assert named == ([config.rule] if config.drafter == "model" else [])


def test_two_runs_that_differ_in_what_is_read_are_told_apart() -> None:
    summaries: dict[str, tuple[object, ...]] = {}
    for config in COMBINATIONS:
        seen = tuple((name, getattr(config, name)) for name in sorted(read(config)))
        assert summaries.setdefault(settings_summary(config), seen) == seen


@pytest.mark.parametrize("name", [name for name in FIELDS if name not in NAMED])
def test_every_option_has_words_and_its_smallest_change_shows(name: str) -> None:
    """Also of an option that nobody wrote words for: its title serves."""
    assert PHRASES[name].count("{}") == 1
    shown = 0
    for config in COMBINATIONS:
        value = getattr(config, name)
        if name not in read(config) or not isinstance(value, float) or value == 0:
            continue
        near = replace(config, **{name: math.nextafter(value, 0.5 if value > 0 else -0.5)})
        assert settings_summary(near) != settings_summary(config), value
        shown += 1
    assert shown or not isinstance(getattr(DecodingConfig(), name), float) or name == "temperature"


def test_an_option_without_words_of_its_own_is_called_by_its_title() -> None:
    titled = {"min_p": FieldInfo(title="Least share of the best")}
    found = phrases(titled | {name: FIELDS[name] for name in ("depth", "rule")})
    assert found["min_p"] == "least share of the best {}" and found["depth"] == PHRASES["depth"] and "rule" not in found


def test_objects_of_ones_own_are_named_and_nothing_is_made_up_about_them() -> None:
    said = settings_summary(DecodingConfig(), rule="MyRule", drafter="MyDrafter")
    assert said == "MyDrafter · MyRule rule · greedy · at most 160 tokens"
    said = settings_summary(DecodingConfig(), rule="MyRule")
    assert said.startswith("draft model · MyRule rule") and "0.3" not in said


def test_what_the_checkpoint_asks_for_ends_the_summary() -> None:
    said = settings_summary(DecodingConfig(drafter="none"), asked="repetition_penalty 1.05")
    assert said == "target alone · greedy · at most 160 tokens · generation_config.json: repetition_penalty 1.05"


# --- the form -------------------------------------------------------------------------------------------------------


def options(drawer: gr.HTML) -> list[dict[str, Any]]:
    return [option for group in drawer.props["groups"] for option in group["options"]]


@pytest.fixture(scope="module")
def drawer() -> gr.HTML:
    with gr.Blocks():
        return settings_drawer("#run")


def test_every_option_has_one_control_with_a_title_that_is_not_pythons(drawer: gr.HTML) -> None:
    names = [option["name"] for option in options(drawer)]
    assert sorted(names) == sorted([*FIELDS, "system"]) == sorted(drawer.value)
    titles = [option["title"] for option in options(drawer)]
    assert all(titles) and len(set(titles)) == len(titles) and not any("_" in title for title in titles)


def test_usual_ranges_lie_within_the_bounds_hold_the_default_and_are_narrower(drawer: gr.HTML) -> None:
    ranges = {option["name"]: option for option in options(drawer) if option.get("usual")}
    assert ranges["entropy_threshold"]["usual"][:2] == [0.0, 2.5]
    for name, option in ranges.items():
        (low, high), (least, most, step) = option["bounds"], option["usual"]
        assert low <= least <= FIELDS[name].default <= most <= high and (low, high) != (least, most), name
        steps = (FIELDS[name].default - least) / step
        assert steps == pytest.approx(round(steps)), name  # the slider can stand at the default
        drafter = "prompt-lookup" if name == "ngram" else "model"
        for value in (low, high):  # what is typed may go as far as the bounds
            settings = {"drafter": drafter, "temperature": 0.5, name: value}
            assert getattr(decoding_config(settings), name) == value


def test_every_choice_is_explained(drawer: gr.HTML) -> None:
    choices = {option["name"]: option["choices"] for option in options(drawer) if "choices" in option}
    for name, info in FIELDS.items():
        names = [choice for choice in get_args(info.annotation) if isinstance(choice, str)]
        assert [choice["name"] for choice in choices.get(name, [])] == names
        assert all(choice["help"] for choice in choices.get(name, []))


def test_presets_are_the_papers_and_touch_nothing_but_the_tree(drawer: gr.HTML) -> None:
    made = {preset["title"]: decoding_config(drawer.value | preset["changes"]) for preset in drawer.props["presets"]}
    assert made == {
        "chain": DecodingConfig(rule="chain", min_log_prob=-1.0),
        "this paper": DecodingConfig(),
        "EAGLE-2": DecodingConfig(rule="topk", width=10, depth=8, nodes=59),
    }
    kept = {"temperature": 0.7, "seed": 5, "max_new_tokens": 40}
    for preset in drawer.props["presets"]:
        config = decoding_config(drawer.value | kept | preset["changes"])
        assert {name: getattr(config, name) for name in kept} == kept


@pytest.mark.parametrize("config", COMBINATIONS)
def test_what_the_form_hides_is_not_in_the_run(config: DecodingConfig) -> None:
    settings = {name: _typed(getattr(config, name)) for name in FIELDS}
    made, described = decoding_config(settings), described_settings(settings)
    for name, info in FIELDS.items():
        assert getattr(made, name) == (getattr(config, name) if name in described["read"] else info.default)
    assert described["summary"] == settings_summary(config) and described["refused"] == {}


def _typed(value: object) -> object:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else value


@pytest.mark.parametrize("typed", [-5, 2**31, 1e99, None, "x", 2.5])
def test_a_wrong_number_is_refused_in_words_beside_its_control(typed: object) -> None:
    settings = {"temperature": 0.5, "seed": typed}
    with pytest.raises(ValueError, match="seed") as refused:
        decoding_config(settings)
    assert json.loads(refusal_notice(refused.value))["text"].startswith("Please change the settings: seed = ")
    described = described_settings(settings)
    assert set(described["refused"]) == {"seed"} and "seed" in described["read"]
    assert described["summary"].startswith("Please change the settings: seed = ")


@pytest.mark.parametrize("sent", [
    {"rule": ["entropy"]}, {"drafter": {}}, {"temperature": "hot"}, {"children": 7, "temperature": 1, "rule": "topk"},
    {"nonsense": 1}, {"branching": 3, "rule": "fixed"}, {"branching": "1, x", "rule": "fixed"}, {"depth": {"a": 1}},
])  # fmt: skip
def test_whatever_a_browser_sends_is_refused_or_not_read(sent: dict[str, Any]) -> None:
    described = described_settings(sent)
    assert bool(described["refused"]) == described["summary"].startswith("Please change the settings: ")
    with suppress(ValidationError):
        assert decoding_config(sent).children == "best"
