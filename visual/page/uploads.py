"""Pictures that visitors upload, read within the page's limits and kept by reference.

A page holds a short string in the browser. It names a file of the page's own by its contents, and an upload
by a random token. So a session that the server forgot loses no choice. An upload that was dropped is
refused: nothing else is ever taken in its stead.
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
from typing import Any, Final

import gradio as gr

from specllava.config import Limits
from specllava.models.images import is_animated, open_image
from visual.page.notices import error, info
from visual.page.pictures import (
    PICTURE_PIXELS,
    UNKNOWN,
    LostPicture,
    MediaList,
    NoPicture,
    Picture,
    PictureSource,
    address_of,
)

NONE: Final = "none"  # reference of no picture, chosen on purpose
QUESTION_PIXELS: Final = 2 * PICTURE_PIXELS**2  # of everything that one question shows: so many are kept
MOST_UPLOAD_BYTES: Final = 2**30
SECONDS_AFTER_LEAVING: Final = 300.0  # that an upload is kept without being used: a page may be loaded anew
ENTRY_BYTES: Final = 4096  # of an upload, besides its pixels: tiny ones are bounded too
LOST: Final = "what you uploaded is no longer kept: upload it again"
UPLOAD: Final = "upload:"  # begins the reference of one


def upload_hint(limits: Limits) -> str:
    """Say what can be uploaded at once."""
    return f"Up to {limits.pictures} pictures." if limits.pictures > 1 else "One picture."


def read_upload(paths: Sequence[str] | None, limits: Limits | None = None) -> tuple[Any, Any, str]:
    """Read uploaded files. Returns state, image and notice; files that cannot be used change only the notice."""
    files = [Path(path) for path in paths or ()]
    try:
        source = uploaded_pictures(files, limits or Limits())
        order = [f"The models see these {len(files)} in the order of their numbers."] if len(files) > 1 else []
        still = [f"{file.name} is animated: the models see its first frame." for file in files if is_animated(file)]
        return source, address_of(source), info(" ".join([*order, *still]))
    except ValueError as refusal:
        what = "These files" if len(files) > 1 else "This picture"
        return gr.skip(), gr.skip(), error(f"{what} cannot be used: {refusal}")


def uploaded_pictures(files: Sequence[Path], limits: Limits) -> PictureSource:
    """Read uploaded files, here and nowhere else, and keep what models get: Gradio deletes the files after a while.

    Raises:
        ValueError: a file that cannot be read, or something beyond the limits; one line.
    """
    _check_files(files, limits)
    longest = min(PICTURE_PIXELS, math.isqrt(QUESTION_PIXELS // len(files)))
    pictures = tuple(open_image(file, longest, limits.pixels) for file in files)
    return MediaList(pictures) if len(pictures) > 1 else Picture(upload=pictures[0])


def _check_files(files: Sequence[Path], limits: Limits) -> None:
    """Refuse too many files, or too large ones, before one is opened.

    Raises:
        ValueError: with the numbers.
    """
    if not files or not all(file.is_file() for file in files):
        raise ValueError("no file came")
    if len(files) > limits.pictures:
        raise ValueError(f"there are {len(files)}, and at most {limits.pictures} are shown at once: choose fewer")
    sizes = [file.stat().st_size for file in files]
    most, together = limits.upload_bytes, limits.question_bytes
    for file, size in zip(files, sizes, strict=True):
        if size > most:
            name = "the file" if len(files) == 1 else file.name
            raise ValueError(f"{name} has {size:,} bytes, and at most {most:,} are read: make it smaller")
    if sum(sizes) > together:
        raise ValueError(f"together they have {sum(sizes):,} bytes, and at most {together:,} are read: choose fewer")


@dataclass(frozen=True, slots=True)
class _Upload:
    session: str
    picture: PictureSource
    nbytes: int
    expires: float = math.inf  # seconds of the monotonic clock; set when its visitor leaves


class UploadStore:
    """The uploads of all visitors: of each session the latest. Threads share it.

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
        if isinstance(picture, NoPicture):
            return NONE
        if isinstance(picture, Picture):
            shared = (reference for reference, one in self._files.items() if one.file == picture.file)
            if picture.file is not None and (found := next(shared, None)):
                return found
        return self._keep(session, picture)

    def with_reference(self, session: str | None, values: Sequence[Any]) -> tuple[Any, ...]:
        """Return the values of a handler, the first of them a picture, with the reference in the picture's stead."""
        first, *others = values
        is_picture = first is None or isinstance(first, PictureSource)
        return self.reference(session or "", first) if is_picture else first, *others

    def picture(self, reference: Any) -> PictureSource | None:
        """Return the picture of a reference that a browser sent: ``None`` of "", a :class:`LostPicture` of others."""
        if reference in (None, ""):
            return None
        if reference == NONE:
            return NoPicture()
        if not isinstance(reference, str):
            return LostPicture(UNKNOWN)
        found = self._files.get(reference) or self._get(reference)
        return found or LostPicture(LOST if reference.startswith(UPLOAD) else UNKNOWN)

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

    def _keep(self, session: str, picture: PictureSource) -> str:
        reference = UPLOAD + secrets.token_urlsafe(16)
        with self._lock:
            self._drop_expired()
            for name in [name for name, upload in self._uploads.items() if upload.session == session]:
                del self._uploads[name]
            self._uploads[reference] = _Upload(session, picture, picture.nbytes + ENTRY_BYTES)
            kept = sum(upload.nbytes for upload in self._uploads.values())
            while kept > self._most_bytes and len(self._uploads) > 1:
                kept -= self._uploads.popitem(last=False)[1].nbytes
        return reference

    def _get(self, reference: str) -> PictureSource | None:
        with self._lock:
            self._drop_expired()
            upload = self._uploads.get(reference)
            if upload is None:
                return None
            if upload.expires < math.inf:  # its visitor came back
                self._uploads[reference] = replace(upload, expires=time.monotonic() + SECONDS_AFTER_LEAVING)
            self._uploads.move_to_end(reference)
            return upload.picture

    def _drop_expired(self) -> None:
        now = time.monotonic()
        for reference in [name for name, upload in self._uploads.items() if upload.expires <= now]:
            del self._uploads[reference]
