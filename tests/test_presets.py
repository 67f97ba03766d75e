"""Presets: one name loads both models in the format that it knows; sizes and places are those of published models."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support import checkpoints, formats, published
from support.cases import complaint
from support.families import write_text_model

from specllava.cli.commands import listing
from specllava.cli.options import PairOptions, load_pair
from specllava.config import DecodingConfig
from specllava.models.drafts.draft_vlm import save
from specllava.models.drafts.eagle import FeatureDraft, fresh_feature_draft
from specllava.models.memory import ENOUGH, estimate
from specllava.models.options import LoadOptions
from specllava.models.presets import presets
from specllava.pair import Pair

GUIDE = Path(__file__).resolve().parents[1] / "docs" / "models.md"
MSD, EAGLE = "llava-1.5-7b-msd", "llava-1.5-7b-eagle"
HUB = {name: preset for name, preset in presets().items() if not preset.local}
SHORT = DecodingConfig(max_new_tokens=12, depth=3)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hub's cache with a target, and drafts for it in EAGLE's layout, one of them pickled as MSD's is."""
    root = tmp_path_factory.mktemp("hub")
    target = formats.write_target(root / "target")
    draft = formats.write_draft(root / "eagle", formats.LAYOUTS["eagle"])
    pickled = Path(shutil.copytree(draft, root / "msd"))
    torch.save(load_file(pickled / "model.safetensors"), pickled / "pytorch_model.bin")
    (pickled / "model.safetensors").unlink()
    for name, source in ((MSD, pickled), (EAGLE, draft)):
        checkpoints.store(root / "cache", str(presets()[name].target), target)
        checkpoints.store(root / "cache", str(presets()[name].draft), source)
    return root


@pytest.fixture(autouse=True)
def hub(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(stored / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def kind(pair: Pair) -> str:
    assert isinstance(pair.draft, FeatureDraft)
    return str(pair.draft.config.format)


def test_a_preset_loads_its_draft_in_its_format_and_answers_as_the_target_does() -> None:
    told: list[str] = []
    pair = Pair.from_preset(MSD, dtype="float32", device="cpu", notify=told.append)
    assert (pair.name, pair.draft_name, kind(pair)) == (MSD, "MSD-LLaVA1.5-7B", "msd")
    assert "pytorch_model.bin" in told[-1]
    for number in range(3):
        traces = pair.compare(None, checkpoints.messages(number), SHORT)
        assert traces["speculative"].token_ids == traces["target-only"].token_ids


def test_a_format_that_is_asked_for_replaces_the_presets(stored: Path) -> None:
    assert kind(Pair.from_preset(MSD, draft_format="eagle", device="cpu")) == "eagle"
    assert kind(Pair.from_preset(MSD, draft=stored / "eagle", device="cpu")) == "eagle"
    assert kind(Pair.from_preset(EAGLE, draft_format="msd", device="cpu")) == "msd"
    assert kind(load_pair(PairOptions(MSD, loading=LoadOptions(device="cpu")))) == "msd"
    assert kind(load_pair(PairOptions(MSD, loading=LoadOptions("eagle", device="cpu")))) == "eagle"
    line = complaint(lambda: Pair.from_preset(EAGLE, draft_format="eagle3", device="cpu"))
    assert "has the keys of format eagle, not of eagle3" in line


def test_presets_name_what_ships_and_another_name_is_refused_with_the_known_ones() -> None:
    ours = {"toy", "toy-before", "toy-eagle", "toy-eagle-compressed"}
    assert {name for name, preset in presets().items() if preset.local and not preset.fetched} == ours
    line = complaint(lambda: Pair.from_preset("smolvlm"))
    near, rest = line.removeprefix("unknown preset 'smolvlm': ").split(" or ")
    assert set(near.split(", ")) <= set(presets()) and "smolvlm2-2.2b-256m" in near
    assert rest == f"another of the {len(presets())} that specllava presets lists"
    assert "toy, " in complaint(lambda: Pair.from_preset("?"))


def test_a_preset_names_a_revision_of_the_hub_and_is_read_from_its_cache(stored: Path, tmp_path: Path) -> None:
    """Vicuna's safetensors are in a revision; other branches of its repository have none."""
    preset = presets()["vicuna-7b-v1.3-eagle"]
    assert str(preset.target) == "lmsys/vicuna-7b-v1.3@refs/pr/4"
    target = write_text_model(tmp_path / "phi3", "phi3")
    save(fresh_feature_draft(Pair.load(target, device="cpu").target, "eagle"), None, tmp_path / "eagle")
    checkpoints.store(stored / "cache", str(preset.target), target)
    checkpoints.store(stored / "cache", str(preset.draft), tmp_path / "eagle")
    pair = Pair.from_preset("vicuna-7b-v1.3-eagle", device="cpu", dtype="float64")
    assert (pair.target_name, pair.draft_vision) == ("vicuna-7b-v1.3", "states")
    traces = pair.compare(None, "What is there?", SHORT)
    assert traces["speculative"].token_ids == traces["target-only"].token_ids


GB = 10**9
# Bytes of a weight in the files, where that is not 2, and of copies of the target's embeddings in a draft's.
STORED = {"HuggingFaceTB/SmolVLM2-256M-Video-Instruct": 4, "HuggingFaceTB/SmolVLM2-2.2B-Instruct": 4}
COPIED = {"eagle", "msd", "vispec"}


def test_a_presets_sizes_are_those_of_models_that_are_built_as_they_are_published() -> None:
    models = published.models() | published.drafts()
    for name, preset in HUB.items():
        draft = None if preset.draft is None else models[str(preset.draft)]
        counted = estimate(models[str(preset.target)], draft, torch.bfloat16, "none", ENOUGH)
        assert preset.memory == pytest.approx(counted.total / GB, abs=0.06), name
        files = counted.target / 2 * STORED.get(str(preset.target), 2) + counted.draft / 2 * STORED.get(
            str(preset.draft), 2
        )
        if draft is not None and getattr(draft[1], "format", None) in COPIED:
            files += 2 * draft[1].vocab_size * draft[1].hidden_size
        assert preset.download == pytest.approx(files / GB, abs=0.06), name


def test_the_list_says_what_fits_and_stays_within_a_hundred_columns() -> None:
    for free in (1.0, 12.0, 17.0, 400.0):
        lines = listing(free)
        rows = {line.split()[0]: line for line in lines if line and not line.startswith(" ")}
        assert max(map(len, lines)) <= 100 and set(presets()) <= set(rows)
        for name, preset in HUB.items():
            assert rows[name].endswith("yes" if preset.memory <= free else "no")
            for words in (preset.target, preset.draft or "no draft", preset.measured):
                assert str(words) in "\n".join(lines)


def test_the_guides_table_has_a_row_for_each_preset_with_its_own_figures() -> None:
    rows = dict(re.findall(r"^\| `([^`]+)` \| (.*) \|$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE))
    assert set(presets()) <= set(rows)
    for name, preset in HUB.items():
        draft = "none" if preset.draft is None else f"`{preset.draft}`"
        cells = f"`{preset.target}`", draft, f"{preset.download:.1f}", f"{preset.memory:.1f}", preset.measured
        assert rows[name] == " | ".join(cells), name
