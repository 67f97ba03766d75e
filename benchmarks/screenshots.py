"""Pictures of the page for the README and for looking at: the recorded run in three shapes, then each main state.

    python app.py --port 7861 &  python -m benchmarks.screenshots --address http://127.0.0.1:7861/
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from playwright.sync_api import sync_playwright

DESKTOP, PHONE = (1280, 720), (375, 1700)
PATIENCE = 240_000  # milliseconds that models may take on a busy machine


@dataclass(frozen=True)
class State:
    """One picture: the window, the address, what is done first, and the part that is taken (all by default)."""

    size: tuple[int, int] = DESKTOP
    query: str = ""
    act: Callable[[Any], None] = lambda page: None
    part: str | None = None


def _answer(page: Any) -> None:
    page.locator("[data-lesson=answer]").click()
    page.wait_for_timeout(800)


def _inside(phase: str) -> Callable[[Any], None]:
    def act(page: Any) -> None:
        page.locator(".inside-toggle").click()
        page.locator(".phase-list button", has_text=phase).first.click()
        page.wait_for_timeout(800)

    return act


def _settings(page: Any) -> None:
    page.locator(".settings-open").click()


def _against(page: Any) -> None:
    page.locator(".pin").click()
    page.locator(".settings-open").click()
    page.locator(".presets button", has_text="chain").first.click()
    page.locator(".drawer-run").click()
    page.wait_for_function("document.querySelector('.origin').textContent.includes('live')", timeout=PATIENCE)
    page.wait_for_function("!document.querySelector('#run').disabled", timeout=PATIENCE)
    page.wait_for_timeout(1500)


def _pruned(page: Any) -> None:
    page.locator(".with-pruned input").click()
    page.wait_for_selector(".tree .tracepruned .point")


def _run(page: Any) -> None:
    page.locator("#question textarea").fill("What is on the left?")
    page.locator("#run").click()
    page.wait_for_function("document.querySelector('.origin').textContent.includes('live')", timeout=PATIENCE)
    page.wait_for_function("!document.querySelector('#run').disabled", timeout=PATIENCE)
    page.locator("[data-do=last]").click()


def _alone(page: Any) -> None:
    page.locator(".settings-open").click()
    page.locator(".drawer label", has_text="none").first.click()
    page.locator(".drawer-close").click()
    _run(page)


def _refused(page: Any) -> None:
    bad = Path(tempfile.mkdtemp()) / "notes.json"
    bad.write_text('{"target_only": 1}')
    page.locator("#open-race input, input[accept='.json']").last.set_input_files(str(bad))
    page.wait_for_function("document.querySelector('#picture-notice').textContent.includes('cannot be opened')")


def _experiment(name: str) -> Callable[[Any], None]:
    def act(page: Any) -> None:
        run = f"document.querySelector('#lab-{name} .lab-run')"
        page.locator(f"#lab-{name} .lab-run").click()
        page.wait_for_function(f"{run}.disabled")
        page.wait_for_function(f"!{run}.disabled", timeout=PATIENCE)
        page.wait_for_timeout(1500)

    return act


STATES = {
    "light": State(),
    "dark": State(query="?__theme=dark"),
    "phone": State(PHONE),
    "lesson": State(query="?lesson=5", act=_answer),
    "present": State(query="?lesson=6&present=1"),
    "inside": State(act=_inside("check")),
    "inside-phone-dark": State((375, 2300), "?__theme=dark", _inside("2")),
    "coin": State((1280, 1100), "?lesson=8", _answer),
    "dialogue": State(query="?example=4-dialogue&turn=3"),
    "settings": State(act=_settings),
    "against": State(act=_against, part=".versus"),
    "pays": State(part=".pays"),
    "pruned": State(act=_pruned, part=".step"),
    "charts": State(part=".charts"),
    "live": State(act=_run),
    "alone": State(act=_alone),
    "refused": State(act=_refused),
    "lab-image-ablation": State(act=_experiment("image-ablation"), part="#lab-image-ablation"),
    "lab-distillation-dark": State(act=_experiment("distillation"), part="#lab-distillation", query="?__theme=dark"),
}


def main(address: str, output: Path = Path("docs/screenshots"), only: tuple[str, ...] = ()) -> None:
    """Take the pictures.

    Args:
        address: where the page is served.
        output: directory for the PNG files.
        only: names of those to take; all of them by default.
    """
    output.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=flags)
        for name, state in STATES.items():
            if only and name not in only:
                continue
            width, height = state.size
            page = browser.new_page(viewport={"width": width, "height": height})
            page.goto(address + state.query)
            page.wait_for_selector(".tree .main-svg", timeout=60_000)
            page.wait_for_function("document.querySelector('.chip').textContent.includes('·')", timeout=60_000)
            page.wait_for_timeout(1500)
            state.act(page)
            page.wait_for_timeout(800)
            if state.part:  # nothing that floats may cover it
                page.add_style_tag(content="#masthead { position: static !important; }")
            taken = page.locator(state.part).first if state.part else page
            taken.screenshot(path=output / f"{name}.png")
            page.close()
        browser.close()


if __name__ == "__main__":
    tyro.cli(main)
