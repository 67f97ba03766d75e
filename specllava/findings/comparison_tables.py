"""A comparison of A and B as CSV, Markdown and JSON, and its race files: one way for page and command line."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator
from typing import Any, Final

from specllava.metrics import Comparison, RunTotals
from specllava.findings.bootstrap import Ratio
from specllava.findings.comparison import PairedComparison, PromptResult

Cell = str | int | float | None
SHOWN: Final = {  # columns of the Markdown table, by their headings
    "#": "number", "prompt": "prompt", "τ A": "tau_a", "τ B": "tau_b", "τ B/A": "tau_ratio",
    "speed B/A": "speed_ratio", "tokens": "same",
}  # fmt: skip
FORMULA: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # begin one in some spreadsheet
ACTIVE: Final = re.compile(r"[\\`*_{}\[\]()<>#+\-.!|~&:@=$]")  # Markdown's own characters, GitHub's among them
MAX_SHOWN_PROMPT: Final = 80  # characters in Markdown; the other formats hold it whole


def records(result: PairedComparison) -> list[dict[str, Cell]]:
    """Return a record per row: the columns of every format. ``first_difference`` counts tokens from 0."""
    return [_record(number, row) for number, row in enumerate(result.rows, start=1)]


def _record(number: int, row: PromptResult) -> dict[str, Cell]:
    parted = row.sameness if row.sameness is not None and not row.sameness.identical else None
    return {
        "number": number,
        "prompt": row.prompt,
        "image": row.image,
        "tau_a": _finite(row.a.tau),
        "tau_b": _finite(row.b.tau),
        "tau_ratio": _finite(row.tau_ratio),
        "tokens_per_second_a": _finite(row.a.tokens_per_second),
        "tokens_per_second_b": _finite(row.b.tokens_per_second),
        "speed_ratio": _finite(row.speed_ratio),
        "tokens_a": row.a.tokens,
        "tokens_b": row.b.tokens,
        "passes_a": row.a.target_passes,
        "passes_b": row.b.target_passes,
        "same": sameness_word(row.sameness),
        "first_difference": parted.position if parted else None,
        "margin": parted.margin if parted else None,
    }


def sameness_word(sameness: Comparison | None) -> str:
    """Say in a word whether the tokens of a row are the same."""
    if sameness is None:
        return "drawn"
    return "identical" if sameness.identical else "near-tie" if sameness.near_tie else "different"


def to_csv(result: PairedComparison) -> str:
    """Write the rows as CSV; what is not known is empty, and no text is a formula."""
    text = io.StringIO()
    rows = [{name: inert_cell(value) for name, value in record.items()} for record in records(result)]
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def inert_cell(value: Cell) -> Cell:
    """Return a value as a cell that a spreadsheet shows: a text that it would compute begins with an apostrophe."""
    computed = isinstance(value, str) and (value.startswith(FORMULA) or value.lstrip().startswith(FORMULA))
    return f"'{value}" if computed else value


def inert_markdown(text: str) -> str:
    """Return text as Markdown that shows it as it is, on one line: no link, picture, markup or HTML."""
    return ACTIVE.sub(r"\\\g<0>", " ".join(text.split()))


def to_json(result: PairedComparison) -> dict[str, Any]:
    """Return rows and totals as JSON data; what is not known is ``null``."""
    a, b = result.totals
    ratios = {"tau": result.tau, "speed": result.speed, "end_to_end": result.end_to_end}
    return {
        "a": _side(result.a, a),
        "b": _side(result.b, b),
        "prompts": len(result.rows),
        "identical": result.same,
        "comparable": result.comparable,
        "ratios": {
            name: {key: _finite(getattr(one, key)) for key in ("value", "low", "high")} for name, one in ratios.items()
        },
        "rows": records(result),
    }


def _side(name: str, totals: RunTotals) -> dict[str, Any]:
    """Return name and rates of a side."""
    return {"name": name, "tau": _finite(totals.tau), "tokens_per_second": _finite(totals.tokens_per_second)}


def to_markdown(result: PairedComparison) -> str:
    """Write names, totals and a table of the rows as Markdown."""
    lines = [f"A: {inert_markdown(result.a)}  ", f"B: {inert_markdown(result.b)}", ""]
    lines += [f"- {line}" for line in summary_lines(result)]
    lines += ["", f"| {' | '.join(SHOWN)} |", f"|{' --- |' * len(SHOWN)}"]
    for record in records(result):
        lines.append(f"| {' | '.join(_markdown(record[key]) for key in SHOWN.values())} |")
    return "\n".join(lines) + "\n"


def summary_lines(result: PairedComparison) -> list[str]:
    """Say what came out, a line per ratio; ratios are B's rate over A's."""
    a, b = result.totals
    done, same = len(result.rows), result.comparable
    prompts = f"{done} of {result.prompts}" if done < result.prompts else f"{result.prompts}"
    words = f"{result.same} of {same} answers identical" if same else "answers drawn by chance"
    lines = [
        f"{prompts} prompt{'' if result.prompts == 1 else 's'}, {words}",
        f"tokens per target pass: A {_number(a.tau)}, B {_number(b.tau)}; {ratio_words(result.tau)}",
    ]
    in_all = _number(result.end_to_end.value)
    lines.append(f"speed by the clock: {ratio_words(result.speed)} while answering, {in_all} in all")
    return lines


def ratio_words(ratio: Ratio) -> str:
    """Write a ratio with its interval, such as ``B/A 1.25 (95 % interval 1.10 to 1.40)``."""
    if math.isnan(ratio.low):
        return f"B/A {_number(ratio.value)}"
    return f"B/A {_number(ratio.value)} (95 % interval {_number(ratio.low)} to {_number(ratio.high)})"


def race_files(result: PairedComparison) -> Iterator[tuple[str, str]]:
    """Yield name and document of every race file that was kept, for :func:`specllava.race_file.write_zip`."""
    for number, row in enumerate(result.rows, start=1):
        document = row.race
        if document is not None:
            yield f"{number:03}.json", document


def _finite(value: float | None) -> float | None:
    """Return a finite number, or ``None``."""
    return value if value is not None and math.isfinite(value) else None


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.2f}"


def _markdown(cell: Cell) -> str:
    if cell is None:
        return "–"
    if isinstance(cell, float):
        return _number(cell)
    text = " ".join(str(cell).split())
    return inert_markdown(text if len(text) <= MAX_SHOWN_PROMPT else text[: MAX_SHOWN_PROMPT - 1] + "…")
