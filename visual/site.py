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
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from specllava.models.images import open_image
from visual.player.frames import data_address, frame_json, race_frames
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


@dataclass(frozen=True, slots=True)
class StaticSite:
    """Content of the static edition, and addresses of more.

    Args:
        examples: the first is what the page opens with.
        live: address of a page with models; "" if there is none.
        code: address of the project's files; "" as above.
    """

    examples: Sequence[Recorded]
    lessons: Sequence[Lesson]
    live: str = ""
    code: str = ""

    def write(self, folder: Path) -> None:
        """Write all files into a directory that is made here.

        Raises:
            ValueError: no example, so that there is nothing to open with.
            OSError: something cannot be written.
        """
        if not self.examples:
            raise ValueError("a static edition needs at least one recorded example")
        folder.mkdir()
        files = _Files(folder)
        plotly = PLOTLY_JS.read_text(encoding="utf-8")
        before, after = halves()
        blank = "<!-- frames -->".join([before, after.replace(plotly, "<!-- plotly -->", 1)])
        pictures = {
            race.name: files.add(f"{race.name}.png", race.image.read_bytes()) for race in self.examples if race.image
        }
        index = {
            "catalog": catalog(self.examples, self.lessons, pictures),
            "plotly": files.add("plotly.js", plotly.encode()),
            "blank": files.add("blank.html", blank.encode()),
            "files": self._races(files),
        }
        parts = {
            "style": files.add("style.css", static_text("stage.css").encode()),
            "script": files.add("stage.js", script().encode()),
            "icon": files.add("favicon.png", FAVICON.read_bytes()),
            "plotly": str(index["plotly"]),
            "stage": static_text("stage.html"),
            "links": self._links(),
            "index": json.dumps(index, ensure_ascii=False).replace("<", "\\u003c"),
            "title": TITLE,
            "claim": CLAIM,
        }
        page = re.sub(r"<!-- (\w+) -->", lambda match: parts[match[1]], static_text("site.html"))
        (folder / "index.html").write_text(page, encoding="utf-8")
        live = f"\nThe live page, where models answer: <{self.live}>." if self.live else ""
        (folder / "README.md").write_text(README.format(claim=CLAIM, live=live), encoding="utf-8")

    def _races(self, files: _Files) -> dict[str, str]:
        """Write the frames of every race, and of every turn of a dialogue. Return their addresses by name and turn."""
        lesson_races = {race.name: race for lesson in self.lessons for race in lesson.races}
        written = {}
        for race in (lesson_races | {race.name: race for race in self.examples}).values():
            pictures = [data_address(open_image(picture)) if picture else None for picture in race.pictures]
            toured = race is self.examples[0]
            for turn in (None, *(range(len(race.turns)) if race.later else ())):
                frames = race_frames(race, pictures, race.name, turn, toured)
                key = race.name if turn is None else f"{race.name} {turn}"
                written[key] = files.add(f"{key}.json", json.dumps(_with_id(frames, key), ensure_ascii=False).encode())
        return written

    def _links(self) -> str:
        addresses = {"Live page": self.live, "Code": self.code}
        made = (
            f'<a href="{html.escape(address)}" rel="noopener">{name}</a>'
            for name, address in addresses.items()
            if address
        )
        return "".join(made)


@dataclass(frozen=True, slots=True)
class _Files:
    """The directory of an edition, which names files by what is in them."""

    folder: Path

    def add(self, name: str, data: bytes) -> str:
        """Write a file. Returns its address: ``name`` without what an address would have to escape, and a hash."""
        stem, _, ending = name.rpartition(".")
        digest = hashlib.sha256(data).hexdigest()[:10]
        address = f"files/{re.sub(r'[^A-Za-z0-9_-]', '-', stem)}-{digest}.{ending}"
        (self.folder / "files").mkdir(exist_ok=True)
        (self.folder / address).write_bytes(data)
        return address


def _with_id(frames: Sequence[str], name: str) -> list[str]:
    """Give frames an id that is the same whenever they are made, so that the same race is the same file."""
    return [frame_json(json.loads(frames[0]) | {"id": name}), *frames[1:]]
