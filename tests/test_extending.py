"""Rules and drafters of one's own: the examples of ``docs/extending.md`` as printed, and any others.

They change no token, are named in traces, and are refused in a line where they break limits.
"""

from __future__ import annotations

import json
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
from support.models import DraftKind, expected

from specllava.config import DRAFTER_CHOICES, DecodingConfig
from specllava.engine.decoders import Batch
from specllava.engine.engine import Engine, PrefillOutput
from specllava.engine.pool import KVCaches
from specllava.models.options import PassesName
from specllava.pair import Pair
from specllava.prompt import Prompt
from specllava.spec_decode.drafter import Drafter
from specllava.spec_decode.growth import GrowthRule, TopTokens, TreeBuilder
from specllava.spec_decode.loop import Lane, stream
from specllava.spec_decode.rules import FixedRule
from specllava.trace import SPECULATIVE, TARGET_ONLY, DecodeTrace
from specllava.tree import DraftTree

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "extending.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
BEARS = ({"rule": "nucleus"}, {"drafter": "Successors"}, {"drafter": "Nearest"})
VOCABULARY = models.RECIPE.vocabulary
CHATS, SEEDS = st.integers(0, len(models.CHATS) - 1), st.sampled_from(models.SEEDS)
KINDS = st.sampled_from(models.KINDS)
OWN = DecodingConfig(max_new_tokens=16, depth=4, nodes=8, width=3)


def test_every_example_answers_as_the_target_alone_and_is_named_in_its_trace():
    names: dict[str, object] = {}
    assert len(BLOCKS) == len(BEARS)
    for block, bears in zip(BLOCKS, BEARS, strict=True):
        assert len(block.split("\n\n\n", 1)[-1].strip().splitlines()) <= 30, "an example has 30 lines at most"
        exec(block, names)
        traces = names["traces"]
        assert isinstance(traces, dict)
        trace, alone = traces["speculative"], traces["target-only"]
        assert isinstance(trace, DecodeTrace)
        assert trace.token_ids == alone.token_ids
        assert {"rule": trace.rule, "drafter": trace.drafter} == {"rule": None, "drafter": None} | bears
        assert len(trace.steps) < len(alone.steps), "what it guesses is sometimes right"
        assert DecodeTrace.from_json(trace.to_json()).to_json() == trace.to_json()


def test_every_drafter_that_is_offered_is_built_and_has_that_name_in_traces():
    pair, prompt = models.pair("mixed"), models.prompt(3)
    requests = (pair.request(Lane.of(DecodingConfig(drafter=name), prompt)) for name in DRAFTER_CHOICES)
    assert [request.drafter.name for request in requests] == list(DRAFTER_CHOICES)


class AnyRule(GrowthRule):
    """Make random choices, all of them legal; false to Python, as an empty container is."""

    max_children = 4

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def __len__(self) -> int:
        return 0

    def num_children(self, builder: TreeBuilder, node: int, top: TopTokens) -> int:
        return self._random.randint(0, self.max_children)

    def frontier(self, builder: TreeBuilder, level: Sequence[int]) -> list[int]:
        return self._random.sample(list(level), self._random.randint(0, min(len(level), OWN.width)))  # in any order

    def select(self, builder: TreeBuilder) -> list[int]:
        chosen = {0}
        for node in range(1, len(builder.tokens)):
            wanted = len(chosen) <= OWN.nodes and self._random.random() < 0.7
            if wanted and builder.parents[node] in chosen:
                chosen.add(node)
        return sorted(chosen - {0})


class AnyDrafter(Drafter):
    """Propose random trees, with the target's own answer now and then; false to Python too."""

    def __init__(self, seed: int, answer: Sequence[int]) -> None:
        self._random, self._answer = random.Random(seed), answer

    def __len__(self) -> int:
        return 0

    def begin(self, prompt: Prompt, prefill: PrefillOutput, caches: KVCaches) -> None:
        self._emitted = 1

    def propose(self, root: int, depth: int) -> DraftTree:
        tokens, parents, levels = [root], [-1], [0]
        for _ in range(self._random.randint(0, OWN.nodes)):
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


@given(CHATS, SEEDS, KINDS, st.integers(0, 10_000), st.integers(1, 20))
@settings(max_examples=12)
def test_an_own_rule_changes_no_token(chat: int, seed: int, kind: DraftKind, choices: int, limit: int):
    lane = Lane("own", replace(OWN, max_new_tokens=limit), models.prompt(chat, seed), rule=AnyRule(choices))
    assert models.pair(kind, seed).run(lane).token_ids == expected(chat, seed, limit)


@given(CHATS, SEEDS, st.integers(0, 10_000), st.sampled_from((0.0, 0.9)))
@settings(max_examples=12)
def test_an_own_drafter_changes_no_token(chat: int, seed: int, choices: int, temperature: float):
    config = replace(OWN, temperature=temperature, seed=choices)
    pair, prompt = models.pair(None, seed), models.prompt(chat, seed)
    alone = pair.run(Lane("alone", replace(config, drafter="none"), prompt)).token_ids
    trace = pair.run(Lane("own", config, prompt, drafter=AnyDrafter(choices, alone)))
    assert trace.token_ids == alone
    assert temperature or alone == expected(chat, seed, 16)


def test_every_method_takes_own_objects_and_traces_bear_their_names():
    pair, question, off = models.pair("mixed"), (models.picture(0), models.messages(0)), replace(OWN, drafter="none")
    events = list(pair.stream(*question, OWN, rule=AnyRule(1)))
    first, *steps = events
    emitted = (first.first_token, *(token for step in steps for token in step.emitted))
    trace = pair.generate(*question, OWN, rule=AnyRule(1))
    assert emitted == trace.token_ids == expected(0, 0, 16)
    assert [step.tree for step in steps] == [step.tree for step in trace.steps]
    lanes = pair.compare(*question, off, drafter=AnyDrafter(1, expected(0, 0, 16)))
    drafted, ordinary = lanes[SPECULATIVE], pair.generate(*question, OWN)
    assert [step.tree for step in ordinary.steps] != [step.tree for step in trace.steps], "the rule grew the trees"
    assert sum(len(step.verification.accepted) for step in drafted.steps) > 3, "it is right now and then"
    names = [(one.rule, one.drafter) for one in (trace, drafted, lanes[TARGET_ONLY], ordinary)]
    assert names == [("AnyRule", None), (None, "AnyDrafter"), (None, None), (None, None)]
    for one in (trace, drafted, ordinary):
        document = json.loads(one.to_json())
        assert ("rule" in document, "drafter" in document) == (one.rule is not None, one.drafter is not None)
        read = DecodeTrace.from_json(one.to_json())
        assert read == one and read.to_json() == one.to_json()


# ------------------------------------------------------------------------------------------------ refused rules


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


RULES: dict[str, dict[str, Any]] = {  # by what the line must say after "the rule mine", or of it
    "selects 9 nodes, at most 8 are allowed": {"select": lambda builder: list(range(1, 10))},
    "selects node [0-9]+ without its parent 1 before it": {"select": lambda builder: [builder.parents.index(1)]},
    "selects node 5 without its parent 1 before it": {"select": lambda builder: [5, 1]},
    r"selects \[[0-9]+\]: not different nodes from 1 to 16": {"select": lambda builder: [len(builder.tokens)]},
    r"selects \[-1\]: not different nodes from 1 to 16": {"select": lambda builder: [-1]},
    r"selects \[1, 1\]: not different nodes from 1 to 16": {"select": lambda builder: [1, 1]},
    r"selects \[0\]: not different nodes from 1 to 16": {"select": lambda builder: [0]},
    r"expands \[0\]: not different nodes of the level": {"frontier": lambda builder, level: [0]},
    r"expands \[1, 1\]: not different nodes of the level": {"frontier": lambda builder, level: [1, 1]},
    r"expands \[99\]: not different nodes of the level": {"frontier": lambda builder, level: [99]},
    "expands 16 more nodes, 8 are allowed": {"frontier": lambda builder, level: level},
    "wants -1 children of one node: 0 to .*max_children, 4": {"num_children": -1},
    "wants 5 children of one node: 0 to .*max_children, 4": {"num_children": 5},
    r"max_children \(4.0,\): not integers": {"max_children": 4.0},
    r"num_children \(1.5,\): not integers": {"num_children": 1.5},
    r"num_children \(None,\): not integers": {"num_children": None},
    "expands None: not integers": {"frontier": lambda builder, level: None},
    "expands <map .*: not integers": {"frontier": lambda builder, level: map(float, level)},
    r"expands \[1.0\]: not integers": {"frontier": lambda builder, level: [1.0]},
    "selects None: not integers": {"select": lambda builder: None},
    r"selects array\(\[1.\]\): not integers": {"select": lambda builder: np.array([1.0])},
    r"selects \[tensor\(\[1, 2\]\)\]: not integers": {"select": lambda builder: [torch.tensor([1, 2])]},
    "has max_children -1: 0 to 256 are allowed": {"max_children": -1},
    "has max_children 257: 0 to 256 are allowed": {"max_children": 257},
}


@pytest.mark.parametrize("passes", ["eager", "padded"])
@pytest.mark.parametrize("line", RULES)
def test_a_rule_that_breaks_a_limit_is_refused_and_the_caches_live_on(line: str, passes: PassesName):
    """Nothing of the failed answer stays: the next one is what it is alone."""
    pair, prompt = replace(models.pair("mixed"), passes=passes), models.prompt(0)
    caches = KVCaches(pair.engines)
    list(models.events(pair, prompt, OWN, caches))
    with pytest.raises(ValueError, match=f"^(?=.*the rule mine )[^\n]*{line}[^\n]*$"):
        list(stream(pair.request(Lane("own", OWN, prompt, rule=Mine(**RULES[line])), caches)))
    first, *steps = models.events(pair, prompt, OWN, caches)
    assert (first.first_token, *(token for step in steps for token in step.emitted)) == expected(0, 0, 16)


@pytest.mark.parametrize("form", [np.array, torch.tensor, tuple, lambda nodes: [np.int16(node) for node in nodes]])
def test_a_rule_may_return_integers_of_another_form(form: Callable[[list[int]], Any]):
    rule = Mine(
        num_children=np.int64(2), max_children=np.int64(4), frontier=lambda builder, level: form(level[:1]),
        select=lambda builder: form([1, 2]),
    )  # fmt: skip
    trace = models.pair("mixed").run(Lane("own", OWN, models.prompt(0), rule=rule))
    assert trace.token_ids == expected(0, 0, 16)
    assert DecodeTrace.from_json(trace.to_json()) == trace and max(step.tree.drafted for step in trace.steps) == 2


def test_a_rule_that_does_not_fit_its_drafter_or_drawn_children_is_refused():
    """A rule that drops drawn guesses for what they are bends the distribution of the answer."""
    pair, prompt = models.pair("mixed"), models.prompt(0)
    for drafter in ("none", "prompt-lookup"):
        with pytest.raises(ValueError, match=f"^the drafter {drafter} grows no trees, so the rule mine has no use$"):
            pair.request(Lane("own", replace(OWN, drafter=drafter), prompt, rule=Mine()))
    with pytest.raises(ValueError, match=r"^the drafter Proposing grows no trees, so the rule mine has no use$"):
        pair.request(Lane("own", OWN, prompt, rule=Mine(), drafter=Proposing(DraftTree.only_root)))
    drawn = DecodingConfig(rule="fixed", children="drawn", temperature=1.0, max_new_tokens=8)
    with pytest.raises(ValueError, match=r"^the rule mine is not drawable: set children to best"):
        pair.request(Lane("own", drawn, prompt, rule=Mine()))
    rule = FixedRule(branching=drawn.branching, depth=drawn.depth, nodes=drawn.nodes)
    own = pair.run(Lane("own", drawn, prompt, rule=rule))
    assert own.token_ids == pair.run(Lane("own", drawn, prompt)).token_ids


# ------------------------------------------------------------------------------------------------ refused drafters

Make = Callable[[int], Any]


class Proposing(Drafter):
    """Propose one tree below any root, while a level is allowed."""

    def __init__(self, tree: Make) -> None:
        self._tree = tree

    def propose(self, root: int, depth: int) -> DraftTree:
        return self._tree(root) if depth else DraftTree.only_root(root)


def guess(token: Any, log_prob: Any = -1.0, entropy: Any = None, parent: Any = 0) -> Make:
    return lambda root: DraftTree((root, token), (-1, parent), (0.0, log_prob), (None, entropy))


TREES: dict[str, Make] = {  # by what the line must say after "the drafter Proposing proposes"
    "9 tokens, at most 8 are allowed": lambda root: DraftTree.chain([root] * 10),
    "5 levels, at most 4 are allowed": lambda root: DraftTree.chain([root] * 6),
    "a tree below token [0-9]+, not below the last token": lambda root: DraftTree.chain([root + 1] * 3),
    f"token {VOCABULARY}, of a vocabulary of {VOCABULARY}": guess(VOCABULARY),
    f"token -1, of a vocabulary of {VOCABULARY}": guess(-1),
    r"tokens \(.*np.True_\): not integers": guess(np.bool_(True)),
    r"tokens \(.*40.0\): not integers": guess(40.0),
    r"tokens \(.*None\): not integers": guess(None),
    r"tokens \(.*'40'\): not integers": guess("40"),
    "log-probabilities or entropies that are not finite": guess(40, math.nan),
    "log-probabilities or entropies that are not fin": guess(40, torch.tensor(math.nan)),
    "log-probabilities or entropies that are no numbers": guess(40, None),
    "log-probabilities or entropies that are not f": guess(40, -1.0, math.inf),
    r"parents \(-1, 0.0\): not integers": guess(40, parent=0.0),
    "no tree: .*NoneType": guess(40, parent=None),
    "None, not a DraftTree": lambda root: None,
    r"\[[0-9]+\], not a DraftTree": lambda root: [root],
    "no tree: a tree needs one entry per node .* lengths": lambda root: DraftTree.chain([]),
    "no tree: a tree needs .* lengths": lambda root: DraftTree(torch.tensor([]), (), (), ()),
}


@pytest.mark.parametrize("line", TREES)
def test_a_drafter_is_refused_that_proposes_what_cannot_be_verified_or_recorded(line: str):
    """A tree below another token would be verified as if the target had chosen that token."""
    with pytest.raises(ValueError, match=f"^the drafter Proposing proposes {line}[^\n]*$"):
        models.pair(None).run(Lane("own", OWN, models.prompt(0), drafter=Proposing(TREES[line])))


FORMS: dict[str, Make] = {
    "arrays": lambda root: DraftTree(
        np.array([root, 40]), np.array([-1, 0]), np.array([0.0, -0.5], np.float32), (None, 0)
    ),
    "numpy's numbers": lambda root: DraftTree(
        (np.int32(root), np.int64(40)), (np.int8(-1), np.int8(0)), (np.float32(0), np.float64(-0.5)),
        (None, np.float16(0)),
    ),
    "tensors": lambda root: DraftTree(
        torch.tensor([root, 40]), torch.tensor([-1, 0]), torch.tensor([0.0, -0.5]), (None, torch.tensor(0))
    ),
    "tensors of one": lambda root: DraftTree(
        (torch.tensor(root), torch.tensor([40])), (-1, torch.tensor(0)), (0, torch.tensor(-0.5)),
        (None, torch.tensor([0.0])),
    ),
    "lists": lambda root: DraftTree([root, 40], [-1, 0], [0, -0.5], [None, 0]),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_numbers_of_another_form_are_taken_and_the_trace_reads_back(form: str):
    trace = models.pair(None).run(Lane("own", OWN, models.prompt(0), drafter=Proposing(FORMS[form])))
    assert trace.token_ids == expected(0, 0, 16)
    assert DecodeTrace.from_json(trace.to_json()) == trace
    first = trace.steps[0]
    assert first.tree == DraftTree((trace.prefill.first_token, 40), (-1, 0), (0.0, -0.5), (None, 0.0))
    assert {type(number) for number in (*first.tree.tokens, *first.tree.parents)} == {int}


class TargetItself(Drafter):
    """Draft a token by a pass of the target, on an engine of its own or on the one that verifies."""

    def __init__(self, pair: Pair, shared: bool) -> None:
        self._pair, self._shared = pair, shared

    def begin(self, prompt: Prompt, prefill: PrefillOutput, caches: KVCaches) -> None:
        slots = prompt.length + OWN.max_new_tokens
        self._engine = caches.target(slots) if self._shared else Engine.of(self._pair.target, slots)
        self._engine.prefill(prompt.input_ids, prompt.features, prompt.image_keys)

    def propose(self, root: int, depth: int) -> DraftTree:
        best = int(self._engine.forward(Batch([root])).logits[-1].argmax())
        self._tree = DraftTree.chain([root, best][: 1 + depth])
        return self._tree

    def commit(self, path: Sequence[int], states: object) -> None:
        for node in path[1:]:
            self._engine.forward(Batch([self._tree.tokens[node]]))


@pytest.mark.parametrize("passes", ["eager", "padded"])
def test_a_drafter_may_run_the_target_but_not_on_the_engine_that_verifies(passes: PassesName):
    pair = replace(models.pair(None), passes=passes)
    caches = KVCaches(pair.engines)
    for chat in (0, 1, 0):  # the caches serve one answer after the other
        lane = Lane("own", OWN, models.prompt(chat), drafter=TargetItself(pair, shared=False))
        trace = models.collected(pair, lane, stream(pair.request(lane, caches)))
        assert trace.token_ids == expected(chat, 0, 16)
        assert trace.steps[0].verification.accepted == (1,)
        lane = replace(lane, drafter=TargetItself(pair, shared=True))
        with pytest.raises(ValueError, match=r"^the drafter TargetItself ran the engine that verifies: [^\n]*$"):
            list(stream(pair.request(lane, caches)))
