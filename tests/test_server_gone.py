"""A server that goes away and comes back: the page says so, and goes on or asks for a reload."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from typing import Any

import pytest
from support.browser import FINISHED, VIEWPORT, Visit, new_page
from support.served_page import answer_of, free_port, main

SAID = "document.querySelector('.chip').textContent.includes('{}')"
DEAD = "document.querySelector('.actions').inert && document.querySelector('#question').inert"
TOAST = "document.querySelector('.toast-wrap button') !== null"
# The page asks every ten seconds, and every five while nobody answers: here ten times as often. A toast never goes by
# itself, which takes ten seconds: the page has to close it.
HASTE = """const wait = setTimeout;
window.setTimeout = (act, ms, ...rest) => wait(act, act.name === "look" ? ms / 10 : ms < 10_000 ? ms : 1e9, ...rest);"""
Start = Callable[[], BaseProcess]


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def start(port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Start a page in a process of its own, always at the same address, where none is up. Each is forked from one
    that has imported it.
    """
    started: list[BaseProcess] = []
    forking = multiprocessing.get_context("forkserver")
    forking.set_forkserver_preload(["support.visual_traces", "visual.page.layout", "visual.page.serving"])
    recorded = str(tmp_path_factory.mktemp("recorded"))

    def serve() -> BaseProcess:
        if started and started[-1].is_alive():
            return started[-1]
        process = forking.Process(target=main, args=(str(port), recorded))
        process.start()
        started.append(process)
        answer_of(f"http://127.0.0.1:{port}/", process)
        return process

    yield serve
    for process in started:
        killed(process)


@pytest.fixture
def tab(browser: Any) -> Iterator[Visit]:
    page = new_page(browser, VIEWPORT, locale="en-GB")
    page.add_init_script(HASTE)
    yield Visit(page)
    page.close()


def visited(tab: Visit, port: int) -> None:
    """Open the page; it has met its server once it has asked which one it is."""
    with tab.page.expect_response(lambda answer: answer.url.endswith("app_id")):
        tab.page.goto(f"http://127.0.0.1:{port}")
    tab.page.wait_for_selector(".tree .main-svg")
    tab.wait("document.querySelector('.chip').dataset.state === 'ready'")


def killed(process: BaseProcess) -> None:
    process.kill()
    process.join()


@pytest.mark.night
def test_a_page_says_that_its_server_is_gone_and_that_a_new_one_needs_a_reload(
    start: Start, port: int, tab: Visit
) -> None:
    server = start()
    visited(tab, port)
    tab.page.context.set_offline(True)
    tab.wait(f"{SAID.format('the server is gone')} && {DEAD}")
    tab.page.context.set_offline(False)  # a connection that was down for a while changes nothing
    tab.wait(f"document.querySelector('.chip').dataset.state === 'ready' && !({DEAD})")
    tab.run("What is there?")
    tab.wait(FINISHED)
    first = tab.page.evaluate("document.querySelector('#picture img').src")
    tab.page.locator("button.example").nth(1).click()
    tab.wait(f"document.querySelector('#picture img').src !== {json.dumps(first)}")
    tab.page.wait_for_timeout(1_000)  # gradio would load a page anew whose call broke off
    killed(server)
    tab.wait(f"{SAID.format('the server is gone')} && {DEAD}")
    tab.page.click("[data-do=next]")  # what is there needs no server
    start()
    tab.wait(f"{SAID.format('started anew: please reload')} && {DEAD}")
    tab.page.reload()
    tab.page.wait_for_selector(".tree .main-svg")
    tab.run("What is there?")
    tab.wait(f"{FINISHED} && !({DEAD})")


@pytest.mark.night
def test_the_toast_of_a_run_that_broke_off_goes_and_the_page_comes_back(
    start: Start, port: int, tab: Visit
) -> None:
    server = start()
    visited(tab, port)
    tab.run("slowly, what is there?")
    tab.wait("!document.querySelector('#stop').disabled")
    killed(server)
    tab.wait(TOAST)
    tab.wait(f"{SAID.format('the server is gone')} && {DEAD} && !({TOAST})")
    start()  # gradio loads the page of a run that broke off anew
    tab.wait("document.querySelector('.chip').dataset.state === 'ready' && !document.querySelector('#run').disabled")
    tab.page.wait_for_selector(".tree .main-svg")
    tab.run("What is there?")
    tab.wait(f"{FINISHED} && !({DEAD})")
