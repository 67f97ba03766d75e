"""Endpoints as MCP tools, driven by the client of the ``mcp`` package."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import jsonschema
import pytest
from gradio_client import Client, handle_file
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, Tool
from support.amount import sample
from test_api import PLENTY, Site, wait_for

from specllava.core.limits import Limits
from visual.page.controls import FIELDS

TOOLS = ["compare", "generate"]
FORMS = ["data URL", "path", "address", "address behind a proxy"]


@pytest.fixture(autouse=True, scope="module")
def turned_on() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADIO_MCP_SERVER", "true")
        patch.setenv("FORWARDED_ALLOW_IPS", "127.0.0.1")
        yield


@pytest.fixture(scope="module")
def site(turned_on: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("recorded"))
    yield made
    made.page.close()


@contextlib.asynccontextmanager
async def connected(site: Site, **headers: str) -> AsyncIterator[ClientSession]:
    async with (
        httpx.AsyncClient(headers=headers, timeout=60) as http,
        streamable_http_client(f"{site.address}gradio_api/mcp/", http_client=http) as (read, write, _),
        ClientSession(read, write) as session,
    ):
        await session.initialize()
        yield session


def listed(site: Site) -> list[Tool]:
    async def ask() -> list[Tool]:
        async with connected(site) as session:
            return (await session.list_tools()).tools

    return asyncio.run(ask())


def called(site: Site, tool: str, arguments: dict[str, Any], **headers: str) -> CallToolResult:
    async def ask() -> CallToolResult:
        async with connected(site, **headers) as session:
            return await session.call_tool(tool, arguments)

    return asyncio.run(ask())


def words(result: CallToolResult) -> str:
    (content,) = result.content
    assert content.type == "text"
    return content.text


def data_url(picture: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(picture).decode()}"


def picture_as(form: str, site: Site) -> str:
    if form == "data URL":
        return data_url(Path(site.picture).read_bytes())
    path = site.uploaded()["path"]
    base = {"path": "", "address": f"{site.address}gradio_api/file="}.get(form, "https://host/demo/gradio_api/file=")
    return base + (quote(path) if base else path)


def test_every_endpoint_with_one_result_is_a_tool_and_its_schema_has_the_options(site: Site) -> None:
    tools = listed(site)
    assert [tool.name for tool in tools] == TOOLS
    for tool in tools:
        jsonschema.Draft202012Validator.check_schema(tool.inputSchema)
        properties = tool.inputSchema["properties"]
        assert list(properties) == ["image", "question", *FIELDS, "more_images"]
        assert all(one["description"] for one in properties.values()) and tool.description
        usual = {name: one["default"] for name, one in properties.items() if "default" in one}
        jsonschema.validate(usual | {"image": "x"}, tool.inputSchema)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", sample(tuple(TOOLS), 1))
def test_a_picture_in_every_form_gets_the_answer_of_the_plain_endpoint(site: Site, name: str, form: str) -> None:
    asked = {"question": "What?", "depth": 5}
    arguments = asked | {"image": picture_as(form, site)}
    jsonschema.validate(arguments, next(tool for tool in listed(site) if tool.name == name).inputSchema)
    with contextlib.closing(Client(site.address, verbose=False)) as client:
        plain = client.predict(handle_file(site.picture), **asked, api_name=f"/{name}")
    answer = called(site, name, arguments)
    assert not answer.isError and answer.structuredContent == plain
    assert json.loads(words(answer)) == {key: value for key, value in plain.items() if key != "trace"}


def test_several_pictures_are_asked_about_in_their_order(site: Site) -> None:
    image, *more = (picture_as(form, site) for form in FORMS)
    answer = called(site, "compare", {"image": image, "question": "What?", "more_images": more})
    assert not answer.isError
    assert answer.structuredContent["trace"]["speculative"]["image"].count("pixels") == len(FORMS)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"image": None, "more_images": ["a"]}, "no picture came"),
        ({"image": "https://example.com/picture.png"}, "no picture came"),
        ({"image": "/etc/passwd"}, "no picture came"),
        ({"image": "../../etc/passwd"}, "no picture came"),
        ({"image": "http://127.0.0.1/gradio_api/file=/etc/passwd"}, "no picture came"),
        ({"image": "a\0b"}, "no picture came"),
        ({"image": "x" * 10_000}, "no picture came"),
        ({"image": "data:image/png"}, "no picture came"),
        ({"image": "data:image/png;base64,@@@@"}, "no picture came"),
        ({"image": "data:image/png;base64,é"}, "no picture came"),
        ({"image": data_url(b"GIF8 no picture")}, "is not a readable image"),
        ({"image": {"path": "https://example.com/x.png", "meta": {"_type": "gradio.FileData"}}}, "does not fetch"),
        ({"image": {"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}}, "not uploaded"),
        ({"more_images": 7}, "more_images = 7: a list of pictures is expected"),
        ({"more_images": ["data:;base64,AAAA"] * 10_000}, "there are 10,001 pictures, at most 8 are shown"),
        ({"question": ""}, "the question is empty"),
        ({"question": 7}, "the question is empty"),
        ({"depth": 99}, "depth = 99: input should be less than or equal to 32"),
        ({"dept": 9}, "generate has no parameter 'dept': it has image, question"),
        ({"question": "fail"}, "Something went wrong and the call was stopped."),
    ],
)
def test_what_cannot_run_is_refused_in_one_line_of_ours(site: Site, change: dict[str, Any], said: str) -> None:
    answer = called(site, "generate", {"image": picture_as("path", site), "question": "What?"} | change)
    line = words(answer)
    assert answer.isError and said in line
    assert "\n" not in line and len(line) < 600 and "Client error" not in line and "secret" not in line


@pytest.mark.parametrize("name", ["compare_stream", "upload", "../upload"])
def test_no_other_handler_is_a_tool(site: Site, name: str) -> None:
    answer = called(site, name, {"image": "", "question": "What?"})
    assert answer.isError and words(answer) == f"there is no tool '{name}': there are compare, generate"


def test_each_caller_has_limits_of_its_own_whichever_way_it_calls(tmp_path: Path) -> None:
    small = Site(tmp_path, Limits(calls_per_minute=3, runs_per_minute=4))
    try:
        one, another = ({"X-Forwarded-For": address} for address in ("203.0.113.1", "203.0.113.2"))
        asked = {"image": picture_as("path", small), "question": "What?"}
        plain = {"image": small.uploaded(), "question": "What?"}
        assert small.told("v2/generate", plain, **one)[0] == "complete"
        answers = [called(small, "generate", asked, **one) for _ in range(4)]
        assert [answer.isError for answer in answers] == [False, False, True, True]
        assert words(answers[2]).startswith("3 calls came from your address within a minute")
        assert words(answers[3]).startswith("4 runs came from your address within a minute")
        assert not called(small, "generate", asked, **another).isError
        assert not called(small, "generate", asked).isError
    finally:
        small.page.close()


def test_a_run_ends_once_its_client_is_gone(site: Site) -> None:
    asked = {"image": picture_as("path", site), "question": "slowly, gone"}

    async def leave() -> None:
        async with connected(site) as session:
            call = asyncio.create_task(session.call_tool("generate", asked))
            while site.state.requests.empty:
                await asyncio.sleep(0.01)
            call.cancel()

    asyncio.run(leave())
    assert wait_for(lambda: asked["question"] in site.backend.closed) < 1
    wait_for(lambda: site.state.requests.empty)


def test_there_are_no_tools_unless_the_environment_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRADIO_MCP_SERVER")
    off = Site(tmp_path, PLENTY)
    try:
        assert httpx.post(f"{off.address}gradio_api/mcp/", json={}).status_code in (404, 405)
    finally:
        off.page.close()


def test_a_browser_that_opens_the_address_is_answered(site: Site) -> None:
    assert httpx.get(f"{site.address}gradio_api/mcp").status_code == 405
