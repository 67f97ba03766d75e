"""Bodies of uploads, counted as they come in: how many bytes and files, whether or not a length was given.

Gradio removes the files of an upload that its parser refuses, so what is wrong is raised as its parser's own error.
"""

from __future__ import annotations

import contextlib
import traceback
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
        self._header = bytearray()  # of the part that has begun
        boundary = parse_options_header(content_type)[1].get(b"boundary")
        self._parser = None if boundary is None else MultipartParser(boundary, {
            "on_part_begin": self._header.clear, "on_header_field": self._read, "on_header_value": self._read,
            "on_header_end": lambda: self._header.extend(b"\n"), "on_headers_finished": self._begin_file,
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
        return message

    def _read(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _begin_file(self) -> None:
        lines = bytes(self._header).splitlines()
        described = next((line for line in lines if line.lower().startswith(b"content-disposition")), b"")
        _, options = parse_options_header(described[len(b"content-disposition") :])
        if options.get(b"name") != b"files" or b"filename" not in options:
            raise MultiPartException("an upload is a form of files: each needs the name files and a filename")
        self._files += 1
        if self._files > MAX_FILES:
            raise MultiPartException(f"the upload has more than {MAX_FILES} files")


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
