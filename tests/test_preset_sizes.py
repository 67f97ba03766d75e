"""Presets are weighed without a network: what they take is what models of the published configurations take."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support import published

from specllava.cli.commands import listing, markdown_table
from specllava.models import memory
from specllava.models.memory import ENOUGH, estimate, free_bytes
from specllava.models.presets import presets

MODELS = Path(__file__).resolve().parents[1] / "docs" / "models.md"
HUB = {name: preset for name, preset in presets().items() if not preset.shipped}
GB = 10**9
# Bytes of a weight in the files, where that is not 2, and of copies of the target's embeddings in a draft's.
STORED = {"HuggingFaceTB/SmolVLM2-256M-Video-Instruct": 4, "HuggingFaceTB/SmolVLM2-2.2B-Instruct": 4}
COPIED = {"eagle", "msd", "vispec"}


def test_a_presets_sizes_are_those_of_models_that_are_built_as_they_are_published() -> None:
    models = published.models() | published.drafts()
    for name, preset in HUB.items():
        draft = None if preset.draft is None else models[str(preset.draft)]
        counted = estimate(models[str(preset.target)], draft, torch.bfloat16, context=ENOUGH)
        assert preset.memory == pytest.approx(counted.total / GB, abs=0.06), name
        files = counted.target / 2 * STORED.get(str(preset.target), 2) + counted.draft / 2 * STORED.get(
            str(preset.draft), 2
        )
        if draft is not None and getattr(draft[1], "format", None) in COPIED:
            files += 2 * draft[1].vocab_size * draft[1].hidden_size
        assert preset.download == pytest.approx(files / GB, abs=0.06), name


def test_without_proc_the_free_memory_is_what_the_kernel_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    total = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    monkeypatch.setattr(memory.psutil, "PROCFS_PATH", str(tmp_path))
    assert 0 < free_bytes(torch.device("cpu"), spread=False) < total


@pytest.mark.parametrize("free", [1.0, 12.0, 17.0, 400.0])
def test_the_list_says_what_fits_and_stays_within_a_hundred_columns(free: float) -> None:
    lines = listing(free)
    rows = {line.split()[0]: line for line in lines if line and not line.startswith(" ")}
    assert max(map(len, lines)) <= 100 and set(presets()) <= set(rows)
    for name, preset in HUB.items():
        assert rows[name].endswith("yes" if preset.memory <= free else "no")
        text = "\n".join(lines)
        assert str(preset.target) in text and str(preset.draft or "no draft") in text and preset.measured in text


def test_the_guides_table_is_the_presets_own() -> None:
    """``python -m specllava presets --markdown`` prints it."""
    text = MODELS.read_text(encoding="utf-8")
    assert "\n".join(["", "", *markdown_table(), "", ""]) in text
