"""Requests that gradio cannot make sense of: each is answered with one line, and costs no stack trace."""

from __future__ import annotations

import errno
import traceback
from textwrap import shorten
from typing import Final

import gradio as gr
from gradio.route_utils import FnIndexInferError

FULL_DISK: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
WRONG_CALL: Final = (KeyError, TypeError, FnIndexInferError)


def answer_failure(path: str, error: Exception) -> tuple[int, str]:
    """Return the status and the line that answer a request which failed; 500 is a defect, of here or of gradio."""
    if isinstance(error, OSError) and error.errno in FULL_DISK:
        return 507, "the server's disk is full: try again later"
    if "/call/" in path and isinstance(error, WRONG_CALL):
        return 400, shorten(f"there is no endpoint {error}" if isinstance(error, KeyError) else str(error), 200)
    return 500, "the server failed at this"


def describe_failure(error: Exception) -> str:
    """Return an error's type, words and position in one line of bounded length, for the log."""
    *_, last = traceback.extract_tb(error.__traceback__)
    return f"{shorten(f'{type(error).__name__}: {error}', 200)} ({last.filename}:{last.lineno})"


def check_early(page: gr.Blocks, endpoint: int) -> None:
    """Let gradio check a call's number of values and its files before the call waits; it answers 400 to odd ones.

    Args:
        endpoint: number of the handler, whose own checks come later.
    """
    handler = page.fns[endpoint]
    handler.validator = lambda *values: [None] * len(values)  # each of them may pass
