"""Drafts of the pair smol on a tiny language model: what they learn on, and what the recipe makes of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from support import smol
from transformers import LlavaForConditionalGeneration, LlavaProcessor

from recipes.smol.answers import TOKENS, read_answers, target_answers, whole_sentences
from recipes.smol.checkpoint import assemble
from recipes.smol.drafts import DraftRecipe, distil_draft
from recipes.toy.draw import draw_scene
from recipes.toy.scene import sample_scene
from specllava.config import DecodingConfig
from specllava.models.presets import ASSETS
from specllava.pair import Pair

pytestmark = pytest.mark.night  # a recipe's: it trains

PICTURE = ASSETS / "examples" / "1-describe.png"
SHORT = DecodingConfig(max_new_tokens=8)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, words = tmp_path_factory.mktemp("smol"), smol.tokenizer()
    language = smol.language_model(len(words))
    sight = smol.write_sight(folder / "sight", language, words, adapted=True)
    assemble(language, words, sight, folder / "target")
    return folder / "target"


@pytest.fixture(scope="module")
def recipe() -> DraftRecipe:
    """The recipe itself, as short as can be."""
    whole = DraftRecipe(scenes=6, validation=SHORT)
    short = replace(whole.training, steps=2, batch=2, draft_heads=2, precision="no", validation_prompts=2)
    return replace(whole, training=short)


@pytest.fixture(scope="module")
def run(target: Path, recipe: DraftRecipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run that was ended."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "target").symlink_to(target)
    distil_draft(folder, recipe, print)
    return folder


def inputs(target: Path, text: str, picture: Image.Image) -> dict[str, torch.Tensor]:
    """Encode a question by transformers' own processor."""
    processor = LlavaProcessor.from_pretrained(target)
    chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": text}]}]
    written = processor.apply_chat_template(chat, add_generation_prompt=True)
    made = processor(text=written, images=picture, return_tensors="pt", add_special_tokens=False)
    return {**made, "pixel_values": made.pixel_values.double()}


def test_greedy_answers_in_a_batch_are_those_that_generate_gives_to_each_question_alone(target: Path) -> None:
    model = LlavaForConditionalGeneration.from_pretrained(target, dtype=torch.float64).eval()
    processor = LlavaProcessor.from_pretrained(target)
    kept, _ = target_answers(model, processor, range(5), seed=0)
    assert len(kept) >= 5 and len({one.question for one in kept}) > 3
    for one in kept:
        asked = inputs(target, one.question, draw_scene(sample_scene(one.scene), 128))
        ids = model.generate(**asked, do_sample=False, max_new_tokens=TOKENS)[0, asked["input_ids"].shape[1] :]
        assert one.answer == whole_sentences(processor.tokenizer.decode(ids, skip_special_tokens=True))
    others, _ = target_answers(model, processor, range(5), seed=1)  # every second batch is sampled
    assert {one.answer for one in others} != {one.answer for one in kept}


def test_the_recipe_makes_a_draft_of_the_targets_answers_that_changes_no_answer(
    run: Path, target: Path, recipe: DraftRecipe
) -> None:
    answered = {(one.scene, one.question): one.answer for one in read_answers(run / "target-answers.jsonl")}
    data = json.loads((run / "chats" / "data.json").read_text())
    turns = [turn["value"] for row in data for turn in row["conversations"]]
    assert answered and all(answer in turns for answer in answered.values())
    for directory in ("draft", "eagle3/last"):
        pair = Pair.load(target, run / directory, device="cpu", dtype="float64")
        asked = inputs(target, "What is this?", Image.open(PICTURE))
        own = pair.target.generate(**asked, do_sample=False, max_new_tokens=12)
        trace = pair.compare(PICTURE, "What is this?", DecodingConfig(max_new_tokens=12))
        given = trace["speculative"].token_ids
        assert given == tuple(own[0, -len(given) :].tolist()) and trace["speculative"].steps, directory
    written = (run / "eagle3" / "report.json").stat().st_mtime_ns
    distil_draft(run, recipe, print)
    assert (run / "eagle3" / "report.json").stat().st_mtime_ns == written
