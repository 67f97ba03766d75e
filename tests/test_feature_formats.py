"""Published drafts that read the target's states: every guess is what a plain reading of the format's text gives."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import checkpoints, feature_checkpoints
from support.amount import sample
from support.checkpoints import FAMILIES, FamilyName
from support.feature_checkpoints import LAYOUTS
from support.feature_scores import check_answer, reference_of, scores, text_of
from test_bad_input import complaint

from specllava.cli.main import main
from specllava.config import DecodingConfig
from specllava.models.checkpoint import Checkpoint
from specllava.models.options import DraftReading
from specllava.pair import Pair
from specllava.spec_decode.loop import Lane
from specllava.trace import DecodeTrace

SHAPES = {
    "chain": DecodingConfig(rule="chain", depth=4),
    "fixed": DecodingConfig(rule="fixed", branching=(3, 2, 1)),
    "beam": DecodingConfig(rule="topk", width=3, depth=3, nodes=8),
    "entropy": DecodingConfig(max_branches=3, entropy_threshold=0.5, min_log_prob=-50.0, nodes=9, depth=4),
}
LIMIT = 9


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Targets, random drafts, and drafts that agree with their target now and then."""
    root = tmp_path_factory.mktemp("features")
    for number, family in enumerate(FAMILIES):
        target = feature_checkpoints.write_target(root / family, family, seed=number, calm=feature_checkpoints.CALM)
        for seed, (name, layout) in enumerate(LAYOUTS.items()):
            if family == "llava":
                feature_checkpoints.write_draft(root / name, layout, seed)
            feature_checkpoints.write_draft(root / f"{family} {name}", layout, seed, agrees_with=target)
    return root


@pytest.fixture(scope="module")
def pairs(root: Path) -> Callable[..., Pair]:
    @cache
    def target(family: FamilyName) -> Pair:
        return Pair.load(root / family, device="cpu", dtype="float64")

    @cache
    def pair(name: str, family: FamilyName = "llava", agrees: bool = True) -> Pair:
        asked = "msd" if LAYOUTS[name].format == "msd" else None
        return target(family).with_draft(root / (f"{family} {name}" if agrees else name), asked)

    return pair


@pytest.mark.parametrize(
    ("name", "family", "agrees"),
    [
        *((name, "llava", True) for name in sample(tuple(LAYOUTS), 5)),
        *((name, "llava", False) for name in sample(tuple(LAYOUTS), 2)),
        *((name, "llava_next", True) for name in sample(("msd", "eagle3", "vispec", "eagle", "speculators"), 2)),
    ],
)
def test_every_guess_is_what_the_format_says(pairs, root: Path, name: str, family: FamilyName, agrees: bool):
    """Prompts with no, one and three pictures and of two turns; the trees of whole answers, node by node."""
    pair = pairs(name, family, agrees)
    reference = reference_of(pair, LAYOUTS[name], root / (f"{family} {name}" if agrees else name))
    accepted = 0
    for number, config in zip(range(5), [*SHAPES.values(), SHAPES["beam"]], strict=True):
        messages = checkpoints.messages(number)
        with scores() as trees:
            trace = pair.run(Lane("x", replace(config, max_new_tokens=LIMIT), pair.prompt(None, messages)))
        check_answer(reference, text_of(pair, LAYOUTS[name], messages, trace.token_ids), trace, trees)
        accepted += sum(len(step.verification.accepted) for step in trace.steps)
    assert not agrees or accepted > 0


@pytest.mark.parametrize("name", ["eagle", "msd", "vispec", "eagle3", "speculators"])
def test_the_directory_is_all_that_is_typed(root: Path, tmp_path: Path, name: str):
    """What kind of draft it is, the checkpoint says; of msd, whose tensors have the names of eagle's, the user does."""
    picture, out = tmp_path / "picture.png", tmp_path / "out.json"
    checkpoints.picture(1).save(picture)
    pair = ["--target", str(root / "llava"), "--draft", str(root / f"llava {name}"), "--device", "cpu"]
    asked = ["--image", str(picture), "--prompt", "What is this?", "--max-new-tokens", "8", "--dtype", "float64"]
    said = ["--draft-format", "msd"] if name == "msd" else []
    assert main(["compare", *pair, *asked, *said, "--json", str(out)]) == 0
    lanes = json.loads(out.read_text(encoding="utf-8"))
    assert lanes["identical"] is True
    loaded = Pair.load(root / "llava", draft=root / f"llava {name}", device="cpu")
    assert loaded.draft_vision == "states" and loaded.draft.config.format == (
        "eagle" if name == "msd" else LAYOUTS[name].format
    )


@pytest.mark.parametrize(
    ("of", "states", "theta"), [("eagle3", (0, 1, 2), 5e5), ("eagle", (-2,), None), ("speculators", (0, 1, 2), None)]
)
def test_what_the_files_do_not_say_is_read_as_it_is_asked_for(
    pairs, tmp_path: Path, of: str, states: tuple[int, ...], theta: float | None
):
    """Hidden states that a draft was trained on, and a base that its configuration has another for."""
    layout = replace(LAYOUTS[of], states=states, ids={}, says={"rope_theta": 1e6 if theta else 10000.0})
    layout = replace(layout, theta=theta or layout.theta)
    directory = feature_checkpoints.write_draft(tmp_path / "draft", layout)
    own = pairs(of)
    asked = own.with_draft(directory, draft_state_layers=states, draft_rope_theta=theta)
    reference, messages = reference_of(asked, layout, directory), checkpoints.messages(1)
    with scores() as trees:
        trace = asked.run(Lane("x", replace(SHAPES["beam"], max_new_tokens=LIMIT), asked.prompt(None, messages)))
    check_answer(reference, text_of(asked, layout, messages, trace.token_ids), trace, trees)
    told = f"states {' '.join(map(str, states))}"
    assert trace.setting.draft == ("draft (" + told + ("" if theta is None else ", rope base 500000") + ")")
    if of != "eagle3":
        return
    assert own.with_draft(directory).draft_name == "draft"
    assert "--draft-rope-theta is -1: a number above 0" in complaint(
        lambda: own.with_draft(directory, draft_rope_theta=-1.0)
    )
    assert "of the 2 hidden states [0, 1]: write" in complaint(
        lambda: own.with_draft(directory, draft_state_layers=(0, 1))
    )


def test_the_command_line_and_a_preset_ask_for_it_alike(root: Path, tmp_path: Path):
    out, picture = tmp_path / "out.json", tmp_path / "picture.png"
    checkpoints.picture(1).save(picture)
    pair = ["--target", str(root / "llava"), "--draft", str(root / "eagle"), "--device", "cpu", "--dtype", "float64"]
    asked = ["--image", str(picture), "--prompt", "What?", "--max-new-tokens", "4", "--trace", str(out)]
    assert main(["generate", *pair, *asked, "--draft-state-layers", "-2", "--draft-rope-theta", "5e5"]) == 0
    trace = DecodeTrace.from_json(out.read_text(encoding="utf-8"))
    assert trace.setting.draft == "eagle (states -2, rope base 500000)"
    known = DraftReading(None, (-1,), 7.0)
    assert DraftReading("msd", None, 5.0).over(known) == DraftReading("msd", (-1,), 5.0)
    typed = "--draft-format msd --draft-state-layers 0 1 --draft-rope-theta 5"
    assert DraftReading("msd", (0, 1), 5.0).options == typed


def test_files_that_accelerate_wrote_without_an_index_are_read_together(pairs, root: Path, tmp_path: Path):
    """Of three files the first alone was read, which lacks most tensors."""
    whole, parts = root / "speculators", tmp_path / "parts"
    weights = load_file(whole / "model.safetensors")
    shutil.copytree(whole, parts)
    names = sorted(weights)
    for number, file in enumerate(("model", "model_1", "model_2")):
        save_file({name: weights[name] for name in names[number::3]}, parts / f"{file}.safetensors")
    one, other = (pairs("speculators").with_draft(place).draft.state_dict() for place in (whole, parts))
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    assert set(Checkpoint.at(parts).names()) == set(weights)
