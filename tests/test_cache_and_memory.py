"""KV caches hold what decoding one token after the other would have left, however little of it is read anew.

Oracles: whole passes of transformers' own modules, and a fresh pair that reads the whole dialogue.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import cycle, islice
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import chats, models
from support.cases import complaint, sample
from support.chats import ALONE, QUESTIONS, SHORT, Shown, ask, check_last, columns_of, common
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from benchmarks.identity import FORMATS, Runner
from specllava.chat import Chat, Turn
from specllava.config import DRAFTER_CHOICES, DecodingConfig
from specllava.engine import cuda_graphs
from specllava.engine.decoders import Batch, prompt_entries
from specllava.engine.engine import Engine
from specllava.engine.pool import KVCaches
from specllava.models.options import PassesName
from specllava.models.tokens import Detokenizer
from specllava.pair import Pair
from specllava.prompt import Prompt, PromptBuilder
from specllava.spec_decode.loop import Lane, Request
from specllava.spec_decode.rejection_sampler import RejectionSampler
from specllava.trace import DecodeTrace
from specllava.tree import DraftTree

CAPACITY = 96
LAYERS = (-1, 0, 2, 1)  # out of order; the last one is normed
SIZES: dict[str, Any] = {
    "vocab_size": models.RECIPE.vocabulary, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": CAPACITY,
}  # fmt: skip
DECODERS = {"llama": (LlamaForCausalLM, LlamaConfig), "qwen2": (Qwen2ForCausalLM, Qwen2Config)}
TEXT = tuple(range(3, 14))
random_pairs = cache(Runner)  # by their precision
BEAM = DecodingConfig(rule="topk", width=3, depth=4, nodes=9, max_new_tokens=14)


def decoder(kind: str, seed: int) -> PreTrainedModel:
    build, config = DECODERS[kind]
    model = models.seeded(build, config(**SIZES), seed).double().eval()
    for name, weight in model.named_parameters():
        if weight.dim() == 1 and "norm" in name:
            weight.data *= torch.linspace(0.5, 2.0, len(weight))  # a gain that tells normed states from others
    return model


def close(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)


def cached(engine: Engine, count: int | None = None) -> list[Tensor]:
    """Keys and values of the first slots, by slab; of all that are in use without a number."""
    shown = engine.cache.length if count is None else count
    return [slab[..., :shown, :] for slab in engine.cache.slabs]


# ------------------------------------------------------------------------------------------------ slots


@given(seed=st.integers(0, 10_000), kind=st.sampled_from(tuple(DECODERS)), data=st.data())
@settings(max_examples=15)
@torch.inference_mode()
def test_a_committed_branch_leaves_what_its_tokens_alone_would_have_left(seed: int, kind: str, data: st.DataObject):
    """Over several steps: each tree stands on what the step before has kept, and storage never moves."""
    engine, alone = (Engine.of(decoder(kind, 0), CAPACITY, LAYERS) for _ in range(2))
    for one in (engine, alone):
        one.prefill(torch.tensor([TEXT]), None)
    storage = [slab.data_ptr() for slab in engine.cache.slabs]
    for number in range(3):
        tree, base = models.random_tree(seed + number), engine.cache.length
        path = tree.path(data.draw(st.integers(0, len(tree) - 1)))
        engine.forward(Batch.of_tree(tree, base))
        states = engine.commit(base, path)
        for node in path:
            alone.forward(Batch([tree.tokens[node]]))
        close(states, alone.cache.states_from(base))
    assert storage == [slab.data_ptr() for slab in engine.cache.slabs]
    assert (engine.cache.labels, engine.cache.positions) == (alone.cache.labels, alone.cache.positions)
    close((cached(engine), engine.cache.states_from(0)), (cached(alone), alone.cache.states_from(0)))


# ------------------------------------------------------------------------------------------------ prompts


@torch.inference_mode()
def test_a_cached_prompt_needs_one_slot_and_one_that_ends_in_a_picture_the_picture():
    pair, prompt = models.pair(None), models.prompt(0)
    engine, fresh = Engine.of(pair.target, 200), Engine.of(pair.target, 200)
    slots = (prompt.input_ids[0] == pair.target.config.image_token_id).nonzero().flatten().tolist()
    assert [
        engine.prefill(ids, prompt.features, prompt.image_keys).reused
        for ids in (prompt.input_ids, prompt.input_ids, prompt.input_ids[:, : slots[-1] + 1])
    ] == [0, prompt.length - 1, slots[0]]
    nameless = [fresh.prefill(prompt.input_ids, prompt.features).reused for _ in range(2)]
    assert nameless == [0, slots[0]]


@pytest.mark.parametrize("shown", [((0,), (1,)), ((0, 1), (0, 2)), ((0, 1), (1, 0)), ((0,), (0, 1))])
def test_the_same_words_about_another_picture_do_not_reuse_the_old_one(shown: tuple[Shown, Shown]):
    pair = models.pair("perfect")
    caches = KVCaches(pair.engines)
    prompts = [pair.prompt([models.picture(seed) for seed in seeds], "What?") for seeds in shown]
    lanes = [Lane("x", SHORT, prompt) for prompt in prompts]
    first, second = (models.collected(pair, lane, models.events(pair, lane.prompt, SHORT, caches)) for lane in lanes)
    marker = (prompts[1].input_ids[0] == pair.target.config.image_token_id).nonzero().flatten().tolist()
    same = common(list(shown[0]), list(shown[1]))
    assert first.prefill.reused_tokens == 0
    assert second.prefill.reused_tokens == marker[same * models.RECIPE.image_tokens]
    assert second.token_ids == models.decode(pair, prompts[1], ALONE).token_ids


def test_caches_serve_one_answer_at_a_time_grow_for_larger_trees_and_forget_what_failed(monkeypatch):
    pair, prompt, larger = models.pair("mixed"), models.prompt(0), replace(SHORT, nodes=40)
    caches = KVCaches(pair.engines)
    one = models.events(pair, prompt, SHORT, caches)
    assert next(one).reused_tokens == 0
    assert "serve another answer" in complaint(lambda: next(models.events(pair, prompt, SHORT, caches)))
    one.close()
    for config in (SHORT, larger, larger, SHORT):
        assert next(models.events(pair, prompt, config, caches)).reused_tokens == prompt.length - 1
    assert caches.target(0).cache.capacity == pair.context + larger.nodes + 1
    plain = RejectionSampler.verify

    def torn(sampler: RejectionSampler, tree: DraftTree, *rest: Any) -> Any:
        if len(tree) > 1:  # the cache holds a whole tree, whose slots are no text
            raise TypeError("torn")
        return plain(sampler, tree, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(RejectionSampler, "verify", torn)
        with pytest.raises(TypeError, match="torn"):
            list(models.events(pair, prompt, SHORT, caches))
    assert next(models.events(pair, prompt, SHORT, caches)).reused_tokens == 0


# ------------------------------------------------------------------------------------------------ chats


def race(chat: Chat, text: str, shown: Shown = (), config: DecodingConfig = SHORT) -> Turn:
    """One turn as a race; both lanes give what the target alone gives of the whole dialogue, read anew."""
    for _ in chat.race(text, [models.picture(seed) for seed in shown], config):
        pass
    check_last(chat)
    last = chat.turns[-1]
    assert (last.alone is None) == (config.drafter == "none")
    if last.alone is not None:
        assert last.alone.token_ids == last.trace.token_ids
        assert last.alone.prefill.prompt_tokens == last.trace.prefill.prompt_tokens
    return last


def slot_labels(pair: Pair, prompt: Prompt) -> list[Any]:
    """What slots hold once a prompt was read, worked out without the engine: tokens, and pictures' keys."""
    marker, keys = pair.target.config.image_token_id, list(prompt.image_keys)
    each = int((prompt.input_ids == marker).sum()) // max(1, len(keys))
    slots = [key for key in keys for _ in range(each)]
    return [slots.pop(0) if token == marker else token for token in prompt.input_ids[0].tolist()]


SHOWN, DRAFTERS = st.sampled_from([(), (0,), (1,), (0, 1)]), st.sampled_from(tuple(DRAFTER_CHOICES))
TURNS = st.lists(st.tuples(st.sampled_from(QUESTIONS), SHOWN, DRAFTERS, st.booleans()), min_size=2, max_size=3)


@given(st.sampled_from(models.SEEDS), st.sampled_from(models.KINDS), TURNS, st.lists(models.configs(), min_size=3))
@settings(max_examples=14)
def test_every_turn_gives_what_the_target_alone_gives_of_the_whole_dialogue(seed, kind, turns, configs):
    """As a race or in one lane, with other trees and drafters in every turn, so that caches grow in between."""
    chat = Chat(models.pair(kind, seed))
    for (text, shown, drafter, raced), config in zip(turns, configs, strict=False):
        config = replace(config, drafter=drafter, max_new_tokens=min(10, config.max_new_tokens))
        (race if raced else ask)(chat, text, shown, config)


def test_only_new_tokens_are_read_and_each_picture_is_encoded_once():
    pair, encoded = chats.talker(), list[int]()
    chat, branching = Chat(pair), replace(SHORT, entropy_threshold=0.0, nodes=12)
    tower = pair.target.model.vision_tower.register_forward_pre_hook(lambda m, inputs: encoded.append(len(inputs[0])))
    read = 0
    try:
        for text, shown in (("What?", (0, 0)), ("Where?", ()), ("This?", (1, 0))):
            with columns_of(pair.target) as passes, columns_of(pair.draft) as drafted:
                trace = chat.ask(text, [models.picture(seed) for seed in shown], branching)
            prefill, paths = trace.prefill, [step.verification.path for step in trace.steps]
            assert prefill.reused_tokens == read  # all of the last prompt and its answer
            assert passes == [prefill.prompt_tokens - read, *(len(step.tree) for step in trace.steps)]
            assert any(path != tuple(range(len(path))) for path in paths)  # branches that had to be moved
            # the draft may lack the slots of a last tree's leaves
            assert read - SHORT.depth <= prefill.prompt_tokens - drafted[0] <= read
            read = prefill.prompt_tokens + len(trace.token_ids) - 1  # the last token is in no cache
    finally:
        tower.remove()
    assert encoded == [1, 1]


@pytest.mark.parametrize("dropped", [0, 1, 2])
def test_both_lanes_reuse_the_common_prefix_of_their_cache_and_the_prompt_of_other_turns_too(dropped: int):
    """Turns whose text differs from what is in the cache, from turn ``dropped`` on."""
    chat, labels = Chat(chats.talker()), list[Any]()
    for number, text in (*enumerate(QUESTIONS), (dropped, "Why is that?"), (dropped + 1, "Thanks.")):
        chat.turns = before = chat.turns[:number]
        turn = race(chat, text, (dropped,) if number == 0 else (dropped + 1,) if number == dropped else ())
        assert chat.turns == (*before, turn)
        wanted = slot_labels(chat._pair, chat._pair.prompt(None, chat.messages[: 2 * number + 1]))
        reused = common(labels, wanted[:-1])
        assert turn.alone.prefill.reused_tokens == turn.trace.prefill.reused_tokens == reused
        assert (reused > 0) == (len(labels) > 0)
        labels = [*wanted, *turn.trace.token_ids[:-1]]  # the last token is the next root: no slot yet


def test_a_chat_that_was_forgotten_or_saved_goes_on_with_the_same_tokens_and_reuses_nothing():
    chat, dropped = Chat(models.pair("mixed")), Chat(models.pair("mixed"))
    for number, text in enumerate(QUESTIONS):
        one, other = (race(each, text, (0,) if number == 0 else ()) for each in (chat, dropped))
        assert one.trace.token_ids == other.trace.token_ids and other.trace.prefill.reused_tokens == 0
        assert dropped._caches._engines and dropped._beside._engines
        dropped.forget()
        assert not (dropped._caches._engines or dropped._beside._engines)
    resumed = Chat(models.pair("mixed"), chat.turns)
    one, other = (race(each, "Why?") for each in (chat, resumed))
    assert one.trace.token_ids == other.trace.token_ids and other.trace.prefill.reused_tokens == 0


@pytest.mark.parametrize("how", ["closed", "left", "raced"])
def test_a_stopped_turn_is_kept_as_far_as_it_got(how: str):
    """Closed, or left alone until the next question; a race once both lanes have begun."""
    for count in (0, 1, 2, 5):
        chat = Chat(models.pair("mixed"))
        ask(chat, "What?", (0,))
        begin = chat.race if how == "raced" else chat.stream
        answer = begin("Where?", models.picture(1), replace(SHORT, max_new_tokens=30))
        events = list(islice(answer, count))
        if how != "left":
            answer.close()
        race(chat, "And now?")
        kept = chat.turns[1:-1]
        assert [turn.text for turn in kept] == ["Where?"] * (count >= (2 if how == "raced" else 1))
        for turn in kept:
            lanes = [lane for lane in (turn.alone, turn.trace) if lane is not None]
            assert len(lanes) == 1 + (how == "raced") and "stopped" in {lane.finish_reason for lane in lanes}
            items = [item for lane in lanes for item in (lane.prefill, *lane.steps)]
            assert len(items) == count and (how == "raced" or items == events)


@pytest.mark.parametrize("raced", [False, True])
def test_a_turn_that_fails_leaves_the_chat_as_it_was(raced: bool):
    """A pass of either lane breaks off between two layers, so that its cache is torn."""
    for failing in (1, 2, 4):
        chat = Chat(models.pair("mixed"))
        race(chat, "What?", (0,))
        before = chat.turns
        with chats.failing_pass(chat, failing):
            list(chat.race("Where?", None, SHORT)) if raced else chat.ask("Where?", models.picture(1), ALONE)
        assert chat.turns == before
        race(chat, "Where?", (1,))


def test_what_a_chat_refuses_costs_a_line_with_a_way_out_and_no_computing():
    chat, seen = Chat(models.pair("mixed")), list[int]()
    ask(chat, "What? " * 80)
    tower = chat._pair.target.model.vision_tower.register_forward_pre_hook(lambda *_: seen.append(1))
    with columns_of(chat._pair.target) as passes:
        assert "or begin a new chat" in complaint(lambda: chat.ask("Why? " * 900, models.picture(0), SHORT))
        assert complaint(lambda: chat.ask(" ")) == "the prompt is empty"
        assert "no image file" in complaint(lambda: chat.ask("Hi", "nowhere.png"))
    tower.remove()
    assert (passes, seen, len(chat.turns)) == ([], [], 1)
    ask(chat, "Why?")


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


@pytest.mark.parametrize(("step", "passes"), [(64, "eager"), (64, "padded"), (4096, "eager")])
def test_caches_grow_with_the_chat_and_keep_what_was_read(step: int, passes: PassesName, monkeypatch):
    """In steps, so that a short chat does not take the memory of the whole context."""
    monkeypatch.setattr("specllava.pair.CHAT_TOKENS", step)
    monkeypatch.setattr(cuda_graphs, "WINDOW", 64)
    chat, sizes = Chat(replace(models.pair("mixed"), passes=passes)), list[int]()
    for number in range(4):
        turn = race(chat, "Where? " * 12, (0,) if number == 0 else ())
        engines = [*chat._caches._engines.values(), *chat._beside._engines.values()]
        sizes.append(sum(engine.cache.capacity for engine in engines))
        assert (turn.trace.prefill.reused_tokens > 0) == (number > 0)
        assert chat._caches.target(1).cache.capacity <= chat._pair.context + SHORT.nodes + 1
    assert sizes == sorted(sizes) and (sizes[0] < sizes[-1]) == (step < chat._pair.context)


# ------------------------------------------------------------------------------------------------ states


def with_answer(prompt: Prompt, emitted: list[int]) -> Prompt:
    """The prompt with the beginning of its answer."""
    draft = None if prompt.draft_prompt is None else with_answer(prompt.draft_prompt, emitted)
    ids = torch.cat([prompt.input_ids, torch.tensor([emitted])], dim=1)
    return replace(prompt, input_ids=ids, draft_prompt=draft)


@torch.inference_mode()
def read_anew(pair: Pair, prompt: Prompt, emitted: list[int]) -> Engine:
    """A new cache of an EAGLE head that reads a prompt and tokens after it, with the states of one target pass."""
    whole = with_answer(prompt, emitted)
    target = Engine.of(pair.target, 512, tuple(pair.draft.config.state_layers))
    states = target.prefill(whole.input_ids, whole.features, whole.image_keys).states
    engine = Engine.of(pair.draft, 512)
    engine.prefill_entries(*prompt_entries(pair.draft, pair.target, whole, states))
    return engine


@contextmanager
def shapes_of_trees() -> Iterator[list[Any]]:
    """Guesses of every tree that is proposed; log-probabilities may differ in their last bits."""
    shapes, plain = list[Any](), Request.propose

    def noting(self: Request) -> DraftTree:
        tree = plain(self)
        shapes.append((tree.tokens, tree.parents))
        return tree

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Request, "propose", noting)
        yield shapes


def goes_on(chat: Chat, number: int, shown: Shown = ()) -> DecodeTrace:
    """Ask a question; trees and tokens are those of a pair that reads the whole dialogue anew."""
    with shapes_of_trees() as going:
        trace = chat.ask(QUESTIONS[number], [models.picture(seed) for seed in shown], BEAM)
    asked = chat.messages[: 2 * len(chat.turns) - 1]
    with shapes_of_trees() as fresh:
        alone = chat._pair.generate(None, asked, BEAM)
    assert alone.token_ids == trace.token_ids and going == fresh
    return trace


@pytest.mark.parametrize("name", sample([name for name in FORMATS if name != "eagle, gated"], 3))  # its gate reads more
def test_true_states_replace_guessed_ones_after_every_step(name: str):
    """What the cache holds after a step is what reading the accepted text from its beginning leaves."""
    accepted = 0
    for seed in range(2):
        pair = random_pairs(torch.float64).pair(seed, name)
        prompt = pair.prompt(models.picture(seed) if seed else None, QUESTIONS[seed])
        request = pair.request(Lane.of(BEAM, prompt))
        request.prefill()
        while request.finished is None:
            request.propose()
            accepted += len(request.verify().verification.accepted)
            engine, wanted = request.drafter._engine, read_anew(pair, prompt, request.emitted[:-1])
            # the last accepted tokens are read together with the next root
            assert engine.cache.length + len(request.drafter._unread) == wanted.cache.length
            assert engine.position_offset == wanted.position_offset
            close(cached(engine), cached(wanted, engine.cache.length))
    assert accepted > 0


@pytest.mark.parametrize(("name", "step"), zip(sample(tuple(FORMATS), 4), cycle((64, 1024))))  # grows, or never
def test_a_turn_that_goes_on_drafts_what_reading_everything_anew_drafts(name: str, step: int, monkeypatch):
    """Pictures in two turns, then a stopped answer; the draft's cache keeps what both prompts begin with."""
    monkeypatch.setattr("specllava.pair.CHAT_TOKENS", step)
    pair = random_pairs(torch.float64).pair(1, name)
    chat, engines = Chat(pair), set[Engine]()
    for turn in range(3):
        with columns_of(pair.target) as passes:
            trace = goes_on(chat, turn, (turn,) if turn < 2 else ())
        assert (trace.prefill.reused_tokens > 0) == (turn > 0)
        assert passes[0] == trace.prefill.prompt_tokens - trace.prefill.reused_tokens
        engines.add(chat._caches.draft(0))
    assert (len(engines) > 1) == (step == 64)
    answer = chat.stream("Why?", None, BEAM)
    list(islice(answer, 3))
    answer.close()
    goes_on(chat, 2)


@pytest.mark.parametrize(("name", "other"), [("eagle", "none"), ("vispec", "prompt-lookup"), ("eagle3", "none")])
def test_a_turn_without_states_computes_none_and_the_next_reads_what_they_lack(name: str, other: str):
    """Engines with states are apart from those without."""
    pair = random_pairs(torch.float64).pair(2, name)
    chat, asked = Chat(pair), list[bool]()
    first = goes_on(chat, 0, (0,))
    hook = pair.target.get_decoder().register_forward_pre_hook(
        lambda _, __, given: asked.append(bool(given.get("output_hidden_states"))), with_kwargs=True
    )
    chat.ask(QUESTIONS[1], None, replace(BEAM, drafter=other))
    hook.remove()
    assert asked and not any(asked) and chat._caches.target(0).cache.states is None
    last = goes_on(chat, 2)
    with_states, prompt = chat._caches.target(0, pair.draft.config.state_layers), pair.prompt(None, chat.messages[:5])
    assert 0 < last.prefill.reused_tokens < first.prefill.prompt_tokens + len(first.token_ids)
    assert with_states.cache.labels[: prompt.length] == slot_labels(pair, prompt)


def test_a_chat_counts_earlier_turns_as_generate_does():
    pair = models.pair("mixed")
    pair.target.generation_config.update(repetition_penalty=1.4, min_new_tokens=5)
    chat = Chat(pair)
    for question in ("What is it?", "Where is it?"):
        trace = chat.ask(question, config=DecodingConfig(rule="topk", max_new_tokens=20))
        ids = pair.prompt(None, chat.messages[:-1]).input_ids
        mask = torch.ones_like(ids)
        whole = pair.target.generate(input_ids=ids, attention_mask=mask, do_sample=False, max_new_tokens=20)
        assert list(trace.token_ids) == whole[0, ids.shape[1] :].tolist()
