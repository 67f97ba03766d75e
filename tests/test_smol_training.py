"""Training of the pair smol's target on a tiny language model: rows, adapters, stages, and what is made of them."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support import smol
from transformers import LlavaForConditionalGeneration, LlavaProcessor

from recipes.smol.answers import SCENES, Answer, objection, read_answers, whole_sentences, write_answers
from recipes.smol.checkpoint import assemble
from recipes.smol.losses import talking_losses
from recipes.smol.plain import PlainText, measured_texts
from recipes.smol.rows import SmolBatches
from recipes.smol.sight import Adapter, Sight
from recipes.smol.train import SmolRecipe, export_sight, stages, train_target, untrained
from recipes.toy.packing import packed_mask
from recipes.toy.scene import sample_scene
from specllava.distill.config import LoopConfig, Objective
from specllava.models.family import tower_features
from specllava.pair import Pair
from specllava.prompt import merge_features

pytestmark = pytest.mark.night  # a recipe's: it trains

ANSWERS = (
    Answer(3, "story", "Tell me a story.", "Write about an umbrella.", "An umbrella slept.\nIt rained."),
    Answer(5, "mood", "How does it feel?", "Say the mood.", "It is calm."),
)


@pytest.fixture(scope="module")
def model() -> tuple[LlavaForConditionalGeneration, LlavaProcessor]:
    words = smol.tokenizer()
    made, processor = untrained(smol.language_model(len(words)), words)
    return made.double(), processor


def test_each_conversation_of_a_row_is_what_the_chat_template_writes(
    model: tuple[LlavaForConditionalGeneration, LlavaProcessor],
) -> None:
    processor = model[1]
    batch = SmolBatches(processor, 2, ANSWERS)(0)
    for row in range(2):
        ids, segments = batch["input_ids"][row], batch["segments"][row]
        for segment in range(1, int(segments.max()) + 1):
            text = processor.tokenizer.decode(ids[(segments == 0) | (segments == segment)])
            turns = [turn.split("<|im_end|>\n<|im_start|>assistant\n") for turn in text.split("<|im_start|>user\n")[1:]]
            chat = []
            for number, (question, answer) in enumerate(turns):
                picture = [{"type": "image"}] if number == 0 else []
                asked = question.replace("<image>", "").removeprefix("\n") if number == 0 else question
                chat.append({"role": "user", "content": [*picture, {"type": "text", "text": asked}]})
                chat.append({"role": "assistant", "content": answer.rstrip("\n").removesuffix("<|im_end|>")})
            written = processor.apply_chat_template(chat, tokenize=False).replace("<image>", "<image>" * 64)
            assert text == written.removesuffix("\n")
            assert processor.tokenizer.encode(text, add_special_tokens=False) == ids[
                (segments == 0) | (segments == segment)
            ].tolist()


def test_a_conversation_in_a_row_is_computed_as_transformers_computes_it_alone(
    model: tuple[LlavaForConditionalGeneration, LlavaProcessor],
) -> None:
    llava, processor = model
    batch = SmolBatches(processor, 2, ANSWERS)(0)
    pixels = batch["pixel_values"].double()
    with torch.no_grad():
        embeds = merge_features(llava, batch["input_ids"], tower_features(llava, pixels))
        states = llava.get_decoder()(
            inputs_embeds=embeds, attention_mask=packed_mask(batch["segments"]), position_ids=batch["position_ids"]
        )[0]
        for row in range(2):
            for segment in range(1, int(batch["segments"][row].max()) + 1):
                own = (batch["segments"][row] == 0) | (batch["segments"][row] == segment)
                alone = llava(input_ids=batch["input_ids"][row][own][None], pixel_values=pixels[row][None]).logits[0]
                torch.testing.assert_close(llava.lm_head(states[row][own]), alone, rtol=0, atol=1e-9)


def test_labels_are_the_answers_and_the_texts_have_the_same(
    model: tuple[LlavaForConditionalGeneration, LlavaProcessor],
) -> None:
    processor = model[1]
    batch = SmolBatches(processor, 2, ANSWERS)(0)
    for name in ("own", "text_labels"):
        said = [processor.tokenizer.decode(row[row >= 0]) for row in batch[name]]
        assert sorted(said) == sorted(f"{one.answer}<|im_end|>" for one in ANSWERS)
    taught = "".join(processor.tokenizer.decode(row[row >= 0]) for row in batch["labels"])
    assert all(one.question not in taught and one.answer in taught for one in ANSWERS)


def test_adapters_change_nothing_at_first_nor_when_they_are_off() -> None:
    words = smol.tokenizer()
    model, _ = untrained(smol.language_model(len(words)), words)
    model.double()
    ids = torch.randint(20, 200, (1, 9))
    before = model(input_ids=ids).logits
    sight = Sight(model, 3).double()
    assert torch.equal(model(input_ids=ids).logits, before)
    _randomise(sight)
    assert not torch.equal(model(input_ids=ids).logits, before)
    with sight.without_adapters():
        assert torch.equal(model(input_ids=ids).logits, before)


def test_what_is_exported_assembles_to_the_weights_that_the_adapters_amount_to(tmp_path: Path) -> None:
    words = smol.tokenizer()
    language = smol.language_model(len(words)).bfloat16().float()
    model, _ = untrained(language, words)
    sight = Sight(model, 3)
    _randomise(sight)
    with torch.no_grad():
        for one in sight.parameters():
            one.copy_(one.bfloat16())  # as it is exported
    export_sight(sight, model, tmp_path / "sight")
    assemble(language, words, tmp_path / "sight", tmp_path / "target")
    made = LlavaForConditionalGeneration.from_pretrained(tmp_path / "target", dtype=torch.bfloat16)
    ids, merged = torch.randint(20, 200, (1, 9)), 0
    sight.double()
    adapted = model.double()(input_ids=ids).logits
    with torch.no_grad(), sight.without_adapters():
        for name, adapter in sight.adapters.items():
            assert isinstance(adapter, Adapter)
            path = "model.language_model." + name.replace("/", ".")
            weight = model.get_submodule(path).weight
            weight += adapter.outer @ adapter.inner
            merged += torch.equal(made.get_submodule(path).weight, weight.float().bfloat16())
        torch.testing.assert_close(model(input_ids=ids).logits, adapted, rtol=0, atol=1e-9)
    assert merged == len(sight.adapters) == 14


def test_another_seed_begins_with_other_weights_and_reads_other_rows(
    model: tuple[LlavaForConditionalGeneration, LlavaProcessor],
) -> None:
    words, (llava, processor) = smol.tokenizer(), model
    made = [untrained(smol.language_model(len(words)), words, seed)[0] for seed in (0, 0, 1)]
    same, again, other = (one.model.multi_modal_projector.linear_1.weight for one in made)
    assert torch.equal(same, again) and not torch.equal(same, other)
    answers = [replace(ANSWERS[0], scene=number) for number in range(40)]
    read = [stages(llava, processor, answers, replace(SmolRecipe(), seed=seed))[2].batches(0) for seed in (0, 0, 1)]
    first, repeated, second = (one["pixel_values"] for one in read)
    assert torch.equal(first, repeated) and not torch.equal(first, second)
    assert not torch.equal(read[0]["plain"], read[2]["plain"])


def test_drift_is_the_kl_that_the_adapters_add_on_plain_english() -> None:
    words = smol.tokenizer()
    model, processor = untrained(smol.language_model(len(words)), words)
    model.double()
    sight, batch = Sight(model, 3).double(), SmolBatches(processor, 2, ANSWERS)(0)
    batch["pixel_values"] = batch["pixel_values"].double()
    assert talking_losses(sight, batch, model, Objective())["drift"].item() == 0
    _randomise(sight)
    drift = talking_losses(sight, batch, model, Objective(temperature=2.0))["drift"]
    with torch.no_grad():
        now = model(input_ids=batch["plain"]).logits
        with sight.without_adapters():
            before = model(input_ids=batch["plain"]).logits
        both = [(one / 2).log_softmax(-1).flatten(0, 1) for one in (now, before)]
    expected = 4 * torch.nn.functional.kl_div(*both, reduction="batchmean", log_target=True)
    assert drift.item() == pytest.approx(float(expected), rel=1e-5) and drift > 0


def test_no_text_that_perplexity_is_measured_on_is_trained_on() -> None:
    words = smol.tokenizer()
    plain = PlainText(words)
    trained, texts = words.decode(plain.tokens), measured_texts()
    parts = [text[start : start + 100] for text in texts for start in range(0, len(text) - 100, 100)]
    shared = sum(part in trained for part in parts)
    assert shared == 0, f"{shared} of {len(parts)} passages"
    assert len(texts) >= 25
    assert torch.equal(plain(7), PlainText(words)(7)) and not torch.equal(plain(7), plain(8))


def _randomise(sight: Sight) -> None:
    torch.manual_seed(5)
    for adapter in sight.adapters.values():
        assert isinstance(adapter, Adapter)
        torch.nn.init.normal_(adapter.outer, std=0.02)


@pytest.mark.usefixtures("own_precision")
def test_the_recipe_runs_to_a_checkpoint_that_answers_and_does_nothing_twice(tmp_path: Path) -> None:
    smol.write_language_model(tmp_path / "language")
    (tmp_path / "answers.jsonl").write_text(
        "".join(json.dumps(answer) + "\n" for answer in (*map(_fields, ANSWERS), {"batch": 0, "dropped": {}}))
    )
    loop = LoopConfig(3, 1e-2, warmup=1, checkpoint_every=2)
    recipe = replace(SmolRecipe(), scenes=1, naming_batch=2, batch=2, rank=2, naming=loop, looking=loop, talking=loop)
    train_target(tmp_path, recipe, print)
    assert read_answers(tmp_path / "answers.jsonl") == list(ANSWERS)
    curves = {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in ("naming", "looking", "talking")}
    assert curves["naming"][-1]["loss"] < curves["naming"][0]["loss"]
    assert {"facts", "own", "kl", "drift"} <= curves["talking"][0].keys()
    pair = Pair.load(tmp_path / "target", device="cpu")
    assert pair.prompt(None, "Hello").input_ids.numel()
    written = (tmp_path / "talking.safetensors").stat().st_mtime_ns
    train_target(tmp_path, recipe, print)
    assert (tmp_path / "talking.safetensors").stat().st_mtime_ns == written
    with pytest.raises(ValueError, match=r"another recipe \(seed 0 there, 1 here\): choose another --output"):
        train_target(tmp_path, replace(recipe, seed=1), print)


def _fields(answer: Answer) -> dict[str, object]:
    return {name: getattr(answer, name) for name in Answer.__slots__}


def test_answers_that_a_kill_cut_short_are_made_again(tmp_path: Path) -> None:
    """At every byte; an answer may hold what other systems take for the end of a line."""

    def answer(numbers: range, batch: int) -> tuple[list[Answer], Counter[str]]:
        made.append(batch)
        return [replace(ANSWERS[0], scene=number, answer=f"Ä{chr(0x2028)}{number}\n") for number in numbers], Counter()

    made: list[int] = []
    whole, cut = tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    write_answers(answer, 2 * SCENES + 1, whole)
    content = whole.read_bytes()
    assert made == [0, 1, 2] and [one.scene for one in read_answers(whole)] == list(range(2 * SCENES + 1))
    for length in range(len(content) - 400, len(content) + 1):
        cut.write_bytes(content[:length])
        made.clear()
        write_answers(answer, 2 * SCENES + 1, cut)
        assert cut.read_bytes() == content
        ended = sum(line.startswith(b'{"batch"') for line in content[:length].split(b"\n")[:-1])
        assert made == list(range(ended, 3))


def test_answers_end_with_a_whole_sentence_and_bad_ones_are_dropped_with_the_reason() -> None:
    assert whole_sentences("A cat sits. It is re") == "A cat sits."
    assert whole_sentences("Red rose\nBlue se") == "Red rose"
    scene = sample_scene(3)  # a small purple umbrella in the desert
    cases = {
        "A small purple umbrella stands in the sand.": None,
        "A red umbrella stands in the sand.": "object",
        "Purple.": "short",
        "It is quiet in the sand.": "no object",
        "The purple umbrella is old and the purple umbrella is old and wet.": "repeated",
    }
    found = {text: (objection(scene, "describe", text) or "").partition(":")[0] or None for text in cases}
    assert found == cases
