"""``bench --diagnose``: the costs and acceptance that it names, and what it makes of them."""

from dataclasses import replace

import pytest
import torch
from support import models

from specllava.bench.diagnosis import DEEPEST, diagnose
from specllava.bench.dialogue import Dialogue
from specllava.bench.draft_quality import DraftQuality, draft_quality
from specllava.bench.lanes import runners_of
from specllava.bench.measured import Asked, Measured, RawPass, WarmUp
from specllava.bench.raw_passes import LADDER, BarePasses
from specllava.bench.results import results_of
from specllava.bench.rounds import Plan, measure
from specllava.bench.timed_run import TimedRun, TimedStep
from specllava.config import DecodingConfig
from specllava.runtime.engine import Engine
from specllava.runtime.passes import PassInput
from specllava.trace import RunInfo

QUALITY = DraftQuality(0.5, 0.8, 100)
SHORT = DecodingConfig(max_new_tokens=8, depth=3, nodes=4, min_log_prob=-50.0)


def benchmark(level=0.1, slope=0.05, overhead=1.2, tokens=4, refused=0):
    """Steps of ``tokens`` tokens by as many levels but for the bonus token; passes cost the same behind any context."""
    passes = [RawPass("target", width, 9, 1 + slope * (width - 1)) for width in (1, 2, 4, 8, 16, 32)]
    passes += [RawPass("draft", width, 9, level) for width in (1, 2, 4)]
    levels = tokens - 1 + refused
    cycle = levels * level + 1 + slope * levels
    steps = tuple(
        TimedStep(tokens, tokens - 1, levels + 1, (1,) * levels, draft=0.0, verify=overhead * cycle) for _ in range(5)
    )
    alone = tuple(TimedStep(1, 0, 1, verify=overhead) for _ in range(5 * tokens))
    runs = {
        name: (TimedRun(tuple(range(5 * tokens + 1)), 1, 9, 9, 0.0, 1.0, own, 9.0),) * 2
        for name, own in (("target-only", alone), ("chain", steps))
    }
    info = RunInfo("pair", "target", "draft", "cpu", "float32", 2, {})
    asked = (Asked(0, "any", 9), Asked(1, "any", 9))
    warm = WarmUp(0, None, 0.0, False)
    return Measured("test", info, DecodingConfig(), {}, 0, 1, warm, asked, runs, raw_passes=tuple(passes))


def diagnosed(quality=QUALITY, **options):
    found = benchmark(**options)
    return diagnose(found, results_of(found), quality)


def test_figures_follow_from_the_passes():
    found = diagnosed()
    assert found.one == 1.0 and found.level == pytest.approx(0.1)
    assert found.wider == pytest.approx({width: 1 + 0.05 * (width - 1) for width in (2, 4, 8, 16, 32)})
    cycle = 3 * 0.1 + 1.15
    assert found.without["bare passes"] == pytest.approx(4 / cycle)
    assert found.without["drafting at half its cost"] == pytest.approx(4 / (cycle - 0.15))
    assert found.without["drafting for nothing"] == pytest.approx(4 / 1.15)
    assert found.without["wide passes for nothing"] == pytest.approx(4 / 1.3)
    assert found.lane == "chain" and found.overhead == pytest.approx(0.2)
    assert found.speedup == pytest.approx(4 / cycle)  # both lanes have the same overhead


def test_the_best_chain_is_the_best_of_all_depths():
    def by_hand(rate, depth):
        return sum(rate**level for level in range(depth + 1)) / (0.1 * depth + 1 + 0.05 * depth)

    found = diagnosed()
    for chain, rate in ((found.perfect, 1.0), (found.chain, 0.8)):
        best = max(range(1, DEEPEST + 1), key=lambda depth: by_hand(rate, depth))
        assert (chain.depth, chain.speedup) == (best, pytest.approx(by_hand(rate, best)))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"level": 0.6, "slope": 0.0}, "cheaper draft"),
        ({"slope": 0.5, "level": 0.4, "quality": DraftQuality(0.1, 0.99, 9)}, "wide passes"),
        ({"level": 0.01, "slope": 0.01}, "agrees more often"),
        ({"level": 2.0, "slope": 1.0}, "--drafter none"),
        ({"level": 0.3, "slope": 0.1, "tokens": 2, "refused": 2}, "drafting does not pay here"),
    ],
)
def test_the_advice_names_what_stands_in_the_way(options, said):
    assert said in " ".join(diagnosed(**options).lines()[-2:])


def test_lines_are_one_each_and_hold_every_answer():
    lines = diagnosed().lines()
    assert all("\n" not in line and "nan" not in line for line in lines)
    for answer in ("0.100 of a target pass", "0.50 nats", "80 % of its tokens", "perfect draft", "--rule chain"):
        assert any(answer in line for line in lines), answer


def test_without_a_lane_that_guesses_there_is_nothing_to_diagnose():
    found = benchmark()
    alone = replace(found, runs={"target-only": found.runs["target-only"]})
    with pytest.raises(ValueError, match="name one with --lanes"):
        diagnose(alone, results_of(alone), QUALITY)


def test_the_quality_of_a_draft_that_is_the_target_is_perfect():
    answers = [(models.prompt(number), models.reference(number)) for number in (0, 3)]
    perfect = draft_quality(models.pair("perfect"), answers)
    assert perfect.divergence == pytest.approx(0.0, abs=1e-9) and perfect.agreement == 1.0
    assert perfect.tokens == sum(len(answer) for _, answer in answers)
    bad = draft_quality(models.pair("bad"), answers)
    assert bad.divergence > 0.1 and bad.agreement < 0.9
    with pytest.raises(ValueError, match="has no draft"):
        draft_quality(models.pair(None), answers)


def test_bare_passes_are_timed_at_the_widths_and_contexts_that_lanes_used():
    pair = models.pair("mixed")
    dialogues = [Dialogue("one", "any", ("Describe this.",), (models.picture(0),)), Dialogue("two", "any", ("Why?",))]
    runners = runners_of(pair, SHORT, ("topk",))
    found = measure(pair, dialogues, runners, SHORT, Plan("tiny", rounds=1, within=None))
    timed = {(one.model, one.width) for one in found.raw_passes}
    steps = [step for own in found.runs.values() for run in own for step in run.steps]
    assert {("target", step.target_width) for step in steps} <= timed
    assert {("draft", width) for step in steps for width in step.draft_widths} <= timed
    assert {width for model, width in timed if model == "target"} >= set(LADDER)
    runs = [run for own in found.runs.values() for run in own]
    contexts = {one.context for one in found.raw_passes}
    prompts = [run.prompt_tokens for run in runs]
    assert contexts == {min(prompts), max(prompts) + SHORT.max_new_tokens}
    results = results_of(found)
    assert all(lane.floor > 0 and lane.overhead > -1 for lane in results.values())
    assert diagnose(found, results, QUALITY).lane == "topk"


@pytest.mark.parametrize("width", [1, 3])
def test_a_bare_pass_computes_what_the_engine_computes(width):
    """Else its time would be of other work."""
    pair = models.pair("mixed")
    for model in (pair.target, pair.draft):
        scored = []
        hook = model.get_output_embeddings().register_forward_hook(lambda _, given, out, to=scored: to.append(out))
        with torch.inference_mode():
            assert BarePasses(model, context=6).seconds(width) > 0
            engine = Engine(model, 6 + width)
            engine.forward(PassInput([0] * 6))
            ours = engine.forward(PassInput([0] * width)).logits
        hook.remove()
        torch.testing.assert_close(scored[1][0], ours, rtol=1e-12, atol=1e-12)  # the first read the context
