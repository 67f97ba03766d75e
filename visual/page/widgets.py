"""Theme of Gradio's own widgets, and arguments of the page's HTML components."""

from __future__ import annotations

import json
from typing import Any, Literal

import gradio as gr

from visual.figures.charts import ACCEPTED
from visual.player import markup
from visual.player.static_files import static_text

SHOW_STATE = """
const WORDS = {
  gone: "the server is gone: nothing runs until it is back",
  anew: "the server was started anew: please reload the page", // it knows neither this page's picture nor its runs
};
const COMPUTES = ".actions, #question, .lab-controls";
const chip = element.querySelector(".chip");
let served = null; // which server answered first
let lost = "";
const show = () => {
  const { state, text, blind } = lost ? { state: "failed", text: WORDS[lost] } : JSON.parse(props.value);
  chip.dataset.state = state;
  chip.querySelector("span").textContent = text;
  if (blind !== undefined) document.querySelector("#columns").toggleAttribute("data-blind", blind);
};
const found = (server) => {
  served ??= server;
  const now = server === null ? "gone" : server === served ? "" : "anew";
  if (now === lost) return;
  lost = now;
  for (const part of document.querySelectorAll(COMPUTES)) part.inert = lost !== "";
  if (!lost) trigger("back"); // the server says what is running
  show();
};
const look = async () => {
  const asked = fetch(new URL("gradio_api/app_id", document.baseURI), { cache: "no-store" });
  found(await asked.then((answer) => (answer.ok ? answer.text() : null)).catch(() => null));
  if (lost) document.querySelectorAll(".toast-wrap button").forEach((close) => close.click()); // the chip says it
  setTimeout(look, lost ? 5_000 : 10_000);
};
watch("value", show);
show();
setTimeout(look, 1_000);
window.addEventListener("offline", () => found(null));
"""
SHOW_PICTURE = """
const [image, none] = element.querySelector(".pictured").children;
const show = () => {
  if (props.value) image.src = props.value;
  element.querySelector(".pictured").replaceChildren(props.value ? image : none);
};
watch("value", show);
show();
"""
SKIP_TO_PLAYER = """
element.querySelector(".skip").addEventListener("click", () => document.querySelector(".stage").focus());
"""
HEAD = '<meta name="color-scheme" content="light dark">'
CHIP = '<p class="chip" role="status"><i class="dot"></i><span></span></p>'
PICTURE = (
    '<div class="pictured"><img alt="{about}"><p class="no-picture">No picture came with this run.</p></div>'
)
LOOKED_AT = "The picture that the models look at"


def page_theme() -> gr.themes.Base:
    """Make the theme; system fonts only, since a web font would be a request to another host."""
    system = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "sans-serif"]
    theme = gr.themes.Base(
        primary_hue=gr.themes.colors.blue, neutral_hue=gr.themes.colors.gray, radius_size=gr.themes.sizes.radius_lg,
        font=system, font_mono=["ui-monospace", "Consolas", "monospace"],
    )  # fmt: skip
    return theme.set(
        body_background_fill="#f5f6f2", body_background_fill_dark="#121417",
        body_text_color="#1d2126", body_text_color_dark="#e9ecef",
        body_text_color_subdued="#5c646c", body_text_color_subdued_dark="#a4adb5",
        block_background_fill="transparent", block_background_fill_dark="transparent",
        block_border_width="0px", block_border_width_dark="0px", block_shadow="none", block_shadow_dark="none",
        input_background_fill="#ffffff", input_background_fill_dark="#15181c",
        input_border_color="#cfd4d0", input_border_color_dark="#454c53",
        border_color_primary="#dfe2dc", border_color_primary_dark="#343a40",
        slider_color=ACCEPTED, slider_color_dark="#56b4e9",
        button_primary_background_fill=ACCEPTED, button_primary_background_fill_hover="#005a8f",
        button_primary_background_fill_dark=ACCEPTED, button_primary_background_fill_hover_dark="#0064a0",
        button_primary_text_color="#ffffff", button_primary_text_color_dark="#ffffff",
        button_secondary_background_fill="transparent", button_secondary_background_fill_dark="transparent",
        button_secondary_background_fill_hover="#eceee8", button_secondary_background_fill_hover_dark="#2b3036",
        button_secondary_border_color="#cfd4d0", button_secondary_border_color_dark="#454c53",
        button_border_width="1px",
    )  # fmt: skip


def masthead_arguments() -> dict[str, Any]:
    """Return the arguments of the ``gr.HTML`` with the page's name, and before it a way past all inputs."""
    skip = '<button type="button" class="skip">Skip to the player</button>'  # a link would lose the address's query
    return {
        "value": "",
        "html_template": skip + markup.masthead(),
        "js_on_load": static_text("view_choice.js") + SKIP_TO_PLAYER,
        "apply_default_css": False,
    }


def picture_arguments(address: str | None, about: str = LOOKED_AT) -> dict[str, Any]:
    """Return the arguments of a ``gr.HTML`` that shows the picture of a ``data:`` address, or that there is none.

    Gradio's own component would show a file of its cache, which it empties every hour.
    """
    template = PICTURE.format(about=about)
    return {"value": address, "html_template": template, "js_on_load": SHOW_PICTURE, "apply_default_css": False}


def chip_arguments() -> dict[str, Any]:
    """Return the arguments of the ``gr.HTML`` that says what is running; its value is a :func:`chip_value`."""
    loading = chip_value("loading", "models are loading")
    return {"value": loading, "html_template": CHIP, "js_on_load": SHOW_STATE, "apply_default_css": False}


def chip_value(state: Literal["loading", "ready", "failed"], text: str, blind: bool = False) -> str:
    """Make the chip's value: what is running, whether it is loaded, and whether it reads no pictures."""
    return json.dumps({"state": state, "text": text, "blind": blind})


def held_arguments(value: object) -> dict[str, Any]:
    """Return the arguments of a ``gr.HTML`` that shows nothing: its value is held by the browser, not by the session.

    Gradio forgets sessions, and gives a forgotten ``gr.State`` its first value without a word.
    """
    return {"value": value, "html_template": "", "js_on_load": None, "apply_default_css": False, "visible": False}


def constant_arguments(template: str) -> dict[str, Any]:
    """Return the arguments of a ``gr.HTML`` that never changes."""
    return {"value": "", "html_template": template, "js_on_load": None, "apply_default_css": False}
