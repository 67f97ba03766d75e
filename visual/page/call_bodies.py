"""Bodies of calls, read before gradio reads them: one that it makes nothing of, or too much of, is refused in one line.

Gradio decides by the Content-Type whether a body is JSON, and its spellings are many. Here every body is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import gradio as gr
from gradio.data_classes import FileData, ListFiles
from gradio_client.utils import is_http_url_like

from specllava.core.config import short
from specllava.core.limits import Limits, highest

FOREIGN_FILE: Final = "a file is named by an address on the web, which this server does not fetch: upload it"
CALLS: Final = ("/queue/join", "/run/", "/api/")  # paths that call a handler by its number
MAX_SESSION: Final = 128  # characters of the name that a page or a client gives its session
MAX_FILES: Final = highest("pictures")  # of a call; the handlers say how many of them are used
MAX_VALUES: Final = 30_000  # marks between values; a question may consist of commas, and a fork names 4,096 tokens
MAX_DEPTH: Final = 32
ENVELOPE: Final = 2**16  # bytes around the texts of a call
BYTES_PER_CHARACTER: Final = 12  # of JSON, for a character that is written as two escapes


class CallBodies:
    """What the calls of a page's handlers may hold.

    Args:
        page: whose handlers are called.
        limits: of the page, for the length of a text.
    """

    def __init__(self, page: gr.Blocks, limits: Limits) -> None:
        inputs = {number: one.inputs for number, one in page.fns.items() if one.fn is not None}
        self._values = {number: len(taken) for number, taken in inputs.items()}
        self._files = {
            number: [place for place, one in enumerate(taken) if _takes_files(one)] for number, taken in inputs.items()
        }
        texts = [sum(getattr(one, "max_length", None) or 0 for one in taken) for taken in inputs.values()]
        self.most_bytes = ENVELOPE + BYTES_PER_CHARACTER * max([limits.prompt_characters, *texts])

    def read(self, body: bytes, path: str) -> Any:
        """Parse the body of a request.

        Raises:
            ValueError: why it is refused, in one line.
        """
        check_values(body)
        try:
            document = json.loads(body)
        except RecursionError:
            raise ValueError(f"the body is nested too deep: at most {MAX_DEPTH} levels are read") from None
        except ValueError:  # UnicodeDecodeError among them
            raise ValueError("the body is no JSON") from None
        _check_files(document)
        if isinstance(document, dict):
            self._check_call(document, path)
        return document

    def reads_files(self, call: Any) -> bool:
        """Return whether a body calls a handler that opens files which were uploaded."""
        number = call.get("fn_index") if isinstance(call, dict) else None
        return type(number) is int and bool(self._files.get(number))

    def _check_call(self, call: Mapping[str, Any], path: str) -> None:
        called, session = any(part in path for part in CALLS), call.get("session_hash")
        if called or session:
            check_session(session)
        if not called:
            return
        number, data = call.get("fn_index"), call.get("data")
        if type(number) is not int or number not in self._values:
            raise ValueError(f"there is no handler {short(number)}")
        if isinstance(data, list):
            if len(data) != self._values[number]:
                raise ValueError(f"handler {number} takes {self._values[number]} values, not {len(data)}")
            for place in self._files[number]:
                if isinstance(data[place], list) and len(data[place]) > MAX_FILES:
                    raise ValueError(f"{len(data[place]):,} files are named, and at most {MAX_FILES} are read")
        if not isinstance(call.get("event_data") or {}, dict):
            raise ValueError("event_data is no object")


def check_values(body: bytes) -> None:
    """Check how many values a body holds, before it is parsed.

    Raises:
        ValueError: too many.
    """
    marks = sum(map(body.count, (b",", b"[", b"{")))
    if marks > MAX_VALUES:
        raise ValueError(f"the body holds about {marks:,} values, and at most {MAX_VALUES:,} are read")


def check_session(name: Any) -> None:
    """Check the name of a session, to which answers go.

    Raises:
        ValueError: it is no such name.
    """
    if not (isinstance(name, str) and 0 < len(name) <= MAX_SESSION):
        raise ValueError(f"a call needs a session_hash of 1 to {MAX_SESSION} characters, to which its answer goes")


def _takes_files(component: Any) -> bool:
    return getattr(component, "data_model", None) in (FileData, ListFiles) or isinstance(component, gr.UploadButton)


def _check_files(document: Any) -> None:
    """Check how deep a document is nested, and which files it names.

    Raises:
        ValueError: one of the web, too many, or a value that is nested too deep.
    """
    deepest = files = 0
    for value, depth in _values_of(document):
        deepest = max(deepest, depth)
        path = value.get("path") if isinstance(value, dict) else None
        if isinstance(path, str):
            files += 1
            if is_http_url_like(path.strip()):
                raise ValueError(FOREIGN_FILE)
    if deepest > MAX_DEPTH:
        raise ValueError(f"the body is nested {deepest} levels deep, and at most {MAX_DEPTH} are read")
    if files > MAX_FILES:
        raise ValueError(f"{files:,} files are named, and at most {MAX_FILES} are read")


def _values_of(document: Any) -> Iterator[tuple[Any, int]]:
    """Yield every value of a document with its depth."""
    left = [(document, 0)]
    while left:
        value, depth = left.pop()
        yield value, depth
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        left += [(one, depth + 1) for one in inner]
