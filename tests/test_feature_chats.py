"""A feature draft's cache holds true states only, whatever was read before: steps, turns, other drafters, growth."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache

import pytest
import torch
from support import models
from support.amount import sample
from support.chats import columns_of
from torch import Tensor

from benchmarks.identity import FORMATS, Runner
from specllava.chat import Chat
from specllava.core.config import DecodingConfig
from specllava.core.tree import DraftTree
from specllava.decoding import Request, stream
from specllava.lane import lane_of
from specllava.models.loading.memory_estimate import estimate
from specllava.pair import Pair
from specllava.runtime.cache import StateRows
from specllava.runtime.engine import Engine
from specllava.runtime.feature_engine import FeatureEngine, prompt_entries
from specllava.runtime.kv_caches import KVCaches
from specllava.runtime.prompt import Prompt, with_prefix

BEAM = DecodingConfig(rule="topk", width=3, depth=4, nodes=9, max_new_tokens=14)
QUESTIONS = ("What is this?", "Where?", "And now?")


@cache
def runner() -> Runner:
    return Runner(torch.float64)


def columns(engine: FeatureEngine, count: int | None = None) -> Tensor:
    """Keys and values of the first columns, of all that count without a number."""
    shown = engine.cache.length if count is None else count
    return torch.stack([layer.both[:, :, :, :shown] for layer in engine.cache.layers])


@torch.inference_mode()
def read_anew(pair: Pair, prompt: Prompt, emitted: list[int]) -> FeatureEngine:
    """A new cache that reads a prompt and the tokens behind it with the states of one pass of the target."""
    whole = with_prefix(prompt, emitted)
    states = Engine(pair.target, 512, pair.draft.config.state_layers).prefill(
        whole.input_ids, whole.features, whole.image_keys
    ).states  # fmt: skip
    engine = FeatureEngine(pair.draft, 512)
    engine.prefill(*prompt_entries(pair.draft, pair.target, whole, states))
    return engine


@contextmanager
def trees_of(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[DraftTree]]:
    """Every tree that is proposed."""
    found: list[DraftTree] = []
    plain = Request.propose

    def noting(self: Request) -> DraftTree:
        found.append(plain(self))
        return found[-1]

    monkeypatch.setattr(Request, "propose", noting)
    yield found
    monkeypatch.setattr(Request, "propose", plain)


@contextmanager
def hidden_states_asked(target: torch.nn.Module) -> Iterator[list[bool]]:
    """Whether each call of a target's decoder asks for hidden states."""
    asked: list[bool] = []
    hook = target.get_decoder().register_forward_pre_hook(
        lambda _, __, given: asked.append(bool(given.get("output_hidden_states"))), with_kwargs=True
    )
    try:
        yield asked
    finally:
        hook.remove()


def same_trees(some: list[DraftTree], others: list[DraftTree]) -> bool:
    """Same guesses in the same places; log-probabilities may differ in their last bits."""
    shapes = [[(tree.tokens, tree.parents) for tree in trees] for trees in (some, others)]
    return shapes[0] == shapes[1]


@pytest.mark.parametrize("name", sample([name for name in FORMATS if name != "eagle, gated"], 5))  # its gate reads more
def test_true_states_take_the_place_of_guessed_ones_after_every_step(name: str):
    """What the cache holds after a step is what reading the accepted text from its beginning leaves."""
    accepted = 0
    for seed in range(3):
        pair = runner().pair(seed, name)
        prompt = pair.prompt(models.picture(seed) if seed else None, QUESTIONS[seed])
        request = pair.request(lane_of(BEAM, prompt))
        request.prefill()
        while request.finished is None:
            request.propose()
            accepted += len(request.verify().verification.accepted)
            engine, session = request._session._engine, request._session
            wanted = read_anew(pair, prompt, request.emitted[:-1])
            held = engine.cache.length  # the last accepted tokens are read together with the next root
            assert held + len(session._unread) == wanted.cache.length
            assert engine.position_offset == wanted.position_offset
            torch.testing.assert_close(columns(engine), columns(wanted, held), rtol=1e-9, atol=1e-9)
    assert accepted > 0


@pytest.mark.parametrize("name", sample(tuple(FORMATS), 5))
def test_a_turn_that_goes_on_drafts_what_reading_everything_anew_drafts(name: str, monkeypatch: pytest.MonkeyPatch):
    """Pictures in two turns; the draft's cache keeps what both prompts begin with."""
    pair = runner().pair(1, name)
    chat = Chat(pair)
    for turn, question in enumerate(QUESTIONS):
        shown = [models.picture(turn)] if turn < 2 else []
        with trees_of(monkeypatch) as going, columns_of(pair.target) as passes:
            trace = chat.ask(question, shown, BEAM)
        assert (trace.prefill.reused_tokens > 0) == (turn > 0)
        assert passes[0] == trace.prefill.prompt_tokens - trace.prefill.reused_tokens
        asked = chat.messages[: 2 * turn + 1]
        with trees_of(monkeypatch) as fresh:
            alone = pair.generate(None, asked, BEAM)
        assert alone.token_ids == trace.token_ids and same_trees(going, fresh)


@pytest.mark.parametrize("others", ["none", "prompt-lookup"])
@pytest.mark.parametrize("name", ["eagle", "vispec", "eagle3"])
def test_after_a_turn_without_states_they_are_read_again(name: str, others: str, monkeypatch: pytest.MonkeyPatch):
    pair = runner().pair(2, name)
    chat = Chat(pair)
    chat.ask(QUESTIONS[0], models.picture(0), BEAM)
    chat.ask(QUESTIONS[1], None, replace(BEAM, drafter=others))
    with trees_of(monkeypatch) as going:
        trace = chat.ask(QUESTIONS[2], None, BEAM)
    assert trace.prefill.reused_tokens == 0  # the target read without handing out states
    with trees_of(monkeypatch) as fresh:
        pair.generate(None, chat.messages[:5], BEAM)
    assert same_trees(going, fresh)


@pytest.mark.parametrize("name", ["eagle", "vispec", "eagle3"])
@torch.inference_mode()
def test_larger_caches_keep_columns_and_states(name: str):
    pair = runner().pair(0, name)
    prompt, caches = pair.prompt(models.picture(0), QUESTIONS[0]), KVCaches()
    layers = pair.draft.config.state_layers
    small = caches.engine(pair.target, prompt.length, layers)
    states = small.prefill(prompt.input_ids, prompt.features, prompt.image_keys).states
    first = caches.feature_engine(pair.draft, prompt.length)
    first.prefill(*prompt_entries(pair.draft, pair.target, prompt, states))
    held = columns(first).clone()
    large = caches.engine(pair.target, 4 * prompt.length, layers)
    again = large.prefill(prompt.input_ids, prompt.features, prompt.image_keys)
    assert large is not small and again.reused == prompt.length - 1
    torch.testing.assert_close(again.states, states, rtol=0, atol=1e-9)
    second = caches.feature_engine(pair.draft, 4 * prompt.length)
    assert second is not first and second.cache.capacity == 4 * prompt.length
    assert len(second.prefill(*prompt_entries(pair.draft, pair.target, prompt, again.states))) == 0
    assert torch.equal(columns(second), held)


@pytest.mark.parametrize("name", ["eagle", "vispec", "eagle3"])
def test_caches_count_their_states(name: str):
    """Keys, values of both models, and the states that are held."""
    pair, caches = runner().pair(0, name), KVCaches()
    request = pair.request(lane_of(BEAM, pair.prompt(None, QUESTIONS[0])), caches)
    request.prefill()
    target, draft = pair.target.config.text_config, pair.draft.config
    engine = caches.engine(pair.target, 0, draft.state_layers, rows=1)
    width = 2 * 8 * target.hidden_size
    reading = caches.feature_engine(pair.draft, 0).cache.capacity
    rows = engine.cache.capacity * len(draft.state_layers) * target.hidden_size * 8
    assert caches.nbytes == width * (target.num_hidden_layers * engine.cache.capacity + reading) + rows


@pytest.mark.parametrize("drafter", ["none", "prompt-lookup"])
def test_the_target_alone_hands_out_no_states(drafter: str):
    """Though the pair has a draft that would read them: nothing is gathered and nothing held."""
    pair, caches = runner().pair(0, "eagle3"), KVCaches()
    request = pair.request(lane_of(replace(BEAM, drafter=drafter), pair.prompt(None, QUESTIONS[0])), caches)
    with hidden_states_asked(pair.target) as asked:
        for _ in stream(request):
            pass
    assert asked and not any(asked)
    engine = caches.engine(pair.target, 0, rows=1)
    assert engine.state_layers == () and caches.nbytes == engine.cache.nbytes


def test_rows_behind_a_gap_are_not_held():
    rows = StateRows(8)
    rows.write(0, torch.arange(6.0).view(3, 2))
    rows.write(5, torch.ones(1, 2))
    assert rows.length == 3
    rows.keep(1, [1])
    assert rows.rows is not None and rows.rows.tolist() == [[0.0, 1.0], [4.0, 5.0]]
    rows.keep(4, [0])
    assert rows.length == 2


@pytest.mark.parametrize("name", ["eagle", "vispec", "eagle3"])
def test_a_stopped_answer_leaves_caches_that_go_on(name: str, monkeypatch: pytest.MonkeyPatch):
    """Closed after a step, in the middle of an answer: the next turn drafts as if all were read anew."""
    pair = runner().pair(3, name)
    chat = Chat(pair)
    answer = chat.stream(QUESTIONS[0], models.picture(0), BEAM)
    for _ in range(3):
        next(answer)
    answer.close()
    with trees_of(monkeypatch) as going:
        chat.ask(QUESTIONS[1], None, BEAM)
    with trees_of(monkeypatch) as fresh:
        pair.generate(None, chat.messages[:3], BEAM)
    assert same_trees(going, fresh)


@pytest.mark.parametrize("name", ["eagle", "eagle, pruned", "vispec", "eagle3"])
def test_the_estimate_counts_the_states_that_are_held(name: str):
    """Memory was told without them: 100 MB for EAGLE-3 on LLaVA-1.5-7B."""
    pair = runner().pair(0, name)
    chat = Chat(pair)
    chat.ask(QUESTIONS[0], models.picture(0), DecodingConfig(max_new_tokens=4))
    needed = estimate(*[(type(model), model.config) for model in (pair.target, pair.draft)], torch.float64)
    assert needed.caches == chat._caches.nbytes
