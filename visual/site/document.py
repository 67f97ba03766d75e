"""HTML document of the static edition, which holds the words of examples and lessons for search engines as well."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final
from urllib.parse import quote, urlencode

from visual.figures.labels import strip_bidi
from visual.player import markup
from visual.player.lessons import Lesson
from visual.player.recorded import Recorded, titles
from visual.player.static_files import static_text

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
class SiteFiles:
    """Addresses of the files that the document itself asks for, relative to it."""

    view: str
    script: str
    preloads: tuple[str, ...]
    style: str
    icon: str
    plotly: str


@dataclass(frozen=True, slots=True)
class Example:
    """A recorded race with the addresses of its frames and its picture, and the number of steps of each turn."""

    race: Recorded
    file: str
    picture: str | None
    steps: tuple[int, ...]

    @property
    def name(self) -> str:
        """Name in a link."""
        return self.race.name


def index_html(
    files: SiteFiles, examples: Sequence[Example], lessons: Sequence[Lesson], index: Mapping[str, object],
    live: str = "", code: str = "",
) -> str:  # fmt: skip
    """Make the document.

    Args:
        index: what the script reads: addresses of modules, races and lessons.
        live, code: addresses to link to; "" for none.
    """
    named = list(zip(examples, titles([one.race for one in examples]), strict=True))
    parts = {
        "head": _head(files),
        "masthead": markup.masthead(),
        "links": markup.links(code, live),
        "chosen": "".join(f"<li>{_link('example', one.name, name)}</li>" for one, name in named),
        "player": static_text("player.html"),
        "lessons": "".join(map(_lesson, lessons)),
        "examples": "".join(_example(one, name) for one, name in named),
        "footer": markup.footer(),
        "index": json.dumps(index, ensure_ascii=False).replace("<", "\\u003c"),
    }
    return re.sub(r"<!-- (\w+) -->", lambda match: parts[match[1]], static_text("site.html"))


def readme(live: str = "") -> str:
    """Make the file by which a static Space is described."""
    line = f"\nThe live page, where models answer: <{live}>." if live else ""
    return README.format(claim=markup.CLAIM, live=line)


def _head(files: SiteFiles) -> str:
    named = {"description": markup.CLAIM, "twitter:card": "summary"}
    properties = {"og:title": markup.TITLE, "og:description": markup.CLAIM, "og:type": "website"}
    tags = [f"<title>{escape(markup.TITLE)}</title>"]
    tags += [f'<meta name="{name}" content="{escape(text)}">' for name, text in named.items()]
    tags += [f'<meta property="{name}" content="{escape(text)}">' for name, text in properties.items()]
    tags += [f'<script src="{_href(files.view)}"></script>']
    tags += [f'<link rel="icon" href="{_href(files.icon)}">', f'<link rel="stylesheet" href="{_href(files.style)}">']
    tags += [f'<link rel="modulepreload" href="{_href(file)}">' for file in (files.script, *files.preloads)]
    tags += [f'<link rel="preload" as="script" fetchpriority="low" href="{_href(files.plotly)}">']
    return "\n".join([*tags, f'<script type="module" src="{_href(files.script)}"></script>'])


def _href(address: str) -> str:
    return escape(quote(address))


def _link(kind: str, value: str, text: str) -> str:
    query = escape(urlencode({kind: value}))
    return f'<a href="?{query}" data-opens="{kind} {escape(value)}">{escape(text)}</a>'


def _lesson(lesson: Lesson) -> str:
    text = lesson.text
    title = _link("lesson", str(lesson.number), text.title)
    answer = f"<details><summary>The answer</summary><p>{escape(text.answer)}</p></details>"
    return f"<li><h3>{title}</h3><p>{escape(text.question)}</p>{answer}</li>"


def _example(example: Example, title: str) -> str:
    turns = "".join(
        f"<p><b>{escape(strip_bidi(turn.prompt))}</b> {escape(strip_bidi(turn.lead.text))}</p>"
        for turn in example.race.turns
    )
    image = f'<img src="{_href(example.picture)}" alt="" loading="lazy">' if example.picture else "<span></span>"
    return f"<article>{image}<h3>{_link('example', example.name, title)}</h3>{turns}</article>"
