"""The player's HTML with a run in it that is over, at its step: what ``player.js`` will show, written without it.

It is made from the player's own HTML and the frames that the player is given. What needs a script is switched off.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from visual.player import ALONE, STATIC, TOGETHER
from visual.still import still_tree, tree_height

VERDICTS = {  # as in step.js
    "o": ("root", "where the tree starts"), "a": ("accepted", "accepted"), "r": ("rejected", "rejected"),
    "u": ("unreached", "never reached"), "n": ("next", "the target's own"), "p": ("pruned", "pruned, not sent"),
}  # fmt: skip
Frame = dict[str, Any]


@dataclass(frozen=True)
class Item:
    """What a lane emitted at once, and when on its clock."""

    frame: Frame
    start: float
    end: float


@dataclass(frozen=True)
class Moment:
    """A run and the step of it that is shown, from 0."""

    run: Frame
    end: Frame
    lanes: Mapping[str, Sequence[Item]]

    @classmethod
    def read(cls, frames: Sequence[str]) -> Moment:
        """Of a whole run."""
        run, *middle, end = map(json.loads, frames)
        lanes: dict[str, list[Item]] = {ALONE: [], TOGETHER: []}
        for frame in middle:
            items, seconds = lanes[frame["lane"]], frame["seconds"]
            start = items[-1].end if items else 0.0
            items.append(Item(frame, start, start + (sum(seconds) if isinstance(seconds, list) else seconds)))
        return cls(run, end, lanes)

    @property
    def steps(self) -> Sequence[Item]:
        """Those that one can look at; before them comes the prefill."""
        return self.lanes[self.run["led"]][1:]

    @property
    def step(self) -> int:
        return min(max(int(self.end["show"]), 0), len(self.steps) - 1)

    @property
    def now(self) -> Item:
        return self.steps[self.step]

    @property
    def total(self) -> float:
        return max(items[-1].end for items in self.lanes.values() if items) or 1.0  # a file may say that all took 0 s

    def percent(self, seconds: float) -> str:
        return f"{100 * seconds / self.total:.3f}%"


def still_player(frames: Sequence[str], forks: bool) -> str:
    """The filled HTML; frames of a run without a step have nothing to show and leave it as it is.

    Args:
        forks: one can go on from a word that was turned down.
    """
    moment, page = Moment.read(frames), (STATIC / "player.html").read_text(encoding="utf-8")
    if moment.steps:
        page = _with_tree(_with_race(page, moment), moment, forks)
    return re.sub(r"<(button|input|select) ", r"<\1 disabled ", page)


def _put(page: str, mark: str, content: str, more: str = "") -> str:
    """Text or markup into the one element whose tag bears ``mark``, and attributes into that tag."""
    filled, count = re.subn(
        rf"(<[a-z0-9]+ [^>]*{re.escape(mark)}[^>]*)>[^<]*", lambda found: f"{found[1]}{more}>{content}", page
    )
    if count != 1:
        raise ValueError(f"{mark} stands {count} times in player.html")
    return filled


def _with_race(page: str, moment: Moment) -> str:
    run, totals, now, total = moment.run, moment.end["totals"], moment.now.end, moment.total
    for name in re.findall(r'data-total="([^"]+)"', page):
        page = _put(page, f'data-total="{name}"', escape(totals.get(name, "")))
    page = page.replace('data-state="open"', f'data-state="{escape(totals["same_state"])}"', 1)
    count = f"step {moment.step + 1} of {len(moment.steps)}"
    for mark, text in (
        ('class="when"', f", at {duration(now)}"), ('class="origin"', f"{run['source']} · {run['setting']}"),
        ('class="asked"', run["prompt"]), ('class="axis-middle"', duration(total / 2)),
        ('class="axis-end"', duration(total)), ('class="count"', count), ('step-name"', count.capitalize()),
    ):  # fmt: skip
        page = _put(page, mark, escape(text))
    page = _put(page, 'class="playhead"', "", f' style="left: {moment.percent(now)}"')
    scrubbed = f'value="{round(1000 * now / total)}" style="--done: {moment.percent(now)}"'
    page = page.replace('value="0" step="1"', scrubbed, 1)
    page = page.replace(f'<option value="{run["speed"]:g}"', f'<option value="{run["speed"]:g}" selected', 1)
    for lane, items in moment.lanes.items():
        page = _put(page, f'class="track" data-lane="{lane}"', "".join(_block(moment, item) for item in items))
        absent = run["absent"].get(lane)
        words = escape(absent) if absent else "".join(_words(moment, item, first=item is items[0]) for item in items)
        before, article, behind = page.partition(f'<article data-lane="{lane}">')
        filled = f'class="words{" absent" if absent else ""}">{words}'
        page = before + article + behind.replace('class="words">', filled, 1)
    return page


def _words(moment: Moment, item: Item, first: bool) -> str:
    written = []
    for place, (text, source) in enumerate(item.frame["tokens"]):
        word = text.lstrip()
        space = "" if first and place == 0 else text[: len(text) - len(word)]
        kinds = " ".join(f"from-{kind}" for kind in source.split())
        shown = "■" if source.endswith("end") else escape(word)
        written.append(f'{space}<span class="word {kinds}{_phase(moment, item)}">{shown}</span>')
    return "".join(written)


def _block(moment: Moment, item: Item) -> str:
    style = f"left: {moment.percent(item.start)}; width: {moment.percent(item.end - item.start)}"
    kind = " prefill" if item.frame["kind"] == "prefill" else ""
    if item.frame["kind"] == "step" and item.frame["lane"] == TOGETHER:
        draft, verify, rest = item.frame["seconds"]
        whole = (draft + verify + rest) or 1.0
        kind = " split"
        style += f"; --draft: {100 * draft / whole:.3f}%; --verified: {100 * (draft + verify) / whole:.3f}%"
    return f'<div class="lap{kind}{_phase(moment, item)}" style="{style}"></div>'


def _phase(moment: Moment, item: Item) -> str:
    return " now" if item is moment.now else " later" if item.end > moment.now.end + 1e-9 else ""


def _with_tree(page: str, moment: Moment, forks: bool) -> str:
    step = json.loads(gzip.decompress(base64.b64decode(moment.now.frame["picture"])))
    nodes, focus, figure = step["nodes"], step["focus"], step["figure"]
    say = "".join(f'<span class="say-{style}">{escape(text)}</span>' for style, text in step["say"])
    branch = [focus]
    while nodes["parent"][branch[0]] >= 0:
        branch.insert(0, nodes["parent"][branch[0]])
    text = "".join(nodes["label"][node] for node in branch[-4:])
    path = re.sub(r"^[\s.,;:]+", "", text) or text
    verdict, said = VERDICTS[nodes["verdict"][focus]]
    facts = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in _facts(nodes, focus))
    for mark, content in (
        ('class="sentence"', say), ('class="node-word"', escape(nodes["label"][focus].strip())),
        ('class="node-path"', escape(f"… {path}")), ('class="node-facts"', facts),
        ('class="node-reason"', escape(nodes["reasons"][nodes["reason"][focus]])),
    ):  # fmt: skip
        page = _put(page, mark, content)
    page = _put(page, 'class="node-verdict"', said, f' data-verdict="{verdict}"')
    verdicts = "".join(nodes["verdict"][node] for node in branch)
    if forks and re.fullmatch("[oa]*[rp]", verdicts):
        page = page.replace('node-go" hidden', 'node-go"', 1)
    pruned = nodes["verdict"].count("p")
    page = page.replace(">show pruned<", f">show {pruned} pruned<" if pruned else ">nothing pruned<", 1)
    size = f"height: {tree_height(figure):g}px; min-width: {figure['layout']['meta']['width']}px"
    return _put(page, 'class="tree"', still_tree(figure, focus), f' style="{size}"')


def _facts(nodes: Mapping[str, Any], node: int) -> list[tuple[str, str]]:
    """The chosen node's numbers, as ``step.js`` words them."""
    rank = f", rank {nodes['rank'][node]}" if nodes["rank"][node] else ""
    rows = (
        ("draft probability", "draft", "{:.2f}" + rank),
        ("log-probability of the branch", "score", "{:.2f} nats"),
        ("draft entropy after it", "entropy", "{:.2f} nats"),
        ("target probability", "target", f"{{:.2f}}, rank {nodes['target_rank'][node]}"),
    )
    facts = [(name, form.format(nodes[key][node])) for name, key, form in rows if nodes[key][node] is not None]
    if nodes["choice"][node] is not None:
        facts.append(("target's choice after it", f"{nodes['choice'][node]} ({nodes['choice_prob'][node]:.2f})"))
    return facts


def duration(seconds: float) -> str:
    """As ``race.js`` words it."""
    if seconds >= 1:
        return f"{seconds:.1f} s" if seconds >= 10 else f"{seconds:.2f} s"
    return f"{1000 * seconds:.{1 if seconds < 0.01 else 0}f} ms"
