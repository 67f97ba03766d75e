"""What was measured as goals and Markdown; parts that failed or were skipped leave gaps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.gpu.parts import GENERATION, GRAPHS, TREE
from benchmarks.shared.command import markdown

TAUS: Final = (2.0, 3.0, 4.0, 5.0)
WANTED_TAU: Final = 3.6  # of an EAGLE draft, at which speed-up is judged
Report = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure, and the bound that is wanted.

    Args:
        least: the bound is the least that is wanted, not the most.
    """

    name: str
    found: float
    bound: float
    least: bool = False

    @property
    def reached(self) -> bool:
        return self.found >= self.bound if self.least else self.found <= self.bound


def found(report: Report, name: str) -> Any:
    """Return what a part found; empty if it failed or did not run."""
    return report["parts"].get(name, {}).get("found") or {}


def drafted(report: Report) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Yield draft, way and name of every lane that drafts, and its steps."""
    for name in report["parts"]:
        part = found(report, name)
        if name != "target" and "steps" in part:
            for way, lanes in part["steps"].items():
                yield from ((name, way, lane, step) for lane, step in lanes.items())


def reference(report: Report) -> tuple[str, float] | None:
    """Return the fastest lane of the target alone and the seconds of its step; ``None`` if none was measured."""
    steps = found(report, "target").get("steps", {}).values()
    lanes = [(f"target-only, {step['way']}", float(step["seconds"])) for step in steps]
    if made := found(report, GENERATION):
        lanes.append((f"{GENERATION}, {made['way']}", float(made["seconds"])))
    return min(lanes, key=lambda lane: lane[1], default=None)


def ratio(report: Report, step: dict[str, Any]) -> float | None:
    """Return the time of a step over that of the reference: the τ at which drafting is even."""
    alone = reference(report)
    return None if alone is None else float(step["seconds"] / alone[1])


def goals(report: Report) -> list[Goal]:
    """Return the goals whose figures were measured, for passes that are replayed."""
    target, lanes = found(report, "target"), [each for each in drafted(report) if each[1] == GRAPHS]
    reached = []
    if target:
        passes, floor = target["passes"][GRAPHS], target["bytes"] / max(target["bandwidth"].values())
        reached += [
            Goal("target-only step ÷ (weights ÷ measured bandwidth)", target["steps"][GRAPHS]["seconds"] / floor, 1.25),
            Goal("t(32) ÷ t(1)", passes[32] / passes[1], 1.15),
        ]
        eagle = {lane: step for name, _, lane, step in lanes if name == "eagle"}
        if eagle:
            level, even = eagle[TREE]["level"], min(ratio(report, step) or 0.0 for step in eagle.values())
            reached += [
                Goal("a level of an EAGLE draft, its pass alone, ÷ t(1)", level / passes[1], 0.06),
                Goal(f"speed-up of EAGLE at τ = {WANTED_TAU}", WANTED_TAU / even, 2.5, least=True),
            ]
    if lanes:
        worst = max(step["overhead"] for *_, step in lanes)
        reached.append(Goal("overhead of steps over their passes, the worst lane", worst, 0.1))
    return reached


def written(report: Report) -> str:
    """Return the report as Markdown."""
    step_heads = (
        "draft", "passes", "lane", "step, ms", "÷ reference: even at τ", "overhead", "nodes", "levels", "captured",
        *(f"τ = {tau:g}" for tau in TAUS),
    )  # fmt: skip
    tables = (
        (("goal", "here", "wanted", "reached"), _goal_rows(report)),
        (("check", "passes", "passed", "what was seen"), _check_rows(report)),
        (step_heads, _step_rows(report)),
        (
            ("draft", "passes", "lane", "τ by design", "τ", "step, ms", "speed-up", "target's own tokens"),
            _known_rows(report),
        ),
        (
            ("trees against target-only", "passes", "columns", "equal logits", "equal tokens", "margin"),
            _identity_rows(report),
        ),
        (("passes of", "passes", "ms by tokens"), _pass_rows(report)),
        (("part", "seconds", "error"), _part_rows(report)),
    )  # fmt: skip
    parts = [markdown(heads, rows) for heads, each in tables if (rows := list(each))]
    return "\n\n".join((_title(report), *parts, *report["warnings"])) + "\n"


def _title(report: Report) -> str:
    setting = report["setting"]
    read = ", ".join(
        f"{rate / 1e9:.0f} GB/s of {nbytes / 1e9:g} GB"
        for nbytes, rate in found(report, "target").get("bandwidth", {}).items()
    )
    versions = ", ".join(f"{name} {version}" for name, version in setting["versions"].items())
    return (
        f"`python -m benchmarks.gpu --size {report['size']}`: {setting['dtype']} on"
        f" {report['hardware']['gpu']}, {versions}, {report['date']}, {report['took']:.0f} s. Read bandwidth:"
        f" {read or 'not measured'}. {_reference_told(report)}"
    )


def _reference_told(report: Report) -> str:
    alone = reference(report)
    return "" if alone is None else f"Speed-ups are over the fastest lane of the target alone: {alone[0]}."


def _goal_rows(report: Report) -> Iterator[list[str]]:
    for goal in goals(report):
        bound = f"{'≥' if goal.least else '≤'} {goal.bound:g}"
        yield [goal.name, f"{goal.found:.2f}", bound, "yes" if goal.reached else "no"]


def _check_rows(report: Report) -> Iterator[list[str]]:
    steps = [step for _, way, _, step in drafted(report) if way == GRAPHS]
    if steps:
        captured, called = (sum(step[name] for step in steps) for name in ("captured", "called"))
        told = f"{captured} passes replayed, {called} called though they come again"
        yield ["passes are captured", GRAPHS, "yes" if captured and not called else "no", told]
    for name in report["parts"]:
        if "passed" in (check := found(report, name)):
            yield [name, check.get("way", ""), "yes" if check["passed"] else "no", check["told"]]


def _step_rows(report: Report) -> Iterator[list[str]]:
    for step in found(report, "target").get("steps", {}).values():
        yield ["none", step["way"], "target-only", *_step_cells(step, ratio(report, step)), *([""] * len(TAUS))]
    if made := found(report, GENERATION):
        times = f"{1e3 * made['seconds']:.2f}", f"{ratio(report, made) or 0.0:.2f}"
        yield ["none", made["way"], GENERATION, *times, *([""] * (4 + len(TAUS)))]
    for name, _, lane, step in drafted(report):
        even = ratio(report, step)
        yield [name, step["way"], lane, *_step_cells(step, even), *(_times(tau, even) for tau in TAUS)]


def _step_cells(step: dict[str, Any], even: float | None) -> list[str]:
    over = "" if step["overhead"] is None else f"{100 * step['overhead']:.0f} %"
    shown = "" if even is None else f"{even:.2f}"
    return [f"{1e3 * step['seconds']:.2f}", shown, over, *(f"{step[n]:.0f}" for n in ("nodes", "levels", "captured"))]


def _times(tau: float, even: float | None) -> str:
    return "" if even is None else f"{tau / even:.2f}×"


def _known_rows(report: Report) -> Iterator[list[str]]:
    for name in report["parts"]:
        if name.endswith("known answer"):
            for lane, runs in found(report, name).items():
                for run in runs:
                    step = run["step"]
                    speedup = _times(step["tau"], ratio(report, step))
                    told = [f"{run['wanted']:g}", f"{step['tau']:.2f}", f"{1e3 * step['seconds']:.2f}", speedup]
                    yield [name.split(",")[0], step["way"], lane, *told, f"{run['same']} of {run['tokens']}"]


def _identity_rows(report: Report) -> Iterator[list[str]]:
    for name, compared in found(report, "identity").items():
        for place, one in compared["places"].items():
            equal = (f"{one[key]} of {one['tokens']}" for key in ("equal_bits", "equal_tokens"))
            yield [name, compared["way"], place, *equal, f"{one['margin']:.3f}"]


def _pass_rows(report: Report) -> Iterator[list[str]]:
    for name in report["parts"]:
        part = found(report, name)
        for way, taken in part.get("passes", {}).items():
            times = ", ".join(f"{count}: {1e3 * seconds:.3f}" for count, seconds in taken.items())
            yield [name, part["ways"][way], times]


def _part_rows(report: Report) -> Iterator[list[str]]:
    for name, part in report["parts"].items():
        yield [name, f"{part['seconds']:.1f}", part["error"] or ""]
