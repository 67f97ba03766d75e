"""Endpoints as tools of an MCP server, for models that choose among tools.

A tool's call becomes a call of the endpoint itself, within the process and in the name of the caller's own address. So
it waits in the same line, is held to the same limits and is refused in the same words as that address's other calls.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import anyio
import gradio as gr
import httpx
from gradio.route_utils import API_PREFIX
from gradio.utils import get_function_description, get_upload_folder, is_in_or_equal
from mcp.server.lowlevel import Server
from mcp.server.streamable_http import StreamableHTTPServerTransport
from mcp.types import CallToolResult, TextContent, Tool
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from specllava.core.config import short
from specllava.core.limits import Limits
from visual.page.api import ENDPOINTS, KINDS, MORE

PATH: Final = f"{API_PREFIX}/mcp"
FORMS: Final = (
    f"{KINDS}, as a data URL (data:image/png;base64,…), or the path or address under which it was uploaded to this"
    " server, which fetches nothing from others"
)
NO_PICTURE: Final = f"no picture came: send {FORMS}"


class McpTools:
    """ASGI middleware that serves the endpoints as tools, without sessions. Behind what bounds a request's bytes.

    Endpoints that stream are left out: a tool has one result.

    Args:
        page: whose endpoints they are.
        limits: of the page; the endpoints hold all but that of how many pictures a question has.
    """

    def __init__(self, app: ASGIApp, page: gr.Blocks, limits: Limits) -> None:
        self._app, self._limits = app, limits
        self._tools = [tool_of(page, endpoint.name) for endpoint in ENDPOINTS if not endpoint.streams]
        self._server: Server[Any, Any] = Server(str(page.title))
        self._server.list_tools()(self._list_tools)  # type: ignore[no-untyped-call]
        self._server.call_tool(validate_input=False)(self._call)  # the endpoint refuses in its own words

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].rstrip("/").endswith(PATH):
            await self._app(scope, receive, send)
        elif scope["method"] != "POST":  # a stream of messages that nobody asked for: there are none
            await JSONResponse({"detail": "an MCP client sends POST"}, 405, {"Allow": "POST"})(scope, receive, send)
        else:
            await self._serve(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        transport = StreamableHTTPServerTransport(mcp_session_id=None)
        async with transport.connect() as (messages, answers), anyio.create_task_group() as tasks:
            options = self._server.create_initialization_options()
            tasks.start_soon(partial(self._server.run, messages, answers, options, stateless=True))
            try:
                await transport.handle_request(scope, receive, send)
            finally:  # also of a client that is gone, whose call ends with its task
                tasks.cancel_scope.cancel()

    async def _list_tools(self) -> list[Tool]:
        return self._tools

    async def _call(self, name: str, arguments: dict[str, Any]) -> CallToolResult:
        """Call an endpoint.

        Raises:
            ValueError: its refusal, in one line.
        """
        known = {tool.name: tool.inputSchema["properties"] for tool in self._tools}
        if name not in known:
            raise ValueError(f"there is no tool {short(name)}: there are {', '.join(known)}")
        if unknown := arguments.keys() - known[name]:
            raise ValueError(f"{name} has no parameter {short(min(unknown))}: it has {', '.join(known[name])}")
        request: Any = self._server.request_context.request
        caller = tuple(request.client or ("", 0))
        transport = httpx.ASGITransport(request.app, raise_app_exceptions=False, client=caller)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=None) as client:
            answer = await _answer(client, name, await self._with_files(client, arguments))
        spoken = {key: value for key, value in answer.items() if key != "trace"}  # a model need not read all its trees
        return CallToolResult(content=[TextContent(type="text", text=json.dumps(spoken))], structuredContent=answer)

    async def _with_files(self, client: httpx.AsyncClient, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return a call's arguments with each picture as gradio's file data.

        Raises:
            ValueError: a picture is none, or there are too many.
        """
        files = dict(arguments)
        more, most = files.get(MORE), self._limits.pictures
        if isinstance(more, list):
            if 1 + len(more) > most:  # before one is uploaded
                raise ValueError(f"there are {1 + len(more):,} pictures, at most {most} are shown at once: send fewer")
            files[MORE] = [await _file(client, picture) for picture in more]
        if "image" in files:
            files["image"] = await _file(client, files["image"])
        return files


def tool_of(page: gr.Blocks, name: str) -> Tool:
    """Return an endpoint as MCP describes a tool: pictures are strings, all else is as the endpoint's documentation."""
    function: Any = next(one.fn for one in page.fns.values() if one.api_name == name)
    about, meanings, _ = get_function_description(function)
    properties: dict[str, Any] = {}
    for parameter in page.get_api_info()["named_endpoints"][f"/{name}"]["parameters"]:
        key, meaning = parameter["parameter_name"], meanings[parameter["parameter_name"]]
        picture = {"type": "string", "description": FORMS}
        if key == "image":
            properties[key] = picture
        elif key == MORE:
            properties[key] = {"type": "array", "items": picture, "description": meaning}
        else:
            properties[key] = parameter["type"] | {"description": meaning, "default": parameter["parameter_default"]}
    schema = {"type": "object", "properties": properties, "required": ["image", "question"]}
    return Tool(name=name, description=about, inputSchema=schema)


async def _file(client: httpx.AsyncClient, picture: Any) -> Any:
    """Return the file data of one picture. A data URL is uploaded, within the limits of uploads.

    Raises:
        ValueError: it is no picture, or is refused.
    """
    if not isinstance(picture, str):
        return picture
    if picture.startswith("data:"):
        upload = {"files": ("picture", _decode(picture))}
        (path,) = _check_response(await client.post(f"{API_PREFIX}/upload", files=upload)).json()
    else:
        path = unquote(picture.partition(f"{API_PREFIX}/file=")[2]) or picture
        if not _is_uploaded(path):
            raise ValueError(NO_PICTURE)
    return {"path": path, "meta": {"_type": "gradio.FileData"}}


def _decode(address: str) -> bytes:
    content = address.partition(";base64,")[2]
    try:
        return base64.b64decode(content or "no content", validate=True)
    except ValueError:
        raise ValueError(NO_PICTURE) from None


def _is_uploaded(path: str) -> bool:
    try:
        return is_in_or_equal(path, get_upload_folder()) and Path(path).is_file()
    except (OSError, ValueError):  # too long for a path, or a zero in it
        return False


async def _answer(client: httpx.AsyncClient, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Make a call and return its answer.

    Raises:
        ValueError: it is refused, or has failed.
    """
    endpoint = f"{API_PREFIX}/call/v2/{name}"
    call = _check_response(await client.post(endpoint, json=arguments)).json()["event_id"]
    events = await client.get(f"{endpoint}/{call}")
    *_, kind, content = [line for line in events.text.splitlines() if line]
    answer = json.loads(content.removeprefix("data: "))
    if kind != "event: complete":
        raise ValueError((answer or {}).get("error") or "the call has failed")
    return dict(answer[0])


def _check_response(response: httpx.Response) -> httpx.Response:
    """Return a response that is no refusal.

    Raises:
        ValueError: it is one; the words of the server.
    """
    if not response.is_success:
        refused = response.headers.get("content-type", "").startswith("application/json")
        raise ValueError(str(response.json()["detail"]) if refused else f"the server answered {response.status_code}")
    return response
