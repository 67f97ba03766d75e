"""Taking turns on the page: what runs, waits, is stopped, left or refused, and what its visitor sees of it."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from support.browser import FINISHED, LAB_READY, PATIENCE, Server, Visit

Tabs = tuple[Visit, Visit]


def until(tab: Visit, holds: Callable[[], bool]) -> None:
    """Wait for something outside the page."""
    deadline = time.monotonic() + PATIENCE / 1000
    while not holds():
        assert time.monotonic() < deadline, "it never came to hold"
        tab.page.wait_for_timeout(20)


def line(tab: Visit, address: str) -> int:
    """How many runs wait."""
    return int(tab.page.request.get(f"{address}gradio_api/queue/status").json()["queue_size"])


def test_stop_keeps_what_was_said_and_frees_the_backend(tab: Visit, server: Server) -> None:
    tab.run("slowly, to be stopped")
    tab.wait("document.querySelector('.asked').textContent.includes('to be stopped')")
    tab.wait("document.querySelectorAll('[data-lane=target-only] .word').length > 5")
    tab.page.click("#stop")
    tab.wait("document.querySelector('#notice .notice').textContent.includes('Stopped')")
    tab.wait("!document.querySelector('#run').disabled")
    assert 5 < tab.page.locator("[data-lane=target-only] .word").count() < 64
    assert "so far" in tab.text(".same")
    until(tab, lambda: "slowly, to be stopped" in server.backend.closed)
    tab.page.click(".files summary")
    tab.wait("!document.querySelector('[data-file=race]').disabled")


@pytest.mark.night
def test_a_race_follows_one_that_has_not_quite_stopped(tab: Visit) -> None:
    tab.run("slowly, to be stopped and followed")
    tab.wait("document.querySelector('.asked').textContent.includes('followed')")
    tab.page.click("#stop")
    tab.run("What comes at once?")
    tab.wait(f"document.querySelector('.asked').textContent.includes('at once') && {FINISHED}")
    tab.wait("!document.querySelector('#run').disabled")
    assert not tab.text("#notice").strip()


@pytest.mark.night
@pytest.mark.parametrize("button", ["button.example", "button.teach"])
def test_what_is_chosen_during_a_race_takes_its_place_for_good(tab: Visit, server: Server, button: str) -> None:
    question = f"slowly, to be left for {button}"
    tab.run(question)
    tab.wait("document.querySelector('.asked').textContent.includes('to be left')")
    tab.lesson(0) if button == "button.teach" else tab.page.locator(button).first.click()
    tab.wait("document.querySelector('.origin').textContent.includes('recorded run')")
    tab.wait("!document.querySelector('#run').disabled && document.querySelector('#stop').disabled")
    until(tab, lambda: question in server.backend.closed)
    tab.page.wait_for_timeout(1500)  # more than an update takes
    assert "recorded run" in tab.text(".origin") and "to be left" not in tab.text(".asked")
    assert not tab.text("#notice").strip()


@pytest.mark.night
def test_a_visitor_who_waits_can_stop_and_ask_something_else(tabs: Tabs, server: Server) -> None:
    first, second = tabs
    first.run("slowly, before the others")
    first.wait("document.querySelector('.asked').textContent.includes('before the others')")
    second.run("never to be seen")
    second.wait("document.querySelector('#notice .notice').textContent.includes('1 other run before this one')")
    second.page.click("#stop")
    second.wait("document.querySelector('#notice .notice').textContent.includes('Stopped')")
    second.run("What is there instead?")
    second.wait("document.querySelector('#notice .notice').textContent.includes('1 other run before this one')")
    second.wait("document.querySelector('#player .progress-text')?.textContent.includes('queue')")
    assert second.page.evaluate("document.querySelector('#player .progress-text').getClientRects().length") == 0
    first.page.click("#stop")
    second.wait(f"document.querySelector('.asked').textContent.includes('instead') && {FINISHED}")
    assert "never to be seen" not in server.backend.closed
    until(second, lambda: line(second, server.address) == 0)
    second.page.wait_for_timeout(500)  # the turn that nobody needed any more has come, and changes nothing
    second.page.click(".files summary")
    assert second.page.locator("[data-file=race]").is_enabled() and second.page.locator("#run").is_enabled()


@pytest.mark.night
def test_a_race_stopped_before_its_turn_leaves_everything_as_it_was(tabs: Tabs, server: Server) -> None:
    first, second = tabs
    before = second.text(".asked")
    first.run("slowly, before the other")
    first.wait("document.querySelector('.asked').textContent.includes('before the other')")
    second.run("never to be seen")
    second.page.click("#stop")
    second.wait("!document.querySelector('#run').disabled")
    first.page.click("#stop")
    until(first, lambda: "slowly, before the other" in server.backend.closed)
    first.run("What is there?")
    first.wait(f"document.querySelector('.asked').textContent.includes('What is there') && {FINISHED}")
    second.wait("document.querySelector('#notice .notice').textContent.includes('Stopped')")
    second.page.click(".files summary")
    assert second.page.locator("[data-file=race]").is_enabled() and second.text(".asked") == before
    assert "never to be seen" not in server.backend.closed


@pytest.mark.night
def test_a_visitor_for_whom_there_is_no_room_reads_so_and_can_try_again(tabs: Tabs, server: Server) -> None:
    first, late = tabs
    first.run("slowly, while many wait")
    first.wait("document.querySelector('.asked').textContent.includes('many wait')")
    computes = first.page.evaluate("gradio_config.dependencies.findIndex((d) => d.outputs.length === 2 && d.queue)")
    crowd = range(36)  # with the runs of the other tests less than the 60 of one address in a minute
    asked = [{"data": [], "fn_index": computes, "session_hash": f"visitor {number}"} for number in crowd]
    join = f"{server.address}gradio_api/queue/join"
    answers = [first.page.request.post(join, data=each).status for each in asked]
    assert set(answers) == {200, 503} and answers.index(503) >= 8
    late.run("What is there, if I may?")
    late.wait("document.querySelector('#notice .notice').textContent.includes('runs are waiting already')")
    late.wait("!document.querySelector('#run').disabled && document.querySelector('#stop').disabled")
    first.page.click("#stop")
    until(first, lambda: "slowly, while many wait" in server.backend.closed)
    until(late, lambda: line(late, server.address) == 0)
    late.run("What is there, if I may?")
    late.wait(f"document.querySelector('.asked').textContent.includes('if I may') && {FINISHED}")
    assert late.errors and all("503" in error for error in late.errors)
    late.errors.clear()


def test_a_run_that_cannot_begin_says_so_and_can_be_tried_again(tab: Visit) -> None:
    before = tab.text(".asked")
    tab.page.route("**/run/predict*", lambda route: route.fulfill(status=500, json={"error": None}))
    tab.run("What is there, if it begins?")
    tab.wait("document.querySelector('#notice .notice').textContent.includes('did not start')")
    assert tab.page.locator("#run").is_enabled() and tab.page.locator("#stop").is_disabled()
    assert tab.text(".asked") == before
    tab.page.unroute("**/run/predict*")
    tab.run("What is there, if it begins?")
    tab.wait(f"document.querySelector('.asked').textContent.includes('if it begins') && {FINISHED}")
    assert not tab.text("#notice").strip()
    assert tab.errors and all("500" in error for error in tab.errors)
    tab.errors.clear()


def test_a_run_that_finds_no_server_is_not_dead_without_a_word(tab: Visit) -> None:
    tab.page.route("**/run/predict*", lambda route: route.abort())
    tab.run("What is there, if anybody answers?")
    tab.wait("document.body.textContent.toLowerCase().includes('connection')")
    tab.page.unroute("**/run/predict*")
    tab.errors.clear()


@pytest.mark.night
def test_an_experiment_behind_a_race_says_that_it_waits_and_starts_by_itself(
    tabs: Tabs, server: Server
) -> None:
    first, second = tabs
    first.run("slowly, before what another finds")
    first.wait("document.querySelector('.asked').textContent.includes('another finds')")
    second.page.click("#lab-image-ablation .lab-run")
    notice = "document.querySelector('#lab-image-ablation .notice')"
    second.wait(f"{notice}.textContent.includes('1 other run before this one')")
    second.run("What is there behind both?")
    second.wait("document.querySelector('#notice .notice').textContent.includes('2 other runs before this one')")
    first.page.click("#stop")
    second.wait(f"document.querySelector('.asked').textContent.includes('behind both') && {FINISHED}")
    second.wait(LAB_READY.format(name="image-ablation"))
    assert "tokens per target pass" in second.text("#lab-image-ablation .answer")


def test_two_visitors_do_not_see_each_other(tabs: Tabs) -> None:
    one, two = tabs
    one.run("The question of one visitor")
    one.wait("document.querySelector('.asked').textContent.includes('one visitor')")
    two.run("The question of the other")
    one.wait(FINISHED)
    two.wait(FINISHED)
    assert "one visitor" in one.text(".asked")
    assert "the other" in two.text(".asked")


@pytest.mark.night
def test_an_experiment_stopped_before_its_turn_leaves_its_answer(tabs: Tabs, server: Server) -> None:
    first, second = tabs
    second.page.click("#lab-image-ablation .lab-run")
    second.wait("document.querySelectorAll('#lab-image-ablation .chart .main-svg').length >= 2")
    second.wait(LAB_READY.format(name="image-ablation"))
    first.run("slowly, before an experiment")
    first.wait("document.querySelector('.asked').textContent.includes('before an experiment')")
    second.page.click("#lab-image-ablation .lab-run")
    second.page.click("#lab-image-ablation .lab-stop")
    stopped = "document.querySelector('#lab-image-ablation .notice').textContent.includes('Stopped')"
    second.wait(f"{stopped} && {LAB_READY.format(name='image-ablation')}")
    first.page.click("#stop")
    until(first, lambda: "slowly, before an experiment" in server.backend.closed)
    until(first, lambda: line(first, server.address) == 0)
    second.page.wait_for_timeout(1000)
    assert second.page.evaluate(stopped) and "tokens per target pass" in second.text("#lab-image-ablation .answer")
