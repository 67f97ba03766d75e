"""The static edition: the stage and its recorded races as plain files, for any web server and under any path.

Names of files carry a hash of what is in them, so that a host may let browsers keep them for ever; only ``index.html``
changes under its name. All addresses are relative.
"""

from __future__ import annotations

import hashlib
import html
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from specllava.models.images import open_image
from visual.player.frames import data_address, race_frames, with_id
from visual.player.lessons import Lesson
from visual.player.recorded import Recorded
from visual.player.saved_page import FAVICON, PLOTLY_JS, TITLE, catalog, halves, script, static_text

CLAIM: Final = "A small model guesses a tree of tokens, a large one keeps what it would have said anyway."
README: Final = """---
title: specllava
emoji: 🌳
colorFrom: blue
colorTo: green
sdk: static
app_file: index.html
license: apache-2.0
short_description: Watch a small model guess for a large one, losslessly
---

{claim}

Recorded runs and lessons as plain files: any web server serves them, under any path.{live}
"""


def write_site(
    folder: Path, examples: Sequence[Recorded], lessons: Sequence[Lesson], live: str = "", code: str = ""
) -> None:
    """Write all files into a directory that is made here.

    Args:
        examples: the first is what the page opens with.
        live: address of a page with models; "" if there is none.
        code: address of the project's files; "" as above.

    Raises:
        OSError: something cannot be written.
    """
    (folder / "files").mkdir(parents=True)
    plotly = PLOTLY_JS.read_text(encoding="utf-8")
    before, after = halves()
    blank = "<!-- frames -->".join([before, after.replace(plotly, "<!-- plotly -->", 1)])
    pictures = {
        race.name: _add(folder, f"{race.name}.png", race.image.read_bytes()) for race in examples if race.image
    }
    index = {
        "catalog": catalog(examples, lessons, pictures),
        "plotly": _add(folder, "plotly.js", plotly.encode()),
        "blank": _add(folder, "blank.html", blank.encode()),
        "files": _add_races(folder, examples, lessons),
    }
    links = {name: html.escape(address) for name, address in (("Live page", live), ("Code", code)) if address}
    parts = {
        "style": _add(folder, "style.css", static_text("stage.css").encode()),
        "script": _add(folder, "stage.js", script().encode()),
        "icon": _add(folder, "favicon.png", FAVICON.read_bytes()),
        "plotly": str(index["plotly"]),
        "stage": static_text("stage.html"),
        "links": "".join(f'<a href="{address}" rel="noopener">{name}</a>' for name, address in links.items()),
        "index": json.dumps(index, ensure_ascii=False).replace("<", "\\u003c"),
        "title": TITLE,
        "claim": CLAIM,
    }
    page = re.sub(r"<!-- (\w+) -->", lambda match: parts[match[1]], static_text("site.html"))
    (folder / "index.html").write_text(page, encoding="utf-8")
    line = f"\nThe live page, where models answer: <{live}>." if live else ""
    (folder / "README.md").write_text(README.format(claim=CLAIM, live=line), encoding="utf-8")


def _add(folder: Path, name: str, data: bytes) -> str:
    """Write a file. Return its address: ``name`` without what an address would have to escape, and a hash."""
    stem, _, ending = name.rpartition(".")
    digest = hashlib.sha256(data).hexdigest()[:10]
    address = f"files/{re.sub(r'[^A-Za-z0-9_-]', '-', stem)}-{digest}.{ending}"
    (folder / address).write_bytes(data)
    return address


def _add_races(folder: Path, examples: Sequence[Recorded], lessons: Sequence[Lesson]) -> dict[str, str]:
    """Write the frames of every race, and of every turn of a dialogue. Return their addresses by name and turn."""
    lesson_races = {race.name: race for lesson in lessons for race in lesson.races}
    written = {}
    for race in (*examples, *lesson_races.values()):
        pictures = [data_address(open_image(picture)) if picture else None for picture in race.pictures]
        for turn in (None, *(range(len(race.turns)) if race.later else ())):
            run, *others = race_frames(race, pictures, race.name, turn, toured=race is examples[0])
            key = race.name if turn is None else f"{race.name} {turn}"
            frames = [with_id(run, key), *others]  # an id that is the same whenever it is made
            written[key] = _add(folder, f"{key}.json", json.dumps(frames, ensure_ascii=False).encode())
    return written
