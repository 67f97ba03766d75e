"""A request by its phases: what they give, when they end, what they record, and what they refuse."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support import models
from support.models import expected

from specllava.cli.main import main
from specllava.core.config import DecodingConfig
from specllava.core.race_file import race_json
from specllava.core.trace import DecodeTrace, Prefill
from specllava.decoding import Event, Request, collect, race
from specllava.drafters.top_tokens import top_tokens
from specllava.lane import SPECULATIVE, TARGET_ONLY, Lane
from specllava.pair import Pair
from specllava.runtime.kv_caches import KVCaches
from visual.player.recorded import read_recorded

CONFIG = DecodingConfig(max_new_tokens=14, depth=4, entropy_threshold=0.2, min_log_prob=-50.0)
DRAWN = DecodingConfig(max_new_tokens=14, rule="fixed", branching=(2, 1), children="drawn", temperature=0.9)


def by_hand(request: Request) -> list[Event]:
    """All events, phase by phase, without the loop."""
    found: list[Event] = [request.prefill()]
    while request.finished is None:
        tree = request.propose()
        step = request.verify()
        assert step.tree is tree
        found.append(step)
    return found


def untimed(event: Event) -> Event:
    if isinstance(event, Prefill):
        return replace(event, vision_seconds=0.0, target_seconds=0.0, draft_seconds=0.0)
    return replace(event, seconds=replace(event.seconds, draft=0.0, verify=0.0, keep=0.0))


def untimed_all(events: list[Event]) -> list[Event]:
    return [untimed(event) for event in events]


# ---------------------------------------------------------------------------------------------- phases


@pytest.mark.parametrize("config", [CONFIG, DRAWN, replace(CONFIG, drafter="prompt-lookup")])
@pytest.mark.parametrize("kind", models.KINDS)
def test_phases_by_hand_give_what_the_loop_gives(kind: models.DraftKind, config: DecodingConfig):
    pair, prompt = models.pair(kind), models.prompt(0)
    request = pair.request(Lane(SPECULATIVE, config, prompt))
    events = by_hand(request)
    assert untimed_all(events) == untimed_all(list(models.events(pair, prompt, config)))
    tokens = [events[0].first_token, *(token for step in events[1:] for token in step.emitted)]
    assert request.emitted == tokens and request.room == 0 and request.root == tokens[-1]


def test_phases_by_hand_record_no_gradients():
    """Outside of ``inference_mode`` the caches would keep the graph of every pass."""
    request = models.pair("mixed").request(Lane(SPECULATIVE, CONFIG, models.prompt(0)))
    assert not torch.is_inference_mode_enabled()
    by_hand(request)
    assert request.caches._engines
    for engine in request.caches._engines.values():
        assert not any(layer.both.requires_grad for layer in engine.cache.layers)


@pytest.mark.parametrize("ending", [0, 3, 9, None])
@pytest.mark.parametrize("drafter", ["model", "none"])
def test_only_the_last_event_is_finished_and_says_why(drafter: str, ending: int | None):
    eos = None if ending is None else models.reference(1)[ending]
    pair, config = models.pair("perfect", eos=eos), replace(CONFIG, drafter=drafter)
    lane = Lane("any", config, models.prompt(1))
    events = by_hand(pair.request(lane))
    trace = pair.collect(lane, events)
    assert [event.finished for event in events[:-1]] == [None] * (len(events) - 1)
    assert events[-1].finished == trace.finish_reason == ("length" if eos is None else "eos")
    assert trace.token_ids == expected(1, 0, 14, () if eos is None else (eos,))


def test_two_requests_by_turns_say_what_each_says_alone():
    """The order in which a scheduler stands between phases changes nothing."""
    pairs = models.pair("mixed"), models.pair("perfect")
    requests = [
        pair.request(Lane(SPECULATIVE, CONFIG, models.prompt(number)), KVCaches()) for number, pair in enumerate(pairs)
    ]
    events: list[list[Event]] = [[request.prefill()] for request in requests]
    while any(request.finished is None for request in requests):
        running = [number for number, request in enumerate(requests) if request.finished is None]
        for number in running:
            requests[number].propose()
        for number in reversed(running):
            events[number].append(requests[number].verify())
    for number, pair in enumerate(pairs):
        assert untimed_all(events[number]) == untimed_all(list(models.events(pair, models.prompt(number), CONFIG)))
        assert tuple(requests[number].emitted) == expected(number, 0, 14)


def test_lanes_of_one_race_have_different_names(tiny: Pair):
    lanes = [Lane("same", CONFIG, models.prompt(0)), Lane("other", CONFIG, models.prompt(0))]
    with pytest.raises(ValueError, match=r"^two lanes of one race are called same: give each a name of its own$"):
        next(race([tiny.request(lane) for lane in (*lanes, lanes[0])]))
    assert {event.lane.name for event in tiny.race_lanes(lanes)} == {"same", "other"}


def test_events_that_are_no_run_are_refused(tiny: Pair):
    lane = Lane(SPECULATIVE, CONFIG, models.prompt(0))
    events = list(models.events(tiny, lane.prompt, CONFIG))
    for wrong in (events[1:], [*events, events[0]]):
        with pytest.raises(ValueError, match="a run is a prefill and then steps"):
            collect(lane.facts, wrong, tiny.info, tiny.detokenizer, tiny.eos_token_ids)


def test_a_shape_is_made_before_the_clock(monkeypatch: pytest.MonkeyPatch):
    """Working out sequoia's shape may take seconds, once; no prefill was slower for it."""
    seconds = [0.0]

    def slow(*arguments: object) -> tuple[tuple[()], ...]:
        seconds[0] += 100.0
        return ((), ())

    monkeypatch.setattr("specllava.core.growth.rules.shaped.best_shape", slow)
    monkeypatch.setattr("specllava.decoding.now", lambda device: seconds[0])
    events = list(models.events(models.pair("mixed"), models.prompt(0), DecodingConfig(rule="sequoia")))
    assert seconds == [100.0] and isinstance(events[0], Prefill)
    assert events[0].total == models.prompt(0).vision_seconds


# ---------------------------------------------------------------------------------------------- recording


def count_views(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    calls: list[int] = []
    monkeypatch.setattr("specllava.decoding.target_view", lambda tree, *_: calls.append(len(tree)))
    return calls


@pytest.mark.parametrize("config", [CONFIG, DRAWN])
def test_an_unrecorded_run_says_the_same_and_looks_at_no_node(config: DecodingConfig, monkeypatch: pytest.MonkeyPatch):
    pair, lane = models.pair("mixed"), Lane(SPECULATIVE, config, models.prompt(0))
    recorded = pair.run(lane)
    calls = count_views(monkeypatch)
    trace = pair.run(lane, record=False)
    assert calls == []
    assert trace.token_ids == recorded.token_ids
    assert [step.target for step in trace.steps] == [None] * len(recorded.steps)
    assert [step.tree for step in trace.steps] == [step.tree for step in recorded.steps]
    with pytest.raises(ValueError, match="did not record what the target thought of every node"):
        _ = trace.steps[0].view
    pair.run(lane)
    assert len(calls) == len(recorded.steps)


@pytest.mark.parametrize("config", [CONFIG, DRAWN])
def test_an_unrecorded_run_is_a_trace_but_no_race_to_show(config: DecodingConfig, tmp_path: Path):
    """A drawn one was read as a race and failed where it was drawn; a greedy one was said to be no trace."""
    trace = models.pair("mixed").run(Lane(SPECULATIVE, config, models.prompt(0)), record=False)
    assert DecodeTrace.from_json(trace.to_json()) == trace
    path = tmp_path / "race.json"
    path.write_text(race_json(None, trace))
    with pytest.raises(ValueError, match="speculative, step 1: it did not record what the target thought") as refused:
        read_recorded(path)
    assert "\n" not in str(refused.value)


# ---------------------------------------------------------------------------------------------- damaged weights


def damaged(kind: models.DraftKind, whose: str, change: Callable[[torch.nn.Module], None]) -> Pair:
    pair = models.pair(kind)
    hurt = copy.deepcopy(getattr(pair, whose))
    with torch.no_grad():
        change(hurt)
    return replace(pair, **{whose: hurt})


def all_nan(model: torch.nn.Module) -> None:
    model.lm_head.weight.fill_(torch.nan)


def one_infinite(model: torch.nn.Module) -> None:
    """As an overflow of float16 gives: plus infinity in a logit, whatever the text."""
    model.model.language_model.norm.weight.abs_()
    hook = lambda module, inputs, output: output.index_fill(-1, torch.tensor([9]), torch.inf)  # noqa: E731
    model.lm_head.register_forward_hook(hook)


@pytest.mark.parametrize("change", [all_nan, one_infinite])
@pytest.mark.parametrize("config", [CONFIG, DRAWN, replace(CONFIG, drafter="none")])
def test_a_damaged_target_is_refused(config: DecodingConfig, change: Callable[[torch.nn.Module], None]):
    pair = damaged("mixed", "target", change)
    with pytest.raises(ValueError, match="the target's logits are not numbers") as refused:
        pair.generate(models.picture(0), "What?", config)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("change", [all_nan, one_infinite])
@pytest.mark.parametrize("config", [CONFIG, DRAWN])
def test_a_damaged_draft_is_refused(config: DecodingConfig, change: Callable[[torch.nn.Module], None]):
    pair = damaged("mixed", "draft", change)
    with pytest.raises(ValueError, match="the draft's logits are not numbers") as refused:
        pair.generate(models.picture(0), "What?", config)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("config", [CONFIG, replace(CONFIG, drafter="none")])
def test_damage_that_the_prompt_does_not_touch_is_refused_where_it_shows(config: DecodingConfig):
    """One row of the embeddings: the first step that reads its token has no numbers any more."""
    rare = models.reference(0)[4]
    assert rare not in models.plain_inputs(0)["input_ids"][0]

    def one_row(model: torch.nn.Module) -> None:
        model.get_input_embeddings().weight[rare] = torch.nan

    said: list[int] = []

    def listen() -> None:
        for event in models.events(damaged("mixed", "target", one_row), models.prompt(0), config):
            said.extend([event.first_token] if isinstance(event, Prefill) else event.emitted)

    with pytest.raises(ValueError, match="the target's logits are not numbers"):
        listen()
    assert tuple(said) == expected(0, 0, len(said)) and len(said) <= 5


def test_compare_ends_with_a_line_and_not_with_identical(monkeypatch: pytest.MonkeyPatch, capsys, tmp_path: Path):
    models.picture(0).save(tmp_path / "picture.png")
    hurt = damaged("mixed", "target", all_nan)
    monkeypatch.setattr("specllava.pair.Pair.load", lambda *_, **__: hurt)
    arguments = ["compare", "--image", str(tmp_path / "picture.png"), "--prompt", "What?"]
    assert main(arguments) == 1
    told = capsys.readouterr()
    assert "the target's logits are not numbers" in " ".join((told.err + told.out).split())
    assert "identical" not in told.out


def suppressed(model: torch.nn.Module) -> None:
    """Minus infinity for all but a few tokens, as processors of logits suppress them."""
    never = torch.tensor([token for token in range(models.RECIPE.vocabulary) if token not in (11, 40, 41)])
    model.lm_head.register_forward_hook(lambda module, inputs, output: output.index_fill(-1, never, -torch.inf))


WIDE = replace(CONFIG, rule="topk", width=6)


@pytest.mark.parametrize("config", [CONFIG, WIDE, DRAWN, replace(DRAWN, rule="sequoia")])
def test_suppressed_tokens_are_no_damage(config: DecodingConfig):
    """The entropy of such a draft was no number, and the entropy rule failed; impossible tokens are no guesses."""
    pair = damaged("mixed", "draft", suppressed)
    hurt = copy.deepcopy(pair.target)
    suppressed(hurt)
    pair, lane = replace(pair, target=hurt), Lane(SPECULATIVE, config, models.prompt(0))
    trace = pair.run(lane)
    assert set(trace.token_ids) <= {11, 40, 41}
    assert all(set(step.tree.tokens) <= {11, 40, 41} for step in trace.steps)
    assert DecodeTrace.from_json(trace.to_json()) == trace
    if config.children == "best":
        alone = pair.run(replace(lane, name=TARGET_ONLY, config=replace(config, drafter="none")))
        assert trace.token_ids == alone.token_ids


def test_the_entropy_of_suppressed_tokens_is_that_of_the_others():
    logits = torch.tensor([[0.0, -torch.inf, 0.0, -torch.inf]])
    (top,) = top_tokens(logits, 4)
    assert sorted(top.tokens) == [0, 2] and top.entropy == pytest.approx(0.6931472)


@pytest.mark.parametrize("config", [CONFIG, DRAWN, replace(CONFIG, drafter="prompt-lookup")])
def test_phases_out_of_turn_are_refused_and_the_answer_goes_on(config: DecodingConfig):
    """A prompt read twice was emitted twice; a step after the end failed inside, one before the prompt by assertion."""
    pair, prompt = models.pair("mixed"), models.prompt(0)
    request = pair.request(Lane(SPECULATIVE, config, prompt))

    def refused(reason: str, *phases: Callable[[], object]) -> None:
        for phase in phases:
            with pytest.raises(ValueError, match=f"^{reason}[^\n]*$"):
                phase()

    refused("no prompt is read: prefill comes first", request.propose, request.verify)
    events: list[Event] = [request.prefill()]
    while request.finished is None:
        refused("this request has read its prompt", request.prefill)
        refused("no tree is proposed: propose comes first", request.verify)
        request.propose()
        refused("this request has read its prompt", request.prefill)
        refused("the last proposed tree is not verified", request.propose)
        events.append(request.verify())
    refused("this request has read its prompt", request.prefill)
    refused(r"the answer has ended \(length\)", request.propose, request.verify)
    assert untimed_all(events) == untimed_all(list(models.events(pair, prompt, config)))
    if config.temperature == 0:
        assert tuple(request.emitted) == expected(0, 0, config.max_new_tokens)
