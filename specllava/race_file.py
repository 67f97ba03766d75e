"""Races: a trace per lane, and the lanes of one prompt as one JSON document. No torch.

``visual.player.recorded`` reads the documents. A dialogue is one document of several races, one for each turn.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from specllava.trace import DecodeTrace, Playable

if TYPE_CHECKING:
    from PIL import Image


class Race(Playable, dict[str, DecodeTrace]):
    """A trace per lane, by its name.

    Args:
        picture: what the models looked at, if it was one picture.
    """

    def __init__(self, traces: Mapping[str, DecodeTrace], picture: Image.Image | None = None) -> None:
        super().__init__(traces)
        self.picture = picture


def race_json(target_only: DecodeTrace | None, speculative: DecodeTrace | None, image: str | None = None) -> str:
    """Write a race as its file; ``image`` names a picture that lies beside it."""
    lanes = {"target_only": target_only, "speculative": speculative}
    named = [] if image is None else [f'"image":{json.dumps(image, ensure_ascii=False)}']
    traces = [f'"{name}":{trace.to_json().decode()}' for name, trace in lanes.items() if trace is not None]
    return "{" + ",".join([*named, *traces]) + "}\n"


def dialogue_json(races: Iterable[str]) -> str:
    """Write a dialogue as one document: the race files of its turns, in order.

    A turn's ``image`` names the picture that came with its message; without one it is about the pictures before it.
    """
    return '{"dialogue":[' + ",".join(race.strip() for race in races) + "]}\n"
