"""The trees with which others measured their drafts: the same guesses here, and what a named pair runs unless told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from inspect import signature
from typing import Any

import gradio as gr
import pytest
from support.eagle2 import Path, Scores, best, random_scores, verified_paths

import app
from specllava.bench.lanes import bench_lanes
from specllava.cli.comparison import ComparisonOptions, side_options
from specllava.cli.main import _parse
from specllava.cli.options import AnswerOptions, PairOptions, typed_options, with_tree
from specllava.cli.page_options import PageOptions
from specllava.core.config import DecodingConfig
from specllava.core.growth.grow import GrowthLimits, grow
from specllava.core.growth.rule import TopTokens
from specllava.core.growth.rules import build_rule
from specllava.core.growth.rules.topk import eagle2_tree
from specllava.models.loading.presets import presets
from visual.page.api import ENDPOINTS, _document
from visual.page.app_state import AppState
from visual.page.controls import decoding_config, settings_drawer

MSD, VISPEC, TRAINED = "llava-1.5-7b-msd", "llava-1.5-7b-vispec", "qwen2.5-vl-7b-eagle3"
DEEP = DecodingConfig(rule="topk", depth=6, width=10, nodes=58)
ASKED = ["--image", "x.png", "--prompt", "What?"]


def grown_paths(scores: Scores, config: DecodingConfig) -> set[Path]:
    """The guesses of a tree that a configuration grows on such a draft."""
    paths: dict[int, Path] = {0: ()}

    def expand(nodes: Sequence[int], tokens: Sequence[int], parents: Sequence[int]) -> list[TopTokens]:
        found = []
        for node, token, parent in zip(nodes, tokens, parents, strict=True):
            paths[node] = (*paths[parent], token) if node else ()
            after = scores(paths[node])
            top = best(after, config.width)
            found.append(TopTokens(top, [after[one] for one in top], 1.0))
        return found

    limits = GrowthLimits(config.depth, config.nodes, config.max_expanded_nodes)
    tree = grow(7, expand, build_rule(config), limits).tree
    held: dict[int, Path] = {0: ()}
    for node in range(1, len(tree)):
        held[node] = (*held[tree.parents[node]], tree.tokens[node])
    return set(held.values()) - {()}


@pytest.mark.parametrize(("depth", "top_k", "total"), [(5, 10, 59), (3, 8, 30), (7, 10, 60), (2, 3, 9)])
@pytest.mark.parametrize("spread", [1.0, 6.0])  # wide trees, and deep ones
def test_topk_verifies_the_guesses_that_eagle2s_own_loop_verifies(
    depth: int, top_k: int, total: int, spread: float
) -> None:
    """In its authors' numbers taken for ours a tree lacked its deepest level."""
    config = DecodingConfig(**eagle2_tree(depth, top_k, total))
    deepest = 0
    for seed in range(12):
        scores = random_scores(seed, 40, spread)
        wanted = verified_paths(scores, depth, top_k, total)
        assert grown_paths(scores, config) == wanted and len(wanted) == total - 1
        deepest = max(deepest, *map(len, wanted))
    assert spread == 1.0 or deepest == depth + 1


def chosen(*arguments: str, command: str = "generate") -> DecodingConfig:
    """The options of decoding that a command line comes to."""
    made: Any = _parse([command, *ASKED, *arguments])
    assert isinstance(made, AnswerOptions)
    return with_tree(made.decoding, made.pair.tree, made.typed)


def test_a_named_pair_runs_the_tree_that_its_draft_was_measured_with() -> None:
    assert chosen("--preset", MSD) == chosen("--preset", MSD, command="compare") == DEEP
    assert chosen("--preset", VISPEC) == replace(DEEP, depth=4, width=8, nodes=29)
    assert chosen("--preset", TRAINED) == chosen() == DecodingConfig()
    other = chosen("--preset", MSD, "--draft", "runs/mine")
    assert other == chosen("--target", "runs/target") == DecodingConfig(), "another draft's is not known"


def test_an_option_that_is_typed_wins_even_if_it_is_the_usual_one() -> None:
    assert chosen("--preset", MSD, "--nodes", "20") == replace(DEEP, nodes=20)
    assert chosen("--preset", MSD, "--nodes=20", "--width", "3") == replace(DEEP, nodes=20, width=3)
    assert chosen("--preset", MSD, "--rule", "topk", "--depth", "2") == replace(DEEP, depth=2)
    assert chosen("--preset", MSD, "--temperature", "0.5") == replace(DEEP, temperature=0.5)
    assert chosen("--preset", MSD, "--rule", "entropy") == DecodingConfig(), "its tree is of no use to another rule"
    assert typed_options(["--max-new-tokens", "9", "--entropy_threshold=1", "--b=--rule chain"]) == {
        "max_new_tokens", "entropy_threshold",
    }  # fmt: skip


def test_each_side_of_a_comparison_has_the_tree_of_its_own_pair() -> None:
    common = AnswerOptions(typed=frozenset(("max_new_tokens",)), decoding=DecodingConfig(max_new_tokens=9))
    a, b = side_options(common, ComparisonOptions(a=f"--preset {MSD}", b=f"--preset {VISPEC} --nodes 20"))
    assert a.decoding == replace(DEEP, max_new_tokens=9)
    assert b.decoding == replace(DEEP, depth=4, width=8, nodes=20, max_new_tokens=9)
    _, b = side_options(AnswerOptions(typed=frozenset(("rule",))), ComparisonOptions(b=f"--preset {MSD}"))
    assert b.decoding == DecodingConfig(), "a rule for both sides was typed"
    a, b = side_options(AnswerOptions(pair=PairOptions(preset=MSD)), ComparisonOptions(scenes=1))
    assert (a.decoding, b.decoding) == (replace(DEEP, drafter="none"), DEEP)


def test_the_benchmark_has_a_lane_with_that_tree() -> None:
    lanes = bench_lanes(DecodingConfig(), presets()[MSD].tree)
    assert lanes["topk"] == DEEP
    usual = bench_lanes(DecodingConfig())
    assert {name: lane for name, lane in lanes.items() if name != "topk"} == {
        name: lane for name, lane in usual.items() if name != "topk"
    }
    made: Any = _parse(["bench", "--preset", MSD, "--nodes", "20"])
    assert made.typed == {"nodes"} and made.pair.tree == presets()[MSD].tree


def test_the_page_begins_with_that_tree_and_names_it() -> None:
    options = PageOptions(PairOptions(preset=MSD))
    choices = app._choices(options, app._drafts(options))
    with gr.Blocks():
        drawer = settings_drawer("#run", choices)
        plain = settings_drawer("#run")
    assert decoding_config(drawer.value) == DEEP
    by_title = {one["title"]: decoding_config(drawer.value | one["changes"]) for one in drawer.props["presets"]}
    assert by_title["as measured"] == DEEP and by_title["this paper"] == DecodingConfig()
    assert by_title["EAGLE-2"] == replace(DEEP, depth=8, nodes=59)
    assert decoding_config(plain.value) == DecodingConfig()
    assert "as measured" not in {one["title"] for one in plain.props["presets"]}
    def called() -> None:
        """Nothing: its signature is what is documented."""

    state = AppState(lambda: None, choices=choices)  # type: ignore[arg-type,return-value]
    given = signature(_document(ENDPOINTS[0], called, state)).parameters
    assert {name: given[name].default for name in presets()[MSD].tree} == presets()[MSD].tree
