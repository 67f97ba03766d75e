"""Races: a trace per lane, and the lanes of one prompt as one JSON document. No torch.

``visual.player.recorded`` reads the documents.

Either the target alone and a speculative lane or, in older files, two configurations A and B.
A dialogue is one document of several races, one for each turn.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final

from specllava.config import DecodingConfig
from specllava.trace import MAX_NAME, DecodeTrace, Playable

if TYPE_CHECKING:
    from PIL import Image

SETTING: Final = ("target", "draft", "dtype", "device")  # with options, what may set two sides apart


class Race(Playable, dict[str, DecodeTrace]):
    """A trace per lane, by its name.

    Args:
        picture: what the models looked at, if it was one picture.
    """

    def __init__(self, traces: Mapping[str, DecodeTrace], picture: Image.Image | None = None) -> None:
        super().__init__(traces)
        self.picture = picture


@dataclass(frozen=True, slots=True)
class NamedTrace:
    """The trace of one side of a comparison.

    Args:
        name: what sets this side apart, such as ``rule chain``.
    """

    name: str
    trace: DecodeTrace


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


def side_names(a: DecodeTrace, b: DecodeTrace) -> tuple[str, str]:
    """Name two sides by what sets them apart, such as ``rule chain, depth 6``; ``A`` and ``B`` if nothing does."""
    setting = [(name, getattr(a.setting, name), getattr(b.setting, name)) for name in SETTING]
    options = [(one.name, getattr(a.config, one.name), getattr(b.config, one.name)) for one in fields(DecodingConfig)]
    apart = [(name, one, two) for name, one, two in (*setting, *options) if one != two]
    if not apart:
        return "A", "B"
    return _name((name, one) for name, one, _ in apart), _name((name, two) for name, _, two in apart)


def _name(options: Iterable[tuple[str, object]]) -> str:
    text = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in options)
    return "".join(character for character in text if character.isprintable())[:MAX_NAME]
