"""What the browser goes by to read a race file and make its frames: taken from the Python that does the same."""

from __future__ import annotations

from typing import Any, Final

from pydantic import TypeAdapter

from specllava.drafters import DRAFTER_INFOS
from specllava.growth.rules import RULE_INFOS
from specllava.recorded_config import MAX_NAME
from specllava.trace import DecodeTrace
from visual.figures import chart, charts, step_layout, theme, tree_figure
from visual.figures.labels import FUNCTION_WORDS
from visual.player import bounds, recorded, summary

BOUNDS: Final = (
    "MAX_STEPS", "MAX_NODES", "MAX_PRUNED", "MAX_DRAWS", "MAX_DRAW_TOKENS", "MAX_TREE", "MAX_TOKEN_CHARACTERS",
    "MAX_ANSWER_CHARACTERS", "MAX_PROMPT_CHARACTERS", "MAX_NAME_CHARACTERS", "MAX_SECONDS", "LOG_PROBS", "ENTROPIES",
)  # fmt: skip
LAYOUT: Final = (
    "LABEL_CHARACTERS", "CHARACTER", "BETWEEN", "NARROW", "COLUMN", "SHOWN_DEPTHS", "FOLDED", "SHORTEST_FOLD",
    "CROWDED",
)  # fmt: skip
FIGURE: Final = ("SLOTS", "MARGIN", "PRUNED_CHARACTERS", "STUB", "STUB_ANGLES", "ROW_PIXELS")
CHARTS: Final = ("NATS", "UNSURE", "RELIABILITY_BINS", "HARDEST", "FEWEST")
WORDY: Final = ("title", "description")  # keys of a schema that tell people, and bound nothing


def drawing_rules() -> dict[str, Any]:
    """Return the bounds and the schema of race files, and the constants of figures, charts and words, as JSON has it.

    What is written in capitals bears the name that it has in Python.
    """
    sizes = {
        name: getattr(module, name)
        for module, names in ((step_layout, LAYOUT), (tree_figure, FIGURE), (charts, CHARTS))
        for name in names
    }
    limits = {name: getattr(bounds, name) for name in BOUNDS}
    limits |= {"MAX_BYTES": recorded.MAX_BYTES, "MAX_TURNS": recorded.MAX_TURNS, "MAX_NAME": MAX_NAME}
    rules = {name: {"options": info.options, "drawable": info.drawable} for name, info in RULE_INFOS.items()}
    drafters = {
        name: {"called": summary.DRAFTERS.get(name, name), "options": info.options}
        for name, info in DRAFTER_INFOS.items()
    }
    return {
        **sizes,
        "schema": _bare(TypeAdapter(DecodeTrace).json_schema()),
        "bounds": limits,
        "rules": rules,
        "drawable": next(name for name, rule in rules.items() if rule["drawable"]),
        "drafters": drafters,
        "phrases": summary.PHRASES,
        "leavesNothingOut": summary.ALL,
        "colours": theme.COLOURS,
        "shades": theme.entropy_shades(),
        "unknown": theme.UNKNOWN,
        "markers": tree_figure.MARKERS,
        "fonts": tree_figure.FONTS,
        "widths": tree_figure.WIDTHS,
        "panel": chart.panel("", "").to_plotly_json()["layout"],
        "legend": chart.LEGEND,
        "outcomes": charts.OUTCOMES,
        "small": sorted(FUNCTION_WORDS),
    }


def _bare(schema: Any) -> Any:
    """Take the titles and descriptions out of a JSON schema, but for fields of such a name."""
    if isinstance(schema, list):
        return [_bare(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _bare(one) for key, one in schema.items() if key not in WORDY or isinstance(one, dict)}
