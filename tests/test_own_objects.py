"""Rules and drafters of one's own change no token, are named in traces, and are refused where they break limits."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import models
from support.models import expected

from specllava.core.config import DecodingConfig
from specllava.core.growth.rule import GrowthRule, TopTokens, TreeBuilder
from specllava.core.growth.rules.shaped import FixedRule
from specllava.core.trace import DecodeTrace
from specllava.core.tree import DraftTree, Pruned
from specllava.decoding import stream
from specllava.drafters.drafter import DraftContext, Drafter, DraftSession
from specllava.lane import SPECULATIVE, TARGET_ONLY, Lane, lane_of
from specllava.models.loading.load_options import PassesName
from specllava.runtime.kv_caches import KVCaches
from specllava.runtime.passes import PassInput

CHATS = st.integers(0, len(models.CHATS) - 1)
CONFIG = DecodingConfig(max_new_tokens=16, depth=4, nodes=8, width=3)


class AnyRule(GrowthRule):
    """Make random choices, all of them legal."""

    max_children = 4

    def __init__(self, seed: int, config: DecodingConfig) -> None:
        self._random, self._config = random.Random(seed), config

    def num_children(self, builder: TreeBuilder, node: int, top: TopTokens) -> int:
        return self._random.randint(0, self.max_children)

    def frontier(self, builder: TreeBuilder, level: Sequence[int]) -> list[int]:
        count = self._random.randint(0, min(len(level), self._config.width))
        return self._random.sample(list(level), count)  # in any order

    def select(self, builder: TreeBuilder) -> list[int]:
        chosen = {0}
        for node in range(1, len(builder.tokens)):
            wanted = len(chosen) <= self._config.nodes and self._random.random() < 0.7
            if wanted and builder.parents[node] in chosen:
                chosen.add(node)
        return sorted(chosen - {0})


class AnyDrafter(Drafter):
    """Propose random trees, with the target's own answer now and then."""

    def __init__(self, seed: int, answer: Sequence[int], nodes: int) -> None:
        self.random, self.answer, self.nodes = random.Random(seed), answer, nodes

    def open(self, context: DraftContext) -> DraftSession:
        return _AnySession(self)


class _AnySession(DraftSession):
    def __init__(self, drafter: AnyDrafter) -> None:
        self._drafter, self._emitted = drafter, 1

    def propose(self, root: int, depth: int) -> DraftTree:
        drafter, source = self._drafter, self._drafter.random
        tokens, parents, levels = [root], [-1], [0]
        for _ in range(source.randint(0, drafter.nodes)):
            parent = source.randrange(len(tokens))
            right = drafter.answer[self._emitted + levels[parent] :][:1]
            token = right[0] if right and source.random() < 0.5 else source.randrange(10, 200)
            if levels[parent] < depth and (parent, token) not in zip(parents, tokens, strict=True):
                tokens.append(token)
                parents.append(parent)
                levels.append(levels[parent] + 1)
        self._depths, count = levels, len(tokens)
        return DraftTree(tuple(tokens), tuple(parents), (0.0,) + (-1.0,) * (count - 1), (None,) * count)

    def keep(self, path: Sequence[int], states: object = None) -> None:
        self._emitted += len(path)


@given(CHATS, st.sampled_from(models.SEEDS), st.sampled_from(models.KINDS), st.integers(0, 10_000), st.integers(1, 20))
@settings(max_examples=12)
def test_a_rule_of_ones_own_changes_no_token(chat: int, seed: int, kind: models.DraftKind, choices: int, limit: int):
    config = DecodingConfig(max_new_tokens=limit, depth=4, nodes=8, width=3)
    lane = Lane("own", config, models.prompt(chat, seed), rule=AnyRule(choices, config))
    assert models.pair(kind, seed).run(lane).token_ids == expected(chat, seed, limit)


@given(CHATS, st.sampled_from(models.SEEDS), st.integers(0, 10_000), st.sampled_from((0.0, 0.9)))
@settings(max_examples=12)
def test_a_drafter_of_ones_own_changes_no_token(chat: int, seed: int, choices: int, temperature: float):
    config = DecodingConfig(max_new_tokens=16, nodes=8, temperature=temperature, seed=choices)
    pair, prompt = models.pair(None, seed), models.prompt(chat, seed)
    alone = pair.run(Lane("alone", DecodingConfig(
        max_new_tokens=16, drafter="none", temperature=temperature, seed=choices), prompt)).token_ids  # fmt: skip
    drafter = AnyDrafter(choices, alone, config.nodes)
    trace = pair.run(Lane("own", config, prompt, drafter=drafter))
    assert trace.token_ids == alone
    assert temperature or alone == expected(chat, seed, 16)


class TargetItself(Drafter):
    """Draft one token by a pass of the target, and leave the root's column in the KV cache."""

    def open(self, context: DraftContext) -> DraftSession:
        return _TargetSession(context)


class _TargetSession(DraftSession):
    def __init__(self, context: DraftContext) -> None:
        self.engine = context.caches.engine(context.target, context.length + context.config.nodes + 1)
        self.engine.prefill(context.prompt.input_ids, context.prompt.features, context.prompt.image_keys)

    def propose(self, root: int, depth: int) -> DraftTree:
        best = int(self.engine.forward(PassInput([root])).logits[-1].argmax())
        return DraftTree.chain([root, best][: 1 + depth])


@pytest.mark.parametrize("passes", ["eager", "padded"])
def test_a_drafter_that_runs_the_target_cannot_reach_the_engine_that_verifies(passes: PassesName):
    pair, caches = replace(models.pair(None), passes=passes), KVCaches()
    for chat in (0, 1, 0):  # the caches serve one answer after the other
        lane = Lane("own", CONFIG, models.prompt(chat), drafter=TargetItself())
        said = pair.collect(lane, stream(pair.request(lane, caches)))
        assert said.token_ids == models.reference(chat)[:16]
    assert said.steps[0].verification.accepted == (1,)


def test_a_random_drafter_is_right_now_and_then():
    """Guards the test above."""
    drafter = AnyDrafter(0, models.reference(0), 8)
    trace = models.pair(None).run(Lane("own", CONFIG, models.prompt(0), drafter=drafter))
    assert sum(len(step.verification.accepted) for step in trace.steps) > 3


def test_a_trace_bears_the_names_of_what_served_it():
    pair, prompt = models.pair("mixed"), models.prompt(0)
    by_rule = pair.run(Lane("own", CONFIG, prompt, rule=AnyRule(0, CONFIG)))
    by_drafter = pair.run(Lane("own", CONFIG, prompt, drafter=AnyDrafter(0, (), 4)))
    ordinary = pair.run(Lane("own", CONFIG, prompt))
    assert (by_rule.rule, by_rule.drafter) == ("AnyRule", None)
    assert (by_drafter.rule, by_drafter.drafter) == (None, "AnyDrafter")
    for trace in (by_rule, by_drafter, ordinary):
        document = json.loads(trace.to_json())
        own = {name: value for name in ("rule", "drafter") if (value := getattr(trace, name)) is not None}
        assert {name: document[name] for name in ("rule", "drafter") if name in document} == own
        assert DecodeTrace.from_json(trace.to_json()) == trace
        assert DecodeTrace.from_json(trace.to_json()).to_json() == trace.to_json()


class EmptyDrafter(AnyDrafter):
    """A drafter that counts what it holds: nothing yet, so that Python takes it for false."""

    def __len__(self) -> int:
        return 0


class EmptyRule(AnyRule):
    def __len__(self) -> int:
        return 0


def test_objects_of_ones_own_serve_even_if_python_takes_them_for_false():
    pair, prompt, off = models.pair("mixed"), models.prompt(0), replace(CONFIG, drafter="none")
    assert not EmptyDrafter(0, (), 4) and not EmptyRule(0, CONFIG)
    by_drafter = pair.run(Lane("own", CONFIG, prompt, drafter=EmptyDrafter(0, expected(0, 0, 16), 4)))
    entropies = [entropy for step in by_drafter.steps for entropy in step.tree.entropies]
    assert len(entropies) > len(by_drafter.steps) and set(entropies) == {None}, "no tree is the draft model's"
    asked = set[int]()

    class Asked(EmptyRule):
        def frontier(self, builder: TreeBuilder, level: Sequence[int]) -> list[int]:
            asked.add(len(level))
            return super().frontier(builder, level)

    pair.run(Lane("own", CONFIG, prompt, rule=Asked(0, CONFIG)))
    assert asked
    assert lane_of(off, prompt, drafter=EmptyDrafter(0, (), 4)).name == SPECULATIVE
    picture, question = models.picture(0), "What is this?"
    assert set(pair.compare(picture, question, off, drafter=EmptyDrafter(0, (), 4))) == {TARGET_ONLY, SPECULATIVE}


def test_every_way_to_run_takes_objects_of_ones_own():
    pair, picture, chat = models.pair("mixed"), models.picture(0), models.messages(0)
    events = list(pair.stream(picture, chat, CONFIG, rule=AnyRule(1, CONFIG)))
    said = [events[0].first_token, *(token for step in events[1:] for token in step.emitted)]
    trace = pair.generate(picture, chat, CONFIG, rule=AnyRule(1, CONFIG))
    assert tuple(said) == trace.token_ids == expected(0, 0, 16)
    assert [step.tree for step in events[1:]] == [step.tree for step in trace.steps]
    lanes = pair.compare(picture, chat, CONFIG, drafter=AnyDrafter(1, (), 4))
    assert {name: lane.drafter for name, lane in lanes.items()} == {"target-only": None, "speculative": "AnyDrafter"}


Break = Callable[[TreeBuilder, list[int]], list[int]]
SELECTIONS: dict[str, Break] = {
    "selects 9 nodes, at most 8 are allowed": lambda builder, legal: list(range(1, 10)),
    "without its parent": lambda builder, legal: [builder.parents.index(1)],
    "not different nodes from 1 to": lambda builder, legal: [len(builder.tokens)],
    "selects [-1]: not different nodes from 1 to": lambda builder, legal: [-1],
    "selects [1, 1]: not different nodes from 1 to": lambda builder, legal: [1, 1],
    "selects [0]: not different nodes from 1 to": lambda builder, legal: [0],
    "selects node 5 without its parent 1 before it": lambda builder, legal: [5, 1],
}
FRONTIERS: dict[str, Break] = {
    "expands [0]: not different nodes of the level": lambda builder, level: [0],
    "expands [1, 1]: not different nodes of the level": lambda builder, level: [1, 1],
    "expands [99]: not different nodes of the level": lambda builder, level: [99],
    "expands 20 nodes of one tree, at most 12 are allowed": lambda builder, level: list(level),
}


class Counting(AnyRule):
    """Want so many children everywhere."""

    def __init__(self, count: int) -> None:
        super().__init__(0, CONFIG)
        self._count = count

    def num_children(self, builder: TreeBuilder, node: int, top: TopTokens) -> int:
        return self._count


@pytest.mark.parametrize("count", [-1, 5])
def test_a_rule_wants_no_more_children_than_it_said_and_no_fewer_than_none(count: int):
    with pytest.raises(ValueError, match=f"^the rule Counting wants {count} children of one node: 0 to its max"):
        list(models.pair("mixed").stream(models.picture(0), models.messages(0), CONFIG, rule=Counting(count)))


class Breaking(AnyRule):
    """Grow four children everywhere; then break one limit."""

    name = "mine"

    def __init__(self, frontier: Break | None, select: Break | None) -> None:
        self._frontier, self._select = frontier, select

    def num_children(self, builder: TreeBuilder, node: int, top: TopTokens) -> int:
        return 4

    def frontier(self, builder: TreeBuilder, level: Sequence[int]) -> list[int]:
        return self._frontier(builder, list(level)) if self._frontier else list(level)[:1]

    def select(self, builder: TreeBuilder) -> list[int]:
        return self._select(builder, []) if self._select else [1]


@pytest.mark.parametrize("message", [*SELECTIONS, *FRONTIERS])
def test_a_rule_that_breaks_a_limit_is_refused_and_the_caches_live_on(message: str):
    """Nothing of the failed answer stays behind: the next one is what it is alone."""
    pair, prompt, caches = models.pair("mixed"), models.prompt(0), KVCaches()
    rule = Breaking(FRONTIERS.get(message), SELECTIONS.get(message))
    list(models.events(pair, prompt, CONFIG, caches))
    with pytest.raises(ValueError, match=re.escape(message)) as refused:
        list(pair.stream(models.picture(0), models.messages(0), CONFIG, rule=rule))
    line = str(refused.value)
    assert line.startswith("the rule mine ") and "\n" not in line
    with pytest.raises(ValueError, match="the rule mine"):
        list(stream(pair.request(Lane("own", CONFIG, prompt, rule=rule), caches)))
    events = list(models.events(pair, prompt, CONFIG, caches))
    said = [events[0].first_token, *(token for step in events[1:] for token in step.emitted)]
    assert tuple(said) == expected(0, 0, 16)


@pytest.mark.parametrize("drafter", ["none", "prompt-lookup"])
def test_a_rule_without_a_tree_to_grow_is_refused(drafter: str):
    config = DecodingConfig(drafter=drafter)
    lane = Lane("own", config, models.prompt(0), rule=AnyRule(0, config))
    with pytest.raises(ValueError, match=f"^the drafter {drafter} grows no trees, so the rule AnyRule has no use$"):
        models.pair("mixed").request(lane)


def test_drawn_children_need_a_rule_that_says_its_trees_do_not_depend_on_them():
    """A rule that drops drawn guesses for what they are bends the distribution of the answer."""
    config = DecodingConfig(rule="fixed", children="drawn", temperature=1.0, max_new_tokens=8)
    pair, prompt = models.pair("mixed"), models.prompt(0)
    with pytest.raises(ValueError, match=r"^the rule AnyRule is not drawable: set children to best"):
        pair.request(Lane("own", config, prompt, rule=AnyRule(0, config)))
    rule = FixedRule(branching=config.branching, depth=config.depth, nodes=config.nodes)
    own = pair.run(Lane("own", config, prompt, rule=rule))
    assert own.token_ids == pair.run(Lane("own", config, prompt)).token_ids


class Wrong(Drafter):
    """Propose one tree, whatever the root."""

    name = "wrong"
    pruned: tuple[Pruned, ...] = ()

    def __init__(self, tree: Callable[[int], DraftTree]) -> None:
        self.tree = tree

    def open(self, context: DraftContext) -> DraftSession:
        session = _WrongSession()
        session.tree, session.pruned = self.tree, self.pruned
        return session


class _WrongSession(DraftSession):
    tree: Callable[[int], DraftTree]

    def propose(self, root: int, depth: int) -> DraftTree:
        return self.tree(root) if depth else DraftTree.only_root(root)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (lambda root: DraftTree.chain([root] * 10), "^the drafter wrong proposes 9 tokens, at most 8 are allowed$"),
        (lambda root: DraftTree.chain([root + 1] * 3), "^the drafter wrong proposes a tree below token [0-9]+, not"),
    ],
)
def test_a_drafter_that_proposes_no_tree_of_this_answer_is_refused(tree: Callable[[int], DraftTree], message: str):
    """A tree below another token was verified as if the target had said that token."""
    with pytest.raises(ValueError, match=message):
        models.pair(None).run(Lane("own", CONFIG, models.prompt(0), drafter=Wrong(tree)))


TREES: dict[str, Callable[[int], DraftTree]] = {
    "numpy": lambda root: DraftTree(
        np.array([root, 40]), np.array([-1, 0]), np.array([0.0, -0.5], np.float32), (None, 0)
    ),
    "numpy numbers": lambda root: DraftTree(
        (np.int32(root), np.int64(40)),
        (np.int8(-1), np.int8(0)),
        (np.float32(0), np.float64(-0.5)),
        (None, np.float16(0)),
    ),
    "tensors": lambda root: DraftTree(
        torch.tensor([root, 40]), torch.tensor([-1, 0]), torch.tensor([0.0, -0.5]), (None, torch.tensor(0))
    ),
    "tensors of one": lambda root: DraftTree(
        (torch.tensor(root), torch.tensor([40])),
        (-1, torch.tensor(0)),
        (0, torch.tensor(-0.5)),
        (None, torch.tensor([0.0])),
    ),
    "lists": lambda root: DraftTree([root, 40], [-1, 0], [0, -0.5], [None, 0]),
}


@pytest.mark.parametrize("form", TREES)
def test_numbers_of_another_form_are_taken_and_the_trace_reads_back(form: str):
    drafter = Wrong(TREES[form])
    drafter.pruned = (Pruned(np.int64(0), torch.tensor(41), np.float32(-1.5)),)
    trace = models.pair(None).run(Lane("own", CONFIG, models.prompt(0), drafter=drafter))
    assert trace.token_ids == models.reference(0)[:16]
    assert DecodeTrace.from_json(trace.to_json()) == trace
    first = trace.steps[0]
    assert first.tree == DraftTree((trace.prefill.first_token, 40), (-1, 0), (0.0, -0.5), (None, 0.0))
    assert first.pruned == (Pruned(0, 41, -1.5),)
    assert {type(number) for number in (*first.tree.tokens, *first.tree.parents)} == {int}


def chain(token: object, log_prob: object = -1.0, entropy: object = None) -> Callable[[int], DraftTree]:
    return lambda root: DraftTree((root, token), (-1, 0), (0.0, log_prob), (None, entropy))


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (chain(True), "token True, not an integer"),
        (chain(np.bool_(True)), "token np.True_, not an integer"),
        (chain(torch.tensor(True)), r"token tensor\(True\), not an integer"),
        (chain(40.0), "token 40.0, not an integer"),
        (chain(None), "token None, not an integer"),
        (chain("40"), "token '40', not an integer"),
        (chain(40, math.nan), "log-probability nan, not a finite number"),
        (chain(40, -math.inf), "log-probability -inf, not a finite number"),
        (chain(40, torch.tensor(math.nan)), r"log-probability tensor\(nan\), not a finite number"),
        (chain(40, None), "log-probability None, not a finite number"),
        (chain(40, -1.0, math.inf), "entropy inf, not a finite number"),
        (lambda root: DraftTree((root, 40), (-1, 0.0), (0.0, 0.0), (None,) * 2), "parent 0.0, not an integer"),
        (lambda root: DraftTree((root, 40), (-1, False), (0.0, 0.0), (None,) * 2), "parent False, not an integer"),
        (lambda root: None, "None, not a DraftTree"),
        (lambda root: [root], r"\[[0-9]+\], not a DraftTree"),
        (lambda root: DraftTree.chain([]), "no tree: a tree needs one entry per node .* lengths"),
        (lambda root: DraftTree(torch.tensor([]), (), (), ()), "no tree: a tree needs one entry per node .* lengths"),
        (lambda root: DraftTree((root, 40), (-1, None), (0.0, 0.0), (None,) * 2), "no tree: .*NoneType"),
    ],
)
def test_what_is_no_tree_of_numbers_is_refused_by_drafter_and_value(tree: Callable[[int], DraftTree], message: str):
    """Some ran and wrote files that could not be read; others failed far inside."""
    with pytest.raises(ValueError, match=f"^the drafter wrong proposes {message}[^\n]*$"):
        models.pair(None).run(Lane("own", CONFIG, models.prompt(0), drafter=Wrong(tree)))


@pytest.mark.parametrize(
    ("pruned", "message"),
    [
        ((Pruned(2, 41, -1.0),), "a guess of parent 2, of a tree of 2 nodes"),
        ((Pruned(0, 10**6, -1.0),), f"token 1000000, of a vocabulary of {models.RECIPE.vocabulary}"),
        ((Pruned(0, 41, math.nan),), "a guess of log-probability nan, not a finite number"),
        ((Pruned(0, 41.5, -1.0),), "token 41.5, not an integer"),
        ((41,), "41, not a Pruned"),
        (None, "None, not a list"),
    ],
)
def test_guesses_left_out_that_no_trace_can_hold_are_refused(pruned: tuple[Pruned, ...], message: str):
    drafter = Wrong(chain(40))
    drafter.pruned = pruned
    with pytest.raises(ValueError, match=f"^the drafter wrong prunes {message}$"):
        models.pair(None).run(Lane("own", CONFIG, models.prompt(0), drafter=drafter))


class Returning(AnyRule):
    """Return such values where a rule returns integers."""

    name = "mine"

    def __init__(self, **values: Any) -> None:
        super().__init__(0, CONFIG)
        self._values = values
        self.max_children = values.get("max_children", 4)

    def num_children(self, builder: TreeBuilder, node: int, top: TopTokens) -> int:
        return self._values.get("num_children", 2)

    def frontier(self, builder: TreeBuilder, level: Sequence[int]) -> list[int]:
        return self._values.get("frontier", list)(level[:1])

    def select(self, builder: TreeBuilder) -> list[int]:
        return self._values.get("select", list)([1, 2])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_children": 4.0}, r"max_children of the rule mine returns 4.0, not an integer"),
        ({"num_children": 1.5}, r"num_children\(\) of the rule mine returns 1.5, not an integer"),
        ({"num_children": None}, r"num_children\(\) of the rule mine returns None, not an integer"),
        ({"num_children": True}, r"num_children\(\) of the rule mine returns True, not an integer"),
        ({"frontier": lambda nodes: None}, r"frontier\(\) of the rule mine returns None, not a list"),
        ({"frontier": lambda nodes: map(float, nodes)}, r"frontier\(\) of the rule mine returns <map .*>, not a list"),
        ({"frontier": lambda nodes: [1.0]}, r"frontier\(\) of the rule mine returns 1.0, not an integer"),
        ({"select": lambda nodes: None}, r"select\(\) of the rule mine returns None, not a list"),
        (
            {"select": lambda nodes: (node for node in nodes)},
            r"select\(\) of the rule mine returns <gen.*>, not a list",
        ),
        ({"select": lambda nodes: np.array([1.0])}, r"select\(\) of the rule mine returns 1.0, not an integer"),
        ({"select": lambda nodes: [True]}, r"select\(\) of the rule mine returns True, not an integer"),
    ],
)
def test_a_rule_that_returns_no_integers_is_refused_by_its_name_and_value(values: dict[str, Any], message: str):
    pair = models.pair("mixed")
    with pytest.raises(ValueError, match=f"^{message}$"):
        pair.run(Lane("own", CONFIG, models.prompt(0), rule=Returning(**values)))
    assert pair.run(Lane("own", CONFIG, models.prompt(0))).token_ids == models.reference(0)[:16]


@pytest.mark.parametrize("form", [np.array, torch.tensor, tuple, lambda nodes: [np.int16(node) for node in nodes]])
def test_a_rule_may_return_integers_of_another_form(form: Callable[[list[int]], Any]):
    rule = Returning(num_children=np.int64(2), max_children=np.int64(4), frontier=form, select=form)
    trace = models.pair("mixed").run(Lane("own", CONFIG, models.prompt(0), rule=rule))
    assert trace.token_ids == models.reference(0)[:16]
    assert DecodeTrace.from_json(trace.to_json()) == trace and max(step.tree.drafted for step in trace.steps) == 2
