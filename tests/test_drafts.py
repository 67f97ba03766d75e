"""Drafts made of a language model or of somebody's LLaVA: what is written, and what is refused, by name and number."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from support import checkpoints
from support.checkpoints import PADDED, WORDS, published_name
from test_bad_input import complaint
from torch import Tensor

from specllava.cli.main import main
from specllava.distill.new_draft import init_draft, same
from specllava.models.tokens import resize_vocabulary
from specllava.pair import Pair


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("drafts")
    target = checkpoints.write_llava(root / "target")
    checkpoints.write_llava(root / "next", "llava_next", seed=2)
    checkpoints.write_llama(root / "llama")
    checkpoints.write_llama(root / "foreign", also="zebras jump quickly over xylophones " * 9)
    tower = checkpoints.tower_of(target)
    checkpoints.write_llava(root / "same", seed=3, layers=1, hidden=32, parts=tower)
    whole = checkpoints.weights_of(root / "same")
    rounded = checkpoints.write_llava(
        root / "rounded", layers=1, hidden=32, parts={name: one.bfloat16() for name, one in whole.items()}
    )
    checkpoints.write(rounded / "config.json", config_of(rounded) | {"torch_dtype": "bfloat16"})
    checkpoints.write_llava(root / "other", seed=4, layers=1, hidden=32)
    checkpoints.write_llava(root / "wide", seed=5, vision=48)
    init_draft(root / "llama", target, root / "draft")
    return root


def weights_of(directory: Path) -> dict[str, Tensor]:
    """By published names; a draft without a tower is written with those of today's transformers."""
    return {published_name(name): weight for name, weight in checkpoints.weights_of(directory).items()}


def config_of(directory: Path) -> dict:
    return json.loads((directory / "config.json").read_text())


# ----------------------------------------------------------------------------------------------- init


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
    assert (config["text_config"]["bos_token_id"], config["image_token_index"]) == (1, checkpoints.IMAGE_ID)


def test_a_seed_makes_the_same_projector_again_and_another_seed_another(root: Path, tmp_path: Path):
    made = {}
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        torch.manual_seed(len(name))
        init_draft(root / "llama", root / "target", tmp_path / name, seed=seed)
        made[name] = weights_of(tmp_path / name)["multi_modal_projector.linear_1.weight"]
    assert torch.equal(made["a"], made["b"]) and not torch.equal(made["a"], made["c"])
    assert made["a"].std() > 0


def test_a_text_only_draft_is_a_plain_llama_with_the_targets_tokenizer(root: Path, tmp_path: Path):
    made = init_draft(root / "llama", root / "target", tmp_path / "blind", text_only=True)
    assert config_of(made.directory)["architectures"] == ["LlamaForCausalLM"]
    assert not [name for name in weights_of(made.directory) if "projector" in name]
    assert Pair.load(root / "target", made.directory, name="x", device="cpu").draft_vision == "none"


def test_init_for_a_llava_next_has_a_newline_of_its_own(root: Path, tmp_path: Path):
    init_draft(root / "llama", root / "next", tmp_path / "draft")
    assert config_of(tmp_path / "draft")["architectures"] == ["DraftLlavaNext"]
    assert weights_of(tmp_path / "draft")["image_newline"].shape == (32,)


# ------------------------------------------------------------------------------------------ of a LLaVA


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
    from test_checkpoints import ALONE, FAST

    from specllava.pair import Pair

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
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(root / "llama")
    whole = model.get_input_embeddings().weight.clone()
    resize_vocabulary(model, "llama", tokens=300, size=320)
    assert torch.equal(model.get_input_embeddings().weight, whole[:320])
    assert (model.config.vocab_size, model.get_output_embeddings().weight.shape[0]) == (320, 320)
    line = complaint(lambda: resize_vocabulary(model, "llama", tokens=321, size=320))
    assert line == "llama uses 321 tokens, more than the target's 320 rows: no draft can be made of it"


# ----------------------------------------------------------------------------------------------- refused


def test_a_plain_llama_as_it_is_published_is_refused_as_a_draft_with_the_way_out(root: Path):
    line = complaint(lambda: Pair.load(root / "target", root / "llama", name="x", device="cpu"))
    assert line == f'draft vocabulary {WORDS} does not cover the target\'s {PADDED}: run "specllava draft init"'


def test_a_model_with_other_tokens_is_refused_by_number(root: Path, tmp_path: Path):
    line = complaint(lambda: init_draft(root / "foreign", root / "target", tmp_path / "draft"))
    ours, theirs = (
        json.loads(checkpoints.spelling(also))["model"]["vocab"]
        for also in ("", "zebras jump quickly over xylophones " * 9)
    )
    differ = len({n for _, n in set(ours.items()) ^ set(theirs.items())})
    assert line.startswith(f"the tokenizers of foreign and target differ in {differ} of {WORDS} shared ids, first in ")
    assert not (tmp_path / "draft").exists()


def test_a_draft_of_another_family_is_refused(root: Path):
    line = complaint(lambda: Pair.load(root / "next", root / "draft", name="x", device="cpu"))
    assert line == 'the draft reads features of a llava, the target is a llava_next: run "specllava draft init"'


def test_a_draft_for_another_tower_is_refused(root: Path):
    line = complaint(lambda: Pair.load(root / "wide", root / "draft", name="x", device="cpu"))
    assert (
        line == 'the draft reads vision features of size 32, the target\'s tower gives 48: run "specllava draft init"'
    )


def test_a_draft_with_another_image_token_is_refused(root: Path, tmp_path: Path):
    other = Path(shutil.copytree(root / "draft", tmp_path / "other"))
    config = config_of(other)
    config["image_token_index"] = 5
    checkpoints.write(other / "config.json", config)
    line = complaint(lambda: Pair.load(root / "target", other, name="x", device="cpu"))
    assert line == f"the draft's image token is 5, the target's {checkpoints.IMAGE_ID}: run \"specllava draft init\""


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
