"""Writer of the static edition: one document, and beside it scripts, styles, pictures and the frames of each race.

Names of files carry a hash of what is in them, so that a host may let browsers keep them for ever; only
``index.html`` changes under its name. All addresses are relative: any host and any sub-path will do.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from specllava.models.images import open_image
from visual.player import markup
from visual.player.component import MODULES
from visual.player.encoding import data_address, frame_json, small_jpeg
from visual.player.lessons import Lesson
from visual.player.race_frames import race_frames
from visual.player.recorded import Recorded
from visual.player.standalone import halves
from visual.player.static_files import PLOTLY_JS, static_text
from visual.site.document import Example, SiteFiles, index_html, readme

SCRIPTS: Final = ("site.js", "site_link.js", "site_frames.js")
STYLES: Final = ("standalone.css", "site.css")


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
        code = files.add_folder("code", {name: static_text(name).encode() for name in (*SCRIPTS, *MODULES)})
        style = "".join([static_text(STYLES[0]), markup.stylesheet(), static_text(STYLES[1])])
        plotly = PLOTLY_JS.read_bytes()
        before, after = halves()
        blank = "<!-- frames -->".join([before, after.replace(plotly.decode(), "<!-- plotly -->", 1)])
        own = SiteFiles(
            view=files.add("view.js", static_text("view_choice.js").encode()),
            script=f"{code}/site.js",
            preloads=tuple(f"{code}/{name}" for name in (*SCRIPTS[1:], *MODULES)),
            style=files.add("style.css", style.encode()),
            icon=files.add("favicon.png", markup.FAVICON.read_bytes()),
            plotly=files.add("plotly.js", plotly),
        )
        examples = [_example(files, race) for race in self.examples]
        races = {race.name: race for race in (lesson.race for lesson in self.lessons)}
        written = {name: _write_frames(files, name, race, None) for name, race in races.items()}
        index = {
            "modules": MODULES,
            "plotly": own.plotly,
            "live": self.live,
            "blank": files.add("blank.html", blank.encode()),
            "examples": [{"name": one.name, "file": one.file, "steps": one.steps} for one in examples],
            "lessons": [
                {
                    "file": written[lesson.race.name], "step": lesson.text.step,
                    "steps": len(lesson.race.lead.steps), "words": lesson.words,
                }
                for lesson in self.lessons
            ],
        }
        page = index_html(own, examples, self.lessons, index, self.live, self.code)
        (folder / "index.html").write_text(page, encoding="utf-8")
        (folder / "README.md").write_text(readme(self.live), encoding="utf-8")


@dataclass(frozen=True, slots=True)
class _Files:
    """The directory of an edition, which names files by what is in them."""

    folder: Path

    def add(self, name: str, data: bytes) -> str:
        """Write a file. Returns its address: ``name`` without what an address would have to escape, and a hash."""
        stem, _, ending = name.rpartition(".")
        address = f"files/{re.sub(r'[^A-Za-z0-9_-]', '-', stem)}-{_digest(data)}.{ending}"
        (self.folder / "files").mkdir(exist_ok=True)
        (self.folder / address).write_bytes(data)
        return address

    def add_folder(self, name: str, files: dict[str, bytes]) -> str:
        """Write files that refer to each other by their own names into a directory; its address."""
        address = f"{name}-{_digest(b''.join(files.values()))}"
        (self.folder / address).mkdir()
        for file, data in files.items():
            (self.folder / address / file).write_bytes(data)
        return address


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:10]


def _example(files: _Files, race: Recorded) -> Example:
    picture = files.add(f"{race.name}.jpg", small_jpeg(open_image(race.image))) if race.image else None
    steps = tuple(len(turn.lead.steps) for turn in race.turns)
    return Example(race, _write_frames(files, race.name, race, race.name), picture, steps)


def _write_frames(files: _Files, name: str, race: Recorded, example: str | None) -> str:
    shown = [data_address(open_image(picture)) if picture else None for picture in race.pictures]
    frames = _with_id(race_frames(race, "recorded run", shown[0], example, pictures=shown), name)
    return files.add(f"{name}.json", json.dumps(frames, separators=(",", ":"), ensure_ascii=False).encode())


def _with_id(frames: Sequence[str], name: str) -> list[str]:
    """Give frames an id that is the same whenever they are made, so that the same race is the same file."""
    run, end = json.loads(frames[0]), json.loads(frames[-1])
    run["id"] = name
    held = {turn: _with_id(one, f"{name}-{turn}") for turn, one in end.get("held", {}).items()}
    end |= {"held": held} if held else {}
    return [frame_json(run), *frames[1:-1], frame_json(end)]
