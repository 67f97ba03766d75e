"""Presets are weighed without a network: what they say of their models is what models of those sizes take."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support import published
from support.checkpoints import write

from specllava.cli.main import main
from specllava.cli.commands import HEADINGS, listing, markdown_table, preset_records
from specllava.models.checkpoint import is_cached
from specllava.models.loading import memory
from specllava.models.memory import ENOUGH, PRECISIONS, PUBLISHED, Machine, download_bytes, fit, preset_memory
from specllava.models.loading.memory_estimate import estimate, size_of
from specllava.models.presets import Preset, presets

MODELS = Path(__file__).resolve().parents[1] / "docs" / "models.md"
HUB = {name: preset for name, preset in presets().items() if not preset.shipped}
GB = 10**9
# Of the files as the hub shows them, in GB.
FILES = {
    "HuggingFaceTB/SmolVLM2-256M-Video-Instruct": 1.03,
    "HuggingFaceTB/SmolVLM2-2.2B-Instruct": 8.99,
}


def test_sizes_are_those_of_models_that_are_built_as_they_are_published() -> None:
    """Of a model that is no target, its linear layers are not told: only targets are quantised."""
    targets = {str(preset.target) for preset in HUB.values()}
    assert set(published.models()) | set(published.drafts()) == set(PUBLISHED)
    for name, build in published.models().items():
        counted = size_of(*build)
        assert PUBLISHED[name].size == (counted if name in targets else replace(counted, linear=0)), name


def test_without_proc_the_free_memory_is_what_the_kernel_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    total = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    monkeypatch.setattr(memory.psutil, "PROCFS_PATH", str(tmp_path))
    assert 0 < memory.this_machine("cpu").free < total


def test_sizes_of_drafts_that_read_states_are_theirs_up_to_biases() -> None:
    for name, build in published.drafts().items():
        counted, told = size_of(*build), PUBLISHED[name].size
        assert told == replace(counted, weights=told.weights, linear=0), name
        assert told.weights == pytest.approx(counted.weights, rel=1e-3), name


def test_a_presets_memory_is_what_loading_counts() -> None:
    """Of one pair with a small model of the family, and of one whose draft reads states."""
    for name, draft in (("smolvlm2-2.2b-256m", published.models()), ("qwen2.5-vl-7b-vispec", published.drafts())):
        preset = presets()[name]
        models = published.models()[str(preset.target)], draft[str(preset.draft)]
        for precision in PRECISIONS:
            counted = estimate(*models, getattr(torch, precision.dtype), precision.quantization, ENOUGH)
            assert counted == preset_memory(preset, precision), (name, precision.name)


def test_downloads_are_the_files_of_the_hub() -> None:
    for name, size in FILES.items():
        assert PUBLISHED[name].download / GB == pytest.approx(size, rel=0.005)
    assert download_bytes(presets()["toy"]) == 0
    assert all(download_bytes(preset) > preset_target(preset) for preset in HUB.values() if preset.draft)


def preset_target(preset: Preset) -> int:
    return PUBLISHED[str(preset.target)].download


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_the_best_precision_that_fits_is_taken_and_none_that_does_not(kind) -> None:
    """On machines of 1 to 400 GB: what is taken fits, what comes before it does not, and more memory is never worse."""
    sizes = [1, 2, 4, 7, 8, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256, 320, 400]
    for name, preset in HUB.items():
        ranks = []
        for size in sizes:
            machine = Machine(kind, size * GB, True)
            order = machine.ways()
            needed = [kept.total for one in order if (kept := preset_memory(preset, one))]
            found = fit(preset, machine)
            names = [one.name for one in order]
            rank = names.index(found.precision) if found.precision else len(names)
            assert all(one > machine.free for one in needed[:rank]), name
            assert rank == len(names) or needed[rank] <= machine.free, name
            assert bool(found.short) == (not found.precision)
            ranks.append(rank)
        assert ranks == sorted(ranks, reverse=True) and ranks[-1] == 0, name


def test_a_precision_whose_library_is_missing_is_named_and_not_taken() -> None:
    preset, free = presets()["llava-1.5-7b-msd"], 12 * GB
    found = fit(preset, Machine("cuda", free))
    assert (found.precision, found.missing) == ("", "int8, with bitsandbytes")
    assert found.short == "needs 16.9 GB in bfloat16, 12.0 are free"
    taken = fit(preset, Machine("cuda", free, True))
    assert (taken.precision, taken.dtype, taken.quantization) == ("int8", "bfloat16", "int8")
    assert not fit(preset, Machine("cpu", free, True)).precision, "which quantises on a GPU alone"


def test_the_list_says_what_fits_and_stays_within_a_hundred_columns() -> None:
    for machine in (Machine("cpu", 12 * GB), Machine("cuda", 400 * GB, True)):
        lines = listing(machine)
        assert max(map(len, lines)) <= 100
        rows = {line.split()[0]: line for line in lines if line and not line.startswith(" ")}
        assert set(presets()) <= set(rows) and all(heading in rows["preset"] for heading in HEADINGS)
        for name, preset in HUB.items():
            found = fit(preset, machine)
            assert rows[name].endswith(found.precision or found.missing or " -")
    text = "\n".join(lines)
    for preset in HUB.values():
        assert str(preset.target) in text and str(preset.draft or "no draft") in text and preset.measured in text


def test_programs_get_the_same_as_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["presets", "--json"]) == 0
    records = {record["name"]: record for record in json.loads(capsys.readouterr().out)}
    assert set(records) == set(presets())
    small = records["smolvlm2-2.2b-256m"]
    kept = preset_memory(presets()["smolvlm2-2.2b-256m"], PRECISIONS[1])
    assert kept is not None and small["memory_bytes"]["bfloat16"] == int(kept.total)
    assert records["toy"]["ships"] and records["toy"]["memory_bytes"] is None and records["toy"]["fits"]
    for name, record in records.items():
        assert record["options"].startswith("--dtype") == bool(record["fits"] and name in HUB)


def test_what_is_downloaded_already_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file short of all shards is not all of a model."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    preset = presets()["smolvlm2-2.2b-256m"]
    for source in (preset.target, preset.draft):
        place = tmp_path / f"models--{str(source).replace('/', '--')}"
        (place / "refs").mkdir(parents=True)
        (place / "refs" / "main").write_text("abc")
        here = place / "snapshots" / "abc"
        here.mkdir(parents=True)
        assert not is_cached(str(source))
        write(here / "config.json", {})
        write(here / "model.safetensors.index.json", {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}})
        (here / "one.safetensors").touch()
        assert not is_cached(str(source))
    (here / "two.safetensors").touch()
    assert is_cached(str(preset.draft)) and not is_cached(str(preset.target))
    machine = Machine("cpu", 0)
    record = next(record for record in preset_records(machine) if record["name"] == "smolvlm2-2.2b-256m")
    assert record["cached"] == {"target": False, "draft": True}
    assert f"{preset.draft} (downloaded)" in "\n".join(listing(machine))


def test_the_guides_table_is_the_presets_own() -> None:
    """``python -m specllava presets --markdown`` prints it."""
    text = MODELS.read_text(encoding="utf-8")
    assert "\n".join(["", "", *markdown_table(), "", ""]) in text
