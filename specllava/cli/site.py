"""The command ``python -m specllava site``: the page without a server, as plain files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from rich.console import Console

from specllava.cli.options import print_line, print_notice
from specllava.core.files import check_free, shipped, whole_directory

if TYPE_CHECKING:
    from visual.player.recorded import Recorded

ASSETS = shipped("assets")


@dataclass(frozen=True)
class Site:
    """Write a static edition of the page: what needs no model, for any web server and any number of readers."""

    output: Path
    """Directory to write; it must not exist."""

    live: str = ""
    """Address of a page with models, to link to."""

    code: str = ""
    """Address of the project's files, for the links Code and Docs."""

    races: Path | None = None
    """Directory of race files, dialogues too, to show in place of the examples; their pictures lie beside them."""

    def run(self, console: Console) -> None:
        from visual.player.lessons import load_lessons
        from visual.player.recorded import load_recorded
        from visual.site import StaticSite

        for name, address in (("live", self.live), ("code", self.code)):
            if address and not (urlsplit(address).scheme in ("http", "https") and urlsplit(address).netloc):
                raise ValueError(f"--{name} {address}: an address begins with http:// or https:// and names a host")
        check_free(self.output)
        if not self.output.parent.is_dir():
            raise ValueError(f"--output {self.output} cannot be written: there is no directory {self.output.parent}")
        examples = load_recorded(ASSETS / "examples") if self.races is None else _own_races(self.races)
        site = StaticSite(examples, load_lessons(ASSETS / "lessons"), self.live, self.code)
        with whole_directory(self.output) as folder:
            site.write(folder)
        files = [file for file in self.output.rglob("*") if file.is_file()]
        size = sum(file.stat().st_size for file in files) / 1e6
        index = self.output / "index.html"
        print_line(console, f"{self.output}: {len(files)} files, {size:.1f} MB; {index} is the page")


def _own_races(folder: Path) -> list[Recorded]:
    """Read the race files of a directory, by name; print a line to stderr for each that is refused.

    Raises:
        ValueError: no race file is there, or at least one is refused.
    """
    from specllava.models.media.images import open_image
    from visual.player.recorded import read_recorded

    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise ValueError(f"--races {folder}: there is no race file (*.json); compare --trace writes one")
    races = []
    for path in paths:
        try:
            if not path.stem.isprintable():
                raise ValueError(f"{path.name!a} cannot be named in a link: use printable characters")
            race = read_recorded(path)
            for image in filter(None, (turn.image for turn in race.turns)):
                open_image(image)
        except ValueError as error:
            print_notice(str(error))
            continue
        if race.filled:
            print_notice(f"{path.name}: {race.filled}")
        races.append(race)
    if len(races) < len(paths):
        raise ValueError(f"--races {folder}: {len(paths) - len(races)} of {len(paths)} files refused, nothing written")
    return races
