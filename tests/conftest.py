"""What all tests share: the same examples on every machine, tiny random models, the shipped pair, and the page.

Models are imported where they are used: the process that only hands out tests has no use for torch, and the others
start behind it. So is the browser: a machine without it skips the tests that need it and says so; in CI they fail.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from support.browser import Visit, Visitor, visits

if TYPE_CHECKING:
    from pathlib import Path

    from support.family_drafts import AnyFamily, Kind

    from specllava.models.options import DTypeName
    from specllava.pair import Pair
    from visual.page.state import PageState

# Some images forbid Python to keep what it compiled: then each process that a test starts would compile 5,000 files.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
settings.register_profile(
    "specllava",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
settings.load_profile("specllava")
if "PYTEST_XDIST_WORKER" in os.environ:
    import torch

    torch.set_num_threads(1)  # a process per core already, and so for the processes that tests start
    os.environ["OMP_NUM_THREADS"] = "1"
# Gradio names cached pictures by content: a page that closes would take those of a page in another process along.
os.environ["GRADIO_TEMP_DIR"] = tempfile.mkdtemp(prefix="specllava-tests-")
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="specllava-tests-")  # what commands keep goes there


def pytest_collection_finish() -> None:
    """Libraries hold half a million objects for good: the collector walked through them for a tenth of the time."""
    gc.freeze()


@pytest.fixture(scope="session")
def tiny() -> Pair:
    """A tiny random pair whose draft agrees with its target now and then; nothing ends an answer."""
    from support import models

    return models.pair("mixed")


@pytest.fixture(scope="session")
def shipped() -> Callable[[DTypeName], Pair]:
    """The toy pair as it ships, loaded once per precision."""

    from specllava.pair import Pair

    @cache
    def load(dtype: DTypeName) -> Pair:
        return Pair.from_preset("toy", device="cpu", dtype=dtype)

    return load


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A target by its family, or a draft for it by its kind, written when it is first asked for."""
    from support.family_drafts import write_draft, write_model

    root = tmp_path_factory.mktemp("made")

    @cache
    def write(family: AnyFamily, kind: Kind | None = None) -> Path:
        if kind is None:
            return write_model(root / family, family)
        return write_draft(root / f"{family} {kind}", family, kind, write(family))

    return write


@pytest.fixture
def pair(shipped: Callable[[DTypeName], Pair], monkeypatch: pytest.MonkeyPatch) -> Pair:
    """The toy pair in float32, which every preset's name then loads."""
    found = shipped("float32")
    monkeypatch.setattr("specllava.pair.Pair.from_preset", lambda *args, **options: found)
    return found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Hide the loop of Playwright, which waits in this thread as long as the browser lives, from what has its own."""
    loop = asyncio._get_running_loop()
    if "browser" not in getattr(item, "fixturenames", ()):
        asyncio._set_running_loop(None)
    try:
        return (yield)
    finally:
        asyncio._set_running_loop(loop)


@pytest.fixture(scope="session")
def state(shipped: Callable[[DTypeName], Pair]) -> PageState:
    """What the page as it ships goes by: the toy pair, its recorded races and lessons."""
    from support.shipped_races import ASSETS

    from specllava.config import Limits
    from visual.page.state import PageState
    from visual.player.lessons import load_lessons
    from visual.player.recorded import read_recorded

    limits = Limits(runs_per_minute=10_000, events_per_minute=10**6, uploads_per_minute=10_000)
    recorded = [read_recorded(path) for path in sorted(ASSETS.glob("examples/*.json"))]
    pair = shipped("float32")  # not beside other tests' models: transformers loads one model of a process at a time
    return PageState(lambda: pair, recorded, load_lessons(ASSETS / "lessons"), limits=limits)


@pytest.fixture(scope="session")
def server(state: PageState) -> Iterator[str]:
    """The address of the page as it ships."""
    from benchmarks.shared.command import free_port
    from visual.page.page import build_page
    from visual.page.serve import serve

    page = build_page(state)
    yield serve(page, "127.0.0.1", free_port(), state, block=False)
    page.close()


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Chromium, as the machine has it, with its profile as the first context. It draws without a GPU's emulation.

    Pages of one site share a process: what it compiled for one serves the next.
    """
    in_ci = bool(os.environ.get("CI"))
    if not in_ci:
        pytest.importorskip(
            "playwright.sync_api", reason="playwright is not installed: the page was not tested in a browser"
        )
    from playwright import sync_api  # in CI a missing playwright is an error, not a skip

    from benchmarks.shared.pictures import chromium_path

    path = chromium_path()
    if path is None:
        message = "no Chromium on this machine: the page was not tested in a browser"
        pytest.fail(message) if in_ci else pytest.skip(message)
    profile_folder = tmp_path_factory.mktemp("profile")
    with sync_api.sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-background-networking", "--disable-gpu"]
        flags.append("--process-per-site")
        profile = playwright.chromium.launch_persistent_context(profile_folder, executable_path=path, args=flags)
        profile.pages[0].goto(profile_folder.as_uri())  # with it the process of saved pages lives on
        yield profile.browser
        profile.close()


@pytest.fixture
def visit(server: str, browser: Any) -> Iterator[Visitor]:
    """Open the page as a new visitor; at the end no tab may have asked another host or logged an error."""
    with visits(browser, server) as open_page:
        yield open_page


@pytest.fixture(scope="session")
def tab(server: str, browser: Any) -> Iterator[Visit]:
    """One visitor's tab for all tests: a page takes seconds to load."""
    with visits(browser, server) as open_page:
        yield open_page()


@pytest.fixture
def no_gradients() -> Iterator[None]:
    """As decoding computes."""
    import torch

    with torch.inference_mode():
        yield


@pytest.fixture
def own_precision() -> Iterator[None]:
    """Accelerate keeps the precision of a process' first training; other tests train in float32."""
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
