"""Drafts: made of a model, taught for any family, fused, exported; what does not fit is refused by number."""

from __future__ import annotations

import copy
import json
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import checkpoints, families, family_drafts
from support.amount import sample
from support.checkpoints import IMAGE_ID, PADDED, WORDS, published_name
from support.distilling import arguments
from support.engine_loaders import ENGINES, served
from support.families import FAMILIES
from support.family_proofs import ALONE, FAST, check_speculation
from support.refusals import complaint
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from specllava.cli.main import main
from specllava.distill.config import FeatureObjective, Objective, Report
from specllava.distill.data import RowBatches, RowEncoder
from specllava.distill.export import export_draft
from specllava.distill.losses import IGNORE, batch_losses
from specllava.distill.new_draft import init_draft, same, training_draft
from specllava.distill.rows import Row, load_rows
from specllava.engine.decoders import Batch
from specllava.engine.engine import Engine
from specllava.models.checkpoint import Checkpoint
from specllava.models.drafts.draft_vlm import FusedLayer, SlotDraft, fuse, save
from specllava.models.drafts.eagle import FeatureDraft, FeatureDraftConfig, fresh_feature_draft
from specllava.models.drafts.eagle_checkpoint import load_feature_draft, read_feature_draft
from specllava.models.families import family_of
from specllava.models.loading import check_pair
from specllava.models.memory import unquantized
from specllava.models.tokens import resize_vocabulary
from specllava.pair import Pair
from specllava.prompt import Prompt
from specllava.scoring import draft_log_probs, teacher_forced_log_probs

FOREIGN = "zebras jump quickly over xylophones " * 9
HIDDEN, LAYERS = 48, 8  # of targets that drafts are exported for


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("drafts")
    target = checkpoints.write_llava(root / "target")
    checkpoints.write_llava(root / "next", "llava_next", seed=2)
    checkpoints.write_llava(root / "deep", layers=LAYERS)
    checkpoints.write_llama(root / "llama")
    checkpoints.write_llama(root / "foreign", also=FOREIGN)
    tower = checkpoints.tower_of(target)
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


def test_a_seed_makes_the_same_projector_again_and_another_seed_another(root: Path, tmp_path: Path):
    made = {}
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        torch.manual_seed(len(name))
        init_draft(root / "llama", root / "target", tmp_path / name, seed=seed)
        made[name] = weights_of(tmp_path / name)["multi_modal_projector.linear_1.weight"]
    assert torch.equal(made["a"], made["b"]) and not torch.equal(made["a"], made["c"])
    assert made["a"].std() > 0


def test_a_text_only_draft_is_a_plain_llama_and_one_for_a_llava_next_has_a_newline(root: Path, tmp_path: Path):
    init_draft(root / "llama", root / "target", tmp_path / "blind", text_only=True)
    assert config_of(tmp_path / "blind")["architectures"] == ["LlamaForCausalLM"]
    assert not [name for name in weights_of(tmp_path / "blind") if "projector" in name]
    assert Pair.load(root / "target", tmp_path / "blind", device="cpu").draft_vision == "none"
    init_draft(root / "llama", root / "next", tmp_path / "draft")
    assert config_of(tmp_path / "draft")["architectures"] == ["DraftLlavaNext"]
    assert weights_of(tmp_path / "draft")["image_newline"].shape == (32,)


@pytest.mark.parametrize(("source", "vision"), [("same", "shared"), ("rounded", "shared"), ("other", "own")])
def test_import_drops_the_targets_tower_and_keeps_another_one(root: Path, tmp_path: Path, source: str, vision: str):
    made = init_draft(root / source, root / "target", tmp_path / "draft")
    ours, theirs = weights_of(made.directory), weights_of(root / source)
    kept = {name for name in theirs if vision == "own" or "vision_tower" not in name}
    assert {name.replace("vision_model.", "") for name in ours} == {n.replace("vision_model.", "") for n in kept}
    assert all(same(ours[name], theirs[name]) for name in kept & set(ours))
    assert Pair.load(root / "target", made.directory, name="x", device="cpu").draft_vision == vision
    tensors = "tensors are not the target's, such as" if vision == "own" else "the tower equals the target's"
    assert tensors in made.notes[0]


@pytest.mark.parametrize(
    ("source", "target", "why"),
    [
        ("next", "target", "it is a llava_next, the target a llava"),
        ("target", "next", "it is a llava, the target a llava_next"),
        ("wide", "target", "its hidden size is 48, the target's 32"),
    ],
)
def test_import_keeps_a_tower_of_another_kind_and_says_why(
    root: Path, tmp_path: Path, source: str, target: str, why: str
):
    """Also of another family: such a draft reads other slots, and its target's answer stays what it was."""
    made = init_draft(root / source, root / target, tmp_path / "draft")
    assert made.notes == (f"the tower is kept, so each picture is encoded twice: {why}",)
    pair = Pair.load(root / target, made.directory, device="cpu", dtype="float64")
    question = checkpoints.messages(3)
    assert pair.generate(None, question, FAST).token_ids == pair.generate(None, question, ALONE).token_ids


def test_tensors_are_the_same_up_to_the_coarser_precision():
    one = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    assert same(one.half(), one.half()) and same(one.half(), one.bfloat16()) and same(one, one.half())
    assert not same(one.half(), (one * 1.01).half()) and not same(one.half(), (one * 1.02).bfloat16())
    assert not same(one.half(), one.half()[:10])


def test_rows_of_padding_may_be_cut_and_rows_of_tokens_not(root: Path):
    model = LlamaForCausalLM.from_pretrained(root / "llama")
    whole = model.get_input_embeddings().weight.clone()
    resize_vocabulary(model, "llama", tokens=300, size=320)
    assert torch.equal(model.get_input_embeddings().weight, whole[:320])
    assert (model.config.vocab_size, model.get_output_embeddings().weight.shape[0]) == (320, 320)
    line = complaint(lambda: resize_vocabulary(model, "llama", tokens=321, size=320))
    assert line == "llama uses 321 tokens, more than the target's 320 rows: no draft can be made of it"


def test_a_projector_of_another_name_is_no_matter(root: Path):
    pair = Pair.load(root / "target", root / "draft", device="cpu")
    for model in (pair.target, pair.draft):
        model.model.bridge = model.model._modules.pop("multi_modal_projector")
    check_pair(pair.target, pair.draft, pair.processor, pair.processor)
    assert unquantized(pair.target) == ["model.vision_tower", "model.bridge", "lm_head"]
    pair.draft.config.vision_config.hidden_size = 64
    line = complaint(lambda: check_pair(pair.target, pair.draft, pair.processor, pair.processor))
    assert "vision features of size 64, the target's tower gives 32" in line


# ----------------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("target", "draft", "fields", "line"),
    [
        ("target", "llama", {}, f"draft vocabulary {WORDS} does not cover the target's {PADDED}"),
        ("next", "draft", {}, "the draft reads features of a llava, the target is a llava_next"),
        ("wide", "draft", {}, "the draft reads vision features of size 32, the target's tower gives 48"),
        ("target", "draft", {"image_token_index": 5}, f"the draft's image token is 5, the target's {IMAGE_ID}"),
        (
            "target", "draft", {"vision_feature_layer": -1},
            "the draft was made for vision feature layer -1, the target has -2",
        ),
    ],
)
def test_a_draft_that_does_not_fit_is_refused_with_the_way_out(
    root: Path, tmp_path: Path, target: str, draft: str, fields: dict[str, Any], line: str
):
    odd = Path(shutil.copytree(root / draft, tmp_path / "odd"))
    change(odd, **fields)
    assert complaint(lambda: Pair.load(root / target, odd, device="cpu")) == f'{line}: run "specllava draft init"'


def test_a_draft_with_another_piece_in_its_tokenizer_is_refused(root: Path, tmp_path: Path):
    odd = Path(shutil.copytree(root / "same", tmp_path / "odd"))
    raw = json.loads((odd / "tokenizer.json").read_text())
    vocabulary, merges = raw["model"]["vocab"], raw["model"]["merges"]
    last = max(vocabulary, key=vocabulary.get)
    vocabulary["nobody"] = vocabulary.pop(last)
    raw["model"]["merges"] = [pair for pair in merges if "".join(pair) != last]
    checkpoints.write(odd / "tokenizer.json", raw)
    line = complaint(lambda: Pair.load(root / "target", odd, device="cpu"))
    assert line == "the draft's tokenizer is not the target's: 2 entries differ"


def test_a_model_with_other_tokens_is_refused_by_number(root: Path, tmp_path: Path):
    line = complaint(lambda: init_draft(root / "foreign", root / "target", tmp_path / "draft"))
    ours, theirs = (json.loads(checkpoints.spelling(also))["model"]["vocab"] for also in ("", FOREIGN))
    differ = len({n for _, n in set(ours.items()) ^ set(theirs.items())})
    assert line.startswith(f"the tokenizers of foreign and target differ in {differ} of {WORDS} shared ids, first in ")
    assert not (tmp_path / "draft").exists()


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (["--source", "draft"], "draft has no tower, so it is a draft already: name it with --draft"),
        (["--source", "same", "--text-only"], "same sees, and --text-only is for language models: leave it out"),
        (["--source", "nowhere"], "no model at nowhere: a directory with config.json is expected"),
    ],
)
def test_what_no_draft_can_be_made_of_costs_one_line(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys, command: list[str], line: str
):
    monkeypatch.chdir(root)
    assert main(["draft", "init", *command, "--target", "target", "--output", str(tmp_path / "made")]) == 1
    loading, told = capsys.readouterr().err.splitlines()
    assert loading.startswith("loading ") and told == f"specllava: {line}"
    assert not (tmp_path / "made").exists()


def test_an_output_that_exists_is_left_alone(root: Path, capsys):
    before = sorted(file.name for file in (root / "draft").iterdir())
    into = ["--target", str(root / "target"), "--output", str(root / "draft")]
    for source in ("llama", "same"):
        assert main(["draft", "init", "--source", str(root / source), *into]) == 1
        assert "exists already: name another --output, or remove it" in capsys.readouterr().err
    assert sorted(file.name for file in (root / "draft").iterdir()) == before


def test_the_commands_say_what_they_made(root: Path, tmp_path: Path, capsys):
    into = ["--target", str(root / "target"), "--output"]
    assert main(["draft", "init", "--source", str(root / "llama"), *into, str(tmp_path / "a")]) == 0
    said = capsys.readouterr().out
    assert f"vocabulary {WORDS} of llama, {PADDED} of target: {PADDED - WORDS} rows added" in said
    assert "distil the draft before use" in said and "0.04 million parameters" in said
    assert main(["draft", "init", "--source", str(root / "other"), *into, str(tmp_path / "b")]) == 0
    assert "the tower is kept, so each picture is encoded twice" in capsys.readouterr().out


# ----------------------------------------------------------------------------------------------- fused

CAPACITY = 64


def _llama(seed: int, **changed: object) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    sizes = {"hidden_size": 48, "intermediate_size": 80, "num_attention_heads": 4, "num_key_value_heads": 4, **changed}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=97, num_hidden_layers=2, max_position_embeddings=CAPACITY, **sizes))
    for parameter in model.parameters():  # gains too, which begin as ones
        torch.nn.init.normal_(parameter, 0.5 if parameter.dim() == 1 else 0.0, 0.2)
    return model.eval()


def _logits(model: LlamaForCausalLM) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.arange(9)[None], use_cache=False).logits[0]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("groups", [4, 2, 1])
@torch.inference_mode()
def test_fused_layers_compute_what_they_are_made_of(seed: int, groups: int) -> None:
    """A prompt, a branching tree behind it, and a single token behind the branch that is kept."""
    model = _llama(seed, num_key_value_heads=groups, head_dim=16)
    engines = Engine.of(model, CAPACITY), Engine.of(fuse(copy.deepcopy(model)), CAPACITY)
    assert all(isinstance(layer, FusedLayer) for layer in engines[1].decoder.decoder.layers)
    prompt = torch.randint(0, 97, (1, 11))
    visible = np.ones((4, 15), dtype=np.bool_)
    visible[:, 11:] = [[1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1]]
    found = []
    for engine in engines:
        tree = Batch([3, 5, 7, 9], visible, [11, 11, 12, 12])
        logits = [engine.prefill(prompt, None).logits[None], engine.forward(tree).logits]
        engine.commit(11, [1, 3])
        found.append(torch.cat([*logits, engine.forward(Batch([2])).logits]))
    assert found[0].std() > 0.1
    assert torch.allclose(found[0], found[1], rtol=0, atol=1e-5 * found[0].abs().max().item())


def test_biases_of_queries_keys_and_values_alone_are_added() -> None:
    """Layers with other biases stay as they are."""
    model = _llama(2, attention_bias=True, num_key_value_heads=2)
    for layer in model.model.layers:
        layer.self_attn.o_proj.bias = None
    fused = fuse(copy.deepcopy(model))
    assert all(isinstance(layer, FusedLayer) for layer in fused.model.layers)
    torch.testing.assert_close(_logits(fused), _logits(model), rtol=0, atol=1e-5)
    for name in ("attention_bias", "mlp_bias"):
        assert not any(isinstance(layer, FusedLayer) for layer in fuse(_llama(0, **{name: True})).model.layers)


def test_several_rows_are_refused() -> None:
    assert "one row, not 3" in complaint(lambda: fuse(_llama(0))(torch.ones((3, 5), dtype=torch.long)))


def _other_weights(model: LlamaForCausalLM) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in fuse(_llama(1)).state_dict().items() if name in model.state_dict()}


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_fused_draft_in_another_precision_computes_in_it(dtype: torch.dtype) -> None:
    model = fuse(_llama(0)).to(dtype)
    assert {weight.dtype for layer in model.model.layers for weight in layer.weights} == {dtype}
    close = 1e-4 if dtype is torch.float64 else 0.2
    torch.testing.assert_close(_logits(model).float(), _logits(_llama(0)), rtol=0, atol=close)


@pytest.mark.parametrize("assign", [False, True])
def test_a_fused_draft_computes_with_weights_that_are_loaded_into_it(assign: bool) -> None:
    model = fuse(_llama(0))
    model.load_state_dict(_other_weights(model), assign=assign)
    torch.testing.assert_close(_logits(model), _logits(fuse(_llama(1))), rtol=0, atol=0)


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copied_fused_draft_has_weights_of_its_own(clone: Callable[[LlamaForCausalLM], LlamaForCausalLM]) -> None:
    """A copy held them twice, and computed with those that nothing could change any more."""
    model, before = fuse(_llama(0)), _logits(fuse(_llama(0)))
    twin = clone(model)
    torch.testing.assert_close(_logits(twin), before, rtol=0, atol=0)
    twin.load_state_dict(_other_weights(twin))
    torch.testing.assert_close(_logits(twin), _logits(fuse(_llama(1))), rtol=0, atol=0)
    torch.testing.assert_close(_logits(model), before, rtol=0, atol=0)
    for layer in (*model.model.layers, *twin.model.layers):
        held = [weight.data_ptr() for weight in layer.sources]
        assert [weight.data_ptr() for weight in layer.weights] == held


# ----------------------------------------------------------------------------------------------- for any family

ROWS, LENGTH = 9, 400
Taught = tuple[str, str]
# Slots side by side, with row tokens between them, with three rows of positions, and seeing each other both ways.
DRAFTS: tuple[Taught, ...] = (
    ("internvl", "vlm"), ("smolvlm", "eagle"), ("qwen2_5_vl", "eagle3"), ("gemma3", "vlm"), ("gemma3", "eagle3"),
)  # fmt: skip
LEARNING: tuple[Taught, ...] = (("qwen3_vl", "vlm"), ("qwen2_5_vl", "eagle3"))
Made = Callable[[str], Path]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("slots")
    family_drafts.write_data(root, ROWS)
    return root


@pytest.fixture(scope="module")
def rows(data: Path) -> list[Row]:
    return load_rows(data / "data.json", data / "images")[0]


@pytest.fixture(scope="module")
def made(data: Path) -> Made:
    """A target by its family, or ``family kind`` of a draft for it, made when it is first asked for."""

    @cache
    def write(name: str) -> Path:
        family, _, kind = name.partition(" ")
        if not kind:
            return family_drafts.write_target(data / name, family)
        return family_drafts.write_draft(data / name, family, kind, write(family))

    return write


def asked(data: Path, row: Row, pair: Pair, turns: int) -> Prompt:
    """The prompt in front of an answer of a row, as decoding reads it."""
    chat, names = [], iter(row.images)
    for place, text in enumerate(row.turns[: turns + 1]):
        shown = [next(names) for _ in range(row.images_per_question[place // 2])] if place % 2 == 0 else []
        parts = [{"type": "image", "image": data / "images" / name} for name in shown]
        chat.append({"role": ("user", "assistant")[place % 2], "content": [*parts, {"type": "text", "text": text}]})
    return pair.prompt(None, chat)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_taught_is_what_decoding_reads(data: Path, rows: list[Row], made: Made, family: str):
    """Token for token, with slots and what stands around them, of no, one and several pictures."""
    pair = Pair.load(made(family), device="cpu", dtype="float32")
    encode = RowEncoder.of(pair, data / "images", LENGTH)
    for row in rows[:3]:
        encoded, last = encode(row), len(row.turns) - 2
        read = asked(data, row, pair, last).input_ids[0].tolist()
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
def test_the_loss_is_what_decoding_measures(data: Path, rows: list[Row], made: Made, family: str, kind: str):
    """KL by the passes that decode, prompt by prompt, and by the loss of a padded batch."""
    pair = Pair.load(made(family), device="cpu", dtype="float64")
    target = pair.target
    draft = training_draft(made(f"{family} {kind}"), target).to(target.dtype).eval()  # one that decodes is fused
    assert isinstance(draft, SlotDraft) == (kind == "vlm")
    encode = RowEncoder.of(replace(pair, draft=draft), data / "images", LENGTH)
    losses = batch_losses(target, Objective(kl_weight=1.0) if kind == "vlm" else FeatureObjective())
    make = RowBatches(rows, encode, 2, 0)
    shown = float(losses(draft, make(0))["kl"])
    kl = tokens = 0.0
    for row in map(make.row_at, make._make_window(0)[0]):
        for turn in range(0, len(row.turns), 2):
            prompt = asked(data, row, pair, turn)
            answer = list(takewhile(lambda label: label != IGNORE, encode(row).labels[prompt.length :]))
            ours = draft_log_probs(target, draft, prompt, answer)
            theirs = teacher_forced_log_probs(target, prompt, answer)
            kl += float((theirs.exp() * (theirs - ours)).sum())
            tokens += len(answer)
    assert shown == pytest.approx(kl / tokens, rel=1e-4)


@pytest.mark.parametrize(("family", "kind"), sample(LEARNING, 1))
def test_a_draft_learns_and_changes_no_token(data: Path, made: Made, tmp_path: Path, family: str, kind: str):
    taught = {"draft": made(f"{family} vlm")} if kind == "vlm" else {"draft": None, "drafter": kind}
    options = {"target": made(family), "length": LENGTH, "steps": 10, "validate_every": 0, "kl_weight": 1.0}
    assert main(arguments(data, tmp_path / "run", **options, **taught)) == 0
    losses = [point["loss"] for point in Report.read(tmp_path / "run" / "report.json").curve]
    assert sum(losses[-3:]) < 0.9 * sum(losses[:3])
    pair = Pair.load(made(family), tmp_path / "run" / "last", device="cpu", dtype="float64")
    assert pair.draft_vision == ("shared" if kind == "vlm" else "states")
    check_speculation(lambda number: pair, (2,))


def test_a_draft_for_other_slots_is_refused(made: Made, tmp_path: Path):
    wide = families.write_checkpoint(tmp_path / "wide", "internvl", layout=families.Layout(hidden=64))
    line = complaint(lambda: Pair.load(wide, made("internvl vlm"), device="cpu"))
    assert line.startswith("the draft reads image slots of size 48, the target's have 64: run ")
    foreign = Path(shutil.copytree(made("internvl vlm"), tmp_path / "foreign"))
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
    if draft.config.format == "eagle3":
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
    known = draft(draft.entries(tokens, draft.embed(tokens), states).inputs[None], rotations)[0]
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
def test_what_is_exported_drafts_the_same_and_each_engine_loads_it_whole(
    name: str, root: Path, deep: Pair, tmp_path: Path
) -> None:
    """Class, fields, names and shapes by a port of its loader; nothing is dropped and nothing is left at random."""
    out = exported(tmp_path, root, **VARIANTS[name])
    for ours, theirs in zip(drafted(tmp_path / "draft", deep), drafted(out, deep), strict=True):
        assert torch.equal(ours, theirs)
        assert ours.isfinite().any(-1).all() and ours[ours.isfinite()].std() > 0.01
    draft = read_feature_draft(Checkpoint.at(tmp_path / "draft"), deep.target.config)
    own = draft.config
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


def test_an_exported_draft_says_which_tokens_it_scores_and_counts_layers_as_each_engine_does(
    root: Path, deep: Pair, tmp_path: Path
) -> None:
    """Numbers that fit both ways are settled by the other list, if the two say the same layers."""
    out = exported(tmp_path, root, **EAGLE3 | {"state_layers": [one + 1 for one in USUAL]})
    weights, settings = checkpoints.weights_of(out), config_of(out)
    ids = (weights["d2t"] + torch.arange(GUESSABLE)).tolist()
    assert weights["t2d"].nonzero()[:, 0].tolist() == ids and weights["t2d"].dtype == torch.bool
    assert (len(weights["t2d"]), settings["draft_vocab_size"], settings["target_hidden_size"]) == (PADDED, 100, HIDDEN)
    assert settings["eagle_aux_hidden_state_layer_ids"] == [one + 1 for one in USUAL]
    assert settings["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == USUAL
    assert settings["eagle_aux_layer_semantics"] == "vllm"
    draft = load_feature_draft(Checkpoint.at(out), deep.target)
    assert list(draft.config.state_layers) == [one + 1 for one in USUAL]
    del settings["eagle_aux_hidden_state_layer_ids"], settings["eagle_aux_layer_semantics"]
    checkpoints.write(out / "config.json", settings)
    assert "eagle_config" in complaint(lambda: load_feature_draft(Checkpoint.at(out), deep.target))


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
        ({"compressor": {"kind": "pool"}}, "its format is eagle: distil one with --drafter eagle3"),
        ({"format": "msd"}, "its format is msd: distil one with --drafter eagle3"),
        ({"format": "vispec"}, "its format is vispec: distil one with --drafter eagle3"),
        (EAGLE3 | {"hidden_act": "gelu"}, "engines have silu alone: distil one"),
        (EAGLE3 | {"qkv_bias": True}, "have biases, which engines leave out: distil one"),
        (EAGLE3 | {"attention_bias": True}, "have biases, which engines leave out: distil one"),
        (EAGLE3 | {"mlp_bias": True}, "have biases, which engines leave out: distil one"),
        (EAGLE3 | {"num_hidden_layers": 2}, "it has 2 layers: hand on the files"),
        (EAGLE3 | {"norm_before_residual": True, "norm_output": True}, "norm_before_residual and norm_output: hand on"),
        (EAGLE3 | {"state_layers": [2, 4]}, "3 of the hidden states 1 to 7, and it reads [2, 4]: distil one"),
        (EAGLE3 | {"state_layers": [2, 4, 8]}, "3 of the hidden states 1 to 7, and it reads [2, 4, 8]: distil one"),
    ],
)
def test_what_the_layout_cannot_hold_is_refused_with_the_way_out(
    variant: dict[str, Any], told: str, root: Path, tmp_path: Path
) -> None:
    line = complaint(lambda: exported(tmp_path, root, **variant))
    assert line.startswith("the layout of engines cannot hold draft: ") and told in line
    assert not (tmp_path / "out").exists()


def test_a_full_disk_leaves_nothing_behind(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    draft = written(tmp_path / "draft", **EAGLE3)
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr("specllava.distill.export.save_file", full)
    with pytest.raises(OSError, match=r"out cannot be written: .*No space left"):
        export_draft(draft, root / "deep", tmp_path / "out")
    assert sorted(tmp_path.iterdir()) == before


def test_the_export_command_writes_and_refuses_in_one_line(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
