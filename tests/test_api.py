"""The API of a served page, called as ``docs`` say: by Gradio's client, and by requests of its own making."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import gradio as gr
import pytest
from gradio_client import Client, handle_file
from gradio_client.exceptions import AppError
from support.shipped_races import ASSETS

from specllava.config import DecodingConfig
from specllava.pair import Pair
from visual.page.api import checked_path
from visual.player.recorded import recorded_race

PICTURE = ASSETS / "examples" / "1-describe.png"
QUESTION = "How many objects are there?"


@pytest.fixture(scope="module")
def client(server: str) -> Client:
    return Client(server, verbose=False)


def test_compare_gives_both_answers_and_the_race_file(client: Client, pair: Pair) -> None:
    found = client.predict(handle_file(PICTURE), QUESTION, {"rule": "chain"}, api_name="/compare")
    alone = pair.generate(PICTURE, QUESTION, DecodingConfig(drafter="none"))
    assert found["target_only"]["answer"] == found["speculative"]["answer"] == alone.text and found["equal"] is True
    assert found["target_only"]["passes"] == len(alone.steps) and found["speculative"]["passes"] < len(alone.steps)
    assert found["speculative"]["tokens"] == len(alone.token_ids)
    race = recorded_race("found", json.dumps(found["trace"]).encode())
    assert race.lead.config.rule == "chain" and race.lead.text == alone.text


def test_generate_gives_one_answer_and_needs_no_picture(client: Client, pair: Pair) -> None:
    found = client.predict(None, QUESTION, {"max_new_tokens": 8}, api_name="/generate")
    alone = pair.generate(None, QUESTION, DecodingConfig(drafter="none", max_new_tokens=8))
    assert (found["answer"], found["ended"]) == (alone.text, alone.finish_reason)


@pytest.mark.parametrize(
    ("question", "options", "line"),
    [
        ("", {}, "the question is empty"),
        ("x" * 20_001, {}, "the question has more than 20,000 characters"),
        ("Hi", {"rule": "forest"}, "rule = 'forest'"),
        ("Hi", {"nodes": 1000}, "nodes = 1000"),
        ("Hi", {"no": 1}, "there is no option 'no'"),
        ("Hi", [1], "names and values are expected"),
        ("Hi", {"drafter": "none"}, "drafts nothing here"),
    ],
)
def test_what_cannot_run_is_refused_in_one_line(client: Client, question: str, options: Any, line: str) -> None:
    with pytest.raises(AppError) as refused:
        client.predict(None, question, options, api_name="/compare")
    assert line in str(refused.value) and "Traceback" not in str(refused.value)


def test_no_file_of_the_server_and_no_address_is_read(server: str, tmp_path: Path) -> None:
    """A bare path would name any file of the server: only what was uploaded, and is marked so, is opened."""
    secret = tmp_path / "secret.png"
    secret.write_bytes(PICTURE.read_bytes())
    marked = {"path": str(secret), "meta": {"_type": "gradio.FileData"}}
    for odd in ({"path": str(secret)}, marked, {**marked, "path": "https://example.com/a.png"}, {"path": 3}, {}):
        with pytest.raises(ValueError, match="no picture came"):
            checked_path(odd)
        body = json.dumps({"data": [odd, QUESTION, {}]}).encode()
        request = urllib.request.Request(
            f"{server}gradio_api/call/generate", body, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request) as answer:
                event = json.load(answer)["event_id"]
            with urllib.request.urlopen(f"{server}gradio_api/call/generate/{event}") as answer:
                said = answer.read().decode()
        except urllib.error.HTTPError as refused:
            said = refused.read().decode()
        assert '"passes"' not in said, odd
    assert checked_path(None) is None


def test_the_endpoints_describe_themselves(client: Client) -> None:
    named = client.view_api(return_format="dict")["named_endpoints"]
    assert set(named) == {"/compare", "/generate"}
    assert [one["parameter_name"] for one in named["/compare"]["parameters"]] == ["image", "question", "options"]
    assert isinstance(gr.__version__, str)
