"""The Content-Security-Policy: what it says, that the whole page lives with it, and what it keeps out."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from support.browser import FINISHED, LAB_READY, PATIENCE, VIEWPORT, Server, Visit, Visitor, new_page
from test_files_page import saved

from visual.page.middleware import FILE_POLICY, page_policy
from visual.player.static_files import STATIC

NOTE_VIOLATIONS = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) =>
  window.violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`));
"""
OWN = {"'self'", "'none'", "'unsafe-eval'", "data:", "blob:"}


def directives(policy: str) -> dict[str, list[str]]:
    return {name: values for name, *values in (part.split() for part in policy.split(";"))}


def headers(address: str) -> dict[str, str]:
    try:
        answer = urllib.request.urlopen(address)
    except HTTPError as refusal:
        answer = refusal
    with answer:
        return {name.lower(): value for name, value in answer.headers.items()}


def test_the_document_allows_its_own_scripts_by_hash_and_no_other_host(server: Server) -> None:
    said = headers(server.address)
    assert (said["x-content-type-options"], said["referrer-policy"]) == ("nosniff", "same-origin")
    policy = directives(said["content-security-policy"])
    assert policy["default-src"] == ["'none'"]
    scripts = set(policy["script-src"])
    assert {"'self'", "'unsafe-eval'"} == {one for one in scripts if not one.startswith("'sha256-")} < scripts
    assert policy.pop("frame-ancestors") == ["'self'", "https://huggingface.co", "https://*.hf.space"]
    others = {value for name, values in policy.items() if name != "script-src" for value in values} - OWN
    assert others == {"'unsafe-inline'"} and "'unsafe-inline'" in policy["style-src"]


@pytest.mark.parametrize("path", ["config", "theme.css", f"gradio_api/file={STATIC / 'player.js'}", "nothing/there"])
def test_what_is_no_document_may_do_nothing_when_it_is_opened_as_one(path: str, server: Server) -> None:
    said = headers(server.address + path)
    assert said["content-security-policy"] == FILE_POLICY and said["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("document", "hashes"),
    [
        (b"<script src=x></script>", 0),
        (b"<script>a()</script><script >b()</script>", 2),
        (b"<SCRIPT type=module>a()</SCRIPT><script>a()</script>", 1),
        (b'<script data-src="x">a()\n</script>', 1),
        (b"<p onclick='a()'>", 0),
    ],
)
def test_every_inline_script_of_a_document_has_its_hash(document: bytes, hashes: int) -> None:
    assert len(re.findall("'sha256-", page_policy(document))) == hashes


def violations(tab: Visit) -> Any:
    return tab.page.evaluate("window.violations")


@pytest.fixture
def watched(visit: Visitor) -> Visit:
    """A visitor's page that notes what the policy refuses, from before its first script on."""
    return visit(init_script=NOTE_VIOLATIONS)


def test_a_walk_over_the_whole_page_violates_nothing(watched: Visit, browser: Any, tmp_path: Path) -> None:
    """A run, a lesson, the inside of a step, what can be saved, the lab; ``visit`` refuses errors in the console."""
    tab = watched
    tab.run("What is in the picture?")
    tab.wait(FINISHED)
    tab.lesson(0)
    tab.wait("document.querySelector('.lesson').textContent.length > 20")
    tab.page.locator(".charts summary").click()
    for kind in ("race", "nodes", "page"):
        saved(tab, kind, tmp_path)
    tab.page.click("#lab-image-ablation .lab-run")
    tab.wait("document.querySelectorAll('#lab-image-ablation .chart .main-svg').length >= 2")
    tab.wait(LAB_READY.format(name="image-ablation"))
    tab.page.emulate_media(color_scheme="dark")
    assert violations(tab) == []
    alone = new_page(browser, VIEWPORT, locale="en-GB")
    alone.goto(next(tmp_path.glob("*.html")).as_uri())
    alone.wait_for_selector(".tree .main-svg", timeout=PATIENCE)
    alone.close()


SCRIPT = "Object.assign(document.createElement('script'), { %s })"
HANDLER = "'<img src=data:, onerror=\"window.hacked = 1\">'"
INJECTED = [
    (SCRIPT % "textContent: 'window.hacked = 1'", "script-src-elem"),
    (SCRIPT % "src: 'https://example.invalid/x.js'", "script-src-elem"),
    (f"Object.assign(document.createElement('div'), {{ innerHTML: {HANDLER} }})", "script-src-attr"),
    ("Object.assign(document.createElement('img'), { src: 'https://example.invalid/x.png' })", "img-src"),
    ("Object.assign(document.createElement('iframe'), { src: 'https://example.invalid/' })", "frame-src"),
]


def test_what_comes_into_the_page_later_neither_runs_nor_asks_another_host(watched: Visit) -> None:
    for injected, directive in INJECTED:
        watched.page.evaluate(f"window.violations.length = 0, document.body.append({injected})")
        watched.wait(f"window.violations.some((one) => one.startsWith({directive!r}))")
        assert watched.page.evaluate("window.hacked") is None, injected
    watched.page.evaluate("window.violations.length = 0")
    sent = "fetch('https://example.invalid/', { method: 'POST' }).then(() => 'sent', () => 'refused')"
    assert watched.page.evaluate(sent) == "refused"
    assert any(one.startswith("connect-src") for one in violations(watched))
    watched.errors.clear()  # the browser reports violations as such
    watched.calls[:] = [call for call in watched.calls if "example.invalid" not in call]
