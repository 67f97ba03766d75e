"""Texts and labels of the toy recipe, its losses by what transformers computes, and that its stages fit together."""

import copy
import json
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations, groupby

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from accelerate.utils import set_seed
from transformers import LlavaForConditionalGeneration

from recipes.toy.__main__ import main
from recipes.toy.build import build_processor, special_ids
from recipes.toy.corpus import (
    PackedBatches,
    content_ids,
    conversation,
    converse,
    description,
    encode_chat,
    list_objects,
    messages,
    packed_mask,
)
from recipes.toy.datasets import EXPORT_START, START
from recipes.toy.dialogue import ask, discuss, draw_demanding, look_ups
from recipes.toy.draw import draw_scene, shown_at
from recipes.toy.evaluate import EVALUATION_START
from recipes.toy.hints import Hints, answers_in, first_tokens, naming_loss
from recipes.toy.language import QuestionAnswer
from recipes.toy.packed_losses import draft_losses, finding_loss, packed_states, quoting_losses, target_losses
from recipes.toy.questions import look_up
from recipes.toy.recipe import ToyRecipe
from recipes.toy.record import LESSONS_START
from recipes.toy.scene import CELLS, COLOURS, HELD_OUT, KINDS, SIZES, Scene, Thing, sample_any_scene, sample_scene
from recipes.toy.train import ASKING_START, TALKING_START, deepen
from recipes.toy.vision import ABSENT, OBJECT_CLASSES, SCENE_CLASSES, patch_labels
from recipes.toy.wordings import worded
from specllava.distill.losses import IGNORE
from specllava.models.drafts.draft_vlm import DraftLlava
from specllava.models.family import tower_features
from specllava.pair import Pair
from specllava.prompt import merge_features


@pytest.fixture(scope="module")
def processor():
    return build_processor(ToyRecipe.tiny())


@pytest.mark.parametrize("index", range(0, 60, 9))
def test_training_text_is_what_the_chat_template_gives(processor, index):
    scene, turns = conversation(index)
    text = processor.apply_chat_template(messages(turns))
    inputs = processor(images=draw_scene(scene, 32), text=text, return_tensors="pt")
    ids, labels = encode_chat(processor.tokenizer, turns, ToyRecipe.tiny().image_tokens)
    assert inputs["input_ids"][0].tolist() == ids
    learnt = [token for token, label in zip(ids, labels, strict=True) if label != IGNORE]
    answers = processor.tokenizer.decode(learnt)
    assert answers == "".join(f" {turn.answer}</s>" for turn in turns)


def test_no_training_scene_holds_a_held_out_combination():
    assert not any(thing.combination in HELD_OUT for n in range(3000) for thing in sample_scene(n).things)
    assert all(sum(t.combination in HELD_OUT for t in sample_scene(n, "held-out").things) == 1 for n in range(3000))


def test_patch_labels_name_every_object_where_it_is_drawn(processor):
    hints = Hints(processor.tokenizer, 64)
    cells = {digit: cell for cell, digit in hints.digits.items()}
    for seed in range(100):
        scene = sample_any_scene(seed)
        labels, spots, told = patch_labels(scene, 64), shown_at(scene, 8), sample_scene(seed)
        for thing, names in zip(shown_at(told, 8), hints.name_patches(told).tolist(), strict=True):
            if thing is None:
                assert names[-1] == IGNORE
                assert names[0] == first_tokens(processor.tokenizer, [told.place])[told.place]
            else:
                assert cells[names[0]] == (thing.column, thing.row)
                looks = (thing.kind, thing.colour, thing.size, thing.column, thing.row)
                assert names[1:] == list(first_tokens(processor.tokenizer, looks).values())
        shown = {
            (KINDS[kind], COLOURS[colour], SIZES[size], *CELLS[cell])
            for kind, colour, size, cell in zip(*(labels[name].tolist() for name in OBJECT_CLASSES), strict=True)
            if kind != ABSENT
        }
        assert shown == {(t.kind, t.colour, t.size, t.column, t.row) for t in scene.things}
        for name in SCENE_CLASSES:
            assert torch.equal(labels[name] == ABSENT, labels["kind"] != ABSENT)
        # What a patch is said to show changes with the picture there: without the objects its pixels are others.
        bare = np.asarray(draw_scene(replace(scene, things=()), 128), dtype=int)
        changed = np.abs(np.asarray(draw_scene(scene, 128), dtype=int) - bare).max(-1) > 8
        changed = changed.reshape(8, 16, 8, 16).mean((1, 3)).flatten()  # [patches], share of pixels
        for thing in scene.things:
            assert max(share for share, spot in zip(changed, spots, strict=True) if spot == thing) > 0.3
        free = (labels["kind"] == ABSENT).numpy()
        assert changed[~free].mean() > 2 * changed[free].mean()


def test_what_is_measured_on_was_never_trained_on():
    recipe = ToyRecipe()
    looking = recipe.align.steps * recipe.align_batch
    drafts = max(recipe.draft.steps * recipe.draft_batch, recipe.distill.steps * recipe.distill_batch)
    talking = TALKING_START + recipe.target.steps * recipe.target_batch
    asking = ASKING_START + recipe.asking.steps * recipe.asking_batch
    seeing = recipe.vision.steps * recipe.vision_batch
    assert max(looking, drafts, seeing) < TALKING_START  # every stage of the target has scenes of its own
    most = 100_000  # prompts that anyone measures on
    measured = (EVALUATION_START, START, LESSONS_START, EXPORT_START)
    assert talking <= ASKING_START and asking < min(measured)
    assert all(abs(one - other) > most for one, other in combinations(measured, 2))


TALKS = (list_objects, converse, description)


@pytest.fixture(scope="module")
def looking(processor):
    """A target with random weights, tied as the recipe's is."""
    set_seed(5)
    recipe = ToyRecipe.tiny()
    config = recipe.llava_config(2, 64, special_ids(processor), tied=True)
    return LlavaForConditionalGeneration(config).to(torch.float64).eval()


@pytest.mark.parametrize("number", range(2))
def test_a_packed_row_teaches_what_its_talks_teach_alone(processor, looking, number):
    packed = PackedBatches(processor, 2, 4, TALKS)
    batch = packed(number)
    batch["pixel_values"] = batch["pixel_values"].double()
    states = packed_states(looking, batch, looking)[-1]  # [rows, length, hidden]
    size = ToyRecipe.tiny().image_size
    for row in range(2):
        index = number * 2 + row
        scene = sample_scene(index)
        pixels = processor.image_processor([draw_scene(scene, size)], return_tensors="pt")["pixel_values"].double()
        features = tower_features(looking, pixels)
        for segment, talk in enumerate(TALKS, 1):
            turns = talk(scene, random.Random(f"specllava packed {index} {segment}"))
            ids, labels = encode_chat(processor.tokenizer, turns, 4)
            embeds = merge_features(looking, torch.tensor([ids]), features)
            alone = looking.get_decoder()(inputs_embeds=embeds, use_cache=False).last_hidden_state[0]
            mine = batch["segments"][row] == segment
            assert batch["input_ids"][row][mine].tolist() == ids[-int(mine.sum()) :]
            assert batch["labels"][row][mine].tolist() == labels[-int(mine.sum()) :]
            assert torch.allclose(states[row][mine], alone[-int(mine.sum()) :], atol=1e-9)


TWO_CATS = Scene("city", "clear", "day", (
    Thing("cat", "red", "small", "left", "back"),
    Thing("dog", "red", "large", "middle", "front"),
    Thing("cat", "blue", "large", "right", "front"),
))  # fmt: skip


def test_a_name_has_the_cell_of_the_only_object_that_it_fits(processor):
    hints = Hints(processor.tokenizer, 64)

    def hinted(answer):
        _, labels = encode_chat(processor.tokenizer, (QuestionAnswer("What is where?", answer),), 64)
        cells = {digit: cell for cell, digit in hints.digits.items()}
        pairs = zip(labels[1:], hints.name_cells(TWO_CATS, labels), strict=False)
        return [(processor.tokenizer.decode([token]).strip(), *cells[cell]) for token, cell in pairs if cell != IGNORE]

    red, dog, blue = ("left", "back"), ("middle", "front"), ("right", "front")
    assert hinted("The red cat is to the left of the dog.") == [("red", *red), ("cat", *red), ("dog", *dog)]
    assert hinted("At the front on the right is a blue cat. The red dog waits.") == [
        ("blue", *blue), ("cat", *blue), ("red", *dog), ("dog", *dog),
    ]  # fmt: skip
    assert hinted("The cat is next to the red.") == []  # it fits two of them
    assert hinted("On the left at the front is a red cat.") == []  # nothing stands there
    assert hinted("A red cat and a blue cat. There is a dog.") == [
        ("red", *red), ("cat", *red), ("blue", *blue), ("cat", *blue), ("dog", *dog),
    ]  # fmt: skip


def test_a_word_of_a_question_ends_where_its_last_token_does(processor):
    hints, tokenizer = Hints(processor.tokenizer, 64), processor.tokenizer
    turns = QuestionAnswer("Houses, two yellow horses: scenery or trees?", "It is red."), QuestionAnswer("Bus?", "No.")
    ids, labels = encode_chat(tokenizer, turns, 64)
    words = hints.words_of_questions(ids, labels)
    read = [(tokenizer.decode(ids[first : last + 1]), word) for last, (first, word) in words.items()]
    first = first_tokens(tokenizer, ("house", "yellow", "horse", "tree", "bus"))
    named = zip(("\nHouses", " yellow", " horses", " trees", " Bus"), first.values(), strict=True)
    assert read == list(named)


@pytest.mark.parametrize(
    ("turns", "hinted"),
    [
        (("Is the dog in the blue cat?", "-"), "dog=3 in=no blue=no cat=5 ?=no :=no"),
        (("The cat is where?", "-"), "cat=0 is=5 w=no :=no"),  # either
        (("Is the dog blue?", "-"), "dog=3 blue=no :=no"),
        (("What is blue?", "-"), "blue=5 ?=no :=no"),
        (("Is there a horse or a green cat?", "-"), "horse=no green=no cat=no :=no"),
        (("Is it day or night?", "-"), "day=yes night=no :=no"),
        (("What is the dog?", "It is red and large."), "dog=3 ?=no ASSISTANT=no :=3 is=3 and=3 large=no"),
        (("What is on the left?", "A red cat."), "left=0 ?=no ASSISTANT=no :=0 A=0 red=0 cat=no"),
        (("Who is at the front?", "A red dog and a blue cat."),
         "front=3 ?=5 ASSISTANT=5 :=3 A=3 red=3 dog=5 a=5 blue=5 cat=no"),
        (("The cat on the right?", "It is large."), "cat=0 on=5 the=no right=5 ?=no ASSISTANT=no :=5 is=5 large=no"),
        (("The cat?", "red, small, left, back; blue, large, right, front"),
         "cat=0 ?=5 ASSISTANT=5 :=0 ,=0 ,=0 ,=0 back=5 ;=5 ,=5 ,=5 ,=5 front=no"),
        (("The dog is red, right?", "Yes, it is red."), "dog=3 is=no red=3 ,=no ASSISTANT=no :=3 is=3 red=no"),
        (("And the dog?", "The dog is red. Next to it there is a blue cat.", "Is it big?", "It is large."),
         "dog=3 ?=no ASSISTANT=5 :=3 The=3 is=3 red=5 a=5 blue=5 cat=no it=5 big=no ASSISTANT=no :=5 is=5 large=no"),
        (("What is in front of the red cat?", "The cat is at the back on the left. In front of it there is nothing."),
         "red=0 cat=0 ?=no ASSISTANT=no :=0 The=0 the=0 the=0 left=no"),
        (("What colour are cats?", "One is red and the other is blue."),
         "s=0 ?=5 ASSISTANT=5 :=0 is=0 red=5 is=5 blue=no"),
        (("Which is larger: the dog, the cat?", "The dog is larger."),
         "dog=3 ,=no cat=0 ?=5 ASSISTANT=no :=3 The=3 dog=no"),
        (("How many cats?", "A red cat and a blue cat, so two."),
         "s=0 ?=5 ASSISTANT=5 :=0 A=0 red=0 cat=5 a=5 blue=5 cat=no"),
        (("Any dog?", "Yes.", "Is it big?", "It is large."),
         "dog=3 ?=no :=yes it=3 big=no ASSISTANT=no :=3 is=3 large=no"),
        (("What is there?", "A blue cat.", "And its colour?", "It is blue."),
         "ASSISTANT=no :=5 A=5 blue=5 cat=no s=5 colour=no ASSISTANT=no :=5 is=5 blue=no"),
        (("How is the weather?", "It is clear.", "Is it big?", "It is small."), ":=no :=no"),
    ],
)  # fmt: skip
def test_a_question_names_the_cells_that_it_asks_for_and_announces_those_of_its_answer(processor, turns, hinted):
    hints, decode = Hints(processor.tokenizer, 64), processor.tokenizer.decode
    cells = dict(zip(hints.digits.values(), range(6), strict=True)) | {hints.none: "no", hints.yes: "yes"}
    talk = tuple(QuestionAnswer(*turns[at : at + 2]) for at in range(0, len(turns), 2))
    ids, labels = encode_chat(processor.tokenizer, talk, 64)
    named = zip(ids, hints.cells(TWO_CATS, ids, labels), strict=True)
    assert " ".join(f"{decode([token]).strip()}={cells[cell]}" for token, cell in named if cell != IGNORE) == hinted


def test_twins_are_announced_one_after_the_other(processor):
    """Their names fit both; "a" and "one" tell which of them an answer has come to."""
    hints = Hints(processor.tokenizer, 64)
    first, second = hints.digits["left", "back"], hints.digits["right", "front"]
    scene = replace(TWO_CATS, things=(TWO_CATS.things[0], replace(TWO_CATS.things[2], colour="red", size="small")))
    for answer in ("A red cat and a red cat, so two.", "One is red and the other is red.", "One is small, one small."):
        ids, labels = encode_chat(processor.tokenizer, (QuestionAnswer("And the cats?", answer),), 64)
        ((start, end),) = answers_in(labels)
        cells = hints.cells(scene, ids, labels)
        assert cells[start - 2 : start] == [second, first]
        named = [cell for cell in cells[start:end] if cell != IGNORE]
        assert named[-1] == hints.none and [cell for cell, _ in groupby(named[:-1])] == [first, second]


def test_the_cells_of_an_answer_are_those_of_its_objects_in_order(processor):
    hints, checked = Hints(processor.tokenizer, 64), Counter()
    cells = {digit: cell for cell, digit in hints.digits.items()}
    rows = {"front": ("front", "foreground"), "back": ("back", "background")}

    def check(scene: Scene, turn: QuestionAnswer, objects: Iterable[Thing]) -> None:
        ids, labels = encode_chat(processor.tokenizer, (turn,), 64)
        ((start, end),) = answers_in(labels)
        named = [cells[one] for one in hints.cells(scene, ids, labels)[start - 1 : end] if one in cells]
        assert [cell for cell, _ in groupby(named)] == [(thing.column, thing.row) for thing in objects], (scene, turn)

    for seed in range(300):
        scene, rng = sample_scene(seed), random.Random(seed)
        for query in (draw_demanding(scene, rng), draw_demanding(scene, rng), look_up(scene, rng)):
            kind, spot = query.slots.get("kind"), query.slots.get("spot", "").split()[-1:]
            own = [thing for thing in scene.things if thing.kind == kind]
            objects = dict.fromkeys(("colour", "size", "count", "exists", "look_up"), own) | {
                "where": query.focus,
                "side": [thing for thing in scene.things if {*spot} & {thing.column, *rows[thing.row]}],
                "which_colour": [thing for thing in scene.things if thing.colour == query.slots.get("colour")],
            }
            if query.form in objects:
                checked[query.form] += 1
                check(scene, worded(query, rng), objects[query.form])
        (turn,) = list_objects(scene, rng)
        if "left to right" in turn.question:
            check(scene, turn, scene.things)
    assert len(checked) == 8 and min(checked.values()) > 10


def test_naming_loss_is_the_mean_over_words_and_slots():
    torch.manual_seed(0)
    logits = torch.randn(3, 9)
    shown = torch.tensor([[1, 2, 3, 4, 5], [0, 8, 7, 6, IGNORE], [5, 5, 5, 5, 5]])
    each = [-F.log_softmax(logits[i], -1)[[w for w in shown[i].tolist() if w != IGNORE]].mean() for i in range(3)]
    expected = (each[0] + 0.1 * each[1] + each[2]) / 2.1
    assert naming_loss(logits, shown, 0.1).item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.fixture
def first_heads(processor, looking):
    """A target, a batch, what its layers read, and transformers' own attention of their first heads."""
    packed = PackedBatches(processor, 6, 4, (discuss, look_ups, ask))
    batch, model = packed(1), copy.deepcopy(looking)
    batch["pixel_values"] = batch["pixel_values"].double()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        embeds = packed_states(model, batch, model)[0]
        computed = model.get_decoder()(
            inputs_embeds=embeds,
            attention_mask=packed_mask(batch["segments"], embeds.dtype),
            position_ids=batch["position_ids"],
            output_attentions=True,
            output_hidden_states=True,
        )
    return model, batch, computed.hidden_states, [layer[:, 0] for layer in computed.attentions], packed.hints


def test_finding_loss_is_the_share_of_attention_that_transformers_gives_the_slots_that_are_asked_for(first_heads):
    model, batch, states, shares, hints = first_heads
    expected, words = [], set[int]()
    for row in range(6):
        slots = batch["input_ids"][row] == model.config.image_token_id
        for place, word in enumerate(batch["words"][row].tolist()):
            shown = (batch["patch_names"][row] == hints.shown.get(word, -1)).any(-1)
            if shown.any():
                assert batch["labels"][row, place] == IGNORE
                words.add(word)
                share = shares[0][row, place][slots]
                expected.append(-(share[shown].sum() / share.sum()).log().item())
    found = finding_loss(model, states[0], batch, hints.shown)
    positions = {*hints.columns, *hints.rows}
    assert all(words & some for some in (hints.kinds, hints.looks - hints.kinds, positions)), "all three are asked for"
    assert len(expected) > 3 and found.item() == pytest.approx(sum(expected) / len(expected), rel=1e-6)


@pytest.mark.parametrize("number", [0, 1])
def test_quoting_losses_are_of_transformers_attention_to_the_words_needed_and_of_the_next_one(first_heads, number):
    model, batch, states, shares, hints = first_heads
    recipe = replace(ToyRecipe.tiny(), gathering_layers=number)
    expected, chances, judged = [], [], 0
    for row in range(6):
        words, labels, segments = (batch[name][row].tolist() for name in ("words", "labels", "segments"))
        for place, word in enumerate(labels[1:]):
            asked = [at for at in range(place + 1) if labels[at] == IGNORE and segments[at] == segments[place]]
            same = [at for at in asked if words[at] == word in hints.looks]
            if word in (hints.yes, hints.no):
                begun = max((at for at in range(place) if labels[at] != IGNORE), default=0)  # the question's start
                same = [at for at in asked if at > begun and words[at] in {*hints.looks, *hints.scenery}]
                judged += bool(same)
            if same:
                share = shares[number][row, place]
                expected.append(-(share[same].sum() / share[asked].sum()).log().item())
                if number == 0:  # transformers norms the last of the states itself
                    logits = model.lm_head(model.model.language_model.norm(states[1][row, place]))
                    weight = recipe.judging_weight if word in (hints.yes, hints.no) else 1
                    chances.append(-weight * logits.log_softmax(-1)[word].item())
    quoting, repeating = quoting_losses(model, recipe, states, batch, hints)
    assert len(expected) > 3 and judged and quoting.item() == pytest.approx(sum(expected) / len(expected), rel=1e-6)
    assert number or repeating.item() == pytest.approx(sum(chances) / len(chances), rel=1e-5)


def test_what_decides_between_yes_and_no_weighs_more(first_heads, processor):
    model, batch, states, _, hints = first_heads
    recipe = replace(ToyRecipe.tiny(), judging_weight=5.0)
    content = content_ids(processor.tokenizer)
    model.set_attn_implementation("sdpa")  # takes the mask as it is
    with torch.no_grad():
        learnt = target_losses(recipe, content, hints)(model, batch)
        chances = model.lm_head(states[-1]).log_softmax(-1)
        cells = model.lm_head(model.model.language_model.norm(states[1])).log_softmax(-1)
    weights, losses, gathered = [], [], []
    for row, place in (batch["input_ids"] >= 0).nonzero().tolist():
        label = batch["labels"][row, place].item()
        if label != IGNORE:
            weights.append((4 if label in content else 1) * (5 if label in (hints.yes, hints.no) else 1))
            losses.append(-chances[row, place - 1, label].item())
        cell, word = batch["cells"][row, place].item(), batch["words"][row, place].item()
        if cell != IGNORE:
            gathered.append((5 if word in hints.judged else 1) * -cells[row, place, cell].item())
    answers = sum(weight * loss for weight, loss in zip(weights, losses, strict=True)) / sum(weights)
    assert 20 in weights and learnt["answers"].item() == pytest.approx(answers, rel=1e-5)
    assert learnt["gathering"].item() == pytest.approx(sum(gathered) / len(gathered), rel=1e-5)


def test_added_layers_change_nothing_until_they_learn(processor, looking):
    recipe = ToyRecipe.tiny()
    shallow = LlavaForConditionalGeneration(recipe.llava_config(2, 64, special_ids(processor), tied=True))
    shallow.load_state_dict(looking.state_dict())
    deeper = deepen(shallow, recipe.llava_config(5, 64, special_ids(processor), tied=True)).eval()
    batch = PackedBatches(processor, 2, 4, TALKS)(0)
    before, after = (packed_states(model, batch, model)[-1] for model in (shallow.eval(), deeper))
    assert torch.allclose(before, after, atol=1e-6)
    assert len(deeper.model.language_model.layers) == 5
    learnt = target_losses(recipe, content_ids(processor.tokenizer))(deeper, batch)
    learnt["loss"].backward()
    assert all(layer.mlp.down_proj.weight.grad.abs().sum() > 0 for layer in deeper.model.language_model.layers)


def test_a_draft_reads_its_slots_before_its_first_layer(processor, looking):
    draft = DraftLlava(ToyRecipe.tiny().llava_config(1, 32, special_ids(processor), tied=True))
    batch = PackedBatches(processor, 2, 4, TALKS)(0)
    eyes = copy.deepcopy(looking).float()
    draft_losses(draft, batch, eyes, 0.1)["naming"].backward()
    assert all(weight.grad.abs().sum() > 0 for weight in draft.model.multi_modal_projector.parameters())
    assert all(weight.grad is None for weight in draft.model.language_model.layers.parameters())
    draft.zero_grad()
    draft_losses(draft, batch, eyes, 0.1)["answers"].backward()
    assert all(weight.grad.abs().sum() > 0 for weight in draft.model.language_model.layers.parameters())
    assert all(weight.grad is None for weight in eyes.parameters())


@pytest.mark.night
@pytest.mark.usefixtures("own_precision")
def test_the_recipe_makes_a_pair_that_loads_and_decodes(tmp_path):
    command = ["train", "--output", str(tmp_path), "--tiny"]
    assert main(command) == 0
    stages = [json.loads(line)["stage"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    learnt = ["vision tower", "aligned target", "talking target", "target", "draft", "distilled draft"]
    learnt += ["eagle, short rollouts", "eagle", "eagle, compressed"]
    assert stages == learnt
    for draft in ("draft", "draft-before", "eagle", "eagle-compressed"):
        bundle = Pair.load(tmp_path / "target", tmp_path / draft, name="tiny", dtype="float64")
        traces = bundle.compare(draw_scene(sample_scene(1), 64), "What is this?")
        assert traces["target-only"].token_ids == traces["speculative"].token_ids
    assert main(command) == 0  # nothing left to do
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == len(stages)
    assert not list(tmp_path.rglob("model.safetensors.writing"))
