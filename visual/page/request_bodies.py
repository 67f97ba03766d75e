"""Bodies of calls and uploads, checked before gradio reads them: what is wrong or too much is refused in one line.

Gradio decides by the Content-Type whether a body is JSON, and its spellings are many: here every call's body is read.
Uploads are counted as they come in, whether or not a length was given. Gradio removes the files of an upload that its
parser refuses, so what is wrong is raised as its parser's own error.
"""

from __future__ import annotations

import contextlib
import json
import traceback
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import gradio as gr
from gradio.data_classes import FileData, ListFiles
from gradio.route_utils import GradioMultiPartParser
from gradio_client.utils import is_http_url_like
from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.formparsers import MultiPartException
from starlette.types import Message, Receive

from specllava.config import short
from specllava.config import Limits, highest

FOREIGN_FILE: Final = "a file is named by an address on the web, which this server does not fetch: upload it"
CALLS: Final = ("/queue/join", "/run/", "/api/")  # paths that call a handler by its number
MAX_SESSION: Final = 128  # characters of the name that a page or a client gives its session
MAX_FILES: Final = highest("pictures")  # of a call; the handlers say how many of them are used
MAX_VALUES: Final = 30_000  # marks between values; a question may consist of commas
MAX_DEPTH: Final = 32
ENVELOPE: Final = 2**16  # bytes around the texts of a call
BYTES_PER_CHARACTER: Final = 12  # of JSON, for a character that is written as two escapes
TOO_MANY: Final = "the upload has more than {:,} bytes, the maximum allowed size"  # by these words gradio answers 413


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
            number: [index for index, one in enumerate(taken) if _takes_files(one)] for number, taken in inputs.items()
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
            for index in self._files[number]:
                if isinstance(data[index], list) and len(data[index]) > MAX_FILES:
                    raise ValueError(f"{len(data[index]):,} files are named, and at most {MAX_FILES} are read")
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


class UploadBody:
    """The body of one upload.

    Args:
        receive: where it comes from.
        content_type: of the request, with the boundary of its parts; what is no form, gradio refuses itself.
        most: bytes that are read.
    """

    def __init__(self, receive: Receive, content_type: str, most: int) -> None:
        self._receive, self._most = receive, most
        self._bytes = self._files = 0
        self._name, self._value = bytearray(), bytearray()  # of the header that is being read
        self._disposition = b""  # of the part that has begun
        self._ended = False
        options = parse_options_header(content_type)[1]
        self._charset = options.get(b"charset", b"utf-8")
        self._parser = None if b"boundary" not in options else MultipartParser(options[b"boundary"], {
            "on_header_field": partial(_extend, self._name), "on_header_value": partial(_extend, self._value),
            "on_header_end": self._end_header, "on_headers_finished": self._begin_file, "on_end": self._end,
        })  # fmt: skip

    async def receive(self) -> Message:
        """Return the next message.

        Raises:
            MultiPartException: the upload broke off, has too many bytes or files, or something else than files.
        """
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise MultiPartException("the upload broke off")
        chunk: bytes = message.get("body", b"")
        self._bytes += len(chunk)
        if self._bytes > self._most:
            raise MultiPartException(TOO_MANY.format(self._most))
        if self._parser is not None:
            try:
                self._parser.write(chunk)
            except MultipartParseError as error:
                raise MultiPartException(f"the upload cannot be read: {error}") from error
            if not message.get("more_body") and not self._ended:
                raise MultiPartException("the upload has no end")
        return message

    def _end_header(self) -> None:
        if self._name.lower() == b"content-disposition":
            self._disposition = bytes(self._value)
        self._name.clear()
        self._value.clear()

    def _begin_file(self) -> None:
        _, options = parse_options_header(self._disposition)
        self._disposition = b""
        if options.get(b"name") != b"files" or b"filename" not in options or self._charset.lower() != b"utf-8":
            raise MultiPartException("an upload is a form of files in UTF-8: each needs the name files and a filename")
        self._files += 1
        if self._files > MAX_FILES:
            raise MultiPartException(f"the upload has more than {MAX_FILES} files")

    def _end(self) -> None:
        self._ended = True


def _extend(read: bytearray, data: bytes, start: int, end: int) -> None:
    read += data[start:end]


def remove_partial_files(error: BaseException) -> None:
    """Remove what gradio's parser wrote of an upload that failed, such as on a full disk.

    For errors of its own the parser does so itself.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        for parser in list(frame.f_locals.values()):
            if isinstance(parser, GradioMultiPartParser):
                for file in parser._files_to_close_on_error:
                    with contextlib.suppress(OSError):
                        file.close()
                    Path(file.name).unlink(missing_ok=True)
