"""Recorded races that come with the project: read, checked, ready to show before any model is loaded.

A recorded race is one JSON file, ``{"image": "picture.png", "target_only": trace, "speculative": trace}``, beside
its picture. The page saves the race on show in the same format.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from specllava.trace import MAX_FILE_BYTES, DecodeTrace


@dataclass(frozen=True, slots=True)
class Recorded:
    """One race that was run before. ``image`` is a file."""

    name: str
    image: Path
    target_only: DecodeTrace
    speculative: DecodeTrace

    @property
    def prompt(self) -> str:
        return self.speculative.prompt


def load_recorded(folder: Path) -> tuple[Recorded, ...]:
    """Every recorded race of a folder, by file name; none if there is no such folder.

    Raises:
        ValueError: a file that is not a recorded race; one line that names it.
    """
    return tuple(read_recorded(path) for path in sorted(folder.glob("*.json")))


def read_recorded(path: Path) -> Recorded:
    """One recorded race.

    Raises:
        ValueError: not JSON, a part is missing or inconsistent, or its picture is not in the same folder.
    """
    if path.stat().st_size > 2 * MAX_FILE_BYTES:
        raise ValueError(f"{path.name}: larger than two traces can be")
    try:
        parts = json.loads(path.read_bytes())
        if not isinstance(parts, dict) or set(parts) != {"image", "target_only", "speculative"}:
            raise ValueError("expected exactly image, target_only and speculative")
        image = path.parent / Path(str(parts["image"])).name
        if not image.is_file():
            raise ValueError(f"its picture {image.name} is not beside it")
        lanes = [DecodeTrace.from_json(json.dumps(parts[lane])) for lane in ("target_only", "speculative")]
    except ValueError as error:
        raise ValueError(f"{path.name} is not a recorded race: {error}") from error
    return Recorded(path.stem, image, lanes[0], lanes[1])
