"""Arguments of ``gr.HTML`` components whose scripts are files of ours, the player's among them. Imports no gradio."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from visual.player.static_files import PLOTLY_JS, STATIC, static_text, static_version

MODULES: Final = (
    "views.js",
    "race.js",
    "lanes.js",
    "grounding.js",
    "dialogue.js",
    "lessons.js",
    "present.js",
    "address.js",
    "tree_fit.js",
    "step.js",
    "charts.js",
    "coin.js",
    "tables.js",
    "files.js",
    "step_phases.js",
    "phase_words.js",
    "phase_drawing.js",
    "mask.js",
    "kv_cache.js",
    "phases.js",
    "opening.js",
    "player.js",
)
LOAD: Final = """
const load = async (name) => [
  name.slice(0, -3),
  await import(new URL(`gradio_api/file=${props.assets}/${name}?v=${props.version}`, document.baseURI)),
];
const loaded = Promise.all(props.modules.map(load)).then((modules) => Object.fromEntries(modules));
"""
MOUNT: Final = """
const edit = props.dialogues && ((turn) => trigger("edit", { turn }));
const plotly = new URL(`gradio_api/file=${props.plotly}`, document.baseURI).href;
const page = server?.saved_page;
loaded.then((modules) => modules.player.mount({ element, props, watch, server, plotly, page, edit, modules }));
"""


def component_arguments(
    template: str, modules: Sequence[str], mount: str, value: object = "", **props: object
) -> dict[str, Any]:
    """Return the arguments of a ``gr.HTML`` with scripts; every file it needs is in ``static_paths``.

    Args:
        template: name of the file with its HTML.
        modules: names of its scripts.
        mount: JavaScript that runs once; ``loaded`` is a promise of the scripts' exports by name, without ``.js``.
        value: at first.
        props: what the JavaScript reads besides, or other arguments of ``gr.HTML``.
    """
    return {
        "value": value,
        "html_template": static_text(template),
        "js_on_load": LOAD + mount,
        "apply_default_css": False,
        "assets": STATIC.as_posix(),
        "modules": list(modules),
        "version": static_version(modules),
        **props,
    }


def player_arguments(frames: list[str], dialogues: bool = False) -> dict[str, Any]:
    """Return the arguments of the player's ``gr.HTML``.

    Args:
        dialogues: somebody listens to its ``edit`` event, whose ``turn`` (from 0) the next question replaces; -1 ends
            that, and -2 begins a new dialogue.
    """
    return component_arguments(
        "player.html", MODULES, MOUNT, frames, dialogues=dialogues, plotly=PLOTLY_JS.as_posix(),
    )  # fmt: skip
