"""``bench --against OLD.json`` names the lanes that got slower beyond the interval, and nothing else."""

import json

import pytest
from support import models

from specllava.bench.regressions import OldReport, check_comparable, slower_lanes
from specllava.cli import bench as cli_bench
from specllava.cli.main import main

SETTING = {"pair": "toy", "target": "t", "draft": "d", "device": "cpu", "dtype": "float32", "threads": 2}


def report(lanes, reference="target-only", cpu="a", **changed):
    """A report of lanes ``{name: (speed-up, ms)}``, whose intervals reach 10 % to both sides."""
    rows = {
        name: {
            "speedup": speedup, "interval": [0.9 * speedup, 1.1 * speedup],
            "ms_per_token": ms, "ms_per_token_interval": [0.9 * ms, 1.1 * ms],
        }
        for name, (speedup, ms) in lanes.items()
    }  # fmt: skip
    told = {"lanes": rows, "setting": SETTING, "config": {"max_new_tokens": 160}, "machine": {"cpu": cpu}}
    return {**told, "data": "held-out toy scenes", "reference": reference, **changed}


def read(tmp_path, found):
    file = tmp_path / "old.json"
    file.write_text(json.dumps(found) if isinstance(found, dict) else found)
    return OldReport.read(file)


OLD = {"target-only": (1.0, 8.0), "transformers": (0.9, 9.0), "chain": (2.5, 3.2), "entropy": (3.0, 2.7)}


@pytest.mark.parametrize(
    ("now", "named"),
    [
        ({}, []),
        ({"entropy": (2.75, 2.7)}, []),  # within the interval
        ({"entropy": (2.65, 2.7)}, ["entropy 2.65× (was 3.00×, 2.70 to 3.30)"]),
        ({"entropy": (2.0, 2.7), "chain": (2.0, 2.7)}, ["chain", "entropy"]),
        ({"target-only": (1.0, 9.0)}, ["target-only 9.00 ms a token (was 8.00, 7.20 to 8.80)"]),
        ({"entropy": (4.0, 2.0), "target-only": (1.0, 5.0)}, []),  # faster
        ({"new": (0.1, 99.0)}, []),
        ({"entropy": (None, None)}, []),
    ],
)
def test_lanes_are_named_beyond_their_interval_alone(tmp_path, now, named):
    lanes = report({**OLD, **{name: pair for name, pair in now.items() if pair[0] is not None}})
    for name, pair in now.items():
        if pair[0] is None:
            lanes["lanes"][name] |= {"speedup": None, "ms_per_token": None}
    found = slower_lanes(read(tmp_path, report(OLD)), lanes)
    assert len(found) == len(named) and all(line.startswith(start) for line, start in zip(found, named, strict=True))


def test_another_processor_says_nothing_about_times(tmp_path):
    slow = report({**OLD, "target-only": (1.0, 80.0)}, cpu="b")
    assert slower_lanes(read(tmp_path, report(OLD)), slow) == []


def test_another_reference_leaves_times_to_compare(tmp_path):
    """The fastest lane of the target alone may be another one by a hair, and then every speed-up is over another."""
    other = report({**OLD, "transformers": (1.0, 7.9), "entropy": (2.6, 3.5)}, reference="transformers")
    assert [line.split()[0] for line in slower_lanes(read(tmp_path, report(OLD)), other)] == ["entropy"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"data": "prompts.jsonl"}, "data"),
        ({"config": {"max_new_tokens": 24}}, "max_new_tokens"),
        ({"setting": {**SETTING, "dtype": "float64"}}, "dtype"),
        ({"setting": {**SETTING, "draft": "other"}}, "draft"),
    ],
)
def test_reports_of_other_work_are_not_compared(tmp_path, changed, said):
    old = read(tmp_path, report(OLD))
    check_comparable(old, report(OLD))
    with pytest.raises(ValueError, match=f"its {said} is"):
        check_comparable(old, report(OLD, **changed))


def test_a_file_of_another_format_costs_one_line_with_the_way_out(tmp_path):
    """Reports had no intervals before."""
    older = report(OLD)
    for row in older["lanes"].values():
        del row["interval"]
    for found in (older, {}, {"lanes": []}, "[]", "{", "", "7", {**report(OLD), "lanes": {"chain": 3}}):
        with pytest.raises(ValueError, match="write it anew with bench --json") as told:
            read(tmp_path, found)
        assert "\n" not in str(told.value)
    with pytest.raises(ValueError, match="there is no such file"):
        OldReport.read(tmp_path / "absent.json")


def test_the_command_fails_where_a_lane_got_slower_and_writes_its_files_all_the_same(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(cli_bench, "load_pair", lambda chosen: models.pair("mixed"))
    out, raw, old = (tmp_path / name for name in ("new.json", "raw.json", "old.json"))
    command = ["bench", "--prompts", "2", "--rounds", "1", "--lanes", "chain", "--max-new-tokens", "4"]
    command += ["--json", str(out)]
    assert main(command) == 0
    found = json.loads(out.read_text())
    row, ends = found["lanes"]["chain"], ["interval", "ms_per_token_interval"]
    for interval, code in (([1e-9, 1e9], 0), ([1e8, 1e9], 1)):
        kept = {**row, **dict.fromkeys(ends, interval)}
        old.write_text(json.dumps({**found, "lanes": {"chain": kept}}))
        assert main([*command, "--against", str(old), "--raw", str(raw)]) == code
        raw.unlink()
    assert "slower than in" in (line := capsys.readouterr().err.splitlines()[-1]) and ": chain " in line
    assert main([*command[:-2], "--diagnose"]) == 0
    assert "a draft level costs" in capsys.readouterr().out
    assert main([*command, "--against", str(old), "--identity"]) == 1
    assert "--identity" in capsys.readouterr().err
    assert main([*command, "--max-new-tokens", "5", "--against", str(old)]) == 1
    assert "max_new_tokens" in capsys.readouterr().err
