"""``bench --diagnose``: the costs and acceptance that it names, and what it makes of them."""

from dataclasses import replace

import pytest
import torch
from support import models

from specllava.bench.bare_passes import BarePasses, BareSteps
from specllava.bench.diagnosis import DEEPEST, diagnose
from specllava.bench.dialogue import BenchDialogue
from specllava.bench.draft_quality import DraftQuality, draft_quality
from specllava.bench.lanes import runners_of
from specllava.bench.measured import BenchPrompt, Measured, RawPass, WarmUp
from specllava.bench.raw_passes import WIDTHS
from specllava.bench.results import results_of
from specllava.bench.rounds import Plan, measure
from specllava.bench.timed_run import PassShape, TimedRun, TimedStep
from specllava.core.config import DecodingConfig
from specllava.core.trace import RunInfo
from specllava.runtime.engine import Engine
from specllava.runtime.passes import PassInput

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
        name: (TimedRun(tuple(range(5 * tokens + 1)), 1, 9, 9, 0.0, 1.0, own, 9.0, bare_seconds=5 * bare),) * 2
        for name, own, bare in (("target-only", alone, tokens), ("chain", steps, cycle))
    }
    info = RunInfo("pair", "target", "draft", "cpu", "float32", 2, {})
    asked = (BenchPrompt(0, "any", 9), BenchPrompt(1, "any", 9))
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
    assert found.without["passes alone"] == pytest.approx(4 / cycle)
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


def test_passes_are_timed_at_all_widths_after_the_contexts_of_lanes():
    pair = models.pair("mixed")
    seen = BenchDialogue("one", "any", ("Describe this.",), (models.picture(0),))
    dialogues = [seen, BenchDialogue("two", "any", ("Why?",))]
    runners = runners_of(pair, SHORT, ("topk",))
    found = measure(pair, dialogues, runners, SHORT, Plan("tiny", rounds=2, within=None))
    prompts = [run.prompt_tokens for own in found.runs.values() for run in own]
    contexts = min(prompts), max(prompts) + SHORT.max_new_tokens
    timed = [(one.model, one.width, one.context) for one in found.raw_passes]
    assert sorted(timed) == sorted((model, n, at) for model, own in WIDTHS.items() for n in own for at in contexts)
    for own in found.runs.values():  # the passes of the first round's runs were run once more
        assert all(run.bare_seconds > 0 for run in own[:2]) and all(run.bare_seconds is None for run in own[2:])
    results = results_of(found)
    assert all(lane.floor.bare > 0 and lane.overhead > -1 for lane in results.values())
    assert diagnose(found, results, QUALITY).lane == "topk"


@pytest.mark.parametrize("width", [1, 3])
def test_a_bare_pass_computes_what_the_engine_computes(width):
    """Else its time would be of other work."""
    pair = models.pair("mixed")
    for model in (pair.target, pair.draft):
        scored = []
        hook = model.get_output_embeddings().register_forward_hook(lambda _, given, out, to=scored: to.append(out))
        with torch.inference_mode():
            bare = BarePasses(model)
            bare.hold(6, width)
            bare.ready(width, 6)()
            engine = Engine(model, 6 + width)
            engine.forward(PassInput([0] * 6))
            ours = engine.forward(PassInput([0] * width)).logits
        hook.remove()
        torch.testing.assert_close(scored[1][0], ours, rtol=1e-12, atol=1e-12)  # the first read the context


@pytest.mark.parametrize("kind", ["bad", "mixed", "perfect"])
@pytest.mark.parametrize("rule", ["topk", "chain"])
def test_the_passes_of_a_run_are_those_that_its_engines_made(monkeypatch, rule, kind):
    """Model, width and columns before each; bare steps run the same ones."""
    pair, made, forward = models.pair(kind), [], Engine.forward

    def noted(engine, batch, summary=None):
        name = "target" if engine.model is pair.target else "draft"
        made.append(PassShape(name, len(batch.tokens), engine.cache.length))
        return forward(engine, batch, summary)

    monkeypatch.setattr(Engine, "forward", noted)
    run = runners_of(pair, SHORT, (rule,))[rule](models.prompt(0))
    shapes = [shape for own in run.passes() for shape in own]
    assert shapes == made and {shape.model for shape in shapes} == {"target", "draft"}

    repeated, ready = [], BarePasses.ready

    def laid(bare, width, start):
        name = "target" if bare._model is pair.target else "draft"
        run_pass = ready(bare, width, start)
        return lambda: (repeated.append(PassShape(name, width, start)), run_pass())

    bare_steps = BareSteps(pair)
    monkeypatch.setattr(BarePasses, "ready", laid)
    bare_steps.seconds(run)
    made_again = iter(repeated)  # what lies between them fills the caches
    assert all(shape in made_again for shape in shapes)
