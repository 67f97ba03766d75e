"""What a checkpoint's generation_config.json asks for is followed as transformers' ``generate`` follows it.

``generate`` is the reference throughout: greedy answers token by token, sampled ones by the probabilities of all
continuations, for which ``torch.multinomial`` goes every way once.
"""

from __future__ import annotations

import copy
import json
import random
from dataclasses import replace
from functools import cache
from typing import Any
from unittest.mock import patch

import pytest
import torch
from support import models
from support.amount import sample
from support.chances import outcomes
from torch import Tensor

from benchmarks.identity import DRAFTERS, count
from benchmarks.shared.random_settings import GREEDY, SAMPLED, random_settings
from benchmarks.transformers_lanes import TRANSFORMERS_LANES, transformers_lane
from specllava.chat import Chat
from specllava.core.config import DecodingConfig
from specllava.core.trace import MAX_SETTINGS, DecodeTrace
from specllava.drafters.top_tokens import Drawing, top_tokens
from specllava.lane import Lane
from specllava.pair import Pair
from specllava.verification import answer_settings
from specllava.verification.answer_settings import APPLIED, OF_SAMPLING, REFUSED, warpers
from specllava.verification.sampling import RandomSource, SeededRandom, warp

LONG = 20
ALONE = DecodingConfig(drafter="none", max_new_tokens=LONG)
TREES = {
    "entropy": DecodingConfig(max_new_tokens=LONG, min_log_prob=-50.0, entropy_threshold=0.5),
    "topk": DecodingConfig(rule="topk", width=3, nodes=12, depth=5, max_new_tokens=LONG),
    "lookup": DecodingConfig(drafter="prompt-lookup", ngram=1, max_new_tokens=LONG),
}
# The plain answer begins 267, 30, 134, 30, 140, 134, 268, 116, 261, 267, 134, 30.
CHANGING: dict[str, Any] = {
    "sequence_bias": [[[30], -9.0], [[267, 30, 140], 9.0]],
    "encoder_repetition_penalty": 1.5,
    "repetition_penalty": 1.3,
    "no_repeat_ngram_size": 1,
    "encoder_no_repeat_ngram_size": 1,
    "bad_words_ids": [[140], [267, 30]],
    "min_length": 1000,
    "min_new_tokens": 12,
    "forced_eos_token_id": [5, 9],
    "exponential_decay_length_penalty": [2, 1.5],
    "suppress_tokens": [30, 140],
    "begin_suppress_tokens": [267],
    "stop_strings": ["a", "e", "o"],
}
UNCHANGING: dict[str, Any] = {"forced_bos_token_id": 7, "remove_invalid_values": True, "renormalize_logits": True}


def asking(settings: dict[str, Any], kind: models.DraftKind | None = "mixed", eos: int | None = None) -> Pair:
    """A pair whose target has settings of its own; an end token only where it is asked for."""
    pair = models.pair(kind, eos=eos)
    for name, value in settings.items():
        setattr(pair.target.generation_config, name, value)
    return pair


@torch.inference_mode()
def generated(pair: Pair, number: int = 0, limit: int = LONG) -> tuple[int, ...]:
    inputs = models.plain_inputs(number)
    whole = pair.target.generate(**inputs, do_sample=False, max_new_tokens=limit, tokenizer=pair.processor.tokenizer)
    return tuple(whole[0, inputs["input_ids"].shape[1] :].tolist())


@pytest.mark.parametrize("name", [*CHANGING, *UNCHANGING])
@pytest.mark.filterwarnings("ignore:Unfeasible length constraints")
def test_greedy_answers_are_those_of_generate_under_each_setting(name: str):
    value = (CHANGING | UNCHANGING)[name]
    eos = {"min_length": 116, "min_new_tokens": 116, "exponential_decay_length_penalty": 2}.get(name)
    pair = asking({name: value}, eos=eos)
    wanted, plain = generated(pair), generated(asking({}, eos=eos))
    assert (wanted != plain) == (name in CHANGING)
    prompt = models.prompt(0)
    assert models.decode(pair, prompt, ALONE).token_ids == wanted
    for config in TREES.values():
        assert models.decode(pair, prompt, config).token_ids == wanted


def test_every_setting_that_is_applied_was_tried():
    assert {*CHANGING, *UNCHANGING, *OF_SAMPLING} == {*APPLIED} == {*GREEDY, *SAMPLED}


@pytest.mark.parametrize("seed", sample(range(16), 6))
@pytest.mark.filterwarnings("ignore:Unfeasible length constraints")
def test_greedy_answers_are_those_of_generate_under_settings_drawn_at_random(seed: int):
    rng, chat = random.Random(seed), seed % len(models.CHATS)
    settings = random_settings(rng, models.RECIPE.vocabulary, LONG, sampled=False)
    pair = asking(settings, rng.choice(models.KINDS))
    wanted, prompt = generated(pair, chat), models.prompt(chat)
    assert models.decode(pair, prompt, ALONE).token_ids == wanted, settings
    for config in TREES.values():
        assert models.decode(pair, prompt, config).token_ids == wanted, settings


@pytest.mark.parametrize("seed", sample(range(6), 2))
@pytest.mark.filterwarnings("ignore:Unfeasible length constraints")
def test_a_seeds_answer_is_the_same_with_every_draft_under_settings_drawn_at_random(seed: int):
    rng, prompt = random.Random(100 + seed), models.prompt(seed % len(models.CHATS))
    settings = random_settings(rng, models.RECIPE.vocabulary, LONG, sampled=True)
    warm = {"temperature": 1.5, "seed": seed}
    wanted = models.decode(asking(settings, None), prompt, replace(ALONE, **warm)).token_ids
    for kind in models.KINDS:
        for config in TREES.values():
            assert models.decode(asking(settings, kind), prompt, replace(config, **warm)).token_ids == wanted, settings


@pytest.mark.night
def test_the_count_of_many_random_runs():
    """``python -m benchmarks.identity --settings``, in short: drafts of every format."""
    *_, rows = count(2 * len(DRAFTERS), torch.float64, seed=7, settings=True)
    assert all(row["runs"] == 2 and row["mismatches"] == row["ties"] == 0 for row in rows.values())
    assert sum(row["generated"] for row in rows.values()) > 10
    assert not any(row["unlike_generate"] for row in rows.values())


@pytest.mark.parametrize("name", ["repetition_penalty", "no_repeat_ngram_size", "suppress_tokens", "bad_words_ids"])
def test_a_draft_guesses_under_the_same_settings(name: str):
    """One that equals the target is right with every guess, as it is without any settings."""
    config = DecodingConfig(rule="chain", depth=4, min_log_prob=-50.0, max_new_tokens=LONG)
    pair = asking({name: CHANGING[name]}, "perfect")
    assert pair.generate(models.picture(0), models.messages(0), ALONE).token_ids == generated(pair)
    for step in models.decode(pair, models.prompt(0), config).steps[:-1]:
        assert len(step.verification.accepted) == step.tree.drafted == 4


# ------------------------------------------------------------------------------------------------- drawn answers

WARMTH, TOP_K, LENGTH = 3.0, 3, 3
CUTOFFS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "top-h": {"top_h": 0.15},
    "min-p": {"min_p": 0.55},
    "typical": {"typical_p": 0.5},
    "epsilon": {"epsilon_cutoff": 0.3},
    "eta": {"eta_cutoff": 0.45},
    "penalty": {"repetition_penalty": 1.5},
    "n-grams": {"no_repeat_ngram_size": 1, "min_p": 0.3},
    "banned": {"bad_words_ids": [[30], [267, 134]], "begin_suppress_tokens": [124]},
    "forced": {"forced_eos_token_id": [5, 9], "sequence_bias": [[[140], 4.0]], "renormalize_logits": True},
}
LANES: dict[str, dict[str, Any]] = {
    "target-only": {"drafter": "none"},
    "best": {"rule": "topk", "width": 2, "nodes": 4},
    "drawn": {"rule": "fixed", "branching": (2, 1), "children": "drawn"},
}


@torch.inference_mode()
def exact(pair: Pair) -> dict[tuple[int, ...], float]:
    """Every answer that ``generate`` may draw, with its probability."""
    inputs = models.plain_inputs(0)

    def drawn(chance: RandomSource) -> tuple[int, ...]:
        def every_way(probs: Tensor, num_samples: int) -> Tensor:
            sure = probs[0].double()
            return torch.tensor([[chance.draw(sure / sure.sum())]])

        with patch("torch.multinomial", every_way):
            whole = pair.target.generate(
                **inputs, do_sample=True, temperature=WARMTH, top_k=TOP_K, top_p=1.0, max_new_tokens=LENGTH
            )
        return tuple(whole[0, inputs["input_ids"].shape[1] :].tolist())

    return dict(outcomes(drawn))


@cache
def plainly() -> dict[tuple[int, ...], float]:
    return exact(asking({}))


def drawn_answers(pair: Pair, config: DecodingConfig) -> dict[tuple[int, ...], float]:
    """Every answer that a lane may draw, with its probability."""
    found: dict[tuple[int, ...], float] = {}
    prompt = models.prompt(0)

    def drawn(chance: RandomSource) -> tuple[int, ...]:
        with patch("specllava.decoding.SeededRandom", lambda seed: chance):
            return pair.run(Lane("x", config, prompt), record=False).token_ids

    for answer, weight in outcomes(drawn):
        found[answer] = found.get(answer, 0.0) + weight
    return found


@pytest.mark.parametrize("settings", sample(tuple(CUTOFFS), 3))
def test_drawn_answers_have_the_probabilities_of_generate(settings: str):
    """Exactly, but for float32, in which ``generate`` computes them."""
    pair = asking(CUTOFFS[settings])
    wanted = exact(pair)
    assert (wanted == plainly()) == (settings == "nothing") and len(wanted) > 1
    for lane in LANES.values():
        config = DecodingConfig(temperature=WARMTH, top_k=TOP_K, max_new_tokens=LENGTH, **lane)
        ours = drawn_answers(pair, config)
        assert ours.keys() == wanted.keys(), (settings, lane)
        assert sum(abs(ours[answer] - wanted[answer]) for answer in wanted) / 2 < 1e-5, (settings, lane)


@pytest.mark.parametrize("temperature", [5e-324, 1e-308, 1e-300, 1e-260, 1e-60])
def test_a_temperature_near_0_draws_the_likeliest_token(temperature: float):
    logits = torch.tensor([[3e38, 1.0, 2.9e38], [-3e38, -1e-44, -1.2e-44], [1.0, 1.0, 0.5]])
    wanted = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.5, 0.5, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(warp(logits, warpers(temperature)), wanted, rtol=0, atol=1e-3)
    greedy = models.decode(models.pair("mixed"), models.prompt(0), ALONE).token_ids
    for config in (ALONE, TREES["topk"]):
        cold = replace(config, temperature=temperature)
        assert models.decode(models.pair("mixed"), models.prompt(0), cold).token_ids == greedy


# ------------------------------------------------------------------------------------------------- ends of answers


@pytest.mark.parametrize("number", range(len(models.CHATS)))
def test_an_answer_ends_at_a_stop_string_wherever_it_is_completed(number: int):
    """Also in the middle of an accepted branch, and where only two tokens together spell it."""
    tokenizer = models.processor().tokenizer
    said = models.reference(number)[:LONG]
    texts = [tokenizer.decode(said[: end + 1]) for end in range(LONG)]
    found = 0
    for end in range(1, LONG):
        stop = texts[end][max(0, len(texts[end]) - 3) :]
        if not stop.strip() or "�" in stop:
            continue
        pair = asking({"stop_strings": [stop]}, "perfect")
        wanted = generated(pair, number)
        assert len(wanted) <= end + 1
        for config in (ALONE, *TREES.values()):
            trace = models.decode(pair, models.prompt(number), config)
            assert trace.token_ids == wanted and trace.finish_reason == "stop_string"
            assert DecodeTrace.from_json(trace.to_json()) == trace
            found += trace.steps[-1].bonus_unused
    assert found > 0


def test_an_end_token_comes_before_a_stop_string_and_that_before_the_limit():
    first = models.reference(0)[0]
    text = models.processor().tokenizer.decode([first])
    for eos, limit, reason in ((first, 1, "eos"), (None, 1, "stop_string")):
        pair, short = asking({"stop_strings": text}, eos=eos), replace(ALONE, max_new_tokens=limit)
        trace = models.decode(pair, models.prompt(0), short)
        assert (trace.token_ids, trace.finish_reason) == ((first,), reason)


def test_a_chat_counts_earlier_turns_as_generate_does():
    pair = asking({"repetition_penalty": 1.4, "min_new_tokens": 5})
    chat = Chat(pair)
    for question in ("What is it?", "Where is it?"):
        trace = chat.ask(question, config=TREES["topk"])
        ids = pair.prompt(None, chat.messages[:-1]).input_ids
        with torch.inference_mode():
            whole = pair.target.generate(
                input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=LONG
            )
        assert trace.token_ids == tuple(whole[0, ids.shape[1] :].tolist())


def test_numbers_that_are_none_are_removed_only_where_the_checkpoint_asks_for_it():
    broken = copy.deepcopy(models.pair("mixed").target)
    with torch.no_grad():
        broken.lm_head.weight[50] = float("nan")
        broken.lm_head.weight[51] = float("inf")
    pair = replace(models.pair("mixed"), target=broken)
    with pytest.raises(ValueError, match="logits are not numbers"):
        models.decode(pair, models.prompt(3), ALONE)
    broken.generation_config.remove_invalid_values = True
    wanted = generated(pair, 3, 8)
    for config in (ALONE, *TREES.values()):
        assert models.decode(pair, models.prompt(3), replace(config, max_new_tokens=8)).token_ids == wanted


def test_where_everything_is_forbidden_the_answer_is_still_that_of_generate():
    """And its file can be written and read."""
    pair = asking({"suppress_tokens": list(range(models.RECIPE.vocabulary))})
    trace = models.decode(pair, models.prompt(0), TREES["topk"])
    assert trace.token_ids == generated(pair)
    assert DecodeTrace.from_json(trace.to_json()) == trace
    for lane in LANES.values():
        with pytest.raises(ValueError, match=r"^generation_config.json forbids every next token.*$"):
            models.decode(pair, models.prompt(0), DecodingConfig(temperature=1.0, **lane))


def test_scores_that_overflow_are_those_of_generate():
    """An end token that is forbidden, or far below what float32 holds, grows by a share of that."""
    growing = {"exponential_decay_length_penalty": [0, 1.5]}
    for also in ({"no_repeat_ngram_size": 1}, {"remove_invalid_values": True, "bad_words_ids": [[134], [30, 134]]}):
        pair = asking(growing | also, "perfect", eos=134)
        wanted = generated(pair)
        for config in (ALONE, *TREES.values()):
            trace = models.decode(pair, models.prompt(0), config)
            assert trace.token_ids == wanted and DecodeTrace.from_json(trace.to_json()) == trace


def test_where_everything_is_forbidden_nothing_is_guessed():
    logits = torch.stack([torch.full((9,), -torch.inf), torch.zeros(9)])
    for guesses in (top_tokens(logits, 2), Drawing(warpers(1.0), SeededRandom(0))(logits, 2, (0, 1))):
        assert (guesses[0].tokens, guesses[0].entropy) == ([], 0.0)
    pair = asking({"bad_words_ids": [[30, token] for token in range(models.RECIPE.vocabulary)]}, "perfect")
    for config in TREES.values():
        trace = models.decode(pair, models.prompt(0), config)
        assert trace.token_ids == generated(pair) and trace.token_ids[1:3] == (30, 0)
        assert DecodeTrace.from_json(trace.to_json()) == trace


# ---------------------------------------------------------------------------------------- no settings, refused ones


def test_a_checkpoint_that_asks_for_nothing_costs_nothing():
    """Passes still compute summaries where their logits are, and no file has a field more."""
    pair = asking({"repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "suppress_tokens": None, "num_beams": 1})
    asked = answer_settings.answer_settings(
        pair.target, pair.processor.tokenizer, ALONE, models.prompt(0).input_ids, frozenset()
    )
    assert not asked.processing and not asked.warpers and asked.stops is None
    with patch.object(answer_settings.Processing, "__call__", side_effect=AssertionError):
        trace = models.decode(pair, models.prompt(0), TREES["topk"])
    assert "generation_config" not in json.loads(trace.to_json())["setting"]


VALUES: dict[str, Any] = {
    "num_beams": 4, "num_beam_groups": 2, "num_return_sequences": 2, "penalty_alpha": 0.6, "guidance_scale": 1.5,
    "cache_implementation": "quantized", "dola_layers": "high", "constraints": [1], "force_words_ids": [[3]],
    "watermarking_config": {"bias": 2.0}, "max_time": 3.0, "token_healing": True, "is_assistant": True,
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_followed_is_refused_by_name(name: str):
    with pytest.raises(ValueError, match=f"generation_config.json asks for {name} = ") as refused:
        models.decode(asking({name: VALUES[name]}), models.prompt(0), ALONE)
    assert str(refused.value).endswith(f"remove {name} from that file") and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"repetition_penalty": 0.0},
        {"repetition_penalty": "1.05"},
        {"bad_words_ids": [[-3]]},
        {"sequence_bias": [[[100_000], 1.0]]},
        {"no_repeat_ngram_size": "three"},
        {"exponential_decay_length_penalty": [3]},
        {"forced_eos_token_id": 10**6},
        {"stop_strings": [7]},
    ],
)
def test_values_that_mean_nothing_are_refused_in_one_line(settings: dict[str, Any]):
    with pytest.raises(ValueError, match=r"transformers refuses a setting of generation_config\.json") as refused:
        models.decode(asking(settings, eos=5), models.prompt(0), TREES["topk"])
    assert "\n" not in str(refused.value)


def test_what_only_says_how_generate_searches_is_not_refused():
    pair = asking({"use_cache": False, "prompt_lookup_num_tokens": 3, "length_penalty": 2.0, "max_new_tokens": 3})
    assert models.decode(pair, models.prompt(0), ALONE).token_ids == models.reference(0)[:LONG]


# ------------------------------------------------------------------------------------------------- what is reported


def test_a_trace_names_the_settings_in_force():
    settings = {"repetition_penalty": 1.05, "min_p": 0.1, "suppress_tokens": list(range(50)), "typical_p": 1.0}
    pair = asking(settings)
    greedy = models.decode(pair, models.prompt(0), ALONE).setting.generation_config
    assert greedy == "repetition_penalty 1.05, suppress_tokens [0, 1, 2, 3, 4, 5, ...]"
    warm = models.decode(pair, models.prompt(0), replace(TREES["topk"], temperature=0.5))
    assert warm.setting.generation_config == f"{greedy}, min_p 0.1"
    assert DecodeTrace.from_json(warm.to_json()) == warm
    assert pair.info.generation_config == greedy


def test_a_file_whose_line_of_settings_is_too_long_is_refused():
    trace = models.decode(asking({"repetition_penalty": 1.05}), models.prompt(0), ALONE)
    document = json.loads(trace.to_json())
    document["setting"]["generation_config"] = "x" * (MAX_SETTINGS + 1)
    with pytest.raises(ValueError, match="generation_config"):
        DecodeTrace.from_json(json.dumps(document))


@pytest.mark.parametrize("lane", ["transformers", "transformers-prompt-lookup"])
def test_the_benchmarks_lanes_of_transformers_agree(lane: str):
    """With suppressed tokens too, which prompt lookup has of its own."""
    pair = asking({"repetition_penalty": 1.2, "suppress_tokens": [267], "stop_strings": ["zq"]})
    wanted = models.decode(pair, models.prompt(0), ALONE).token_ids
    assert lane in TRANSFORMERS_LANES
    assert transformers_lane(pair, lane, ALONE)(models.prompt(0)).token_ids == wanted
