"""A draft that reads states beside a target in half precision, placed by accelerate, or with int8 weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support import checkpoints, models
from test_draft_export import EAGLE3, HIDDEN, LAYERS, written

from specllava.config import DecodingConfig
from specllava.models.drafts.eagle import FeatureDraft
from specllava.pair import Pair

pytestmark = pytest.mark.night
CONFIG = DecodingConfig(max_new_tokens=8, min_log_prob=-50.0, entropy_threshold=0.5)
KINDS: dict[str, dict[str, Any]] = {"eagle": {}, "eagle3": EAGLE3}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("placement")
    checkpoints.write_llava(root / "target", layers=LAYERS, hidden=HIDDEN)
    for name, variant in KINDS.items():
        written(root / name, **variant)
    return root


def load(root: Path, name: str, **options: Any) -> Pair:
    return Pair.load(root / "target", root / name, device="cpu", **options)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", KINDS)
def test_positions_are_turned_in_full_precision_beside_a_half_precise_target(
    root: Path, name: str, dtype: str
) -> None:
    """The draft's frequencies were rounded with its weights."""
    turned = []
    for precision in ("float32", dtype):
        draft = load(root, name, dtype=precision).draft
        assert isinstance(draft, FeatureDraft) and draft.dtype == getattr(torch, precision)
        assert draft.rotary_emb.inv_freq.dtype == torch.float32
        turned.append(draft.rotary_emb(torch.zeros(1), torch.arange(4096)[None]))
        assert draft.rotations(torch.arange(3)[None])[0].dtype == draft.dtype
    assert all(torch.equal(one, other) for one, other in zip(*turned, strict=True))


@pytest.mark.parametrize("name", KINDS)
def test_a_half_precise_target_is_drafted_for(root: Path, name: str) -> None:
    pair = load(root, name, dtype="bfloat16")
    for number in range(3):
        trace = pair.generate(None, checkpoints.messages(number), CONFIG)
        assert trace.token_ids and sum(len(step.tree.tokens) for step in trace.steps) > len(trace.steps)


@pytest.mark.parametrize("name", KINDS)
def test_a_target_whose_weights_lie_on_disk_until_they_run_says_the_same(
    root: Path, name: str, tmp_path: Path
) -> None:
    """accelerate's hooks bring embeddings, layers and head, of which the draft uses the first and the last."""
    from accelerate import disk_offload

    pair = load(root, name, dtype="float64")
    prompt = pair.prompt(checkpoints.picture(1), "What?")
    lanes = [replace(CONFIG, drafter="none"), CONFIG, replace(CONFIG, rule="fixed", children="drawn", temperature=1.0)]
    expected = [pair.run(models.Lane("x", lane, prompt)) for lane in lanes]
    disk_offload(pair.target.model.language_model, tmp_path / "layers", execution_device=torch.device("cpu"))
    disk_offload(pair.target.lm_head, tmp_path / "head", execution_device=torch.device("cpu"))
    assert pair.target.get_input_embeddings().weight.is_meta and pair.target.lm_head.weight.is_meta
    found = [pair.run(models.Lane("x", lane, prompt)) for lane in lanes]
    assert [trace.token_ids for trace in found] == [trace.token_ids for trace in expected]
    assert [step.tree.tokens for step in found[1].steps] == [step.tree.tokens for step in expected[1].steps]
    assert found[0].token_ids == found[1].token_ids


@pytest.mark.parametrize("name", KINDS)
def test_a_target_that_accelerate_has_placed_says_the_same(root: Path, name: str) -> None:
    answers = [
        load(root, name, dtype="float64", device_map=spread).generate(checkpoints.picture(1), "What?", CONFIG).token_ids
        for spread in (False, True)
    ]
    assert answers[0] == answers[1]
