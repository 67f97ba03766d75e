"""Notices: information, warning and error do not look alike, and each can be read."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from support.browser import Visitor

from visual.page import notices

MAKERS = {"info": notices.info, "warning": notices.warning, "error": notices.error}
SHOWN = "document.querySelector('#notice .notice').dataset.kind"
# The colours of a notice's word, border, text and ground; all of them are opaque.
COLOURS = """(kind) => {
  const notice = document.querySelector("#notice .notice");
  Object.assign(notice.dataset, kind);
  notice.textContent = "Something is said.";
  const [own, word] = [getComputedStyle(notice), getComputedStyle(notice, "::before")];
  const rgb = (colour) => colour.match(/[\\d.]+/g).map(Number);
  return { word: rgb(word.color), border: rgb(own.borderLeftColor), text: rgb(own.color),
    ground: rgb(own.backgroundColor), said: word.content, line: own.borderLeftStyle };
}"""


def luminance(colour: list[float]) -> float:
    parts = [c / 255 for c in colour]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: list[float], other: list[float]) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_a_notice_names_its_kind_and_no_text_is_no_notice() -> None:
    for kind, make in MAKERS.items():
        said = "It's <b>said</b>"
        assert json.loads(make(said)) == {"kind": kind, "word": notices.WORDS[kind], "text": said}
        assert make("") == ""
    assert len(set(notices.WORDS.values())) == len(MAKERS)
    failed = json.loads(notices.failure("It's <b>said</b>"))
    assert failed["kind"] == "error" and failed["word"] not in notices.WORDS.values()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_kinds_differ_in_word_line_and_colour_and_can_be_read(visit: Visitor, scheme: str) -> None:
    tab = visit(color_scheme=scheme)
    shown = {kind: tab.page.evaluate(COLOURS, {"kind": kind, "word": word}) for kind, word in notices.WORDS.items()}
    for kind, look in shown.items():
        assert notices.WORDS[kind] in look["said"]
        assert all(len(look[part]) == 3 for part in ("word", "border", "text", "ground")), look
        assert contrast(look["word"], look["ground"]) >= 4.5 and contrast(look["text"], look["ground"]) >= 4.5, look
        assert contrast(look["border"], look["ground"]) >= 3
    for one, other in pairwise([*shown.values(), shown["info"]]):
        assert one["word"] != other["word"] and one["line"] != other["line"]


def test_what_happens_decides_the_kind(visit: Visitor, tmp_path: Path) -> None:
    tab = visit("?example=nope")
    tab.wait(f"{SHOWN} === 'warning'")
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    with tab.page.expect_file_chooser() as chooser:
        tab.page.click("#open-race")
    chooser.value.set_files(str(bad))
    tab.wait(f"{SHOWN.replace('#notice', '#picture-notice')} === 'error'")
    assert tab.page.locator("#picture-notice [role=alert]").count() == 1
    tab.run("slowly: a question to be stopped")
    tab.wait("document.querySelectorAll('[data-lane=target-only] .word').length > 5")
    tab.page.click("#stop")
    tab.wait(f"{SHOWN} === 'info' && document.querySelector('#notice .notice').textContent.includes('Stopped')")
    assert tab.page.locator("#notice [role=status]").count() == 1
