"""Exact passes: target-only and speculative lanes do the same operations on the same bits in the same places."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import models
from support.amount import ALL, sample
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.identity import DRAFTERS, Runner, cases
from specllava.chat import Chat
from specllava.cli.options import PairOptions, load_pair
from specllava.core.branch import first_branch
from specllava.core.config import RULES, DecodingConfig
from specllava.core.tree import DraftTree, Pruned
from specllava.lane import lane_of
from specllava.pair import Pair
from specllava.runtime.kv_caches import EnginePool, KVCaches
from specllava.runtime.padded_passes import COLUMNS, EXACT_ROWS, EagerRunner, PaddedPasses
from specllava.runtime.self_check import rows_depend

Operation = tuple[str, tuple[tuple[int, ...], ...]]


class _Operations(TorchDispatchMode):
    """Names of operations, with the shapes of what they are given."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Operation] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        shapes = tuple(tuple(one.shape) for one in args if isinstance(one, Tensor))
        self.found.append((func._schema.name, shapes))
        return func(*args, **kwargs or {})


def target_passes(
    pair: Pair, prompt: Any, config: DecodingConfig, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[int], set[tuple[Operation, ...]]]:
    """What a lane says, and the kinds of passes of its target."""
    kinds: set[tuple[Operation, ...]] = set()
    run = PaddedPasses.run_reduced

    def watched(passes: PaddedPasses, kind: Any, shape: Any, compute: Callable[[], Tensor], summary: Any):
        def seen() -> Tensor:
            with _Operations() as operations:
                logits = compute()
            if logits.shape[-1] == pair.target.config.get_text_config().vocab_size and passes is engine.passes:
                kinds.add(tuple(operations.found))
            return logits

        return run(passes, kind, shape, seen, summary)

    caches = KVCaches(pair.engines)
    request = pair.request(lane_of(config, prompt), caches)
    with monkeypatch.context() as patched:
        patched.setattr(PaddedPasses, "run_reduced", watched)
        request.prefill()
        engine = request._engine
        while request.finished is None:
            request.propose()
            request.verify()
    return request.emitted, kinds


@pytest.mark.parametrize("rule", ["entropy", "chain", "topk"])
@pytest.mark.parametrize("seed", sample(models.SEEDS, 1))
def test_both_lanes_run_one_and_the_same_pass(rule: str, seed: int, monkeypatch: pytest.MonkeyPatch):
    config = DecodingConfig(rule=rule, depth=4, nodes=10, max_new_tokens=models.LONGEST)
    alone, prompt = replace(config, drafter="none"), models.prompt(0, seed)
    pair = models.pair("mixed", seed)
    said = {}
    for exact in (True, False):
        running = pair.running("padded", exact)
        lanes = [target_passes(running, prompt, one, monkeypatch) for one in (alone, config)]
        said[exact] = [tokens for tokens, _ in lanes]
        (_, single), (_, several) = lanes
        assert (single == several and len(single) == 1) == exact
    assert all(tuple(tokens) == models.expected(0, seed, models.LONGEST) for both in said.values() for tokens in both)


@pytest.mark.night
def test_how_passes_run_is_an_option_of_every_command():
    pair = load_pair(PairOptions(exact=True, device="cpu"))
    assert (pair.passes, pair.exact) == ("auto", True)
    assert load_pair(PairOptions(device="cpu")).exact is False
    with pytest.raises(ValueError, match="exact passes are padded ones: leave passes at auto, padded or graphs"):
        load_pair(PairOptions(passes="eager", exact=True, device="cpu"))
    with pytest.raises(ValueError, match="CUDA graphs need a GPU and the pair is on cpu"):
        load_pair(PairOptions(passes="graphs", device="cpu"))
    assert torch.device("cpu") == pair.device


# ---------------------------------------------------------------------------------------------- the first branch


@given(models.trees(), st.integers(0, 6))
def test_the_first_branch_is_a_chain_of_the_tree_and_what_lay_beside_it_is_pruned(tree: DraftTree, most: int):
    pruned = tuple(Pruned(node, 100 + node, -1.0) for node in range(len(tree)))
    branch = first_branch(tree, pruned, most)
    leaf = branch.nodes[-1]
    assert branch.nodes == tree.path(leaf) and len(branch.nodes) <= most + 1
    assert len(branch.nodes) == most + 1 or leaf not in tree.parents
    assert all(node == tree.parents.index(parent) for parent, node in zip(branch.nodes, branch.nodes[1:], strict=False))
    assert branch.tree.parents == tuple(range(-1, len(branch.nodes) - 1))
    for name in ("tokens", "log_probs", "entropies"):
        assert getattr(branch.tree, name) == tuple(getattr(tree, name)[node] for node in branch.nodes)
    beside = [node for node, parent in enumerate(tree.parents) if parent in branch.nodes and node not in branch.nodes]
    cut = [(branch.nodes[one.parent], one.token) for one in branch.pruned]
    assert cut == [
        *((tree.parents[node], tree.tokens[node]) for node in beside),
        *((node, 100 + node) for node in branch.nodes),
    ][: len(cut)]
    assert len(cut) == min(16, len(beside) + len(branch.nodes))


@pytest.mark.parametrize("rule", RULES)
def test_a_verified_node_stands_where_it_stands_in_the_text(rule: str, monkeypatch: pytest.MonkeyPatch):
    seen: list[tuple[int, Any, Any]] = []
    stage = PaddedPasses.stage

    def staged(passes: PaddedPasses, batch: Any, *rest: Any) -> Any:
        shape = stage(passes, batch, *rest)
        if passes.least_rows == EXACT_ROWS:
            seen.append((len(batch.tokens), shape.numbers.copy(), shape.visible.copy()))
        return shape

    monkeypatch.setattr(PaddedPasses, "stage", staged)
    pair = replace(models.pair("mixed"), passes="padded", exact=True)
    config = DecodingConfig(rule=rule, depth=4, nodes=200, width=3, max_new_tokens=models.LONGEST)
    vars(pair)["engines"] = pair.engines
    seen.clear()  # of the self-check
    said = pair.run(lane_of(config, models.prompt(0)))
    assert said.token_ids == models.expected(0, 0, models.LONGEST)
    assert len(seen) == len(said.steps) and max(count for count, *_ in seen) > 1
    for count, (_, columns, positions), visible in seen:
        assert len(columns) == EXACT_ROWS and (columns[:count] == positions[:count]).all()
        for row in range(count):
            assert visible[row].nonzero()[0].tolist() == list(range(columns[row] + 1))


# ------------------------------------------------------------------------------------------ equal bits, in bfloat16


@cache
def half() -> Runner:
    return Runner(torch.bfloat16)


@torch.inference_mode()
def decoded(pair: Pair, prompt: Any, config: DecodingConfig) -> tuple[list[int], Tensor, int]:
    """What a lane says, the keys and values of its target, and its passes."""
    caches = KVCaches(pair.engines)
    request, passes = pair.request(lane_of(config, prompt), caches, record=False), 0
    request.prefill()
    while request.finished is None:
        request.propose()
        request.verify()
        passes += 1
    engine = request._engine
    return request.emitted, engine.cache.slab[..., : engine.cache.length, :].clone(), passes


def test_every_column_of_both_lanes_has_the_same_bits():
    """In bfloat16, over drafters, rules and seeds, greedy and sampled: not the tokens alone."""
    faster = 0
    of_each = islice(cases(104, seed=7), 0, None, 2 if ALL else 12)  # drafter and rule
    for number, case in enumerate(of_each):
        asked, prompt = half()._asked(case)
        pair = replace(asked, passes="padded", exact=True)
        (plain, columns, single), (said, held, passes) = (
            decoded(pair, prompt, one.config) for one in (case.alone, case)
        )
        both = prompt.length + len(said) - 1  # a lane may hold accepted tokens behind the last that is said
        assert plain == said, f"case {number}"
        assert torch.equal(columns[..., :both, :], held[..., :both, :])
        faster += passes < single
    assert faster > (len(DRAFTERS) if ALL else len(DRAFTERS) // 5)


def test_a_dialogue_reads_its_prompts_anew_and_both_lanes_agree():
    pair = replace(half().pair(3, DRAFTERS[0]), passes="padded", exact=True)
    chat, config = Chat(pair), DecodingConfig(max_new_tokens=20, depth=5, nodes=12)
    for text in ("What is this?", "And that?", "Why?"):
        reused = [
            event.item.reused_tokens
            for event in chat.race(text, models.picture(0) if not chat.turns else None, config)
            if hasattr(event.item, "reused_tokens")
        ]
        assert reused == [0, 0]
        turn = chat.turns[-1]
        assert turn.trace.token_ids == turn.alone.token_ids


def test_drawn_guesses_are_judged_on_the_first_branch_too():
    pair = replace(models.pair("perfect"), passes="padded", exact=True)
    drawn = {"rule": "fixed", "branching": (2, 2, 2), "children": "drawn"}
    config = DecodingConfig(**drawn, temperature=1.0, nodes=9, max_new_tokens=16)
    steps = pair.run(lane_of(config, models.prompt(0))).steps
    assert all(step.tree.parents == tuple(range(-1, len(step.tree) - 1)) for step in steps)
    assert sum(len(step.verification.accepted) for step in steps) >= sum(step.tree.drafted for step in steps) > 4


# ------------------------------------------------------------------------------------------------ the self-check


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_on_this_machine_a_row_stands_alone(dtype: torch.dtype):
    assert not rows_depend(half()._make_target(0).target.to(dtype), EagerRunner)


@pytest.mark.parametrize("what", ["index", "others", "window"])
def test_where_a_row_depends_on_more_exact_refuses_in_one_line(what: str, monkeypatch: pytest.MonkeyPatch):
    model = half()._make_target(1).target.float()
    compute = PaddedPasses.run
    tiny = 1e-3

    def bent(passes: Any, kind: Any, shape: Any, batch: Any, called: Callable[[], Tensor], reduction: Any) -> Any:
        def logits() -> Tensor:
            found = called()
            if what == "index":
                return found + tiny * torch.arange(len(found))[:, None].eq(EXACT_ROWS - 1)
            if what == "others":
                return found + tiny * shape.positions[-1].ne(0)
            return found + tiny * (shape.write_slots.window > COLUMNS)

        return compute(passes, kind, shape, batch, logits, reduction)

    assert not rows_depend(model, EagerRunner)
    monkeypatch.setattr(PaddedPasses, "run", bent)
    with torch.inference_mode():
        assert rows_depend(model, EagerRunner)
    line = "LlavaForConditionalGeneration cannot be decoded with exact passes: a row's bits depend on other rows here"
    with pytest.raises(ValueError, match=line):
        EnginePool(EagerRunner, exact=True).engine(model, 64, rows=1)
    with pytest.raises(ValueError, match=line):
        Pair("x", model, None, None, "x", "-").running("padded", exact=True)
