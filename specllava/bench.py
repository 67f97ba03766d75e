"""The benchmark: every lane on the same prompts, in turn, in one process; numbers pooled by ``metrics``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers.generation.streamers import BaseStreamer

from specllava.config import COMPARED_RULES, DecodingConfig
from specllava.findings.replays import ReplayStep
from specllava.growth.rules import RULE_INFOS
from specllava.lane import Lane
from specllava.metrics import Comparison, Summary, compare, compare_ids, efficiency, speedup, summarise
from specllava.pair import Pair
from specllava.runtime.prompt import Prompt
from specllava.runtime.timing import now
from specllava.toyworld.scene import Split
from specllava.toyworld.scene_questions import scene_questions
from specllava.trace import DecodeTrace

REFERENCE = "target-only"
TRANSFORMERS = "transformers"
WARM_UP = 2


@dataclass(frozen=True, slots=True)
class LaneResult:
    """A lane's totals, compared with the reference's.

    Args:
        mismatches, ties: runs whose tokens differ, by whether the target's margin at the first difference is that
            of a near-tie.
        margins: the target's margins there, ``None`` where one answer is the beginning of the other.
        wall_seconds: seconds of all runs from start to end, measured outside the loop: prefill, all bookkeeping, and
            the recording of what the target computed for every node, which no lane's own clock counts.
        draft_passes, draft_seconds: levels of which a guess was verified, and the seconds of all drafting.
    """

    summary: Summary
    speedup: float
    efficiency: float
    mismatches: int
    ties: int
    margins: tuple[float | None, ...]
    wall_seconds: float
    draft_passes: int = 0
    draft_seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Return the lane's row of ``bench --json``; times in milliseconds, levels and guesses per target pass."""
        passes = max(1, self.summary.target_passes)
        return {
            "tau": self.summary.tau,
            "ms_per_token": 1e3 * self.summary.seconds_per_token,
            "ms_prefill": 1e3 * self.summary.prefill_seconds / self.summary.runs,
            "ms_per_token_end_to_end": 1e3 * self.summary.end_to_end_seconds_per_token,
            "ms_per_token_wall": 1e3 * self.wall_seconds / self.summary.tokens,
            "levels": self.draft_passes / passes,
            "guesses": self.summary.drafted / passes,
            "ms_draft": 1e3 * self.draft_seconds / passes,
            "speedup": self.speedup,
            "efficiency": self.efficiency,
            "mismatches": self.mismatches,
            "ties": self.ties,
            "margins": list(self.margins),
            "runs": self.summary.runs,
            "tokens": self.summary.tokens,
        }


class BenchStopped(KeyboardInterrupt):
    """Ctrl-C, with the results of the prompts that every lane had finished by then."""

    def __init__(self, results: dict[str, LaneResult]) -> None:
        super().__init__()
        self.results = results


def bench_lanes(config: DecodingConfig) -> dict[str, DecodingConfig]:
    """Return the lanes: target-only, every rule that is compared with the options that suit it best, and prompt lookup.

    Raises:
        ValueError: guesses drawn by chance; the lanes' answers differ then and cannot be compared.
    """
    if not config.exact:
        raise ValueError(f"children are {config.children}: the benchmark compares tokens, so they must be best")
    rules: dict[str, DecodingConfig] = {
        rule: replace(config, drafter="model", rule=rule, **RULE_INFOS[rule].tuned(config)) for rule in COMPARED_RULES
    }
    lookup = replace(config, drafter="prompt-lookup")
    return {REFERENCE: replace(config, drafter="none"), **rules, "prompt-lookup": lookup}


def toy_prompts(pair: Pair, split: Split, count: int) -> Iterable[Prompt]:
    """Yield prompts of questions about toy scenes."""
    return (pair.prompt(asked.image, asked.text) for asked in scene_questions(split, count))


def run_bench(
    pair: Pair,
    prompts: int,
    config: DecodingConfig,
    split: Split = "held-out",
    with_transformers: bool = True,
    only: Sequence[str] = (),
) -> dict[str, LaneResult]:
    """Run the ordinary lanes and, if ``with_transformers``, that of ``transformers``, on ``prompts`` prompts.

    With a temperature ``transformers`` is left out: it draws from another random stream. Lanes that need a
    draft are left out where the pair has none.

    Args:
        only: names of lanes to run beside ``target-only``; none means all.

    Raises:
        ValueError: a name that no lane bears.
    """
    lanes = {name: c for name, c in bench_lanes(config).items() if pair.draft or c.drafter != "model"}
    names = [*lanes, TRANSFORMERS]
    if unknown := [name for name in only if name not in names]:
        raise ValueError(f"there is no lane {unknown[0]}: choose among {', '.join(names)}")
    with_transformers = with_transformers and config.temperature == 0 and (not only or TRANSFORMERS in only)
    lanes = {name: c for name, c in lanes.items() if not only or name in (REFERENCE, *only)}
    return run_lanes(pair, prompts, lanes, split, with_transformers)


def run_lanes(
    pair: Pair, prompts: int, lanes: dict[str, DecodingConfig], split: Split, with_transformers: bool = False
) -> dict[str, LaneResult]:
    """Run every lane on the same prompts, one after the other; the order rotates, so that none is always first.

    Args:
        lanes: what to compare; ``target-only`` must be among them, the others are measured against it.
        with_transformers: also time ``transformers``' own ``generate`` on the same target.

    Raises:
        BenchStopped: Ctrl-C, once there is something to tell.
    """
    names = [*lanes, TRANSFORMERS] if with_transformers else list(lanes)
    runs: dict[str, list[TimedRun]] = {name: [] for name in lanes}
    transformers_runs: list[TransformersRun] = []
    limit, total = lanes[REFERENCE], prompts + WARM_UP
    bar = tqdm(toy_prompts(pair, split, total), total=total, disable=None)
    try:
        for number, prompt in enumerate(bar):
            start = number % len(names)
            for name in names[start:] + names[:start]:
                if name == TRANSFORMERS:
                    transformers_runs.append(run_transformers(pair, prompt, limit))
                else:
                    runs[name].append(run_timed(pair, Lane(name, lanes[name], prompt)))
    except KeyboardInterrupt:
        done = min([len(own) for own in runs.values()] + ([len(transformers_runs)] if with_transformers else []))
        if done <= WARM_UP:
            raise
        finished = {name: own[:done] for name, own in runs.items()}
        raise BenchStopped(pool_runs(finished, transformers_runs[:done])) from None
    return pool_runs(runs, transformers_runs)


@dataclass(frozen=True, slots=True)
class TimedRun:
    """A lane's trace and the seconds that the whole run took."""

    trace: DecodeTrace
    wall_seconds: float


def run_timed(pair: Pair, lane: Lane) -> TimedRun:
    """Decode a lane and time the whole run.

    The towers' passes, which are shared by all lanes because a prompt is encoded once, are added to the time of each
    lane that reads their features, as in its prefill.
    """
    started = now(pair.device)
    trace = pair.run(lane)
    seconds = now(pair.device) - started + lane.prompt.vision_seconds
    if lane.config.drafter == "model" and lane.prompt.draft_prompt is not None:
        seconds += lane.prompt.draft_prompt.vision_seconds
    return TimedRun(trace, seconds)


def pool_runs(runs: dict[str, list[TimedRun]], transformers_runs: list[TransformersRun]) -> dict[str, LaneResult]:
    """Pool every lane's runs, without the warm-up prompts, and compare them with the reference's."""
    timed = {name: own[WARM_UP:] for name, own in runs.items()}
    reference_traces = [run.trace for run in timed[REFERENCE]]
    reference = summarise(reference_traces)
    results = {}
    for name, own in timed.items():
        traces = [run.trace for run in own]
        comparisons = [compare(a, b) for a, b in zip(reference_traces, traces, strict=True)]
        result = _result(reference, summarise(traces), comparisons, sum(run.wall_seconds for run in own))
        steps = [step for trace in traces for step in trace.steps]
        passes = sum(len(ReplayStep.of(step).widths) for step in steps)
        results[name] = replace(result, draft_passes=passes, draft_seconds=sum(step.seconds.draft for step in steps))
    if transformers_runs:
        results[TRANSFORMERS] = _transformers_result(reference, reference_traces, transformers_runs[WARM_UP:])
    return results


@dataclass(frozen=True, slots=True)
class TransformersRun:
    """Answer and times of ``transformers``' own ``generate``."""

    token_ids: tuple[int, ...]
    prefill_seconds: float
    decode_seconds: float
    wall_seconds: float


@torch.inference_mode()
def run_transformers(pair: Pair, prompt: Prompt, config: DecodingConfig) -> TransformersRun:
    """Run greedy ``generate`` of the same target on the same prompt; its prefill ends when the first token comes."""
    entered = now(pair.device)
    target, device = pair.target, pair.device
    ids = prompt.input_ids
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "do_sample": False}
    inputs |= prompt.image_inputs
    times: list[float] = []
    started = now(device)
    output = target.generate(**inputs, max_new_tokens=config.max_new_tokens, streamer=_ArrivalTimes(device, times))
    ended = now(device)
    first = times[1]  # the streamer is first handed the prompt, then token after token
    tokens = tuple(output[0, ids.shape[1] :].tolist())
    return TransformersRun(tokens, first - started, ended - first, now(device) - entered)


class _ArrivalTimes(BaseStreamer):
    """Streamer that records when each piece of an answer arrives."""

    def __init__(self, device: torch.device, times: list[float]) -> None:
        self.device, self.times = device, times

    def put(self, value: torch.Tensor) -> None:
        self.times.append(now(self.device))

    def end(self) -> None:
        pass


def _result(reference: Summary, summary: Summary, comparisons: Sequence[Comparison], wall_seconds: float) -> LaneResult:
    differing = [c for c in comparisons if not c.identical]
    ties = sum(c.near_tie for c in differing)
    return LaneResult(
        summary,
        speedup(reference, summary),
        efficiency(reference, summary),
        len(differing) - ties,
        ties,
        tuple(c.margin for c in differing),
        wall_seconds,
    )


def _transformers_result(
    reference: Summary, ours: Sequence[DecodeTrace], runs: Sequence[TransformersRun]
) -> LaneResult:
    tokens = sum(len(run.token_ids) for run in runs)
    summary = Summary(
        runs=len(runs),
        tokens=tokens,
        target_passes=tokens - len(runs),
        drafted=0,
        accepted=0,
        decode_seconds=sum(run.decode_seconds for run in runs),
        prefill_seconds=sum(run.prefill_seconds for run in runs),
    )
    comparisons = [compare_ids(a, b.token_ids) for a, b in zip(ours, runs, strict=True)]
    return _result(reference, summary, comparisons, sum(run.wall_seconds for run in runs))
