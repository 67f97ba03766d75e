"""The lanes of a benchmark: the same tokens whoever decodes, counted the same way, and what cannot be had is told."""

from dataclasses import replace

import pytest
import torch
from support import models

from benchmarks.transformers_lanes import (
    COMPILED,
    TRANSFORMERS,
    TRANSFORMERS_LANES,
    LaneFailedError,
    SightedAssistant,
    runners_with_transformers,
    transformers_lane,
)
from specllava.bench import REFERENCE, WARM_UPS, Plan, measure, prompts_of, results_of, runners_of
from specllava.config import DecodingConfig
from specllava.distill.rows import BenchDialogue
from specllava.engine.engine import Engine

SHORT = DecodingConfig(max_new_tokens=12, depth=4, nodes=8, min_log_prob=-50.0)
QUICK = Plan("tiny", rounds=1, warm_ups=0)
ASSISTED = ("transformers-assisted", "transformers-assisted-sighted")


def single(number):
    """Chat ``number`` of the tiny models as a dialogue of one turn."""
    seen, texts = models.CHATS[number]
    return BenchDialogue(f"chat {number}", "any", texts[:1], () if seen is None else (models.picture(seen),))


@pytest.mark.parametrize(("kind", "seed"), [("bad", 0), ("perfect", 0), *(("mixed", seed) for seed in models.SEEDS)])
def test_every_lane_says_what_the_target_alone_says(kind, seed):
    """With an end in the middle: tokens behind it are counted nowhere."""
    for number in (0, 3):
        end = models.reference(number, seed)[7]
        pair = models.pair(kind, seed, eos=end)
        runners = runners_with_transformers(pair, SHORT)
        assert {REFERENCE, "entropy", "chain", "prompt-lookup", *ASSISTED} <= set(runners)
        prompt = models.prompt(number, seed)
        expected = models.expected(number, seed, 12, [end])
        for name, run in runners.items():
            found = run(prompt)
            assert found.token_ids == expected, name
            assert found.totals.tokens == len(expected), name
            assert 0 <= found.totals.accepted <= min(found.totals.step_tokens, found.totals.drafted), name
            assert found.totals.wall_seconds >= found.totals.decode_seconds, name


def test_a_sighted_assistant_sees_and_one_as_it_comes_does_not():
    """The target itself as assistant guesses everything right, once it sees the picture."""
    pair = models.pair("perfect")
    config = replace(SHORT, max_new_tokens=24)
    runs = {name: runners_with_transformers(pair, config, ASSISTED)[name](models.prompt(0)) for name in ASSISTED}
    blind, sighted = (runs[name] for name in ASSISTED)
    assert blind.token_ids == sighted.token_ids == models.reference(0)
    assert sighted.totals.accepted == sighted.totals.drafted  # none was refused
    assert sighted.totals.target_passes < blind.totals.target_passes
    assert blind.totals.accepted < blind.totals.drafted


def test_what_a_sighted_assistant_reads_is_what_the_draft_reads():
    pair, prompt = models.pair("mixed"), models.prompt(1)
    assistant = SightedAssistant(pair.draft, prompt)
    out = assistant.generate(
        input_ids=prompt.input_ids, max_new_tokens=1, return_dict_in_generate=True, output_scores=True,
        past_key_values=None, do_sample=False,
    )  # fmt: skip
    with torch.inference_mode():
        ours = Engine.of(pair.draft, prompt.length).prefill(prompt.input_ids, prompt.features, prompt.image_keys).logits
    torch.testing.assert_close(out.scores[0][0].double(), ours, rtol=1e-5, atol=1e-5)


def test_what_generate_raises_becomes_one_line(monkeypatch):
    pair = models.pair(None)

    def broken(**arguments):
        raise RuntimeError("shapes\ndo not match")

    monkeypatch.setattr(pair.target, "generate", broken, raising=False)
    with pytest.raises(LaneFailedError, match=r"^RuntimeError: shapes do not match$"):
        transformers_lane(pair, "transformers", SHORT)(models.prompt(0))


@pytest.mark.parametrize(
    ("kind", "config", "name", "said"),
    [
        ("mixed", SHORT, "oak", "there is no lane oak: choose among target-only"),
        (None, SHORT, "entropy", "has no draft: make one with"),
        (None, SHORT, "transformers-assisted", "has no draft"),
        ("mixed", SHORT, "transformers-compiled", "CUDA"),
        ("mixed", replace(SHORT, temperature=1.0), "transformers", "temperature"),
    ],
)
def test_a_lane_that_cannot_be_had_costs_one_line_when_it_is_named(kind, config, name, said):
    with pytest.raises(ValueError, match=said) as told:
        runners_with_transformers(models.pair(kind), config, (name,))
    assert "\n" not in str(told.value)


def test_lanes_that_cannot_be_had_are_left_out_unless_they_are_named():
    assert set(runners_with_transformers(models.pair(None), SHORT)) == {
        REFERENCE, "prompt-lookup", "transformers", "transformers-prompt-lookup"
    }  # fmt: skip
    drawn = runners_with_transformers(models.pair("mixed"), replace(SHORT, temperature=1.0))
    assert not set(drawn) & set(TRANSFORMERS_LANES) and "entropy" in drawn


def test_the_turns_of_a_dialogue_follow_the_targets_own_answers():
    """Each lane reads a later turn afresh, so that none has read more of it than another."""
    pair = models.pair("mixed")
    dialogue = BenchDialogue("talk", "dialogue", ("What is it?", "Where is it?"), (models.picture(0),))
    first, second = prompts_of(pair, dialogue, SHORT)
    text = pair.generate(models.picture(0), "What is it?", replace(SHORT, drafter="none")).text
    chat = [
        {"role": "user", "content": "What is it?"}, {"role": "assistant", "content": text},
        {"role": "user", "content": "Where is it?"},
    ]  # fmt: skip
    assert second.input_ids.tolist() == pair.prompt(models.picture(0), chat).input_ids.tolist()
    assert second.length > first.length and second.image_inputs


def test_a_dialogue_ends_where_it_outgrows_the_context_and_a_question_that_never_fits_is_named():
    pair = replace(models.pair("mixed"), context_limit=models.prompt(0).length + 40)
    long = BenchDialogue("row 3", "dialogue", ("Describe this.", "word " * 60), (models.picture(0),))
    assert len(list(prompts_of(pair, long, SHORT))) == 1
    with pytest.raises(ValueError, match=r"^row 3: .* do not fit the context"):
        list(prompts_of(pair, replace(long, turns=long.turns[1:]), SHORT))


def test_lanes_take_turns_in_an_order_drawn_by_the_seed():
    """An order that stays gives one lane the warm caches of the lane before it, every time."""
    pair = models.pair(None)
    orders = {}
    for seed in (0, 0, 1):
        seen = []
        runners = {
            name: lambda prompt, seen=seen, name=name, run=run: (seen.append(name), run(prompt))[1]
            for name, run in runners_with_transformers(pair, SHORT).items()
        }
        measure(pair, [single(3)] * 3, runners, SHORT, replace(QUICK, seed=seed, rounds=2))
        rounds = [tuple(seen[at : at + len(runners)]) for at in range(0, len(seen), len(runners))]
        assert len(rounds) == 6 and all(set(each) == set(runners) for each in rounds)
        assert len(set(rounds)) > 2
        assert orders.setdefault(seed, rounds) == rounds
    assert orders[0] != orders[1]


def test_every_lane_is_warmed_up_on_the_first_prompts_and_that_is_not_counted():
    pair = models.pair(None)
    target_only = runners_of(pair, SHORT, ("prompt-lookup",))[REFERENCE]
    times = iter([8.0] * 2 * WARM_UPS + [1.0, 2.0, 3.0])

    def timed(prompt):
        run = target_only(prompt)
        return replace(run, totals=replace(run.totals, wall_seconds=next(times)))

    plan = replace(QUICK, warm_ups=WARM_UPS)
    found = measure(pair, [single(3), single(0), single(3)], {REFERENCE: timed}, SHORT, plan)
    assert [run.totals.wall_seconds for run in found.runs[REFERENCE]] == [1.0, 2.0, 3.0]


def test_speed_is_told_over_the_fastest_lane_of_the_target_alone():
    pair, plan = models.pair(None), replace(QUICK, alone=(REFERENCE, TRANSFORMERS, COMPILED))
    run = runners_of(pair, SHORT, ("prompt-lookup",))[REFERENCE]

    def taking(seconds):
        def timed(prompt):
            found = run(prompt)
            return replace(found, totals=replace(found.totals, decode_seconds=found.totals.target_passes * seconds))

        return timed

    lanes = {REFERENCE: taking(0.3), TRANSFORMERS: taking(0.2), "transformers-assisted": taking(0.1)}
    found = measure(pair, [single(3)], lanes, SHORT, plan)
    assert found.reference == TRANSFORMERS
    speeds = {name: lane.speedup.value for name, lane in results_of(found).items()}
    assert speeds == pytest.approx({REFERENCE: 2 / 3, TRANSFORMERS: 1.0, "transformers-assisted": 2.0}, rel=0.01)


@pytest.mark.parametrize("lane", ["transformers", "transformers-prompt-lookup"])
def test_lanes_of_transformers_agree_under_settings_of_the_checkpoint(lane):
    """With suppressed tokens too, which prompt lookup has of its own."""
    pair, config = models.pair("mixed"), DecodingConfig(drafter="none", max_new_tokens=20)
    pair.target.generation_config.update(repetition_penalty=1.2, suppress_tokens=[267], stop_strings=["zq"])
    wanted = models.decode(pair, models.prompt(0), config).token_ids
    assert lane in TRANSFORMERS_LANES
    assert transformers_lane(pair, lane, config)(models.prompt(0)).token_ids == wanted
