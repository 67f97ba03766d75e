"""Colours and verdicts that figures, legend and stylesheet share.

Okabe-Ito colours, each paired with a symbol or a line style, so that no meaning hangs on colour alone. The
stylesheet reads them as custom properties (``css_variables``); figures use them as they are, because they have
enough contrast on the light and on the dark card alike.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Final, Literal

from plotly.colors import sample_colorscale

from specllava.config import DecodingConfig
from specllava.trace import StepTrace
from visual.figures.reasons import Reason, reasons

Verdict = Literal["root", "accepted", "rejected", "unreached", "next", "pruned"]

ACCEPTED: Final = "#0072B2"
DRAFTING: Final = "#56B4E9"
REJECTED: Final = "#D55E00"
TARGET: Final = "#009E73"
SAVED: Final = "#CC79A7"
QUIET: Final = "#8b9096"
COLOURS: Final[dict[str, str]] = {
    "accepted": ACCEPTED,
    "drafting": DRAFTING,
    "rejected": REJECTED,
    "target": TARGET,
    "saved": SAVED,
    "quiet": QUIET,
}
COLOURSCALE: Final = "cividis"
UNKNOWN: Final = "rgba(139,144,150,0.18)"  # the draft has no entropy here: it never expanded this node
SHADES: Final = 200  # of the entropy scale


def css_variables() -> str:
    """Return the colours and the entropy scale as a ``:root`` rule for the stylesheet."""
    stops = ", ".join(sample_colorscale(COLOURSCALE, [i / 6 for i in range(7)]))
    lines = [f"--{name}: {colour};" for name, colour in COLOURS.items()]
    return ":root { " + " ".join([*lines, f"--entropy-scale: linear-gradient(90deg, {stops});"]) + " }"


def text_on(colour: str) -> str:
    """Return black or white, whichever has more contrast on a colour such as ``#0072B2`` (WCAG 2)."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return "#ffffff" if 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05 else "#000000"


def entropy_ceiling(config: DecodingConfig) -> float:
    """Return the nats at the bright end of the scale: fixed for a run, with its threshold in the left half."""
    return max(2.0, math.ceil(2 * config.entropy_threshold))


def entropy_colour(entropy: float | None, ceiling: float) -> str:
    """Return the fill of a node: a colour of the legend's scale, or a pale grey without an entropy.

    A plain colour and not a number for Plotly's own colour axis, which costs a tenth of every step that is drawn.
    """
    if entropy is None:
        return UNKNOWN
    shades = entropy_shades()
    return shades[min(round(entropy / ceiling * (len(shades) - 1)), len(shades) - 1)]


@cache
def entropy_shades() -> tuple[str, ...]:
    """Return ``SHADES + 1`` colours of the scale, in steps too fine to be seen."""
    stops = sample_colorscale(COLOURSCALE, [i / SHADES for i in range(SHADES + 1)], colortype="tuple")
    return tuple("#" + "".join(f"{round(255 * part):02x}" for part in stop) for stop in stops)


def verdicts(step: StepTrace) -> tuple[Verdict, ...]:
    """Return the verdict of every node, as it is drawn."""
    drawn: dict[Reason, Verdict] = {
        "root": "root", "accepted": "accepted", "parent-rejected": "unreached", "after-end": "unreached",
    }  # fmt: skip
    return tuple(drawn.get(reason, "rejected") for reason in reasons(step, sampled=False))
