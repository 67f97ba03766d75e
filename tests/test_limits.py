"""Limits: one place for the numbers, set by options or the environment, and held whatever a page or a call sends."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest
import tyro
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from specllava.cli.page_options import PageOptions
from specllava.config import RULE_CHOICES, DecodingConfig, options_read
from specllava.config import Limits, highest
from specllava.models.images import MAX_PIXELS
from visual.page import admission
from visual.page.admission import ENVELOPE, Admission, RunRate, TooManyRuns
from visual.page.controls import COUNTS, FIELDS, OptionRefused, decoding_config, described_settings, limit_option
from visual.page.request_bodies import CallBodies
from visual.page.run_requests import QueuePosition, RunRequest, RunRequests
from visual.player import bounds, recorded

SMALL = Limits(new_tokens=32, depth=4, nodes=10, width=2, branches=2, list_items=3)


# --- where the numbers come from --------------------------------------------------------------------------------------


def test_bounds_of_options_and_files_are_those_of_the_limits() -> None:
    """A page's limit may be smaller than such a bound and never larger, so nothing granted is refused further on."""
    assert (highest("prompt_characters"), highest("nodes") + 1) == (bounds.MAX_PROMPT_CHARACTERS, bounds.MAX_TREE)
    assert (highest("trace_bytes"), highest("turns")) == (recorded.MAX_BYTES, recorded.MAX_TURNS)
    assert highest("pixels") == MAX_PIXELS
    for option, limit in COUNTS.items():
        DecodingConfig(**{option: highest(limit)})
        beyond = {option: highest(limit) + 1}
        with pytest.raises(OptionRefused if option == "max_new_tokens" else ValidationError):  # the page's alone
            decoding_config(beyond)
        assert option in described_settings(beyond)["refused"]
    for limit in {*COUNTS.values(), "list_items", "pixels", "pictures", "trace_bytes", "turns"}:
        for wrong in (0, -1, highest(limit) + 1, "x", None):
            with pytest.raises(ValidationError, match=limit):
                Limits(**{limit: wrong})


def test_the_command_line_and_the_environment_set_every_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(3)
    usual = Limits()
    values = {limit.name: rng.randint(1, max(1, int(getattr(usual, limit.name)))) for limit in fields(Limits)}
    words = [part for name, value in values.items() for part in (f"--limits.{name.replace('_', '-')}", str(value))]
    assert tyro.cli(PageOptions, args=words).limits == Limits(**values)
    for name, value in values.items():
        monkeypatch.setenv(f"SPECLLAVA_{name.upper()}", str(value))
    assert tyro.cli(PageOptions, args=[]).limits == Limits(**values)
    assert tyro.cli(PageOptions, args=["--limits.nodes", "7"]).limits.nodes == 7


# --- options ----------------------------------------------------------------------------------------------------------


def test_an_option_beyond_a_limit_is_refused_by_name_number_limit_and_way_out() -> None:
    settings: dict[str, Any] = {"max_new_tokens": 20, "depth": 4, "nodes": 10, "width": 2, "max_branches": 2}
    assert decoding_config(settings, SMALL).depth == 4
    for option, limit in COUNTS.items():
        most = getattr(SMALL, limit)
        with pytest.raises(OptionRefused) as refused:
            decoding_config(settings | {option: most + 1}, SMALL)
        assert str(refused.value) == f"{option} is {most + 1}, and at most {most} are allowed here: choose fewer"
        assert list(described_settings(settings | {option: most + 1}, SMALL)["refused"]) == [option]
    for rule, lists in (
        ("fixed", {"branching": [1] * 4}), ("fixed", {"branching": [3]}), ("sequoia", {"rank_acceptance": [0.1] * 4}),
    ):  # fmt: skip
        with pytest.raises(OptionRefused, match=f"{next(iter(lists))} is .* at most"):
            decoding_config({"rule": rule, **settings, **lists}, SMALL)


def test_what_decoding_does_not_read_is_not_refused() -> None:
    """Nobody can change an option that the form hides."""
    for rule in RULE_CHOICES:
        read = options_read("model", rule, 0.0)
        within = {name: getattr(SMALL, limit) for name, limit in COUNTS.items() if name in read}
        listed = {"branching": [2, 1], "rank_acceptance": [0.5]}
        beyond = {name: highest(limit) for name, limit in COUNTS.items() if name not in read}
        assert decoding_config({"rule": rule, **within, **listed, **beyond}, SMALL).rule == rule


def test_the_form_offers_no_default_beyond_a_limit() -> None:
    for name, limit in COUNTS.items():
        default = FIELDS[name].default
        assert limit_option(name, default, SMALL) == min(default, getattr(SMALL, limit))
    assert limit_option("temperature", 0.5, SMALL) == 0.5


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_race_file_beyond_the_pages_bytes_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "race.json"
    file.write_bytes(b" " * 1001)
    with pytest.raises(ValueError, match="it has 1,001 bytes, and at most 1,000 are read"):
        recorded.read_recorded(file, 1000)


# --- requests ---------------------------------------------------------------------------------------------------------


def client(limits: Limits) -> TestClient:
    async def answer(request: Any) -> PlainTextResponse:
        return PlainTextResponse(str(len(await request.body())))

    site = Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST"])])
    return TestClient(Admission(site, empty_page(), limits))


def empty_page() -> gr.Blocks:
    with gr.Blocks() as page:
        page.state_holder = defaultdict(object)
    return page


def test_a_request_that_is_too_large_or_of_unknown_length_is_not_read() -> None:
    page = client(Limits(upload_bytes=1, question_bytes=9))
    most = 9 + ENVELOPE
    assert page.post("/gradio_api/upload", content=b"x" * most).text == str(most), "of all files together"
    assert page.post("/gradio_api/upload", content=b"x" * (most + 1)).status_code == 413
    most = CallBodies(empty_page(), Limits()).most_bytes
    assert page.post("/gradio_api/cancel", content=b'"%s"' % (b"x" * (most - 2))).text == str(most)
    refused = page.post("/gradio_api/cancel", content=b"x" * (most + 1))
    assert refused.status_code == 413 and f"at most {most:,} are read" in refused.json()["detail"]
    for length in ("9" * 5000, "-1", "a", ""):
        assert page.post("/gradio_api/call/x", headers={"Content-Length": length}).status_code in (411, 413)
    assert page.post("/gradio_api/run/predict", content=iter([b"x"])).status_code == 411
    assert page.get("/gradio_api/info").status_code == 200


def test_an_address_begins_so_many_runs_in_a_minute_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(admission, "time", SimpleNamespace(monotonic=lambda: clock.now))
    page = client(Limits(runs_per_minute=3))
    for path in ("queue/join", "call/compare", "call/v2/compare"):
        assert page.post(f"/gradio_api/{path}", content=b"").status_code == 200
    clock.now += 20.5
    for path in ("queue/join", "call/compare"):
        refused = page.post(f"/gradio_api/{path}", content=b"")
        assert refused.status_code == 429 and refused.headers["Retry-After"] == "40"
        assert refused.json()["detail"].startswith("3 runs came from your address within a minute")
    assert page.post("/gradio_api/cancel", content=b"").status_code == 200, "that begins no run"
    clock.now += 40
    assert page.post("/gradio_api/queue/join", content=b"").status_code == 200


def test_addresses_do_not_share_what_they_may_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(admission, "time", SimpleNamespace(monotonic=lambda: clock.now))
    rng, rate = random.Random(5), RunRate("runs", 4)
    begun: dict[str, list[float]] = {}
    for _ in range(2000):
        clock.now += rng.expovariate(1.0)
        address = rng.choice("abcdefgh")
        recent = [when for when in begun.get(address, []) if when > clock.now - 60]
        if len(recent) < 4:
            rate.begin(address)
            recent.append(clock.now)
        else:
            with pytest.raises(TooManyRuns, match="4 runs came from your address within a minute"):
                rate.begin(address)
        begun[address] = recent
    clock.now += 61
    rate.begin("z")
    assert list(rate._begun) == ["z"], "addresses that are gone are forgotten"


# --- the waiting line -----------------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("visual.page.run_requests.time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def waits(requests: RunRequests, clock: SimpleNamespace) -> Callable[[str], RunRequest]:
    def ask(session: str) -> RunRequest:
        clock.now += 1
        request = RunRequest(None, "", {})
        request.asked = clock.now
        requests.request((session, "race"), request)
        return request

    return ask


def test_a_visitor_is_told_their_place_and_an_estimate_from_the_latest_runs(clock: SimpleNamespace) -> None:
    requests = RunRequests()
    ask = waits(requests, clock)
    first, second, third = ask("first"), ask("second"), ask("third")
    assert requests.position(("third", "race")) == QueuePosition(2) and requests.position(("nobody", "race")) is None
    requests.begin(first)
    assert requests.position(("first", "race")) is None
    clock.now += 10
    requests.remove(("first", "race"), first)
    requests.begin(second)
    clock.now += 4
    assert requests.position(("third", "race")) == QueuePosition(1, 6.0)
    ask("fourth")
    assert requests.position(("fourth", "race")) == QueuePosition(2, 15.0)
    clock.now += 100
    fourth = requests.position(("fourth", "race"))
    assert fourth == QueuePosition(2), "how long a run takes that has taken longer than others is not known"
    requests.stop(("third", "race"))
    assert third.state == "stopped" and requests.position(("fourth", "race")) == QueuePosition(1)


def test_a_run_of_the_lab_is_expected_to_take_as_long_as_its_kind_does(clock: SimpleNamespace) -> None:
    requests = RunRequests()

    def ask(key: tuple[str, str], seconds: float) -> RunRequest:
        request = RunRequest(None, "", {})
        requests.request(key, request)
        requests.begin(request)
        clock.now += seconds
        return request

    for kind, seconds in (("race", 2.0), ("rules", 30.0)):
        requests.remove(("one", kind), ask(("one", kind), seconds))
    ask(("two", "rules"), 5.0)
    requests.request(("three", "race"), RunRequest(None, "", {}))
    assert requests.position(("three", "race")) == QueuePosition(1, 25.0)
    requests.request(("two", "sweep"), RunRequest(None, "", {}))
    requests.request(("four", "race"), RunRequest(None, "", {}))
    assert requests.position(("four", "race")) == QueuePosition(3), "no sweep has ended yet"


def test_calls_that_wait_count_if_they_came_before(clock: SimpleNamespace) -> None:
    requests = RunRequests()
    request = waits(requests, clock)("me")
    calls = [request.asked - 1, request.asked - 2, request.asked + 1]
    assert requests.position(("me", "race"), calls) == QueuePosition(2)
