"""Distillation of what is not LLaVA-1.5 with a shared tower: LLaVA-NeXT's tiles, and drafts that see no picture."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from PIL import Image
from support import checkpoints
from support.amount import sample
from support.distilling import arguments, weights
from support.family_drafts import SHORT, write_data

from specllava.cli.main import main
from specllava.distill.batches import RowBatches
from specllava.distill.chats import ChatEncoder, messages
from specllava.distill.config import Objective
from specllava.distill.losses import IGNORE
from specllava.distill.make_draft import import_draft, init_draft
from specllava.distill.pictures import Pixels
from specllava.distill.rows import index_rows
from specllava.distill.stage import draft_model_losses
from specllava.findings.distillation import Report
from specllava.models.checkpoint import Checkpoint
from specllava.models.loading import draft_class
from specllava.models.images import read_size
from specllava.pair import Pair
from specllava.spec_decode.loop import Lane

ROWS, LENGTH = 30, 600
TAUGHT = [("llava_next", "init"), ("llava_next", "blind"), ("llava", "blind")]  # the rest is in test_distill_run


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Both targets, for each a draft that sees and one that does not, and a data file."""
    root = tmp_path_factory.mktemp("families")
    write_data(root, ROWS)
    checkpoints.write_llama(root / "llama")
    for family in checkpoints.FAMILIES:
        target = checkpoints.write_llava(root / family, family)
        init_draft(root / "llama", target, root / f"{family} init")
        init_draft(root / "llama", target, root / f"{family} blind", text_only=True)
    return root


@pytest.fixture(scope="module")
def indexed(root):
    return index_rows(root / "data.json", root / "images", root / "index")


def loaded(root, family, made, dtype="float32"):
    """The pair, with a draft that can learn: one that decodes is fused."""
    bundle = Pair.load(root / family, root / f"{family} {made}", name="x", device="cpu", dtype=dtype)
    checkpoint = Checkpoint.at(root / f"{family} {made}")
    build = draft_class(checkpoint.name, checkpoint.config())
    return replace(bundle, draft=checkpoint.load(build, dtype=getattr(torch, dtype)).eval())


def command(root, output, family, made, **options):
    given = {"target": root / family, "draft": root / f"{family} {made}", "length": LENGTH, **options}
    return arguments(root, output, **given)


def batches(root, indexed, bundle, length=LENGTH):
    images = root / "images"
    see = Pixels(bundle.processor, bundle.target.config, images)
    return RowBatches(indexed, torch.arange(len(indexed)), ChatEncoder(bundle.processor, length), 3, 0, see, images)


@pytest.mark.parametrize(("family", "made"), sample(TAUGHT, 1))
def test_a_draft_learns_and_changes_no_token(root, tmp_path, family, made):
    options = {"steps": 60, "validate_every": 0, "learning_rate": 0.01, "answers": "target", "kl_weight": 1.0}
    assert main(command(root, tmp_path / "run", family, made, **options)) == 0
    found = Report.read(tmp_path / "run" / "report.json")
    assert found.state == "finished" and found.rows == ROWS - found.prompts and not found.left_out
    assert found.checks[-1].kl < 0.8 * found.checks[0].kl
    losses = [point["loss"] for point in found.curve]
    assert sum(losses[-10:]) < 0.8 * sum(losses[:10])
    pair = Pair.load(root / family, tmp_path / "run" / "draft", name="distilled", device="cpu", dtype="float32")
    assert pair.draft_vision == {"init": "shared", "blind": "none"}[made]
    accepted = 0
    for number in range(40):
        traces = [pair.run(lane) for lane in lanes(pair, number)]
        assert traces[0].token_ids == traces[1].token_ids
        accepted += len(traces[0].steps) - len(traces[1].steps)
    assert accepted > 0


def lanes(pair, number):
    prompt = pair.prompt(None, checkpoints.messages(number))
    return [Lane("x", config, prompt) for config in (replace(SHORT, drafter="none"), SHORT)]


@pytest.mark.parametrize("family", checkpoints.FAMILIES)
@pytest.mark.parametrize("made", ["init", "blind"])
@torch.no_grad()
def test_the_loss_is_that_of_whole_rows_by_transformers_own_forward(root, indexed, family, made):
    """Row by row, without padding, from the processor's own inputs; a draft that sees nothing reads words alone."""
    bundle = loaded(root, family, made, "float64")
    target, draft, processor = bundle.target, bundle.draft, bundle.processor
    make = batches(root, indexed, bundle)
    losses = draft_model_losses(target, Objective(kl_weight=1.0, chunk=7))
    shown = 0
    for number in range(4):
        batch = make(number)
        kl = answers = 0.0
        members = [indexed[make.row_at(position)] for position in make._make_window(0)[number]]
        for row, labels in zip(members, batch["labels"], strict=True):
            end = int((labels != IGNORE).nonzero().max())  # nothing behind the last answer matters
            inputs = whole(root, row, processor)
            theirs = target(**inputs).logits[0].log_softmax(-1)
            words = inputs["input_ids"] != target.config.image_token_id
            if made == "blind":
                ours = draft(inputs["input_ids"][words][None]).logits[0].log_softmax(-1)
            else:
                ours = seen_by(draft, target, inputs).log_softmax(-1)
            asked = [place - 1 for place in range(1, end + 1) if labels[place] != IGNORE]
            seen = [int(words[0, : place + 1].sum()) - 1 if made == "blind" else place for place in asked]
            kl += float((theirs[asked].exp() * (theirs[asked] - ours[seen])).sum())
            answers += len(asked)
            shown += "pixel_values" in inputs
        assert float(losses(draft, batch)["loss"]) == pytest.approx(kl / answers, rel=1e-5)
    assert 0 < shown < 12


def whole(root, row, processor):
    """A row as the processor writes it, pictures and all."""
    pictures = [Image.open(root / "images" / name) for name in row.images]
    text = processor.apply_chat_template(messages(row))
    inputs = dict(processor(images=pictures or None, text=text, return_tensors="pt"))
    return {name: value.double() if name == "pixel_values" else value for name, value in inputs.items()}


def seen_by(draft, target, inputs):
    """Logits of a draft that is lent the target's tower."""
    whole = type(target)(copy.deepcopy(draft.config)).double().eval()
    whole.load_state_dict(draft.state_dict(), strict=False)
    whole.model.vision_tower.load_state_dict(target.model.vision_tower.state_dict())
    return whole(**inputs).logits[0]


@pytest.mark.parametrize("family", checkpoints.FAMILIES)
def test_slots_are_those_of_decoding_and_are_never_cut_through(root, indexed, family):
    bundle = loaded(root, family, "init")
    counts = set()

    def places(ids):
        first = slice(len(read) - 4)  # up to the first question's end: this tokenizer spells ":" and a space in one
        return [place for place, token in enumerate(ids[first]) if token == bundle.target.config.image_token_id]

    for number in range(12):
        row = indexed[number]
        sizes = [read_size(root / "images" / name) for name in row.images]
        shown = [
            {"type": "image", "image": root / "images" / name} for name in row.images[: row.images_per_question[0]]
        ]
        asked = [{"role": "user", "content": [*shown, {"type": "text", "text": row.turns[0]}]}]
        read = bundle.prompt(None, asked).input_ids[0].tolist()
        encode = ChatEncoder(bundle.processor, LENGTH)
        encoded, slots = encode(row, sizes), [encode.slots(size) for size in sizes]
        assert places(encoded.ids) == places(read) and not encoded.cut
        counts.update(slots)
        for length in range(16, len(encoded.ids), 7):
            cut = ChatEncoder(bundle.processor, length)(row, sizes)
            assert cut.ids == encoded.ids[: len(cut.ids)] and cut.labels == encoded.labels[: len(cut.ids)]
            assert cut.ids.count(bundle.target.config.image_token_id) == sum(slots[: cut.images])
            assert cut.cut and len(cut.ids) <= length
    assert (len(counts) > 3) == (family == "llava_next")


def test_the_projectors_stage_moves_the_newline_too(root, tmp_path):
    options = {"projector_steps": 3, "steps": 2, "validate_every": 0}
    assert main(command(root, tmp_path / "run", "llava_next", "init", **options)) == 0
    before = weights(root / "llava_next init")
    after = weights(tmp_path / "run" / "work" / "aligned")
    moved = {name for name, weight in before.items() if not torch.equal(weight.float(), after[name])}
    assert moved == {name for name in before if "multi_modal_projector" in name or "image_newline" in name}
    assert any("image_newline" in name for name in moved)


@pytest.mark.parametrize("family", checkpoints.FAMILIES)
def test_every_weight_has_a_gradient_where_no_picture_is(root, indexed, family):
    """Processes that share gradients wait for all of them."""
    bundle = loaded(root, family, "init")
    plain = next(indexed[number] for number in range(len(indexed)) if not indexed[number].images)
    encoded = ChatEncoder(bundle.processor, LENGTH)(plain, [])
    alone = {"input_ids": torch.tensor([encoded.ids]), "labels": torch.tensor([encoded.labels])}
    draft_model_losses(bundle.target, Objective())(bundle.draft, alone)["loss"].backward()
    assert all(weight.grad is not None for weight in bundle.draft.parameters())


def test_what_cannot_be_taught_is_refused_with_the_way_out(root, tmp_path, capsys):
    checkpoints.write_llava(tmp_path / "stranger", "llava", seed=1)
    import_draft(tmp_path / "stranger", root / "llava", tmp_path / "own")
    for draft, options, words in (
        (tmp_path / "own", {}, "has a tower of its own, and distill teaches drafts that read the target's"),
        (root / "llava blind", {"projector_steps": 2}, "has no projector: leave --projector-steps 2 out"),
        (root / "llava blind", {"freeze_projector": True}, "has no projector: leave --freeze-projector out"),
    ):
        capsys.readouterr()
        assert main(command(root, tmp_path / "run", "llava", "init", draft=draft, **options)) == 1
        lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("specllava: ")]
        assert len(lines) == 1 and words in lines[0]
        assert "own" not in draft.name or '"specllava draft init", with --text-only or without' in lines[0]
