"""Published drafts that read the target's states: every guess is what a plain reading of the format's text gives."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from support import checkpoints, feature_checkpoints
from support.checkpoints import FAMILIES, FamilyName
from support.feature_checkpoints import LAYOUTS, Layout
from support.feature_reference import Reference, Text
from torch import Tensor

from specllava.cli.main import main
from specllava.config import DecodingConfig
from specllava.drafters.growing import Expansion
from specllava.lane import Lane
from specllava.pair import Pair
from specllava.trace import DecodeTrace

SHAPES = {
    "chain": DecodingConfig(rule="chain", depth=4),
    "fixed": DecodingConfig(rule="fixed", branching=(3, 2, 1)),
    "beam": DecodingConfig(rule="topk", width=3, depth=3, nodes=8),
    "entropy": DecodingConfig(max_branches=3, entropy_threshold=0.5, min_log_prob=-50.0, nodes=9, depth=4),
}
LIMIT = 9


@dataclass(frozen=True)
class Scored:
    """The scores of one node: the tokens from the root to it, and the logits behind it."""

    path: tuple[int, ...]
    logits: Tensor


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


@pytest.fixture
def scored(monkeypatch: pytest.MonkeyPatch) -> list[list[Scored]]:
    """What drafts scored, one list for each tree."""
    trees: list[list[Scored]] = []
    plain = Expansion.expand
    paths: dict[int, tuple[int, ...]] = {}

    def noting(self: Expansion, nodes: Sequence[int], tokens: Sequence[int], parents: Sequence[int]) -> Any:
        chosen = self._top_tokens

        def held(logits: Tensor, count: int, of: Sequence[int]) -> Any:
            trees[-1].extend(Scored(paths[node], row.clone()) for node, row in zip(of, logits, strict=True))
            return chosen(logits, count, of)

        if not self.columns:
            trees.append([])
            paths.clear()
        for node, token, parent in zip(nodes, tokens, parents, strict=True):
            paths[node] = (*paths.get(parent, ()), token)
        self._top_tokens = held
        try:
            return plain(self, nodes, tokens, parents)
        finally:
            self._top_tokens = chosen

    monkeypatch.setattr(Expansion, "expand", noting)
    return trees


@torch.inference_mode()
def text_of(pair: Pair, layout: Layout, messages: list[dict[str, Any]], answer: Sequence[int]) -> Text:
    """A prompt with its answer, from transformers' own processor and one forward pass."""
    chat, images = [], []
    for message in messages:
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        images += [part["image"] for part in parts if part["type"] == "image"]
        shown = [{"type": "image"} if part["type"] == "image" else part for part in parts]
        chat.append({"role": message["role"], "content": shown})
    spelled = pair.processor.apply_chat_template(chat, add_generation_prompt=True)
    inputs = pair.processor(images=images or None, text=spelled, return_tensors="pt")
    ids = torch.cat([inputs.pop("input_ids"), torch.tensor([list(answer)], dtype=torch.int64)], 1)
    pixels = {name: one.double() if one.is_floating_point() else one for name, one in inputs.items() if "im" in name}
    pixels |= {"pixel_values": inputs["pixel_values"].double()} if images else {}
    output = pair.target(input_ids=ids, **pixels, use_cache=False, output_hidden_states=True)
    hidden = output.hidden_states
    states = torch.cat([hidden[layer][0] for layer in layout.states], -1)
    return Text(ids[0], hidden[0][0], states, ids[0] == pair.target.config.image_token_id)


@torch.inference_mode()
def check(reference: Reference, text: Text, root: int, tree: Sequence[Scored]) -> None:
    """Every score of a tree below token number ``root`` of a text is the reference's, of that node's path alone."""
    assert tree
    for node in tree:
        assert node.path[0] == int(text.ids[root])
        wanted = reference.logits(text, root, node.path[1:])
        torch.testing.assert_close(node.logits, wanted, rtol=1e-9, atol=1e-9)


def reference_of(pair: Pair, name: str, directory: Path) -> Reference:
    layout = LAYOUTS[name]
    return Reference(layout, feature_checkpoints.read_weights(directory, layout), pair.target)


def held_against(reference: Reference, text: Text, trace: DecodeTrace, trees: Sequence[Sequence[Scored]]) -> None:
    at = trace.prefill.prompt_tokens
    assert len(trees) >= len(trace.steps) - 1  # where one token is left, nothing is drafted
    for step, tree in zip(trace.steps, trees, strict=False):
        check(reference, text, at, tree)
        at += len(step.emitted)


@pytest.mark.parametrize(
    ("name", "family", "agrees"),
    [
        *((name, "llava", agrees) for name in LAYOUTS for agrees in (False, True)),
        *((name, "llava_next", True) for name in ("eagle", "msd", "vispec", "eagle3", "speculators")),
    ],
)
def test_every_guess_is_what_the_format_says(pairs, scored, root: Path, name: str, family: FamilyName, agrees: bool):
    """Prompts with no, one and three pictures and of two turns; the trees of whole answers, node by node."""
    pair = pairs(name, family, agrees)
    reference = reference_of(pair, name, root / (f"{family} {name}" if agrees else name))
    accepted = 0
    for number, config in zip(range(5), [*SHAPES.values(), SHAPES["beam"]], strict=True):
        scored.clear()
        messages = checkpoints.messages(number)
        trace = pair.run(Lane("x", replace(config, max_new_tokens=LIMIT), pair.prompt(None, messages)))
        text = text_of(pair, LAYOUTS[name], messages, trace.token_ids)
        held_against(reference, text, trace, scored)
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
