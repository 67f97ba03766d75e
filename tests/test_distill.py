"""Distillation: rows to batches, losses as they are derived, a loop that resumes bit for bit, and the whole command."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from support import checkpoints, models
from support.cases import sample
from support.checkpoints import weights_of
from support.distilling import arguments, rows, same, write_data, write_pair
from torch.utils._pytree import tree_leaves

from recipes.toy.build import build_processor, special_ids
from recipes.toy.corpus import TALKING, ChatBatches, PackedBatches
from recipes.toy.vision import SceneBatches
from specllava.cli.main import main
from specllava.config import DecodingConfig
from specllava.distill import data, losses, train
from specllava.distill.config import DistillConfig, FeatureObjective, LoopConfig, Objective, Report, ValidationResult
from specllava.distill.data import CUT, GROUP, LEFT_OUT, TOO_LONG, UNREADABLE, RowBatches, RowEncoder
from specllava.distill.losses import IGNORE, TargetTexts, batch_losses, chunked_loss, feature_losses, target_texts
from specllava.distill.new_draft import init_draft
from specllava.distill.rows import Row, UnusableRowError, count_reasons, load_rows, parse_row
from specllava.distill.train import cast_weights, validate_draft
from specllava.metrics import summarise
from specllava.models.drafts.compressor import add_compressor
from specllava.models.drafts.draft_vlm import DraftLlava, save
from specllava.models.drafts.eagle import fresh_feature_draft
from specllava.models.options import KINDS as COMPRESSORS
from specllava.models.options import CompressorConfig
from specllava.pair import Pair
from specllava.prompt import compressed_slots
from specllava.scoring import draft_log_probs

# ------------------------------------------------------------------------------------------------ rows


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A pair, a data file with pictures, and one unbroken run."""
    directory = tmp_path_factory.mktemp("distil")
    write_pair(directory)
    write_data(directory, 30)
    (directory / "images" / "words.png").write_text("I am a text.")
    assert main(arguments(directory, directory / "whole")) == 0
    return directory


@pytest.fixture(scope="module")
def loaded(root):
    return load_rows(root / "data.json", root / "images")[0]


def talk(*texts, image=None):
    speakers = ("human", "gpt")
    row = {"id": "x", "conversations": [{"from": speakers[n % 2], "value": text} for n, text in enumerate(texts)]}
    return row | ({"image": image} if image else {})


BROKEN = {
    "without conversations": [{"id": 1}, 7, None, "text", {"conversations": "hello"}],
    'with a message that is not from "human" or "gpt" with a text as value': [
        {"conversations": [{"from": "system", "value": "x"}, {"from": "gpt", "value": "y"}]},
        {"conversations": [{"from": "human", "value": 3}]},
        {"conversations": ["hello"]},
    ],
    "without an answer": [talk("Why?"), {"conversations": []}],
    "in which human and gpt do not take turns": [
        {"conversations": [{"from": s, "value": "x"} for s in ("human", "human", "gpt")]}
    ],
    "with an empty question or answer": [talk(" ", "Yes."), talk("Why?", " "), talk("<image>", "Cat.", image="0.png")],
    "with <image> in an answer": [talk("Why?", "<image>", image="0.png")],
    "with another number of <image> markers than images": [
        talk("Why?", "So.", image="0.png"), talk("<image> Why?", "So."), talk("<image><image> a", "b", image="0.png"),
    ],
    "with an image that is no path": [talk("<image> a", "b", image={"at": "0.png"}), talk("<image> a", "b", image=[3])],
    "with a missing image": [talk("<image> a", "b", image="none.png"), talk("<image> a", "b", image="nowhere/0.png")],
    "with an image path that leads out of the images directory": [talk("<image> a", "b", image="../data.json")],
}  # fmt: skip


def test_broken_rows_are_counted_by_reason_with_the_first_of_each(root, tmp_path):
    bad = [(reason, raw) for reason, raws in BROKEN.items() for raw in raws]
    good = rows(len(bad))
    mixed = [row for pair in zip(good, (raw for _, raw in bad), strict=True) for row in pair]
    (tmp_path / "data.json").write_text(json.dumps(mixed))
    usable, unusable = load_rows(tmp_path / "data.json", root / "images")
    assert usable == [parse_row(raw) for raw in good]
    for number, raw in enumerate(good):
        texts = tuple(part["value"].replace("<image>", "").strip() for part in raw["conversations"])
        assert usable[number].turns == texts and usable[number].images == ((raw["image"],) if "image" in raw else ())
    assert unusable == {
        reason: [2 * number + 1 for number, (other, _) in enumerate(bad) if other == reason] for reason in BROKEN
    }
    assert "2 without an answer (first: row 17)" in count_reasons(unusable)
    lines = "\n".join([*map(json.dumps, mixed[:4]), "", "{broken", "[1]", "[" * 100_000])
    (tmp_path / "data.jsonl").write_text(lines)
    usable, unusable = load_rows(tmp_path / "data.jsonl", root / "images")
    assert len(usable) == 2 and unusable == {"without conversations": [1, 3, 5], "not JSON": [4, 6]}

    # A leading answer and a trailing question are dropped.
    raw = {"conversations": [{"from": s, "value": s + str(n)} for n, s in enumerate(("gpt", "human", "gpt", "human"))]}
    assert parse_row(raw).turns == ("human1", "gpt2")


def test_a_data_file_that_is_none_is_refused_in_one_line(root, tmp_path, capsys):
    """No claim is left: the file may be corrected and the command repeated."""
    cases = (
        (" \n", "is empty"),
        ('{"rows": []}', "is not in LLaVA's format: a JSON list of rows is expected, or a .jsonl"),
        ('[{"text": "a"}, {"text": "b"}]', "no row can be used: 2 without conversations (first: row 0)"),
        (json.dumps(rows(3)) + "x", "is not JSON: Extra data: line 1 column "),
        ("[" * 100_000, "is not JSON: "),
        (json.dumps([talk("<image> a", "b", image="none.png")]), "no row's image is in "),
        (json.dumps(rows(3)[2:]), "1 usable rows are too few for 2 held out and 1 to learn from"),
    )
    for text, words in cases:
        (tmp_path / "data.json").write_text(text)
        assert words in complaint(capsys, root, tmp_path / "run", data=tmp_path / "data.json")
        assert not (tmp_path / "run").exists()


# --------------------------------------------------------------------------------------------- encoding


def encoder(images=Path(), length=400, eos=None):
    return RowEncoder.of(models.pair(None, eos=eos), images, length)


def test_only_an_answer_that_ended_teaches_an_end_at_which_decoding_stops():
    row = Row(("Why?", "Because of", "And?", "So."), (0, 0), (), (False, True))
    own = models.processor().tokenizer.eos_token_id
    for ends, end in ((None, own), ([own, 1], own), ([7, 9], 7)):
        labels = encoder(eos=ends)(row).labels
        assert end in labels[-2:] and labels.count(end) == 1


def test_a_row_is_cut_and_never_through_a_picture(tmp_path):
    for name in "abc":
        models.picture(0).save(tmp_path / f"{name}.png")
    row = Row(("What?", "A red bus.", "And there?", "Two cats."), (1, 2), ("a.png", "b.png", "c.png"), (True, True))
    whole = encoder(tmp_path, 10_000)(row)
    slots = [n for n, token in enumerate(whole.ids) if token == models.target().config.image_token_id]
    assert len(slots) == 3 * models.RECIPE.image_tokens
    for length in range(16, len(whole.ids) + 2, 3):
        if length <= slots[-1]:
            with pytest.raises(UnusableRowError, match=TOO_LONG):
                encoder(tmp_path, length)(row)
            continue
        encoded = encoder(tmp_path, length)(row)
        assert encoded.ids == whole.ids[:length] and encoded.labels == whole.labels[:length]
        assert encoded.cut == (length < len(whole.ids)) and len(encoded.pictures) == 3


def test_a_row_of_many_megabytes_is_cut_before_it_is_tokenised(monkeypatch):
    text, short = "A red bus stands on the left. " * 4_000, encoder(length=40)
    read, tokenizer = [], type(models.processor().tokenizer)
    own = tokenizer.__call__
    monkeypatch.setattr(
        tokenizer, "__call__", lambda self, one, **options: (read.append(len(one)), own(self, one, **options))[1]
    )
    encoded = short(Row(("Why?", text), (0,), (), (True,)))
    assert len(encoded.ids) == 40 and encoded.cut
    assert max(read) < 10_000 < len(text)


# --------------------------------------------------------------------------------------------- batches


def batches(given, root, batch=3, seed=0, length=400):
    return RowBatches(given, encoder(root / "images", length), batch, seed)


def equal_batches(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        pairs = zip(tree_leaves(value), tree_leaves(other[name]), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs), name


@pytest.mark.parametrize(
    "make",
    [
        None,
        lambda processor, patches: ChatBatches(processor, 2, patches),
        lambda processor, patches: PackedBatches(processor, 2, patches, TALKING, 5),
        lambda processor, patches: SceneBatches(processor.image_processor, 2, patches),
    ],
)
def test_a_batch_is_a_function_of_its_number_in_any_process(root, loaded, make):
    """Also where a worker process is not forked, and the object is pickled with whatever it holds by then."""
    if make is None:
        first, again = batches(loaded, root), batches(loaded, root)
    else:
        first, again = (make(models.processor(), models.RECIPE.image_tokens) for _ in range(2))
    first(3)
    for number in (18, 1):
        equal_batches(first(number), again(number))
        equal_batches(first(number), pickle.loads(pickle.dumps(first))(number))


def test_every_row_is_read_once_an_epoch_and_some_are_held_out(root, loaded):
    made, size = batches(loaded, root, seed=4), len(loaded)
    orders = [[made.row_at(position) for position in range(start, start + size)] for start in (0, size, 2 * size)]
    assert all(sorted(map(repr, order)) == sorted(map(repr, loaded)) for order in orders)
    assert orders[0] != orders[1] != orders[2]
    window = sorted(position for batch in made._make_window(1) for position in batch)
    assert window == list(range(GROUP * 3, 2 * GROUP * 3))
    learnt, held_out = data.split(loaded, 7, 3)
    assert sorted(map(repr, [*learnt, *held_out])) == sorted(map(repr, loaded)) and len(held_out) == 7
    assert held_out == data.split(loaded, 7, 3)[1] != data.split(loaded, 7, 4)[1]


def test_unusable_rows_are_counted_and_replaced_by_the_next(root, loaded):
    torn = parse_row(talk("<image> What?", "A cat.", image="words.png"))
    made = batches([*loaded[:6], torn], root, batch=1, length=2_000)
    seen, met = [made(number) for number in range(GROUP)], sum(made.row_at(at) == torn for at in range(GROUP))
    counts = dict(zip(LEFT_OUT, sum(batch["left_out"] for batch in seen).tolist(), strict=True))
    assert counts == {UNREADABLE: met, CUT: 0, TOO_LONG: 0} and met >= 2
    assert all(len(batch["input_ids"]) == 1 for batch in seen)
    short = [batches(loaded, root, length=48)(number) for number in range(4)]
    counts = dict(zip(LEFT_OUT, sum(batch["left_out"] for batch in short).tolist(), strict=True))
    assert counts[CUT] > 3 and counts[TOO_LONG] > 0 and all(losses.count_answer_tokens(batch) > 0 for batch in short)
    with pytest.raises(ValueError, match="100 rows one after the other have no answer within --length 16"):
        batches(loaded[:2], root, length=16)(0)


def test_the_targets_own_answers_are_what_it_says_and_resume_in_the_middle_of_a_line(
    root, loaded, tmp_path, monkeypatch
):
    pair, config, accelerator = models.pair("mixed"), DecodingConfig(max_new_tokens=6), Accelerator(cpu=True)
    given = pair, loaded[:4], root / "images", config
    whole, silent = data.self_generated_rows(*given, tmp_path / "whole", accelerator)
    for row, answered in zip(loaded[:4], whole, strict=True):
        images = [{"type": "image", "image": root / "images" / name} for name in row.images]
        chat = [{"role": "user", "content": [*images, {"type": "text", "text": row.turns[0]}]}]
        alone = models.decode(pair, pair.prompt(None, chat), replace(config, drafter="none"))
        assert answered.turns == (row.turns[0], alone.text) and not silent
        assert answered.ended == (False,)  # nothing ends an answer of this target, so the limit does, and the row
    part = tmp_path / "killed" / "answers-0-of-1.jsonl"
    part.parent.mkdir()
    lines = (tmp_path / "whole" / part.name).read_bytes().splitlines(keepends=True)
    part.write_bytes(b"".join(lines[:2]) + lines[2][:20])
    asked, true = [], data.answer_row
    monkeypatch.setattr(data, "answer_row", lambda *one: asked.append(one[1]) or true(*one))
    assert data.self_generated_rows(*given, tmp_path / "killed", accelerator)[0] == whole and asked == loaded[2:4]


def test_a_question_that_cannot_be_asked_is_left_out_by_its_reason():
    for text, reason in (("Why</s>?", "a special token in a question"), ("x " * 3000, "do not fit the context")):
        row = Row((text, "So."), (0,), (), (True,))
        with pytest.raises(UnusableRowError, match=reason):
            data.answer_row(models.pair(None), row, Path(), DecodingConfig(drafter="none"))


# ---------------------------------------------------------------------------------------------- losses


@pytest.mark.parametrize(
    ("answers", "chunk", "weight", "temperature"),
    [(1, 1, 0.0, 1.0), (8, 6, 0.3, 2.0), (15, 11, 1.0, 0.7), (22, 16, 0.3, 4.0), (22, 1, 0.5, 1.0)],
)
def test_chunks_give_the_formula_and_its_gradient(answers, chunk, weight, temperature):
    """In float64, by hand: ``∂L/∂z = ((1-w)(q₁-y) + w T (q_T-p_T)) / n`` of the draft's logits ``z``."""
    torch.manual_seed(answers)
    heads = torch.nn.Linear(6, 37), torch.nn.Linear(12, 37).requires_grad_(False)
    states = torch.randn(answers, 6, requires_grad=True), torch.randn(answers, 12)
    wanted = torch.randint(0, 37, (answers,))
    z, t = (head(one).detach().double() for head, one in zip(heads, states, strict=True))
    q1, q, p = z.softmax(-1), (z / temperature).softmax(-1), (t / temperature).softmax(-1)
    ce = -q1[range(answers), wanted].log().mean()
    kl = (p * (p.log() - q.log())).sum(-1).mean()
    expected = (1 - weight) * ce + weight * temperature**2 * kl
    by_logits = (1 - weight) * (q1 - F.one_hot(wanted, 37)) + weight * temperature * (q - p)
    gradient = by_logits / answers @ heads[0].weight.double()
    loss, plain = chunked_loss(states[0], heads[0], states[1], heads[1], wanted, Objective(weight, temperature, chunk))
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(states[0].grad.double(), gradient, rtol=1e-4, atol=1e-6)
    one = t.softmax(-1)
    assert plain.item() == pytest.approx((one * (one.log() - q1.log())).sum(-1).mean().item(), rel=1e-4)
    assert heads[1].weight.grad is None
    if weight == 0:
        alone = losses.chunked_cross_entropy(states[0], heads[0], wanted, chunk)
        assert alone.item() == pytest.approx(ce.item(), rel=1e-5)


# --------------------------------------------------------------------- drafts that read the target's states

KINDS = (("eagle", True), ("eagle", False), ("msd", False), ("vispec", False), ("eagle3", False))
GUESSABLE = tuple(range(0, models.RECIPE.vocabulary, 3))
SMALL = {"prune_ratio": 2, "pool_ratio": 2, "conv_ratio": 2, "queries": 1}


def shake(parameters, seed):
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in parameters:
            weight += 0.2 * torch.randn(weight.shape, generator=source, dtype=weight.dtype)


def draft_of(kind, norm=True, seed=0, guessable=None, compressor=None, **options):
    """Random, in float64; its weights are drawn wide, so that every part matters."""
    made = fresh_feature_draft(models.target(), kind, norm, guessable, seed=seed).double()
    shake([weight for weight in made.parameters() if weight.dim() > 1], seed)
    if compressor is not None:
        add_compressor(made, CompressorConfig(compressor, **SMALL, **options), seed=3)
        shake(made.compressor.parameters(), 4)
    return made


def batch_of(seed, size=2, pictures=True):
    """A batch of the toy corpus, with pixels as the target takes them."""
    made = ChatBatches(models.processor(), size, models.RECIPE.image_tokens)(seed)
    if pictures:
        return {**made, "pixel_values": made["pixel_values"].double()}
    ids, slot = made["input_ids"].clamp(min=10), models.target().config.image_token_id
    return {"input_ids": ids.masked_fill(ids == slot, 20), "labels": made["labels"]}


def texts_of(draft, seed, size=2):
    """Cut behind a few tokens of the first answer, since the plain loss is slow."""
    whole = target_texts(models.target(), batch_of(seed, size), draft.config.state_layers)
    end = int((whole.labels != IGNORE).int().argmax(dim=1).max()) + 9
    return TargetTexts(*(getattr(whole, part.name)[:, :end] for part in fields(whole)))


def chains(draft, ids, labels, embeds, states, steps):
    """States of the chain drafted from each text entry, one entry after the other and without any trick.

    Each chain reads the entries up to its own again, then its own states with the true tokens behind it.
    """
    entries, drafted = draft.entries(ids[1:], embeds[1:], states[:-1], states[-2]), {}
    for number, source in enumerate(entries.sources):
        if source < 0 or not (labels[source + 2 : source + 2 + steps] != IGNORE).any():
            continue
        inputs, positions = entries.inputs[: number + 1], list(entries.positions[: number + 1])
        for step in range(steps):
            own = draft(inputs[None], draft.rotations(torch.tensor(positions)[None]))[0, -1]
            drafted[source, step] = own
            if source + 2 + step >= len(ids):
                break
            token = draft.embed(ids[source + 2 + step])
            following = draft.inputs(token[None], own[None], guessed=True, image=entries.image)
            inputs, positions = torch.cat([inputs, following]), [*positions, positions[-1] + 1]
    return drafted


def plain_loss(draft, texts, objective):
    """The loss as its docstring says it, answer token by answer token."""
    head, ids = models.target().lm_head, range(models.RECIPE.vocabulary)
    ids = list(ids if draft.guessable is None else draft.guessable.tolist())
    terms = {step: [] for step in range(objective.rollout)}
    for row in range(len(texts.ids)):
        one = (getattr(texts, name)[row] for name in ("ids", "labels", "embeds", "states"))
        for (source, step), own in chains(draft, *one, objective.rollout).items():
            predicted = source + 2 + step
            if predicted >= texts.ids.shape[1] or texts.labels[row, predicted] == IGNORE:
                continue
            true = texts.last[row, predicted - 1]
            logits = head(true)
            p, q = logits[ids].softmax(-1), draft.logits(own[None])[0, ids].log_softmax(-1)
            counted = int(logits.argmax()) in ids
            terms[step].append((float(counted), -(p * q).sum() * counted, F.smooth_l1_loss(own, true)))
    loss = 0.0
    for step, parts in terms.items():
        ce = sum(part[1] for part in parts) / max(1.0, sum(part[0] for part in parts))
        states = sum(part[2] for part in parts) / len(parts)
        both = objective.ce_weight * ce + objective.feature_weight * states
        loss = loss + losses.DECAY**step * (ce if draft.config.format == "eagle3" else both)
    return loss


@pytest.mark.parametrize("kind", [*KINDS, *(kind for kind in COMPRESSORS if kind != "gate")])
def test_the_loss_is_the_plain_one_step_by_step(kind):
    """Also: a step's attention and positions, over keys of all steps at once, are those of a chain run by itself.

    With a compressor over text entries, as at inference, where pruning draws nothing.
    """
    if kind in COMPRESSORS:
        draft, number, rollout = draft_of("eagle", compressor=kind).eval(), 1, 2
    else:
        draft, number, rollout = draft_of(*kind, guessable=GUESSABLE if kind[0] == "eagle3" else None), 0, 3
    texts, objective = texts_of(draft, number), FeatureObjective(0.3, 0.7, rollout=rollout, chunk=7)
    with torch.no_grad():
        shown = feature_losses(draft, texts, objective)
        assert shown["loss"].item() == pytest.approx(float(plain_loss(draft, texts, objective)), rel=1e-5)
    assert ("features" in shown) == (draft.config.format != "eagle3")


@pytest.mark.parametrize(("kind", "norm"), KINDS)
@torch.no_grad()
def test_training_reads_what_decoding_reads(kind, norm):
    """The logits of the first step are those of the engines on the same text."""
    for number in (0, 2, 3):
        draft, prompt, answer = draft_of(kind, norm), models.prompt(number), models.reference(number, 0)[:8]
        expected = draft_log_probs(models.target(), draft, prompt, answer)
        ids = torch.cat([prompt.input_ids, torch.tensor([answer])], dim=1)
        batch = {"input_ids": ids, "labels": ids}
        if prompt.features is not None:
            pixels = models.plain_inputs(number)["pixel_values"].clone()
            batch |= {"pixel_values": pixels, "image_sizes": torch.tensor([[40, 48]])}
        texts = target_texts(models.target(), batch, draft.config.state_layers)
        entries = draft.entries(texts.ids[0, 1:], texts.embeds[0, 1:], texts.states[0, :-1], texts.states[0, -2])
        own = draft(entries.inputs[None], draft.rotations(torch.tensor(entries.positions)[None]))
        logits = draft.logits(own[0, -len(answer) - 1 : -1])  # the last entry predicts what follows the answer
        torch.testing.assert_close(torch.log_softmax(logits, -1), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", [*KINDS, *COMPRESSORS, "vlm"])
def test_every_weight_has_a_gradient(kind):
    """Several processes wait for one of each; without pictures some have nothing to learn."""
    objective = Objective() if kind == "vlm" else FeatureObjective(rollout=2)
    for pictures in (True, False):
        if kind == "vlm":
            draft = copy.deepcopy(models.draft("bad"))
        else:
            draft = draft_of(*kind) if isinstance(kind, tuple) else draft_of("eagle", compressor=kind).train()
        batch_losses(models.target(), objective)(draft, batch_of(0, pictures=pictures))["loss"].backward()
        for name, weight in draft.named_parameters():
            assert weight.grad is not None and (not pictures or weight.grad.abs().sum() > 0), name


def test_the_gate_reads_the_prompt_alone_and_a_sure_one_learns_as_its_operator():
    draft = draft_of("eagle", compressor="gate", branches=("pool", "resampler", "text")).train()
    gate, texts, seen = draft.compressor.gate, texts_of(draft, 2), []
    hook = gate.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    feature_losses(draft, texts, FeatureObjective())
    hook.remove()
    for row, labels in enumerate(texts.labels):
        last = int((labels != IGNORE).nonzero()[0]) - 1
        assert torch.equal(seen[row], texts.states[row, last])
    for chosen in draft.compressor.names:
        with torch.no_grad():
            gate.weight.zero_()
            gate.bias.copy_(200.0 * torch.tensor([float(name == chosen) for name in draft.compressor.names]))
            soft, hard = (
                feature_losses(draft.train(training), texts, FeatureObjective(rollout=3))["loss"].item()
                for training in (True, False)
            )
        assert soft == pytest.approx(hard, rel=1e-9)


@pytest.mark.parametrize("kind", [kind for kind in COMPRESSORS if kind != "gate"])
def test_a_compressed_draft_vlm_learns_on_the_prompt_that_it_reads(kind):
    """Fewer slots, the same answers: the labels of what is kept are those of the whole text."""
    draft, batch = models.seeded(DraftLlava, copy.deepcopy(models.draft("bad").config), 7).double(), batch_of(0)
    add_compressor(draft, CompressorConfig(kind, **SMALL))
    loss = batch_losses(models.target(), Objective(kl_weight=0.0))(draft.eval(), batch)["loss"].item()
    features = models.target().model.vision_tower(batch["pixel_values"]).last_hidden_state[:, 1:]
    total, count = 0.0, 0
    for ids, labels, picture in zip(batch["input_ids"], batch["labels"], features[:, None], strict=True):
        kept = compressed_slots(draft, ids[None], picture)[0]
        tokens, logits = labels[kept][1:], draft.lm_head(losses.draft_states(draft, ids[kept][None], picture))[0, :-1]
        taught = tokens != IGNORE
        total -= float(logits.detach().log_softmax(-1)[taught].gather(1, tokens[taught][:, None]).sum())
        count += int(taught.sum())
    assert count == losses.count_answer_tokens(batch) and loss == pytest.approx(total / count, rel=1e-5)


# ------------------------------------------------------------------------------------------------ loop


def learn_rows(directory, batch, accumulation, rows=24):
    """Weights after learning the same rows in other portions; rows carry different numbers of answers."""
    source = torch.Generator().manual_seed(5)
    x, labels = torch.randn(rows, 6, 4, generator=source), torch.randint(0, 3, (rows, 6), generator=source)
    for row in range(rows):
        labels[row, : row % 5] = IGNORE
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 3)

    def batches(number):
        here = slice(number * batch, (number + 1) * batch)
        return {"x": x[here], "labels": labels[here]}

    def loss_of(module, batch):
        states, tokens = losses.answer_positions(batch["x"], batch["labels"])
        return {"loss": F.cross_entropy(module(states), tokens)}

    loop = LoopConfig(rows // batch // accumulation, 0.05, warmup=1, accumulation=accumulation, clip=9.0)
    weigh = losses.count_answer_tokens
    log = train.fit("test", model, loss_of, batches, loop, directory, Accelerator(cpu=True), batch_weight=weigh)
    return model.weight.detach(), [point["loss"] for point in log.curve]


def test_accumulation_means_a_larger_batch_and_the_rate_rises_and_falls(tmp_path):
    reference, curve = learn_rows(tmp_path / "whole", 12, 1)
    for batch, accumulation in ((6, 2), (1, 12)):
        other, again = learn_rows(tmp_path / str(batch), batch, accumulation)
        torch.testing.assert_close(other, reference, rtol=1e-5, atol=1e-7)
        assert again == pytest.approx(curve, rel=1e-5)
    rates = [LoopConfig(steps=50, learning_rate=1.0, warmup=10).rate(step) for step in range(51)]
    assert rates[:10] == pytest.approx([(n + 1) / 10 for n in range(10)]) and rates[50] == pytest.approx(0, abs=1e-12)
    assert all(a > b for a, b in pairwise(rates[10:]))


class Killed(Exception):
    pass


def learn(directory):
    """Weights and losses of a new draft, whose loss draws the slots that it prunes."""
    batches = ChatBatches(models.processor(), 2, models.RECIPE.image_tokens)
    target = copy.deepcopy(models.target()).float()
    draft = fresh_feature_draft(target, "eagle", seed=3)
    add_compressor(draft, CompressorConfig("prune", **SMALL))
    loop, objective = LoopConfig(6, 1e-2, warmup=2, weight_decay=0.0, checkpoint_every=2), FeatureObjective(rollout=2)
    log = train.distil("eagle", draft, target, batches, objective, loop, directory, Accelerator(cpu=True))
    assert not any(weight.requires_grad for weight in target.parameters())
    return draft.state_dict(), [point["loss"] for point in log.curve]


@pytest.mark.parametrize("die_at", sample([5, 1], 1))
def test_a_killed_loop_resumes_to_the_same_weights_and_draws(tmp_path, die_at, monkeypatch):
    (whole, curve), true, seen = learn(tmp_path / "whole"), losses.feature_losses, []

    def dying(*given):
        seen.append(0)
        if len(seen) > die_at:
            raise Killed
        return true(*given)

    with monkeypatch.context() as patch:
        patch.setattr(losses, "feature_losses", dying)
        with pytest.raises(Killed):
            learn(tmp_path / "killed")
    resumed, again = learn(tmp_path / "killed")
    assert same(whole, resumed) and curve == again


# ----------------------------------------------------------------------------------------- the command


def report(directory):
    return Report.read(directory / "report.json")


def complaint(capsys, root, output, **options):
    """The one line that the command must end with."""
    capsys.readouterr()
    assert main(arguments(root, output, **options)) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("specllava: ")]
    assert len(lines) == 1 and len(lines[0]) < 420
    return lines[0].removeprefix("specllava: ")


def test_a_run_leaves_a_draft_that_loads_a_report_and_a_picture(root, capsys):
    done = report(root / "whole")
    assert done.state == "finished" and done.rows == 28 and done.prompts == 2 and done.left_out.keys() <= {CUT}
    assert [check.step for check in done.checks] == [0, 3, 6]
    assert [point["step"] for point in done.curve] == list(range(6))
    assert all(point["loss"] > 0 and point["kl"] > 0 for point in done.curve)
    for draft in ("draft", "last"):
        assert Pair.load(root / "target", root / "whole" / draft, device="cpu").draft is not None
    assert list((root / "whole" / "work").iterdir()) == []
    page = (root / "whole" / "curve.html").read_text()
    assert "tokens per target pass" in page and "<script src" not in page and "<link" not in page
    assert main(arguments(root, root / "whole")) == 0 and "already done" in capsys.readouterr().out
    # What is validated is the draft that is kept, and without a weight there is no KL to log.
    again = {"draft": root / "whole" / "draft", "steps": 1, "kl_weight": 0.0}
    assert main(arguments(root, root / "again", **again)) == 0
    first = report(root / "again").checks[0]
    assert first.tau == done.best.tau and first.kl == pytest.approx(done.best.kl, rel=1e-6)
    assert [point.keys() for point in report(root / "again").curve] == [{"step", "rate", "loss"}]


def test_a_kill_after_the_last_step_costs_nothing(root, tmp_path, monkeypatch):
    """The training is over, its draft not yet saved."""
    true = train.replace_draft

    def full(draft, processor, directory):
        if directory.name == "last":
            raise OSError("the disk is gone")
        true(draft, processor, directory)

    with monkeypatch.context() as patch:
        patch.setattr(train, "replace_draft", full)
        assert main(arguments(root, tmp_path / "run")) == 1
    with monkeypatch.context() as patch:
        patch.setattr(train, "_accumulate_gradients", lambda *_: pytest.fail("a step was done again"))
        assert main(arguments(root, tmp_path / "run")) == 0
    assert same(weights_of(tmp_path / "run" / "last"), weights_of(root / "whole" / "last"))


def test_the_projector_alone_learns_and_the_target_answers(root, tmp_path):
    options = {"answers": "target", "temperature": 2.0, "projector_only": True}
    assert main(arguments(root, tmp_path / "run", **options)) == 0
    answers = (tmp_path / "run" / "work" / "answers-0-of-1.jsonl").read_text().splitlines()
    assert len(answers) == report(tmp_path / "run").rows == 12  # what six steps of two rows need
    before, after = weights_of(root / "draft"), weights_of(tmp_path / "run" / "last")
    moved = {name for name, weight in before.items() if not torch.equal(weight, after[name])}
    assert moved == {name for name in before if "multi_modal_projector" in name}


@pytest.mark.usefixtures("own_precision")
def test_bfloat16_computes_and_leaves_float32_weights(root, tmp_path):
    assert main(arguments(root, tmp_path / "run", precision="bf16")) == 0
    assert {weight.dtype for weight in weights_of(tmp_path / "run" / "last").values()} == {torch.float32}
    ours, theirs = ([point["loss"] for point in report(run).curve] for run in (tmp_path / "run", root / "whole"))
    assert ours != theirs and ours == pytest.approx(theirs, rel=0.05)
    draft = fresh_feature_draft(models.target()).float()
    cast = cast_weights(copy.deepcopy(draft), torch.bfloat16)
    assert cast.dtype == torch.bfloat16 and torch.equal(cast.rotary_emb.inv_freq, draft.rotary_emb.inv_freq)


@pytest.mark.parametrize(
    "options",
    [
        {"drafter": "eagle3", "draft_vocabulary": 40, "rollout": 2, "draft_heads": 1},
        {"drafter": "eagle", "compressor": "gate", "draft_intermediate": 24},
    ],
)
def test_a_new_draft_loads_and_learns_on(root, tmp_path, options):
    new = {"steps": 2, "validate_every": 0, "drafter": options["drafter"]}
    assert main(arguments(root, tmp_path / "one", draft=None, **new | options)) == 0
    draft = models.pair(None).with_draft(tmp_path / "one" / "draft").draft
    text, config = models.target().config.text_config, draft.config
    heads = options.get("draft_heads", text.num_attention_heads)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (heads, heads, text.head_dim)
    assert config.format == options["drafter"]
    assert config.intermediate_size == options.get("draft_intermediate", text.intermediate_size)
    if "compressor" in options:
        assert CompressorConfig.of(config.compressor) == CompressorConfig("gate")
        return
    assert len(draft.guessable) == 40
    assert main(arguments(root, tmp_path / "more", draft=tmp_path / "one" / "last", **new)) == 0
    assert not same(weights_of(tmp_path / "one" / "last"), weights_of(tmp_path / "more" / "last"))


# ------------------------------------------------------------------------------------------- validation


def test_a_validation_measures_what_decoding_and_whole_passes_say():
    """τ is that of the ordinary loop; KL and agreement are those of whole passes without any cache."""
    pair, draft, config = models.pair(None), models.draft("mixed"), DecodingConfig(max_new_tokens=12)
    prompts = [models.prompt(number) for number in (0, 1, 3)]
    check = validate_draft(pair, copy.deepcopy(draft), prompts, config, 5, Accelerator(cpu=True))
    traces = [models.decode(models.pair("mixed"), prompt, config) for prompt in prompts]
    kl, agreed, read = 0.0, 0, 0
    with torch.inference_mode():
        for prompt, trace in zip(prompts, traces, strict=True):
            ids = torch.cat([prompt.input_ids, torch.tensor([trace.token_ids])], dim=1)
            states = (losses.draft_states(model, ids, prompt.features) for model in (draft, pair.target))
            ours, theirs = (
                model.lm_head(own)[0, prompt.length - 1 : -1].log_softmax(-1)
                for model, own in zip((draft, pair.target), states, strict=True)
            )
            assert theirs.argmax(-1).tolist() == list(trace.token_ids)
            kl += float((theirs.exp() * (theirs - ours)).sum())
            agreed += int((ours.argmax(-1) == theirs.argmax(-1)).sum())
            read += len(trace.token_ids)
    assert check.step == 5 and check.tau == summarise(traces).tau > 1.0
    assert check.kl == pytest.approx(kl / read, rel=1e-6) and check.agreement == agreed / read


def test_the_best_draft_by_tau_is_kept(root, tmp_path, monkeypatch):
    taus = iter([2.0, 2.5, 2.5, 2.4])
    monkeypatch.setattr(
        train, "validate_draft",
        lambda pair, draft, prompts, config, step, accelerator: ValidationResult(step, 1.0, 0.5, next(taus), 10, 5),
    )  # fmt: skip
    assert main(arguments(root, tmp_path / "run", steps=6, validate_every=2)) == 0
    assert report(tmp_path / "run").best.step == 2
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {"draft", "last", "work", "report.json", "curve.html"}


# ---------------------------------------------------------------------------------------------- refusals


def test_what_cannot_be_taught_is_refused_in_one_line(root, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cases = (
        ({"target": "nowhere"}, "no model at nowhere: "),
        ({"draft": Path("nowhere")}, "no model at nowhere: "),
        ({"data": Path("nowhere")}, "no data file at nowhere: "),
        ({"images": Path("nowhere")}, "no images directory at nowhere: "),
        ({"draft": None}, "--draft is missing: name one (draft init makes it)"),
        ({"drafter": "eagle"}, "learns with --drafter vlm, not with --drafter eagle"),
        ({"drafter": "eagle", "draft": None, "draft_heads": 99}, "99 heads for a draft of a target with"),
        ({"draft_heads": 2}, "has its sizes: leave --draft-heads, "),
        ({"drafter": "eagle", "draft": None, "draft_vocabulary": 50}, "an eagle draft guesses every token"),
        ({"decoding.drafter": "none"}, "validation decodes greedily with the draft"),
        ({"compressor": "gate"}, "a gate reads the target's states"),
        ({"compressor": "pool", "drafter": "eagle3", "draft": None}, "only vlm and eagle drafts take a compressor"),
    )
    for number, (options, words) in enumerate(cases):
        assert words in complaint(capsys, root, tmp_path / str(number), **options)
    bounds = (
        ({"steps": 0}, "steps"), ({"kl_weight": 1.5}, "kl_weight"), ({"temperature": 0}, "temperature"),
        ({"drafter": "eagle3", "projector_only": True}, "one layer without a projector"),
        ({"drafter": "eagle", "ce_weight": 0.0, "feature_weight": 0.0}, "nothing to learn"),
    )  # fmt: skip
    for options, words in bounds:
        with pytest.raises(ValueError, match=words):
            DistillConfig(**options)


def test_drafts_that_do_not_fit_are_refused_with_the_way_out(root, tmp_path, capsys):
    processor = build_processor(replace(models.RECIPE, vocabulary=300))
    stranger = DraftLlava(models.RECIPE.llava_config(1, models.RECIPE.draft_hidden, special_ids(processor)))
    save(stranger, processor, tmp_path / "stranger")
    line = complaint(capsys, root, tmp_path / "run", draft=tmp_path / "stranger")
    assert "the draft's tokenizer is not the target's" in line
    checkpoints.write_llama(tmp_path / "llama")
    target, other = (checkpoints.write_llava(tmp_path / str(seed), "llava", seed=seed) for seed in (0, 1))
    init_draft(other, target, tmp_path / "own")
    init_draft(tmp_path / "llama", target, tmp_path / "blind", text_only=True)
    line = complaint(capsys, root, tmp_path / "run", target=target, draft=tmp_path / "own")
    assert "has a tower of its own" in line and '"specllava draft init", with --text-only or without' in line
    line = complaint(capsys, root, tmp_path / "run", target=target, draft=tmp_path / "blind", projector_only=True)
    assert "has no projector: leave --projector-only out" in line
    assert main(arguments(root, tmp_path / "vlm", compressor="pool", steps=1)) == 0
    assert models.pair(None).with_draft(tmp_path / "vlm" / "draft").draft.compressor.names == ("pool",)
    again = {"draft": tmp_path / "vlm" / "draft", "compressor": "conv"}
    assert "has a compressor already" in complaint(capsys, root, tmp_path / "run", **again)


def test_another_runs_output_is_refused_with_the_options_that_differ(root, capsys):
    line = complaint(capsys, root, root / "whole", steps=7, seed=9)
    assert line.endswith("holds another run (steps 6 there, 7 here, seed 0 there, 9 here): choose another --output")
    line = complaint(capsys, root, root / "whole", **{"decoding.depth": 3})
    assert f"(decoding.depth {DecodingConfig().depth} there, 3 here)" in line
    assert "exists and is no distillation run" in complaint(capsys, root, root / "target")
    assert "exists and is no distillation run" in complaint(capsys, root, root / "data.json")


def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_good_checkpoint(root, tmp_path, capsys):
    """Steps of an absurd size throw the weights out of what float32 holds."""
    line = complaint(capsys, root, tmp_path / "run", learning_rate=1e30, warmup=0, checkpoint_every=1)
    assert line.startswith("draft: the loss is ")
    assert line.endswith("; the last checkpoint is kept: try a smaller --learning-rate, with another --output")
    step = int(line.split(" at step ")[1].split(";")[0])
    kept = torch.load(tmp_path / "run" / "work" / "last.pt", weights_only=True)
    assert kept["step"] == step > 0 and all(bool(one.isfinite().all()) for one in kept["parts"][0].values())
    assert same(weights_of(tmp_path / "run" / "draft"), weights_of(root / "draft"))  # the best that was validated
