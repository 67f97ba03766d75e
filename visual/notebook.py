"""The player in a notebook's cell: an iframe that holds a saved page. Imports no torch and no gradio.

The page is dark where the text around its cell is light, and makes the iframe as high as itself: see ``standalone.js``.
"""

from __future__ import annotations

import html
import json
import time
import uuid
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from specllava.core.playable import Playable
from specllava.core.race import Race
from specllava.core.race_file import NamedTrace
from specllava.core.trace import SPECULATIVE, TARGET_ONLY, DecodeTrace
from specllava.findings.comparison import side_names
from specllava.models.media.images import open_image
from visual.player.bounds import check_lane
from visual.player.encoding import data_address, frame_json
from visual.player.frames import Ending, FrameList
from visual.player.race_frames import race_frames
from visual.player.recorded import Recorded
from visual.player.standalone import standalone_page

if TYPE_CHECKING:
    from specllava.decoding import RaceEvent
    from specllava.pair import Pair

SECONDS_PER_UPDATE = 0.5
SOURCE = "run of a notebook"
SIDES = ("A", "B")
# Frames are kept at the iframe, for a page that the notebook loads anew as it scrolls.
UPDATE = """<script>{
const cell = document.querySelector('[data-specllava="%s"]'), from = %d;
if (cell && from <= (cell.frames ??= []).length) {
  cell.frames.splice(from, Infinity, ...%s);
  cell.dispatchEvent(new Event("frames"));
}
}</script>"""


def show(run: Playable, picture: Image.Image | str | Path | None = None) -> None:
    """Show a trace or a race in the output of a notebook's cell; see :meth:`~specllava.core.playable.Playable.show`."""
    _display(run_html(run, picture), f"{type(run).__name__} in the player of specllava")


def run_html(run: Playable, picture: Image.Image | str | Path | None = None) -> str:
    """Return the player on a trace or a race as HTML: one iframe, about 6 MB.

    Raises:
        ValueError: no lane, more than can be drawn, or a run that did not record its steps; one line.
    """
    if isinstance(run, DecodeTrace):
        alone = run.config.drafter == "none" and run.drafter is None
        run = Race({TARGET_ONLY if alone else SPECULATIVE: run})
    assert isinstance(run, Race)
    return _cell(_frames(run, _address(run.picture if picture is None else picture)))


def live(
    pair: Pair, events: Iterable[RaceEvent], picture: Image.Image | str | Path | None = None
) -> Generator[RaceEvent]:
    """Yield the events of a race, and show it in the cell's output while it runs.

    ``for event in live(pair, pair.race(picture, question), picture): …``; whoever leaves the loop, or interrupts the
    cell, keeps what was shown. A race of sides A and B is shown when it is over.

    Raises:
        ValueError: there is no notebook.
    """
    _ipython_display()  # refused here, before the race has begun
    cell, past = _LiveCell(_address(picture)), list[Any]()
    shown = time.monotonic()
    ending: Ending = "stopped"
    try:
        for event in events:
            past.append(event)
            if time.monotonic() - shown >= SECONDS_PER_UPDATE:
                cell.update(pair.collect_race(past))
                shown = time.monotonic()
            yield event
        ending = "finished"
    finally:
        cell.update(pair.collect_race(past), ending)


class _LiveCell:
    """The player in a cell's output, which gets frames as they come: the iframe stays, a script beside it changes."""

    def __init__(self, picture: str | None) -> None:
        self._picture, self._name, self._sent = picture, uuid.uuid4().hex, 0
        self._frame_list: FrameList | None = None
        self._script: Any = None  # IPython's handle of the second output

    def update(self, traces: Race, ending: Ending | None = None) -> None:
        """Show what is new in the traces. ``ending`` closes the run."""
        if not {TARGET_ONLY, SPECULATIVE}.issuperset(traces):
            if ending is not None and traces.keys() >= {*SIDES}:
                _display(_cell(_frames(traces, self._picture)), "a race")
            return
        if self._frame_list is None:
            if not any(trace.steps for trace in traces.values()):
                return  # until then a lane may be missing that has not read its prompt
            self._frame_list = FrameList(SOURCE, True, self._picture, lanes=tuple(traces))
        frames = self._frame_list.update(traces, ending)
        if not frames:
            return
        if self._script is None:
            _display(_cell(frames, self._name), "a race")
            self._script = _display("", "", display_id=True)
        if ending is not None:  # whoever opens the notebook later gets all frames at once, of a run that is over
            self._sent, frames[0] = 0, frame_json(json.loads(frames[0]) | {"live": False})
        script = UPDATE % (self._name, self._sent, json.dumps(frames[self._sent :]).replace("<", "\\u003c"))
        words = ", ".join(f"{name}: {len(trace.steps)} steps" for name, trace in traces.items())
        self._script.update({"text/html": script, "text/plain": words}, raw=True)
        self._sent = len(frames)


def _frames(race: Race, picture: str | None) -> list[str]:
    """Return the player's frames of a race, whose ``picture`` is a data address.

    Raises:
        ValueError: no lane, more than can be drawn, or a run that did not record its steps; one line.
    """
    for lane, trace in race.items():
        check_lane(lane, trace)
    alone, together = race.get(TARGET_ONLY), race.get(SPECULATIVE)
    recorded = Recorded("race", None, alone, together)
    if race.keys() >= {*SIDES}:
        one, two = (race[side] for side in SIDES)
        names = side_names(one.config, two.config, one.setting, two.setting)
        recorded = replace(recorded, a=NamedTrace(names[0], one), b=NamedTrace(names[1], two))
    elif alone is None and together is None:
        raise ValueError(f"a race has {TARGET_ONLY} or {SPECULATIVE}, or A and B: this has {[*race] or 'no lane'}")
    return race_frames(recorded, SOURCE, picture)


def _address(picture: Image.Image | str | Path | None) -> str | None:
    return None if picture is None else data_address(open_image(picture))


def _cell(frames: Sequence[str], name: str = "") -> str:
    """Return an iframe that holds the saved page of these frames; ``name`` is what scripts find it by."""
    page = html.escape(standalone_page(frames))
    style = "width:100%;height:900px;border:0"
    return f'<div><iframe title="specllava" data-specllava="{name}" style="{style}" srcdoc="{page}"></iframe></div>'


def _display(markup: str, words: str, **options: Any) -> Any:
    """Show HTML in the output of a cell, or ``words`` where there is only text; return IPython's handle."""
    return _ipython_display()({"text/html": markup, "text/plain": words}, raw=True, **options)


def _ipython_display() -> Callable[..., Any]:
    """Import what shows outputs.

    Raises:
        ValueError: IPython is not installed.
    """
    try:
        from IPython.display import display
    except ImportError as error:
        raise ValueError(
            "runs are shown in a notebook, and IPython is not installed: save the race and use"
            " `python -m specllava trace export`"
        ) from error
    show_output: Callable[..., Any] = display
    return show_output
