"""Caches outlive an answer: what they hold is not read again, and nothing is taken for what it is not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import models
from support.chats import ALONE, QUESTIONS, SHORT, Shown, ask, check_last, columns_of, common, prompt_of, talker
from test_bad_input import complaint

from specllava.chat import Chat
from specllava.core.trace import Prefill
from specllava.runtime.engine import Engine
from specllava.runtime.kv_caches import KVCaches
from specllava.runtime.passes import PassInput


def test_first_turns_and_plain_runs_are_the_same():
    pair, prompt = models.pair("mixed"), models.prompt(0)
    plain, again = list(models.events(pair, prompt, SHORT)), list(models.events(pair, prompt, SHORT))
    first = list(models.events(pair, prompt, SHORT, KVCaches()))
    assert isinstance(plain[0], Prefill)
    assert plain[0].reused_tokens == first[0].reused_tokens == again[0].reused_tokens == 0
    for events in (again, first):
        assert [replace(e, seconds=None) for e in events[1:]] == [replace(e, seconds=None) for e in plain[1:]]
        assert events[0].first_margin == plain[0].first_margin


@given(st.integers(0, 200), st.integers(0, 200), st.sampled_from([(), (0,), (1,), (0, 1), (1, 0), (0, 0)]))
@settings(max_examples=15)
@torch.inference_mode()
def test_reading_the_rest_is_reading_the_whole(length: int, other: int, shown: Shown):
    """Logits and caches, after cuts anywhere: in the text, in front of a picture, before the last token."""
    pair = models.pair(None)
    text = "the cat sat on a red mat in the sun and " * 5
    first = prompt_of(pair, (0, 1), text[: length + 1] + "!")
    second = prompt_of(pair, shown, text[: other + 1])
    used, fresh = Engine(pair.target, 400), Engine(pair.target, 400)
    used.prefill(first.input_ids, first.features, first.image_keys)
    used.forward(PassInput([5, 6, 7]))
    reading = used.prefill(second.input_ids, second.features, second.image_keys)
    whole = fresh.prefill(second.input_ids, second.features, second.image_keys)
    model = pair.target(input_ids=second.input_ids, **second.image_inputs, use_cache=False).logits[0, -1]
    torch.testing.assert_close(reading.logits, whole.logits, rtol=0, atol=1e-9)
    torch.testing.assert_close(reading.logits, model, rtol=0, atol=1e-9)
    assert (whole.reused, used.cache.length, used.cache.contents) == (0, second.length, fresh.cache.contents)
    for one, same in zip(used.cache.layers, fresh.cache.layers, strict=True):
        for name in ("keys", "values"):
            held, wanted = (getattr(each, name)[:, :, : second.length] for each in (one, same))
            torch.testing.assert_close(held, wanted, rtol=0, atol=1e-9)
    slots = (second.input_ids[0, : reading.reused] == pair.target.config.image_token_id).sum()
    assert slots % models.RECIPE.image_tokens == 0
    assert reading.reused <= second.length - 1


@torch.inference_mode()
def test_a_prompt_that_is_held_whole_needs_one_column_and_one_that_ends_in_a_picture_the_picture():
    pair, prompt = models.pair(None), models.prompt(0)
    engine, fresh = Engine(pair.target, 200), Engine(pair.target, 200)
    slots = (prompt.input_ids[0] == pair.target.config.image_token_id).nonzero().flatten().tolist()
    assert [
        engine.prefill(ids, prompt.features, prompt.image_keys).reused
        for ids in (prompt.input_ids, prompt.input_ids, prompt.input_ids[:, : slots[-1] + 1])
    ] == [0, prompt.length - 1, slots[0]]
    nameless = [fresh.prefill(prompt.input_ids, prompt.features).reused for _ in range(2)]
    assert nameless == [0, slots[0]]


def test_only_new_tokens_are_read_and_each_picture_is_encoded_once():
    pair, encoded = talker(), []
    chat, branching = Chat(pair), replace(SHORT, entropy_threshold=0.0, nodes=12)
    tower = pair.target.model.vision_tower.register_forward_pre_hook(lambda m, inputs: encoded.append(len(inputs[0])))
    held = draft_held = 0
    try:
        for text, shown in (("What?", (0, 0)), ("Where?", ()), ("This?", (1, 0))):
            with columns_of(pair.target) as passes, columns_of(pair.draft) as drafted:
                trace = chat.ask(text, [models.picture(seed) for seed in shown], branching)
            prefill = trace.prefill
            assert prefill.reused_tokens == held  # all of the last prompt and its answer
            assert passes[0] == prefill.prompt_tokens - held
            assert passes[1:] == [len(step.tree) for step in trace.steps]
            paths = [step.verification.path for step in trace.steps]
            assert any(path != tuple(range(len(path))) for path in paths)  # branches that had to be moved
            # the draft may lack the columns of a last tree's leaves
            assert draft_held - SHORT.depth <= prefill.prompt_tokens - drafted[0] <= draft_held
            held = draft_held = prefill.prompt_tokens + len(trace.token_ids) - 1  # the last token is in no cache
    finally:
        tower.remove()
    assert encoded == [1, 1]


@pytest.mark.parametrize("turn", [0, 1, 2])
def test_editing_a_turn_drops_what_came_after_and_cuts_the_cache_where_the_texts_part(turn: int):
    chat = Chat(models.pair("mixed"))
    traces = [ask(chat, text, shown, ALONE) for text, shown in zip(QUESTIONS, ((0,), (1,), ()), strict=True)]
    before = chat.turns
    prompts = [chat._pair.prompt(None, chat.messages[: 2 * n + 1]).input_ids[0].tolist() for n in range(3)]
    with columns_of(chat._pair.target) as passes:
        edited = chat.ask("Why is that?", None, ALONE, turn)
    check_last(chat)
    assert chat.turns[:turn] == before[:turn]
    assert (len(chat.turns), chat.turns[turn].text) == (turn + 1, "Why is that?")
    assert chat.turns[turn].media == before[turn].media
    wanted = chat._pair.prompt(None, chat.messages[: 2 * turn + 1]).input_ids[0].tolist()
    held = [*prompts[2], *traces[2].token_ids[:-1]]
    assert edited.prefill.reused_tokens == common(held, wanted[:-1]) > 0
    assert sum(passes) == edited.prefill.prompt_tokens - edited.prefill.reused_tokens + len(edited.token_ids) - 1
    ask(chat, "Thanks.")


@pytest.mark.parametrize("shown", [((0,), (1,)), ((0, 1), (0, 2)), ((0, 1), (1, 0)), ((0,), (0, 1))])
def test_the_same_words_about_another_picture_do_not_reuse_the_old_one(shown: tuple[Shown, Shown]):
    pair, memory = models.pair("perfect"), KVCaches()
    prompts = [prompt_of(pair, pictures) for pictures in shown]
    runs = [pair.collect(models.Lane("x", SHORT, p), models.events(pair, p, SHORT, memory)) for p in prompts]
    marker = (prompts[1].input_ids[0] == pair.target.config.image_token_id).nonzero().flatten().tolist()
    same = common(list(shown[0]), list(shown[1]))
    assert runs[1].prefill.reused_tokens == marker[same * models.RECIPE.image_tokens]
    assert runs[1].token_ids == models.decode(pair, prompts[1], ALONE).token_ids


def test_a_memory_serves_one_answer_at_a_time():
    pair, memory, prompt = models.pair("mixed"), KVCaches(), models.prompt(0)
    one = models.events(pair, prompt, SHORT, memory)
    next(one)
    assert "serve another answer" in complaint(lambda: next(models.events(pair, prompt, SHORT, memory)))
    one.close()
    assert next(models.events(pair, prompt, SHORT, memory)).reused_tokens == prompt.length - 1


def test_what_an_answer_that_fails_has_read_is_forgotten(monkeypatch: pytest.MonkeyPatch):
    """It may fail where the cache holds a whole tree, whose columns are no text."""
    pair, memory, prompt = models.pair("mixed"), KVCaches(), models.prompt(0)
    with monkeypatch.context() as patched:
        patched.setattr("specllava.verification.verifier.verify_greedy", None)
        with pytest.raises(TypeError):
            list(models.events(pair, prompt, SHORT, memory))
    assert next(models.events(pair, prompt, SHORT, memory)).reused_tokens == 0


def test_larger_trees_get_larger_caches_and_nothing_is_read_anew():
    pair, memory, prompt = models.pair("mixed"), KVCaches(), models.prompt(0)
    larger = replace(SHORT, nodes=40)
    reused = [next(models.events(pair, prompt, c, memory)).reused_tokens for c in (SHORT, SHORT, larger, larger, SHORT)]
    assert reused == [0, *[prompt.length - 1] * 4]
    assert memory.engine(pair.target, 0, (), 1).cache.capacity == pair.context + larger.nodes + 1
