"""Notices beside a button: information, a warning or an error, each with a word and a colour of its own.

A notice is the value of one kind of component (``notice_arguments``), made by ``info``, ``warning`` or ``error``; the
empty string is no notice. Words are here, colours in ``shell.css`` under the same names.
"""

from __future__ import annotations

import json
from typing import Any, Final, Literal

from pydantic import ValidationError

from specllava.config import one_line

Kind = Literal["info", "warning", "error"]
WORDS: Final[dict[Kind, str]] = {"info": "Note", "warning": "Careful", "error": "Not possible"}
FAILED: Final = "Failed"  # the word of an error that is not the visitor's
TEMPLATE = '<p class="notice" role="status"></p>'
SHOW = """
const place = element.querySelector(".notice");
const show = () => {
  const { kind, word, text } = JSON.parse(props.value || '{"kind": "info", "word": "", "text": ""}');
  place.setAttribute("role", kind === "info" ? "status" : "alert"); // before the text: it decides how that is read out
  Object.assign(place.dataset, { kind, word });
  place.textContent = text;
  if (text && kind !== "info") place.scrollIntoView({ block: "nearest" });
};
watch("value", show);
show();
"""


def info(text: str) -> str:
    """Make a notice of progress or of an end that was wanted; empty without a text."""
    return _notice("info", text)


def warning(text: str) -> str:
    """Make a notice that something else happens than was requested; empty without a text."""
    return _notice("warning", text)


def error(text: str) -> str:
    """Make a notice that what was requested does not happen."""
    return _notice("error", text)


def failure(text: str) -> str:
    """Make a notice that the server failed at what was requested, which may well be possible."""
    return _notice("error", text, FAILED)


def refusal_notice(refusal: ValueError) -> str:
    """Make the notice of a refused request."""
    if isinstance(refusal, ValidationError):
        return error(f"Please change the settings: {one_line(refusal)}")
    return error(f"This cannot run: {refusal}")


def _notice(kind: Kind, text: str, word: str = "") -> str:
    shown = {"kind": kind, "word": word or WORDS[kind], "text": text}
    return json.dumps(shown, ensure_ascii=False) if text else ""


def text_of(notice: str, kind: Kind | None = None) -> str:
    """Return the text of a notice; empty if there is none, or if it is not of that kind."""
    value: dict[str, str] = json.loads(notice or "{}")
    return value.get("text", "") if kind in (None, value.get("kind")) else ""


def notice_arguments() -> dict[str, Any]:
    """Return the arguments of a ``gr.HTML`` that shows a notice; its text never passes through markup."""
    return {"value": "", "html_template": TEMPLATE, "js_on_load": SHOW, "apply_default_css": False}
