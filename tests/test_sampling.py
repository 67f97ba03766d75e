"""Sampling is lossless: with every outcome of chance enumerated, what is emitted has the target's distribution."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from support.chances import (
    EXACT,
    WRONG,
    Prefix,
    Shape,
    World,
    ahead,
    chosen,
    depth,
    drawn,
    grow,
    make_tree,
    outcomes,
    prefix_of,
    rows,
    tally,
    top,
)
from torch import Tensor

from specllava.core.trace import Verification
from specllava.core.tree import DraftTree
from specllava.verification.answer_settings import warpers
from specllava.verification.sampling import (
    RandomSource,
    SeededRandom,
    draw_children,
    verify_drawn,
    warp,
)

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


@CASES
def test_drawn_children_are_lossless(world: World, shape: Shape):
    assert tally(world, drawn(world, shape), verify_drawn, depth(shape) + 1).off(world) < EXACT


@CASES
def test_chosen_children_are_lossless_and_no_rule_accepts_more(world: World, shape: Shape):
    """A node cannot be accepted more often than the target itself would say it."""
    (tree, _), *_ = outcomes(chosen(world, shape))
    result = tally(world, chosen(world, shape), top, depth(shape) + 1)
    assert result.off(world) < EXACT
    said = (ahead(world, (), len(prefix))[prefix] for prefix in (prefix_of(tree, n) for n in range(1, len(tree))))
    assert result.accepted == pytest.approx(float(sum(said)), abs=EXACT)


@pytest.mark.parametrize("world", [WORLDS["random"], WORLDS["both with zeros"]])
def test_chosen_children_are_lossless_in_every_single_tree(world: World):
    for tree, _ in outcomes(drawn(world, SHAPES["younger goes on"])):
        assert tally(world, lambda chance: tree, top, 3).off(world) < EXACT  # noqa: B023


@pytest.mark.parametrize("shape", [SHAPES["all siblings"], SHAPES["both go on"]])
def test_a_token_that_cannot_have_been_drawn_counts_as_chosen(shape: Shape):
    world = WORLDS["random"]

    def as_chosen(tree: DraftTree, probs: Tensor, draft_probs: Tensor, chance: RandomSource) -> Verification:
        return verify_drawn(tree, probs, torch.zeros_like(draft_probs), chance)

    by_rule = tally(world, chosen(world, shape), as_chosen, depth(shape) + 1)
    by_top = tally(world, chosen(world, shape), top, depth(shape) + 1)
    assert by_rule.off(world) < EXACT
    assert by_rule.accepted == pytest.approx(by_top.accepted, abs=EXACT)


@pytest.mark.parametrize("seed", range(3))
def test_children_may_be_added_when_the_draft_has_run_out(seed: int):
    world = World(seed, vocabulary=4, draft_top_k=2)

    def pick(prefix: Prefix, count: int, chance: RandomSource) -> list[int]:
        tokens = draw_children(world.draft(prefix), count, chance)
        return tokens + [token for token in range(world.vocabulary) if token not in tokens][: count - len(tokens)]

    def grower(chance: RandomSource) -> DraftTree:
        return grow((LEAF, (LEAF,), LEAF), lambda prefix, count: pick(prefix, count, chance))

    assert tally(world, grower, verify_drawn, 3).off(world) < EXACT


@pytest.mark.parametrize("seed", range(2))
def test_growth_may_look_at_all_that_was_drawn_before(seed: int):
    """Two branches, and only the better one goes on: whether one does depends on what the other drew."""
    world = World(20 + seed)

    def grower(chance: RandomSource) -> DraftTree:
        tokens = draw_children(world.draft(()), 2, chance)
        tokens += [draw_children(world.draft((elder,)), 1, chance)[0] for elder in tokens]
        scores = [float(world.draft(())[tokens[n]] * world.draft((tokens[n],))[tokens[n + 2]]) for n in (0, 1)]
        best = scores.index(max(scores))
        last = draw_children(world.draft((tokens[best], tokens[best + 2])), 1, chance)
        return make_tree(tokens + last, (0, 0, 1, 2, best + 3))

    assert tally(world, grower, verify_drawn, 4).off(world) < EXACT


def test_a_drawn_child_must_not_be_dropped_for_its_token():
    """Keeping the likelier of two drawn children bends the distribution, unless it is verified as chosen."""
    world = WORLDS["random"]

    def grower(chance: RandomSource) -> DraftTree:
        tokens = draw_children(world.draft(()), 2, chance)
        return make_tree([max(tokens, key=lambda token: float(world.draft(())[token]))], [0])

    assert tally(world, grower, verify_drawn, 2).off(world) > WRONG
    assert tally(world, grower, top, 2).off(world) < EXACT


@pytest.mark.parametrize("shape", [SHAPES["chain"], SHAPES["pair"], SHAPES["both go on"]])
def test_the_rule_for_drawn_children_is_wrong_for_chosen_ones(shape: Shape):
    """``min(1, p / q)`` where nothing was drawn from ``q``: the enumeration sees it."""
    world = WORLDS["random"]
    assert tally(world, chosen(world, shape), verify_drawn, depth(shape) + 1).off(world) > WRONG


@pytest.mark.parametrize("world", [WORLDS["same"], WORLDS["same with zeros"]])
@pytest.mark.parametrize("shape", [SHAPES["chain"], SHAPES["younger goes on"]])
def test_a_draft_that_is_the_target_is_always_accepted(world: World, shape: Shape):
    for tree, _ in outcomes(drawn(world, shape)):
        probs = rows(tree, world.target)
        for verdict, _ in outcomes(lambda chance: verify_drawn(tree, probs, probs, chance)):  # noqa: B023
            families = [tree.children()[node] for node in verdict.path]
            assert [family[0] for family in families[:-1]] == list(verdict.accepted)  # the eldest each time
            assert not families[-1]


class Refusing(SeededRandom):
    """Refuses even what is certain, as rounding may refuse what should be."""

    def accept(self, probability: float) -> bool:
        return False


@pytest.mark.parametrize("seed", range(5))
def test_a_refusal_by_rounding_still_ends_in_a_possible_token(seed: int):
    probs = warp(torch.randn(4, 5, generator=torch.Generator().manual_seed(seed)), warpers(1.0, top_k=3))
    chance = Refusing(seed)
    first = draw_children(probs[0], 2, chance)
    tree = make_tree([*first, *draw_children(probs[1], 1, chance)], [0, 0, 1])
    verdict = verify_drawn(tree, probs, probs, chance)
    assert verdict.accepted == ()
    assert probs[0, verdict.bonus_token] > 0


@pytest.mark.parametrize("count", range(5))
def test_children_are_drawn_without_replacement(count: int):
    probs = World(0, vocabulary=4, top_k=3).target(())
    total = 0.0
    for tokens, weight in outcomes(lambda chance: draw_children(probs, count, chance)):
        assert len(tokens) == len(set(tokens)) == min(count, 3)
        left, expected = 1.0, 1.0
        for token in tokens:
            expected *= float(probs[token]) / left
            left -= float(probs[token])
        assert weight == pytest.approx(expected, abs=EXACT)
        total += weight
    assert total == pytest.approx(1.0, abs=EXACT)


def test_what_the_verifiers_refuse():
    probs = torch.full((3, 4), 0.25, dtype=torch.float64)
    tree = make_tree([2, 2], [0, 0])
    for run in (verify_drawn, top):
        with pytest.raises(ValueError, match="nodes 1 and 2 are siblings with the same token 2"):
            run(tree, probs, probs, SeededRandom(0))
        with pytest.raises(ValueError, match=r"3 nodes need one row of probabilities each, not shape \[2, 4\]"):
            run(tree, probs[:2], probs, SeededRandom(0))
    with pytest.raises(ValueError, match=r"3 nodes need one row of probabilities each, not shape \[4\]"):
        verify_drawn(tree, probs, probs[0], SeededRandom(0))


def by_hand(row: npt.NDArray[np.float64], temperature: float, top_p: float, top_k: int) -> npt.NDArray[np.float64]:
    """The likeliest tokens until there are ``top_k`` or, among those, ``top_p`` is reached."""
    order = np.argsort(-row)[: top_k or len(row)]
    weights = np.exp(row[order] / temperature)
    weights /= weights.sum()
    enough = 1 + int((weights.cumsum() < top_p).sum())
    probs = np.zeros(len(row))
    probs[order[:enough]] = weights[:enough] / weights[:enough].sum()
    return probs


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    ("temperature", "top_p", "top_k"),
    [
        (1.0, 1.0, 0),
        (0.5, 1.0, 0),
        (3, 1.0, 0),
        (1.0, 0.8, 0),
        (1.0, 0.01, 0),
        (1.0, 1.0, 3),
        (2.0, 0.6, 4),
        (1, 0.5, 9),
    ],
)
def test_warping_is_what_it_says(temperature: float, top_p: float, top_k: int, dtype: torch.dtype):
    logits = torch.from_numpy(np.random.default_rng(0).normal(scale=2, size=(4, 7))).to(dtype)
    probs = warp(logits, warpers(temperature, top_p, top_k))
    assert probs.dtype == torch.float64
    for row, warped in zip(logits.double().numpy(), probs.numpy(), strict=True):
        assert warped == pytest.approx(by_hand(row, temperature, top_p, top_k), abs=1e-12)


@pytest.mark.parametrize(
    ("temperature", "top_p", "top_k"), [(0.0, 1.0, 0), (-1.0, 1.0, 0), (1.0, -0.5, 0), (1.0, 1.0, -1)]
)
def test_warping_refuses_what_means_nothing(temperature: float, top_p: float, top_k: int):
    with pytest.raises(ValueError, match=r"temperature|top_p|top_k"):
        warpers(temperature, top_p, top_k)


def seeded_verdicts(seed: int) -> list[Verification]:
    world, chance = WORLDS["random"], SeededRandom(seed)
    verdicts = []
    for _ in range(20):
        tree = drawn(world, SHAPES["both go on"])(chance)
        verdicts.append(verify_drawn(tree, rows(tree, world.target), rows(tree, world.draft), chance))
    return verdicts


def test_the_same_seed_makes_the_same_choices():
    assert seeded_verdicts(5) == seeded_verdicts(5) != seeded_verdicts(6)


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
