"""Every rule and drafter, registered or one's own, changes no token, is named in traces, and is refused in a line.

Whoever joins ``RULE_CHOICES`` or ``DRAFTER_CHOICES`` is tested here. Oracles: whole forward passes without a cache
(``models.reference``), the target alone with the same seed, and a plain search for prompt lookup.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import models
from support.cases import complaint
from support.models import decode, expected

from specllava.config import DRAFTER_CHOICES, RULES, DecodingConfig
from specllava.engine.engine import PrefillOutput
from specllava.engine.pool import KVCaches
from specllava.prompt import Prompt
from specllava.spec_decode.drafter import Drafter
from specllava.spec_decode.growth import GrowthRule, TopTokens, TreeBuilder
from specllava.spec_decode.loop import Lane, stream
from specllava.spec_decode.ngram_drafter import MAX_MATCHES, NgramDrafter, continuations, merge
from specllava.spec_decode.rules import build_rule
from specllava.trace import SPECULATIVE, TARGET_ONLY, DecodeTrace
from specllava.tree import DraftTree

PAGE = Path(__file__).resolve().parents[1] / "docs" / "extending.md"
BEARS = ({"rule": "nucleus"}, {"drafter": "Successors"}, {"drafter": "Nearest"})
VOCABULARY = models.RECIPE.vocabulary
CHATS, SEEDS = st.integers(0, len(models.CHATS) - 1), st.sampled_from(models.SEEDS)
OWN = DecodingConfig(max_new_tokens=16, depth=4, nodes=8, width=3)
DRAFTERS = tuple(name for name in DRAFTER_CHOICES if name != "model")


def test_every_example_answers_as_the_target_alone_and_is_named_in_its_trace():
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == len(BEARS)
    for block, bears in zip(blocks, BEARS, strict=True):
        assert len(block.split("\n\n\n", 1)[-1].strip().splitlines()) <= 30, "an example has 30 lines at most"
        exec(block, names)
        traces = names["traces"]
        assert isinstance(traces, dict)
        trace, alone = traces["speculative"], traces["target-only"]
        assert trace.token_ids == alone.token_ids
        assert {"rule": trace.rule, "drafter": trace.drafter} == {"rule": None, "drafter": None} | bears
        assert len(trace.steps) < len(alone.steps), "what it guesses is sometimes right"
        assert DecodeTrace.from_json(trace.to_json()).to_json() == trace.to_json()


class AnyRule(GrowthRule):
    """Make random choices, all of them legal; false to Python, as an empty container is."""

    max_children = 4

    def __init__(self, seed: int, config: DecodingConfig = OWN) -> None:
        self._random, self._config = random.Random(seed), config

    def __len__(self) -> int:
        return 0

    def num_children(self, builder: TreeBuilder, node: int, top: TopTokens) -> int:
        return self._random.randint(0, self.max_children)

    def frontier(self, builder: TreeBuilder, level: Sequence[int]) -> list[int]:
        most = min(len(level), self._config.width)
        return self._random.sample(list(level), self._random.randint(0, most))  # in any order

    def select(self, builder: TreeBuilder) -> list[int]:
        chosen = {0}
        for node in range(1, len(builder.tokens)):
            wanted = len(chosen) <= self._config.nodes and self._random.random() < 0.7
            if wanted and builder.parents[node] in chosen:
                chosen.add(node)
        return sorted(chosen - {0})


class AnyDrafter(Drafter):
    """Propose random trees, with the target's own answer now and then; false to Python too."""

    def __init__(self, seed: int, answer: Sequence[int], nodes: int = OWN.nodes) -> None:
        self._random, self._answer, self._nodes = random.Random(seed), answer, nodes

    def __len__(self) -> int:
        return 0

    def begin(self, prompt: Prompt, prefill: PrefillOutput, caches: KVCaches) -> None:
        self._emitted = 1

    def propose(self, root: int, depth: int) -> DraftTree:
        tokens, parents, levels = [root], [-1], [0]
        for _ in range(self._random.randint(0, self._nodes)):
            parent = self._random.randrange(len(tokens))
            right = self._answer[self._emitted + levels[parent] :][:1]
            token = right[0] if right and self._random.random() < 0.5 else self._random.randrange(10, 200)
            if levels[parent] < depth and (parent, token) not in zip(parents, tokens, strict=True):
                tokens.append(token)
                parents.append(parent)
                levels.append(levels[parent] + 1)
        return DraftTree(tuple(tokens), tuple(parents), (0.0,) + (-1.0,) * (len(tokens) - 1), (None,) * len(tokens))

    def commit(self, path: Sequence[int], states: object) -> None:
        self._emitted += len(path)


def lane_of(method: str, config: DecodingConfig, prompt: Prompt, choices: int, answer: Sequence[int]) -> Lane:
    if method == "own rule":
        return Lane(method, config, prompt, rule=AnyRule(choices, config))
    if method == "own drafter":
        return Lane(method, config, prompt, drafter=AnyDrafter(choices, answer, config.nodes))
    return Lane(method, replace(config, **{"rule" if method in RULES else "drafter": method}), prompt)


@pytest.mark.parametrize("method", [*RULES, *DRAFTERS, "own rule", "own drafter"])
@given(
    CHATS, SEEDS, st.sampled_from(models.KINDS), models.configs(), st.none() | st.integers(0, models.LONGEST - 1),
    st.sampled_from((0.0, 0.0, 0.9)), st.integers(0, 10_000),
)  # fmt: skip
@settings(max_examples=8)
def test_no_method_changes_a_token(method, chat, seed, kind, config, ending, temperature, choices):
    """With an end token at some index of the answer or without, greedily or drawn with one seed."""
    eos = None if ending is None else models.reference(chat, seed)[ending]
    pair, prompt = models.pair(kind, seed, eos), models.prompt(chat, seed)
    config = replace(config, temperature=temperature, seed=choices)
    alone = decode(pair, prompt, replace(config, drafter="none"))
    if not temperature:
        assert alone.token_ids == expected(chat, seed, config.max_new_tokens, () if eos is None else (eos,))
    lane = lane_of(method, config, prompt, choices, alone.token_ids)
    trace = pair.run(lane)
    assert trace.token_ids == alone.token_ids
    assert trace.finish_reason == alone.finish_reason == ("eos" if alone.token_ids[-1] == eos else "length")
    assert DecodeTrace.from_json(trace.to_json()) == trace
    above = {step.tree.tokens[node] for step in trace.steps for node in step.tree.parents[1:]}
    assert eos not in above or method in ("prompt-lookup", "own drafter"), "nothing is guessed after the end"
    assert method not in DRAFTERS or pair.request(lane).drafter.name == method
    assert all(step.tree.drafted <= config.nodes and max(step.tree.depths()) <= config.depth for step in trace.steps)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("depth", [2, 7])
def test_of_a_perfect_draft_the_likeliest_branch_is_accepted_whole(rule: str, depth: int):
    config = DecodingConfig(
        rule=rule, depth=depth, nodes=64, min_log_prob=-50.0, max_new_tokens=models.LONGEST, branching=(2,) + (1,) * 7
    )
    deepest = 0
    for chat in range(len(models.CHATS)):
        room = config.max_new_tokens - 1
        for step in decode(models.pair("perfect"), models.prompt(chat), config).steps:
            assert step.verification.path == step.tree.first_branch()
            accepted = len(step.verification.accepted)
            assert accepted == min(depth, room - 1) or rule not in ("chain", "fixed")
            deepest, room = max(deepest, accepted), room - len(step.emitted)
        assert room == 0
    assert deepest == depth or rule == "sequoia"


def test_every_way_to_decode_takes_own_objects_and_traces_bear_their_names():
    pair, question, off = models.pair("mixed"), (models.picture(0), models.messages(0)), replace(OWN, drafter="none")
    first, *steps = pair.stream(*question, OWN, rule=AnyRule(1))
    trace, ordinary = pair.generate(*question, OWN, rule=AnyRule(1)), pair.generate(*question, OWN)
    emitted = (first.first_token, *(token for step in steps for token in step.emitted))
    assert emitted == trace.token_ids == expected(0, 0, 16)
    assert [step.tree for step in steps] == [step.tree for step in trace.steps]
    assert [step.tree for step in ordinary.steps] != [step.tree for step in trace.steps], "the rule grew the trees"
    lanes = pair.compare(*question, off, drafter=AnyDrafter(1, expected(0, 0, 16)))
    drafted = lanes[SPECULATIVE]
    assert sum(len(step.verification.accepted) for step in drafted.steps) > 3, "it is right now and then"
    names = [(one.rule, one.drafter) for one in (trace, drafted, lanes[TARGET_ONLY], ordinary)]
    assert names == [("AnyRule", None), (None, "AnyDrafter"), (None, None), (None, None)]
    for one in (trace, drafted, ordinary):
        assert (b'"rule":"AnyRule"' in one.to_json(), b'"drafter":"AnyDrafter"' in one.to_json()) == (
            one.rule is not None, one.drafter is not None,
        )  # fmt: skip


texts = st.lists(st.integers(0, 3), min_size=1, max_size=40)


def plain_search(text: list[int], longest: int, depth: int) -> list[tuple[int, ...]]:
    for length in range(longest, 0, -1):
        found = []
        for start in range(len(text) - length - 1, -1, -1):
            if text[start : start + length] == text[-length:]:
                found.append(tuple(text[start + length : start + length + depth]))
        if found and length < len(text):
            return found[:MAX_MATCHES]
    return []


@given(texts, st.integers(1, 4), st.integers(0, 6), st.integers(1, 30))
@settings(max_examples=80)
def test_lookups_tree_is_what_a_plain_search_finds_merged(text: list[int], longest: int, depth: int, nodes: int):
    found = continuations(text, longest, depth)
    assert found == plain_search(text, longest, depth)
    tree = merge(9, found, nodes)
    paths = [tuple(tree.tokens[step] for step in tree.path(node))[1:] for node in range(1, len(tree))]
    beginnings = {path[:end] for path in found for end in range(1, 1 + len(path))}
    shares = {path: sum(other[: len(path)] == path for other in found) for path in beginnings}
    assert len(set(paths)) == len(paths) == min(nodes, len(shares)) and {*paths} <= {*shares}
    for node, path in enumerate(paths, start=1):
        assert math.exp(tree.scores()[node]) == pytest.approx(shares[path] / len(found), abs=1e-5)
    kept = sorted((shares[path] for path in paths), reverse=True)
    assert kept == sorted(shares.values(), reverse=True)[: len(kept)]


def test_lookup_by_hand():
    """Nothing said before means nothing proposed; the image marker is neither proposed nor looked for."""
    tree = merge(2, continuations([5, 1, 2, 7, 1, 2, 8, 1, 2], 3, 2), 9)
    assert (tree.tokens, tree.parents) == ((2, 8, 7, 1, 1), (-1, 0, 0, 1, 2))
    assert tree.entropies[0] == pytest.approx(math.log(2)) and tree.entropies[1] == 0.0 and tree.entropies[3] is None
    drafter, config = NgramDrafter(3, 20), DecodingConfig(max_new_tokens=1)
    lane = Lane("own", config, replace(models.prompt(3), input_ids=torch.tensor([[11, 12, 13]])), drafter=drafter)
    models.pair(None).request(lane).prefill()
    assert drafter.propose(14, 5) == DraftTree.chain([14])
    drafter.commit((0,), None)
    assert drafter.propose(12, 5).tokens == (12, 13, 14, 12)
    assert continuations([1, 9, 9, 2, 1], 1, 3, frozenset({9})) == [()]
    assert continuations([9, 9, 9], 2, 3, frozenset({9})) == []


class Mine(GrowthRule):
    """Grow four children below the first node of each level and select the first guess, unless told otherwise."""

    name = "mine"
    max_children = 4

    def __init__(self, **returned: Any) -> None:
        self._returned = returned
        self.max_children = returned.get("max_children", 4)

    def num_children(self, builder: TreeBuilder, node: int, top: TopTokens) -> int:
        return self._returned.get("num_children", 4)

    def frontier(self, builder: TreeBuilder, level: Sequence[int]) -> list[int]:
        return self._returned.get("frontier", lambda builder, level: level[:1])(builder, list(level))

    def select(self, builder: TreeBuilder) -> list[int]:
        return self._returned.get("select", lambda builder: [1])(builder)


BROKEN_RULES: dict[str, dict[str, Any]] = {  # by what the line must say
    "selects 9 nodes, at most 8 are allowed": {"select": lambda builder: list(range(1, 10))},
    "selects node [0-9]+ without its parent 1 before it": {"select": lambda builder: [builder.parents.index(1)]},
    "selects node 5 without its parent 1 before it": {"select": lambda builder: [5, 1]},
    r"selects \[[0-9]+\]: not different nodes from 1 to 16": {"select": lambda builder: [len(builder.tokens)]},
    r"selects \[0\]: not different nodes from 1 to 16": {"select": lambda builder: [0]},
    r"expands \[0\]: not different nodes of the level": {"frontier": lambda builder, level: [0]},
    "expands 16 more nodes, 8 are allowed": {"frontier": lambda builder, level: level},
    "wants 5 children of one node: 0 to .*max_children, 4": {"num_children": 5},
    r"max_children \(4.0,\): not integers": {"max_children": 4.0},
    "expands None: not integers": {"frontier": lambda builder, level: None},
    r"selects array\(\[1.\]\): not integers": {"select": lambda builder: np.array([1.0])},
    r"selects \[tensor\(\[1, 2\]\)\]: not integers": {"select": lambda builder: [torch.tensor([1, 2])]},
    "has max_children 257: 0 to 256 are allowed": {"max_children": 257},
}


def test_a_rule_that_breaks_a_limit_is_refused_and_the_caches_live_on():
    """Nothing of the failed answer stays: the next one is what it is alone."""
    pair, prompt = replace(models.pair("mixed"), passes="padded"), models.prompt(0)
    caches = KVCaches(pair.engines)
    for line, returned in BROKEN_RULES.items():
        lane = Lane("own", OWN, prompt, rule=Mine(**returned))
        said = complaint(lambda lane=lane: list(stream(pair.request(lane, caches))))
        assert "the rule mine " in said and re.search(line, said), said
    first, *steps = models.events(pair, prompt, OWN, caches)
    assert (first.first_token, *(token for step in steps for token in step.emitted)) == expected(0, 0, 16)


def test_rules_and_drafters_may_return_numbers_of_another_form_and_traces_read_back():
    for form in (np.array, torch.tensor, tuple, lambda nodes: [np.int16(node) for node in nodes]):
        frontier, select = (lambda _, level, form=form: form(level[:1])), (lambda _, form=form: form([1, 2]))
        rule = Mine(num_children=np.int64(2), max_children=np.int64(4), frontier=frontier, select=select)
        trace = models.pair("mixed").run(Lane("own", OWN, models.prompt(0), rule=rule))
        assert trace.token_ids == expected(0, 0, 16)
        assert DecodeTrace.from_json(trace.to_json()) == trace and max(step.tree.drafted for step in trace.steps) == 2
        drafter = Proposing(lambda root, form=form: DraftTree(form([root, 40]), form([-1, 0]), (0, -0.5), (None, 0)))
        trace = models.pair(None).run(Lane("own", OWN, models.prompt(0), drafter=drafter))
        assert trace.token_ids == expected(0, 0, 16) and DecodeTrace.from_json(trace.to_json()) == trace
        assert {type(number) for number in (*trace.steps[0].tree.tokens, *trace.steps[0].tree.parents)} == {int}


def test_a_rule_that_does_not_fit_its_drafter_or_drawn_children_is_refused():
    """A rule that drops drawn guesses for what they are bends the distribution of the answer."""
    pair, prompt = models.pair("mixed"), models.prompt(0)
    drawn = DecodingConfig(rule="fixed", children="drawn", temperature=1.0, max_new_tokens=8)
    lanes = {name: Lane("own", replace(OWN, drafter=name), prompt, rule=Mine()) for name in DRAFTERS}
    lanes["Proposing"] = Lane("own", OWN, prompt, rule=Mine(), drafter=Proposing(lambda root: DraftTree.chain([root])))
    for name, lane in lanes.items():
        line = complaint(lambda lane=lane: pair.request(lane))
        assert line == f"the drafter {name} grows no trees, so the rule mine has no use"
    line = complaint(lambda: pair.request(Lane("own", drawn, prompt, rule=Mine())))
    assert line.startswith("the rule mine is not drawable: set children to best")
    rule = build_rule(drawn)
    own = pair.run(Lane("own", drawn, prompt, rule=rule))
    assert own.token_ids == pair.run(Lane("own", drawn, prompt)).token_ids


Make = Callable[[int], Any]


class Proposing(Drafter):
    """Propose one tree below any root, while a level is allowed."""

    def __init__(self, tree: Make) -> None:
        self._tree = tree

    def propose(self, root: int, depth: int) -> DraftTree:
        return self._tree(root) if depth else DraftTree.chain([root])


def guess(token: Any, log_prob: Any = -1.0, entropy: Any = None, parent: Any = 0) -> Make:
    return lambda root: DraftTree((root, token), (-1, parent), (0.0, log_prob), (None, entropy))


BROKEN_TREES: dict[str, Make] = {  # by what the line must say after "the drafter Proposing proposes"
    "9 tokens, at most 8 are allowed": lambda root: DraftTree.chain([root] * 10),
    "5 levels, at most 4 are allowed": lambda root: DraftTree.chain([root] * 6),
    "a tree below token [0-9]+, not below the last token": lambda root: DraftTree.chain([root + 1] * 3),
    f"token {VOCABULARY}, of a vocabulary of {VOCABULARY}": guess(VOCABULARY),
    f"token -1, of a vocabulary of {VOCABULARY}": guess(-1),
    r"tokens \(.*np.True_\): not integers": guess(np.bool_(True)),
    "log-probabilities or entropies that are not finite": guess(40, torch.tensor(math.nan)),
    "log-probabilities or entropies that are not f": guess(40, -1.0, math.inf),
    r"parents \(-1, 0.0\): not integers": guess(40, parent=0.0),
    "no tree: .*NoneType": guess(40, parent=None),
    "None, not a DraftTree": lambda root: None,
    "no tree: a tree needs one entry per node .* lengths": lambda root: DraftTree.chain([]),
}


def test_a_drafter_is_refused_that_proposes_what_cannot_be_verified_or_recorded():
    """A tree below another token would be verified as if the target had chosen that token."""
    for line, tree in BROKEN_TREES.items():
        lane = Lane("own", OWN, models.prompt(0), drafter=Proposing(tree))
        said = complaint(lambda lane=lane: models.pair(None).run(lane))
        assert re.match(f"the drafter Proposing proposes {line}", said), said


