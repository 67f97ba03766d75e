"""The values of a visitor that a page keeps by reference: its pictures, and the prompts of its file.

A page holds a short string in the browser. It names a file of the page's own by its contents, a scene by its number,
and an upload by a random token. So a session that the server forgot loses no choice, and an upload that was dropped is
refused: nothing else is ever taken in its place.
"""

from __future__ import annotations

import math
import secrets
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any, Final, get_args

from PIL import Image

from specllava.toyworld.scene import Split
from visual.page.comparison_prompts import PagePrompt
from visual.page.picture_source import PictureSource
from visual.page.pictures import Picture
from visual.page.uploads import MediaList

MOST_UPLOAD_BYTES: Final = 2**30
SECONDS_AFTER_LEAVING: Final = 300.0  # that an upload is kept without being used: a page may be loaded anew
ENTRY_BYTES: Final = 4096  # of an upload, besides its pixels: tiny ones are bounded too
MAX_SEED: Final = 2**31
LOST: Final = {  # by the kind of upload that a reference begins with
    "picture": "your picture is no longer kept: upload it again",
    "pictures": "your pictures are no longer kept: upload them again",
    "video": "your video is no longer kept: upload it again",
    "prompts": "your prompts are no longer kept: upload the file again",
}
UNKNOWN: Final = "this picture is no longer kept: choose another one"


@dataclass(frozen=True, eq=False)
class LostPicture:
    """A picture that is no longer kept. Whoever opens it gets a ``ValueError`` with the line that says so."""

    line: str
    uploaded = True
    nbytes = 0

    def open(self) -> Image.Image:
        raise ValueError(self.line)

    preview = open


@dataclass(frozen=True, slots=True)
class _Upload:
    session: str
    value: Any
    nbytes: int
    expires: float = math.inf  # seconds of the monotonic clock; set when its visitor leaves


class UploadStore:
    """The uploads of all visitors: of each session the latest pictures and the latest prompts. Threads share it.

    Those of a visitor who left expire five minutes after their last use.

    Args:
        most_bytes: of all uploads; those that were not used for longest are dropped first.
    """

    def __init__(self, most_bytes: int = MOST_UPLOAD_BYTES) -> None:
        self._most_bytes = most_bytes
        self._uploads: OrderedDict[str, _Upload] = OrderedDict()  # by reference, the least recently used first
        self._files: dict[str, Picture] = {}
        self._lock = Lock()

    def share(self, files: Iterable[Path]) -> None:
        """Make pictures of the page's own known by their contents, after a restart too."""
        for file in files:
            self._files[f"file:{sha256(file.read_bytes()).hexdigest()}"] = Picture(file=str(file))

    def reference(self, session: str, picture: PictureSource | None) -> str:
        """Return the reference of a picture, which is kept for the session if it is an upload; "" of none."""
        if picture is None:
            return ""
        if isinstance(picture, Picture):
            if not picture.nbytes and picture.file is None:
                return f"scene:{picture.split}:{picture.seed}"
            shared = (reference for reference, one in self._files.items() if one.file == picture.file)
            if picture.file is not None and (found := next(shared, None)):
                return found
        return self._keep(session, _kind(picture), picture, picture.nbytes)

    def with_reference(self, session: str | None, values: Sequence[Any]) -> tuple[Any, ...]:
        """Return the values of a handler, the first of them a picture, with the reference in the picture's stead."""
        first, *others = values
        is_picture = first is None or isinstance(first, (Picture, MediaList, LostPicture))
        return self.reference(session or "", first) if is_picture else first, *others

    def picture(self, reference: Any) -> PictureSource | None:
        """Return the picture of a reference that a browser sent: ``None`` of "", a :class:`LostPicture` of others."""
        if reference in (None, ""):
            return None
        if not isinstance(reference, str):
            return LostPicture(UNKNOWN)
        kind, _, name = reference.partition(":")
        if kind == "scene":
            return _scene(name)
        found = self._files.get(reference) or self._get(reference)
        return found if isinstance(found, (Picture, MediaList)) else LostPicture(LOST.get(kind, UNKNOWN))

    def keep_prompts(self, session: str, prompts: Sequence[PagePrompt]) -> str:
        """Keep the prompts of a visitor's file; return their reference."""
        pictures = {id(one.picture): one.picture.nbytes for one in prompts}
        texts = sum(len(one.text) for one in prompts)
        return self._keep(session, "prompts", tuple(prompts), sum(pictures.values()) + texts)

    def prompts(self, reference: Any) -> tuple[PagePrompt, ...] | None:
        """Return the prompts of a reference that a browser sent: none of "", ``None`` if they are no longer kept."""
        found = self._get(reference) if reference else ()
        return found if isinstance(found, tuple) else None

    def leave(self, session: str) -> None:
        """Let the uploads of a session expire, and go first when room is needed, unless its visitor comes back."""
        with self._lock:
            for reference, upload in [item for item in self._uploads.items() if item[1].session == session]:
                self._uploads[reference] = replace(upload, expires=time.monotonic() + SECONDS_AFTER_LEAVING)
                self._uploads.move_to_end(reference, last=False)
            self._drop_expired()

    @property
    def nbytes(self) -> int:
        """Bytes of all uploads."""
        with self._lock:
            return sum(upload.nbytes for upload in self._uploads.values())

    def _keep(self, session: str, kind: str, value: Any, nbytes: int) -> str:
        reference = f"{kind}:{secrets.token_urlsafe(16)}"
        with self._lock:
            self._drop_expired()
            for name in [name for name, upload in self._uploads.items() if upload.session == session]:
                if name.startswith("prompts:") == (kind == "prompts"):
                    del self._uploads[name]
            self._uploads[reference] = _Upload(session, value, nbytes + ENTRY_BYTES)
            kept = sum(upload.nbytes for upload in self._uploads.values())
            while kept > self._most_bytes and len(self._uploads) > 1:
                kept -= self._uploads.popitem(last=False)[1].nbytes
        return reference

    def _get(self, reference: Any) -> Any:
        with self._lock:
            self._drop_expired()
            upload = self._uploads.get(reference) if isinstance(reference, str) else None
            if upload is None:
                return None
            if upload.expires < math.inf:  # its visitor came back
                self._uploads[reference] = replace(upload, expires=time.monotonic() + SECONDS_AFTER_LEAVING)
            self._uploads.move_to_end(reference)
            return upload.value

    def _drop_expired(self) -> None:
        now = time.monotonic()
        for reference in [name for name, upload in self._uploads.items() if upload.expires <= now]:
            del self._uploads[reference]


def _kind(picture: PictureSource) -> str:
    if not isinstance(picture, MediaList):
        return "picture"
    return "video" if len(picture.parts) == 1 else "pictures"


def _scene(name: str) -> PictureSource:
    split, _, seed = name.rpartition(":")
    for one in get_args(Split):
        if split == one and seed.isascii() and seed.isdecimal() and len(seed) < 11 and int(seed) < MAX_SEED:
            return Picture(seed=int(seed), split=one)
    return LostPicture(UNKNOWN)
