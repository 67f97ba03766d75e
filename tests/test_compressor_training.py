"""A compressor learns with its draft, on what decoding reads, and from the command."""

from __future__ import annotations

import copy

import pytest
import torch
from support import models
from support.distilling import arguments, write_data, write_pair
from test_feature_training import batch_of, command, draft_of, plain_loss, texts_of

from specllava.cli.main import main
from specllava.distill.config import FeatureObjective, Objective
from specllava.distill.feature_losses import feature_losses
from specllava.distill.losses import IGNORE
from specllava.distill.stage import answer_positions, chat_states, draft_model_losses, feature_draft_losses
from specllava.models.drafts.compressor import KINDS, CompressorConfig
from specllava.models.drafts.compressor import add_compressor
from specllava.models.drafts.draft_vlm import DraftLlava
from specllava.prompt import kept_slots

SMALL = {"prune_ratio": 2, "pool_ratio": 2, "conv_ratio": 2, "queries": 1}


def eagle_with(kind, **options):
    draft = draft_of("eagle", True)
    add_compressor(draft, CompressorConfig(kind, **SMALL, **options), seed=3)
    source = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for weight in draft.compressor.parameters():
            weight += 0.2 * torch.randn(weight.shape, generator=source, dtype=weight.dtype)
    return draft


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "gate"])
def test_the_loss_is_the_plain_one_over_text_entries(kind):
    """As at inference, where pruning draws nothing; also with steps on the draft's own states."""
    draft = eagle_with(kind).eval()
    texts = texts_of(draft, 1)
    objective = FeatureObjective(ce_weight=0.3, feature_weight=0.7, rollout=2)
    with torch.no_grad():
        found = feature_losses(draft, texts, objective)["loss"].item()
        assert found == pytest.approx(float(plain_loss(draft, texts, objective)), rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pictures", [True, False])
def test_every_weight_of_draft_compressor_and_gate_has_a_gradient(kind, pictures):
    draft, batch = eagle_with(kind).train(), batch_of(0)
    if not pictures:
        batch = {"input_ids": batch["input_ids"].clamp(min=10), "labels": batch["labels"]}
    feature_draft_losses(models.target(), FeatureObjective(rollout=2))(draft, batch)["loss"].backward()
    for name, weight in draft.named_parameters():
        assert weight.grad is not None, name
        assert not pictures or weight.grad.abs().sum() > 0, name


@pytest.mark.parametrize("chosen", ["pool", "resampler", "text"])
def test_a_gate_that_is_sure_learns_as_the_chosen_operator_alone(chosen):
    """By the state of the last token before the first answer, and whatever the answer is."""
    draft = eagle_with("gate", branches=("pool", "resampler", "text"))
    gate = draft.compressor.gate
    with torch.no_grad():
        gate.weight.zero_()
        gate.bias.copy_(200.0 * torch.tensor([float(name == chosen) for name in draft.compressor.names]))
        texts = texts_of(draft, 0)
        losses = []
        for training in (True, False):
            draft.train(training)
            losses.append(feature_losses(draft, texts, FeatureObjective(rollout=3))["loss"].item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)


def test_the_gate_reads_the_prompt_and_not_the_answer():
    draft = eagle_with("gate").train()
    texts = texts_of(draft, 2)
    seen = []
    hook = draft.compressor.gate.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    feature_losses(draft, texts, FeatureObjective())
    hook.remove()
    for row, labels in enumerate(texts.labels):
        last = int((labels != IGNORE).nonzero()[0]) - 1
        assert torch.equal(seen[row], texts.states[row, last])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "gate"])
def test_a_draft_vlm_learns_on_the_prompt_that_it_reads(kind):
    """Fewer slots, the same answers: the labels of what is left are those of the whole text."""
    config = copy.deepcopy(models.draft("bad").config)
    draft, batch = models.seeded(DraftLlava, config, 7).double(), batch_of(0)
    add_compressor(draft, CompressorConfig(kind, **SMALL))
    draft.eval()
    losses = draft_model_losses(models.target(), Objective(kl_weight=0.0))(draft, batch)
    losses["loss"].backward()
    assert all(weight.grad is not None for weight in draft.compressor.parameters())
    features = models.target().model.vision_tower(batch["pixel_values"]).last_hidden_state[:, 1:]
    total, count = torch.zeros((), dtype=torch.float64), 0
    for row, picture in enumerate(features):
        ids, labels = batch["input_ids"][row : row + 1], batch["labels"][row : row + 1]
        kept = kept_slots(draft, ids, picture[None])[0]
        states = chat_states(draft, ids[:, kept], picture[None])
        ours, tokens = answer_positions(states, labels[:, kept])
        total = total - draft.lm_head(ours).log_softmax(-1).gather(1, tokens[:, None]).sum()
        count += len(tokens)
    assert count == int((batch["labels"] != IGNORE).sum())
    assert losses["loss"].item() == pytest.approx(total.item() / count, rel=1e-5)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("compressed")
    write_pair(root)
    write_data(root, 12)
    return root


@pytest.mark.parametrize("kind", ["gate", "conv"])
def test_the_command_trains_a_new_eagle_with_a_compressor(place, tmp_path, kind):
    assert main(command(place, tmp_path / "one", drafter="eagle", compressor=kind)) == 0
    draft = models.pair(None).with_draft(tmp_path / "one" / "draft").draft
    assert CompressorConfig.of(draft.config.compressor) == CompressorConfig(kind)


def test_the_command_adds_a_compressor_to_a_draft_that_is_there(place, tmp_path, capsys):
    assert main(arguments(place, tmp_path / "vlm", compressor="pool", steps=2)) == 0
    draft = models.pair(None).with_draft(tmp_path / "vlm" / "draft").draft
    assert draft.compressor.names == ("pool",)
    again = {"draft": tmp_path / "vlm" / "draft", "steps": 2}
    assert main(arguments(place, tmp_path / "more", **again)) == 0  # goes on with the compressor that it has
    assert models.pair(None).with_draft(tmp_path / "more" / "draft").draft.compressor is not None
    assert main(arguments(place, tmp_path / "twice", compressor="conv", **again)) == 1
    assert "has a compressor already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"compressor": "gate"}, "a gate reads the target's states"),
        ({"compressor": "pool", "drafter": "eagle3"}, "only vlm and eagle drafts take a compressor"),
    ],
)
def test_a_compressor_that_does_not_fit_is_refused(place, tmp_path, capsys, options, told):
    given = command if "drafter" in options else arguments
    assert main(given(place, tmp_path / "one", **options)) == 1
    assert told in capsys.readouterr().err
