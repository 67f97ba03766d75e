"""Files that ship, files that are written whole or not at all, and errors in one line."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final, Literal, get_args

PAGE: Final = ("gradio", "plotly", "networkx")  # packages of the extra ``page``
PAGE_HINT: Final = 'this draws, and what draws is not installed: pip install "specllava[page]"'
CLASSES: Final = ("OutOfMemoryError",)  # of torch, for every accelerator
WORDS: Final = ("can't allocate memory", "not enough memory", "cannot allocate memory", "unable to allocate")


def is_panic(error: BaseException) -> bool:
    """Check for a panic of Rust, such as of tokenizers over a regular expression; it is no ``Exception``."""
    return type(error).__name__ == "PanicException"


def broken_import(error: BaseException) -> str:
    """Return what an installed package raises while it is imported; empty for any other error."""
    cause = error.__cause__ if isinstance(error, ImportError) else None
    while cause is not None and cause.__cause__ is not None:
        cause = cause.__cause__
    return "" if cause is None else f"{type(cause).__name__}: {' '.join(str(cause).split())[:200]}"


def lacks_page(error: BaseException) -> bool:
    """Check for an import that failed because the extra ``page`` is not installed."""
    return isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in PAGE


def is_out_of_memory(error: BaseException) -> bool:
    """Check for an error of a device without free memory; torch's of a CPU are plain runtime errors."""
    if isinstance(error, MemoryError) or type(error).__name__ in CLASSES:
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError | OSError) and any(words in text for words in WORDS)


PACKAGE: Final = Path(__file__).resolve().parent


def shipped(name: str) -> Path:
    """Return the path of a model, recorded race or program of the project.

    It is inside the package where that was installed (``setup.py`` copies it), else beside it.
    """
    inside = PACKAGE / "shipped" / name
    return inside if inside.exists() else PACKAGE.parent / name


def cached(name: str) -> Path:
    """Return the path of what a command fetched once: in the user's cache, without a home in a temporary directory."""
    home = os.path.expanduser("~/.cache")
    root = os.environ.get("XDG_CACHE_HOME") or (home if os.path.isabs(home) else tempfile.gettempdir())
    return Path(root, "specllava", name)


def write_whole(path: Path, data: str | bytes) -> None:
    """Write a file beside its destination and rename it, so that a full disk leaves no half of it; text is UTF-8.

    Devices, pipes and what lies in ``/dev``, such as ``/dev/stdout``, are written to directly.

    Raises:
        OSError: it cannot be written; names ``path``.
    """
    content = data.encode() if isinstance(data, str) else data
    try:
        if path.is_relative_to("/dev") or (path.exists() and not path.is_file()):
            path.write_bytes(content)
            return
        goal = path.resolve()  # a link stays
        beside = goal.with_name(goal.name + ".writing")
        try:
            beside.write_bytes(content)
            beside.replace(goal)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def check_free(output: Path) -> None:
    """Refuse to write where something is.

    Raises:
        ValueError: there is; one line.
    """
    if output.exists():
        raise ValueError(f"{output} exists already: name another --output, or remove it")


@contextmanager
def whole_directory(directory: Path) -> Iterator[Path]:
    """Give a directory to write to beside ``directory``, which it is renamed to at the end; after an error it is gone.

    Raises:
        OSError: it cannot be renamed.
    """
    beside = directory.with_name(directory.name + ".writing")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        yield beside
        beside.rename(directory)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise


SCENES: Final = shipped("assets") / "scenes" / "scenes.jsonl"  # held-out scenes first
Split = Literal["train", "held-out"]
SPLITS: Final[tuple[Split, ...]] = get_args(Split)


@cache
def scene_images(split: Split) -> tuple[Path, ...]:
    """Return the pictures of a split's scenes in the order of their rows."""
    rows = map(json.loads, SCENES.read_text(encoding="utf-8").splitlines())
    return tuple(SCENES.parent / row["image"] for row in rows if row["split"] == split)
