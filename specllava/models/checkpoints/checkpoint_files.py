"""Files of a checkpoint, checked by the rules of their formats before a library reads them."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError, safe_open

TEXTS: Final = (
    "tokenizer_config.json", "tokenizer.json", "vocab.json", "added_tokens.json", "special_tokens_map.json",
    "preprocessor_config.json", "processor_config.json", "chat_template.json", "chat_template.jinja",
    "generation_config.json",
)  # fmt: skip
POINTER: Final = b"version https://git-lfs.github.com/spec/"
SINGLE, INDEX, PICKLED = "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"
OTHER_FORMATS: Final = ("pytorch_model*.bin", "consolidated*", "*.pth", "*.gguf")


class CheckpointError(ValueError):
    """Refusal of a checkpoint's file, in one line."""


def check_content(source: str, file: Path) -> None:
    """Refuse the pointer that git leaves in a file's place where git-lfs is missing."""
    with file.open("rb") as opened:
        if opened.read(len(POINTER)) == POINTER:
            raise CheckpointError(
                f'{source} has a git-lfs pointer in place of {file.name}: run "git lfs pull" there, or download it'
            )


def check_text(source: str, file: Path) -> None:
    """Refuse JSON that is no object."""
    if file.suffix == ".json":
        read_object(source, file.name, file.read_bytes())


def read_object(source: str, name: str, content: bytes) -> dict[str, Any]:
    """Return the JSON object that a file holds."""
    why = "it holds a value of another kind"
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        found, why = None, str(error)
    if not isinstance(found, dict):
        raise CheckpointError(f"{source} has a {name} of {len(content):,} bytes that is no JSON object: {why[:120]}")
    return found


def tensor_types(source: str, file: Path) -> list[tuple[str, str]]:
    """Return the names and types of a file's tensors."""
    try:
        with safe_open(file, framework="pt") as weights:
            return [(name, weights.get_slice(name).get_dtype()) for name in weights.keys()]  # noqa: SIM118
    except SafetensorError as error:
        size = file.stat().st_size
        raise CheckpointError(
            f"{source} has a {file.name} of {size:,} bytes that is no whole safetensors file: download it again"
        ) from error


def check_weights_there(directory: Path, listed: Collection[str]) -> None:
    """Refuse a directory without files of weights that are expected or that its index names."""
    missing = sorted(name for name in listed if not (directory / name).is_file())
    if not missing:
        return
    others = sorted(file.name for pattern in OTHER_FORMATS for file in directory.glob(pattern))
    way = "download them"
    if others:
        way = f"convert {others[0]}, by from_pretrained and save_pretrained of transformers"
    count = f"{len(missing)} of {len(listed)} files of weights"
    raise CheckpointError(f"{directory} lacks {count}, such as {missing[0]}: {way}")
