"""Drafts that read the target's states learn from the loss that is written down, on exactly what decoding reads."""

from __future__ import annotations

import copy
from dataclasses import fields, replace

import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from support import models
from support.amount import sample
from support.distilling import arguments, same, weights, write_data, write_pair

from recipes.toy.corpus import ChatBatches
from specllava.cli.main import main
from specllava.distill import stage as stages
from specllava.distill.config import DistillConfig, FeatureObjective, LoopConfig
from specllava.distill.feature_losses import DECAY, RolloutCache, TargetTexts, feature_losses, rollout_mask
from specllava.distill.losses import IGNORE
from specllava.distill.stage import distil, feature_draft_losses, target_texts
from specllava.distill.validation import _cast
from specllava.findings.distillation import Report
from specllava.models.drafts.draft_vlm import save
from specllava.models.drafts.eagle import fresh_feature_draft
from specllava.scoring import draft_log_probs

KINDS = (("eagle", True), ("eagle", False), ("msd", False), ("vispec", False), ("eagle3", False))
GUESSABLE = tuple(range(0, models.RECIPE.vocabulary, 3))


def draft_of(kind, norm, seed=0, guessable=None):
    """Random, in float64; its weights are drawn wide, so that every part matters."""
    made = fresh_feature_draft(models.target(), kind, norm, guessable, seed=seed).double()
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in made.parameters():
            if weight.dim() > 1:
                weight += 0.2 * torch.randn(weight.shape, generator=source, dtype=weight.dtype)
    return made


def batch_of(seed, size=2):
    """A batch of the toy corpus, with pixels as the target takes them."""
    made = ChatBatches(models.processor(), size, models.RECIPE.image_tokens)(seed)
    return {**made, "pixel_values": made["pixel_values"].double()}


def texts_of(draft, seed, size=2):
    """Cut behind a few tokens of the first answer, since the plain loss is slow."""
    whole = target_texts(models.target(), batch_of(seed, size), draft.config.state_layers)
    end = int((whole.labels != IGNORE).int().argmax(dim=1).max()) + 9
    return TargetTexts(*(getattr(whole, part.name)[:, :end] for part in fields(whole)))


def chains(draft, ids, labels, embeds, states, steps):
    """States of the chain drafted from each text entry, one entry after the other and without any trick.

    Each chain reads the entries up to its own again, then its own states with the true tokens behind it.
    """
    entries = draft.entries(ids[1:], embeds[1:], states[:-1])
    found = {}
    for number, source in enumerate(entries.sources):
        if source < 0 or not (labels[source + 2 : source + 2 + steps] != IGNORE).any():
            continue
        inputs, positions = entries.inputs[: number + 1], list(entries.positions[: number + 1])
        for step in range(steps):
            own = draft(inputs[None], draft.rotations(torch.tensor(positions)[None]))[0, -1]
            found[source, step] = own
            if source + 2 + step >= len(ids):
                break
            token = draft.embed(ids[source + 2 + step])
            following = draft.inputs(token[None], own[None], guessed=True, image=entries.image)
            inputs, positions = torch.cat([inputs, following]), [*positions, positions[-1] + 1]
    return found


def plain_loss(draft, texts, objective):
    """The loss as its docstring says it, answer token by answer token."""
    eagle3, head = draft.config.format == "eagle3", models.target().lm_head
    ids = range(models.RECIPE.vocabulary) if draft.guessable is None else draft.guessable.tolist()
    terms = {step: [] for step in range(objective.rollout)}
    for row in range(len(texts.ids)):
        one = (getattr(texts, name)[row] for name in ("ids", "labels", "embeds", "states"))
        drafted = chains(draft, *one, objective.rollout)
        for (source, step), own in drafted.items():
            predicted = source + 2 + step
            if predicted >= texts.ids.shape[1] or texts.labels[row, predicted] == IGNORE:
                continue
            true = texts.last[row, predicted - 1]
            logits = head(true)
            p, q = logits[list(ids)].softmax(-1), draft.logits(own[None])[0, list(ids)].log_softmax(-1)
            counted = int(logits.argmax()) in ids
            features = F.smooth_l1_loss(own, true)
            terms[step].append((float(counted), -(p * q).sum() * counted, features))
    loss = 0.0
    for step, parts in terms.items():
        ce = sum(part[1] for part in parts) / max(1.0, sum(part[0] for part in parts))
        features = sum(part[2] for part in parts) / len(parts)
        one = ce if eagle3 else objective.ce_weight * ce + objective.feature_weight * features
        loss = loss + DECAY**step * one
    return loss


@pytest.mark.parametrize(("kind", "norm"), KINDS)
@pytest.mark.parametrize("seed", range(2))
def test_the_loss_is_the_plain_one_step_by_step(kind, norm, seed):
    """Also: a step's attention, over keys of all steps at once, is that of a chain run by itself."""
    draft = draft_of(kind, norm, seed, GUESSABLE if kind == "eagle3" else None)
    texts = texts_of(draft, seed)
    objective = FeatureObjective(ce_weight=0.3, feature_weight=0.7, rollout=3, chunk=7)
    with torch.no_grad():
        found = feature_losses(draft, texts, objective)
        assert found["loss"].item() == pytest.approx(float(plain_loss(draft, texts, objective)), rel=1e-5)
    assert found["kl"] >= 0
    assert ("features" in found) == (kind != "eagle3")


def test_a_step_sees_true_entries_and_its_own_chain_only():
    mask = rollout_mask(torch.tensor([[0, 2], [1, -1]]), 3, 2)[:, 0].int().tolist()
    assert mask[0] == [[1, 0, 0, 1, 0, 1, 0], [1, 1, 1, 0, 1, 0, 1]]
    assert mask[1] == [[1, 1, 0, 1, 0, 1, 0], [0, 0, 0, 0, 1, 0, 1]]  # the second chain is padding


@pytest.mark.parametrize(("kind", "norm"), KINDS)
@pytest.mark.parametrize("number", range(4))
@torch.no_grad()
def test_training_reads_what_decoding_reads(kind, norm, number):
    """The logits of the first step are those of the engines on the same text."""
    draft, prompt, answer = draft_of(kind, norm), models.prompt(number), models.reference(number, 0)[:8]
    expected = draft_log_probs(models.target(), draft, prompt, answer)
    ids = torch.cat([prompt.input_ids, torch.tensor([answer])], dim=1)
    labels = ids.clone()
    labels[:, : prompt.length] = IGNORE
    batch = {"input_ids": ids, "labels": labels}
    if prompt.features is not None:
        batch |= {
            "pixel_values": models.plain_inputs(number)["pixel_values"].clone(),
            "image_sizes": torch.tensor([[40, 48]]),
        }
    texts = target_texts(models.target(), batch, draft.config.state_layers)
    entries = draft.entries(texts.ids[0, 1:], texts.embeds[0, 1:], texts.states[0, :-1])
    positions = torch.tensor(entries.positions)[None]
    own = draft(entries.inputs[None], draft.rotations(positions), None, RolloutCache())
    rows = own[0, -len(answer) - 1 : -1]  # the last entry predicts what follows the answer
    torch.testing.assert_close(torch.log_softmax(draft.logits(rows), -1), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("kind", "norm"), KINDS)
@pytest.mark.parametrize("pictures", [True, False])
def test_every_weight_has_a_gradient(kind, norm, pictures):
    """Several processes wait for one of each; without pictures some have nothing to learn."""
    draft, batch = draft_of(kind, norm), batch_of(0)
    if not pictures:
        batch = {"input_ids": batch["input_ids"].clamp(min=10), "labels": batch["labels"]}
        batch["input_ids"][batch["input_ids"] == models.target().config.image_token_id] = 20
    feature_draft_losses(models.target(), FeatureObjective(rollout=2))(draft, batch)["loss"].backward()
    missing = [name for name, weight in draft.named_parameters() if weight.grad is None]
    assert not missing
    if pictures:
        zero = [name for name, weight in draft.named_parameters() if not weight.grad.abs().sum()]
        assert not zero


def test_a_restricted_vocabulary_counts_only_what_it_can_guess():
    """Where the target's likeliest token is none of the draft's, the position does not count."""
    draft = draft_of("eagle3", False, guessable=GUESSABLE)
    texts = texts_of(draft, 1)
    likeliest = models.target().lm_head(texts.last).argmax(-1)
    outside = torch.zeros_like(texts.labels, dtype=torch.bool)
    outside[:, 1:] = ~torch.isin(likeliest[:, :-1], torch.tensor(GUESSABLE))
    hidden = replace(texts, labels=texts.labels.masked_fill(outside, IGNORE))
    assert 0 < int((hidden.labels != IGNORE).sum()) < int((texts.labels != IGNORE).sum())
    one, other = (feature_losses(draft, each, FeatureObjective())["loss"].item() for each in (texts, hidden))
    assert one == pytest.approx(other, rel=1e-6)
    assert draft.logits(torch.zeros(1, draft.config.hidden_size).double()).isfinite().sum() == len(GUESSABLE)


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_a_new_draft_depends_on_its_seed_alone(kind):
    torch.manual_seed(5)
    one = fresh_feature_draft(models.target(), kind, seed=1).state_dict()
    torch.manual_seed(6)
    again, other = (fresh_feature_draft(models.target(), kind, seed=seed).state_dict() for seed in (1, 2))
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one["fc.weight"], other["fc.weight"])


class Killed(Exception):
    pass


@pytest.mark.parametrize("die_at", [1, 5])
def test_a_killed_run_goes_on_to_the_same_weights(tmp_path, die_at, monkeypatch):
    """Noise is drawn in the loss, and is the same behind a checkpoint."""
    loop = LoopConfig(6, 1e-2, warmup=2, checkpoint_every=2)
    objective = FeatureObjective(rollout=2, noise=0.5)
    batches = ChatBatches(models.processor(), 2, models.RECIPE.image_tokens)
    target = copy.deepcopy(models.target()).float()
    target.requires_grad_(True)

    def run(directory):
        draft = fresh_feature_draft(target, seed=3)
        distil("eagle", draft, target, batches, objective, loop, directory, Accelerator(cpu=True))
        return draft.state_dict()

    whole, true = run(tmp_path / "whole"), stages.feature_losses
    seen = []

    def dying(*arguments):
        seen.append(0)
        if len(seen) > die_at:
            raise Killed
        return true(*arguments)

    monkeypatch.setattr(stages, "feature_losses", dying)
    with pytest.raises(Killed):
        run(tmp_path / "killed")
    monkeypatch.setattr(stages, "feature_losses", true)
    resumed = run(tmp_path / "killed")
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert not any(weight.requires_grad for weight in target.parameters())


@pytest.mark.parametrize(("kind", "norm"), KINDS)
def test_a_saved_draft_loads_with_its_target(tmp_path, kind, norm):
    draft = draft_of(kind, norm, guessable=GUESSABLE if kind == "eagle3" else None)
    kept = {name: one.clone() for name, one in draft.state_dict().items()}
    save(draft, None, tmp_path / "draft", torch.float64)
    loaded = models.pair(None).with_draft(tmp_path / "draft").draft
    again = fresh_feature_draft(models.target(), kind, norm, GUESSABLE if kind == "eagle3" else None).double()
    assert type(loaded) is type(again)
    assert loaded.config.format == kind
    assert loaded.config.input_norm == norm
    states = torch.randn(3, draft.config.hidden_size, generator=torch.Generator().manual_seed(0)).double()
    again.load_state_dict(kept)
    torch.testing.assert_close(loaded.logits(states), again.logits(states), rtol=0, atol=1e-12)


def test_options_that_teach_nothing_are_refused():
    with pytest.raises(ValueError, match="nothing to learn"):
        DistillConfig(drafter="eagle", ce_weight=0.0, feature_weight=0.0)
    with pytest.raises(ValueError, match="without a projector"):
        DistillConfig(drafter="eagle3", projector_steps=4)


def test_noise_changes_the_loss():
    draft = draft_of("eagle", True)
    texts = texts_of(draft, 0)
    silent, loud = (feature_losses(draft, texts, FeatureObjective(noise=width))["loss"] for width in (0.0, 1.0))
    assert not torch.equal(silent, loud)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("eagle")
    write_pair(root)
    write_data(root, 12)
    return root


def command(place, output, **options):
    """The distill command without a draft to begin with."""
    given = arguments(place, output, steps=4, validate_every=2, **options)
    begin = given.index("--draft")
    return given[:begin] + given[begin + 2 :]


@pytest.mark.parametrize(
    "options", sample([{"drafter": "eagle3", "draft_vocabulary": 60, "rollout": 2}, {"drafter": "eagle"}], 1)
)
def test_the_command_makes_a_draft_that_loads_and_goes_on_from_it(place, tmp_path, options):
    for name in ("one", "again"):
        assert main(command(place, tmp_path / name, **options)) == 0
    report = Report.read(tmp_path / "one" / "report.json")
    assert report.state == "finished"
    assert all(check.kl >= 0 for check in report.checks)
    assert same(weights(tmp_path / "one" / "last"), weights(tmp_path / "again" / "last"))
    draft = models.pair(None).with_draft(tmp_path / "one" / "draft").draft
    assert draft.config.format == options["drafter"]
    if "draft_vocabulary" in options:
        assert len(draft.guessable) == 60
    more = arguments(place, tmp_path / "more", **options | {"draft": tmp_path / "one" / "last", "steps": 2})
    assert main(more) == 0
    assert not same(weights(tmp_path / "one" / "last"), weights(tmp_path / "more" / "last"))


def test_a_draft_of_another_kind_is_refused(place, tmp_path, capsys):
    assert main(arguments(place, tmp_path / "one", drafter="eagle")) == 1
    assert "learns with --drafter vlm" in capsys.readouterr().err
    assert main(command(place, tmp_path / "two")) == 1
    assert "--draft is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options", [{"draft_heads": 1}, {"draft_intermediate": 24}, {"draft_heads": 1, "drafter": "eagle3"}]
)
def test_a_new_draft_may_be_narrower_than_its_target(place, tmp_path, options):
    assert main(command(place, tmp_path / "run", **{"drafter": "eagle"} | options)) == 0
    config = models.pair(None).with_draft(tmp_path / "run" / "draft").draft.config
    text = models.target().config.text_config
    assert (
        config.num_attention_heads
        == config.num_key_value_heads
        == (options.get("draft_heads") or text.num_attention_heads)
    )
    assert config.head_dim == text.head_dim
    assert config.intermediate_size == options.get("draft_intermediate", text.intermediate_size)


def test_more_heads_than_the_target_has_are_refused(place, tmp_path, capsys):
    assert main(command(place, tmp_path / "run", drafter="eagle", draft_heads=99)) == 1
    assert "99 heads for a draft of a target with" in capsys.readouterr().err


def test_validation_in_another_precision_keeps_rotary_frequencies():
    draft = fresh_feature_draft(models.target()).float()
    cast = _cast(copy.deepcopy(draft), torch.bfloat16)
    assert cast.dtype == torch.bfloat16
    assert torch.equal(cast.rotary_emb.inv_freq, draft.rotary_emb.inv_freq)
