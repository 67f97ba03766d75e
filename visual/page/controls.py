"""The settings of the page: options of decoding as a form, made from the fields of ``DecodingConfig``, and presets.

The component's value maps an option's name to its value. Nothing in the browser decides what an option means. After a
change the server says which options count, what they come to, and what it refuses (:func:`described_settings`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, get_origin

import gradio as gr
from annotated_types import Ge, Le
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from specllava.config import (
    CHAIN_OPTIONS,
    DRAFTER_CHOICES,
    RULE_CHOICES,
    DecodingConfig,
    Usual,
    eagle2_tree,
    few_errors,
    one_line,
    options_read,
    short,
)
from specllava.config import Limits
from visual.page.model_choice import DRAFT, OWN, DraftChoices, read_draft
from visual.player.component import component_arguments
from visual.player.summary import settings_summary

Settings = Mapping[str, Any]
FIELDS: Final[dict[str, FieldInfo]] = dict(vars(DecodingConfig)["__pydantic_fields__"])
MODULES: Final = ("settings.js",)
MOUNT: Final = """
loaded.then(({ settings }) => settings.mount({ element, props, watch, server }));
"""
CHOICES: Final = {
    "drafter": {name: choice.help for name, choice in DRAFTER_CHOICES.items()},
    "rule": {name: choice.help for name, choice in RULE_CHOICES.items()},
    "children": {"best": "the draft's best", "drawn": "drawn from the draft without replacement"},
}
COUNTS: Final = {  # by option that is a number: the limit that holds for it
    "max_new_tokens": "new_tokens", "depth": "depth", "nodes": "nodes", "width": "width", "max_branches": "branches",
}  # fmt: skip
LISTS: Final = ("branching", "rank_acceptance")


@dataclass(frozen=True)
class SettingsPreset:
    """Settings of the tree under one name; options that ``changes`` leaves out get their defaults.

    Args:
        because: why one would try it, in one line.
    """

    title: str
    because: str
    changes: Settings = field(default_factory=dict)


PRESETS: Final = (
    SettingsPreset(
        "chain", "One guess after the other, as it began: the first wrong one ends the step.", CHAIN_OPTIONS
    ),
    SettingsPreset("this paper", "Spec-LLaVA: the tree branches only where the draft is in doubt."),
    SettingsPreset(
        "EAGLE-2", "A wide tree everywhere, doubt or not: more guesses are checked, and each pass costs more.",
        eagle2_tree(7, 10, 60),
    ),
)  # fmt: skip
SYSTEM: Final = "system"
SYSTEM_OPTION: Final[dict[str, Any]] = {
    "name": SYSTEM, "title": "System turn", "lines": 3,
    "help": "Text in front of the dialogue, which the model reads as the system's; none where this is empty.",
}  # fmt: skip
MEASURED: Final = "The tree with which others measured this draft."


def settings_drawer(run: str, drafts: DraftChoices | None = None, limits: Limits | None = None) -> gr.HTML:
    """Build the button, the summary and the drawer with the presets and a control per option.

    Args:
        run: selector of the button that runs with these settings.
        drafts: to choose from.
        limits: of the page, which the form shows and offers no default beyond.
    """
    bounds = limits or Limits()

    def described(settings: Settings) -> dict[str, Any]:
        return described_settings(settings, bounds)

    choices, tree = drafts or DraftChoices(), _tree_options()
    usual = {name: _plain(limit_option(name, info.default, bounds)) for name, info in FIELDS.items()}
    unchanged = {name: usual[name] for name in tree}
    measured = {name: _plain(limit_option(name, value, bounds)) for name, value in choices.tree.items()}
    defaults = usual | measured | {SYSTEM: ""}
    known = (*([SettingsPreset("as measured", MEASURED, choices.tree)] if choices.tree else []), *PRESETS)

    return gr.HTML(**component_arguments(
        "settings.html", MODULES, MOUNT, defaults, elem_id="settings", server_functions=[described],
        run=run, described=described(defaults), groups=[
            {"title": "The tree", "options": [
                _drafter_option(choices) if name == "drafter" else _option(name, bounds)
                for name in FIELDS if name in tree
            ]},
            {"title": "The answer", "options": [_option(name, bounds) for name in FIELDS if name not in tree]},
            {"title": "More", "options": [SYSTEM_OPTION]},
        ],
        presets=[
            {"title": preset.title, "because": preset.because, "changes": {**unchanged, **preset.changes}}
            for preset in known
        ],
    ))  # fmt: skip


def decoding_config(settings: Settings | None, limits: Limits | None = None) -> DecodingConfig:
    """Make a configuration of the form's settings. Options that nothing reads keep their defaults: the form hides them.

    Raises:
        pydantic.ValidationError: a value outside its bounds, or a name that is no option.
        OptionRefused: a value beyond the page's limits.
        ValueError: a browser sent something else than settings.
    """
    given = {name: value for name, value in _check_mapping(settings).items() if name != SYSTEM}
    if "drafter" in given:
        given["drafter"] = _drafter(given)
    read = _read(given)
    used = {name: value for name, value in given.items() if name in read or name not in FIELDS}
    config = DecodingConfig(**{name: _split_list(name, value) for name, value in used.items()})
    check_options(config, limits or Limits())
    return config


def described_settings(settings: Settings, limits: Limits | None = None) -> dict[str, Any]:
    """Describe settings: their ``summary``, the options that are ``read``, and by option why it is ``refused``."""
    refused = {}
    try:
        settings = _check_mapping(settings)
        draft = read_draft(settings)
        summary = settings_summary(decoding_config(settings, limits), draft=None if draft == OWN else draft)
        summary += " · a system turn" if read_system(settings) else ""
    except ValidationError as error:
        refused = {
            ".".join(map(str, item["loc"][:1])): item["msg"].removeprefix("Value error, ") for item in few_errors(error)
        }
        summary = f"Please change the settings: {one_line(error)}"
    except OptionRefused as refusal:
        refused = {refusal.option: str(refusal)}
        summary = f"Please change the settings: {refusal}"
    except ValueError as refusal:
        return {"summary": str(refusal), "read": [], "refused": {"": str(refusal)}}
    return {"summary": summary, "read": sorted({SYSTEM, *_read(settings)}), "refused": refused}


def read_system(settings: Settings) -> str | None:
    """Return the text of the system turn of settings, as it was typed; ``None`` where it is empty.

    Raises:
        ValueError: a browser sent something else than a text.
    """
    text = settings.get(SYSTEM)
    if isinstance(text, str | None):
        return text or None
    raise ValueError(f"{SYSTEM} = {short(text)}: a text is expected")


class OptionRefused(ValueError):
    """Error of an option beyond a limit: one line with the value, the limit and the way out.

    Args:
        option: name of the option.
        what: what of it is too large, "" for its value.
    """

    def __init__(self, option: str, what: str, value: int, most: int) -> None:
        super().__init__(f"{what}{option} is {value:,}, and at most {most:,} are allowed here: choose fewer")
        self.option = option


def limit_option(name: str, value: Any, limits: Limits) -> Any:
    """Return a number of an option as this page offers it: the limit, where that is smaller."""
    return min(value, getattr(limits, COUNTS[name])) if name in COUNTS else value


def check_options(config: DecodingConfig, limits: Limits) -> None:
    """Refuse options beyond a limit of the page; those that decoding would not read do not count.

    Raises:
        OptionRefused: the first such option.
    """
    read = options_read(config.drafter, config.rule, config.temperature)
    for option, what, value, most in _sizes(config, limits):
        if option in read and value > most:
            raise OptionRefused(option, what, value, most)


def _sizes(config: DecodingConfig, limits: Limits) -> Iterator[tuple[str, str, int, int]]:
    """Yield each option that has a limit: its name, what is counted, how much that is, and the limit."""
    for name, limit in COUNTS.items():
        yield name, "", getattr(config, name), getattr(limits, limit)
    for name in LISTS:
        yield name, "the length of ", len(getattr(config, name)), limits.list_items
    yield "branching", "the largest of ", max(config.branching), limits.branches


def _check_mapping(settings: Settings | None) -> Settings:
    if not isinstance(settings or {}, Mapping):
        raise ValueError("settings are names and values")
    return settings or {}


def _read(settings: Settings) -> frozenset[str]:
    """Return the options that decoding with these settings reads; they may be anything that a browser sent."""
    rule, temperature = (settings.get(name, FIELDS[name].default) for name in ("rule", "temperature"))
    warm = temperature if isinstance(temperature, int | float) else 0.0
    return options_read(str(_drafter(settings)), str(rule), warm)


def _drafter(settings: Settings) -> Any:
    """Return the drafter of settings: one of the target's drafts is the drafter ``model`` of a pair of its own."""
    drafter = settings.get("drafter", FIELDS["drafter"].default)
    return "model" if read_draft({"drafter": drafter}) != OWN else drafter


def _tree_options() -> set[str]:
    """Return the options of drafters and rules; of the others, how tokens are chosen is one of the answer's."""
    choices = (*DRAFTER_CHOICES.values(), *RULE_CHOICES.values())
    return {"drafter", *(name for choice in choices for name in choice.options)} - {"children"}


def _drafter_option(drafts: DraftChoices) -> dict[str, Any]:
    """Describe the choice of who guesses: all drafts of the target, and the drafters that need none."""
    option = _option("drafter")
    own, *others = option["choices"]
    if drafts.own:
        own = {**own, "title": drafts.own, "help": drafts.about}
    named = [{"name": DRAFT + name, "title": name, "help": about} for name, about in drafts.drafts.items()]
    return option | {"choices": [own, *named, *others]}


def _option(name: str, limits: Limits | None = None) -> dict[str, Any]:
    """Describe an option for the form: what it is called, and its choices or its bounds and usual range."""
    info = FIELDS[name]
    if name in CHOICES:
        choices = [{"name": choice, "help": about} for choice, about in CHOICES[name].items()]
        return {"name": name, "title": info.title, "choices": choices}
    about = {"name": name, "title": info.title, "help": info.description}
    if _is_list(info):
        return about
    low = next(bound.ge for bound in info.metadata if isinstance(bound, Ge))
    high = next((bound.le for bound in info.metadata if isinstance(bound, Le)), math.inf)
    high = limit_option(name, high, limits or Limits())
    usual = next(([u.low, min(u.high, high), u.step] for u in info.metadata if isinstance(u, Usual)), None)
    return about | {"bounds": [low, high], "usual": usual, "step": 1 if info.annotation is int else "any"}


def _plain(value: Any) -> Any:
    """Return a default as the form holds it: several values are typed with commas between them."""
    return ", ".join(map(str, value)) if isinstance(value, tuple) else value


def _split_list(name: str, value: Any) -> Any:
    """Return a value of the form as the configuration holds it."""
    listed = name in FIELDS and _is_list(FIELDS[name]) and isinstance(value, str)
    return [part.strip() for part in value.split(",")] if listed else value


def _is_list(info: FieldInfo) -> bool:
    """Return whether a field is typed as values with commas between them."""
    return get_origin(info.annotation) is tuple
