"""What the Hugging Face cache on this machine holds, without asking the hub."""

from __future__ import annotations

import json
from pathlib import Path

from huggingface_hub import try_to_load_from_cache

SINGLE, INDEX, PICKLED = "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"


def is_cached(name: str) -> bool:
    """Check whether configuration and weights of a model of the hub were downloaded, all files of them.

    Args:
        name: its id, with ``@`` and a revision or without.
    """
    if not _find_cached(name, "config.json"):
        return False
    index = _find_cached(name, INDEX)
    if index is None:
        return _find_cached(name, SINGLE) is not None or _find_cached(name, PICKLED) is not None
    try:
        files = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
    except (OSError, ValueError, KeyError, AttributeError):
        return False
    return all(_find_cached(name, str(file)) for file in set(files))


def _find_cached(name: str, file: str) -> Path | None:
    repository, _, revision = name.partition("@")
    found = try_to_load_from_cache(repository, file, revision=revision or None)
    return Path(found) if isinstance(found, str) else None
