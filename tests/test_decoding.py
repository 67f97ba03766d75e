"""Speculative decoding says what the target alone says, token for token, whatever the draft and the tree."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import models
from support.models import DraftKind, configs, decode, expected

from specllava.core.config import DecodingConfig
from specllava.core.growth.rules import build_rule
from specllava.core.metrics import compare, summarise
from specllava.core.trace import Prefill, StepTrace
from specllava.decoding import Event, RaceEvent
from specllava.drafters.model import ModelSession
from specllava.lane import SPECULATIVE, TARGET_ONLY, Lane
from specllava.pair import Pair
from specllava.runtime.engine import Engine
from specllava.runtime.prompt import Prompt
from specllava.verification.answer_settings import answer_settings
from specllava.verification.sampling import SeededRandom
from specllava.verification.verifier import verify_greedy

CHATS = st.integers(0, len(models.CHATS) - 1)
SEEDS = st.sampled_from(models.SEEDS)
KINDS = st.sampled_from(models.KINDS)


def tokens_of(events: Iterable[Event]) -> list[int]:
    found: list[int] = []
    for event in events:
        found += [event.first_token] if isinstance(event, Prefill) else event.emitted
    return found


def drafting(pair: Pair, prompt: Prompt, config: DecodingConfig, capacity: int) -> ModelSession:
    assert pair.draft is not None
    asked = answer_settings(pair.target, pair.processor.tokenizer, config, prompt.input_ids, frozenset())
    return ModelSession(Engine(pair.draft, capacity), prompt, config, SeededRandom(0), build_rule(config), asked)


@given(CHATS, SEEDS, KINDS, configs(), st.none() | st.integers(0, models.LONGEST - 1))
@settings(max_examples=70)
def test_speculative_is_target_only_is_the_reference(
    chat: int, seed: int, kind: DraftKind, config: DecodingConfig, ending: int | None
):
    """With an end of the answer at some place of it, or without."""
    eos = None if ending is None else models.reference(chat, seed)[ending]
    pair, prompt = models.pair(kind, seed, eos), models.prompt(chat, seed)
    wanted = expected(chat, seed, config.max_new_tokens, () if eos is None else (eos,))
    speculative = decode(pair, prompt, config)
    alone = decode(pair, prompt, replace(config, drafter="none"))
    assert speculative.token_ids == wanted
    assert alone.token_ids == wanted
    assert compare(alone, speculative).identical
    ended = eos is not None and wanted[-1] == eos
    assert speculative.finish_reason == alone.finish_reason == ("eos" if ended else "length")


@pytest.mark.parametrize("rule", ["entropy", "chain"])
@pytest.mark.parametrize("ending", [0, 1, 4, 9])
def test_nothing_follows_the_end_of_the_answer(rule, ending: int):
    """The perfect draft guesses far beyond the end; none of that may get out."""
    eos = models.reference(1)[ending]
    pair = models.pair("perfect", eos=[2, eos])
    trace = decode(pair, models.prompt(1), DecodingConfig(rule=rule, depth=6, max_new_tokens=24, min_log_prob=-50.0))
    assert trace.token_ids == expected(1, 0, 24, (2, eos))
    assert trace.token_ids.index(eos) == len(trace.token_ids) - 1
    assert trace.finish_reason == "eos"


@pytest.mark.parametrize("depth", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("chat", range(len(models.CHATS)))
def test_a_perfect_chain_is_accepted_whole(depth: int, chat: int):
    config = DecodingConfig(rule="chain", depth=depth, nodes=32, min_log_prob=-50.0, max_new_tokens=24)
    trace = decode(models.pair("perfect"), models.prompt(chat), config)
    room = config.max_new_tokens - 1
    for step in trace.steps:
        drafted = min(depth, room - 1)
        assert (step.tree.drafted, len(step.verification.accepted)) == (drafted, drafted)
        room -= len(step.emitted)
    assert room == 0


def test_drafts_of_all_qualities_were_tried():
    """Guards the tests above: a bad draft is mostly refused, a mixed one sometimes, a perfect one never on a chain."""
    config = DecodingConfig(rule="chain", depth=4, min_log_prob=-50.0, max_new_tokens=24)

    def tau(kind: DraftKind) -> float:
        return summarise([decode(models.pair(kind), models.prompt(chat), config) for chat in range(2)]).tau

    assert tau("bad") < 1.3 < tau("mixed") < 3.5 < tau("perfect")


@given(CHATS, SEEDS, KINDS, configs(), st.integers(1, 6))
@settings(max_examples=25)
@torch.inference_mode()
def test_the_draft_remembers_exactly_what_was_emitted(
    chat: int, seed: int, kind: DraftKind, config: DecodingConfig, rounds: int
):
    """After some steps the draft proposes what a draft proposes that reads prompt and answer afresh."""
    pair, prompt = models.pair(kind, seed), models.prompt(chat, seed)
    answer = models.reference(chat, seed)
    capacity = prompt.length + 200
    session = drafting(pair, prompt, config, capacity)
    known = 1
    for _ in range(rounds):
        depth = min(config.depth, len(answer) - known - 1)
        tree = session.propose(answer[known - 1], depth)
        choices = [answer[known + level] for level in tree.depths()]
        verdict = verify_greedy(tree, choices)
        session.keep(verdict.path)
        known += len(verdict.path)
        if known == len(answer):
            break
    read = torch.cat([prompt.input_ids, torch.tensor([answer[: known - 1]], dtype=torch.long)], dim=1)
    fresh = drafting(pair, replace(prompt, input_ids=read), config, capacity)
    ours = session.propose(answer[known - 1], config.depth)
    theirs = fresh.propose(answer[known - 1], config.depth)
    assert (ours.tokens, ours.parents) == (theirs.tokens, theirs.parents)
    assert ours.log_probs == pytest.approx(theirs.log_probs, abs=1e-5)
    assert [h is None for h in ours.entropies] == [h is None for h in theirs.entropies]


@pytest.mark.parametrize("rule", ["chain", "topk"])
@pytest.mark.parametrize("chat", range(len(models.CHATS)))
@torch.inference_mode()
def test_every_guess_has_the_probability_of_its_own_branch_read_alone(chat: int, rule: str):
    """With a mask where the tree has branches, and without one where it has none yet."""
    pair, prompt = models.pair("mixed"), models.prompt(chat)
    config = DecodingConfig(rule=rule, depth=5, width=3, nodes=20, min_log_prob=-50.0)
    capacity = prompt.length + 100
    root = models.reference(chat)[0]
    session = drafting(pair, prompt, config, capacity)
    tree = session.propose(root, config.depth)
    assert max(tree.depths()) == 5
    for node in range(1, len(tree)):
        line = []
        while (node_above := tree.parents[line[-1] if line else node]) != -1:
            line.append(node_above)
        before = torch.tensor([[tree.tokens[each] for each in reversed(line)]])
        reading = Engine(pair.draft, capacity).prefill(
            torch.cat([prompt.input_ids, before], dim=1), prompt.features, prompt.image_keys
        )
        alone = reading.logits.float().log_softmax(-1)[tree.tokens[node]].item()
        assert tree.log_probs[node] == pytest.approx(alone, abs=1e-4)


@pytest.mark.parametrize("seed", models.SEEDS)
@pytest.mark.parametrize("chat", range(len(models.CHATS)))
def test_target_only_is_what_transformers_generates(chat: int, seed: int):
    inputs = models.plain_inputs(chat)
    eos = models.reference(chat, seed)[15]
    pair = models.pair(None, seed, eos)
    output = pair.target.generate(**inputs, do_sample=False, max_new_tokens=20, pad_token_id=0)
    generated = tuple(output[0, inputs["input_ids"].shape[1] :].tolist())
    trace = decode(pair, models.prompt(chat, seed), DecodingConfig(drafter="none", max_new_tokens=20))
    assert trace.token_ids == generated


@pytest.mark.parametrize("kept", range(5))
def test_closing_early_leaves_nothing_behind(tiny: Pair, kept: int):
    config, prompt = DecodingConfig(max_new_tokens=16, depth=4), models.prompt(0)
    events = models.events(tiny, prompt, config)
    begun = tokens_of([next(events) for _ in range(kept)])
    events.close()
    assert list(events) == []
    assert tuple(begun) == expected(0, 0, len(begun))
    assert decode(tiny, prompt, config).token_ids == expected(0, 0, 16)


def test_a_trace_shows_each_step_as_it_was(tiny: Pair):
    """Emitted tokens follow the root; the view's choices are the target's: along the branch they are the answer."""
    config = DecodingConfig(max_new_tokens=20, depth=4, entropy_threshold=0.2)
    trace = decode(tiny, models.prompt(2), config)
    answer, seen = models.reference(2), 1
    for step in trace.steps:
        assert step.tree.tokens[0] == answer[seen - 1]
        chosen = tuple(step.view.choices[node] for node in step.verification.path)
        assert chosen == step.emitted == answer[seen : seen + len(chosen)]
        assert all(step.view.token_ranks[node] == 0 for node in step.verification.path)
        assert step.tree.drafted <= config.nodes
        seen += len(step.emitted)
    assert trace.prefill.prompt_tokens == models.plain_inputs(2)["input_ids"].shape[1]


# ---------------------------------------------------------------------------------------------- races


@dataclass
class Stopwatch:
    """Time that only passes when a model works or a test says so."""

    seconds: float = 0.0
    target: float = 1.0
    draft: float = 0.25

    def now(self, device: torch.device | None = None) -> float:
        return self.seconds


@pytest.fixture
def stopwatch(monkeypatch: pytest.MonkeyPatch) -> Stopwatch:
    watch = Stopwatch()
    monkeypatch.setattr("specllava.decoding.now", watch.now)
    monkeypatch.setattr("specllava.decoding.now_read", watch.now)
    monkeypatch.setattr("specllava.runtime.prompt_builder.now", watch.now)
    for method in ("prefill", "forward"):
        plain = getattr(Engine, method)

        def timed(engine: Engine, *args, plain=plain, **kwargs):
            watch.seconds += watch.draft if type(engine.model) is type(models.draft("mixed")) else watch.target
            return plain(engine, *args, **kwargs)

        monkeypatch.setattr(Engine, method, timed)
    return watch


def lanes(prompt: Prompt, config: DecodingConfig) -> list[Lane]:
    return [Lane(TARGET_ONLY, replace(config, drafter="none"), prompt), Lane(SPECULATIVE, config, prompt)]


@pytest.mark.parametrize("kind", models.KINDS)
@pytest.mark.parametrize("draft_cost", [0.0, 0.25, 3.0])
def test_a_race_moves_the_lane_whose_clock_is_behind(stopwatch: Stopwatch, kind: DraftKind, draft_cost: float):
    stopwatch.draft = draft_cost
    prompt = models.prompt(0)
    clocks = dict.fromkeys((TARGET_ONLY, SPECULATIVE), 0.0)
    running = set(clocks)
    said: dict[str, list[Event]] = {name: [] for name in clocks}
    for event in models.pair(kind).race_lanes(lanes(prompt, DecodingConfig(max_new_tokens=12, depth=3))):
        assert clocks[event.lane.name] == min(clocks[name] for name in running)
        assert event.clock >= clocks[event.lane.name]
        clocks[event.lane.name] = event.clock
        said[event.lane.name].append(event.item)
        if event.item.finished is not None:
            running.remove(event.lane.name)
    assert not running
    assert {tuple(tokens_of(items)) for items in said.values()} == {expected(0, 0, 12)}


def test_a_clock_counts_the_lanes_own_compute_and_nothing_else(stopwatch: Stopwatch):
    """Hours pass between the events; a lane's clock shows its own passes only, with the picture's encoding in it."""
    prompt = replace(models.prompt(0), vision_seconds=0.5)
    own = {TARGET_ONLY: 0.0, SPECULATIVE: 0.0}
    config = DecodingConfig(max_new_tokens=10, depth=3, min_log_prob=-50.0)  # no guess is dropped behind a draft's pass
    for event in models.pair("mixed").race_lanes(lanes(prompt, config)):
        if isinstance(event.item, Prefill):
            drafting = stopwatch.draft if event.lane.name == SPECULATIVE else 0
            spent = prompt.vision_seconds + stopwatch.target + drafting
            assert event.item.total == pytest.approx(spent)
        else:
            levels = event.item.seconds.draft / stopwatch.draft
            assert levels == pytest.approx(round(levels))
            assert (levels == 0) == (event.lane.name == TARGET_ONLY or event.item.tree.drafted == 0)
            assert event.item.seconds.verify == pytest.approx(stopwatch.target)
            assert event.item.seconds.keep == 0.0
            spent = event.item.seconds.total
        own[event.lane.name] += spent
        assert event.clock == pytest.approx(own[event.lane.name])
        stopwatch.seconds += 3600.0


def test_a_stopped_race_gives_what_was_said_so_far():
    pair = models.pair("mixed")
    events = pair.race(models.picture(0), models.messages(0), DecodingConfig(max_new_tokens=20, depth=3))
    begun: list[RaceEvent] = [next(events) for _ in range(6)]
    events.close()
    traces = pair.collect_race(begun)
    assert set(traces) == {TARGET_ONLY, SPECULATIVE}
    for name, trace in traces.items():
        assert trace.finish_reason == "stopped"
        assert trace.token_ids == expected(0, 0, len(trace.token_ids))
        assert len(trace.steps) + 1 == sum(event.lane.name == name for event in begun)
    assert set(pair.collect_race(begun[:1])) == {begun[0].lane.name}
    assert pair.collect_race([]) == {}


def test_the_picture_is_encoded_once_for_both_lanes():
    pair = models.pair("mixed")
    calls: list[torch.nn.Module] = []
    hook = pair.target.model.vision_tower.register_forward_hook(lambda module, *_: calls.append(module))
    try:
        traces = pair.compare(models.picture(0), models.messages(0), DecodingConfig(max_new_tokens=8))
    finally:
        hook.remove()
    assert len(calls) == 1
    assert {trace.token_ids for trace in traces.values()} == {expected(0, 0, 8)}


def test_the_picture_matters():
    """Guards the tests above: another picture, another answer."""
    config = DecodingConfig(max_new_tokens=12)
    pair = models.pair("mixed")
    answers = {pair.generate(models.picture(seed), "What?", config).token_ids for seed in range(4)}
    assert len(answers) > 1


def test_all_ways_to_run_agree():
    pair, config = models.pair("mixed"), DecodingConfig(max_new_tokens=10)
    picture, chat = models.picture(0), models.messages(0)
    streamed = list(pair.stream(picture, chat, config))
    assert isinstance(streamed[0], Prefill)
    assert all(isinstance(step, StepTrace) for step in streamed[1:])
    trace = pair.generate(picture, chat, config)
    assert tuple(tokens_of(streamed)) == trace.token_ids == expected(0, 0, 10)
    assert trace.text == pair.detokenizer.decode(trace.token_ids)
    assert trace.lane == SPECULATIVE
    assert pair.generate(picture, chat, replace(config, drafter="none")).lane == TARGET_ONLY
    assert all(trace.texts[token] == pair.detokenizer.text_of(token) for token in trace.texts)
