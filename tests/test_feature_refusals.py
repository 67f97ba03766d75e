"""Drafts that read the target's states and do not fit it, or are not what they seem, are refused in one line."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from support import checkpoints, feature_checkpoints
from support.feature_checkpoints import IDS, LAYOUTS, PADDED, SMALL, USUAL
from test_bad_input import complaint
from torch import Tensor

from specllava.cli.main import main
from specllava.distill.export import export_draft
from specllava.pair import Pair

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Broken:
    """A published layout with one thing changed, and the line that says so.

    Args:
        settings: in place of those of its ``config.json``.
        change: of its tensors, by their names on disk.
        asked: format that the user says it has.
    """

    layout: str
    line: str
    settings: dict[str, Any] = field(default_factory=dict)
    change: Callable[[Weights], Weights] = lambda weights: weights
    asked: str | None = None


def without(*names: str) -> Callable[[Weights], Weights]:
    return lambda weights: {name: one for name, one in weights.items() if name not in names}


def replaced(name: str, tensor: Tensor) -> Callable[[Weights], Weights]:
    return lambda weights: weights | {name: tensor}


def narrow(weights: Weights) -> Weights:
    """As for a target of half the width."""
    return {name: one[: len(one) // 2, ..., : one.shape[-1] // 2] for name, one in weights.items() if one.dim() > 1} | {
        name: one[: len(one) // 2] for name, one in weights.items() if one.dim() == 1
    }


def offset(amount: int) -> Callable[[Weights], Weights]:
    return lambda weights: weights | {"d2t": weights["d2t"] + amount}


CASES = {
    "hidden size": Broken(
        "eagle", "draft was made for a target of hidden size 24, this one's is 48", {"hidden_size": 24}, narrow
    ),
    "state size": Broken(
        "eagle3", "draft was made for a target of hidden size 32, this one's is 48",
        change=replaced("fc.weight", torch.zeros(48, 3 * 32)),
    ),
    "rows of embeddings": Broken(
        "eagle", "draft was made for a vocabulary of 300 tokens, the target has 448",
        change=replaced("embed_tokens.weight", torch.zeros(300, 48)),
    ),
    "vocabulary": Broken(
        "eagle3", "draft was made for a vocabulary of 32000 tokens, the target has 448", {"vocab_size": 32000}
    ),
    "layers": Broken(
        "speculators", "draft reads hidden states [2, 18, 33] of a target with 7 layers", {IDS: [2, 18, 33]}
    ),
    "ambiguous layers": Broken(
        "eagle3",
        f"draft has eagle_config.{IDS} {USUAL}, which are outputs of layers by SGLang's counting and hidden states by"
        f' vLLM\'s: write "{IDS}": {USUAL} (hidden states) into its config.json instead',
        {"eagle_config": {IDS: USUAL}},
    ),
    "rows of the head": Broken(
        "eagle3", f"draft has draft_vocab_size 95 in config.json, and {SMALL} rows in lm_head.weight",
        {"draft_vocab_size": 95},
    ),
    "no map of tokens": Broken(
        "eagle3", f"draft scores {SMALL} of 448 tokens and lacks d2t, which says which", change=without("d2t")
    ),
    "map out of range": Broken("eagle3", "not to different ones of the target's 448", change=offset(400)),
    "map below zero": Broken("eagle3", "to ids -", change=offset(-50)),
    "map onto one": Broken(
        "eagle3", f"draft maps {SMALL} tokens to ids 0 to 0",
        change=replaced("d2t", -torch.arange(SMALL)),
    ),
    "all tokens in another order": Broken(
        "eagle3, all tokens", "scores all 448 tokens, and its d2t orders them anew",
        change=lambda weights: weights | {"d2t": torch.arange(447, -1, -1) - torch.arange(448)},
    ),
    "no fusion": Broken("eagle", "draft has no fc.weight", change=without("fc.weight"), asked="eagle"),
    "a missing tensor": Broken(
        "vispec", "draft lacks 1 tensors of format vispec, such as imadpt.k_proj.weight",
        change=without("imadpt.k_proj.weight"),
    ),
    "an unknown tensor": Broken(
        "msd", "draft has 1 tensors that format eagle does not know, such as hidden_norm.weight",
        change=replaced("hidden_norm.weight", torch.zeros(48)),
    ),
    "a shape": Broken(
        "eagle", "draft has layers.0.mlp.up_proj.weight of shape [95, 48], [96, 48] is expected",
        change=replaced("layers.0.mlp.up_proj.weight", torch.zeros(95, 48)),
    ),
    "a number in words": Broken(
        "eagle", "draft has hidden_size 'wide', which is no whole number", {"hidden_size": "wide"}
    ),
    "no object": Broken(
        "speculators", "draft has transformer_layer_config 'llama', which is no JSON object",
        {"transformer_layer_config": "llama"},
    ),
    "sections of other heads": Broken(
        "eagle3", "draft has mrope_section [16, 24, 24], which rotate 128 numbers of a head, and heads of 16",
        {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}},
    ),
    "two sections": Broken(
        "eagle3", "draft has mrope_section [4, 4], which are not three whole numbers",
        {"rope_parameters": {"rope_type": "default", "mrope_section": [4, 4]}},
    ),
    "rotations in a word": Broken(
        "vispec", "draft has rope_scaling 'mrope', which is no JSON object", {"rope_scaling": "mrope"}
    ),
    "another format": Broken(
        "eagle3", "draft has the keys of format eagle3, not of msd: leave --draft-format out", asked="msd"
    ),
    "masked guesses": Broken(
        "eagle3", "draft has a tensor mask_hidden, of P-EAGLE: it guesses several tokens in one pass",
        change=replaced("mask_hidden", torch.zeros(1, 144)),
    ),
    "another method": Broken(
        "speculators", "draft has speculators_model_type 'dflash': it guesses several tokens in one pass",
        {"speculators_model_type": "dflash"},
    ),
    "a sliding window": Broken(
        "speculators", "draft has layer_types ['full_attention', 'sliding_attention']: drafts with full_attention",
        {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 5},
        lambda weights: weights | {"layers.1.mlp.up_proj.weight": torch.zeros(96, 48)},
    ),
    "a norm for each state": Broken(
        "eagle3", "draft has fc_norm: drafts that norm each state", {"eagle_config": {"fc_norm": True}}
    ),
    "another way of counting": Broken(
        "eagle3", "draft has eagle_aux_layer_semantics 'trtllm': vllm and sglang are known",
        {"eagle_aux_layer_semantics": "trtllm"},
    ),
    "layers in a word": Broken("eagle3", f"draft has {IDS} 'all', which are no whole numbers", {IDS: "all"}),
    "more states than it reads": Broken(
        "eagle3", "draft reads 144 numbers of the target's states, and they are not those of the 4 hidden states"
        " [1, 2, 3, 4]", {IDS: [1, 2, 3, 4]},
    ),
    "no head for a part": Broken(
        "eagle3", "draft lacks lm_head.weight: the target's head would score all 448 tokens, not its own",
        change=without("lm_head.weight"),
    ),
    "a format that it is not": Broken(
        "vispec", "draft has the keys of format vispec, not of eagle: leave --draft-format out", asked="eagle"
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return feature_checkpoints.write_target(tmp_path_factory.mktemp("refusals") / "target")


@pytest.fixture(scope="module")
def alone(target: Path) -> Pair:
    return Pair.load(target, device="cpu")


def said_by_command(capsys: pytest.CaptureFixture[str], target: Path, draft: Path, *options: str) -> str:
    """The one line that the command line ends with."""
    picture = draft.parent / "picture.png"
    checkpoints.picture(1).save(picture)
    asked = ["--image", str(picture), "--prompt", "hi", "--device", "cpu"]
    command = ["generate", "--target", str(target), "--draft", str(draft), *asked]
    capsys.readouterr()
    assert main([*command, *options]) == 1
    err = capsys.readouterr().err
    assert "Traceback" not in err
    return err.strip().splitlines()[-1]


@pytest.mark.parametrize("case", CASES)
def test_what_does_not_fit_is_refused_in_one_line(
    target: Path, alone: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
):
    broken = CASES[case]
    layout, draft = LAYOUTS[broken.layout], tmp_path / "draft"
    draft.mkdir()
    checkpoints.write(draft / "config.json", feature_checkpoints.settings(layout) | broken.settings)
    weights = feature_checkpoints.published(layout, feature_checkpoints.random_weights(layout, 0))
    feature_checkpoints.save_weights(draft, broken.change(weights), "bin")  # so that no key is read beforehand
    line = complaint(lambda: alone.with_draft(draft, broken.asked))
    assert broken.line in line
    if broken.asked or case == "hidden size":  # the others go the same way
        options = () if broken.asked is None else ("--draft-format", broken.asked)
        assert broken.line in said_by_command(capsys, target, draft, *options)


# What trainers have exported as d2t (offsets) and t2d (mask) of the same tokens, whose ids are given.
MAPS: dict[str, Callable[[Tensor], Weights]] = {
    "ordinals": lambda ids: {"d2t": torch.arange(len(ids))},
    "zeros": lambda ids: {"d2t": torch.zeros(len(ids), dtype=torch.int64)},
    "one further": lambda ids: {"d2t": (ids - 1) % PADDED - torch.arange(len(ids))},
    "one token": lambda ids: {"d2t": torch.cat([ids[:-1], ids[-1:] - 1]) - torch.arange(len(ids))},
    "another mask": lambda ids: {"t2d": torch.arange(PADDED) < len(ids)},
    "a mask of whole numbers": lambda ids: {"t2d": (torch.arange(PADDED) >= PADDED - len(ids)).long()},
    "a token too many": lambda ids: {"t2d": torch.isin(torch.arange(PADDED), torch.cat([ids, ids[:1] + 1]))},
    "an empty mask": lambda ids: {"t2d": torch.zeros(PADDED, dtype=torch.bool)},
}


@pytest.mark.parametrize("kind", MAPS)
def test_a_map_that_names_other_tokens_than_the_mask_is_refused_by_the_first(alone: Pair, tmp_path: Path, kind: str):
    """By EAGLE-3's definition: token ``i`` of the draft is the target's ``i + d2t[i]``, and ``t2d`` is true there."""
    layout, draft = LAYOUTS["eagle3"], tmp_path / "draft"
    weights = feature_checkpoints.published(layout, feature_checkpoints.random_weights(layout, 0))
    ids = torch.tensor([token for token, used in enumerate(weights["t2d"].tolist()) if used])
    ids[-1] += int(ids[-1] - ids[-2] == 1)  # a gap before the last token
    weights |= {"d2t": ids - torch.arange(SMALL), "t2d": torch.isin(torch.arange(PADDED), ids)} | MAPS[kind](ids)
    names = [number + offset for number, offset in enumerate(weights["d2t"].tolist())]
    masked = [token for token, used in enumerate(weights["t2d"].tolist()) if used]
    differ = [row for row, pair in enumerate(zip(sorted(names), masked, strict=False)) if pair[0] != pair[1]]
    words = f"draft has {SMALL} tokens in d2t and {len(masked)} in t2d"
    if len(masked) == SMALL:
        row, words = differ[0], f"differ in {len(differ)} of {SMALL} tokens: token "
        words += f"{row} is the target's {sorted(names)[row]} by d2t and {masked[row]} by t2d"
    draft.mkdir()
    checkpoints.write(draft / "config.json", feature_checkpoints.settings(layout))
    feature_checkpoints.save_weights(draft, weights, "bin")
    assert words in complaint(lambda: alone.with_draft(draft))


def test_a_head_for_more_layers_is_refused_by_a_shallow_target(tmp_path: Path):
    """Of two layers there is no usual choice of three hidden states."""
    shallow = Pair.load(checkpoints.write_llava(tmp_path / "shallow", hidden=48), device="cpu")
    draft = feature_checkpoints.write_draft(tmp_path / "draft", LAYOUTS["eagle3"])
    assert "draft reads hidden states [2, 1, -1] of a target with 2 layers" in complaint(
        lambda: shallow.with_draft(draft)
    )


# ------------------------------------------------------------------------------------------------- pickled files


class Payload:
    """What a malicious file would have run."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def pickled(draft: Path, content: Any) -> Path:
    """A draft of format eagle whose weights are ``content``."""
    draft.mkdir()
    checkpoints.write(draft / "config.json", feature_checkpoints.settings(LAYOUTS["eagle"]))
    torch.save(content, draft / "pytorch_model.bin")
    return draft


def test_a_malicious_file_is_not_run(target: Path, alone: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    mark = tmp_path / "it ran"
    weights = feature_checkpoints.random_weights(LAYOUTS["eagle"], 0)
    for number, content in enumerate((weights | {"more": Payload(mark)}, Payload(mark))):
        draft = pickled(tmp_path / f"draft {number}", content)
        assert "cannot be read" in complaint(lambda draft=draft: alone.with_draft(draft))
        assert "cannot be read" in said_by_command(capsys, target, draft)
    bare = pickled(tmp_path / "bare", {})
    (bare / "pytorch_model.bin").write_bytes(pickle.dumps(Payload(mark)))
    assert "cannot be read" in complaint(lambda: alone.with_draft(bare))
    assert not mark.exists()
    torch.load(tmp_path / "draft 1" / "pytorch_model.bin", weights_only=False)
    assert mark.exists()  # it would have


@pytest.mark.parametrize("content", [{"fc.weight": 3}, {"fc.weight": {"more": torch.zeros(2)}}, [torch.zeros(2)], 5])
def test_a_file_that_holds_anything_but_tensors_is_refused(alone: Pair, tmp_path: Path, content: Any):
    draft = pickled(tmp_path / "draft", content)
    assert "no dictionary of tensors" in complaint(lambda: alone.with_draft(draft))


def test_a_file_that_is_too_large_is_refused_before_it_is_read(alone: Pair, tmp_path: Path):
    draft = pickled(tmp_path / "draft", {})
    with (draft / "pytorch_model.bin").open("r+b") as file:
        file.truncate(2**30)
    line = complaint(lambda: alone.with_draft(draft))
    assert "a pytorch_model.bin of 1073741824 bytes, its sizes explain" in line


def test_a_damaged_file_is_refused(alone: Pair, tmp_path: Path):
    draft = pickled(tmp_path / "draft", {})
    for content in (b"", b"not a file of torch's", (draft / "pytorch_model.bin").read_bytes()[:100]):
        (draft / "pytorch_model.bin").write_bytes(content)
        assert "cannot be read" in complaint(lambda: alone.with_draft(draft))


def test_safetensors_are_preferred_and_a_pickled_file_is_told_of(alone: Pair, tmp_path: Path):
    told: list[str] = []
    draft = feature_checkpoints.write_draft(tmp_path / "draft", LAYOUTS["eagle"])
    (draft / "pytorch_model.bin").write_bytes(b"never read")
    alone.with_draft(draft, tell=told.append)
    assert told == []
    alone.with_draft(feature_checkpoints.write_draft(tmp_path / "msd", LAYOUTS["msd"]), tell=told.append)
    assert len(told) == 1 and "\n" not in told[0] and "msd comes as pytorch_model.bin" in told[0]


# ------------------------------------------------------------------------------------------------- neither


def test_a_directory_that_is_neither_is_refused(
    target: Path, alone: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """No model, a model without weights, one that cannot draft, an ordinary draft with a format."""
    empty, bare, other = tmp_path / "empty", tmp_path / "bare", tmp_path / "other"
    for directory in (empty, bare, other):
        directory.mkdir()
    checkpoints.write(bare / "config.json", feature_checkpoints.settings(LAYOUTS["eagle"]))
    checkpoints.write(other / "config.json", {"model_type": "bert", "vocab_size": 9})
    llama = checkpoints.write_llama(tmp_path / "llama")
    for draft, line in ((empty, "no model at"), (bare, "lacks 1 of 1"), (other, "other is a bert, which cannot draft")):
        assert line in complaint(lambda draft=draft: alone.with_draft(draft))
        assert line in said_by_command(capsys, target, draft)
    assert "llama is no draft of format eagle" in complaint(lambda: alone.with_draft(llama, "eagle"))
    assert "llama does not read the target's states: leave --draft-state-layers 0 1 out" in complaint(
        lambda: alone.with_draft(llama, draft_state_layers=(0, 1))
    )
    assert "llama is no draft of format eagle" in said_by_command(capsys, target, llama, "--draft-format", "eagle")


@pytest.mark.parametrize(
    ("of", "what"),
    [
        ("speculators, qwen3", "norms of queries and keys"),
        ("eagle3, nvidia", "a bias of fc"),
        ("eagle3, the target's head", "no head of its own"),
    ],
)
def test_what_export_does_not_write_is_refused_and_not_left_out(target: Path, tmp_path: Path, of: str, what: str):
    draft = feature_checkpoints.write_draft(tmp_path / "draft", LAYOUTS[of])
    assert what in complaint(lambda: export_draft(draft, target, tmp_path / "out"))
    assert not (tmp_path / "out").exists()
