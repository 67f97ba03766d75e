"""The training loop resumes exactly, the losses are what they say, and the recipe's stages fit together."""

import json

import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator

from specllava.cli import main
from specllava.distill.loop import LoopConfig, fit
from specllava.distill.losses import IGNORE, distillation_loss, next_token_loss
from specllava.models.bundle import load_bundle
from specllava.pair import Pair
from specllava.toyworld.build import build_processor
from specllava.toyworld.corpus import ChatBatches, conversation, encode_chat, messages
from specllava.toyworld.draw import draw_scene
from specllava.toyworld.recipe import ToyRecipe
from specllava.toyworld.scene import HELD_OUT, sample_scene
from specllava.toyworld.vision import scene_labels


class Killed(Exception):
    pass


def _run(directory, die_at=None):
    torch.manual_seed(7)
    model = torch.nn.Linear(4, 3)
    seen = []

    def batches(number):
        generator = torch.Generator().manual_seed(number)
        return {"x": torch.randn(8, 4, generator=generator), "number": torch.tensor(number)}

    def losses(module, batch):
        seen.append(int(batch["number"]))
        if die_at is not None and len(seen) > die_at:
            raise Killed
        return {"loss": module(batch["x"]).square().mean()}

    config = LoopConfig(steps=9, learning_rate=0.1, warmup=2, checkpoint_every=2)
    fit("test", model, losses, batches, config, directory, Accelerator(cpu=True))
    return model, seen


@pytest.mark.parametrize("die_at", [1, 2, 3, 5, 8])
def test_a_killed_run_continues_to_the_same_weights(tmp_path, die_at):
    whole, _ = _run(tmp_path / "whole")
    with pytest.raises(Killed):
        _run(tmp_path / "killed", die_at)
    resumed, seen = _run(tmp_path / "killed")
    assert seen[0] == die_at // 2 * 2  # it goes on behind the last checkpoint, not from the start
    assert torch.equal(whole.weight, resumed.weight)
    assert torch.equal(whole.bias, resumed.bias)


def test_a_loss_that_is_not_finite_stops_and_keeps_the_checkpoint(tmp_path):
    def losses(module, batch):
        scale = float("nan") if int(batch["number"]) == 3 else 1.0
        return {"loss": module(torch.ones(2, 4)).mean() * scale}

    def batches(number):
        return {"number": torch.tensor(number)}

    config = LoopConfig(steps=9, learning_rate=0.1, warmup=2, checkpoint_every=2)
    with pytest.raises(FloatingPointError, match="step 3"):
        fit("nan", torch.nn.Linear(4, 1), losses, batches, config, tmp_path, Accelerator(cpu=True))
    assert torch.load(tmp_path / "last.pt", weights_only=True)["step"] == 2


def test_losses_read_answers_only_and_agree_with_the_definition():
    torch.manual_seed(0)
    draft, target = torch.randn(2, 6, 5, dtype=torch.float64), torch.randn(2, 6, 5, dtype=torch.float64)
    labels = torch.randint(0, 5, (2, 6))
    labels[0, :3] = labels[1, :4] = IGNORE
    answers = [(row, place) for row in range(2) for place in range(1, 6) if labels[row, place] != IGNORE]
    ce = torch.stack([-F.log_softmax(draft[r, p - 1], -1)[labels[r, p]] for r, p in answers]).mean()
    p = [F.softmax(target[r, place - 1], -1) for r, place in answers]
    q = [F.softmax(draft[r, place - 1], -1) for r, place in answers]
    kl = torch.stack([(a * (a.log() - b.log())).sum() for a, b in zip(p, q, strict=True)]).mean()
    loss, shown = distillation_loss(draft, target, labels, 0.3)
    assert loss.item() == pytest.approx(0.7 * ce.item() + 0.3 * kl.item(), rel=1e-5)
    assert shown.item() == pytest.approx(kl.item(), rel=1e-5)
    assert next_token_loss(draft, labels).item() == pytest.approx(ce.item(), rel=1e-5)
    draft[0, :2] += 100.0  # predicts no answer token: must not matter
    assert distillation_loss(draft, target, labels, 0.3)[0].item() == pytest.approx(loss.item(), rel=1e-6)


@pytest.fixture(scope="module")
def processor():
    return build_processor(ToyRecipe.tiny())


@pytest.mark.parametrize("index", range(0, 60, 3))
def test_training_text_is_what_the_chat_template_gives(processor, index):
    scene, turns = conversation(index)
    text = processor.apply_chat_template(messages(turns))
    inputs = processor(images=draw_scene(scene, 32), text=text, return_tensors="pt")
    ids, labels = encode_chat(processor.tokenizer, turns, ToyRecipe.tiny().image_tokens)
    assert inputs["input_ids"][0].tolist() == ids
    learnt = [token for token, label in zip(ids, labels, strict=True) if label != IGNORE]
    answers = processor.tokenizer.decode(learnt)
    assert answers == "".join(f" {turn.answer}</s>" for turn in turns)


def test_batches_are_a_function_of_their_number(processor):
    first = ChatBatches(processor, 2, 4)
    again = ChatBatches(processor, 2, 4)
    _ = first(3)
    for number in (40, 17):
        for key, value in first(number).items():
            assert torch.equal(value, again(number)[key])


def test_no_training_scene_holds_a_held_out_combination():
    assert not any(thing.combination in HELD_OUT for n in range(3000) for thing in sample_scene(n).things)
    assert all(len(sample_scene(n, "held-out").held_out_things) == 1 for n in range(3000))


def test_scene_labels_name_every_cell():
    for seed in range(200):
        scene = sample_scene(seed)
        labels = scene_labels(scene)
        assert int((labels["kind"] > 0).sum()) == len(scene.things)
        assert torch.equal(labels["colour"] == -100, labels["kind"] == 0)


def test_the_recipe_makes_a_pair_that_loads_and_decodes(tmp_path):
    command = ["toyworld", "train", "--output", str(tmp_path), "--tiny"]
    assert main(command) == 0
    stages = [json.loads(line)["stage"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    learnt = ["vision tower", "aligned target", "talking target", "target", "draft", "distilled draft"]
    assert stages == ["tokenizer", "vision accuracy", *learnt]
    for draft in ("draft", "draft-before"):
        bundle = load_bundle("tiny", tmp_path / "target", tmp_path / draft, dtype="float64")
        traces = Pair(bundle).compare(draw_scene(sample_scene(1), 64), "What is this?")
        assert traces["target-only"].token_ids == traces["speculative"].token_ids
    assert main(command) == 0  # nothing left to do
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == len(stages)
    assert not list(tmp_path.rglob("model.safetensors.writing"))
    further = tmp_path / "further"
    assert main(["toyworld", "train", "--output", str(further), "--start", str(tmp_path), "--tiny"]) == 0
    stages = [json.loads(line)["stage"] for line in (further / "log.jsonl").read_text().splitlines()]
    assert stages == ["target", "draft", "distilled draft"]
    assert load_bundle("further", further / "target", further / "draft")
