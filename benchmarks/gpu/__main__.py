"""The GPU path in one command: graphs against calls bit by bit, what passes cost, and how far a step is from them.

    python -m benchmarks.gpu                 # make gpu: one GPU with 24 GB, less than nine minutes
    python -m benchmarks.gpu --size toy      # the same way on a CPU, where passes are padded and not captured

Nothing is downloaded: LLaVA-1.5-7B and its drafts have the published shapes and random weights
(``benchmarks.gpu_llava``). So times are those of the real pair, tokens per pass are not. Writes gpu.json and gpu.md.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.checks import Check, Watch, check_bits, check_memory, check_waits, read_bandwidth
from benchmarks.gpu.page_race import page_race
from benchmarks.gpu_llava import ALONE, DRAFT_ROWS, LANES, PICTURE, QUESTION, hardware
from benchmarks.shared.command import markdown, run_command, show
from benchmarks.shared.random_pair import SizeName, build, feature_draft, place_for, size_of
from specllava.bench.raw_passes import pass_medians
from specllava.cli.options import write_json
from specllava.core.files import write_whole
from specllava.core.trace import Prefill, StepTrace
from specllava.decoding import stream
from specllava.lane import Lane
from specllava.models.drafts.draft_reading import DraftFormat
from specllava.models.loading.load_options import PassesName
from specllava.pair import Pair
from specllava.runtime.kv_caches import KVCaches
from specllava.runtime.padded_passes import ROWS

FORMATS: tuple[DraftFormat, ...] = ("eagle", "msd", "vispec", "eagle3")
RESULTS = Path(__file__).parents[1] / "results"
STEPS = 12  # of each lane that are timed, after two that capture
GOALS = {"target-only": 1.25, "t(32)": 1.15, "level": 0.06, "overhead": 0.10}
LONGEST = 96


@dataclass(frozen=True, slots=True)
class Step:
    """A lane's step, in seconds.

    Args:
        median: of the whole step.
        overhead: time of all steps against that of their passes alone, less one; ``None`` where passes are not padded.
        levels, nodes: means of the trees.
    """

    median: float
    overhead: float | None
    levels: float
    nodes: float


@dataclass(frozen=True, slots=True)
class Identity:
    """Tokens of a drafting lane that are those of the target alone, up to the first that is not, over all prompts."""

    prompts: int
    identical: int
    agreed: int
    tokens: int


def drafts(pair: Pair, formats: Sequence[DraftFormat]) -> Iterator[tuple[str, Pair]]:
    """The pair with its own draft, and with a draft of each format; one at a time is held."""
    yield "own draft", pair
    for kind in formats:
        yield kind, feature_draft(pair, kind)


def steps_of(pair: Pair, lanes: Sequence[str], way: PassesName) -> dict[str, Step]:
    """Steps of each lane, and their distance from the passes that they consist of."""
    found = {}
    for name in lanes:
        watch = Watch(pair, way)
        caches = KVCaches(watch.engines)
        prompt = pair.prompt(PICTURE, QUESTION, LONGEST)
        events = stream(pair.request(Lane(name, LANES[name], prompt), caches, record=False))
        taken: list[StepTrace] = []
        for number, event in enumerate(events):
            if isinstance(event, Prefill) or number < len(ROWS):  # buckets are captured when they come again
                watch.forget()
            else:
                taken.append(event)
            if len(taken) == STEPS:
                break
        events.close()
        spent, alone = sum(step.seconds.total for step in taken), watch.passes_alone(caches)
        found[name] = Step(
            statistics.median(step.seconds.total for step in taken),
            None if alone is None else spent / alone - 1,
            statistics.mean(max(step.tree.depths()) for step in taken),
            statistics.mean(step.tree.drafted for step in taken),
        )
    return found


def identity(pair: Pair, way: PassesName, exact: bool, lane: str, prompts: int) -> Identity:
    """Decode prompts by the target alone and with a draft."""
    running = pair.running(way, exact)
    identical = agreed = tokens = 0
    for number in range(prompts):
        prompt = running.prompt(PICTURE, f"{QUESTION} {number}", LONGEST)
        plain, fast = (_tokens(running, Lane(name, LANES[name], prompt)) for name in (ALONE, lane))
        same = next((place for place, pair in enumerate(zip(plain, fast, strict=True)) if pair[0] != pair[1]), LONGEST)
        identical += same == LONGEST
        agreed += same
        tokens += LONGEST
    return Identity(prompts, identical, agreed, tokens)


def _tokens(pair: Pair, lane: Lane) -> list[int]:
    request = pair.request(lane, record=False)
    for _ in stream(request):
        if len(request.emitted) >= LONGEST:
            break
    return request.emitted[:LONGEST]


def goals(report: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """What was reached and what is wanted, for passes as they run here."""
    passes, steps = report["passes"]["own draft"][report["way"]], report["steps"]["own draft"][report["way"]]
    target = passes["target"]
    floor = report["bytes"]["target"] / report["bandwidth"]
    level = report["passes"].get("eagle", report["passes"]["own draft"])[report["way"]]["draft"][1]
    worst = max(step["overhead"] for step in steps.values())
    return {
        "target-only step ÷ (weights ÷ measured bandwidth)": (steps[ALONE]["median"] / floor, GOALS["target-only"]),
        "t(32) ÷ t(1)": (target[32] / target[1], GOALS["t(32)"]),
        "one level of a small draft ÷ t(1)": (level / target[1], GOALS["level"]),
        "overhead, the worst lane": (worst, GOALS["overhead"]),
    }


def written(report: dict[str, Any]) -> str:
    """The report as Markdown."""
    setting, versions = report["setting"], report["setting"]["versions"]
    wanted = [
        [name, f"{got:.2f}", f"≤ {limit:g}", "yes" if got <= limit else "no"]
        for name, (got, limit) in report["goals"].items()
    ]
    checks = [[name, "yes" if check["passed"] else "no", check["told"]] for name, check in report["checks"].items()]
    same = [
        [name, f"{one['identical']} of {one['prompts']}", f"{one['agreed']} of {one['tokens']}"]
        for name, one in report["identity"].items()
    ]
    title = (
        f"`python -m benchmarks.gpu --size {report['size']}`: {setting['dtype']} on {setting['device']}, torch"
        f" {versions['torch']}, {report['date']}, {report['took']:.0f} s. Read bandwidth"
        f" {report['bandwidth'] / 1e9:.1f} GB/s."
    )
    tables = (
        markdown(("goal", "here", "wanted", "reached"), wanted),
        markdown(("check", "passed", "what was seen"), checks),
        markdown(("target-only against a draft", "identical answers", "equal tokens up to the first other"), same),
        markdown(("draft", "passes", "what", "measured"), [*_pass_rows(report), *_step_rows(report)]),
    )
    return "\n\n".join((title, *tables)) + "\n"


def _pass_rows(report: dict[str, Any]) -> Iterator[list[str]]:
    for draft, ways in report["passes"].items():
        for way, models in ways.items():
            for model, taken in models.items():
                told = ", ".join(f"{count}: {1e3 * seconds:.2f}" for count, seconds in taken.items())
                yield [draft, way, f"{model} pass, ms by tokens", told]


def _step_rows(report: dict[str, Any]) -> Iterator[list[str]]:
    for draft, ways in report["steps"].items():
        for way, lanes in ways.items():
            for lane, step in lanes.items():
                over = "" if step["overhead"] is None else f", overhead {100 * step['overhead']:.0f} %"
                tree = f"{step['nodes']:.0f} nodes, {step['levels']:.0f} levels"
                yield [draft, way, f"step, {lane}", f"{1e3 * step['median']:.2f} ms{over}, {tree}"]


def measure(pair: Pair, formats: Sequence[DraftFormat], repeats: int, prompts: int) -> dict[str, Any]:
    """Everything of a pair, and of its target with a draft of each format."""
    way: PassesName = "graphs" if pair.device.type == "cuda" else "padded"
    found: dict[str, Any] = {"way": way, "passes": {}, "steps": {}, "checks": {}, "identity": {}}
    found["bandwidth"] = read_bandwidth(pair.device)
    found["bytes"] = {"target": sum(weight.nbytes for weight in pair.target.model.language_model.parameters())}
    for name, each in drafts(pair, formats):
        lanes = [ALONE, "chain", "top 10, EAGLE-2"] if name == "own draft" else ["chain", "top 10, EAGLE-2"]
        ways: tuple[PassesName, ...] = ("eager", way)
        found["passes"][name] = {
            one: pass_medians(each.running(one), {"target": ROWS, "draft": DRAFT_ROWS}, repeats) for one in ways
        }
        found["steps"][name] = {
            one: {lane: asdict(step) for lane, step in steps_of(each, lanes, one).items()} for one in ways
        }
        found["checks"][f"{name}: {way} passes are the called ones, bit by bit"] = asdict(check_bits(each, way))
    checks: dict[str, Check] = {
        "1,000 passes leave memory as it was": check_memory(pair, way),
        "no step waits but for its downloads": check_waits(pair, way),
        "a race on the page ends": page_race(pair, way),
    }
    found["checks"] |= {name: asdict(check) for name, check in checks.items()}
    for lane in ("chain", "entropy, defaults"):
        for exact in (False, True):
            name = f"{lane}, {'exact' if exact else 'not exact'}"
            found["identity"][name] = asdict(identity(pair, way, exact, lane, prompts))
    return found


def main(
    size: SizeName = "7b", output: Path = RESULTS, device: str = "auto", repeats: int = 10, prompts: int = 4
) -> None:
    """Measure, and write ``gpu.json`` and ``gpu.md``.

    Args:
        size: 7b is LLaVA-1.5-7B with a draft of 160M, then with one of each format that reads states.
        output: directory of both files.
        device: cpu, cuda or cuda:N; auto takes the GPU if there is one.
        repeats: passes of each kind.
        prompts: decoded with and without exact passes.

    Raises:
        ValueError: the models do not fit the device.
    """
    if size != "toy" and not torch.cuda.is_available():
        print("not run on a GPU: there is none here; --size toy goes the same way on a CPU")
        return
    started = time.perf_counter()
    place, dtype = place_for(size_of(size), device)
    with torch.inference_mode():
        pair = build(size, place, dtype)
        report = measure(pair, FORMATS, repeats, prompts)
    report |= {"size": size, "date": time.strftime("%Y-%m-%d"), "setting": asdict(pair.info)}
    report |= {"hardware": hardware(place), "goals": goals(report), "took": time.perf_counter() - started}
    text = written(report)
    show(text)
    write_json(output / "gpu.json", report)
    write_whole(output / "gpu.md", text)


if __name__ == "__main__":
    run_command(main)
