"""What browser tests share: a tab, and expressions and texts for it. Their fixtures are in conftest."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

VIEWPORT = {"width": 1280, "height": 720}
PATIENCE = 60_000  # milliseconds; a busy machine is slow, and only a failure waits for so long
HOSTILE = {
    5: ' <img src=x onerror="window.hacked=1">', 8: " ${6*7}", 9: " {{value}}", 11: " `<b>x</b>",
    14: " </script><script>window.hacked=1</script>", 15: " <!--",
}  # fmt: skip
ALIVE = ".stage.alive .plot .main-svg"
FINISHED = "document.querySelector('.spoken').textContent.startsWith('Answer complete')"


@dataclass
class Visit:
    """One visitor's tab, with everything that went wrong in it."""

    page: Any
    errors: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.set_default_timeout(PATIENCE)

    def text(self, selector: str) -> str:
        return str(self.page.inner_text(selector)).strip()

    def say(self) -> str:
        """The sentence of the stage."""
        return self.text(".say h2")

    def count(self, selector: str) -> int:
        return int(self.page.locator(selector).count())

    def wait(self, condition: str) -> None:
        """Until an expression holds; what is absent is waited for. Playwright's own waiting evaluates strings in the
        page, which saved pages forbid.
        """
        patient = f"(() => {{ try {{ return Boolean({condition}); }} catch (absent) {{ return false; }} }})()"
        end = time.monotonic() + PATIENCE / 1000
        while not self.page.evaluate(patient):
            assert time.monotonic() < end, f"never came: {condition}; {self.page.url}; {self.errors}"
            self.page.wait_for_timeout(50)

    def wait_say(self, words: str) -> None:
        """Until the sentence has these words."""
        self.wait(f"document.querySelector('.say h2').textContent.includes({words!r})")

    def step(self, number: int, phase: str) -> None:
        """Go to a step, from 1, and one of its phases."""
        self.page.evaluate(
            """([step, phase]) => {
          const input = document.querySelector(".slide input");
          input.value = step - 1;
          input.dispatchEvent(new Event("input"));
          document.querySelector(`.phase [data-phase=${phase}]`).click();
        }""",
            [number, phase],
        )

    def close(self) -> None:
        """Leave; a tab in a browser's own profile must have left nothing there."""
        context = self.page.context
        if context == context.browser.contexts[0]:
            kept = self.page.evaluate("document.cookie + Object.keys(localStorage)")
            self.page.close()
            assert not kept, f"the next visitor would have it: {kept}"
        else:
            context.close()


Visitor = Callable[..., Visit]


def assert_accessible(page: Any) -> None:
    """Assert that axe finds nothing moderate or worse in what is shown, light and dark."""
    from axe_playwright_python.sync_playwright import Axe

    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        page.wait_for_selector(".dark" if scheme == "dark" else ":root:not(.dark) body:not(.dark)", state="attached")
        page.wait_for_function("!document.getAnimations().some((one) => one instanceof CSSTransition)")
        found = Axe().run(page).response["violations"]
        serious = [one for one in found if one["impact"] in ("moderate", "serious", "critical")]
        assert not serious, (scheme, [(one["id"], [node["html"][:200] for node in one["nodes"]]) for one in serious])


def new_tab(browser: Any, viewport: dict[str, int] | None = None, **context: Any) -> Visit:
    """A visitor's tab, which notes errors and what it asks for: in the browser's profile, which keeps compiled scripts,
    unless something cannot be chosen for one page of it."""
    if context.keys() <= {"color_scheme", "reduced_motion"}:
        page = browser.contexts[0].new_page()
        page.set_viewport_size(viewport or VIEWPORT)
        page.emulate_media(**context)
    else:
        page = browser.new_context(viewport=viewport or VIEWPORT, **context).new_page()
    tab = Visit(page)
    page.on("console", lambda one: tab.errors.extend([f"{one.text} {one.location}"] if one.type == "error" else []))
    page.on("pageerror", lambda error: tab.errors.append(str(error)))
    page.on("request", lambda request: tab.calls.append(request.url))
    return tab


@contextmanager
def visits(browser: Any, address: str) -> Iterator[Visitor]:
    """Open pages of ``address``; at the end no tab may have asked another host or logged an error."""
    made: list[Visit] = []

    def open_page(query: str = "", address: str = address, **context: Any) -> Visit:
        tab = new_tab(browser, **context)
        made.append(tab)
        tab.page.goto(address + query)
        tab.page.wait_for_selector(ALIVE)
        return tab

    yield open_page
    for tab in made:
        tab.close()
        assert not tab.errors, tab.errors
        asked = {urlsplit(call).netloc for call in tab.calls}
        assert asked <= {urlsplit(tab.calls[0]).netloc, ""}, f"asked another host: {asked}"
