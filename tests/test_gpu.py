"""``make gpu``: parts fail alone, what was measured is written, and figures follow from what was timed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from support.amount import sample

from benchmarks.emulated.installed import emulated_device
from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import parts
from benchmarks.gpu.checks import Check, check_bits, check_memory, check_waits
from benchmarks.gpu.identity import compare_tokens
from benchmarks.gpu.parts import EMULATED, GENERATION, OWN, PARTS, Bench
from benchmarks.gpu.report import Goal, goals, written
from benchmarks.gpu.steps import answer_of, known_steps, steps_of
from benchmarks.gpu_llava import ALONE
from benchmarks.shared.random_pair import build, feature_draft
from specllava.pair import Pair
from specllava.runtime.padded_passes import ROWS, PaddedPasses
from specllava.runtime.slab import SlabCache
from specllava.runtime.timing import now_read

ROOT = Path(__file__).parents[1]
CHECKS = [name for name in PARTS if "captured" in name or "memory" in name or "waits" in name or "page" in name]


@pytest.fixture(autouse=True)
def few_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes are replayed by themselves ten times in this file, not fifty: on an emulated device times mean nothing."""
    monkeypatch.setattr("benchmarks.gpu.watch.AGAIN", 2)


@pytest.fixture
def no_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    """For parts that make nothing: to look for cycles among all that other tests left took a second after each."""
    monkeypatch.setattr("gc.collect", lambda: 0)


@pytest.fixture
def pair() -> Iterator[Pair]:
    """The toy pair on an emulated device."""
    with torch.inference_mode(), emulated_device():
        yield build("toy", torch.device("cuda"), torch.float32)


def read(folder: Path) -> tuple[dict[str, Any], str]:
    return json.loads((folder / "gpu.json").read_text()), (folder / "gpu.md").read_text()


def run(monkeypatch: pytest.MonkeyPatch, folder: Path, parts: dict[str, Any], **options: Any) -> int:
    monkeypatch.setattr(gpu, "PARTS", MappingProxyType(parts))
    return gpu.main(output=folder, **options)


# --------------------------------------------------------------------------------------------------- the whole command


def test_it_needs_neither_the_page_nor_figures():
    code = "import sys, benchmarks.gpu.__main__; print(*{name.split('.')[0] for name in sys.modules})"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not set(found.stdout.split()) & {"gradio", "gradio_client", "plotly", "visual"}


def test_every_part_runs_on_an_emulated_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    left_out = (OWN, "eagle3", "msd", "vispec", "captured eagle3", "captured msd", "captured vispec")
    kept = {name: part for name, part in PARTS.items() if not name.startswith(left_out)}
    monkeypatch.setattr(parts, "TAUS", sample(parts.TAUS, 1))
    assert run(monkeypatch, tmp_path, kept) == 0
    report, text = read(tmp_path)
    assert report["emulated"] and text.startswith("**Emulated device: no GPU, and times mean nothing.**")
    assert list(report["parts"]) == list(kept) and not any(part["error"] for part in report["parts"].values())
    found = {name: part["found"] for name, part in report["parts"].items()}
    assert [list(map(int, found["target"]["passes"][way])) for way in ("eager", "graphs")] == [list(ROWS)] * 2
    for step in found["eagle"]["steps"]["graphs"].values():
        assert step["captured"] > 0 and step["called"] == 0 and step["overhead"] > -1
    assert all(found[name]["passed"] for name in CHECKS if name in found)
    assert "equal answers" in found["a race on the page ends"]["told"]
    for compared in found["identity"].values():
        assert all(one["equal_tokens"] == one["tokens"] > 0 for one in compared["places"].values())
    exact = [compared for name, compared in found["identity"].items() if not name.endswith("not exact")]
    in_place = [compared["places"]["in place"] for compared in exact]
    assert all(one["equal_bits"] == one["tokens"] for one in in_place)
    for runs in found["eagle, known answer"].values():
        assert all(run["same"] == run["tokens"] for run in runs)
    assert found[GENERATION]["way"] == "static cache, not compiled"
    assert found[GENERATION]["same"] == found[GENERATION]["tokens"] > 50
    ways = [found[name]["way"] for name in CHECKS if name in found]
    ways += [one["way"] for one in found["identity"].values()] + [found["eagle"]["ways"]["graphs"]]
    ways += [step["way"] for step in found["eagle"]["steps"]["graphs"].values()]
    assert {way.removesuffix("; exact") for way in ways} == {"graphs"}
    assert found["target"]["ways"] == {"eager": "eager", "graphs": "graphs"} and found["target"]["operations"] < 99
    assert {tree["draft"] for tree in report["suggested"]} == {"eagle"} and "| suggested for |" in text
    assert len(report["goals"]) == 5
    assert all(f"| {goal['name']} | {goal['found']:.2f} |" in text for goal in report["goals"])


def fails(bench: Bench) -> dict[str, Any]:
    raise RuntimeError("out of luck\nand more of it")


def works(bench: Bench) -> dict[str, Any]:
    return {"passed": True, "told": "it worked"}


@pytest.mark.usefixtures("no_garbage")
def test_a_part_that_fails_costs_one_line_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert run(monkeypatch, tmp_path, {"one": works, "two": fails, "three": works}) == 1
    report, text = read(tmp_path)
    assert [part["error"] for part in report["parts"].values()] == [None, "RuntimeError: out of luck", None]
    assert "| three |  | yes | it worked |" in text and "| RuntimeError: out of luck |" in text


@pytest.mark.usefixtures("no_garbage")
def test_what_was_measured_is_written_before_the_next_part_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def killed(bench: Bench) -> dict[str, Any]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(monkeypatch, tmp_path, {"one": works, "two": killed})
    report, text = read(tmp_path)
    assert list(report["parts"]) == ["one"] and "it worked" in text


@pytest.mark.usefixtures("no_garbage")
def test_over_the_budget_parts_are_skipped_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert run(monkeypatch, tmp_path, {"one": works, "two": works}, budget=-1.0) == 1
    report, text = read(tmp_path)
    assert {part["error"] for part in report["parts"].values()} == {"skipped: over the budget"}
    assert text.count("| skipped: over the budget |") == 2


def test_the_page_comes_last_and_fails_alone_without_gradio(monkeypatch: pytest.MonkeyPatch):
    assert list(PARTS)[-1] == "a race on the page ends"
    monkeypatch.setitem(sys.modules, "gradio_client", None)
    monkeypatch.delitem(sys.modules, "benchmarks.gpu.page_race", raising=False)
    assert gpu.run_part(PARTS["a race on the page ends"], Bench(None, EMULATED))["error"].startswith("ModuleNotFound")


def test_only_the_toy_pair_is_emulated(tmp_path: Path):
    with pytest.raises(ValueError, match="there is no GPU"):
        gpu.main("7b", tmp_path)


# -------------------------------------------------------------------------------------------------------------- figures


def step(seconds: float, overhead: float = 0.05, level: float | None = None) -> dict[str, Any]:
    return {"way": "graphs", "count": 9, "seconds": seconds, "overhead": overhead, "level": level, "nodes": 5.0,
            "levels": 5.0, "tau": 1.0, "captured": 3, "called": 0}  # fmt: skip


def report_of(parts: dict[str, Any]) -> dict[str, Any]:
    setting = {"dtype": "bfloat16", "versions": {"torch": "2.11.0"}}
    return {
        "size": "7b", "date": "", "emulated": False, "setting": setting, "hardware": {"gpu": "G"}, "took": 1.0,
        "warnings": [], "parts": {name: {"found": one, "error": None, "seconds": 1.0} for name, one in parts.items()},
    }  # fmt: skip


TARGET = {
    "bytes": 13_000, "bandwidth": {10: 3_000_000.0, 20: 4_000_000.0},
    "passes": {"graphs": {1: 0.004, 8: 0.0041, 32: 0.0044}}, "ways": {"graphs": "graphs"},
    "steps": {"graphs": step(0.005)},
}  # fmt: skip
EAGLE = {"steps": {"graphs": {"chain": step(0.007), "top 10, EAGLE-2": step(0.008, 0.2, level=0.0003)}}}


def test_goals_are_ratios_of_what_was_timed():
    found = goals(report_of({"target": TARGET, "eagle": EAGLE}))
    assert [goal.found for goal in found] == pytest.approx(
        [0.005 / (13_000 / 4_000_000), 0.0044 / 0.004, 0.0003 / 0.004, 3.6 * 0.005 / 0.007, 0.2]
    )
    assert [goal.reached for goal in found] == [False, True, False, True, False]
    assert not Goal("at least", 2.4, 2.5, least=True).reached


@pytest.mark.parametrize("missing", ["target", "eagle"])
def test_a_part_that_failed_leaves_a_gap_in_the_report(missing: str):
    report = report_of({"target": TARGET, "eagle": EAGLE})
    report["parts"][missing] = {"found": None, "error": "RuntimeError: no", "seconds": 0.0}
    assert "| RuntimeError: no |" in written(report) and len(goals(report)) < 5


def chain_row(parts: dict[str, Any]) -> tuple[str, str]:
    text = written(report_of(parts))
    (row,) = [line for line in text.splitlines() if "| chain |" in line]
    return text, row


def test_speed_ups_are_over_the_fastest_lane_of_the_target_alone():
    """Whichever it is, a step of 7 ms is set against it; the report names it."""
    steps = {"eager": {**step(0.02), "way": "eager"}, "graphs": step(0.005)}
    text, row = chain_row({"target": {**TARGET, "steps": steps}, "eagle": EAGLE})
    assert "Speed-ups are over the fastest lane of the target alone: target-only, graphs." in text
    assert [cell.strip() for cell in row.split("|")][5] == "1.40"
    assert row.endswith("| 1.43× | 2.14× | 2.86× | 3.57× |")
    made = {"way": "compiled", "seconds": 0.0035, "first": 99.0, "same": 96, "tokens": 96}
    text, row = chain_row({"target": {**TARGET, "steps": steps}, "eagle": EAGLE, GENERATION: made})
    assert "target alone: transformers' generate, compiled." in text and "| 4.00 |" not in row
    assert row.endswith("| 1.00× | 1.50× | 2.00× | 2.50× |")
    assert [goal.found for goal in goals(report_of({"target": TARGET, "eagle": EAGLE, GENERATION: made}))][3] == 1.8


@pytest.mark.usefixtures("no_garbage")
def test_what_is_compiled_for_minutes_begins_only_with_minutes_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(gpu, "PARTS", MappingProxyType({"one": works, "two": works}))
    monkeypatch.setattr(gpu, "NEEDS", {"one": 180.0})
    for emulated, budget, skipped in ((False, 170.0, ["one"]), (False, 190.0, []), (True, 170.0, [])):
        report = report_of({}) | {"emulated": emulated}
        gpu.run_parts(Bench(None, EMULATED), report, tmp_path, budget)
        assert [name for name, part in report["parts"].items() if part["error"]] == skipped


# ------------------------------------------------------------------------------------------- measurements and checks


def test_no_timed_step_holds_a_capture(pair: Pair, monkeypatch: pytest.MonkeyPatch):
    """A clock in which captures take an hour and everything else its own time."""
    late, graph = [0.0], torch.cuda.graph

    def captured(*args: Any, **options: Any) -> Any:
        late[0] += 3600.0
        return graph(*args, **options)

    monkeypatch.setattr(torch.cuda, "graph", captured)
    monkeypatch.setattr("specllava.decoding.now_read", lambda: now_read() + late[0])
    found = steps_of(pair, "top 10, EAGLE-2", "graphs", 4)
    assert found.count == 4 and found.seconds < 60 and late[0] > 0


@pytest.mark.parametrize(("lane", "tau"), [("chain", 4.0), ("top 10, EAGLE-2", 2.0)])
def test_a_known_answer_is_accepted_as_often_as_designed(lane: str, tau: float, pair: Pair):
    answer = answer_of(pair, "graphs")
    found = known_steps(feature_draft(pair, "eagle"), lane, "graphs", 12, answer, tau)
    assert found.step.count == 12 and found.step.tau == pytest.approx(tau, abs=0.5)
    assert found.same == found.tokens > 12 * tau


def test_an_answer_that_leaves_the_known_one_is_given_up(pair: Pair):
    """As rounding makes one do on a GPU: steps without a graft would make τ smaller than it was designed."""
    answer = answer_of(pair, "graphs")
    answer[40] = (answer[40] + 1) % 640
    found = known_steps(pair, "chain", "graphs", 12, answer, 4.0)
    assert found.same < found.tokens and found.step.tau == pytest.approx(4.0, abs=0.5)


@pytest.mark.parametrize("lane", [ALONE, "chain"])
def test_where_captures_fail_the_report_says_that_passes_are_called(
    lane: str, pair: Pair, monkeypatch: pytest.MonkeyPatch
):
    @contextmanager
    def failing(*_: object, **__: object) -> Iterator[None]:
        raise RuntimeError("no capture today")
        yield

    monkeypatch.setattr(torch.cuda, "graph", failing)
    step = asdict(steps_of(pair, lane, "graphs", 3))
    assert step["captured"] == 0 and step["called"] > 0
    report = report_of({"target": {**TARGET, "steps": {"graphs": step}}, OWN: {"steps": {"graphs": {lane: step}}}})
    assert "| passes are captured | graphs | no | 0 passes replayed" in written(report)
    assert step["way"] == "padded, a capture failed: no capture today"


def test_a_pass_that_computes_something_else_is_found(pair: Pair, monkeypatch: pytest.MonkeyPatch):
    """The check of bits is no check if it cannot fail."""
    running = pair.running("graphs")
    assert check_bits(running, "graphs").passed
    head, calls = pair.target.lm_head, []
    plain = head.forward
    monkeypatch.setattr(head, "forward", lambda states: plain(states) + 1e-3 * (calls.append(1) or len(calls) == 9))
    assert not check_bits(running, "graphs").passed


def test_memory_that_stays_is_found(pair: Pair, monkeypatch: pytest.MonkeyPatch):
    assert check_memory(pair, "graphs", 5).passed
    stage, left = PaddedPasses.stage, []
    monkeypatch.setattr(PaddedPasses, "stage", lambda *a: left.append(torch.zeros(1, device="cuda")) or stage(*a))
    assert check_memory(pair, "graphs", 5) == Check(False, "20 bytes more after 5 passes")


def test_a_step_that_waits_is_found(pair: Pair, monkeypatch: pytest.MonkeyPatch):
    assert check_waits(pair, "graphs").passed
    compact = SlabCache.compact
    monkeypatch.setattr(SlabCache, "compact", lambda cache, *a: cache.slab[0].sum().item() and compact(cache, *a))
    assert not (found := check_waits(pair, "graphs")).passed and "tests/test_gpu.py" in found.told


def test_a_column_that_is_moved_elsewhere_is_found(pair: Pair, monkeypatch: pytest.MonkeyPatch):
    def counts() -> tuple[int, int]:
        places = compare_tokens(pair, "top 10, EAGLE-2", "graphs", exact=False, prompts=1, tokens=48)
        return sum(one.tokens for one in places.values()), sum(one.equal_tokens for one in places.values())

    tokens, equal = counts()
    assert tokens == equal > 20
    compact = SlabCache.compact
    monkeypatch.setattr(
        SlabCache, "compact", lambda cache, base, offsets: compact(cache, base, [0 for _ in offsets])
    )
    tokens, equal = counts()
    assert equal < tokens
