"""Trees that a device grows ahead of the host are those grown pass by pass, whatever the forecast was worth."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from support import models
from support.checked_runner import checked_graphs
from support.recorder import Recorder
from torch import Tensor

from benchmarks.emulated.installed import emulated_device
from benchmarks.gpu.checks import idle_reads
from benchmarks.gpu_llava import LANES, PICTURE, QUESTION
from benchmarks.identity import FORMATS, Runner
from benchmarks.shared.random_pair import build, feature_draft
from specllava.core.config import RULES, DecodingConfig
from specllava.core.growth.forecast import Beam, Plan
from specllava.core.growth.rule import GrowthRule
from specllava.core.growth.rules.entropy import EntropyRule
from specllava.core.growth.shapes import drawn_shape
from specllava.core.trace import StepTrace
from specllava.decoding import Request
from specllava.drafters.replay import TreeReplay
from specllava.lane import Lane, lane_of
from specllava.models.drafts.draft_reading import DraftFormat
from specllava.pair import Pair
from specllava.runtime.kv_caches import EnginePool, KVCaches
from specllava.runtime.padded_engines import PaddedEngine
from specllava.runtime.padded_passes import EagerRunner
from specllava.runtime.tree_passes import TreePasses

FORECAST = [rule for rule in RULES if rule != "cost-aware"]


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


@cache
def features() -> Runner:
    return Runner(torch.float64)


def pair_of(draft: str, seed: int = 0) -> Pair:
    return features().pair(seed, draft) if draft in FORMATS else models.pair(draft, seed)


def steps(
    pair: Pair, config: DecodingConfig, pool: EnginePool, number: int = 0, rule: GrowthRule | None = None
) -> list[StepTrace]:
    """Steps without the seconds that they took."""
    lane = lane_of(config, pair.prompt(models.picture(number), "What is this?"))
    request = pair.request(replace(lane, rule=rule), KVCaches(pool))
    taken = [one for one in models.stream(request) if isinstance(one, StepTrace)]
    return [replace(one, seconds=None, target=None) for one in taken]


def config_of(rule: str, seed: int) -> DecodingConfig:
    limits = ((4, 9, 3, -2.0), (7, 20, 4, -4.0), (3, 5, 5, -1.0), (16, 24, 2, -6.0))[seed % 4]
    options = dict(zip(("depth", "nodes", "width", "min_log_prob"), limits, strict=True))
    return DecodingConfig(rule=rule, **options, max_new_tokens=14, max_branches=2 + seed % 3)


@pytest.fixture
def verified(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Passes of the target over trees: queued behind a draft's passes, used afterwards, and made without."""
    counts = {"queue_tree": 0, "take_tree": 0, "forward": 0}

    def counted(name: str) -> Callable[..., Any]:
        plain = getattr(PaddedEngine, name)

        def run(engine: PaddedEngine, *args: Any) -> Any:
            counts[name] += 1
            return plain(engine, *args)

        return run

    for name in counts:
        monkeypatch.setattr(PaddedEngine, name, counted(name))
    return counts


# ----------------------------------------------------------------------------------------------- the trees are the same


@pytest.mark.parametrize(
    ("draft", "rule"),
    [
        *((draft, rule) for draft in ("mixed", "eagle3") for rule in FORECAST),
        *((draft, rule) for draft in ("bad", "eagle", "vispec") for rule in ("entropy", "topk")),
    ],
)
def test_trees_scores_and_verdicts_are_those_of_eager_passes(draft: str, rule: str, verified: dict[str, int]):
    """Bit for bit in float64, on replayed passes: tokens, parents, log-probabilities, entropies, pruned guesses."""
    recorders = list[Recorder]()
    pool = EnginePool(lambda: recorders.append(Recorder()) or recorders[-1])
    for seed in range(4 if draft in models.KINDS else 2):
        pair, config = pair_of(draft, seed % 2), config_of(rule, seed)
        assert steps(pair, config, pool, seed) == steps(pair, config, EnginePool(), seed)
    assert sum(one.replayed for one in recorders) > 20
    assert 0 < verified["queue_tree"] == verified["take_tree"]


def with_ties(pair: Pair) -> Pair:
    """The pair with a draft to which every token is as likely as three others."""
    with torch.inference_mode(False), torch.no_grad():
        draft = copy.deepcopy(pair.draft)
        weight = draft.get_output_embeddings().weight
        weight.copy_(weight[torch.arange(len(weight)) // 4 * 4].clone())
    return replace(pair, draft=draft)


@pytest.mark.parametrize("rule", ["entropy", "topk", "sequoia"])
def test_ties_go_to_the_elder_as_on_the_host(rule: str, verified: dict[str, int]):
    tied = 0
    for seed in range(4):
        pair = with_ties(models.pair("mixed", seed % 2))
        config = config_of(rule, seed)
        grown = steps(pair, config, EnginePool(EagerRunner), seed)
        assert grown == steps(pair, config, EnginePool(), seed)
        tied += sum(len(set(step.tree.log_probs)) < len(step.tree.log_probs) for step in grown)
    assert tied > 3
    assert 0 < verified["queue_tree"] == verified["take_tree"]


@pytest.mark.parametrize("draft", ["mixed", "eagle3"])
def test_the_drafts_cache_is_kept_as_elsewhere(draft: str):
    """Contents, and the keys and values behind them, after every step of an answer."""
    pair, config = pair_of(draft), config_of("topk", 1)
    held = list[list[tuple[list[Any], Tensor]]]()
    for pool in (EnginePool(), EnginePool(EagerRunner)):
        prompt = pair.prompt(models.picture(0), "What is this?")
        request = pair.request(lane_of(config, prompt), KVCaches(pool), record=False)
        request.prefill()
        held.append([])
        while request.finished is None:
            request.propose()
            request.verify()
            cache = request._session._cache
            columns = torch.stack([layer.both[:, :, :, : cache.length] for layer in cache.layers])
            held[-1].append((list(cache.contents), columns))
    for (contents, columns), (same, same_columns) in zip(*held, strict=True):
        assert contents == same and len(contents) == columns.shape[-2]
        torch.testing.assert_close(same_columns, columns, rtol=0, atol=1e-12)


# ------------------------------------------------------------------------------------ a wrong forecast costs no token


def count_misses(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    missed, expand = list[Exception](), TreeReplay.expand

    def expanding(replay: TreeReplay, *args: Any) -> Any:
        try:
            return expand(replay, *args)
        except Exception as error:
            missed.append(error)
            raise

    monkeypatch.setattr(TreeReplay, "expand", expanding)
    return missed


class Misforecast(EntropyRule):
    """Rule whose forecast expands one node of each level, as if every node had one child."""

    @property
    def forecast(self) -> Beam:
        return Beam(self.width, self.nodes, self.min_log_prob, 12.0)


@pytest.mark.parametrize("draft", ["bad", "mixed", "eagle3"])
def test_a_rule_that_was_forecast_wrongly_grows_its_trees_pass_by_pass(draft: str, monkeypatch: pytest.MonkeyPatch):
    missed = count_misses(monkeypatch)
    for seed in range(3):
        pair, config = pair_of(draft, seed % 2), replace(config_of("entropy", seed), min_log_prob=-20.0)
        rule = Misforecast(config.width, config.nodes, config.min_log_prob, 0.0, config.max_branches)
        eager, ahead = (steps(pair, config, pool, seed, rule) for pool in (EnginePool(), EnginePool(EagerRunner)))
        assert eager == ahead
    assert len(missed) == 3, "one tree of an answer is grown twice, and the next ones pass by pass"


PLANTED: dict[str, Callable[[TreePasses, Any], Any]] = {
    "children are mistaken for one another": lambda best, picks: (best, picks.flip(0)),
    "another child is expanded": lambda best, picks: (best, (picks + 1).clamp(max=2)),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_device_that_expands_something_else_is_found(bug: str, monkeypatch: pytest.MonkeyPatch):
    """And changes no tree: the host looks up nodes by their parents and tokens."""
    missed, choose = count_misses(monkeypatch), TreePasses._best_children
    monkeypatch.setattr(TreePasses, "_best_children", lambda passes, numbers: PLANTED[bug](*choose(passes, numbers)))
    pair, config = pair_of("mixed"), replace(config_of("topk", 0), nodes=5)
    assert steps(pair, config, EnginePool(EagerRunner)) == steps(pair, config, EnginePool())
    assert missed


def test_a_selection_that_is_not_the_tree_is_not_used(monkeypatch: pytest.MonkeyPatch, verified: dict[str, int]):
    select = TreePasses.fetch

    def fetched(passes: TreePasses) -> Any:
        rows, selected = select(passes)
        return rows, None if selected is None else [(token + 1, parent) for token, parent in selected]

    monkeypatch.setattr(TreePasses, "fetch", fetched)
    pair, config = pair_of("mixed"), config_of("topk", 0)
    assert steps(pair, config, EnginePool(EagerRunner)) == steps(pair, config, EnginePool())
    assert (verified["queue_tree"], verified["take_tree"]) == (1, 0), "it is not queued a second time"


def test_a_draft_whose_logits_are_no_numbers_is_named(monkeypatch: pytest.MonkeyPatch):
    pair = with_ties(models.pair("mixed"))
    with torch.inference_mode(False), torch.no_grad():
        pair.draft.get_output_embeddings().weight[3] = torch.nan
    with pytest.raises(ValueError, match="the draft's logits are not numbers"):
        steps(pair, config_of("topk", 0), EnginePool(EagerRunner))


# ------------------------------------------------------------------------------------------------- what is waited for


@pytest.mark.parametrize(
    ("kind", "lane"), [*((None, lane) for lane in LANES if "entropy" not in lane), ("eagle3", "top 10, EAGLE-2")]
)
def test_a_step_leaves_a_gpu_without_work_once(kind: DraftFormat | None, lane: str):
    """On captured passes: the host reads the tree while the target scores it, and then the verdict."""
    with emulated_device() as device:
        pair = build("toy", torch.device("cuda"), torch.float32)
        pair = checked_graphs(pair if kind is None else feature_draft(pair, kind), device)
        prompt = pair.prompt(PICTURE, QUESTION, 64)
        request = pair.request(Lane(lane, LANES[lane], prompt), KVCaches(pair.engines), record=False)
        request.prefill()
        for _ in range(4):
            device.waits.clear()
            with idle_reads() as idle:
                request.propose()
                request.verify()
            assert idle == ([True] if LANES[lane].drafter == "none" else [False, True])
            assert not device.waits


def test_levels_are_expanded_as_far_as_the_last_trees_went():
    """Of a rule that stops early: at most two levels more than the larger of the last two trees had, or a read more."""
    pair, config = pair_of("mixed"), replace(config_of("entropy", 3), max_new_tokens=24)
    request: Request = pair.request(
        lane_of(config, pair.prompt(models.picture(0), "What is this?")), KVCaches(EnginePool(EagerRunner))
    )
    request.prefill()
    depths = list[int]()
    while request.finished is None:
        request.propose()
        replay = request._session._replay
        expanded = len(replay._rows) // replay._passes.rows
        assert depths == [] or replay._levels <= expanded <= max(*depths[-2:], replay._levels) + 2
        depths.append(replay._levels)
        request.verify()
    assert max(depths) < config.depth


def test_a_plan_names_the_inner_nodes_of_a_shape_level_by_level():
    plan = Plan.of(drawn_shape((0, 0, 0, 1, 1, 3, 4, 6), 8, 20))
    assert (plan.nodes, plan.width) == (8, 2)
    assert plan.levels == (((0, 0, 3),), ((0, 0, 2), (0, 2, 1)), ((0, 0, 1), (1, 0, 1)))
