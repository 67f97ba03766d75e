"""Texts of tokens that are pieces of a character: their bytes as ``<0xE4>``, as byte-fallback tokenizers write them."""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from collections.abc import Iterable
from typing import Final

BYTE: Final = re.compile("<0x([89A-F][0-9A-F])>")  # below 80 a byte is a character
_BYTES: Final = re.compile("(?:<0x[89A-F][0-9A-F]>)+")
_ESCAPED: Final = re.compile("[\udc80-\udcff]")
_decode = getincrementaldecoder("utf-8")


def byte_text(data: bytes) -> str:
    """Decode UTF-8; bytes of no whole character become ``<0xE4>``."""
    return _escape(data.decode("utf-8", "surrogateescape"))


def join_texts(texts: Iterable[str]) -> str:
    """Join the texts of successive tokens; pieces become characters."""
    joiner = TextJoiner()
    return "".join([*map(joiner.add, texts), joiner.end()])


def shorten_bytes(text: str) -> str:
    """Write runs of bytes in short: ``<E4 BD>``."""
    return _BYTES.sub(lambda run: f"<{' '.join(BYTE.findall(run[0]))}>", text)


def begins_inside(text: str) -> bool:
    """Return whether a token's text begins inside a character, with one of its later bytes."""
    byte = BYTE.match(text)
    return byte is not None and byte[1] < "C0"


class TextJoiner:
    """Incremental decoder of token texts: a character comes with its last piece."""

    def __init__(self) -> None:
        self._decoder = _decode("surrogateescape")

    def add(self, text: str) -> str:
        """Return what a token adds to the text; "" where its character is not whole yet."""
        data = b"".join(
            bytes.fromhex(part) if index % 2 else part.encode("utf-8", "surrogatepass")
            for index, part in enumerate(BYTE.split(text))
        )
        return _escape(self._decoder.decode(data))

    def end(self) -> str:
        """Return the bytes that are left of a character."""
        return _escape(self._decoder.decode(b"", final=True))


def _escape(text: str) -> str:
    return _ESCAPED.sub(lambda byte: f"<0x{ord(byte[0]) - 0xDC00:02X}>", text)
