"""Energy and peak memory of the benchmark's lanes: read from what the system counts, empty with a reason elsewhere."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from support import models
from test_bench_lanes import QUICK, SHORT, single
from test_bench_results import measured, run_of

from specllava.bench import rounds
from specllava.bench.energy import Counter, EnergyMeter, energy_meter
from specllava.bench.lanes import runners_of
from specllava.bench.measured import Measured
from specllava.bench.peak_memory import PeakMemory
from specllava.bench.processes import join_parts
from specllava.bench.results import pool, results_of
from specllava.bench.tables import notes_of, table_rows

SPAN = 262_143_328_850  # microjoules, as Intel's processors have it
ZONES = {
    "intel-rapl:0": ("package-0", 5_000_000), "intel-rapl:0:0": ("core", 3_000_000),
    "intel-rapl:0:1": ("dram", 700_000), "intel-rapl:1": ("package-1", SPAN - 1_000_000),
    "intel-rapl:1:0": ("uncore", 100), "intel-rapl:2": ("psys", 9_000_000),
}  # fmt: skip


@pytest.fixture
def powercap(tmp_path):
    """The directory of Linux on a machine of two processors."""
    for zone, (name, count) in ZONES.items():
        (tmp_path / zone).mkdir()
        for file, text in (("name", name), ("energy_uj", count), ("max_energy_range_uj", SPAN)):
            (tmp_path / zone / file).write_text(f"{text}\n", encoding="ascii")
    (tmp_path / "intel-rapl").mkdir()  # the class of all zones, itself none
    return tmp_path


def add(powercap, zone, microjoules):
    file = powercap / zone / "energy_uj"
    file.write_text(str((int(file.read_text()) + microjoules) % SPAN))


def test_packages_and_their_memory_are_added_up_and_what_is_part_of_them_is_not(powercap):
    meter = energy_meter((), powercap)
    assert meter.as_json() == {"counters": ["package-0", "dram", "package-1"], "missing": []}
    before = meter.read()
    assert meter.since(before) == 0.0
    for number, zone in enumerate(ZONES):
        add(powercap, zone, 10**number)
    assert meter.since(before) == pytest.approx(1e-6 * (1 + 100 + 1000))


def test_a_counter_may_begin_again(powercap):
    meter = energy_meter((), powercap)
    before = meter.read()
    add(powercap, "intel-rapl:1", 3_000_000)
    assert int((powercap / "intel-rapl:1" / "energy_uj").read_text()) < 3_000_000
    assert meter.since(before) == pytest.approx(3.0)


def test_without_a_counter_there_is_a_reason_and_no_figure(powercap, tmp_path, monkeypatch):
    absent = energy_meter((), tmp_path / "absent")
    assert absent.since(absent.read()) is None
    assert absent.missing == (f"processors: no RAPL in {tmp_path / 'absent'}, as in a virtual machine, or on other "
                              "processors than Intel's and AMD's",)  # fmt: skip
    file, read = powercap / "intel-rapl:1" / "energy_uj", Path.read_text

    def refused(self, *args, **options):
        if self == file:
            raise PermissionError(13, "Permission denied")
        return read(self, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", refused)
        meter = energy_meter((), powercap)
    assert meter.counters == ()  # one package of two would be half of the truth
    assert meter.missing == (f"processors: only root may read {file}: sudo chmod a+r {file}",)
    file.write_text("many")
    assert energy_meter((), powercap).missing[0].startswith("processors: invalid literal")


class Nvml:
    """A driver that has counted 1.5 J for the only GPU."""

    def __init__(self, status):
        self.status, self.millijoules = status, 1500

    def nvmlInit_v2(self):
        return 0

    def nvmlDeviceGetHandleByUUID(self, name, handle):
        return 0 if name == b"GPU-4a-7" else 6

    def nvmlDeviceGetTotalEnergyConsumption(self, handle, count):
        count._obj.value = self.millijoules
        return self.status


def test_a_gpu_is_counted_by_its_driver_beside_processors_that_are_not(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda gpu: SimpleNamespace(name="H100", uuid="4a-7"))
    driver, gpu = Nvml(0), torch.device("cuda", 0)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    meter = energy_meter([gpu], tmp_path)
    assert (meter.as_json()["counters"], len(meter.missing)) == (["H100"], 1)
    before = meter.read()
    driver.millijoules += 250
    assert before == (1.5,) and meter.since(before) == pytest.approx(0.25)
    driver.status = 3
    assert energy_meter([gpu], tmp_path).missing[1] == "cuda:0: nvmlDeviceGetTotalEnergyConsumption returns 3"
    monkeypatch.undo()
    if not torch.cuda.is_available():
        assert energy_meter([gpu], tmp_path).missing[1].startswith("cuda:0: libnvidia-ml.so.1")


def test_the_peak_of_memory_is_that_since_it_was_reset():
    memory = PeakMemory(())
    if memory.read() is None:
        pytest.skip("only Linux resets the peak")
    size, held = 200_000_000, psutil.Process().memory_info().rss
    memory.reset()
    text = b"x" * size
    assert memory.read() >= held + size - 2e7
    del text
    assert memory.read() >= held + size - 2e7
    memory.reset()
    assert memory.read() < held + size / 2


def test_every_lane_is_charged_for_its_run_and_for_the_picture_once(monkeypatch):
    """A counter that advances by a joule whenever it is read: one for the towers, and one for each run."""
    ticks = iter(range(10**6))
    meter = EnergyMeter((Counter("clock", lambda: float(next(ticks))),))
    monkeypatch.setattr(rounds, "energy_meter", lambda gpus: meter)
    pair = models.pair("mixed")
    found = rounds.measure(pair, [single(0)], runners_of(pair, SHORT, ("chain", "transformers")), SHORT, QUICK)
    assert {name: run.joules for name, (run,) in found.runs.items()} == {
        "target-only": 2.0, "chain": 2.0, "transformers": 1.0
    }  # fmt: skip
    assert found.machine["energy"] == {"counters": ["clock"], "missing": []}
    peaks = [run.peak_bytes for (run,) in found.runs.values()]
    assert all(peak is None or peak >= 1e8 for peak in peaks)


def test_joules_are_per_token_of_whole_runs_and_the_highest_peak_counts():
    runs = [replace(run_of((1, 2, 3), 1, 0.1), joules=one, peak_bytes=peak) for one, peak in ((6.0, 10**9), (12.0, 7))]
    found = pool({"target-only": runs, "chain": [runs[0], run_of((1, 2, 3), 1, 0.1)]}, [0, 1])
    row = found["target-only"].as_json()
    assert (row["j_per_token"], row["mb_peak"]) == (18.0 / 6, 1000.0)
    assert row["j_per_token_interval"] == [2.0, 4.0]
    unknown = found["chain"].as_json()
    assert unknown["j_per_token"] is unknown["j_per_token_interval"] is None and unknown["mb_peak"] == 1000.0


def test_tables_show_energy_and_notes_name_its_source_or_the_reason(tmp_path):
    plain = measured()
    meters = {"energy": {"counters": [], "missing": ["processors: no RAPL"]}, "peak_memory": "resident"}
    found = replace(
        plain,
        machine=plain.machine | meters,
        runs={name: tuple(replace(run, joules=7.5, peak_bytes=2 * 10**8) for run in own)
              for name, own in plain.runs.items()},
    )  # fmt: skip
    file = tmp_path / "raw.json"
    file.write_bytes(found.to_json())
    assert Measured.read(file) == found
    heads, lines = table_rows(results_of(found), {})[2]
    assert heads == ("lane", "J/token", "95 %", "peak MB")
    assert lines[1] == ("chain", "2.50", "2.50–2.50", "200")
    assert table_rows(results_of(plain), {})[2][1][0] == ("target-only", "–", "–", "–")
    notes = notes_of(found, "target-only")
    assert {"energy counted: none", "not counted: processors: no RAPL", "peak memory: resident"} <= set(notes)
    joined = join_parts([found, found])
    assert all(run.joules is None for own in joined.runs.values() for run in own)
    assert "not counted: processes that run at once share the counters" in notes_of(joined, "target-only")
