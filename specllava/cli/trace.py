"""The commands of ``python -m specllava trace``: saved races, with no model at hand."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console

from specllava.cli.options import check_outputs, picture_beside, print_line, print_notice
from specllava.core.files import shipped, write_whole

PAGE = shipped("app.py")


@dataclass(frozen=True)
class View:
    """Open the page on a saved race or trace, as compare --trace and the page itself write it."""

    file: tyro.conf.Positional[Path]
    """Race file."""

    port: int = 7860
    """Where the page is served."""

    def run(self, console: Console) -> None:
        from visual.player.recorded import read_recorded

        race = read_recorded(self.file)  # refused here, in one line, before a server starts
        if race.filled:
            print_notice(f"{self.file}: {race.filled}")
        if not PAGE.is_file():
            raise ValueError(f"there is no page at {PAGE}: this command needs the whole project")
        page = [sys.executable, str(PAGE), "--open", str(self.file.resolve()), "--port", str(self.port)]
        code = subprocess.run(page, check=False).returncode
        if code:
            raise ValueError(f"the page ended with exit code {code}")


@dataclass(frozen=True)
class Export:
    """Write a saved race as one page that plays with no server and no network."""

    file: tyro.conf.Positional[Path]
    """Race file; a picture that it names is taken along if it lies beside it."""

    html: Path
    """The page to write, about 5 MB."""

    def run(self, console: Console) -> None:
        from specllava.models.media.images import open_image
        from visual.player.frames import data_address, race_frames
        from visual.player.recorded import read_recorded
        from visual.player.saved_page import saved_page

        check_outputs(html=self.html)
        race = read_recorded(self.file)
        if race.filled:
            print_notice(f"{self.file}: {race.filled}")
        pictures = [data_address(open_image(file)) if file else None for file in race.pictures]
        write_whole(self.html, saved_page(race_frames(race, "saved run", pictures)))
        steps = sum(len(turn.lead.steps) for turn in race.turns)
        print_line(console, f"{self.html}: {steps} steps")


@dataclass(frozen=True)
class Join:
    """Write two traces of one prompt as the sides A and B of one race file, wherever they were made."""

    files: tyro.conf.Positional[tuple[Path, Path]]
    """Side A and side B: traces, or race files whose speculative lane is taken."""

    output: Path
    """The race file to write."""

    a: str | None = None
    """Name of side A; what sets the two apart without it."""

    b: str | None = None
    """Name of side B."""

    def run(self, console: Console) -> None:
        from specllava.core.metrics import compare
        from specllava.core.race_file import NamedTrace, comparison_json, side_names
        from visual.player.recorded import read_recorded, recorded_race

        check_outputs(output=self.output)
        races = [read_recorded(file) for file in self.files]
        if any(race.later for race in races):
            raise ValueError("a dialogue has several prompts, and two sides answer one: join races")
        one, two = (race.lead for race in races)
        names = side_names(one, two)
        sides = NamedTrace(self.a or names[0], one), NamedTrace(self.b or names[1], two)
        alone = next((race.target_only for race in races if race.target_only not in (None, race.lead)), None)
        image = next((race.image for race in races if race.image is not None), None)
        document = comparison_json(*sides, alone, None if image is None else picture_beside(image, self.output))
        recorded_race(self.output.stem, document.encode())  # refuses what could not be opened
        write_whole(self.output, document)
        same = "the same tokens" if compare(one, two).identical else "different tokens"
        print_line(console, f"{self.output}: A {sides[0].name}, B {sides[1].name}; {same}")
