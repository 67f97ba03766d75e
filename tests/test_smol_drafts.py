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
from recipes.smol.draft_vlm import (
    DraftVlmRecipe,
    fresh_draft,
    principal_directions,
    read_target,
    small_language_model,
)
from recipes.smol.drafts import DraftsRecipe, distil_drafts
from recipes.smol.losses import fact_losses
from recipes.smol.rows import SmolBatches
from recipes.toy.draw import draw_scene
from recipes.toy.scene import sample_scene
from specllava.config import DecodingConfig
from specllava.distill.config import LoopConfig, Objective
from specllava.models.drafts.draft_vlm import DraftLlava
from specllava.models.presets import ASSETS
from specllava.pair import Pair

pytestmark = pytest.mark.night  # a recipe's: it trains

PICTURE = ASSETS / "examples" / "1-describe.png"
SHORT = DecodingConfig(max_new_tokens=8)
LOOP = LoopConfig(1, 1e-3, 1)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, words = tmp_path_factory.mktemp("smol"), smol.tokenizer()
    language = smol.language_model(len(words))
    sight = smol.write_sight(folder / "sight", language, words, adapted=True)
    assemble(language, words, sight, folder / "target")
    return folder / "target"


@pytest.fixture(scope="module")
def recipe() -> DraftsRecipe:
    """The recipe itself, as short as can be."""
    whole = DraftsRecipe(scenes=6, fresh=DraftVlmRecipe(32, 1, LOOP, LOOP, 1), validation=SHORT)
    return replace(whole, trainings={
        name: replace(one, steps=2, batch=2, draft_heads=min(2, one.draft_heads), precision="no", validation_prompts=2)
        for name, one in whole.trainings.items()
    })  # fmt: skip


@pytest.fixture(scope="module")
def run(target: Path, recipe: DraftsRecipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run that was ended."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "target").symlink_to(target)
    distil_drafts(folder, recipe, print)
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


def test_the_recipe_makes_every_draft_of_the_targets_answers_and_each_changes_no_answer(
    run: Path, target: Path, recipe: DraftsRecipe
) -> None:
    answered = {(one.scene, one.question): one.answer for one in read_answers(run / "target-answers.jsonl")}
    data = json.loads((run / "chats" / "data.json").read_text())
    turns = [turn["value"] for row in data for turn in row["conversations"]]
    assert answered and all(answer in turns for answer in answered.values())
    for directory in ("draft", "eagle3/last", "eagle/last", "vlm/last"):
        pair = Pair.load(target, run / directory, device="cpu", dtype="float64")
        asked = inputs(target, "What is this?", Image.open(PICTURE))
        own = pair.target.generate(**asked, do_sample=False, max_new_tokens=12)
        trace = pair.compare(PICTURE, "What is this?", DecodingConfig(max_new_tokens=12))
        given = trace["speculative"].token_ids
        assert given == tuple(own[0, -len(given) :].tolist()) and trace["speculative"].steps, directory
    written = (run / "eagle" / "report.json").stat().st_mtime_ns
    distil_drafts(run, recipe, print)
    assert (run / "eagle" / "report.json").stat().st_mtime_ns == written


def test_a_small_language_models_embeddings_keep_the_targets_in_their_principal_directions(target: Path) -> None:
    model = LlavaForConditionalGeneration.from_pretrained(target, dtype=torch.float32)
    left, sizes_, _ = torch.linalg.svd(model.get_input_embeddings().weight.double(), full_matrices=False)
    for hidden in (8, 32):
        made = small_language_model(model, principal_directions(model, hidden), 1)
        table = made.get_input_embeddings().weight.double()
        nearest = left[:, :hidden] * sizes_[:hidden]
        torch.testing.assert_close(table @ table.T, nearest @ nearest.T, rtol=0, atol=1e-4)
        assert made.get_output_embeddings().weight is made.get_input_embeddings().weight


@pytest.mark.usefixtures("own_precision")
def test_a_fresh_drafts_projector_learns_the_targets_image_embeddings(target: Path, tmp_path: Path) -> None:
    model = LlavaForConditionalGeneration.from_pretrained(target, dtype=torch.float32).eval()
    pixels = inputs(target, "", draw_scene(sample_scene(99), 128))["pixel_values"].float()
    errors = []
    for steps in (1, 60):
        recipe = DraftVlmRecipe(16, 1, LoopConfig(steps, 3e-3, 1), LoopConfig(1, 1e-9, 1), 1)
        directory = fresh_draft(target, tmp_path / str(steps), recipe, "no")
        pair = Pair.load(target, directory, device="cpu", dtype="float32")
        with torch.no_grad():
            features = model.model.vision_tower(pixels).last_hidden_state[:, 1:]
            wanted = model.model.multi_modal_projector(features) @ principal_directions(model, 16)
            projected = pair.draft.model.multi_modal_projector(features)
        errors.append(float((projected - wanted).square().mean() / wanted.var()))
    assert errors[1] < 0.5 * errors[0] < 1


@pytest.mark.usefixtures("own_precision")
def test_a_fresh_draft_learns_to_answer_questions_of_fact(target: Path, tmp_path: Path) -> None:
    processor, model = read_target(target)
    unread, losses = SmolBatches(processor, 2)(9_000), []
    for steps in (1, 40):
        recipe = DraftVlmRecipe(16, 1, LOOP, LoopConfig(steps, 1e-2, 1), 2)
        directory = fresh_draft(target, tmp_path / str(steps), recipe, "no")
        draft = DraftLlava.from_pretrained(directory, dtype=torch.float32)
        with torch.no_grad():
            losses.append(float(fact_losses(draft, unread, model, Objective())["loss"]))
    assert losses[1] < 0.6 * losses[0]
