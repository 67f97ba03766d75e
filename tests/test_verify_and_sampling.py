"""Greedy verdicts are the longest agreed branch; with every outcome of chance enumerated, sampling is lossless.

What a sampling verifier drew is recorded: enough to judge every guess again, and it changes no run.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import chances, models
from support.cases import sample
from support.chances import EXACT, Shape, World, chosen, drawn, make_tree, tally
from transformers.generation import LogitsProcessorList

from specllava.config import DecodingConfig
from specllava.pair import Pair
from specllava.spec_decode import rejection_sampler
from specllava.spec_decode.logits_processing import warpers
from specllava.spec_decode.loop import clip
from specllava.spec_decode.rejection_sampler import RejectionSampler, SeededRandom, verify_drawn, verify_greedy, warp
from specllava.trace import DecodeTrace, StepTrace, Verification
from specllava.tree import DraftTree

VOCABULARY = 6


@st.composite
def judged_trees(draw: st.DrawFn) -> tuple[DraftTree, list[int]]:
    """A tree and the target's choices, which agree with some child more often than chance would have it."""
    tree = draw(models.trees(vocabulary=VOCABULARY))
    choices = []
    for family in tree.children():
        anything = st.integers(0, VOCABULARY - 1)
        choices.append(draw(st.sampled_from([tree.tokens[n] for n in family]) | anything if family else anything))
    return tree, choices


@given(judged_trees())
def test_the_longest_agreed_branch_is_accepted(judged: tuple[DraftTree, list[int]]):
    """So the token after it was not on offer: with it the branch would be longer."""
    tree, choices = judged
    paths = [tree.path(node) for node in range(len(tree))]
    agreed = [path for path in paths if all(tree.tokens[child] == choices[node] for node, child in pairwise(path))]
    verdict = verify_greedy(tree, choices)
    assert verdict.path == max(agreed, key=len)
    assert verdict.bonus_token == choices[verdict.path[-1]]


def test_clip_stops_after_the_first_end_or_when_the_room_is_full():
    for room, ends in product(range(1, 8), [(), (0,), (1,), (2,), (3,), (4,), (0, 4), (2, 3)]):
        tokens = [90 + at if at in ends else at for at in range(5)]
        wanted = list[int]()
        for token in tokens:
            if len(wanted) < room and not any(before >= 90 for before in wanted):
                wanted.append(token)
        assert clip(tokens, room, frozenset(range(90, 95))) == tuple(wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_greedy_sampler_takes_the_likeliest_tokens_whoever_computes_them(dtype: torch.dtype):
    """It draws nothing; the numbers that a pass computes tell logits that are none, too."""
    tree, chance = models.random_tree(0), SeededRandom(0)
    logits = torch.randn(len(tree), 280, generator=torch.Generator().manual_seed(1)).to(dtype)
    likeliest = [int(row.argmax()) for row in logits.double().numpy()]
    sampler = RejectionSampler(0.0, chance, LogitsProcessorList())
    assert sampler.reduction(logits).tolist() == [[token, 1.0] for token in likeliest]
    assert [sampler.first_token(row) for row in logits] == likeliest
    assert sampler.verify(tree, logits) == (verify_greedy(tree, likeliest), None)
    assert sampler.verify(tree, logits, reduced=[[5, 1.0]] * len(tree))[0].bonus_token == 5
    assert chance.last == 0.0
    for bad in (torch.nan, torch.inf):
        logits[3, 7] = bad
        for numbers in (None, sampler.reduction(logits).tolist()):
            with pytest.raises(ValueError, match="the draft's logits are not numbers"):
                rejection_sampler.check_finite(logits, "draft", numbers)


@pytest.mark.parametrize("seed", range(10))
def test_the_view_is_what_softmax_says(seed: int):
    tree = models.random_tree(seed) if seed else DraftTree.chain([3])
    logits = np.random.default_rng(seed).normal(scale=3, size=(len(tree), 280))
    view = rejection_sampler.target_view(tree, torch.from_numpy(logits), torch.from_numpy(logits).softmax(-1))
    for node, row in enumerate(logits):
        assert view.choices[node] == row.argmax()
        assert view.choice_probs[node] == pytest.approx(np.exp(row.max()) / np.exp(row).sum(), abs=1e-6)
        assert view.margins[node] == pytest.approx(np.diff(np.sort(row)[-2:])[0], abs=1e-6)
        if node > 0:
            before = logits[tree.parents[node]]
            own = before[tree.tokens[node]]
            assert view.token_probs[node] == pytest.approx(np.exp(own) / np.exp(before).sum(), abs=1e-6)
            assert view.token_ranks[node] == (before > own).sum()
    assert (view.token_probs[0], view.token_ranks[0]) == (1.0, 0)
    # Half precision ties often; the page must not name another token than the one that was emitted.
    ties = torch.randint(0, 3, (len(tree), 280), generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)
    tied = rejection_sampler.target_view(tree, ties, ties.double().softmax(-1))
    assert tied.choices == tuple(ties.argmax(-1).tolist()) and set(tied.margins) == {0.0}


LEAF: Shape = ()
SHAPES: dict[str, Shape] = {
    "root": LEAF,
    "pair": (LEAF, LEAF),
    "all siblings": (LEAF, LEAF, LEAF),
    "chain": (((LEAF,),),),
    "elder goes on": (((LEAF,),), LEAF),
    "younger goes on": (LEAF, (LEAF, LEAF)),
    "both go on": ((LEAF,), (LEAF,)),
}
WORLDS = {
    "random": World(0),
    "another": World(1),
    "target with zeros": World(2, top_k=2),
    "target cut at 0.7": World(3, top_p=0.7),
    "draft with zeros": World(4, draft_top_k=2),
    "both with zeros": World(5, top_k=2, draft_top_k=2),
    "sure draft": World(6, draft_top_k=1),
    "same": World(7, same=True),
    "same with zeros": World(8, top_k=2, same=True),
}
BIGGER = [
    (World(10), ((LEAF, LEAF), (LEAF, LEAF))),
    (World(13), ((((LEAF,),),),)),
    (World(11, vocabulary=5, top_k=4), (LEAF, LEAF, LEAF)),
    (World(12, vocabulary=4), ((LEAF, LEAF), LEAF)),
]
CASES = pytest.mark.parametrize(
    ("world", "shape"),
    [
        *(pytest.param(w, s, id=f"{a}, {b}") for a, w in WORLDS.items() for b, s in SHAPES.items()),
        *(pytest.param(w, s, id=f"bigger {number}") for number, (w, s) in enumerate(BIGGER)),
    ],
)
RANDOM = WORLDS["random"]


@CASES
def test_drawn_children_are_lossless(world: World, shape: Shape):
    assert tally(world, drawn(world, shape), verify_drawn).off(world) < EXACT
    assert tally(world, drawn(world, shape, end=1), verify_drawn).off(world) < EXACT


@CASES
def test_chosen_children_are_lossless_and_no_rule_accepts_more(world: World, shape: Shape):
    """A node cannot be accepted more often than the target itself would say it."""
    (tree, _), *_ = chances.outcomes(chosen(world, shape))
    result = tally(world, chosen(world, shape), chances.coupled)
    assert result.off(world) < EXACT
    prefixes = [chances.prefix_of(tree, node) for node in range(1, len(tree))]
    said = sum(chances.ahead(world, (), len(prefix))[prefix] for prefix in prefixes)
    assert result.accepted == pytest.approx(float(said), abs=EXACT)


@pytest.mark.parametrize("seed", range(20))
def test_a_sampler_verifies_warped_logits_by_how_the_children_came(seed: int):
    tree, heat = drawn(RANDOM, SHAPES["both go on"])(SeededRandom(seed)), warpers(0.7, top_k=2)
    logits = torch.randn(len(tree), 3, generator=torch.Generator().manual_seed(seed))
    probs, draft_probs = warp(logits, heat), chances.rows(tree, RANDOM.draft)
    as_chosen, as_drawn, first = (RejectionSampler(0.7, SeededRandom(seed), heat) for _ in range(3))
    verdict, used = as_chosen.verify(tree, logits)
    assert verdict == rejection_sampler.verify_coupled(tree, probs, SeededRandom(seed)) and torch.equal(used, probs)
    verdict, used = as_drawn.verify(tree, logits, draft_probs)
    assert verdict == verify_drawn(tree, probs, draft_probs, SeededRandom(seed)) and torch.equal(used, probs)
    assert first.first_token(logits[0]) == SeededRandom(seed).draw(probs[0])
    assert first.reduction is None


@pytest.mark.parametrize("token", range(3))
def test_no_guess_is_accepted_where_every_token_is_forbidden(token: int):
    """Whichever token a row without probabilities seems to give, a child that carries it hides nothing."""
    sampler = RejectionSampler(1.0, SeededRandom(0), warpers(1.0))
    logits = torch.tensor([[-torch.inf] * 3, [0.0, 1.0, 2.0]])
    with pytest.raises(ValueError, match="forbids every next token"):
        sampler.verify(DraftTree.chain([0, token]), logits)


@pytest.mark.parametrize("seed", range(5))
def test_a_refusal_by_rounding_still_ends_in_a_possible_token(seed: int, monkeypatch: pytest.MonkeyPatch):
    """Even what is certain is refused here."""
    probs = warp(torch.randn(4, 5, generator=torch.Generator().manual_seed(seed)), warpers(1.0, top_k=3))
    chance = SeededRandom(seed)
    monkeypatch.setattr(chance, "accept", lambda probability: False)
    first, second = (rejection_sampler.draw_children(probs[node], 2 - node, chance) for node in (0, 1))
    verdict = verify_drawn(make_tree([*first, *second], [0, 0, 1]), probs, probs, chance)
    assert verdict.accepted == ()
    assert probs[0, verdict.bonus_token] > 0


def test_what_the_verifiers_refuse():
    probs, tree = torch.full((3, 4), 0.25, dtype=torch.float64), make_tree([2, 2], [0, 0])
    for run in (verify_drawn, chances.coupled):
        with pytest.raises(ValueError, match="nodes 1 and 2 are siblings with the same token 2"):
            run(tree, probs, probs, SeededRandom(0))
        with pytest.raises(ValueError, match=r"3 nodes need one row of probabilities each, not shape \[2, 4\]"):
            run(tree, probs[:2], probs, SeededRandom(0))
    with pytest.raises(ValueError, match=r"3 nodes need one row of probabilities each, not shape \[4\]"):
        verify_drawn(tree, probs, probs[0], SeededRandom(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_warping_is_what_it_says(dtype: torch.dtype):
    """The likeliest tokens until there are ``top_k`` or, among those, ``top_p`` is reached."""
    logits = torch.from_numpy(np.random.default_rng(0).normal(scale=2, size=(4, 7))).to(dtype)
    for temperature, top_p, top_k in product((1, 0.5, 3.0), (1.0, 0.8, 0.5, 0.01), (0, 3, 4, 9)):
        probs = warp(logits, warpers(temperature, top_p, top_k))
        assert probs.dtype == torch.float64
        for row, warped in zip(logits.double().numpy(), probs.numpy(), strict=True):
            order = np.argsort(-row)[: top_k or len(row)]
            weights = np.exp(row[order] / temperature)
            weights /= weights.sum()
            enough = 1 + int((weights.cumsum() < top_p).sum())
            by_hand = np.zeros(len(row))
            by_hand[order[:enough]] = weights[:enough] / weights[:enough].sum()
            assert warped == pytest.approx(by_hand, abs=1e-12)
    for nothing in ((0.0, 1.0, 0), (-1.0, 1.0, 0), (1.0, -0.5, 0), (1.0, 1.0, -1)):
        with pytest.raises(ValueError, match=r"temperature|top_p|top_k"):
            warpers(*nothing)


def test_seeded_chance_keeps_to_the_probabilities():
    chance, rounds = SeededRandom(0), 4000
    probs = torch.tensor([0.0, 0.5, 0.0, 0.1, 0.4, 0.0], dtype=torch.float64)
    counts = np.bincount([chance.draw(probs) for _ in range(rounds)], minlength=6)
    assert counts / rounds == pytest.approx(probs.numpy(), abs=0.03)  # four standard deviations
    assert not counts[[0, 2, 5]].any()
    assert sum(chance.accept(0.3) for _ in range(rounds)) / rounds == pytest.approx(0.3, abs=0.03)
    assert all(chance.accept(1.0) and not chance.accept(0.0) for _ in range(rounds))


@pytest.mark.parametrize(("uniform", "token"), [(0.0, 1), (1.0 - 2.0**-53, 3), (1.0, 3)])
def test_the_ends_of_the_range_stay_possible(monkeypatch: pytest.MonkeyPatch, uniform: float, token: int):
    """A scaled draw may be rounded up to the very end."""
    chance = SeededRandom(0)
    monkeypatch.setattr(chance, "_uniform", lambda: uniform)
    assert chance.draw(torch.tensor([0.0, 0.3, 0.2, 0.5, 0.0])) == token
    assert not chance.accept(0.0)


OPTIONS = {
    "best": DecodingConfig(temperature=1.2, max_branches=3, entropy_threshold=0.0, min_log_prob=-50.0),
    "drawn": DecodingConfig(temperature=1.2, rule="sequoia", depth=3, nodes=6, children="drawn"),
    "narrow": DecodingConfig(temperature=1.2, top_k=3, rule="fixed", branching=(4, 2), children="drawn"),
    "alone": DecodingConfig(temperature=1.2, drafter="none"),
}


def run(pair: Pair, kind: str, seed: int) -> DecodeTrace:
    return models.decode(pair, models.prompt(seed % 4), replace(OPTIONS[kind], seed=seed, max_new_tokens=12))


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


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("seed", sample(range(40), 5))
def test_the_draws_of_a_run_spell_its_verdicts(tiny: Pair, kind: str, seed: int) -> None:
    trace = run(tiny, kind, seed)
    for step in trace.steps:
        assert of_draws(step) == step.verification
        for draw in step.draws:
            rank = draw.tokens.index(draw.token)
            assert sum(draw.target_probs) <= 1 + 1e-6 and sum(draw.draft_probs) <= 1 + 1e-6
            assert draw.target_probs[rank] == pytest.approx(draw.target_prob, abs=1e-6)
            assert list(draw.tokens) == sorted(set(draw.tokens))
            assert len(draw.tokens) <= 2 * rejection_sampler.LIKELY + 1
            if draw.acceptance is None:
                below = [start <= draw.uniform for start in draw.starts]
                assert sum(below) - 1 == rank and below == sorted(below, reverse=True)
                assert draw.uniform < draw.starts[rank] + draw.target_prob + 1e-12
            else:
                assert draw.draft_prob and draw.acceptance == min(1.0, draw.target_prob / draw.draft_prob)


