"""A page of another engine's acceptance counts: sentences and drawings, without a script."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Final

from specllava.core.acceptance import Acceptance
from specllava.findings.serving_log import ServingLog

REQUESTS: Final = 50  # whose steps are drawn
STEPS: Final = 2_000  # of each of them
HEIGHT: Final = 60  # of the longest bar
STYLE: Final = """
body { margin: 2rem auto; max-width: 60rem; padding: 0 1rem }
body { font: 16px/1.5 system-ui, sans-serif; color-scheme: light dark }
svg { width: 100%; height: 5rem; display: block }
rect { fill: #0072b2 }
rect.guesses { fill: #8b9096; opacity: 0.4 }
td, th { padding: 0 1rem 0 0; text-align: right }
"""


def acceptance_page(name: str, log: ServingLog, sentences: Sequence[str]) -> str:
    """Make the page: what was found in words, steps by accepted guesses, acceptance by position, and each ribbon."""
    said = "".join(f"<p>{html.escape(sentence)}</p>" for sentence in sentences)
    drawn = [request for request in log.requests[:REQUESTS] if request.steps]
    ribbons = "".join(
        f"<h3>Request {number}: {len(request.steps)} steps</h3>{_ribbon(request)}"
        for number, request in enumerate(drawn, start=1)
    )
    ribbon = f"<h2>Step by step</h2><p>Guesses in grey, accepted ones in blue.</p>{ribbons}" if drawn else ""
    title = html.escape(name)
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; style-src \'unsafe-inline\'">'
        f"<style>{STYLE}</style><h1>{title}</h1>{said}{_table(log.pooled)}{ribbon}</html>\n"
    )


def _table(pooled: Acceptance) -> str:
    """Draw the histogram, and write its numbers with the acceptance by position."""
    shares = ("", *(f"{share:.1%}" for share in pooled.per_position))
    rows = "".join(
        f"<tr><td>{reach}</td><td>{steps}</td><td>{share}</td></tr>"
        for reach, (steps, share) in enumerate(zip(pooled.histogram, shares, strict=True))
    )
    head = "<tr><th>accepted guesses</th><th>steps</th><th>accepted at this position</th></tr>"
    bars = _bars([(steps, "") for steps in pooled.histogram], max(pooled.histogram))
    return f'<h2>How far did guesses go?</h2><svg class="histogram" {bars}</svg><table>{head}{rows}</table>'


def _ribbon(request: Acceptance) -> str:
    shown = request.steps[:STEPS]
    most = max(1, *(step.drafted for step in shown))
    both = _bars([(step.drafted, "guesses") for step in shown], most)
    accepted = _rects([(step.accepted, "") for step in shown], most)
    return f'<svg class="ribbon" {both}{accepted}</svg>'


def _bars(heights: Sequence[tuple[int, str]], most: int) -> str:
    return f'viewBox="0 0 {len(heights)} {HEIGHT}" preserveAspectRatio="none">{_rects(heights, most)}'


def _rects(heights: Sequence[tuple[int, str]], most: int) -> str:
    sizes = [(HEIGHT * height / most, kind) for height, kind in heights]
    return "".join(
        f'<rect class="{kind}" x="{at + 0.1}" y="{HEIGHT - size:.1f}" width="0.8" height="{size:.1f}"/>'
        for at, (size, kind) in enumerate(sizes)
    )
