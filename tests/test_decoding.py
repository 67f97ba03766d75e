"""Speculative decoding gives the target's own tokens, whatever the draft, the tree or the hook.

Oracles: whole forward passes without a cache (``models.reference``), and transformers' ``generate``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import wraps
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import models
from support.cases import ALL, complaint
from support.fake_cuda import FakeCuda, captured
from support.models import DraftKind, configs, expected
from torch import Tensor, nn

from specllava import speculative_generate
from specllava.config import DecodingConfig
from specllava.engine.engine import Engine, PrefillOutput
from specllava.engine.pool import KVCaches
from specllava.models.drafts.draft_vlm import DraftLlava
from specllava.models.options import PassesName
from specllava.pair import Pair
from specllava.prompt import Prompt
from specllava.race_file import race_json
from specllava.spec_decode.logits_processing import answer_settings
from specllava.spec_decode.loop import Event, Lane, run_lanes
from specllava.spec_decode.rejection_sampler import SeededRandom, verify_greedy
from specllava.spec_decode.rules import build_rule
from specllava.spec_decode.tree_drafter import TreeDrafter
from specllava.trace import SPECULATIVE, TARGET_ONLY, DecodeTrace, Prefill
from visual.player.recorded import read_recorded

CHATS, SEEDS = st.integers(0, len(models.CHATS) - 1), st.sampled_from(models.SEEDS)
KINDS = st.sampled_from(models.KINDS)
CONFIG = DecodingConfig(max_new_tokens=14, depth=4, entropy_threshold=0.2, min_log_prob=-50.0)
DRAWN = DecodingConfig(max_new_tokens=14, rule="fixed", branching=(2, 1), children="drawn", temperature=0.9)
LOOKUP, ALONE = replace(CONFIG, drafter="prompt-lookup"), replace(CONFIG, drafter="none")


def tokens_of(events: Iterable[Event]) -> tuple[int, ...]:
    emitted: list[int] = []
    for event in events:
        emitted += [event.first_token] if isinstance(event, Prefill) else event.emitted
    return tuple(emitted)


def untimed(events: Iterable[Event]) -> list[Event]:
    """Events without their seconds."""
    zero = {"vision_seconds": 0.0, "target_seconds": 0.0, "draft_seconds": 0.0}
    return [replace(one, **(zero if isinstance(one, Prefill) else {"seconds": None})) for one in events]


# ------------------------------------------------------------------------------------------------ the same tokens


def test_the_picture_matters_and_is_encoded_once_for_both_lanes():
    pair, encoded, answers = models.pair("mixed"), list[nn.Module](), set[tuple[int, ...]]()
    hook = pair.target.model.vision_tower.register_forward_hook(lambda module, *_: encoded.append(module))
    try:
        for seed in range(4):
            lanes = pair.compare(models.picture(seed), models.messages(0), replace(CONFIG, max_new_tokens=12))
            assert len(encoded) == seed + 1
            assert lanes[TARGET_ONLY].token_ids == lanes[SPECULATIVE].token_ids
            answers.add(lanes[SPECULATIVE].token_ids)
    finally:
        hook.remove()
    assert expected(0, 0, 12) in answers and len(answers) > 1


# ------------------------------------------------------------------------------------------------ the draft's cache


def drafting(pair: Pair, prompt: Prompt, config: DecodingConfig) -> TreeDrafter:
    """A drafter that has begun an answer."""
    asked = answer_settings(pair.target, pair.processor.tokenizer, config, prompt.input_ids, frozenset())
    rule, length = build_rule(config), prompt.length + 100
    drafter = TreeDrafter(pair.target, pair.draft, config, rule, asked, SeededRandom(0), length)
    drafter.begin(prompt, PrefillOutput(torch.empty(0), 0, None), KVCaches(pair.engines))
    return drafter


@given(CHATS, SEEDS, KINDS, configs(), st.integers(1, 6))
@settings(max_examples=15)
@torch.inference_mode()
def test_the_draft_remembers_exactly_what_was_emitted(chat, seed, kind, config: DecodingConfig, rounds: int):
    """After some steps the draft proposes what a draft proposes that reads prompt and answer anew."""
    pair, prompt, answer = models.pair(kind, seed), models.prompt(chat, seed), models.reference(chat, seed)
    drafter, known = drafting(pair, prompt, config), 1
    for _ in range(rounds):
        tree = drafter.propose(answer[known - 1], min(config.depth, len(answer) - known - 1))
        verdict = verify_greedy(tree, [answer[known + level] for level in tree.depths()])
        drafter.commit(verdict.path, None)
        known += len(verdict.path)
        if known == len(answer):
            break
    read = torch.cat([prompt.input_ids, torch.tensor([answer[: known - 1]], dtype=torch.long)], dim=1)
    fresh = drafting(pair, replace(prompt, input_ids=read), config)
    ours, theirs = (one.propose(answer[known - 1], config.depth) for one in (drafter, fresh))
    assert (ours.tokens, ours.parents) == (theirs.tokens, theirs.parents)
    assert ours.log_probs == pytest.approx(theirs.log_probs, abs=1e-5)
    assert [entropy is None for entropy in ours.entropies] == [entropy is None for entropy in theirs.entropies]


@pytest.mark.parametrize("rule", ["chain", "topk"])
@pytest.mark.parametrize("chat", range(len(models.CHATS)))
@torch.inference_mode()
def test_every_guess_has_the_probability_of_its_own_branch_read_alone(chat: int, rule: str):
    """With a mask where the tree has branches, and without one where it has none yet."""
    pair, prompt = models.pair("mixed"), models.prompt(chat)
    config = DecodingConfig(rule=rule, depth=5, width=3, nodes=20, min_log_prob=-50.0)
    tree = drafting(pair, prompt, config).propose(models.reference(chat)[0], config.depth)
    assert max(tree.depths()) == 5
    for node in range(1, len(tree)):
        before = torch.tensor([[tree.tokens[above] for above in tree.path(node)[:-1]]])
        reading = Engine.of(pair.draft, prompt.length + 100).prefill(
            torch.cat([prompt.input_ids, before], dim=1), prompt.features, prompt.image_keys
        )
        alone = reading.logits.float().log_softmax(-1)[tree.tokens[node]].item()
        assert tree.log_probs[node] == pytest.approx(alone, abs=1e-4)


# ------------------------------------------------------------------------------------------------ phases


@pytest.mark.parametrize(("kind", "config"), [("mixed", CONFIG), ("perfect", DRAWN), ("bad", LOOKUP)])
def test_phases_by_hand_give_what_the_loop_gives_and_no_gradients_and_are_refused_out_of_turn(kind, config):
    """Outside of ``inference_mode`` the caches would keep the graph of every pass."""
    pair, prompt = models.pair(kind), models.prompt(0)
    request = pair.request(Lane(SPECULATIVE, config, prompt))

    def refused(reason: str, *phases: Callable[[], object]) -> None:
        for phase in phases:
            with pytest.raises(ValueError, match=f"^{reason}[^\n]*$"):
                phase()

    assert not torch.is_inference_mode_enabled()
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
    assert untimed(events) == untimed(models.events(pair, prompt, config))
    assert tuple(request.emitted) == tokens_of(events) and request.room == 0 and request.root == request.emitted[-1]
    slabs = [slab for engine in request.caches._engines.values() for slab in engine.cache.slabs]
    assert slabs and not any(slab.requires_grad for slab in slabs)


def test_events_that_are_no_run_and_lanes_of_one_name_are_refused(tiny: Pair):
    lanes = [Lane("same", CONFIG, models.prompt(0)), Lane("other", CONFIG, models.prompt(0))]
    events = list(models.events(tiny, models.prompt(0), CONFIG))
    for wrong in (events[1:], [*events, events[0]]):
        with pytest.raises(ValueError, match="a run is a prefill and then steps"):
            models.collected(tiny, lanes[0], wrong)
    with pytest.raises(ValueError, match=r"^two lanes of one race are called same: give each a name of its own$"):
        next(run_lanes([tiny.request(lane) for lane in (*lanes, lanes[0])]))
    assert {event.lane.name for event in tiny.race(lanes)} == {"same", "other"}


# ------------------------------------------------------------------------------------------------ records


@pytest.mark.parametrize("config", [CONFIG, DRAWN])
def test_an_unrecorded_run_gives_the_same_looks_at_no_node_and_is_no_race_to_show(config, monkeypatch, tmp_path):
    pair, lane, views = models.pair("mixed"), Lane(SPECULATIVE, config, models.prompt(0)), list[int]()
    recorded = pair.run(lane)
    monkeypatch.setattr("specllava.spec_decode.loop.target_view", lambda tree, *_: views.append(len(tree)))
    trace = pair.run(lane, record=False)
    assert views == [] and trace.token_ids == recorded.token_ids
    assert [step.target for step in trace.steps] == [None] * len(recorded.steps)
    assert [step.tree for step in trace.steps] == [step.tree for step in recorded.steps]
    with pytest.raises(ValueError, match="did not record what the target thought of every node"):
        _ = trace.steps[0].view
    pair.run(lane)
    assert len(views) == len(recorded.steps)
    assert DecodeTrace.from_json(trace.to_json()) == trace
    (tmp_path / "race.json").write_text(race_json(None, trace))
    with pytest.raises(ValueError, match=r"^[^\n]*speculative, step 1: it did not record what the target[^\n]*$"):
        read_recorded(tmp_path / "race.json")


# ------------------------------------------------------------------------------------------------ clocks and races


@dataclass
class Stopwatch:
    """Time that passes when a model computes or a test advances it."""

    seconds: float = 0.0
    target: float = 1.0
    draft: float = 0.25

    def now(self, *_: object) -> float:
        return self.seconds


@pytest.fixture
def stopwatch(monkeypatch: pytest.MonkeyPatch) -> Stopwatch:
    watch = Stopwatch()
    monkeypatch.setattr("specllava.spec_decode.loop.now", watch.now)
    monkeypatch.setattr("specllava.spec_decode.loop.time", SimpleNamespace(perf_counter=watch.now))
    for method in ("prefill", "forward"):
        plain = getattr(Engine, method)

        def timed(engine: Engine, *args: Any, plain: Any = plain) -> Any:
            watch.seconds += watch.draft if isinstance(engine.decoder.model, DraftLlava) else watch.target
            return plain(engine, *args)

        monkeypatch.setattr(Engine, method, timed)
    return watch


@pytest.mark.parametrize(("kind", "draft_cost"), [("mixed", 0.0), ("bad", 0.25), ("perfect", 3.0)])
def test_a_race_moves_the_lane_with_the_earliest_clock(stopwatch: Stopwatch, kind: DraftKind, draft_cost: float):
    stopwatch.draft = draft_cost
    clocks = dict.fromkeys((TARGET_ONLY, SPECULATIVE), 0.0)
    running, items = set(clocks), {name: list[Event]() for name in clocks}
    for event in models.pair(kind).race(Lane.of(CONFIG, models.prompt(0)).with_target_only()):
        assert clocks[event.lane.name] == min(clocks[name] for name in running)
        assert event.clock >= clocks[event.lane.name]
        clocks[event.lane.name] = event.clock
        items[event.lane.name].append(event.item)
        if event.item.finished is not None:
            running.remove(event.lane.name)
    assert not running and {tokens_of(events) for events in items.values()} == {expected(0, 0, 14)}


def test_a_clock_counts_the_lanes_own_compute_and_nothing_else(stopwatch: Stopwatch):
    """Hours pass between the events; a lane's clock shows its own passes alone, and the picture's encoding."""
    prompt, own = replace(models.prompt(0), vision_seconds=0.5), {TARGET_ONLY: 0.0, SPECULATIVE: 0.0}
    lanes = Lane.of(CONFIG, prompt).with_target_only()
    requests = {lane.name: models.pair("mixed").request(lane) for lane in lanes}
    for event in run_lanes([*requests.values()]):
        passes = len(requests[event.lane.name].drafter.pass_tokens)
        if isinstance(event.item, Prefill):
            drafting = stopwatch.draft if event.lane.name == SPECULATIVE else 0
            spent = event.item.total
            assert spent == pytest.approx(prompt.vision_seconds + stopwatch.target + drafting)
        else:
            assert event.item.seconds.draft == pytest.approx(passes * stopwatch.draft)
            assert (not passes) == (event.lane.name == TARGET_ONLY or event.item.tree.drafted == 0)
            assert event.item.seconds.verify == pytest.approx(stopwatch.target) and event.item.seconds.keep == 0.0
            spent = event.item.seconds.total
        own[event.lane.name] += spent
        assert event.clock == pytest.approx(own[event.lane.name])
        stopwatch.seconds += 3600.0


# ------------------------------------------------------------------------------------------------ damaged models


def changed(whose: str, change: Callable[[nn.Module], object]) -> Pair:
    """The mixed pair with a change in a copy of one of its models."""
    pair = models.pair("mixed")
    model = copy.deepcopy(getattr(pair, whose))
    with torch.no_grad():
        change(model)
    return replace(pair, **{whose: model})


def all_nan(model: nn.Module) -> None:
    model.lm_head.weight.fill_(torch.nan)


def one_infinite(model: nn.Module) -> None:
    """As an overflow of float16 gives: plus infinity in a logit, whatever the text."""
    model.lm_head.register_forward_hook(lambda m, i, output: output.index_fill(-1, torch.tensor([9]), torch.inf))


@pytest.mark.parametrize("change", [all_nan, one_infinite])
@pytest.mark.parametrize(
    ("whose", "config"), [("target", CONFIG), ("target", DRAWN), ("target", ALONE), ("draft", CONFIG), ("draft", DRAWN)]
)
def test_a_damaged_model_is_refused_in_a_line(whose: str, config: DecodingConfig, change: Callable[[nn.Module], None]):
    with pytest.raises(ValueError, match=f"^the {whose}'s logits are not numbers[^\n]*$"):
        changed(whose, change).generate(models.picture(0), "What?", config)


@pytest.mark.parametrize("config", [CONFIG, ALONE])
def test_damage_that_the_prompt_does_not_touch_is_refused_where_it_shows(config: DecodingConfig):
    """One row of the embeddings: the first step that reads its token has no numbers any more."""
    rare, emitted = models.reference(0)[4], list[Event]()
    assert rare not in models.plain_inputs(0)["input_ids"][0]
    pair = changed("target", lambda model: model.get_input_embeddings().weight[rare].fill_(torch.nan))
    events = models.events(pair, models.prompt(0), config)
    with pytest.raises(ValueError, match="the target's logits are not numbers"):
        emitted.extend(events)
    assert tokens_of(emitted) == expected(0, 0, len(tokens_of(emitted))) and len(tokens_of(emitted)) <= 5


# ------------------------------------------------------------------------------------------------ hooks


def output_times(factor: float) -> Callable[..., Any]:
    def hook(module: nn.Module, inputs: Any, output: Any) -> Any:
        return (output[0] * factor, *output[1:]) if isinstance(output, tuple) else output * factor

    return hook


def field_of_output(name: str, change: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    def hook(module: nn.Module, inputs: Any, output: Any) -> Any:
        output[name] = change(output[name])
        return output

    return hook


STATES = field_of_output("last_hidden_state", lambda states: states.flip(-1))
LOGITS = field_of_output("logits", lambda logits: logits.roll(5, -1))
HOOKS: dict[str, Callable[..., Any]] = {  # by module: what changes its output, and with it the answer
    "model.language_model.layers.0": output_times(0.5),
    "model.language_model.layers.0.self_attn.q_proj": output_times(-1.0),
    "model.language_model.layers.0.mlp.down_proj": output_times(-1.0),
    "model.language_model.layers.1.input_layernorm": output_times(-1.0),
    "model.multi_modal_projector": output_times(-1.0),
    "model.language_model": STATES,
    "lm_head": lambda module, inputs, output: output.roll(3, -1),
}
REFUSED_HOOKS = {"model": STATES, "": LOGITS}  # around the decoder, where no pass of ours is


@contextmanager
def wrapped(module: nn.Module, hook: Callable[..., Any], patched: bool) -> Iterator[None]:
    """Set a hook on a module, or replace its ``forward`` by one that does the same; undone at the end."""
    plain = module.forward

    @wraps(plain)
    def forward(*args: Any, **named: Any) -> Any:
        return hook(module, args, plain(*args, **named))

    if patched:
        module.forward = forward
    handle = None if patched else module.register_forward_hook(hook)
    try:
        yield
    finally:
        vars(module).pop("forward", None)
        if handle is not None:
            handle.remove()


PASSES: tuple[PassesName, ...] = ("eager", "padded", "graphs")
WRAPPED = [*product(HOOKS, PASSES), *zip(REFUSED_HOOKS, PASSES, strict=False)]


@pytest.mark.parametrize(("name", "passes"), WRAPPED if ALL else WRAPPED[::2])
def test_what_wraps_a_module_acts_as_in_generate_or_is_refused_until_it_is_removed(name, passes, monkeypatch):
    """A replayed graph is what was captured, whatever wraps a module by now."""
    patched = (len(name) + len(passes)) % 2 == 0  # a forward of its own in place of a hook
    pair, inputs = replace(changed("target", lambda model: None), passes=passes), models.plain_inputs(0)
    if passes == "graphs":
        FakeCuda(monkeypatch)
        pair = captured(pair)
    question, config = (models.picture(0), models.messages(0)), replace(CONFIG, max_new_tokens=10)
    assert pair.generate(*question, config).token_ids == expected(0, 0, 10)
    with wrapped(pair.target.get_submodule(name), {**HOOKS, **REFUSED_HOOKS}[name], patched):
        output = pair.target.generate(**inputs, do_sample=False, max_new_tokens=10, pad_token_id=0)
        wanted = tuple(output[0, inputs["input_ids"].shape[1] :].tolist())
        assert wanted != expected(0, 0, 10), "the hook changes the answer"
        for drafter in ("model", "none"):
            if name in HOOKS:
                assert pair.generate(*question, replace(config, drafter=drafter)).token_ids == wanted
            else:
                line = complaint(lambda drafter=drafter: pair.generate(*question, replace(config, drafter=drafter)))
                assert line.startswith("Llava") and "has a hook or a forward of its own" in line
    assert pair.generate(*question, config).token_ids == expected(0, 0, 10)


def test_custom_generation_looks_at_the_model_as_it_is_now():
    """Its pair is kept from call to call, with a copy of the model that shares its modules."""
    pair, inputs = changed("target", lambda model: None), models.plain_inputs(0)
    options = {"custom_generate": speculative_generate, "draft": pair.draft, "processor": pair.processor}

    def answer() -> tuple[int, ...]:
        output = pair.target.generate(**inputs, do_sample=False, max_new_tokens=10, **options)
        return tuple(output[0, inputs["input_ids"].shape[1] :].tolist())

    assert answer() == expected(0, 0, 10)
    for patched in (False, True):
        with wrapped(pair.target, LOGITS, patched), pytest.raises(ValueError, match="has a hook or a forward"):
            answer()
        assert answer() == expected(0, 0, 10)
