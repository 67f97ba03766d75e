"""Files: the project's own beside the package, and writing that leaves a whole file or none."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).resolve().parents[1]


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
