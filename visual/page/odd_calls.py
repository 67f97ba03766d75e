"""Calls that gradio cannot make sense of: each is answered with one line, and costs no stack trace."""

from __future__ import annotations

from typing import Any

import gradio as gr
from starlette.requests import Request
from starlette.responses import JSONResponse


async def refuse_call(request: Request, error: Exception) -> JSONResponse:
    """Answer a call of an endpoint or a parameter that is not there.

    Raises:
        Exception: the error, if it is not about a call.
    """
    if "/call/" not in request.url.path:
        raise error
    line = f"there is no endpoint {error}" if isinstance(error, KeyError) else str(error)
    return JSONResponse({"detail": " ".join(line.split())}, 400)


HANDLERS: dict[Any, Any] = {KeyError: refuse_call, TypeError: refuse_call}


def check_early(page: gr.Blocks, endpoint: int) -> None:
    """Let gradio check a call's number of values and its files before the call waits; it answers 400 to odd ones.

    Args:
        endpoint: number of the handler, whose own checks come later.
    """
    handler = page.fns[endpoint]
    handler.validator = lambda *values: [None] * len(values)  # each of them may pass
