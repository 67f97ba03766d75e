"""Race files: the lanes of one prompt as one JSON document, which ``visual.player.recorded`` reads. No torch.

Either the target alone and a speculative lane, or two configurations A and B, with the target alone beside them or not.
A dialogue is one document of several races, one for each turn.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from specllava.trace import DecodeTrace

ZIP_TIME: Final = (1980, 1, 1, 0, 0, 0)  # the earliest of the format: the same races give the same bytes


@dataclass(frozen=True, slots=True)
class NamedTrace:
    """The trace of one side of a comparison.

    Args:
        name: what sets this side apart, such as ``rule chain``.
    """

    name: str
    trace: DecodeTrace

    def to_json(self) -> str:
        """Write name and trace as a JSON object."""
        return f'{{"name":{json.dumps(self.name, ensure_ascii=False)},"trace":{self.trace.to_json().decode()}}}'


def race_json(target_only: DecodeTrace | None, speculative: DecodeTrace | None, image: str | None = None) -> str:
    """Write a race as its file; ``image`` names a picture that lies beside it."""
    return _document(image, target_only=_lane(target_only), speculative=_lane(speculative))


def comparison_json(
    a: NamedTrace, b: NamedTrace, target_only: DecodeTrace | None = None, image: str | None = None
) -> str:
    """Write two sides of a comparison as their race file, with the target alone if it ran; ``image`` as above."""
    return _document(image, target_only=_lane(target_only), a=a.to_json(), b=b.to_json())


def dialogue_json(races: Iterable[str]) -> str:
    """Write a dialogue as one document: the race files of its turns, in order.

    A turn's ``image`` names the picture that came with its message; without one it is about the pictures before it.
    """
    return '{"dialogue":[' + ",".join(race.strip() for race in races) + "]}\n"


def write_zip(goal: Path | IO[bytes], files: Iterable[tuple[str, str | bytes]]) -> None:
    """Write race files, and pictures that lie beside them, as one zip archive; each is its name and what it holds."""
    with zipfile.ZipFile(goal, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files:
            entry = zipfile.ZipInfo(name, ZIP_TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)


def _lane(trace: DecodeTrace | None) -> str | None:
    return None if trace is None else trace.to_json().decode()


def _document(image: str | None, **lanes: str | None) -> str:
    named = [] if image is None else [f'"image":{json.dumps(image, ensure_ascii=False)}']
    parts = [*named, *(f'"{name}":{lane}' for name, lane in lanes.items() if lane is not None)]
    return "{" + ",".join(parts) + "}\n"
