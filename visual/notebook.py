"""The player in a notebook's cell: an iframe that holds a saved page. Imports no torch and no gradio.

The page is dark where the text around its cell is light, and makes the iframe as high as itself: see ``start.js``.
"""

from __future__ import annotations

import html
from pathlib import Path

from PIL import Image

from specllava.models.images import open_image
from specllava.race_file import Race
from specllava.trace import SPECULATIVE, TARGET_ONLY, DecodeTrace, Playable
from visual.player.frames import data_address, race_frames
from visual.player.recorded import Recorded, check_lane
from visual.player.saved_page import saved_page


def show(run: Playable, picture: Image.Image | str | Path | None = None) -> None:
    """Show a trace or a race in the output of a notebook's cell; see :meth:`~specllava.trace.Playable.show`."""
    try:
        from IPython.display import display
    except ImportError as error:
        raise ValueError(
            "runs are shown in a notebook, and IPython is not installed: save the race and use"
            " `python -m specllava trace export`"
        ) from error
    words = f"{type(run).__name__} in the player of specllava"
    display({"text/html": run_html(run, picture), "text/plain": words}, raw=True)


def run_html(run: Playable, picture: Image.Image | str | Path | None = None) -> str:
    """Return the player on a trace or a race as HTML: one iframe, about 6 MB.

    Raises:
        ValueError: no lane, more than can be drawn, or a run that did not record its steps; one line.
    """
    if isinstance(run, DecodeTrace):
        is_alone = run.config.drafter == "none" and run.drafter is None
        run = Race({TARGET_ONLY if is_alone else SPECULATIVE: run})
    assert isinstance(run, Race)
    for lane, trace in run.items():
        check_lane(lane, trace)
    alone, together = run.get(TARGET_ONLY), run.get(SPECULATIVE)
    if alone is None and together is None:
        raise ValueError(f"a race has {TARGET_ONLY} or {SPECULATIVE}: this has {[*run] or 'no lane'}")
    shown = run.picture if picture is None else picture
    drawn = None if shown is None else data_address(open_image(shown))
    page = html.escape(saved_page(race_frames(Recorded("race", None, alone, together), [drawn])))
    style = "width:100%;height:900px;border:0"
    return f'<div><iframe title="specllava" data-specllava style="{style}" srcdoc="{page}"></iframe></div>'
