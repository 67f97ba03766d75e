"""Dialogues as races: both lanes keep their caches, and say what a fresh pair says of the whole dialogue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import models
from support.chats import ALONE, QUESTIONS, SHORT, common, failing_pass, talker
from support.models import DraftKind

from recipes.toy.draw import draw_scene
from recipes.toy.scene import sample_scene
from specllava.chat import Chat, Turn
from specllava.core.config import DecodingConfig
from specllava.models.checkpoints.chat_template import Message
from specllava.pair import Pair
from specllava.runtime.prompt import Prompt

SHOWN = st.sampled_from([None, 0, 1])


def contents(pair: Pair, prompt: Prompt) -> list[object]:
    """What a cache's columns hold once a prompt was read, worked out without the engine."""
    marker, keys = pair.target.config.image_token_id, iter(prompt.image_keys)
    held: list[object] = []
    slots = int((prompt.input_ids == marker).sum()) // max(1, len(prompt.image_keys))
    left = 0
    key = None
    for token in prompt.input_ids[0].tolist():
        if token == marker:
            key, left = (next(keys), slots) if not left else (key, left)
            left -= 1
        held.append(key if token == marker else token)
    return held


def prompt_before(chat: Chat, turn: int) -> list[Message]:
    """The messages that were read for a turn."""
    return chat.messages[: 2 * turn + 1]


def ask(chat: Chat, text: str, image: int | None, config: DecodingConfig, turn: int | None = None) -> Turn:
    """One turn as a race, both lanes held against a fresh pair that reads the whole dialogue."""
    place = len(chat.turns) if turn is None else turn
    for _ in chat.race(text, None if image is None else models.picture(image), config, turn):
        pass
    assert len(chat.turns) == place + 1
    check(chat)
    return chat.turns[-1]


def check(chat: Chat) -> None:
    pair, last = chat._pair, chat.turns[-1]
    messages = prompt_before(chat, len(chat.turns) - 1)
    for trace in filter(None, (last.alone, last.trace)):
        fresh = pair.generate(None, messages, replace(trace.config, drafter="none"))
        assert trace.token_ids == fresh.token_ids
        assert (trace.turn, trace.prefill.prompt_tokens) == (len(chat.turns) - 1, fresh.prefill.prompt_tokens)
        assert fresh.prefill.reused_tokens == 0


TURNS = st.lists(st.tuples(st.sampled_from(QUESTIONS), SHOWN), min_size=2, max_size=3)


@given(st.sampled_from(models.SEEDS), st.sampled_from(models.KINDS), TURNS, st.lists(models.configs(), min_size=3))
@settings(max_examples=10)
def test_both_lanes_of_every_turn_say_what_a_fresh_pair_says_of_the_whole_dialogue(
    seed: int, kind: DraftKind, turns: list[tuple[str, int | None]], configs: list[DecodingConfig]
) -> None:
    """In float64, with other trees in every turn, so that caches grow in between."""
    chat = Chat(models.pair(kind, seed))
    for (text, image), config in zip(turns, configs, strict=False):
        last = ask(chat, text, image, replace(config, max_new_tokens=min(8, config.max_new_tokens)))
        assert last.alone is not None and last.alone.token_ids == last.trace.token_ids


@pytest.mark.parametrize("seed", range(6))
def test_both_lanes_reuse_the_common_prefix_of_what_they_hold_and_what_they_are_asked(seed: int) -> None:
    chat, held = Chat(talker()), list[object]()
    for number, text in enumerate(QUESTIONS):
        image = seed if number == 0 else seed + 1 if number == seed % 3 else None
        turn = ask(chat, text, image, SHORT)
        wanted = contents(chat._pair, chat._pair.prompt(None, prompt_before(chat, number)))
        reused = common(held, wanted[:-1])  # type: ignore[arg-type]
        assert turn.alone is not None
        assert turn.alone.prefill.reused_tokens == turn.trace.prefill.reused_tokens == reused
        assert (reused > 0) == (number > 0)
        held = [*wanted, *turn.trace.token_ids[:-1]]  # the last token is the next root: no column yet


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("edited", [0, 1, 2])
def test_an_edited_turn_reuses_exactly_what_comes_before_it(seed: int, edited: int) -> None:
    chat = Chat(talker())
    for number, text in enumerate(QUESTIONS):
        ask(chat, text, seed if number == 0 else None, SHORT)
    before = chat.turns[:edited]
    old = chat._pair.prompt(None, prompt_before(chat, edited))
    turn = ask(chat, "Edited: why?", seed if edited == 0 else None, SHORT, edited)
    new = chat._pair.prompt(None, prompt_before(chat, edited))
    assert chat.turns == (*before, turn)
    expected = common(contents(chat._pair, old), contents(chat._pair, new))  # type: ignore[arg-type]
    assert turn.alone is not None
    assert turn.trace.prefill.reused_tokens == turn.alone.prefill.reused_tokens == expected < old.length


@pytest.mark.parametrize("kind", models.KINDS)
def test_a_chat_that_was_dropped_says_the_same_tokens_and_reuses_nothing(kind: DraftKind) -> None:
    kept, dropped = Chat(models.pair(kind)), Chat(models.pair(kind))
    for number, text in enumerate(QUESTIONS):
        one, other = (ask(chat, text, 0 if number == 0 else None, SHORT) for chat in (kept, dropped))
        assert one.trace.token_ids == other.trace.token_ids
        assert other.trace.prefill.reused_tokens == 0
        assert dropped.nbytes > 0
        dropped.forget()
        assert dropped.nbytes == 0


def test_a_dialogue_that_was_written_down_goes_on_with_the_same_tokens() -> None:
    chat = Chat(models.pair("mixed"))
    for number, text in enumerate(QUESTIONS[:2]):
        ask(chat, text, 0 if number == 0 else None, SHORT)
    resumed = Chat(models.pair("mixed"), chat.turns)
    assert ask(resumed, "And now?", None, SHORT).trace.token_ids == ask(chat, "And now?", None, SHORT).trace.token_ids


@pytest.mark.parametrize("events", range(1, 8))
def test_a_race_that_is_stopped_is_kept_once_both_lanes_have_begun(events: int) -> None:
    chat = Chat(models.pair("mixed"))
    ask(chat, "What?", 0, SHORT)
    race = chat.race("Where?", None, replace(SHORT, max_new_tokens=30))
    list(islice(race, events))
    race.close()
    assert len(chat.turns) == (1 if events < 2 else 2)
    if events >= 2:
        stopped = chat.turns[1]
        assert stopped.alone is not None
        assert "stopped" in (stopped.trace.finish_reason, stopped.alone.finish_reason)
        assert 2 + len(stopped.trace.steps) + len(stopped.alone.steps) == events
    ask(chat, "And now?", None, SHORT)


@pytest.mark.parametrize("failing", range(1, 7))
def test_a_race_in_which_a_lane_fails_leaves_the_chat_as_it_was(failing: int) -> None:
    """Whichever lane it is, the caches of both are free for the next question."""
    chat = Chat(models.pair("mixed"))
    ask(chat, "What?", 0, SHORT)
    before = chat.turns
    with failing_pass(chat, failing):
        list(chat.race("Where?", None, SHORT))
    assert chat.turns == before
    ask(chat, "Where?", None, SHORT)


def test_races_and_single_answers_may_take_turns() -> None:
    chat = Chat(models.pair("mixed"))
    ask(chat, "What?", 0, SHORT)
    chat.ask("Where?", None, SHORT)
    check(chat)
    assert chat.turns[1].alone is None
    last = ask(chat, "And now?", None, SHORT)
    assert last.alone is not None
    assert 0 < last.alone.prefill.reused_tokens < last.trace.prefill.reused_tokens  # the target alone lacks a turn
    alone = ask(chat, "Why?", None, ALONE)
    assert alone.alone is None and alone.trace.lane == "target-only"


@pytest.mark.parametrize("step", [64, 100, 4096])
def test_caches_grow_with_the_chat_and_keep_what_was_read(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In steps, so that a short chat does not take the memory of the whole context."""
    monkeypatch.setattr("specllava.pair.CHAT_TOKENS", step)
    chat, sizes = Chat(models.pair("mixed")), list[int]()
    for number in range(4):
        turn = ask(chat, "Where? " * 12, 0 if number == 0 else None, SHORT)
        sizes.append(chat.nbytes)
        assert (turn.trace.prefill.reused_tokens > 0) == (number > 0)
        verifying = chat._caches.engine(chat._pair.target, 1, rows=1)
        assert verifying.cache.capacity <= chat._pair.context + SHORT.nodes + 1
    assert sizes == sorted(sizes)
    assert (sizes[0] < sizes[-1]) == (step < chat._pair.context)


@torch.inference_mode()
@pytest.mark.parametrize("seed", [2_000_027, 2_000_040])
def test_the_toy_pair_holds_a_dialogue_without_loss(seed: int, shipped: Callable[[str], Pair]) -> None:
    """In float64, where both lanes say the same whatever kernels they ran."""
    pair = shipped("float64")
    chat, picture = Chat(pair), draw_scene(sample_scene(seed))
    questions: Sequence[str] = ("How many objects are there?", "What is on the left?", "What colour is it?")
    for number, text in enumerate(questions):
        list(chat.race(text, picture if number == 0 else None, DecodingConfig(max_new_tokens=40)))
        check(chat)
        last = chat.turns[-1]
        assert last.alone is not None
        assert last.alone.token_ids == last.trace.token_ids
        # A guessed end of the answer has a column; the target alone never ran what it said last.
        assert last.trace.prefill.reused_tokens - last.alone.prefill.reused_tokens in (0, 1)
        assert (last.alone.prefill.reused_tokens > 64) == (number > 0)
