"""What browser tests of the page share: a tab, and expressions and texts for it. Their fixtures are in conftest."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

if TYPE_CHECKING:
    from support.visual_traces import FakeBackend

VIEWPORT = {"width": 1280, "height": 900}
PATIENCE = 150_000  # milliseconds; a busy machine is slow, and only a failure waits for so long
DRAWN = "JSON.stringify(document.querySelector('.tree').data.map(({name, x, y, text}) => ({name, x, y, text})))"
HOSTILE = {5: ' <img src=x onerror="window.hacked=1">', 8: " ${6*7}", 9: " {{value}}", 11: " `<b>x</b>"}
FINISHED = (
    "document.querySelector('.same').dataset.state === 'same'"
    " && document.querySelector('.origin').textContent.includes('live')"
)
AT_THE_WORKBENCH = "try { localStorage.setItem('specllava.view', 'workbench'); } catch (refused) {}"
LAB_READY = "document.querySelector('#lab-{name} .lab-run').disabled === false"


@dataclass
class Server:
    """A page that is being served, and the backend behind it."""

    address: str
    backend: FakeBackend


@dataclass
class Visit:
    """One visitor's tab, with everything that went wrong in it."""

    page: Any
    errors: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.set_default_timeout(PATIENCE)

    def text(self, selector: str) -> str:
        return str(self.page.inner_text(selector))

    def step(self) -> int:
        return int(self.text(".step-name").split()[1])

    def tree(self) -> list[dict[str, Any]]:
        """The figure's data as Plotly holds it."""
        return list(json.loads(self.page.evaluate(DRAWN)))

    def wait(self, condition: str) -> None:
        """Until an expression holds. Playwright gives up at once where it throws: what is absent is waited for too."""
        from playwright.sync_api import TimeoutError

        patient = f"(() => {{ try {{ return {condition}; }} catch (absent) {{ return false; }} }})()"
        try:
            self.page.wait_for_function(patient, polling=50)  # milliseconds; at every frame would be work
        except TimeoutError:
            asked = [call.partition("/gradio_api/")[2] for call in self.calls if "/gradio_api/" in call]
            raise AssertionError(f"never came: {condition}; {self.page.url}; {self.errors}; {asked[-12:]}") from None

    def lesson(self, number: int) -> None:
        """Choose a lesson, from 0, in the menu."""
        self.page.click(".learn-card button.label-wrap")
        self.page.locator("button.teach").nth(number).click()

    def run(self, question: str, speed: str = "1") -> None:
        """Ask, and play the run as fast as it was; at the speed that the page chooses it plays for eight seconds."""
        self.page.select_option(".speed", speed)
        self.page.fill("#question textarea", question)
        self.page.click("#run")

    def settle(self) -> None:
        """Leave what runs for the first example, as a visitor does who begins again without a reload."""
        self.page.set_viewport_size(VIEWPORT)
        self.page.keyboard.press("Escape")  # a drawer that is open
        self.page.evaluate("document.querySelector('.asked').textContent = ''")  # until the example is shown
        self.page.locator("button.example").first.click()
        self.wait("document.querySelector('.asked').textContent !== ''")
        self.wait("document.querySelector('.origin').textContent.includes('recorded run')")
        self.wait("!document.querySelector('#run').disabled && document.querySelector('#stop').disabled")

    def close(self) -> None:
        """Leave; a tab in a browser's own profile must have left nothing there."""
        context = self.page.context
        if context == context.browser.contexts[0]:
            left = "document.cookie + Object.keys(localStorage).filter((key) => key !== 'specllava.view')"
            kept = self.page.evaluate(left)
            self.page.close()
            assert not kept, f"the next visitor would have it: {kept}"
        else:
            context.close()


Visitor = Callable[..., Visit]
SavedPages = Callable[..., Visit]


def assert_accessible(page: Any, context: str | None = None, schemes: Sequence[str] = ("light", "dark")) -> None:
    """Assert that axe finds nothing serious in what is shown, or in one part of it, in each colour scheme."""
    from axe_playwright_python.sync_playwright import Axe

    for scheme in schemes:
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # no colour is on its way to another
        page.wait_for_selector("body.dark" if scheme == "dark" else "body:not(.dark)", state="attached")
        found = Axe().run(page, context=context).response["violations"]
        serious = [one for one in found if one["impact"] in ("serious", "critical")]
        assert not serious, (scheme, [(one["id"], [node["html"][:200] for node in one["nodes"]]) for one in serious])


def new_page(browser: Any, viewport: dict[str, int], **context: Any) -> Any:
    """A page in the browser's profile, which keeps scripts as it compiled them: they are half of what a visit takes.

    What cannot be chosen for one page of a profile gets a profile of its own, where nothing was loaded before. The
    visitor left the page at the workbench the last time, where every card is.
    """
    if not context.keys() <= {"color_scheme", "reduced_motion"}:
        page = browser.new_context(viewport=viewport, **context).new_page()
        page.set_default_timeout(PATIENCE)
        page.add_init_script(AT_THE_WORKBENCH)
        return page
    page = browser.contexts[0].new_page()
    page.set_default_timeout(PATIENCE)
    page.add_init_script(AT_THE_WORKBENCH)
    page.set_viewport_size(viewport)
    page.emulate_media(**context)
    return page


def new_tab(browser: Any, **context: Any) -> Visit:
    """A visitor's tab, which notes errors and what it asks for."""
    context.setdefault("viewport", VIEWPORT)
    tab = Visit(new_page(browser, **context))
    tab.page.on("console", lambda message: tab.errors.extend([message.text] if message.type == "error" else []))
    tab.page.on("pageerror", lambda error: tab.errors.append(str(error)))
    tab.page.on("request", lambda request: tab.calls.append(request.url))
    return tab


@contextmanager
def visits(browser: Any, address: str) -> Iterator[Visitor]:
    """Open pages of ``address``; at the end no tab may have asked another host or logged an error."""
    made: list[Visit] = []

    def open_page(query: str = "", address: str = address, init_script: str = "", **context: Any) -> Visit:
        tab = new_tab(browser, **context)
        made.append(tab)
        tab.page.add_init_script(init_script)
        tab.page.goto(address + query)
        tab.page.wait_for_selector(".tree .main-svg")
        return tab

    yield open_page
    for tab in made:
        tab.close()
        assert not tab.errors, tab.errors
        asked = {urlsplit(call).netloc for call in tab.calls}
        assert asked <= {urlsplit(tab.calls[0]).netloc, ""}, f"asked another host: {asked}"


@contextmanager
def script_page(browser: Any, name: str) -> Iterator[Any]:
    """An empty page in which ``script`` is what one of the page's scripts exports."""
    from visual.player.static_files import static_text

    page = browser.new_page()
    address = f"data:text/javascript;charset=utf-8,{quote(static_text(name))}"
    page.evaluate("async (address) => { window.script = await import(address); }", address)
    yield page
    page.close()
