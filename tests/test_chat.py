"""A chat says what a fresh run on the whole conversation says, turn by turn, whatever happened before."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import models
from support.chats import ALONE, QUESTIONS, SHORT, Shown, ask, check_last, columns_of, failing_pass, talker
from support.models import DraftKind
from test_bad_input import complaint

from specllava.chat import Chat
from specllava.core.config import DecodingConfig
from specllava.core.metrics import summarise
from specllava.core.trace import DecodeTrace
from specllava.models.checkpoints.tokens import Detokenizer
from specllava.runtime.prompt_builder import PromptBuilder

# ---------------------------------------------------------------------------------------- the same answers

SHOWN = st.sampled_from([(), (0,), (1,), (0, 1)])
TURNS = st.lists(st.tuples(st.sampled_from(QUESTIONS), SHOWN), min_size=2, max_size=3)


@given(st.sampled_from(models.SEEDS), st.sampled_from(models.KINDS), TURNS, st.lists(models.configs(), min_size=3))
@settings(max_examples=12)
def test_every_turn_says_what_the_target_alone_says_of_the_whole_conversation(
    seed: int, kind: DraftKind, turns: list[tuple[str, Shown]], configs: list[DecodingConfig]
):
    """With other trees in every turn, which may need larger caches."""
    chat = Chat(models.pair(kind, seed))
    for (text, shown), config in zip(turns, configs, strict=False):
        ask(chat, text, shown, replace(config, max_new_tokens=min(10, config.max_new_tokens)))


@pytest.mark.parametrize("drafter", ["none", "prompt-lookup"])
def test_who_drafts_may_change_from_turn_to_turn(drafter):
    chat = Chat(models.pair("mixed"))
    for number in range(3):
        trace = ask(chat, QUESTIONS[number], (number,), replace(SHORT, drafter=drafter) if number != 1 else SHORT)
        assert (trace.prefill.reused_tokens > 0) == (number > 0)


# -------------------------------------------------------------------------------------- when a turn goes wrong


@pytest.mark.parametrize("events", [1, 2, 3])
@pytest.mark.parametrize("closed", [True, False])
def test_a_stopped_turn_is_kept_with_what_was_said(events: int, closed: bool):
    """Closed, or left alone until the next question."""
    chat = Chat(models.pair("mixed"))
    ask(chat, "What?", (0,))
    answer = chat.stream("Where?", models.picture(1), replace(SHORT, max_new_tokens=30))
    said = [next(answer) for _ in range(events)]
    if closed:
        answer.close()
        check_last(chat)
        assert chat.turns[1].trace.finish_reason == "stopped"
    ask(chat, "And now?")
    assert [turn.text for turn in chat.turns] == ["What?", "Where?", "And now?"]
    assert (chat.turns[1].trace.prefill, *chat.turns[1].trace.steps) == tuple(said)


def test_a_turn_that_was_not_begun_was_not_asked():
    chat = Chat(models.pair("mixed"))
    chat.stream("What?", None, SHORT)
    trace = ask(chat, "Where?")
    assert (len(chat.turns), trace.turn) == (1, 0)


@pytest.mark.parametrize("failing", [1, 2, 3, 4, 5])
def test_a_turn_that_fails_leaves_the_chat_as_it_was(failing: int):
    """A pass breaks off between two layers, so that the cache is torn."""
    chat = Chat(models.pair("mixed"))
    ask(chat, "What?", (0,))
    before = chat.turns
    with failing_pass(chat, failing):
        chat.ask("Where?", models.picture(1), ALONE)
    assert chat.turns == before
    ask(chat, "Where?", (1,))


def test_a_chat_that_overflows_is_refused_before_any_computing_with_numbers_and_a_way_out():
    chat = Chat(models.pair("mixed"))
    ask(chat, "What? " * 80)
    seen: list[int] = []
    tower = chat._pair.target.model.vision_tower.register_forward_pre_hook(lambda *_: seen.append(1))
    asked = [*chat.messages, {"role": "user", "content": "Why? " * 20}]
    length, context = chat._pair.prompt(models.picture(0), asked).length, chat._pair.context
    seen.clear()
    with columns_of(chat._pair.target) as passes:
        line = complaint(lambda: chat.ask("Why? " * 20, models.picture(0), replace(SHORT, max_new_tokens=900)))
        far = complaint(lambda: chat.ask("Why? " * 900, models.picture(0), SHORT))
        near = complaint(lambda: chat.ask("Why? " * 900, None, SHORT, 0))
    tower.remove()
    assert line.startswith(f"{length} prompt tokens and 900 new ones do not fit the context of {context}: shorten")
    assert line.endswith(f"or edit an earlier turn or begin a new chat, or ask for {context - length} at most")
    assert far.endswith("or edit an earlier turn or begin a new chat")
    assert near.endswith("shorten the prompt")
    assert (passes, seen, len(chat.turns)) == ([], [], 1)
    ask(chat, "Why?")


def test_other_refusals_leave_the_chat_as_it_was():
    chat = Chat(models.pair("mixed"))
    for begin in (lambda: chat.ask("Hi", turn=0), lambda: chat.race("Hi", None, SHORT, 0)):
        assert complaint(begin) == "there is no turn 0 to edit: the chat has 0, counted from 0"
    assert complaint(lambda: chat.ask(" ")) == "the prompt is empty"
    assert "no image file" in complaint(lambda: chat.ask("Hi", "nowhere.png"))
    assert chat.turns == ()


@pytest.mark.parametrize("answer", ["", "an <image> <image>", "the end</s> <s>"])
def test_an_answer_without_words_or_with_a_special_token_can_be_read_back(answer: str, monkeypatch: pytest.MonkeyPatch):
    chat = Chat(models.pair("mixed"))
    with monkeypatch.context() as patched:
        patched.setattr(Detokenizer, "decode", lambda self, ids: answer)
        chat.ask("What?", models.picture(0), SHORT)
    assert chat.turns[0].answer == answer
    prompts = []
    with monkeypatch.context() as patched:
        real = PromptBuilder.build
        patched.setattr(PromptBuilder, "build", lambda *given: prompts.append(real(*given)) or prompts[-1])
        ask(chat, "Where?")
    tokenizer, ids = models.processor().tokenizer, prompts[0].input_ids[0].tolist()
    counts = [ids.count(tokenizer.convert_tokens_to_ids(token)) for token in ("<image>", "<s>", "</s>")]
    assert counts == [models.RECIPE.image_tokens, 1, 1]  # those that the template writes


# ---------------------------------------------------------------------------------------------- the record


def test_tau_of_each_turn_can_be_read_off_the_traces():
    traces: list[DecodeTrace] = []
    for seed in range(2):
        chat = Chat(talker())
        traces += [chat.ask(text, models.picture(seed) if not chat.turns else None, SHORT) for text in QUESTIONS]
    for turn in range(3):
        of_turn = [trace for trace in traces if trace.turn == turn]
        assert len(of_turn) == 2
        assert summarise(of_turn).tau > 1.5  # the draft is the target, in later turns too
    assert all(DecodeTrace.from_json(trace.to_json()) == trace for trace in traces)


def test_traces_from_before_there_were_chats_are_read():
    trace = models.decode(models.pair("mixed"), models.prompt(0), SHORT)
    document = json.loads(trace.to_json())
    assert (document.pop("turn"), document["prefill"].pop("reused_tokens")) == (0, 0)
    assert DecodeTrace.from_json(json.dumps(document)) == trace
