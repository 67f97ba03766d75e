"""The command ``python -m specllava site``: the page without a server, as plain files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console

from specllava.shipped import shipped
from specllava.whole_file import whole_directory

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

    def run(self, console: Console) -> None:
        from visual.player.lessons import load_lessons
        from visual.player.recorded import load_recorded
        from visual.site.static_site import StaticSite

        for name, address in (("live", self.live), ("code", self.code)):
            if address and not (urlsplit(address).scheme in ("http", "https") and urlsplit(address).netloc):
                raise ValueError(f"--{name} {address}: an address begins with http:// or https:// and names a host")
        if self.output.exists():
            raise ValueError(f"{self.output} exists already: name another --output, or remove it")
        if not self.output.parent.is_dir():
            raise ValueError(f"--output {self.output} cannot be written: there is no directory {self.output.parent}")
        site = StaticSite(load_recorded(ASSETS / "examples"), load_lessons(ASSETS / "lessons"), self.live, self.code)
        with whole_directory(self.output) as folder:
            site.write(folder)
        files = [file for file in self.output.rglob("*") if file.is_file()]
        size = sum(file.stat().st_size for file in files) / 1e6
        told = f"{self.output}: {len(files)} files, {size:.1f} MB; {self.output / 'index.html'} is the page"
        console.print(told, markup=False, highlight=False, soft_wrap=True)
