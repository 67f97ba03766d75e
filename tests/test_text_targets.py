"""Language models as targets: answers are transformers' own, whatever drafts, and pictures are refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from support import checkpoints
from support.amount import sample
from support.chats import check_last
from support.family_configs import Layout
from support.family_proofs import ALONE, FAST, said
from support.text_models import TEXTS, TextName, write_text_model
from test_bad_input import complaint
from transformers import AutoModelForCausalLM, AutoTokenizer

from specllava.chat import Chat
from specllava.cli.main import main
from specllava.config import RULE_CHOICES
from specllava.distill.new_draft import init_draft
from specllava.models.drafts.draft_vlm import save
from specllava.models.drafts.eagle import fresh_feature_draft
from specllava.models.options import DraftFormat
from specllava.models.presets import presets
from specllava.pair import Pair

DRAFTS = {  # rows of embeddings differ from the target's, as those of Qwen2.5's small and large models do
    "near": Layout(padding=8),
    "small": Layout(layers=1, hidden=32, heads=2, kv_heads=1, padding=40, tied=True),
}
CHATS: tuple[list[dict[str, str]], ...] = (
    [{"role": "user", "content": "What is there?"}],
    [{"role": "user", "content": "Describe the red bus in detail."}],
    [
        {"role": "user", "content": "Where is it?"},
        {"role": "assistant", "content": "On the table."},
        {"role": "user", "content": "How many cats are there?"},
    ],
)
Made = Callable[[str], Path]


@pytest.fixture(scope="module", params=TEXTS)
def family(request: pytest.FixtureRequest) -> TextName:
    return request.param


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A checkpoint by family and draft, made when it is first asked for."""
    root = tmp_path_factory.mktemp("texts")

    @cache
    def write(name: str) -> Path:
        family, _, kind = name.partition(" ")
        if not kind:
            return write_text_model(root / name, family)
        near = write(family) if kind == "near" else None
        return write_text_model(root / name, family, 1 + tuple(DRAFTS).index(kind), DRAFTS[kind], near)

    return write


@pytest.fixture(scope="module")
def pairs(made: Made) -> Callable[[str, str | None], Pair]:
    @cache
    def alone(name: str) -> Pair:
        return Pair.load(made(name), device="cpu", dtype="float64")

    @cache
    def pair(name: str, draft: str | None = None) -> Pair:
        return alone(name) if draft is None else alone(name).with_draft(made(f"{name} {draft}"))

    return pair


@cache
def reference(directory: Path) -> tuple[Any, Any]:
    """Model and tokenizer as transformers loads them, without the code under test."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float64).eval()
    return model, AutoTokenizer.from_pretrained(directory)


@torch.inference_mode()
def wanted(directory: Path, chat: list[dict[str, str]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Prompt and answer of transformers' own ``generate``."""
    model, tokenizer = reference(directory)
    inputs = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
    )
    whole = model.generate(
        input_ids=inputs["input_ids"], attention_mask=torch.ones_like(inputs["input_ids"]), do_sample=False,
        max_new_tokens=ALONE.max_new_tokens,
    )  # fmt: skip
    length = inputs["input_ids"].shape[1]
    return tuple(whole[0, :length].tolist()), tuple(whole[0, length:].tolist())


def test_answers_are_transformers_own_whatever_guesses(
    pairs: Callable[..., Pair], made: Made, family: TextName
) -> None:
    """Target-only, lookup, and drafts near and far, with every rule."""
    saved = 0
    rules = sample([*RULE_CHOICES], 2)
    for number, chat in enumerate(CHATS):
        pair = pairs(family, "near" if number % 2 == 0 else "small")
        ids, answer = wanted(made(family), chat)
        prompt = pair.prompt(None, chat)
        assert tuple(prompt.input_ids[0].tolist()) == ids
        plain, passes = said(pair, prompt, ALONE)
        assert plain == answer
        assert said(pair, prompt, replace(FAST, drafter="prompt-lookup"))[0] == answer
        for rule in rules:
            fast, fewer = said(pair, prompt, replace(FAST, rule=rule))
            assert fast == answer
            saved += passes - fewer
        heat = {"temperature": 0.8, "top_p": 0.9, "seed": number}
        assert said(pair, prompt, replace(FAST, **heat))[0] == said(pair, prompt, replace(ALONE, **heat))[0]
    assert saved > 0


@pytest.mark.parametrize("kind", sample(["eagle3", "eagle"], 1))
def test_drafts_that_read_states_change_no_token(
    pairs: Callable[..., Pair], made: Made, family: TextName, kind: DraftFormat, tmp_path: Path
) -> None:
    pair = pairs(family)
    save(fresh_feature_draft(pair.target, kind), None, tmp_path / kind)
    drafted = pair.with_draft(tmp_path / kind)
    for chat in CHATS:
        assert said(drafted, drafted.prompt(None, chat), FAST)[0] == wanted(made(family), chat)[1]


def test_a_chat_answers_as_a_fresh_prompt(pairs: Callable[..., Pair], family: TextName) -> None:
    pair = pairs(family, "near")
    chat = Chat(pair)
    for question in ("What?", "Where is it?", "Why?"):
        trace = chat.ask(question, None, FAST)
        check_last(chat)
    assert trace.prefill.reused_tokens > 0


def test_a_checkpoint_without_a_template_is_asked_in_vicunas_words(made: Made, tmp_path: Path) -> None:
    """As FastChat writes them: the system's sentence, USER and ASSISTANT, an end token after each answer."""
    bare = Path(shutil.copytree(made("phi3"), tmp_path / "bare"))
    (bare / "chat_template.jinja").unlink()
    pair = Pair.load(bare, device="cpu", dtype="float64")
    system = "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful,"
    asked = (
        f"{system} detailed, and polite answers to the user's questions."
        " USER: Where is it? ASSISTANT: On the table.</s> USER: How many cats are there? ASSISTANT:"
    )
    ids = AutoTokenizer.from_pretrained(bare)(asked)["input_ids"]
    prompt = pair.prompt(None, CHATS[2])
    assert prompt.input_ids[0].tolist() == ids and ids[0] == pair.processor.tokenizer.bos_token_id
    assert said(pair, prompt, replace(FAST, drafter="prompt-lookup"))[0] == said(pair, prompt, ALONE)[0]


def test_a_preset_names_a_revision_of_the_hub_and_is_read_from_its_cache(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vicuna's safetensors are in a revision; other branches of its repository have none."""
    preset = presets()["vicuna-7b-v1.3-eagle"]
    name, _, revision = str(preset.target).partition("@")
    target = Pair.load(made("phi3"), device="cpu").target
    save(fresh_feature_draft(target, "eagle"), None, tmp_path / "eagle")
    for repository, branch, source in ((name, revision, made("phi3")), (str(preset.draft), "main", tmp_path / "eagle")):
        place = tmp_path / "cache" / f"models--{repository.replace('/', '--')}"
        shutil.copytree(source, place / "snapshots" / "abc123")
        (place / "refs" / branch).parent.mkdir(parents=True)
        (place / "refs" / branch).write_text("abc123")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    pair = Pair.load(preset.target, preset.draft, device="cpu", dtype="float64")
    assert pair.name == pair.target_name == "vicuna-7b-v1.3" and pair.draft_vision == "states"
    prompt = pair.prompt(None, CHATS[1])
    assert said(pair, prompt, FAST)[0] == said(pair, prompt, ALONE)[0] == wanted(made("phi3"), CHATS[1])[1]


def test_pictures_are_refused_and_no_picture_is_asked_for(
    pairs: Callable[..., Pair], made: Made, tmp_path: Path, capsys: Any
) -> None:
    line = complaint(lambda: pairs("llama").prompt(checkpoints.picture(1), "What?"))
    assert line == "llama is a language model, which reads no pictures: ask without one"
    checkpoints.picture(1).save(tmp_path / "a.png")
    models_named = ["--target", str(made("qwen2")), "--draft", str(made("qwen2 near"))]
    asked = ["--prompt", "What is there?", "--max-new-tokens", "8", "--depth", "3", *models_named]
    out, race = tmp_path / "out.json", tmp_path / "race.json"
    assert main(["compare", *asked, "--json", str(out), "--trace", str(race)]) == 0
    assert json.loads(out.read_text())["identical"] is True
    assert json.loads(race.read_text())["speculative"]["image"] is None
    assert main(["generate", *asked]) == 0
    capsys.readouterr()
    assert main(["generate", *asked, "--image", str(tmp_path / "a.png")]) == 1
    assert capsys.readouterr().err.splitlines()[-1].endswith("reads no pictures: ask without one")


def test_a_model_that_sees_is_asked_without_a_picture(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command = ["compare", "--prompt", "What is a triangle?", "--max-new-tokens", "12", "--json", str(out)]
    assert main([*command, "--dtype", "float64"]) == 0
    assert json.loads(out.read_text())["identical"] is True


def test_what_does_not_fit_is_refused_in_one_line(made: Made, tmp_path: Path) -> None:
    line = complaint(lambda: Pair.load(made("llama"), made("qwen2"), device="cpu"))
    assert line.startswith("the tokenizers of qwen2 and the target differ in ")
    see = checkpoints.write_llava(tmp_path / "llava")
    line = complaint(lambda: Pair.load(made("llama"), see, device="cpu"))
    assert line == "llava is a llava, the target a llama: a draft that reads pictures by itself must be a llama"
    line = complaint(lambda: init_draft(made("llama small"), made("llama"), tmp_path / "out"))
    assert line == "llama is a language model: name llama small with --draft, it drafts as it is"
    capped = tmp_path / "capped"
    write_text_model(capped, "gemma3_text")
    fields = json.loads((capped / "config.json").read_text())
    (capped / "config.json").write_text(json.dumps(fields | {"final_logit_softcapping": 30.0}))
    assert complaint(lambda: Pair.load(capped, device="cpu")).startswith("capped has final_logit_softcapping 30.0: its")
    long = tmp_path / "long"
    write_text_model(long, "phi3")
    rope = {"rope_type": "longrope", "short_factor": [1.0] * 6, "long_factor": [2.0] * 6}
    fields = json.loads((long / "config.json").read_text())
    fields |= {"rope_scaling": rope, "original_max_position_embeddings": 64}
    (long / "config.json").write_text(json.dumps(fields))
    assert "longrope" in complaint(lambda: Pair.load(long, device="cpu"))
