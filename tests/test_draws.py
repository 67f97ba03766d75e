"""What a sampling verifier drew, as traces hold it: enough to judge every guess again; it changes no run."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from support import models
from support.amount import sample
from support.chances import World, drawn, rows

from specllava.core.config import DecodingConfig
from specllava.core.trace import DecodeTrace, Draw, StepTrace, Verification
from specllava.lane import Lane
from specllava.pair import Pair
from specllava.verification.sampling import LIKELY, DrawRecorder, SeededRandom, verify_drawn

SEEDS = range(40)
PAIR_SHAPE = (((),), ((), ()))  # two guesses, which have one and two children
OPTIONS = {
    "best": DecodingConfig(temperature=1.2, max_branches=3, entropy_threshold=0.0, min_log_prob=-50.0),
    "drawn": DecodingConfig(temperature=1.2, rule="sequoia", depth=3, nodes=6, children="drawn"),
    "narrow": DecodingConfig(temperature=1.2, top_k=3, rule="fixed", branching=(4, 2), children="drawn"),
    "alone": DecodingConfig(temperature=1.2, drafter="none"),
}
EVERY = pytest.mark.parametrize("kind", OPTIONS)


def run(pair: Pair, kind: str, seed: int, length: int = 12) -> DecodeTrace:
    config = replace(OPTIONS[kind], seed=seed, max_new_tokens=length)
    return models.decode(pair, models.prompt(seed % 4), config)


def of_draws(step: StepTrace) -> Verification:
    """The verdict that a step's draws spell, from their numbers alone."""
    node, accepted = 0, []
    children = step.tree.children()
    for draw in step.draws:
        child = next((n for n in children[draw.node] if step.tree.tokens[n] == draw.token), None)
        if draw.acceptance is None and draw.node == step.verification.path[-1]:
            return Verification(tuple(accepted), draw.token)
        assert child is not None
        if draw.accepted:
            accepted = [*step.tree.path(child)[1:]]
            node = child
        else:
            assert draw.node == node
    raise AssertionError("the last draw is the target's own")


@EVERY
@pytest.mark.parametrize("seed", sample(SEEDS, 10))
def test_the_draws_of_a_run_spell_its_verdicts(tiny: Pair, kind: str, seed: int) -> None:
    trace = run(tiny, kind, seed)
    for step in trace.steps:
        assert of_draws(step) == step.verification
        for draw in step.draws:
            place = draw.tokens.index(draw.token)
            assert sum(draw.target_probs) <= 1 + 1e-6 and sum(draw.draft_probs) <= 1 + 1e-6
            assert draw.target_probs[place] == pytest.approx(draw.target_prob, abs=1e-6)
            assert list(draw.tokens) == sorted(set(draw.tokens)) and len(draw.tokens) <= 2 * LIKELY + 1
            if draw.acceptance is None:
                below = [start <= draw.uniform for start in draw.starts]
                assert sum(below) - 1 == place and below == sorted(below, reverse=True)
                assert draw.uniform < draw.starts[place] + draw.target_prob + 1e-12
            else:
                assert draw.draft_prob and draw.acceptance == min(1.0, draw.target_prob / draw.draft_prob)


@pytest.mark.parametrize("kind", ["drawn", "narrow"])
def test_after_a_refusal_the_next_draw_uses_the_residual(tiny: Pair, kind: str) -> None:
    """Of the words that both records name: what was left of p and q, scaled to one, is what comes next."""
    met = 0
    for seed in SEEDS:
        for step in run(tiny, kind, seed).steps:
            for before, after in pairwise(step.draws):
                if before.accepted or before.node != after.node:
                    continue
                rest = {
                    token: max(p - q, 0.0)
                    for token, p, q in zip(before.tokens, before.target_probs, before.draft_probs, strict=True)
                }
                seen = dict(zip(after.tokens, after.target_probs, strict=True))
                both = [token for token in rest if rest[token] > 1e-4 and token in seen]
                ratios = [seen[token] / rest[token] for token in both]
                assert ratios == pytest.approx([ratios[0]] * len(ratios), rel=1e-2) if ratios else True
                assert seen.get(before.token, 0.0) == 0.0
                met += len(both) > 1
    assert met > 20


@EVERY
@pytest.mark.parametrize("seed", sample(SEEDS, 3))
def test_recording_changes_neither_tokens_nor_trees(tiny: Pair, kind: str, seed: int) -> None:
    config = replace(OPTIONS[kind], seed=seed, max_new_tokens=12)
    lane = Lane("speculative", config, models.prompt(0))
    recorded, bare = (tiny.run(lane, record=record) for record in (True, False))
    assert all(step.draws for step in recorded.steps) and not any(step.draws for step in bare.steps)
    with_draws, without = (
        [(step.tree, step.verification, step.emitted) for step in trace.steps] for trace in (recorded, bare)
    )
    assert with_draws == without


@EVERY
def test_a_sampled_trace_comes_back_equal_with_every_text(tiny: Pair, kind: str) -> None:
    for seed in range(6):
        trace = run(tiny, kind, seed)
        written = trace.to_json()
        assert DecodeTrace.from_json(written) == trace and DecodeTrace.from_json(written).to_json() == written
        assert {token for step in trace.steps for draw in step.draws for token in draw.tokens} <= {*trace.texts}


def test_without_a_temperature_nothing_is_added_to_the_file(tiny: Pair) -> None:
    trace = models.decode(tiny, models.prompt(0), DecodingConfig(max_new_tokens=12))
    assert all("draws" not in step for step in json.loads(trace.to_json())["steps"])


def test_an_observer_costs_no_random_number() -> None:
    for seed in range(200):
        world, ends = World(seed, vocabulary=4), []
        for observed in (False, True):
            chance = SeededRandom(seed)
            tree = drawn(world, PAIR_SHAPE)(chance)
            recorder = DrawRecorder(chance)
            given = (tree, rows(tree, world.target), rows(tree, world.draft), chance)
            verdict = verify_drawn(*given, recorder) if observed else verify_drawn(*given)
            ends.append((verdict, chance.draw(torch.full((50,), 0.02))))
        assert ends[0] == ends[1]


DRAW = Draw(0, 5, 0.5, 0.75, 0.3, 0.4, (4, 5), (0.6, 0.3), (0.5, 0.4))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"target_probs": (0.6,)}, "one probability of each kind"),
        ({"draft_probs": ()}, "one probability of each kind"),
        ({"starts": (0.0, 0.6)}, "one probability of each kind"),
        ({"draft_prob": None}, "one probability of each kind"),
        ({"acceptance": None}, "one probability of each kind"),
        ({"token": 6}, "token 6 is not among those"),
    ],
)
def test_a_draw_that_is_none_is_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        replace(DRAW, **change)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"uniform": 1.0}, "uniform"), ({"uniform": float("nan")}, "uniform"), ({"node": 99}, "a draw follows none"),
        ({"target_prob": 1.5}, "target_prob"), ({"surprise": 1}, "surprise"), ({"tokens": [-1, 5]}, "tokens"),
        ({"tokens": [4, 999_999], "token": 999_999}, "no text for token ids"),
    ],
)  # fmt: skip
def test_a_file_with_a_draw_that_no_run_can_have_is_refused(
    tiny: Pair, change: dict[str, object], said: str
) -> None:
    document = json.loads(run(tiny, "drawn", 0).to_json())
    draw = next(draw for draw in document["steps"][0]["draws"] if len(draw["tokens"]) > 2)
    draw |= change
    if "tokens" in change:
        for name in ("target_probs", "draft_probs", "starts"):
            draw[name] = draw[name][:2]
    with pytest.raises(ValueError, match=said):
        DecodeTrace.from_json(json.dumps(document))
