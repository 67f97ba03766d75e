"""Bodies of uploads, counted as they come in: how many bytes and files, whether or not a length was given.

Gradio removes the files of an upload that its parser refuses, so what is wrong is raised as its parser's own error.
"""

from __future__ import annotations

import contextlib
import traceback
from functools import partial
from pathlib import Path
from typing import Final

from gradio.route_utils import GradioMultiPartParser
from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.formparsers import MultiPartException
from starlette.types import Message, Receive

from visual.page.call_bodies import MAX_FILES

TOO_MANY: Final = "the upload has more than {:,} bytes, the maximum allowed size"  # by these words gradio answers 413


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
