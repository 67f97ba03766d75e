"""Drafts for targets of any family: they are taught what decoding reads, and what they learn changes no token."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import takewhile
from pathlib import Path

import pytest
import torch
from support import families, family_configs, family_drafts
from support.amount import sample
from support.distilling import arguments
from support.family_kinds import FAMILIES, FamilyName
from test_bad_input import complaint

from specllava.cli.main import main
from specllava.distill.config import FeatureObjective, Objective
from specllava.distill.data import RowBatches, RowEncoder
from specllava.distill.losses import IGNORE, batch_losses
from specllava.distill.new_draft import training_draft
from specllava.distill.report import Report
from specllava.distill.rows import Row, load_rows
from specllava.models.drafts.draft_vlm import SlotDraft
from specllava.models.families.family import family_of
from specllava.pair import Pair
from specllava.prompt import Prompt
from specllava.scoring import draft_log_probs, teacher_forced_log_probs

ROWS, LENGTH = 9, 400
Taught = tuple[FamilyName, str]
# Slots side by side, with row tokens between them, with three rows of positions, and seeing each other both ways.
DRAFTS: tuple[Taught, ...] = (
    ("internvl", "vlm"), ("smolvlm", "eagle"), ("qwen2_5_vl", "eagle3"), ("gemma3", "vlm"), ("gemma3", "eagle3"),
)  # fmt: skip
LEARNING: tuple[Taught, ...] = (("qwen3_vl", "vlm"), ("qwen2_5_vl", "eagle3"))
Made = Callable[[str], Path]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures and a data file."""
    root = tmp_path_factory.mktemp("slots")
    family_drafts.write_data(root, ROWS)
    return root


@pytest.fixture(scope="module")
def rows(root: Path) -> list[Row]:
    return load_rows(root / "data.json", root / "images")[0]


@pytest.fixture(scope="module")
def made(root: Path) -> Made:
    """A target by its family, or ``family kind`` of a draft for it, made when it is first asked for."""

    @cache
    def write(name: str) -> Path:
        family, _, kind = name.partition(" ")
        if not kind:
            return family_drafts.write_target(root / name, family)
        return family_drafts.write_draft(root / name, family, kind, write(family))

    return write


def loaded(made: Made, name: str, dtype: str = "float64") -> Pair:
    """A target with a draft that can learn: one that decodes is fused."""
    pair = Pair.load(made(name.split()[0]), device="cpu", dtype=dtype)
    draft = training_draft(made(name), pair.target).to(pair.target.dtype).eval()
    return replace(pair, draft=draft)


def asked(root: Path, row: Row, pair: Pair, turns: int) -> Prompt:
    """The prompt in front of an answer of a row, as decoding reads it."""
    chat, names = [], iter(row.images)
    for place, text in enumerate(row.turns[: turns + 1]):
        shown = [next(names) for _ in range(row.images_per_question[place // 2])] if place % 2 == 0 else []
        parts = [{"type": "image", "image": root / "images" / name} for name in shown]
        chat.append({"role": ("user", "assistant")[place % 2], "content": [*parts, {"type": "text", "text": text}]})
    return pair.prompt(None, chat)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_taught_is_what_decoding_reads(root: Path, rows: list[Row], made: Made, family: FamilyName):
    """Token for token, with slots and what stands around them, of no, one and several pictures."""
    pair = Pair.load(made(family), device="cpu", dtype="float32")
    encode = RowEncoder.of(pair, root / "images", LENGTH)
    for row in rows[:3]:
        encoded, last = encode(row), len(row.turns) - 2
        prompt = asked(root, row, pair, last)
        read = prompt.input_ids[0].tolist()
        assert encoded.ids[: len(read)] == read and not encoded.cut
        taught = [label for label in encoded.labels[len(read) :] if label != IGNORE]
        assert pair.processor.tokenizer.decode(taught[:-1]).strip() == row.turns[-1]
        assert taught[-1] in pair.eos_token_ids
        if row.images:
            features = pair.family.stack(family_of(pair.target.config).encode(pair.target, encoded.pictures))
            slots = family_of(pair.target.config).num_image_tokens(pair.target, features)  # of some tile by tile
            assert sum(slots) == encoded.ids.count(pair.target.config.image_token_id)


@pytest.mark.parametrize(("family", "kind"), DRAFTS)
@torch.no_grad()
def test_the_loss_is_what_decoding_measures(root: Path, rows: list[Row], made: Made, family: FamilyName, kind: str):
    """KL by the passes that decode, prompt by prompt, and by the loss of a padded batch."""
    pair = loaded(made, f"{family} {kind}")
    target, draft = pair.target, pair.draft
    assert isinstance(draft, SlotDraft) == (kind == "vlm")
    encode = RowEncoder.of(pair, root / "images", LENGTH)
    losses = batch_losses(target, Objective(kl_weight=1.0) if kind == "vlm" else FeatureObjective())
    make = RowBatches(rows, encode, 2, 0)
    shown = float(losses(draft, make(0))["kl"])
    kl = tokens = 0.0
    for position in make._make_window(0)[0]:
        row = make.row_at(position)
        for turn in range(0, len(row.turns), 2):
            prompt = asked(root, row, pair, turn)
            answer = list(takewhile(lambda label: label != IGNORE, encode(row).labels[prompt.length :]))
            ours = draft_log_probs(target, draft, prompt, answer)
            theirs = teacher_forced_log_probs(target, prompt, answer)
            kl += float((theirs.exp() * (theirs - ours)).sum())
            tokens += len(answer)
    assert shown == pytest.approx(kl / tokens, rel=1e-4)


@pytest.mark.parametrize(("family", "kind"), sample(LEARNING, 1))
def test_a_draft_learns_and_changes_no_token(root: Path, made: Made, tmp_path: Path, family: FamilyName, kind: str):
    options = {"target": made(family), "length": LENGTH, "steps": 10, "validate_every": 0, "kl_weight": 1.0}
    if kind == "vlm":
        assert main(arguments(root, tmp_path / "run", **options, draft=made(f"{family} vlm"))) == 0
    else:
        assert main(arguments(root, tmp_path / "run", **options, draft=None, drafter=kind)) == 0
    report = Report.read(tmp_path / "run" / "report.json")
    losses = [point["loss"] for point in report.curve]
    assert sum(losses[-3:]) < 0.9 * sum(losses[:3])
    assert all(0 <= check.kl < 100 for check in report.checks)
    pair = Pair.load(made(family), tmp_path / "run" / "last", device="cpu", dtype="float64")
    assert pair.draft_vision == ("shared" if kind == "vlm" else "states")
    family_drafts.check_identity(pair)


def test_a_draft_for_other_slots_is_refused(made: Made, tmp_path: Path):
    wide = families.write_checkpoint(tmp_path / "wide", "internvl", layout=family_configs.Layout(hidden=64))
    line = complaint(lambda: Pair.load(wide, made("internvl vlm"), device="cpu"))
    assert line.startswith("the draft reads image slots of size 48, the target's have 64: run ")
    settings = json.loads((made("internvl vlm") / "config.json").read_text())
    foreign = tmp_path / "foreign"
    shutil.copytree(made("internvl vlm"), foreign)
    (foreign / "config.json").write_text(json.dumps(settings | {"target_type": "smolvlm"}))
    line = complaint(lambda: Pair.load(made("internvl"), foreign, device="cpu"))
    assert line.startswith("the draft reads image slots of a smolvlm, the target is a internvl: run ")
