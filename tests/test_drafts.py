"""Drafts: made of a model, taught for any family, fused, exported; what does not fit is refused by number."""

from __future__ import annotations

import copy
import json
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import groupby, takewhile
from pathlib import Path
from typing import Any

import pytest
import torch
from support import checkpoints, families, family_drafts, random_passes
from support.cases import complaint, sample
from support.checkpoints import IMAGE_ID, PADDED, WORDS, published_name
from support.distilling import arguments
from support.engine_loaders import ENGINES, served
from support.families import FAMILIES
from support.family_proofs import ALONE, FAST, check_speculation
from torch import Tensor
from transformers import LlamaForCausalLM

from specllava.cli.main import main
from specllava.distill.config import FeatureObjective, Objective, Report
from specllava.distill.data import RowBatches, RowEncoder
from specllava.distill.export import export_draft
from specllava.distill.losses import IGNORE, batch_losses
from specllava.distill.new_draft import init_draft, same, training_draft
from specllava.distill.rows import Row, load_rows
from specllava.engine.engine import Engine
from specllava.models.checkpoint import Checkpoint
from specllava.models.drafts.draft_vlm import FusedLayer, fuse, save
from specllava.models.drafts.eagle import FeatureDraft, FeatureDraftConfig, fresh_feature_draft
from specllava.models.drafts.eagle_checkpoint import load_feature_draft, read_feature_draft
from specllava.models.families import family_of
from specllava.pair import Pair
from specllava.prompt import Prompt
from specllava.scoring import draft_log_probs, teacher_forced_log_probs

HIDDEN, LAYERS = 48, 8  # of targets that drafts are exported for


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("drafts")
    target = checkpoints.write_llava(root / "target")
    checkpoints.write_llava(root / "next", "llava_next", seed=2)
    checkpoints.write_llava(root / "deep", layers=LAYERS)
    checkpoints.write_llama(root / "llama")
    tower = {name: one for name, one in checkpoints.weights_of(target).items() if "vision_tower" in name}
    checkpoints.write_llava(root / "same", seed=3, layers=1, hidden=32, parts=tower)
    coarse = {name: one.bfloat16() for name, one in checkpoints.weights_of(root / "same").items()}
    checkpoints.write_llava(root / "rounded", layers=1, hidden=32, parts=coarse)
    change(root / "rounded", torch_dtype="bfloat16")
    checkpoints.write_llava(root / "other", seed=4, layers=1, hidden=32)
    checkpoints.write_llava(root / "wide", seed=5, vision=48)
    init_draft(root / "llama", target, root / "draft")
    return root


def weights_of(directory: Path) -> dict[str, Tensor]:
    return {published_name(name): weight for name, weight in checkpoints.weights_of(directory).items()}


def config_of(directory: Path) -> dict:
    return json.loads((directory / "config.json").read_text())


def change(directory: Path, **fields: Any) -> None:
    checkpoints.write(directory / "config.json", config_of(directory) | fields)


# ----------------------------------------------------------------------------------------------- made


def test_init_keeps_the_language_model_and_fills_up_its_vocabulary(root: Path):
    """New rows are the mean of those there are; nothing of a tower is written."""
    llama, draft = checkpoints.weights_of(root / "llama"), weights_of(root / "draft")
    assert not [name for name in draft if "vision_tower" in name]
    assert len([name for name in draft if "multi_modal_projector" in name]) == 4
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        rows = draft[f"language_model.{name}"]
        assert rows.shape[0] == PADDED and torch.equal(rows[:WORDS], llama[name])
        mean = llama[name].double().mean(dim=0).half()
        assert torch.equal(rows[WORDS:], mean.expand(PADDED - WORDS, -1))
    others = [name for name in llama if "embed_tokens" not in name and name != "lm_head.weight"]
    assert len(others) > 5 and all(torch.equal(llama[name], draft[f"language_model.{name}"]) for name in others)
    config = config_of(root / "draft")
    assert config["architectures"] == ["DraftLlava"]
    assert config["text_config"]["vocab_size"] == PADDED
    assert (config["text_config"]["bos_token_id"], config["image_token_index"]) == (1, IMAGE_ID)


def test_a_text_only_draft_is_a_plain_llama_and_one_for_a_llava_next_has_a_newline(root: Path, tmp_path: Path):
    init_draft(root / "llama", root / "target", tmp_path / "blind", text_only=True)
    assert config_of(tmp_path / "blind")["architectures"] == ["LlamaForCausalLM"]
    assert not [name for name in weights_of(tmp_path / "blind") if "projector" in name]
    assert Pair.load(root / "target", tmp_path / "blind", device="cpu").draft_vision == "none"
    init_draft(root / "llama", root / "next", tmp_path / "draft")
    assert config_of(tmp_path / "draft")["architectures"] == ["DraftLlavaNext"]
    assert weights_of(tmp_path / "draft")["image_newline"].shape == (32,)


@pytest.mark.parametrize(
    ("source", "target", "vision", "note"),
    [
        ("same", "target", "shared", "the tower equals the target's"),
        ("rounded", "target", "shared", "the tower equals the target's"),
        ("other", "target", "own", "tensors are not the target's, such as"),
        ("next", "target", "own", "encoded twice: it is a llava_next, the target a llava"),
        ("target", "next", "own", "encoded twice: it is a llava, the target a llava_next"),
        ("wide", "target", "own", "encoded twice: its hidden size is 48, the target's 32"),
    ],
)
def test_import_drops_the_targets_tower_and_keeps_another_one(root, tmp_path, source, target, vision, note):
    """Also of another family: such a draft reads other slots, and its target's answer stays what it was."""
    made = init_draft(root / source, root / target, tmp_path / "draft")
    ours, theirs = weights_of(made.directory), weights_of(root / source)
    kept = {name for name in theirs if vision == "own" or "vision_tower" not in name}
    assert {name.replace("vision_model.", "") for name in ours} == {n.replace("vision_model.", "") for n in kept}
    assert all(same(ours[name], theirs[name]) for name in kept & set(ours))
    assert note in made.notes[0]
    pair, question = Pair.load(root / target, made.directory, device="cpu", dtype="float64"), checkpoints.messages(3)
    assert pair.draft_vision == vision
    assert pair.generate(None, question, FAST).token_ids == pair.generate(None, question, ALONE).token_ids


# ----------------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("target", "draft", "fields", "line"),
    [
        ("target", "llama", {}, f"draft vocabulary {WORDS} is not the target's {PADDED}"),
        ("next", "draft", {}, "the draft reads features of a llava, the target is a llava_next"),
        ("wide", "draft", {}, "the draft reads vision features of size 32, the target's tower gives 48"),
        ("target", "draft", {"image_token_index": 5}, f"the draft's image token is 5, the target's {IMAGE_ID}"),
        (
            "target", "draft", {"vision_feature_layer": -1},
            "the draft was made for vision feature layer -1, the target has -2",
        ),
    ],
)
def test_a_draft_that_does_not_fit_is_refused_with_the_way_out(root, tmp_path, target, draft, fields, line):
    odd = Path(shutil.copytree(root / draft, tmp_path / "odd"))
    change(odd, **fields)
    assert complaint(lambda: Pair.load(root / target, odd, device="cpu")) == f'{line}: run "specllava draft init"'


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (["--source", "draft"], "draft has no tower, so it is a draft already: name it with --draft"),
        (["--source", "same", "--text-only"], "same sees, and --text-only is for language models: leave it out"),
        (["--source", "nowhere"], "no model at nowhere: a directory with config.json is expected"),
    ],
)
def test_what_no_draft_can_be_made_of_costs_one_line(root, tmp_path, monkeypatch, capsys, command, line):
    monkeypatch.chdir(root)
    assert main(["draft", "init", *command, "--target", "target", "--output", str(tmp_path / "made")]) == 1
    loading, told = capsys.readouterr().err.splitlines()
    assert loading.startswith("loading ") and told == f"specllava: {line}"
    assert not (tmp_path / "made").exists()


def test_the_command_says_what_it_made_and_leaves_an_output_that_exists_alone(root: Path, tmp_path: Path, capsys):
    command = ["draft", "init", "--source", str(root / "llama"), "--target", str(root / "target"), "--output"]
    assert main([*command, str(tmp_path / "a")]) == 0
    assert f"vocabulary {WORDS} of llama, {PADDED} of target: {PADDED - WORDS} rows added" in capsys.readouterr().out
    before = {file.name: file.read_bytes() for file in (tmp_path / "a").iterdir()}
    assert main([*command, str(tmp_path / "a")]) == 1
    assert "exists already: name another --output, or remove it" in capsys.readouterr().err
    assert {file.name: file.read_bytes() for file in (tmp_path / "a").iterdir()} == before


# ----------------------------------------------------------------------------------------------- fused


@pytest.mark.parametrize("seed", range(6))
@torch.inference_mode()
def test_fused_layers_compute_what_they_are_made_of(seed: int) -> None:
    """Random shapes; a prompt, chains, levels and trees. Biases beside those of queries, keys and values stop it."""
    model = random_passes.llama(seed, mlp_bias=seed == 5).double()
    for layer in model.model.layers:
        layer.self_attn.o_proj.bias = None
    fused = fuse(copy.deepcopy(model))
    assert all(isinstance(layer, FusedLayer) for layer in fused.model.layers) == (seed != 5)
    passes = (random_passes.run_passes(Engine.of(one, random_passes.SLOTS), seed) for one in (fused, model))
    for ours, theirs in zip(*passes, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6 * float(theirs.abs().max()))


def halved(model: LlamaForCausalLM, assign: bool = False) -> LlamaForCausalLM:
    model.load_state_dict({name: value / 2 for name, value in model.state_dict().items()}, assign=assign)
    return model


def left_alone(model: LlamaForCausalLM, clone: Callable[[LlamaForCausalLM], LlamaForCausalLM]) -> LlamaForCausalLM:
    twin = clone(model)
    halved(model)
    return twin


CHANGES: dict[str, Callable[[LlamaForCausalLM], LlamaForCausalLM]] = {
    "float64": lambda model: model.double(), "bfloat16": lambda model: model.bfloat16(), "loaded": halved,
    "assigned": lambda model: halved(model, assign=True),
    "copied": lambda model: left_alone(model, copy.deepcopy),
    "pickled": lambda model: left_alone(model, lambda one: pickle.loads(pickle.dumps(one))),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_fused_draft_is_changed_as_any_model_is(change: str) -> None:
    """A copy held its weights twice, and computed with those that nothing could change any more."""
    fused, plain = (CHANGES[change](one) for one in (fuse(random_passes.llama(1)), random_passes.llama(1)))
    with torch.inference_mode():
        ours, theirs = (one(torch.arange(9)[None], use_cache=False).logits.float() for one in (fused, plain))
    near = 0.02 if change == "bfloat16" else 1e-5
    torch.testing.assert_close(ours, theirs, rtol=0, atol=near * float(theirs.abs().max()))
    for layer in fused.model.layers:
        assert [one.data_ptr() for one in layer.sources] == [one.data_ptr() for one in layer.weights]
    assert "one row, not 3" in complaint(lambda: fused(torch.ones((3, 5), dtype=torch.long)))


# ----------------------------------------------------------------------------------------------- for any family

ROWS, LENGTH = 9, 400
Taught = tuple[str, str]
# Slots side by side, with row tokens between them, with three rows of positions, and seeing each other both ways.
DRAFTS: tuple[Taught, ...] = (
    ("llava_next", "vlm"), ("llava", "blind"), ("internvl", "vlm"),
    ("smolvlm", "eagle"), ("qwen2_5_vl", "eagle3"), ("gemma3", "vlm"), ("gemma3", "eagle3"),
)  # fmt: skip
LEARNING: tuple[Taught, ...] = (("qwen3_vl", "vlm"), ("qwen2_5_vl", "eagle3"))
Made = Callable[..., Path]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("slots")
    family_drafts.write_data(root, ROWS)
    return root


@pytest.fixture(scope="module")
def rows(data: Path) -> list[Row]:
    return load_rows(data / "data.json", data / "images")[0]


def asked(data: Path, row: Row, pair: Pair, turns: int) -> Prompt:
    """The prompt in front of an answer of a row, as decoding reads it."""
    chat, names = [], iter(row.images)
    for place, text in enumerate(row.turns[: turns + 1]):
        shown = [next(names) for _ in range(row.images_per_question[place // 2])] if place % 2 == 0 else []
        parts = [{"type": "image", "image": data / "images" / name} for name in shown]
        chat.append({"role": ("user", "assistant")[place % 2], "content": [*parts, {"type": "text", "text": text}]})
    return pair.prompt(None, chat)


@pytest.mark.parametrize("family", [*checkpoints.FAMILIES, *FAMILIES])
def test_what_is_taught_is_what_decoding_reads(data: Path, rows: list[Row], made: Made, family: str):
    """Token for token before the last answer, and each answer, with slots, of no, one and several pictures."""
    pair = Pair.load(made(family), device="cpu", dtype="float32")
    encode = RowEncoder.of(pair, data / "images", LENGTH)
    for row in rows[:3]:
        encoded = encode(row)
        read = asked(data, row, pair, len(row.turns) - 2).input_ids[0].tolist()
        assert encoded.ids[: len(read)] == read and not encoded.cut
        runs = [[*run] for taught, run in groupby(encoded.labels, lambda label: label != IGNORE) if taught]
        assert tuple(pair.processor.tokenizer.decode(run[:-1]).strip() for run in runs) == row.turns[1::2]
        assert {run[-1] for run in runs} <= pair.eos_token_ids
        assert [label for label in encoded.labels[len(read) :] if label != IGNORE] == runs[-1]
        if row.images:
            features = pair.family.stack(family_of(pair.target.config).encode(pair.target, encoded.pictures))
            slots = family_of(pair.target.config).num_image_tokens(pair.target, features)  # of some tile by tile
            assert sum(slots) == encoded.ids.count(pair.target.config.image_token_id)


@pytest.mark.parametrize(("family", "kind"), DRAFTS)
@torch.no_grad()
def test_the_loss_is_what_decoding_measures(data: Path, rows: list[Row], made: Made, family: str, kind: str):
    """KL by the passes that decode, prompt by prompt, and by the loss of a padded batch."""
    pair = Pair.load(made(family), device="cpu", dtype="float64")
    target = pair.target
    draft = training_draft(made(family, kind), target).to(target.dtype).eval()  # one that decodes is fused
    drafted = replace(pair, draft=draft)
    encode = RowEncoder.of(drafted, data / "images", LENGTH)
    losses = batch_losses(target, FeatureObjective() if kind.startswith("eagle") else Objective(kl_weight=1.0))
    make = RowBatches(rows, encode, 2, 0)
    shown = float(losses(draft, make(0))["kl"])
    kl = tokens = 0.0
    for row in map(make.row_at, make._make_window(0)[0]):
        for turn in range(0, len(row.turns), 2):
            prompt = asked(data, row, drafted, turn)
            answer = list(takewhile(lambda label: label != IGNORE, encode(row).labels[prompt.length :]))
            ours = draft_log_probs(target, draft, prompt, answer)
            theirs = teacher_forced_log_probs(target, prompt, answer)
            kl += float((theirs.exp() * (theirs - ours)).sum())
            tokens += len(answer)
    assert shown == pytest.approx(kl / tokens, rel=1e-4)


@pytest.mark.parametrize(("family", "kind"), sample(LEARNING, 1))
def test_a_draft_learns_and_changes_no_token(data: Path, made: Made, tmp_path: Path, family: str, kind: str):
    taught = {"draft": made(family, "vlm")} if kind == "vlm" else {"draft": None, "drafter": kind}
    options = {"target": made(family), "length": LENGTH, "steps": 10, "validate_every": 0, "kl_weight": 1.0}
    assert main(arguments(data, tmp_path / "run", **options, **taught)) == 0
    losses = [point["loss"] for point in Report.read(tmp_path / "run" / "report.json").curve]
    assert sum(losses[-3:]) < 0.9 * sum(losses[:3])
    pair = Pair.load(made(family), tmp_path / "run" / "last", device="cpu", dtype="float64")
    assert pair.draft_vision == ("shared" if kind == "vlm" else "states")
    check_speculation(lambda number: pair, (2,))


def test_a_draft_for_other_slots_is_refused(made: Made, tmp_path: Path):
    wide = families.write_checkpoint(tmp_path / "wide", "internvl", layout=families.Layout(hidden=64))
    line = complaint(lambda: Pair.load(wide, made("internvl", "vlm"), device="cpu"))
    assert line.startswith("the draft reads image slots of size 48, the target's have 64: run ")
    foreign = Path(shutil.copytree(made("internvl", "vlm"), tmp_path / "foreign"))
    change(foreign, target_type="smolvlm")
    line = complaint(lambda: Pair.load(made("internvl"), foreign, device="cpu"))
    assert line.startswith("the draft reads image slots of a smolvlm, the target is a internvl: run ")


# ----------------------------------------------------------------------------------------------- exported

GUESSABLE, USUAL = 100, [2, LAYERS // 2, LAYERS - 3]
SIZES = {
    "hidden_size": HIDDEN, "intermediate_size": 64, "num_attention_heads": 3, "num_key_value_heads": 1,
    "vocab_size": PADDED, "rms_norm_eps": 1e-5, "max_position_embeddings": 512, "initializer_range": 0.2,
}  # fmt: skip
EAGLE3 = {"format": "eagle3", "state_layers": USUAL, "draft_vocab_size": GUESSABLE}


@pytest.fixture(scope="module")
def deep(root: Path) -> Pair:
    return Pair.load(root / "deep", device="cpu", dtype="float32")


def written(directory: Path, **variant: Any) -> Path:
    """A random feature draft, in this project's own layout."""
    torch.manual_seed(0)
    draft = FeatureDraft(FeatureDraftConfig(**SIZES | variant))
    for name, weight in draft.named_parameters():
        if weight.dim() == 1:  # gains and biases, which begin at ones and zeros
            torch.nn.init.normal_(weight, mean=float("norm" in name), std=0.2)
    if draft.config.format == "eagle3" and draft.config.own_head:
        ids = torch.randperm(PADDED)[: len(draft.d2t)].sort().values
        draft.d2t.copy_(ids - torch.arange(len(ids)))
    draft.save_pretrained(directory)
    return directory


def exported(tmp_path: Path, root: Path, **made: Any) -> Path:
    export_draft(written(tmp_path / "draft", **made), root / "deep", tmp_path / "out")
    return tmp_path / "out"


@torch.inference_mode()
def drafted(directory: Path, target: Pair) -> tuple[Tensor, Tensor]:
    """Logits of a draft for a text whose states are known, and of the same tokens behind guessed states."""
    draft = load_feature_draft(Checkpoint.at(directory), target.target)
    source = torch.Generator().manual_seed(11)
    tokens = torch.randint(3, 300, (9,), generator=source)
    states = torch.randn(9, draft.config.target_hidden_size * len(draft.config.state_layers), generator=source)
    places = torch.arange(9)
    plain = draft.config.mrope_section is None
    rotations = draft.rotations(places[None] if plain else torch.stack([places, places // 2, places % 3])[:, None])
    known = draft(draft.entries(tokens, draft.embed(tokens), states, states[-1]).inputs[None], rotations)[0]
    guessed = draft(draft.inputs(draft.embed(tokens), known, guessed=True)[None], rotations)[0]
    return draft.logits(known), draft.logits(guessed)


VARIANTS = {
    "eagle3": EAGLE3,
    "other rotations": EAGLE3 | {"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "all tokens": EAGLE3 | {"draft_vocab_size": None},
    "own embeddings": EAGLE3 | {"own_embeddings": True},
    "other layers": EAGLE3 | {"state_layers": [1, 3, 7]},
    "layers whose outputs have the usual numbers": EAGLE3 | {"state_layers": [one + 1 for one in USUAL]},
    "rows of positions": EAGLE3 | {"mrope_section": [2, 3, 3]},
    "rows in turn": EAGLE3 | {"mrope_section": [4, 2, 2], "mrope_interleaved": True},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_what_is_exported_drafts_the_same_and_each_engine_loads_it_whole(name: str, root, deep, tmp_path) -> None:
    """Class, fields, names and shapes by a port of its loader; nothing is dropped and nothing is left at random."""
    out = exported(tmp_path, root, **VARIANTS[name])
    for ours, theirs in zip(drafted(tmp_path / "draft", deep), drafted(out, deep), strict=True):
        assert torch.equal(ours, theirs)
        assert ours.isfinite().any(-1).all() and ours[ours.isfinite()].std() > 0.01
    draft = read_feature_draft(Checkpoint.at(tmp_path / "draft"), deep.target.config)
    own = draft.config
    assert load_feature_draft(Checkpoint.at(out), deep.target).config.state_layers == own.state_layers
    for engine in ENGINES:
        held = served(out, engine)
        assert held.states == tuple(own.state_layers)
        for name_, one in draft.named_parameters():
            at = name_.replace("layers.0.", "midlayer.") if engine == "sglang" else name_
            assert torch.equal(held.weights[at], one)
        if len(draft.d2t) < PADDED:
            assert held.ids == tuple((draft.d2t + torch.arange(GUESSABLE)).tolist())
        for field in ("rope_parameters", "rms_norm_eps", "hidden_act", "head_dim", "num_hidden_layers"):
            ours, theirs = getattr(own, field), getattr(held.config, field)
            if field == "rope_parameters" and own.mrope_section is not None:
                ours = ours | {"mrope_section": own.mrope_section, "mrope_interleaved": own.mrope_interleaved}
            assert theirs == ours, field


@pytest.mark.parametrize("family", ["smolvlm", "qwen2_5_vl", "gemma3"])
def test_a_draft_for_any_family_is_exported(family: str, tmp_path: Path) -> None:
    """With the embeddings that the target's decoder reads, which Gemma's multiplies and an engine's draft does not."""
    place = families.write_checkpoint(tmp_path / "target", family, layout=families.Layout(layers=4))
    target = Pair.load(place, device="cpu", dtype="float32")
    draft, out = tmp_path / "draft", tmp_path / "out"
    save(fresh_feature_draft(target.target, "eagle3"), None, draft, torch.float32)
    export_draft(draft, place, out)
    for ours, theirs in zip(drafted(draft, target), drafted(out, target), strict=True):
        torch.testing.assert_close(ours, theirs)
    held = checkpoints.weights_of(out).get("embed_tokens.weight")
    assert (held is not None) == (family == "gemma3")
    if held is not None:
        words = torch.arange(target.target.config.get_text_config().vocab_size)
        torch.testing.assert_close(held, target.target.get_input_embeddings()(words))
    assert (config_of(out)["target_model_type"], config_of(out)["hidden_act"]) == (family, "silu")


@pytest.mark.parametrize(
    ("variant", "told"),
    [
        ({}, "its format is eagle: distil one with --drafter eagle3"),
        ({"format": "vispec"}, "its format is vispec: distil one with --drafter eagle3"),
        (EAGLE3 | {"hidden_act": "gelu"}, "engines have silu alone: distil one"),
        (EAGLE3 | {"qkv_bias": True}, "have biases, which engines leave out: distil one"),
        (EAGLE3 | {"num_hidden_layers": 2}, "it has 2 layers: hand on the files"),
        (EAGLE3 | {"qk_norm": True, "fc_bias": True}, "it has norms of queries and keys and a bias of fc: hand on"),
        (EAGLE3 | {"draft_vocab_size": None, "own_head": False}, "it has no head of its own: hand on the files"),
        (EAGLE3 | {"norm_before_residual": True, "norm_output": True}, "norm_before_residual and norm_output: hand on"),
        (EAGLE3 | {"state_layers": [2, 4]}, "3 of the hidden states 1 to 7, and it reads [2, 4]: distil one"),
        (EAGLE3 | {"state_layers": [2, 4, 8]}, "3 of the hidden states 1 to 7, and it reads [2, 4, 8]: distil one"),
    ],
)
def test_what_the_layout_cannot_hold_is_refused_with_the_way_out(variant: dict[str, Any], told: str, root, tmp_path):
    line = complaint(lambda: exported(tmp_path, root, **variant))
    assert line.startswith("the layout of engines cannot hold draft: ") and told in line
    assert not (tmp_path / "out").exists()


def test_the_export_command_writes_and_refuses_in_one_line(root, tmp_path, capsys) -> None:
    out = tmp_path / "out"
    asked = ["draft", "export", "--target", str(root / "deep"), "--output", str(out), "--draft"]
    for draft, words in (
        (written(tmp_path / "eagle"), "specllava: the layout of engines cannot hold eagle: "),
        (root / "llama", "does not read the target's states"),
    ):
        assert main([*asked, str(draft)]) == 1 and words in capsys.readouterr().err.splitlines()[-1]
    draft = str(written(tmp_path / "draft", **EAGLE3))
    assert main([*asked, draft]) == 0
    assert f"{out}: a draft of" in capsys.readouterr().out.replace("\n", "")
    assert main([*asked, draft]) == 1
    assert "exists already" in capsys.readouterr().err
