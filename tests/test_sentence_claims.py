"""Each claim of a step's sentences, recomputed from the trace: 300 random runs, of every rule, greedy and drawn."""

from __future__ import annotations

import math
import random
import re
from dataclasses import replace

import pytest
from support.visual_traces import retexted, synthetic_race

from specllava.config import RULE_CHOICES, DecodingConfig
from specllava.metrics import saved_tokens
from specllava.trace import DecodeTrace, StepTrace
from specllava.tree import Pruned
from visual.figures.labels import END_MARK, token_label
from visual.player.explanations import LEAST_RIVAL, TORN, node_reasons, pruned_reason, step_sentence
from visual.player.labels import path_text, word_after, word_at

RUNS = 300
CHANCE = re.compile(r"\((\d\.\d\d)\)")


def random_run(seed: int) -> DecodeTrace:
    """A run of one of the rules, with guesses pruned at random; every third one is drawn."""
    rng = random.Random(seed)
    rule = sorted(RULE_CHOICES)[seed % len(RULE_CHOICES)]
    config = DecodingConfig(depth=rng.randint(2, 9), nodes=rng.randint(4, 30), max_branches=rng.randint(2, 5))
    trace = synthetic_race(seed, config)["speculative"]
    steps = tuple(replace(step, pruned=_pruned(step, trace, rng)) for step in trace.steps)
    settings = replace(config, rule=rule, temperature=0.8 if seed % 3 == 0 else 0.0)
    return replace(trace, config=settings, steps=steps)


def _pruned(step: StepTrace, trace: DecodeTrace, rng: random.Random) -> tuple[Pruned, ...]:
    nodes, tokens = range(len(step.tree)), sorted(trace.texts)
    return tuple(
        Pruned(rng.choice(nodes), rng.choice(tokens), math.log(rng.uniform(0.01, 0.6)))
        for _ in range(rng.randint(0, 4))
    )


@pytest.mark.parametrize("part", range(4))
def test_every_claim_of_a_sentence_follows_from_the_trace(part: int) -> None:
    events = 0
    for seed in range(part, RUNS, 4):
        trace = random_run(seed)
        for step in trace.steps:
            segments = step_sentence(trace, step)
            events += check_event(trace, step, segments)
            check_ending(trace, step, segments)
            check_counts(trace, step, segments)
            for guess in step.pruned:
                check_pruned(trace, step, guess)
            assert len(node_reasons(trace, step)) == len(step.tree)
    assert events > 50


def told_fork(step: StepTrace) -> tuple[list[int], int] | None:
    """The guesses, the likeliest first, and the right one: where the favourite was first wrong, else where torn."""
    forks = []
    for parent, taken in zip(step.verification.path, step.emitted_nodes, strict=False):
        family = sorted(step.tree.children()[parent], key=lambda child: -step.tree.log_probs[child])
        if len(family) > 1:
            forks.append((family, taken))
    saved = [fork for fork in forks if fork[0][0] != fork[1]]
    return next(iter([*saved, *(fork for fork in forks if torn(step, fork[0]))]), None)


def torn(step: StepTrace, family: list[int]) -> bool:
    first, second, *_ = (math.exp(step.tree.log_probs[node]) for node in family)
    return first <= TORN and second >= LEAST_RIVAL


def check_event(trace: DecodeTrace, step: StepTrace, segments: list[list[str]]) -> int:
    """Check who was torn between what and which guess was right; returns whether there was such an event."""
    sentence, fork = "".join(text for _, text in segments), told_fork(step)
    assert sentence.startswith(("Torn between ", "The draft's favourite was ")) == (fork is not None)
    if fork is None:
        return 0
    family, taken = fork
    event = sentence.split(" was right. " if trace.config.temperature == 0 else " was accepted. ")[0]
    (right,) = [place for place, (style, _) in enumerate(segments) if style == "strong"]
    assert segments[right][1] == word_at(trace, step, taken)
    if torn(step, family):
        named = family[: 3 if len(family) == 3 else 2]
        tried = {2: "both", 3: "all three"}.get(len(family), f"all {len(family)}")
        assert event.startswith("Torn between ") and f"the draft tried {tried}: " in event
        assert (f"and {len(family) - 2} less likely" in event) == (len(family) > 3)
    else:
        named = [family[0], taken]
        assert event.startswith("The draft's favourite was ")
    shown = [text for style, text in segments[:right] if style == "em"]
    assert shown == [word_at(trace, step, node) for node in named]
    assert CHANCE.findall(event) == [f"{math.exp(step.tree.log_probs[node]):.2f}" for node in named]
    return 1


def check_ending(trace: DecodeTrace, step: StepTrace, segments: list[list[str]]) -> None:
    """Check the token that the target said after the accepted guesses."""
    sentence = "".join(text for _, text in segments)
    said = [text for style, text in segments if style == "target"]
    last = step.verification.path[-1]
    if step.bonus_unused:
        assert not said and ("was complete" in sentence or "that it was allowed" in sentence)
    elif said:
        token = step.verification.bonus_token
        assert said == [word_after(trace, step, last, token)] and token_label(trace, token) in said[0]
    else:
        assert step.verification.bonus_token in trace.eos_token_ids and "ended the answer" in sentence
    if not step.bonus_unused and step.tree.drafted:
        spoken = "".join(text for style, text in segments if style != "small")
        assert spoken.endswith(f" ({step.view.choice_probs[last]:.2f}).")
        check_refused(trace, step, segments)
    assert ("The whole branch" in sentence) <= (not step.tree.children()[last])
    if trace.config.temperature > 0:
        assert "was right" not in sentence and "target wanted" not in sentence


def check_refused(trace: DecodeTrace, step: StepTrace, segments: list[list[str]]) -> None:
    """Check the guess that the draft expected instead: the likeliest after the accepted ones, with its probability."""
    last = step.verification.path[-1]
    family = step.tree.children()[last]
    refused = [place for place, (style, _) in enumerate(segments) if style == "rejected"]
    assert bool(refused) == bool(family)
    for place in refused:
        likeliest = sorted(family, key=lambda node: step.tree.log_probs[node])[-1]
        chance = math.exp(max(step.tree.log_probs[node] for node in family))
        verb = "wanted" if trace.config.temperature == 0 else "drew"
        after = path_text(trace, step, last, 2)
        assert segments[place - 3 : place] == [["plain", "After "], ["em", after], ["plain", " the draft expected "]]
        assert segments[place][1] == word_at(trace, step, likeliest)
        assert segments[place + 1][1] == f" ({chance:.2f}); the target {verb} "


def check_counts(trace: DecodeTrace, step: StepTrace, segments: list[list[str]]) -> None:
    """Check the counts in small letters, and those behind an end of the answer."""
    small = [text for style, text in segments if style == "small"]
    assert bool(small) == (step.tree.drafted > 0)
    if not small:
        return
    parents = set(step.tree.parents[1:])
    leaves = sum(node not in parents for node in range(len(step.tree)))
    kept, guesses = len(step.emitted_nodes), step.tree.drafted
    assert small[0].startswith(
        f" {guesses} guess{'es' * (guesses > 1)} on {leaves} branch{'es' * (leaves > 1)}, {kept or 'none'} accepted"
    )
    after = [n for n in range(1, len(step.tree)) if any(
        step.tree.tokens[above] in trace.eos_token_ids for above in step.tree.path(n)[1:-1])]  # fmt: skip
    assert (f"; {len(after)} after {END_MARK}" in small[0]) == bool(after)


def check_pruned(trace: DecodeTrace, step: StepTrace, guess: Pruned) -> None:
    """Check that the bound that a reason names was passed."""
    reason, config = pruned_reason(trace, step, guess), trace.config
    branch = math.exp(guess.log_prob + sum(step.tree.log_probs[node] for node in step.tree.path(guess.parent)))
    floored = trace.rule_name in ("entropy", "chain")
    assert ("worth asking" in reason) == (floored and branch < math.exp(config.min_log_prob))
    if "worth asking" in reason:
        shown = re.search(r"has (\d\.\d+), below the (\d\.\d+)", reason)
        assert shown and float(shown[1]) == pytest.approx(branch, abs=0.0051) and float(shown[1]) <= float(shown[2])
    if "that a tree may have" in reason:
        assert step.tree.drafted >= config.nodes
    assert ("target wanted there" in reason) == (guess.token == step.view.choices[guess.parent])


def test_saved_tokens_are_what_the_favourites_alone_would_not_have_brought() -> None:
    told = 0
    for seed in range(RUNS):
        for step in random_run(seed).steps:
            node, brought = 0, 0
            for taken in step.emitted_nodes:
                family = step.tree.children()[node]
                if max(family, key=lambda child: step.tree.log_probs[child]) != taken:
                    break
                node, brought = taken, brought + 1
            alone = min(brought + 1, len(step.emitted))  # and the target's own token
            assert saved_tokens(step) == len(step.emitted) - alone
            told += saved_tokens(step) > 0
    assert told > 100


def test_pieces_of_a_word_are_never_said_alone() -> None:
    """ "after *amp* the target went on with mountains": it was damp."""
    found = 0
    for seed in range(0, RUNS, 10):
        trace = random_run(seed)
        (piece,) = [token for token, text in trace.texts.items() if text == "rella"]
        for step in retexted(trace, {}).steps:
            for node in step.verification.accepted:
                if step.tree.tokens[node] == piece:
                    assert word_at(trace, step, node) == "umbrella"
                    found += 1
    assert found
