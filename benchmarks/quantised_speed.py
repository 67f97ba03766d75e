"""Does quantisation compound the speed-up? Targets in float32, bfloat16 and int8, each alone and with speculation.

    PYTHONPATH=.venv/quantised python -m benchmarks.quantised_speed \\
        --json benchmarks/results/quantised_speed.json --picture docs/science-quantised-speed.svg

Int8 is torchao's: weights of the decoder are stored in 8 bits, arithmetic is in the precision named. All lanes answer
each prompt in turn, in an order drawn anew, for several rounds. The time of a prompt is the median of its rounds.
"""

from __future__ import annotations

import math
import random
import shlex
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from tqdm.auto import tqdm

from benchmarks.shared.command import run_command, show_table
from benchmarks.shared.guessing import GuessingConfig, cells, draw_rates, interval, write_rates
from specllava.bench.draft_quality import draft_scores
from specllava.bench.lanes import REFERENCE, run_timed
from specllava.bench.machine import conditions, machine_of
from specllava.bench.results import pool
from specllava.bench.rounds import margins_of
from specllava.bench.timed_run import TimedRun
from specllava.core.config import DecodingConfig
from specllava.findings.bootstrap import Array, Part, pooled, pooled_rate
from specllava.lane import SPECULATIVE, Lane
from specllava.models.loading.load_options import LoadOptions
from specllava.pair import Pair
from specllava.runtime.prompt import Prompt

WHOLE: Final = "float32"  # that all targets are compared with
TARGETS: Final = {
    WHOLE: LoadOptions(dtype="float32"),
    "bfloat16": LoadOptions(dtype="bfloat16"),
    "int8, float32": LoadOptions(dtype="float32", quantization="torchao-int8"),
    "int8, bfloat16": LoadOptions(dtype="bfloat16", quantization="torchao-int8"),
}
WARM_UP: Final = 2  # prompts that are answered before the counted ones
# Speed-ups by the tokens per second of float32 alone, float32 with speculation, a target alone, it with speculation.
SPEEDUPS: Final[dict[str, Callable[[Array], Array]]] = {
    "speculation": lambda rates: rates[..., 3] / rates[..., 2],
    "quantisation": lambda rates: rates[..., 2] / rates[..., 0],
    "both": lambda rates: rates[..., 3] / rates[..., 0],
    "product": lambda rates: rates[..., 1] * rates[..., 2] / rates[..., 0] ** 2,
    "both_over_product": lambda rates: rates[..., 3] * rates[..., 0] / (rates[..., 1] * rates[..., 2]),
}
Runs = Mapping[str, Sequence[TimedRun]]  # by lane, those of the first round over all prompts, then those of the next


@dataclass(frozen=True, slots=True)
class TimedConfig(GuessingConfig):
    """Options of the experiment.

    Args:
        rounds: times that every lane answers every prompt.
        seed: of the order in which lanes take turns.
    """

    rounds: int = 3
    seed: int = 0


def main(config: TimedConfig) -> None:
    """Time every target alone and with speculation, and draw."""
    pairs = {name: config.load_pair(**asdict(options)) for name, options in TARGETS.items()}
    whole = pairs[WHOLE]
    machine = machine_of(whole.device, shlex.join(["python", "-m", "benchmarks.quantised_speed", *sys.argv[1:]]))
    questions = list(config.questions(more=WARM_UP))
    prompts = {name: [pair.prompt(one.image, one.text) for one in questions] for name, pair in pairs.items()}
    runs = measure(pairs, prompts, config)
    found = {
        name: speed_row(own, runs[WHOLE], config.prompts) | draft_row(pairs[name], prompts[name], own, config.decoding)
        for name, own in runs.items()
    }
    heads = ("target", "alone, ms per token", "with speculation", "τ", "KL, nats", "speed-up by speculation",
             "by quantisation", "by both", "product", "both over product", "differ", "unlike float32")  # fmt: skip
    lines = [
        (name, *cells(row, "ms_alone", "ms", "tau"), *cells(row, "kl", digits=3), *cells(row, *SPEEDUPS),
         str(row["differ"]), str(row["unlike_float32"]))
        for name, row in found.items()
    ]  # fmt: skip
    show_table(heads, lines)
    machine["after"] = conditions(whole.device)
    write_rates(config.json, whole, config, {"targets": found, "machine": machine})
    draw(config, list(found.values()))


def measure(
    pairs: Mapping[str, Pair], prompts: Mapping[str, Sequence[Prompt]], config: TimedConfig
) -> Mapping[str, Runs]:
    """Answer all prompts with every target, alone and with speculation; return the runs by target and lane."""
    lanes = {REFERENCE: replace(config.decoding, drafter="none"), SPECULATIVE: config.decoding}
    names = [(target, lane) for target in pairs for lane in lanes]
    runs: dict[str, dict[str, list[TimedRun]]] = {target: {lane: [] for lane in lanes} for target in pairs}
    order = random.Random(config.seed)
    counted = range(WARM_UP, WARM_UP + config.prompts)
    for number in tqdm([*range(WARM_UP), *config.rounds * [*counted]], "prompts"):
        order.shuffle(names)
        for target, lane in names:
            run = run_timed(pairs[target], Lane(lane, lanes[lane], prompts[target][number]))
            if number in counted:
                runs[target][lane].append(run)
    return runs


def tokens_and_seconds(runs: Sequence[TimedRun], prompts: int) -> list[Part]:
    """Return for each prompt the tokens after the first one, and their seconds: the median of its rounds."""
    seconds = [statistics.median(run.decode_seconds for run in runs[number::prompts]) for number in range(prompts)]
    return [(run.step_tokens, taken) for run, taken in zip(runs[:prompts], seconds, strict=True)]


def speed_row(own: Runs, whole: Runs, prompts: int) -> dict[str, Any]:
    """Return times and speed-ups of a target, those over float32 as well."""
    lanes = [tokens_and_seconds(runs[lane], prompts) for runs in (whole, own) for lane in (REFERENCE, SPECULATIVE)]
    times = {
        name: interval(pooled_rate([(1e3 * seconds, tokens) for tokens, seconds in parts]))
        for name, parts in zip(("ms_alone", "ms"), lanes[2:], strict=True)
    }
    return times | {name: interval(pooled(lanes, combine)) for name, combine in SPEEDUPS.items()} | {
        "unlike_float32": sum(
            one.token_ids != other.token_ids
            for one, other in zip(own[REFERENCE][:prompts], whole[REFERENCE][:prompts], strict=True)
        )
    }


def draft_row(pair: Pair, prompts: Sequence[Prompt], runs: Runs, config: DecodingConfig) -> dict[str, Any]:
    """Return what the draft is worth to a target: τ, KL, and answers that are not the target's own."""
    asked = prompts[WARM_UP:]
    alone, drafted = (runs[lane][: len(asked)] for lane in (REFERENCE, SPECULATIVE))
    scores = [draft_scores(pair, prompt, run.token_ids) for prompt, run in zip(asked, alone, strict=True)]
    lane = pool(runs, range(len(asked)), margins_of(runs, asked, pair, config))[SPECULATIVE]
    counted = lane.as_json()
    divergences = [(math.fsum(one.divergences), len(run.token_ids)) for one, run in zip(scores, alone, strict=True)]
    return {
        "answers": len(runs[SPECULATIVE]), "differ": lane.mismatches + lane.ties, "margins": list(lane.margins),
        "tau": interval(pooled_rate([(run.step_tokens, len(run.steps)) for run in drafted])),
        "kl": interval(pooled_rate(divergences)),
        **{name: counted[name] for name in ("levels", "guesses", "ms_draft", "ms_verify")},
    }  # fmt: skip


def draw(config: TimedConfig, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw times and speed-ups by target."""
    series = {
        "target alone": [{"ms": row["ms_alone"], "over_float32": row["quantisation"]} for row in rows],
        "with speculation": [{**row, "over_float32": row["both"]} for row in rows],
        "product of both": [{"over_float32": row["product"]} for row in rows],
    }
    draw_rates(config.picture, series, ("ms", "over_float32"), list(TARGETS), "target", joined=False, width=500)


if __name__ == "__main__":
    run_command(main, TimedConfig)
