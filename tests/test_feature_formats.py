"""Published drafts that read the target's states: every guess is what a plain reading of the format's text gives."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from support import checkpoints, feature_checkpoints
from support.checkpoints import FAMILIES, FamilyName
from support.feature_checkpoints import LAYOUTS
from support.feature_scores import check_answer, reference_of, scores, text_of

from specllava.cli.main import main
from specllava.config import DecodingConfig
from specllava.lane import Lane
from specllava.pair import Pair

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
        *((name, "llava", agrees) for name in LAYOUTS for agrees in (False, True)),
        *((name, "llava_next", True) for name in ("eagle", "msd", "vispec", "eagle3", "speculators")),
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
