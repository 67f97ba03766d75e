"""The rule whose tree the user draws: exactly that tree, as far as the limits go, and the target's own tokens."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError
from support import models
from support.visual_traces import synthetic_race

from specllava.bench.lanes import bench_lanes
from specllava.core.config import MAX_CHILDREN, MAX_GUESSES, DecodingConfig, one_line
from specllava.core.growth.shapes import Shape, drawn_shape, fixed_shape
from specllava.core.race_file import race_json
from specllava.core.trace import DecodeTrace
from specllava.core.tree import DraftTree
from specllava.lab import Lab
from specllava.pair import Pair
from visual.player.recorded import read_recorded

QUESTION = "Describe this."


def random_parents(rng: random.Random, most: int = 14) -> tuple[int, ...]:
    """Any tree: bushes where ``span`` is small, chains where it is 1 from the end."""
    span = rng.choice((1, 2, 4, most))
    parents = tuple(rng.randint(max(0, node - span), node) for node in range(rng.randint(1, most)))
    return tuple(parent if parents.count(parent) <= MAX_CHILDREN else node for node, parent in enumerate(parents))


def shape_of(tree: DraftTree, node: int = 0) -> Shape:
    return tuple(shape_of(tree, child) for child in tree.children()[node])


def parents_of(shape: Shape) -> tuple[int, ...]:
    """The parents of a shape's nodes, level by level."""
    parents: list[int] = []
    level: Sequence[tuple[int, Shape]] = [(0, shape)]
    while level:
        below = []
        for node, children in level:
            for child in children:
                parents.append(node)
                below.append((len(parents), child))
        level = below
    return tuple(parents)


def straight(parents: tuple[int, ...], depth: int, nodes: int) -> tuple[int, ...]:
    """The first ``nodes`` nodes of the first ``depth`` levels, level by level, renumbered; found without recursion."""
    levels = [0]
    for parent in parents:
        levels.append(levels[parent] + 1)
    order = [0]
    for node in order:
        order += [child for child, parent in enumerate(parents, start=1) if parent == node]
    kept = [node for node in order if levels[node] <= depth][: nodes + 1]
    return tuple(kept.index(parents[node - 1]) for node in kept[1:])


def refused(**options: object) -> str:
    with pytest.raises(ValidationError) as error:
        DecodingConfig(**options)  # type: ignore[arg-type]
    line = one_line(error.value)
    assert "\n" not in line and len(line) < 400
    return line


def test_a_drawn_shape_is_the_tree_that_its_parents_say_cut_as_a_fixed_one_is() -> None:
    for seed in range(400):
        rng = random.Random(seed)
        parents, depth, nodes = random_parents(rng, 40), rng.randint(1, 12), rng.randint(1, 40)
        assert parents_of(drawn_shape(parents, depth, nodes)) == straight(parents, depth, nodes)
        branching = tuple(rng.randint(1, 3) for _ in range(rng.randint(1, 4)))
        whole = parents_of(fixed_shape(branching, 32, MAX_GUESSES))
        assert drawn_shape(whole, depth, nodes) == fixed_shape(branching, depth, nodes)


def test_every_tree_of_a_run_has_the_drawn_shape_and_the_answer_is_the_targets() -> None:
    for seed in range(24):
        rng = random.Random(seed)
        pair = models.pair(rng.choice(models.KINDS), rng.choice(models.SEEDS))
        number, parents = rng.randrange(len(models.CHATS)), random_parents(rng)
        config = DecodingConfig(
            rule="shape", shape=parents, depth=rng.randint(1, 8), nodes=rng.randint(1, 14), max_new_tokens=14
        )
        picture = None if (seen := models.CHATS[number][0]) is None else models.picture(seen)
        told = pair.generate(picture, models.messages(number), config)
        alone = pair.generate(picture, models.messages(number), replace(config, drafter="none"))
        assert told.token_ids == alone.token_ids
        said = 1
        for step in told.steps:
            room = config.max_new_tokens - said - 1  # the last token needs no guess
            wanted = drawn_shape(parents, min(config.depth, room), config.nodes) if room else ()
            assert shape_of(step.tree) == wanted
            said += len(step.emitted)


def test_children_of_one_parent_are_the_drafts_best_in_order(tiny: Pair) -> None:
    """Four guesses below the root and one below the third: each is as likely as the one after it, or likelier."""
    config = DecodingConfig(rule="shape", shape=(0, 0, 0, 0, 3), max_new_tokens=12)
    first = tiny.generate(models.picture(0), QUESTION, config).steps[0].tree
    assert first.parents == (-1, 0, 0, 0, 0, 3)
    assert list(first.log_probs[1:5]) == sorted(first.log_probs[1:5], reverse=True)


@pytest.mark.parametrize("verifier", ["token", "traversal"])
def test_guesses_of_an_own_shape_may_be_drawn(tiny: Pair, verifier: str) -> None:
    """As those of every shape that is settled beforehand: the shape stays as it was drawn."""
    for seed in range(6):
        parents = random_parents(random.Random(seed), 8)
        config = DecodingConfig(
            rule="shape", shape=parents, temperature=1.1, children="drawn", verifier=verifier, seed=seed,
            max_new_tokens=12,
        )  # fmt: skip
        trace = tiny.generate(models.picture(0), QUESTION, config)
        assert shape_of(trace.steps[0].tree) == drawn_shape(parents, config.depth, config.nodes)


def test_what_is_no_tree_is_refused_in_one_line_with_its_numbers() -> None:
    for seed in range(60):
        rng = random.Random(seed)
        parents = list(random_parents(rng))
        node = rng.randint(1, len(parents))
        parents[node - 1] = wrong = rng.randint(node, MAX_GUESSES - 1)
        assert f"node {node} is below node {wrong}, but a parent comes first" in refused(shape=tuple(parents))
    assert f"node 0 has more than {MAX_CHILDREN} children" in refused(shape=(0,) * (MAX_CHILDREN + 1))
    assert "at least 1 item" in refused(shape=())
    assert f"at most {MAX_GUESSES} items" in refused(shape=tuple(node // 2 for node in range(MAX_GUESSES + 1)))
    for wild in (-1, MAX_GUESSES, 10**5000, "x", 0.5, None):
        assert refused(shape=(0, wild)).startswith("shape.1 = ")


def test_the_largest_shapes_are_grown_and_cut(tiny: Pair) -> None:
    chain = DecodingConfig(rule="shape", shape=tuple(range(MAX_GUESSES)), depth=32, nodes=256, max_new_tokens=40)
    bush = replace(chain, shape=tuple(node // MAX_CHILDREN for node in range(MAX_GUESSES)))
    sizes = [tiny.generate(models.picture(0), QUESTION, config).steps[0].tree.drafted for config in (chain, bush)]
    assert sizes == [32, MAX_GUESSES]


def test_an_own_shape_is_compared_where_it_is_chosen_and_nowhere_else(tiny: Pair) -> None:
    """Beside the rules of papers stands no tree that nobody chose."""
    assert "shape" not in bench_lanes(DecodingConfig())
    config = DecodingConfig(rule="shape", shape=(0, 0, 1), max_new_tokens=8)
    *_, with_it = Lab(tiny).rules(models.picture(0), QUESTION, config)
    *_, without = Lab(tiny).rules(models.picture(0), QUESTION, DecodingConfig(max_new_tokens=8))
    assert [value for value, _ in with_it.runs] == [*(value for value, _ in without.runs), "shape"]
    assert with_it.current == "shape"
    assert {run.token_ids for _, run in with_it.runs} == {run.token_ids for _, run in without.runs}


def test_a_file_from_before_the_rule_opens_without_a_word_about_it(tmp_path: Path) -> None:
    """An option that only another rule reads is not missing; where the file's own rule reads it, it is told."""
    race = synthetic_race(2)
    made = json.loads(race_json(race["target-only"], race["speculative"]))
    path = tmp_path / "race.json"
    for rule, told in (("entropy", ""), ("shape", "speculative does not say shape (now (0, 0, ")):
        for lane in ("target_only", "speculative"):
            made[lane]["config"].pop("shape", None)
        made["speculative"]["config"]["rule"] = rule
        path.write_text(json.dumps(made))
        opened = read_recorded(path)
        assert opened.speculative is not None and opened.speculative.config.shape == DecodingConfig().shape
        assert opened.filled.startswith(told) and bool(opened.filled) == bool(told)
        assert DecodeTrace.from_json(opened.speculative.to_json()) == opened.speculative
