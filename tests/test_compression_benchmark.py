"""The benchmark of what a compressor saves, on models of no size."""

from __future__ import annotations

import json

from benchmarks.compression import EAGLE, MODELS, TEXT, VLM, main

KEPT = {
    "none": (576, 2880), "prune": (29, 144), "merge": (29, 144), "conv": (192, 960), "resampler": (2, 2),
    "text": (0, 0),
}  # fmt: skip


def test_every_compressor_is_measured_at_both_lengths(tmp_path, capsys):
    main(repeats=1, eagle_hidden=64, vlm_hidden=64, vlm_layers=1, json=tmp_path / "found.json")
    rows = json.loads((tmp_path / "found.json").read_text())["rows"]
    columns = {(row["draft"], row["compressor"], row["slots"]): row["columns"] for row in rows}
    for name, kept in KEPT.items():
        for slots, count in zip(MODELS.values(), kept, strict=True):
            assert columns[EAGLE, name, slots] == count + TEXT - 1  # an entry holds a token and the one before it
            assert columns[VLM, name, slots] == count + TEXT
    for row in rows:
        assert row["megabytes"] == round(row["columns"] * 2 * 64 * 4 / 1e6, 2)
        assert row["operator"] == row["compressor"] or row["compressor"] == "gate"
        assert row["prefill_ms"] > 0 and row["pass_ms"] > 0
    printed = capsys.readouterr().out
    assert printed.count("\n") == 2 + len(rows) // 2
