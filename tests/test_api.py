"""Endpoints for programs: what they are, what they answer, what they refuse, and that nobody disturbs anybody."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import gradio as gr
import httpx
import pytest
from gradio.utils import get_function_description
from gradio_client import Client, handle_file
from gradio_client.exceptions import AppError
from PIL import Image
from support.served_page import free_port
from support.visitor import Handlers, Visitor
from support.visual_traces import FakeBackend, synthetic_recorded

from specllava.config import DecodingConfig
from specllava.config import Limits
from visual.page.api import ENDPOINTS
from visual.page.app_state import AppState, Models
from visual.page.controls import FIELDS
from visual.page.layout import build_page
from visual.page.model_choice import DraftChoices
from visual.page.run_requests import RunRequests
from visual.page.serving import serve
from visual.player.recorded import recorded_race

ROOT = Path(__file__).resolve().parents[1]
NAMES = [f"/{endpoint.name}" for endpoint in ENDPOINTS]
PLENTY = Limits(runs_per_minute=10_000, calls_per_minute=10_000)
PASSWORDS = {"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}
STEP = 0.02  # seconds of an event whose question begins with "slowly"


class Site:
    """A served page over a stand-in for the models."""

    def __init__(self, folder: Path, limits: Limits = PLENTY, root_path: str = "", **models: Any) -> None:
        self.backend = FakeBackend(pace=STEP / 25)
        races = synthetic_recorded(folder, 1)
        self.state = AppState(lambda: self.backend, races, requests=RunRequests(limits), **models)
        self.page: gr.Blocks = build_page(self.state)
        self.address = serve(self.page, "127.0.0.1", free_port(), self.state, block=False, root_path=root_path)
        self.picture = str(races[0].image)
        self.http = httpx.Client(base_url=f"{self.address}gradio_api/", timeout=60)  # one: each reads certificates

    def uploaded(self) -> dict[str, Any]:
        """File data of the picture, uploaded."""
        files = {"files": ("race.png", Path(self.picture).read_bytes())}
        (path,) = self.http.post("upload", files=files).json()
        return {"path": path, "meta": {"_type": "gradio.FileData"}}

    def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        return self.http.post(f"call/{path}", json=body, headers=headers)

    def told(self, path: str, body: Any, **headers: str) -> tuple[str, Any]:
        """The kind and the content of the last event of a call."""
        call = self.post(path, body, **headers).json()["event_id"]
        lines = self.http.get(f"call/{path}/{call}").text.splitlines()
        *_, kind, content = [line for line in lines if line]
        return kind.removeprefix("event: "), json.loads(content.removeprefix("data: "))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("recorded"))
    yield made
    made.page.close()


@pytest.fixture(scope="module")
def client(site: Site) -> Iterator[Client]:
    made = Client(site.address, verbose=False)
    yield made
    made.close()


def wait_for(what: Callable[[], Any], seconds: float = 20.0) -> float:
    """Wait until something is so. Return how long it took."""
    began = time.monotonic()
    while not what():
        assert time.monotonic() - began < seconds
        time.sleep(0.005)
    return time.monotonic() - began


def test_a_system_turn_reaches_the_pair_as_it_was_sent(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answer = list[Any](), site.backend.answer

    def spy(image: Any, messages: Any, config: DecodingConfig) -> Any:
        asked.append(messages)
        return answer(image, "What?", config)

    monkeypatch.setattr(FakeBackend, "answer", lambda _, *given: spy(*given))
    for system in (" Be brief.\n", ""):
        assert site.told("v2/generate", {"question": "What?\n", "system": system})[0] == "complete"
    turns = [{"role": "system", "content": " Be brief.\n"}, {"role": "user", "content": "What?\n"}]
    assert asked == [turns, "What?\n"]


# --- what they are ------------------------------------------------------------------------------------------------


def test_these_endpoints_are_public_and_no_other(site: Site, client: Client) -> None:
    listed = client.view_api(return_format="dict", print_info=False)
    assert list(listed["named_endpoints"]) == NAMES and not listed["unnamed_endpoints"]
    with urllib.request.urlopen(f"{site.address}gradio_api/openapi.json") as answer:
        paths = json.load(answer)["paths"]
    assert {path for path in paths if "/call/" in path and "{event_id}" not in path} == {
        f"/gradio_api/call/v2{name}" for name in NAMES
    }
    assert sum(handler.api_visibility != "private" for handler in site.page.fns.values()) == len(NAMES)


def test_parameters_are_the_options_with_their_names_and_defaults(client: Client) -> None:
    for found in client.view_api(return_format="dict", print_info=False)["named_endpoints"].values():
        image, question, *options = found["parameters"]
        assert "filepath" in image["python_type"]["type"] and question["type"] == {"type": "string"}
        defaults = {one["parameter_name"]: one["parameter_default"] for one in options}
        assert list(defaults) == [*FIELDS, "more_images", "system"]
        assert (defaults.pop("more_images"), defaults.pop("system")) == ([], "")
        assert DecodingConfig(**defaults) == DecodingConfig()
        assert all(one["type"] for one in options), "every option has a type"


def test_a_model_that_looks_for_tools_reads_what_each_is_for(site: Site) -> None:
    """MCP tools are made of this: the description, and a line for every parameter."""
    for handler in site.page.fns.values():
        if handler.api_visibility == "public":
            about, parameters, returns = get_function_description(handler.fn)
            assert about.startswith("Answer a question about a picture") and returns
            assert [name for name, said in parameters.items() if not said] == ["request"], "gradio's own"


# --- what they answer ---------------------------------------------------------------------------------------------


def test_compare_tells_both_answers_and_a_race_file_that_opens(site: Site, client: Client) -> None:
    found = client.predict(handle_file(site.picture), "What?", depth=5, api_name="/compare")
    race = recorded_race("made", json.dumps(found["trace"]).encode())
    alone, together = race.target_only, race.speculative
    assert alone and together and together.config.depth == 5
    for told, trace in ((found["target_only"], alone), (found["speculative"], together)):
        assert (told["answer"], told["tokens"], told["passes"]) == (trace.text, len(trace.token_ids), len(trace.steps))
        assert told["ended"] == "finished"
    assert found["equal"] is (alone.token_ids == together.token_ids) is True and found["first_difference"] is None
    assert found["tau"] == pytest.approx((len(together.token_ids) - 1) / found["passes"])
    assert found["speed_up"] > 1


def test_a_question_about_no_picture_is_answered(site: Site, client: Client) -> None:
    found = client.predict(None, "What is a triangle?", api_name="/compare")
    assert found["equal"] and not found["trace"]["speculative"]["image"]


def test_several_pictures_are_asked_about_in_their_order(site: Site, client: Client, tmp_path: Path) -> None:
    files = [tmp_path / "one.png", tmp_path / "two.png"]
    for file, size in zip(files, ((40, 30), (20, 50)), strict=True):
        Image.new("RGB", size).save(file)
    more = [handle_file(str(file)) for file in files]
    found = client.predict(handle_file(site.picture), "What?", more_images=more, api_name="/compare")
    seen = found["trace"]["speculative"]["image"]
    assert seen.endswith(" pixels, 40 x 30 pixels, 20 x 50 pixels") and found["equal"]


def test_generate_and_the_last_of_the_stream_say_the_same(site: Site, client: Client) -> None:
    asked = handle_file(site.picture), "slowly, what?"
    said = client.predict(*asked, api_name="/generate")
    *updates, last = client.submit(*asked, api_name="/compare_stream")
    assert updates and all(one["ended"] is one["trace"] is one["equal"] is None for one in updates)
    counts = [one["speculative"]["tokens"] for one in updates if one["speculative"]]
    assert counts == sorted(counts)
    assert last["ended"] == "finished" and last["speculative"] == said
    assert said["tau"] > 1 and last["target_only"]["answer"] == said["answer"]


def test_without_a_draft_generate_answers_and_compare_says_why_not(site: Site, client: Client) -> None:
    asked = handle_file(site.picture), "What?"
    assert client.predict(*asked, drafter="none", api_name="/generate")["tau"] == 1.0
    with pytest.raises(AppError, match="drafter none drafts nothing here: choose another, or call /generate"):
        client.predict(*asked, drafter="none", api_name="/compare")


def test_a_call_chooses_a_draft_where_the_page_does(tmp_path: Path) -> None:
    reading = FakeBackend()
    choices = DraftChoices("draft VLM", "distilled", {"EagleVLM": "one layer"})
    site = Site(tmp_path, others={"EagleVLM": Models(lambda: reading, Mock(), Mock())}, choices=choices)
    ways = [site.backend, reading]
    with contextlib.closing(Client(site.address, verbose=False)) as client:
        for number, asked in enumerate(({"draft": "draft VLM"}, {"draft": "EagleVLM"})):
            client.predict(handle_file(site.picture), "What?", **asked, api_name="/generate")
            assert [len(one.closed) for one in ways] == [1] * (number + 1) + [0] * (1 - number)
        for asked, words in (
            ({"draft": "x"}, "there is no draft"),
            ({"draft": "EagleVLM", "drafter": "none"}, "the drafter none uses no draft model"),
        ):
            with pytest.raises(AppError, match=words):
                client.predict(handle_file(site.picture), "What?", **asked, api_name="/generate")
    site.page.close()


# --- what they refuse ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"image": None, "more_images": [{"path": "/etc/passwd"}]}, "no picture came"),
        ({"image": {"path": "/etc/passwd"}}, "no picture came"),
        ({"more_images": 7}, "more_images = 7: a list of pictures is expected"),
        ({"more_images": [{"path": "/etc/passwd"}]}, "no picture came"),
        ({"question": " "}, "the question is empty"),
        ({"question": 7}, "the question is empty"),
        ({"question": "w" * 20_001}, "the question has more than 20,000 characters: shorten it"),
        ({"depth": 99}, "depth = 99: input should be less than or equal to 32"),
        ({"rule": "x"}, "rule = 'x': input should be 'entropy', 'chain'"),
        ({"branching": "x"}, "branching = 'x'"),
        ({"nodes": {"a": [1]}}, "nodes"),
        ({"children": "drawn"}, "drawn children need a temperature above 0"),
        ({"question": "fail"}, "Something went wrong and the call was stopped."),
    ],
)
def test_what_cannot_run_is_refused_in_one_line(
    site: Site, change: dict[str, Any], words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    name = NAMES[len(words) % len(NAMES)]  # each endpoint takes some of them
    kind, said = site.told(f"v2{name}", {"image": site.uploaded(), "question": "What?"} | change)
    assert kind == "error" and words in said["error"]
    assert "\n" not in said["error"] and len(said["error"]) < 400 and "secret" not in said["error"]
    if change.get("question") != "fail":  # which is ours to know about
        assert "Traceback" not in capfd.readouterr().err
    assert site.state.requests.empty


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("v2/compare", {"nope": 1}, "Parameter `nope` is not a valid key-word argument"),
        ("v2/nope", {}, "there is no endpoint '/nope'"),
        ("compare", {"data": ["too", "few"]}, "didn't receive enough input values"),
        ("v2/compare", {"image": PASSWORDS}, "not uploaded"),
        ("v2/compare", {"more_images": [PASSWORDS]}, "not uploaded"),
    ],
)
def test_what_gradio_cannot_make_sense_of_is_answered_without_a_stack_trace(
    site: Site, path: str, body: Any, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    refused = site.post(path, body)
    assert refused.status_code == 400 and words in refused.json()["detail"]
    assert "Traceback" not in capfd.readouterr().err


def test_a_page_of_smaller_limits_offers_and_grants_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each address, which only a trusted proxy may name."""
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "127.0.0.1")
    small = Site(tmp_path, Limits(depth=4, prompt_characters=9, calls_per_minute=4, runs_per_minute=5))
    try:
        one, another = ({"X-Forwarded-For": address} for address in ("203.0.113.1", "203.0.113.2"))
        asked = {"image": small.uploaded(), "question": "What?"}
        with contextlib.closing(Client(small.address, verbose=False)) as client:
            found = client.view_api(return_format="dict", print_info=False)["named_endpoints"]["/generate"]
        assert next(p["parameter_default"] for p in found["parameters"] if p["parameter_name"] == "depth") == 4
        assert small.told("v2/generate", asked, **one)[0] == "complete"
        for change, words in (
            ({"depth": 5}, "depth is 5, and at most 4 are allowed here: choose fewer"),
            ({"question": "w" * 10}, "more than 9 characters: shorten it"),
            ({}, None), ({}, "4 calls came from your address within a minute"),
        ):  # fmt: skip
            kind, said = small.told("v2/generate", asked | change, **one)
            assert kind == ("error" if words else "complete") and (not words or words in said["error"])
        refused = small.post("v2/generate", asked, **one)
        assert refused.status_code == 429 and "5 runs came from your address" in refused.json()["detail"]
        assert small.told("v2/generate", asked, **another)[0] == "complete"
    finally:
        small.page.close()


def test_a_proxy_that_nobody_trusts_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "")
    site = Site(tmp_path, Limits(runs_per_minute=2))
    try:
        codes = [site.post("v2/nope", {}, **{"X-Forwarded-For": f"203.0.113.{n}"}).status_code for n in range(4)]
        assert codes == [400, 400, 429, 429]
    finally:
        site.page.close()


# --- one line for everybody ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_run_ends_within_a_step_once_its_client_is_gone(site: Site, name: str) -> None:
    asked = {"image": site.uploaded(), "question": f"slowly, {name}"}
    call = site.post(f"v2{name}", asked).json()["event_id"]
    with contextlib.suppress(httpx.ReadTimeout):
        site.http.get(f"call/v2{name}/{call}", timeout=0.3)
    assert wait_for(lambda: asked["question"] in site.backend.closed) < 0.5
    wait_for(lambda: site.state.requests.empty)


def test_a_call_that_is_cancelled_ends_and_the_next_one_runs(site: Site, client: Client) -> None:
    asked = handle_file(site.picture), "slowly, cancelled"
    job = client.submit(*asked, api_name="/compare_stream")
    wait_for(lambda: job.outputs())
    assert job.cancel()
    wait_for(lambda: asked[1] in site.backend.closed)
    assert client.predict(handle_file(site.picture), "What?", api_name="/generate")["ended"] == "finished"


def test_a_visitor_of_the_page_is_told_of_calls_that_come_first(site: Site) -> None:
    """Calls wait in gradio's queue alone, before any handler knows of them."""
    asked = {"image": site.uploaded(), "question": "slowly, first"}
    for _ in range(3):
        site.post("v2/generate", asked)
    wait_for(lambda: not site.state.requests.empty)
    handlers = Handlers.of(site.http.get(f"{site.address}config").json())
    click = {"session_hash": "me", "trigger_id": handlers.button, "fn_index": handlers.begin}
    values = handlers.inputs("What?", {})
    begun = site.http.post("run/predict", json=click | {"data": values}).json()
    notice = next(value for value in begun["data"] if isinstance(value, str) and "before this one" in value)
    assert "3 other runs before this one" in notice
    site.state.requests.cancel_session("me")


def test_odd_calls_never_change_another_visitors_run(site: Site, client: Client) -> None:
    asked = handle_file(site.picture), "slowly, undisturbed"
    before = client.predict(*asked, api_name="/compare")["trace"]
    job = client.submit(*asked, api_name="/compare")
    picture, over = site.uploaded(), threading.Event()

    def disturb() -> None:
        odd: list[Any] = [{}, {"image": picture}, {"image": picture, "question": "fail"}, {"depth": -1}, {"x": 1}]
        while not over.is_set():
            for body in odd:
                site.post("v2/compare", body | {"session_hash": client.session_hash} if "x" in body else body)

    threads = [threading.Thread(target=disturb) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        after = job.result(timeout=60)["trace"]
    finally:
        over.set()
        for thread in threads:
            thread.join()
    for lane in ("target_only", "speculative"):
        assert [step["emitted"] for step in after[lane]["steps"]] == [step["emitted"] for step in before[lane]["steps"]]


def test_a_call_and_a_visitor_of_the_page_share_the_one_slot(site: Site, client: Client) -> None:
    handlers = Handlers.of(site.http.get(f"{site.address}config").json())

    async def visit() -> Any:
        async with httpx.AsyncClient(timeout=60) as own:
            return await Visitor(site.address, own, handlers).run("slowly, a visitor")

    wait_for(lambda: site.state.requests.empty)  # of the test before
    job = client.submit(handle_file(site.picture), "slowly, a call", api_name="/compare")
    wait_for(lambda: not site.state.requests.empty)
    visited = asyncio.run(visit())
    assert job.result(timeout=60)["ended"] == "finished" and visited.race is not None
    closed = site.backend.closed
    assert closed.index("slowly, a call") < closed.index("slowly, a visitor")
    assert any("1 other run before" in notice or "Getting ready" in notice for notice in visited.notices)


# --- what the guide says ------------------------------------------------------------------------------------------


def guide(language: str) -> str:
    text = (ROOT / "docs" / "use.md").read_text(encoding="utf-8").split("## From programs\n")[1].split("\n## ")[0]
    (block,) = re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)
    return str(block)


def test_the_guides_python_example_runs_as_it_stands(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    assert guide("py").count("http://127.0.0.1:7860/") == 1
    exec(compile(guide("py").replace("http://127.0.0.1:7860/", site.address), "use.md", "exec"), {})
    said = capsys.readouterr().out
    assert "True" in said and "tokens a pass" in said and "64 tokens" in said


def test_the_guides_curl_example_runs_as_it_stands(site: Site) -> None:
    script = guide("bash").replace("http://127.0.0.1:7860/", site.address)
    said = subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    kind, content = said.stdout.strip().splitlines()[-2:]
    assert kind == "event: complete" and json.loads(content.removeprefix("data: "))[0]["ended"] == "finished"
