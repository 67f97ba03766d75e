"""The GPU benchmark, rehearsed on a CPU at the toy's size: each part runs, and what it counts is what happened."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from support import models

from benchmarks import gpu
from benchmarks.shared.oracle import OracleDrafter, acceptance, accepted_length, graft
from specllava.config import DecodingConfig
from specllava.spec_decode.loop import Lane
from specllava.tree import DraftTree


def run(path: Path, parts: dict[str, gpu.Part], monkeypatch: pytest.MonkeyPatch, budget: float = 1e9) -> dict[str, Any]:
    monkeypatch.setattr(gpu, "parts_of", lambda *given: parts)
    code = gpu.main("random-toy", budget, path, "cpu")
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    assert code == any(part["error"] for part in report["parts"].values())
    return report


def test_every_part_but_the_page_runs_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    parts = gpu.parts_of("random-toy", "bfloat16")
    assert list(parts)[-1] == "page"
    report = run(tmp_path / "gpu.json", {name: parts[name] for name in list(parts)[:-1]}, monkeypatch)
    assert [part["error"] for part in report["parts"].values()] == [None] * (len(parts) - 1)
    found = {name: part["found"] for name, part in report["parts"].items()}
    assert found["drafting, eagle"]["nodes"] == found["drafting, own"]["nodes"] == 60
    for name, answers in found.items():
        for lane, one in answers.items() if name.startswith("known answer") else ():
            if isinstance(one, dict):
                assert one["differ"] == 0 or name == "known answer, bfloat16", (name, lane)
                assert one["speedup"] == pytest.approx(answers["alone_ms_token"] / one["ms_token"])
    assert {goal["goal"] for goal in report["goals"]} >= {"target passes, over_one_row, 32", "drafting, eagle, cycle"}


@pytest.mark.night
def test_the_page_races_over_the_pair_of_the_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert run(tmp_path / "gpu.json", {"page": gpu.page}, monkeypatch)["parts"]["page"]["found"]["equal"]


def test_a_part_that_fails_and_a_budget_that_is_over_cost_no_other_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def broken(bench: gpu.Bench) -> dict[str, Any]:
        raise RuntimeError("two\nlines")

    path = tmp_path / "gpu.json"
    seen = list[list[str]]()

    def looking(bench: gpu.Bench) -> dict[str, Any]:
        seen.append(list(json.loads(path.read_text(encoding="utf-8"))["parts"]))
        return {"value": 1}

    report = run(path, {"broken": broken, "whole": looking}, monkeypatch)["parts"]
    assert report["broken"]["error"] == "RuntimeError: two lines" and report["whole"]["found"] == {"value": 1}
    assert seen == [["broken"]], "the file is written after each part"
    report = run(path, {"whole": looking}, monkeypatch, budget=0.0)["parts"]
    assert report["whole"] == {"found": None, "error": "skipped: over the budget", "seconds": 0.0}


def test_the_weights_of_a_pass_are_layers_and_head_without_the_table_of_embeddings():
    pair = models.pair("mixed")
    read = ("language_model.layers", "language_model.norm", "lm_head")
    wanted = sum(weight.nbytes for name, weight in pair.target.named_parameters() if any(each in name for each in read))
    assert gpu.weight_bytes(pair) == wanted > 0


@pytest.mark.parametrize("tau", [1.0, 2.0, 3.6, 6.0])
def test_lengths_are_drawn_so_that_passes_bring_what_is_asked_for(tau: float):
    """Of five guesses each is right with one chance: the mean length is the sum of its powers."""
    chance = acceptance(5, tau)
    assert sum(chance**level for level in range(6)) == pytest.approx(tau)
    lengths = [accepted_length(5, tau, number) for number in range(2000)]
    assert 1 + sum(lengths) / len(lengths) == pytest.approx(tau, abs=0.01)
    assert acceptance(5, 9.0) == pytest.approx(1.0), "more than six tokens cannot come"


def random_tree(rng: random.Random, nodes: int) -> DraftTree:
    """A tree whose siblings differ, over few tokens, so that guesses are right by chance too."""
    tokens, parents = [0], [-1]
    while len(tokens) < nodes:
        parent = rng.randrange(len(tokens))
        taken = {token for token, above in zip(tokens, parents, strict=True) if above == parent}
        if free := [token for token in range(4) if token not in taken]:
            tokens.append(rng.choice(free))
            parents.append(parent)
    return DraftTree(tuple(tokens), tuple(parents), (0.0,) * nodes, (None,) * nodes)


def test_a_grafted_tree_keeps_its_shape_and_is_right_along_its_path_and_no_further():
    rng = random.Random(0)
    for _ in range(300):
        tree, rest = random_tree(rng, rng.randint(1, 12)), [rng.randrange(4) for _ in range(20)]
        path = tree.path(rng.randrange(len(tree)))
        grafted, node, length = graft(tree, rest, path), 0, 0
        assert grafted.parents == tree.parents
        families = [[grafted.tokens[child] for child in family] for family in grafted.children()]
        assert all(len(set(family)) == len(family) for family in families)
        while right := [child for child in grafted.children()[node] if grafted.tokens[child] == rest[length]]:
            node, length = right[0], length + 1
        assert node == path[-1] and length == len(path) - 1


@pytest.mark.parametrize("kind", ["bad", "mixed", "perfect"])
@pytest.mark.parametrize("first", [False, True])
def test_an_oracle_is_right_as_often_as_asked_whatever_drafts_below_it_and_changes_no_token(
    kind: models.DraftKind, first: bool
):
    pair = models.pair(kind)
    config = DecodingConfig(rule="topk", depth=4, width=2, nodes=8, max_new_tokens=models.LONGEST)
    answer = models.reference(0)
    request = pair.request(Lane("known", config, models.prompt(0)))
    request.drafter = OracleDrafter(request.drafter, answer, 2.0, first)
    request.prefill()
    for number in range(6):
        grown = request.propose()
        levels = len(grown.first_branch()) - 1 if first else max(grown.depths())
        assert len(request.verify().verification.accepted) == accepted_length(levels, 2.0, number)
    assert tuple(request.emitted) == answer[: len(request.emitted)]
