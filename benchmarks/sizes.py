"""How large should a draft be? Four sizes distilled alike: KL, τ, what a level costs, and the speed that remains.

    python -m benchmarks.sizes --json benchmarks/results/sizes.json --picture docs/science-sizes.svg

All begin with random weights and learn from the toy target on the same rows in as many steps. The learning rate falls
with the width. Beside them the shipped draft, which learnt from more than six times as many conversations. A draft
that is in ``--work`` is not trained again, and a training that was killed goes on.

With ``--preset smol --run DIRECTORY`` (of ``smol train``) the drafts are VLMs of four layers for that pair, on the rows
of its recipe. They begin with the target's embeddings in fewer dimensions, which are most of their weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from transformers import PreTrainedModel

from benchmarks.shared.command import run_command, show, show_table
from benchmarks.shared.draft_training import (
    UNREAD,
    DraftShape,
    load_target,
    teach_draft,
    training_accelerator,
    with_loop,
)
from benchmarks.shared.guessing import (
    Guessing,
    GuessingConfig,
    alone,
    cells,
    draw_rates,
    interval,
    rates,
    scored,
    speculate,
    write_rates,
)
from benchmarks.shared.prices import Price, Seconds, time_passes
from specllava.distill.config import LoopConfig
from specllava.distill.run import distil_files
from specllava.findings.bootstrap import pooled_rate
from specllava.findings.replays import straight_costs
from specllava.models.loading.presets import presets
from specllava.pair import Pair
from specllava.smol.draft_vlm import DraftVlmRecipe, fresh_draft
from specllava.smol.drafts import DraftsRecipe, draft_job
from specllava.toyworld.corpus import TALKING
from specllava.toyworld.packing import PackedBatches
from specllava.toyworld.recipe import ToyRecipe

SHAPES: Final = {
    "0.3 M": DraftShape(1, 112), "1.2 M": DraftShape(1, 256), "4.2 M": DraftShape(2, 384), "10.2 M": DraftShape(3, 512),
}  # fmt: skip
WIDTHS_SMOL: Final = {"3.4 M": 64, "7.1 M": 128, "11.4 M": 192, "16.0 M": 256}
SHIPPED: Final = "shipped"  # of 1.2 M
PANEL: Final = 360  # pixels of a panel, for its names
USUAL_WIDTH: Final = 256  # of the toy's shipped draft, for which a learning rate is given
NAMES: Final = ("tau", "acceptance", "kl", "agreement", "entropy")
SPEEDS: Final = ("clock", "here", "typed", "by_layers", "by_weights")


@dataclass(frozen=True, slots=True)
class GpuCosts:
    """Milliseconds of passes on a GPU, by default those of arithmetic for LLaVA-1.5-7B on an H200.

    Args:
        one, many: of a target pass over one token, and of one that verifies 20 guesses.
        layer: of each layer in a pass of a draft; by default 4.2 / 32.

    Raises:
        ValueError: a cost that is not above 0, or a wider pass that costs less.
    """

    one: float = 4.2
    many: float = 4.4
    layer: float = 0.13

    def __post_init__(self) -> None:
        if not (0 < self.one <= self.many and self.layer > 0):
            raise ValueError(
                f"--gpu.one {self.one}, --gpu.many {self.many}, --gpu.layer {self.layer}: give milliseconds above 0,"
                " and no fewer for many tokens than for one"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SizesConfig(GuessingConfig):
    """Options of the experiment.

    Args:
        work: directory of the trained drafts.
        run: directory of ``smol train``, with target and rows, for the pair smol.
        fresh: drafts of the pair smol before that training, but for their hidden size.
        training: of each draft; the learning rate is that of a width of 256.
        batch: rows of a step; on the toy pair each a picture with four conversations.
        repeats: timed passes of each model and number of tokens.
    """

    work: Path = Path("runs/sizes")
    run: Path | None = None
    fresh: DraftVlmRecipe = field(default_factory=DraftVlmRecipe)
    training: LoopConfig = field(default_factory=lambda: LoopConfig(600, 2e-3, 50, checkpoint_every=50, seed=31))
    batch: int = 2
    repeats: int = 40
    gpu: GpuCosts = field(default_factory=GpuCosts)

    def __post_init__(self) -> None:
        if (self.run is not None) != (self.preset == "smol"):
            raise ValueError("--run and --preset smol go together: one names the target, the other its questions")


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds of steps with a draft, and of the target alone for the same answer."""

    drafted: float
    alone: float


def train(config: SizesConfig, pair: Pair) -> dict[str, Pair]:
    """Train the drafts that are missing; return the target with each, and with the shipped one."""
    recipe, accelerator = ToyRecipe(), training_accelerator()
    batches = PackedBatches(pair.processor, config.batch, recipe.image_tokens, TALKING, UNREAD)
    target, found = load_target(presets()["toy"].target), {}
    for name, shape in SHAPES.items():
        rate = config.training.learning_rate * USUAL_WIDTH / shape.hidden
        loop = replace(config.training, learning_rate=rate)
        place = config.work / f"{shape.layers}x{shape.hidden}"
        draft = shape.build(pair.processor, recipe, loop.seed)
        teach_draft(draft, target, pair.processor, batches, loop, recipe.kl_weight, place, accelerator)
        found[name] = pair.with_draft(place)
    return {**found, SHIPPED: pair}


def train_smol(config: SizesConfig, run: Path) -> dict[str, Pair]:
    """Train the drafts for a run's target that are missing; return it with each."""
    pairs, recipe, pair = {}, DraftsRecipe(), Pair.load(run / "target", name="smol", dtype="float32")
    for name, hidden in WIDTHS_SMOL.items():
        place, rate = config.work / f"smol-{hidden}", config.training.learning_rate * USUAL_WIDTH / hidden
        loop = replace(config.training, learning_rate=rate)
        training = with_loop(recipe.trainings["vlm"], loop, config.batch)
        begin = config.work / f"smol-{hidden}-fresh"
        fresh_draft(run / "target", begin, replace(config.fresh, hidden=hidden), training.precision)
        distil_files(draft_job(run, run / "target", place, begin, training, recipe.validation), show)
        pairs[name] = pair.with_draft(place / "last")
    return pairs


def main(config: SizesConfig) -> None:
    """Train what is missing, measure every size, and draw."""
    pairs = train(config, config.load_pair()) if config.run is None else train_smol(config, config.run)
    target = next(iter(pairs.values())).target
    passes = time_passes([target, *(one.draft for one in pairs.values() if one.draft is not None)], config.repeats)
    answers, seconds = measure(pairs, config)
    found = rows_of(pairs, passes, answers, seconds, config.gpu)
    heads = ("draft", "KL, nats", "agreement", "τ", "a level, target passes", "speed by the clock", "counted here",
             "at the GPU's costs", "a level by layers", "by weights")  # fmt: skip
    lines = [
        (name, *cells(row, "kl", digits=3), *cells(row, "agreement", "tau"), *cells(row, "level", digits=3),
         *cells(row, *SPEEDS))
        for name, row in found.items()
    ]  # fmt: skip
    show_table(heads, lines)
    pair = next(iter(pairs.values()))
    write_rates(config.json, pair, config, found)
    names = ("kl", "tau", "level", "clock", "typed")
    series = {f"{pair.name} pair": list(found.values())}
    draw_rates(config.picture, series, names, list(found), "weights of the draft", joined=False, width=PANEL)


def measure(pairs: Mapping[str, Pair], config: SizesConfig) -> tuple[dict[str, list[Guessing]], dict[str, list[Timed]]]:
    """Answer every prompt with every draft, each right after the target alone."""
    answers: dict[str, list[Guessing]] = {name: [] for name in pairs}
    seconds: dict[str, list[Timed]] = {name: [] for name in pairs}
    for asked in config.questions():
        prompt = next(iter(pairs.values())).prompt(asked.image, asked.text)
        for name, pair in pairs.items():
            own = alone(pair, prompt, config.decoding)
            trace, levels = speculate(pair, prompt, config.decoding, own)
            answers[name].append(scored(pair, prompt, trace, levels))
            seconds[name].append(Timed(trace.decode_seconds, own.decode_seconds))
    return answers, seconds


def rows_of(
    pairs: Mapping[str, Pair],
    passes: Sequence[Seconds],
    answers: Mapping[str, Sequence[Guessing]],
    seconds: Mapping[str, Sequence[Timed]],
    gpu: GpuCosts,
) -> dict[str, dict[str, Any]]:
    """Return a row for each size: its rates, what a level costs here, and its speed at every price."""
    found = {}
    target, *drafts = passes
    for number, (name, pair) in enumerate(pairs.items()):
        assert pair.draft is not None
        level = pooled_rate(list(zip(drafts[number][1], target[1], strict=True)))
        prices = {"here": Price.measured(target, drafts[number])} | stated(pair.draft, pair.target, gpu)
        clock = pooled_rate([(one.alone, one.drafted) for one in seconds[name]])
        found[name] = {
            "weights": weights(pair.draft),
            **rates([[one] for one in answers[name]], NAMES), "level": interval(level), "clock": interval(clock),
            **{at: speed(answers[name], price) for at, price in prices.items()},
            "prices": {at: asdict(price) for at, price in prices.items()},
        }  # fmt: skip
    return found


def stated(draft: PreTrainedModel, target: PreTrainedModel, gpu: GpuCosts) -> dict[str, Price]:
    """Return prices of a draft that no clock measured: typed ones, and by layers or weights over the target's.

    By layers is where launching kernels takes the time, by weights where reading them from memory does; one more guess
    then costs nothing.
    """
    layers, of_target = (model.config.get_text_config().num_hidden_layers for model in (draft, target))
    return {
        "typed": Price.of(straight_costs(gpu.one, gpu.many, gpu.layer * layers)),
        "by_layers": Price(layers / of_target, 0.0),
        "by_weights": Price(weights(draft) / weights(target), 0.0),
    }


def weights(model: PreTrainedModel) -> int:
    """Count the numbers that a language model's pass reads: a tower, a projector and embeddings are not among them."""
    held = (model.get_decoder().layers, model.get_output_embeddings())
    return sum(weight.numel() for module in held for weight in module.parameters())


def speed(answers: Sequence[Guessing], price: Price) -> dict[str, float]:
    """Return the tokens per target pass over one token, with its interval over prompts."""
    return interval(pooled_rate([(one.emitted, one.cost(price.level, price.guess)) for one in answers]))


if __name__ == "__main__":
    run_command(main, SizesConfig)
