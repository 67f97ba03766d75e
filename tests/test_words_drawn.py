"""Losslessness as it is drawn: the target's own token over every guess, and each pair compared, against the traces."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from support import models
from support.amount import sample
from support.browser import script_page
from support.visual_traces import synthetic_race

from specllava.config import RULE_CHOICES, DecodingConfig
from specllava.trace import DecodeTrace, StepTrace
from visual.figures.labels import token_label
from visual.player.draws import sampling_of
from visual.player.frames import picture

STEPS = 60  # of every rule
READ = """(given) => given.map(([frame, sampled]) => {
  const step = script.readStep(frame, { sampled, threshold: 0.3 });
  const [check, accept] = ["check", "accept"].map((kind) => script.phasesOf(step).find((phase) => phase.kind === kind));
  return { judged: script.judgementsOf(step), check, accept, words: step.words };
})"""
SAMPLED: dict[str, dict[str, Any]] = {
    "best": {"max_branches": 3, "entropy_threshold": 0.0},
    "drawn": {"rule": "sequoia", "children": "drawn", "nodes": 6, "depth": 3},
}


@pytest.fixture(scope="module")
def read(browser: Any) -> Iterator[Any]:
    """The player's own reading of steps, with no page around it."""
    with script_page(browser, "step_phases.js") as page:
        yield lambda runs: page.evaluate(
            READ, [[json.loads(json.dumps(picture(trace, step))), sampling_of(trace)] for trace, step in runs]
        )


def greedy_steps(rule: str) -> list[tuple[DecodeTrace, StepTrace]]:
    """Steps of synthetic runs that say which rule made them; chains have no second branch."""
    rng = random.Random(rule)
    found: list[tuple[DecodeTrace, StepTrace]] = []
    while len(found) < STEPS:
        branches = 1 if rule == "chain" else rng.randint(2, 5)
        most = rng.choice((24, 128))
        config = DecodingConfig(
            depth=rng.randint(2, 9), nodes=rng.randint(4, 60), max_branches=branches, max_new_tokens=most
        )
        trace = synthetic_race(rng.randrange(10_000), config)["speculative"]
        trace = replace(trace, config=replace(config, rule=rule))
        found += [(trace, step) for step in trace.steps if step.tree.drafted]
    return found


def walked(trace: DecodeTrace, step: StepTrace) -> tuple[list[int], list[int]]:
    """Walk from the root while a guess equals the target's choice; returns the kept guesses and all that were asked."""
    node, kept, asked = 0, list[int](), list[int]()
    while len(kept) < len(step.emitted):
        family = step.tree.children()[node]
        asked += family
        same = [child for child in family if step.tree.tokens[child] == step.view.choices[node]]
        if not same:
            break
        node = same[0]
        kept.append(node)
        if step.tree.tokens[node] in trace.eos_token_ids:
            break
    return kept, asked


@pytest.mark.parametrize("rule", sample(sorted(RULE_CHOICES), 2))
def test_drawn_pairs_are_what_a_walk_through_the_trace_finds(rule: str, read: Any) -> None:
    runs = greedy_steps(rule)
    fates = {"kept": 0, "refused": 0, "open": 0}
    for (trace, step), seen in zip(runs, read(runs), strict=True):
        kept, asked = walked(trace, step)
        assert [one["node"] for one in seen["judged"]] == list(range(1, len(step.tree)))
        for one in seen["judged"]:
            node, parent = one["node"], step.tree.parents[one["node"]]
            fate = "kept" if node in kept else "refused" if node in asked else "open"
            assert one["fate"] == fate, (node, kept, asked)
            fates[fate] += 1
            word = None if ended(trace, step, parent) else token_label(trace, step.view.choices[parent])
            assert one["word"] == word
        check_notes(trace, step, seen, kept, asked)
    assert min(fates.values()) > 0 or (rule == "chain" and fates["kept"] and fates["refused"])


def ended(trace: DecodeTrace, step: StepTrace, node: int) -> bool:
    """The answer ends with a node or above it."""
    return any(step.tree.tokens[above] in trace.eos_token_ids for above in step.tree.path(node))


def check_notes(trace: DecodeTrace, step: StepTrace, seen: Any, kept: list[int], asked: list[int]) -> None:
    """Check what is written: the words in the check phase, the signs in the accept phase, and the same in text."""
    written = {
        phase: {
            note["node"]: "".join(text for _, text in note["parts"])
            for note in seen[phase]["notes"]
            if "beyond" not in note
        }
        for phase in ("check", "accept")
    }  # fmt: skip
    for one in seen["judged"]:
        assert written["check"].get(one["node"]) == one["word"]
    for node in asked:
        word = token_label(trace, step.view.choices[step.tree.parents[node]])
        assert written["accept"][node] == (f"✓ = {word}" if node in kept else f"✗ ≠ {word}")
        guess = token_label(trace, step.tree.tokens[node])
        assert f"“{guess}” is {'' if node in kept else 'not '}“{word}”" in seen["accept"]["pairs"]
    first = [note["node"] for note in seen["accept"]["notes"]][: len(kept)]
    assert sorted(first) == sorted(kept), "the accepted branch comes first, where there is room for few"
    beyond = {note["node"]: note["parts"][0][1] for note in seen["check"]["notes"] if "beyond" in note}
    for leaf, text in beyond.items():
        assert text == f"→ {token_label(trace, step.view.choices[leaf])}"
    last = {node for node, family in enumerate(step.tree.children()) if node and not family}
    leaves = {node for node in last if not ended(trace, step, node)}
    assert set(beyond) == leaves
    signed = {note["node"]: note["fate"] for note in seen["accept"]["notes"] if "beyond" in note}
    assert signed == {leaf: "said" if leaf in kept[-1:] else "open" for leaf in leaves}
    guesses = f"{step.tree.drafted} guess{'es' * (step.tree.drafted > 1)}"
    assert f"the guess stays: {len(kept) or 'none'} of {guesses}." in seen["accept"]["say"]
    assert "writes its own next word after" in seen["check"]["say"]
    assert step.tree.drafted == 1 or f"all {step.tree.drafted} at once" in seen["check"]["say"]


def real_steps(options: dict[str, Any], temperature: float) -> list[tuple[DecodeTrace, StepTrace]]:
    """Steps that tiny models made."""
    found: list[tuple[DecodeTrace, StepTrace]] = []
    for seed in range(40):
        config = DecodingConfig(temperature=temperature, seed=seed, max_new_tokens=16, **options)
        trace = models.decode(models.pair("mixed"), models.prompt(seed % 4), config)
        found += [(trace, step) for step in trace.steps if step.tree.drafted]
        if len(found) >= STEPS:
            return found
    return found


@pytest.mark.parametrize("kind", SAMPLED)
def test_with_a_temperature_the_coins_verdict_and_probability_are_at_the_guess(kind: str, read: Any) -> None:
    runs = real_steps(SAMPLED[kind], 1.2)
    assert len(runs) >= STEPS
    told = 0
    for (trace, step), seen in zip(runs, read(runs), strict=True):
        judged = {one["node"]: one for one in seen["judged"]}
        accepted = set(step.emitted_nodes)
        for draw in step.draws:
            family = step.tree.children()[draw.node]
            if draw.acceptance is None and kind == "best":
                for child in family:
                    assert judged[child]["word"] == token_label(trace, draw.token)
                    assert judged[child]["chance"] == pytest.approx(draw.target_prob, abs=1e-6)
            elif draw.acceptance is not None:
                (child,) = [child for child in family if step.tree.tokens[child] == draw.token]
                assert judged[child]["chance"] == draw.acceptance
                assert (judged[child]["fate"] == "kept") == draw.accepted or child not in accepted
                told += 1
        assert {node for node, one in judged.items() if one["fate"] == "kept"} == accepted
        for note in seen["accept"]["notes"]:
            text = "".join(part for _, part in note["parts"])
            chance = judged[note["node"]]["chance"]
            assert note["fate"] == "open" or chance is None or f"{chance:.2f}" in text
        for note in seen["check"]["notes"]:
            assert note["parts"][0][1] == f"p {step.view.token_probs[note['node']]:.2f}"
    assert told or kind == "best"


@pytest.mark.parametrize("options", sample([{"drafter": "prompt-lookup"}, {"rule": "chain"}], 1))
def test_lookups_and_chains_of_real_models_are_compared_as_well(options: dict[str, Any], read: Any) -> None:
    runs = real_steps(options, 0.0)
    assert runs
    for (trace, step), seen in zip(runs, read(runs), strict=True):
        kept, asked = walked(trace, step)
        assert kept == list(step.emitted_nodes)
        check_notes(trace, step, seen, kept, asked)
