"""Answers are those of transformers' ``generate``, under any setting, from a checkpoint's file or an argument.

``generate`` is the reference throughout: greedy answers token by token, sampled ones by the probabilities of all
continuations, for which ``torch.multinomial`` goes every way once.
"""

from __future__ import annotations

import copy
import gc
import random
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any
from unittest.mock import patch

import pytest
import torch
import transformers
from support import checkpoints, families, family_proofs, models
from support.cases import ALL, complaint, sample
from support.chances import Enumerating, outcomes
from support.families import FAMILIES
from torch import Tensor
from transformers import DynamicCache, GenerationConfig, PreTrainedModel, StopStringCriteria
from transformers.generation import EosTokenCriteria, LogitsProcessorList, MinLengthLogitsProcessor

from benchmarks.shared.random_settings import GREEDY, SAMPLED, random_settings
from recipes.toy.dialogue import SUGGESTIONS
from recipes.toy.draw import draw_scene
from recipes.toy.phrases import DETAIL_PROMPTS
from recipes.toy.scene import sample_scene
from specllava import DecodeTrace, speculative_generate
from specllava.cli.main import main
from specllava.config import RULES, DecodingConfig
from specllava.custom_generate import PAIRS, SEARCHES
from specllava.models.drafts.eagle import fresh_feature_draft
from specllava.models.families import MEDIA
from specllava.pair import Pair
from specllava.spec_decode.logits_processing import APPLIED, OF_SAMPLING, REFUSED, _naming_source, warpers
from specllava.spec_decode.loop import Lane
from specllava.spec_decode.rejection_sampler import warp
from specllava.spec_decode.tree_drafter import TopK

RUNS = 20 if ALL else 8  # of each family
LONG = 20
ALONE = DecodingConfig(drafter="none", max_new_tokens=LONG)
TREES = {
    "entropy": DecodingConfig(max_new_tokens=LONG, min_log_prob=-50.0, entropy_threshold=0.5),
    "topk": DecodingConfig(rule="topk", width=3, nodes=12, depth=5, max_new_tokens=LONG),
    "lookup": DecodingConfig(drafter="prompt-lookup", ngram=1, max_new_tokens=LONG),
}
# The plain answer to SETTINGS_CHAT begins 261, 274, 261, 87, 68, 87, 256, 116; its prompt has some of them.
SETTINGS_CHAT = 2
CHANGING: dict[str, Any] = {
    "sequence_bias": [[[274], -9.0], [[261, 274, 87], 9.0]], "encoder_repetition_penalty": 1.5,
    "repetition_penalty": 1.3, "no_repeat_ngram_size": 1, "encoder_no_repeat_ngram_size": 1,
    "bad_words_ids": [[274], [261, 261]], "min_length": 1000, "min_new_tokens": 12, "forced_eos_token_id": [5, 9],
    "exponential_decay_length_penalty": [2, 1.5], "suppress_tokens": [274, 87], "begin_suppress_tokens": [261],
    "stop_strings": ["a", "e", "o"],
}  # fmt: skip
UNCHANGING: dict[str, Any] = {"forced_bos_token_id": 7, "remove_invalid_values": True, "renormalize_logits": True}
pytestmark = pytest.mark.filterwarnings("ignore:Unfeasible length constraints")


def asking(settings: dict[str, Any], kind: models.DraftKind | None = "mixed", eos: int | None = None) -> Pair:
    """A pair whose target has settings of its own; an end token only where it is asked for."""
    pair = models.pair(kind, eos=eos)
    for name, value in settings.items():
        setattr(pair.target.generation_config, name, value)
    return pair


def new_tokens(model: PreTrainedModel, inputs: dict[str, Any], **options: Any) -> tuple[int, ...]:
    """Answer of ``generate``, greedy and of 8 tokens where nothing else is asked for; ``None`` is left out."""
    asked = {**inputs, "do_sample": False, "max_new_tokens": 8, **options}
    with torch.inference_mode():
        out = model.generate(**{name: value for name, value in asked.items() if value is not None})
    return tuple(out[0, inputs["input_ids"].shape[1] :].tolist())


def generated(pair: Pair, number: int = 0, limit: int = LONG) -> tuple[int, ...]:
    inputs = models.plain_inputs(number)
    return new_tokens(pair.target, inputs, max_new_tokens=limit, tokenizer=pair.processor.tokenizer)


def check_trees(pair: Pair, number: int = 0, limit: int = LONG) -> tuple[int, ...]:
    """Target-only and every tree give the tokens of ``generate``, and traces that can be written and read."""
    wanted = generated(pair, number, limit)
    for config in (ALONE, *TREES.values()):
        trace = models.decode(pair, models.prompt(number), replace(config, max_new_tokens=limit))
        assert trace.token_ids == wanted, config
        assert DecodeTrace.from_json(trace.to_json()) == trace
    return wanted


# ------------------------------------------------------------------------------------- settings of a checkpoint


@pytest.mark.parametrize("name", [*CHANGING, *UNCHANGING])
def test_greedy_answers_are_those_of_generate_under_each_setting(name: str):
    assert {*CHANGING, *UNCHANGING, *OF_SAMPLING} == {*APPLIED} == {*GREEDY, *SAMPLED}, "a setting was not tried"
    eos = {"min_length": 256, "min_new_tokens": 256, "exponential_decay_length_penalty": 2}.get(name)
    wanted = check_trees(asking({name: (CHANGING | UNCHANGING)[name]}, eos=eos), SETTINGS_CHAT)
    assert (wanted != generated(asking({}, eos=eos), SETTINGS_CHAT)) == (name in CHANGING)


@pytest.mark.parametrize("seed", sample(range(16), 4))
def test_answers_are_those_of_generate_under_settings_drawn_at_random(seed: int):
    """Greedy ones; of a seed's drawn ones every draft gives the same."""
    rng, number = random.Random(seed), seed % len(models.CHATS)
    settings = random_settings(rng, models.RECIPE.vocabulary, LONG, sampled=False)
    check_trees(asking(settings, rng.choice(models.KINDS)), number)
    if seed % 8 == 0:
        settings = random_settings(rng, models.RECIPE.vocabulary, LONG, sampled=True)
        alone, *trees = (replace(one, temperature=1.5, seed=seed) for one in (ALONE, *TREES.values()))
        wanted = models.decode(asking(settings, None), models.prompt(number), alone).token_ids
        for kind in models.KINDS:
            answers = {models.decode(asking(settings, kind), models.prompt(number), tree).token_ids for tree in trees}
            assert answers == {wanted}, settings


@pytest.mark.parametrize("name", ["repetition_penalty", "bad_words_ids"])
def test_a_draft_guesses_under_the_same_settings(name: str):
    """One that equals the target is right with every guess, as it is without any settings."""
    config = DecodingConfig(rule="chain", depth=4, min_log_prob=-50.0, max_new_tokens=LONG)
    pair = asking({name: CHANGING[name]}, "perfect")
    assert pair.generate(models.picture(0), models.messages(0), ALONE).token_ids == generated(pair)
    for step in models.decode(pair, models.prompt(0), config).steps[:-1]:
        assert len(step.verification.accepted) == step.tree.drafted == 4


WARMTH, TOP_K, LENGTH = 3.0, 3, 3
CUTOFFS: dict[str, dict[str, Any]] = {
    "nothing": {}, "top-h": {"top_h": 0.15}, "min-p": {"min_p": 0.55}, "typical": {"typical_p": 0.5},
    "epsilon": {"epsilon_cutoff": 0.3}, "eta": {"eta_cutoff": 0.45}, "penalty": {"repetition_penalty": 1.5},
    "n-grams": {"no_repeat_ngram_size": 1, "min_p": 0.3},
    "banned": {"bad_words_ids": [[30], [268, 51]], "begin_suppress_tokens": [215]},
    "forced": {"forced_eos_token_id": [5, 9], "sequence_bias": [[[140], 4.0]], "renormalize_logits": True},
}  # fmt: skip
LANES: dict[str, dict[str, Any]] = {
    "target-only": {"drafter": "none"}, "best": {"rule": "topk", "width": 2, "nodes": 4},
    "drawn": {"rule": "fixed", "branching": (2, 1), "children": "drawn"},
}  # fmt: skip


def exact(pair: Pair, **options: Any) -> dict[tuple[int, ...], float]:
    """Every answer that ``generate`` may draw, with its probability."""
    warm = {"do_sample": True, "temperature": WARMTH, "top_k": TOP_K, "top_p": 1.0, "max_new_tokens": LENGTH}

    def drawn(chance: Enumerating) -> tuple[int, ...]:
        def every_way(probs: Tensor, num_samples: int) -> Tensor:
            sure = probs[0].double()
            return torch.tensor([[chance.draw(sure / sure.sum())]])

        with patch("torch.multinomial", every_way), patch("specllava.pair.SeededRandom", lambda seed: chance):
            return new_tokens(pair.target, models.plain_inputs(0), **warm | options)

    chances = Counter[tuple[int, ...]]()
    for answer, weight in outcomes(drawn):
        chances[answer] += weight
    return dict(chances)


@pytest.mark.parametrize("settings", sample(tuple(CUTOFFS), 2))
def test_drawn_answers_have_the_probabilities_of_generate(settings: str):
    """Exactly, but for float32, in which ``generate`` computes them."""
    pair = asking(CUTOFFS[settings])
    wanted = exact(pair)
    assert (wanted == exact(asking({}))) == (settings == "nothing") and len(wanted) > 1
    part = fresh_feature_draft(pair.target, "eagle3", guessable=range(0, models.RECIPE.vocabulary, 3)).double()
    given = {"custom_generate": speculative_generate, "draft": pair.draft, "processor": pair.processor}
    partial = [LANES["drawn"] | {"draft": part}] if settings == "nothing" else []  # guesses a part of the vocabulary
    for lane in (*LANES.values(), *partial):
        ours = exact(pair, **given | lane)
        assert ours.keys() == wanted.keys(), (settings, lane)
        assert sum(abs(ours[answer] - wanted[answer]) for answer in wanted) / 2 < 1e-5, (settings, lane)


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-60])
def test_a_temperature_near_0_draws_the_likeliest_token(temperature: float):
    logits = torch.tensor([[3e38, 1.0, 2.9e38], [-3e38, -1e-44, -1.2e-44], [1.0, 1.0, 0.5]])
    wanted = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.5, 0.5, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(warp(logits, warpers(temperature)), wanted, rtol=0, atol=1e-3)
    cold = models.decode(models.pair("mixed"), models.prompt(0), replace(TREES["topk"], temperature=temperature))
    assert cold.token_ids == models.reference(0)[:LONG]


@pytest.mark.parametrize("number", sample(range(len(models.CHATS)), 2))
def test_an_answer_ends_at_a_stop_string_wherever_it_is_completed(number: int):
    """Also in the middle of an accepted branch, and where only two tokens together spell it."""
    tokenizer, said, found = models.processor().tokenizer, models.reference(number)[:LONG], 0
    texts = [tokenizer.decode(said[: end + 1]) for end in range(LONG)]
    for end in sample(range(1, LONG), 10):
        stop = texts[end][max(0, len(texts[end]) - 3) :]
        if not stop.strip() or "�" in stop:
            continue
        pair = asking({"stop_strings": [stop]}, "perfect")
        assert len(check_trees(pair, number)) <= end + 1
        for config in TREES.values():
            trace = models.decode(pair, models.prompt(number), config)
            assert trace.finish_reason == "stop_string"
            found += trace.steps[-1].bonus_unused
    assert found > 0


def test_an_end_token_comes_before_a_stop_string_and_that_before_the_limit():
    first = models.reference(0)[0]
    text = models.processor().tokenizer.decode([first])
    for eos, limit, reason in ((first, 1, "eos"), (None, 1, "stop_string")):
        pair, short = asking({"stop_strings": text}, eos=eos), replace(ALONE, max_new_tokens=limit)
        trace = models.decode(pair, models.prompt(0), short)
        assert (trace.token_ids, trace.finish_reason) == ((first,), reason)


def test_numbers_that_are_none_are_removed_only_where_the_checkpoint_asks_for_it():
    broken = copy.deepcopy(models.pair("mixed").target)
    with torch.no_grad():
        broken.lm_head.weight[50], broken.lm_head.weight[51] = float("nan"), float("inf")
    pair = replace(models.pair("mixed"), target=broken)
    with pytest.raises(ValueError, match="logits are not numbers"):
        models.decode(pair, models.prompt(3), ALONE)
    broken.generation_config.remove_invalid_values = True
    check_trees(pair, 3, 8)


def test_where_everything_is_forbidden_the_answer_is_still_that_of_generate():
    """Nothing is guessed there, and a drawn answer is refused."""
    pair = asking({"suppress_tokens": list(range(models.RECIPE.vocabulary))})
    check_trees(pair)
    for lane in LANES.values():
        with pytest.raises(ValueError, match=r"^generation_config.json forbids every next token.*$"):
            models.decode(pair, models.prompt(0), DecodingConfig(temperature=1.0, **lane))
    top = TopK(2)
    guesses = top.decode(top(torch.stack([torch.full((9,), -torch.inf), torch.zeros(9)])).tolist())
    assert (guesses[0].tokens, guesses[0].entropy) == ([], 0.0)
    pair = asking({"bad_words_ids": [[51, token] for token in range(models.RECIPE.vocabulary)]}, "perfect")
    assert check_trees(pair)[1:3] == (51, 0)


UNFOLLOWED: dict[str, Any] = {
    "num_beams": 4, "num_beam_groups": 2, "num_return_sequences": 2, "penalty_alpha": 0.6, "guidance_scale": 1.5,
    "cache_implementation": "quantized", "dola_layers": "high", "constraints": [1], "force_words_ids": [[3]],
    "watermarking_config": {"bias": 2.0}, "max_time": 3.0, "token_healing": True, "is_assistant": True,
}  # fmt: skip
MEANINGLESS: dict[str, Any] = {
    "repetition_penalty": 0.0, "encoder_repetition_penalty": "1.05", "bad_words_ids": [[-3]],
    "sequence_bias": [[[100_000], 1.0]], "no_repeat_ngram_size": "three", "exponential_decay_length_penalty": [3],
    "forced_eos_token_id": 10**6, "stop_strings": [7],
}  # fmt: skip


def test_what_cannot_be_followed_is_refused_in_one_line():
    assert REFUSED.keys() == UNFOLLOWED.keys()
    for name, value in (UNFOLLOWED | MEANINGLESS).items():
        pair = asking({name: value}, eos=5)
        line = complaint(lambda pair=pair: models.decode(pair, models.prompt(0), TREES["topk"]))
        assert "generation_config.json" in line
        if value is UNFOLLOWED.get(name):
            assert f"asks for {name} = " in line and line.endswith(f"remove {name} from that file")
        else:
            assert line.startswith("transformers refuses"), line
    with pytest.raises(torch.OutOfMemoryError), _naming_source():  # no setting's fault
        raise torch.OutOfMemoryError("CUDA out of memory")


# ------------------------------------------------------------------------------------------ custom generation

EVERY = (*checkpoints.FAMILIES, *FAMILIES)
KINDS = ("vlm", "eagle", "eagle3", "own", None)  # of drafts; the last is prompt lookup
SMALL = {"depth": 3, "nodes": 6, "width": 2, "min_log_prob": -50.0, "entropy_threshold": 1.0}
PENALTIES = (
    {}, {"repetition_penalty": 1.3}, {"no_repeat_ngram_size": 2, "min_new_tokens": 4}, {"suppress_tokens": [9]},
)  # fmt: skip


@pytest.fixture(scope="module")
def loaded(made) -> Callable[[str], Pair]:
    """A target with its processor, as any caller of transformers has them."""
    return cache(lambda family: Pair.load(made(family), device="cpu", dtype="float32"))


@pytest.fixture
def llava(loaded) -> Pair:
    return loaded("llava")


def speculated(model: PreTrainedModel, inputs: dict[str, Any], draft: Any, **options: Any) -> tuple[int, ...]:
    return new_tokens(model, inputs, custom_generate=speculative_generate, draft=draft, **(SMALL | options))


@pytest.mark.parametrize("family", sample(EVERY, 2))
def test_tokens_are_those_of_generate(made, loaded, family: str):
    """None, one and three pictures, and pictures in two turns; every rule, every kind of draft, penalties."""
    pair, saved = loaded(family), 0
    drafts = [None if kind is None else pair.with_draft(made(family, kind)).draft for kind in KINDS]
    for number in range(RUNS):
        inputs, penalty = family_proofs.own_inputs(pair, number % 10), PENALTIES[number // 2 % len(PENALTIES)]
        turn = (number + number // 5) % len(KINDS)
        own = {"rule": RULES[number % len(RULES)]} | ({"drafter": "prompt-lookup"} if KINDS[turn] is None else {})
        draft = made(family, KINDS[turn]) if KINDS[turn] and number % 2 else drafts[turn]
        wanted = new_tokens(pair.target, inputs, **penalty)
        out = pair.target.generate(
            **inputs, **SMALL | own | penalty, do_sample=False, max_new_tokens=8, return_dict_in_generate=True,
            custom_generate=speculative_generate, draft=draft,
        )  # fmt: skip
        assert out.sequences[0].tolist() == [*inputs["input_ids"][0].tolist(), *wanted], (number, own, penalty)
        assert isinstance(out.trace, DecodeTrace) and out.trace.token_ids == wanted
        saved += len(wanted) - 1 - len(out.trace.steps)
    assert saved > 0


def test_a_draft_of_words_alone_and_one_that_cuts_pictures_in_other_ways(made, loaded, llava, tmp_path):
    inputs, words, text = family_proofs.own_inputs(llava, 3), checkpoints.write_llama(tmp_path / "w"), tmp_path / "t"
    told = ["--source", str(words), "--target", str(made("llava")), "--output", str(text), "--text-only"]
    assert main(["draft", "init", *told]) == 0
    for draft in (text, transformers.AutoModelForCausalLM.from_pretrained(text, dtype=torch.float32), llava.target):
        assert speculated(llava.target, inputs, draft) == new_tokens(llava.target, inputs)
    layout, gemma = families.Layout(vision=16, side=36, patch=6, padding=8), loaded("gemma3")
    other = families.write_checkpoint(tmp_path / "other", "gemma3", 1, layout, made("gemma3"))
    with pytest.raises(ValueError, match=r"the processor's size is 28, the model's 36"):
        speculated(gemma.target, family_proofs.own_inputs(gemma, 1), other)


def test_end_tokens_stop_strings_and_streamers_are_followed(llava, made):
    """transformers 5.23 drops a streamer on the way to a callable; one that is not ended would be waited for."""
    inputs, tokenizer, draft = family_proofs.own_inputs(llava, 1), llava.processor.tokenizer, made("llava", "own")
    whole = new_tokens(llava.target, inputs)
    criteria = [StopStringCriteria(tokenizer, [tokenizer.decode(whole[2:4])])]
    for ends in ({"eos_token_id": [whole[3], 2]}, {"stopping_criteria": criteria}):
        assert speculated(llava.target, inputs, draft, **ends) == new_tokens(llava.target, inputs, **ends) == whole[:4]
    streamer = transformers.TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=10)
    assert speculated(llava.target, inputs, draft, streamer=streamer) == whole
    assert "".join(streamer) == tokenizer.decode(whole) != ""
    seeded = [speculated(llava.target, inputs, draft, do_sample=True, seed=seed) for seed in (5, 5, 6)]
    assert seeded[0] == seeded[1] != seeded[2]


def outcome(model: PreTrainedModel, inputs: dict[str, Any], **options: Any) -> tuple[int, ...] | Exception:
    try:
        return new_tokens(model, inputs, **({"max_new_tokens": 4} | options))
    except Exception as error:  # noqa: BLE001 - whatever transformers raises
        return error


def follows(pair: Pair, inputs: dict[str, Any], draft: Any, **options: Any) -> bool:
    """Whether options are followed as by ``generate``; else its own error, or a line that names each."""
    wanted = outcome(pair.target, inputs, **options)
    ours = outcome(pair.target, inputs, **SMALL | options, draft=draft, custom_generate=speculative_generate)
    if isinstance(ours, Exception):
        line = str(ours)
        named = isinstance(ours, ValueError) and "\n" not in line and all(name in line for name in options)
        assert named or isinstance(wanted, Exception), (options, ours)
        return False
    assert ours == wanted, options
    return True


@pytest.mark.parametrize("family", EVERY if ALL else ("qwen2_5_vl", "gemma3"))
def test_each_argument_about_pictures_is_followed_or_refused_by_name(made, loaded, family: str):
    """Absent, zeros, other values or another shape; also those of other families, and without a picture."""
    pair, draft, followed = loaded(family), made(family, "eagle"), set[str]()
    for number, names in ((0, MEDIA[-2:]), (3, MEDIA)):
        inputs = family_proofs.own_inputs(pair, number)
        for name in names:
            own = inputs.get(name, inputs["input_ids"])
            others = (torch.zeros_like(own), own + 1, own.flip(-1), own[:, :-1] if own.dim() > 1 else own[:-1])
            given = (own, None, *others) if name in inputs else others[:1]
            followed |= {name for value in given if follows(pair, inputs, draft, **{name: value})}
    assert "pixel_values" in followed and followed <= {*inputs}


def test_other_arguments_of_generate_are_followed_or_refused_by_name(llava, made):
    inputs, draft, tokenizer = family_proofs.own_inputs(llava, 1), made("llava", "own"), llava.processor.tokenizer
    ids, embed = inputs["input_ids"], llava.target.get_input_embeddings()
    ones, places = torch.ones_like(ids), torch.arange(ids.shape[1])[None]
    followed: dict[str, list[Any]] = {
        "attention_mask": [None, ones, ones.bool(), ones.float()], "logits_processor": [[]], "synced_gpus": [False],
        "stopping_criteria": [[], [StopStringCriteria(tokenizer, ["e"])]],
    }  # fmt: skip
    refused: dict[str, list[Any]] = {
        "attention_mask": [2 * ones, 1 - places.eq(0).int(), ones[:, :-3]], "position_ids": [places, places + 1],
        "past_key_values": [DynamicCache()], "inputs_embeds": [embed(ids)], "logits_to_keep": [1], "labels": [ids],
        "cache_position": [places[0]], "is_causal": [True], "vision_feature_layer": [-1], "typo": [3],
        "logits_processor": [LogitsProcessorList([MinLengthLogitsProcessor(2, 3)])], "assistant_model": [llava.target],
        "prefix_allowed_tokens_fn": [lambda row, ids: [1, 2]], "negative_prompt_ids": [ids], "synced_gpus": [True],
        "negative_prompt_attention_mask": [ones], "pixel_values_videos": [inputs["pixel_values"]],
    }  # fmt: skip
    for table in (followed, refused):
        for name, values in table.items():
            for value in values:
                assert follows(llava, inputs, draft, **{name: value}) == (table is followed), (name, value)
    with pytest.raises(ValueError, match="does not follow EosTokenCriteria: leave it or custom_generate out"):
        speculated(llava.target, inputs, draft, stopping_criteria=[EosTokenCriteria(3)])


# Settings of ``generate`` beside those above, with a value that it accepts.
OTHERS: dict[str, Any] = {
    "max_length": 99, "max_new_tokens": 3, "early_stopping": True, "do_sample": False, "use_mtp": True,
    "use_cache": False, "cache_config": {}, "max_cache_len": 99, "temperature": 0.5, "top_k": 3, "top_p": 0.5,
    "min_p": 0.1, "top_h": 0.3, "typical_p": 0.5, "epsilon_cutoff": 0.1, "eta_cutoff": 0.1, "length_penalty": 2.0,
    "output_attentions": True, "output_hidden_states": True, "output_scores": True, "output_logits": True,
    "return_dict_in_generate": False, "pad_token_id": 3, "bos_token_id": 5, "eos_token_id": 134,
    "decoder_start_token_id": 1, "num_assistant_tokens": 3, "num_assistant_tokens_schedule": "constant",
    "assistant_confidence_threshold": 0.1, "prompt_lookup_num_tokens": 3, "max_matching_ngram_size": 2,
    "assistant_early_exit": 1, "assistant_lookbehind": 3, "target_lookbehind": 3, "assistant_ensemble_weight": 0.5,
    "disable_compile": True, "low_memory": True, "diversity_penalty": 0.5, "prefill_chunk_size": 4,
}  # fmt: skip
OBJECTS = {"speculation_type", "compile_config", "continuous_batching_config"}  # of searches that are refused, or none


def test_every_setting_of_generate_is_followed_or_refused_by_name(llava, made):
    """transformers 5.23 loses the tokenizer of ``stop_strings``, which are refused with it."""
    inputs, table = family_proofs.own_inputs(llava, 0), CHANGING | UNCHANGING | UNFOLLOWED | OTHERS
    assert table.keys() >= vars(GenerationConfig()).keys() - OBJECTS - {"transformers_version", "_from_model_config"}
    asked = {name: {name: value} for name, value in table.items()} | {"static": {"cache_implementation": "static"}}
    draft = made("llava", "own")
    refused = {name for name, options in asked.items() if not follows(llava, inputs, draft, **options)}
    outputs = {name for name in OTHERS if name.startswith("output_")}
    assert refused == outputs | {*UNFOLLOWED, "stop_strings", *SEARCHES}


def test_other_input_that_is_refused(llava, made):
    inputs, draft = family_proofs.own_inputs(llava, 1), made("llava", "own")
    twice = {name: torch.cat([one, one]) for name, one in inputs.items()}
    cases: list[tuple[dict[str, Any], Any, dict[str, Any], str]] = [
        (twice, draft, {}, "answers one prompt at a time, not 2: call it for each"),
        (inputs, None, {}, 'needs draft=, or drafter="prompt-lookup"'),
        (inputs, "nowhere", {}, "no model at nowhere"),
        (inputs, models.draft("bad").float(), {}, "draft vocabulary 280 is not the target's 448"),
        (inputs, draft, {"rule": "bush"}, "rule = 'bush': input should be"),
        (inputs, draft, {"depth": 99}, "depth = 99: input should be less than or equal to"),
        (inputs, draft, {"max_new_tokens": 2000}, "do not fit the context of 1024"),
    ]
    for given, draft_, options, named in cases:
        asked = (llava.target, given, draft_)
        assert named in complaint(lambda asked=asked, options=options: speculated(*asked, **options))


def test_what_was_loaded_is_kept_while_the_model_lives(made):
    """And no longer: the pair holds the model's modules, and not the model."""
    model = Pair.load(made("llava_next"), device="cpu", dtype="float32").target
    gc.collect()
    inputs, settings = {"input_ids": torch.tensor([[1, 5, 9]])}, model.generation_config.to_dict()
    for _ in range(2):
        speculated(model, inputs, made("llava_next", "own"), eos_token_id=[])
        speculated(model, inputs, made("llava_next", "eagle"), drafter="model")
    kept = PAIRS[model]
    assert {pair.passes for pair in kept.values()} == {"eager"}  # adapters that come later act, too
    assert len(kept) == 3 and model.generation_config.to_dict() == settings
    parts = [weakref.ref(model), *(weakref.ref(pair.draft) for pair in kept.values() if pair.draft is not None)]
    del model, kept
    gc.collect()
    assert [part() for part in parts] == [None] * 3


# ------------------------------------------------------------------------------------------- the pair that ships

QUESTIONS = (*SUGGESTIONS, *DETAIL_PROMPTS)


@pytest.mark.parametrize("block", sample(range(21), 1))
def test_the_shipped_pair_says_what_generate_says(shipped, block: int):
    """Greedily; a seed's drawn answers are those of the target alone."""
    pair, rng = shipped("float64"), random.Random(f"shipped pair {block}")
    side = pair.target.config.vision_config.image_size
    picture = draw_scene(sample_scene(rng.randrange(100_000), rng.choice(("train", "held-out"))), side)
    content = [{"type": "image"}, {"type": "text", "text": (question := rng.choice(QUESTIONS))}]
    text = pair.processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    inputs = {**pair.processor(images=picture, text=text, return_tensors="pt")}
    inputs["pixel_values"] = inputs["pixel_values"].to(pair.target.dtype)
    warm = DecodingConfig(drafter="none", temperature=0.8, seed=block, max_new_tokens=LONG)
    prompt, cold = pair.prompt(picture, question, LONG), replace(warm, temperature=0.0)
    alone, drawn = (pair.run(Lane.of(one, prompt)) for one in (cold, warm))
    assert alone.token_ids == new_tokens(pair.target, inputs, max_new_tokens=LONG)
    own = {"rule": rng.choice(RULES), "depth": rng.randint(1, 10), "width": rng.randint(1, 6)}
    own |= {"nodes": rng.randint(1, 40), "max_branches": rng.randint(1, 6), "min_log_prob": -50.0}
    own |= {"entropy_threshold": rng.uniform(0, 2)}
    for plain, config in ((alone, cold), (drawn, warm)):
        lane = Lane.of(replace(config, drafter="model", **own), prompt)
        assert pair.run(lane).token_ids == plain.token_ids, own
