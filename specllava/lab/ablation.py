"""Compare variants of the draft on one answer; the target, and so the answer, is the same throughout."""

from __future__ import annotations

import heapq
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace

from specllava.config import DecodingConfig
from specllava.findings.ablation import Ablation, TreeComparison, VariantResult
from specllava.lab.run import run_lane
from specllava.pair import Pair
from specllava.prompt import Prompt, with_prefix
from specllava.scoring import draft_log_probs, score_draft, teacher_forced_log_probs
from specllava.spec_decode.loop import Lane

CLOSEUPS = 3
APART = 4  # tokens between two positions of closeups, at least


@dataclass(frozen=True, slots=True)
class Variant:
    """One variant to run: a draft and the prompt that it reads."""

    name: str
    pair: Pair
    prompt: Prompt


def ablate(variants: Sequence[Variant], config: DecodingConfig) -> Generator[Ablation]:
    """Decode with every variant and score every draft on the first one's answer; yield the ablation so far.

    The unchanged finding is yielded after each decode step and each teacher-forced pass; one result more after each
    variant.

    Raises:
        ValueError: a pair without a draft.
    """
    finding = Ablation(tuple(variant.name for variant in variants))
    yield finding
    target_log_probs = None
    for variant in variants:
        pair, prompt = variant.pair, variant.prompt
        if pair.draft is None:
            raise ValueError(f"the pair {pair.name} has no draft to compare")
        trace = yield from run_lane(pair, Lane(variant.name, config, prompt), finding)
        answer = finding.results[0].trace.token_ids if finding.results else trace.token_ids
        if target_log_probs is None:
            target_log_probs = teacher_forced_log_probs(pair.target, prompt, answer)
            yield finding
        log_probs = draft_log_probs(pair.target, pair.draft, prompt, answer)
        finding = replace(
            finding,
            results=(
                *finding.results,
                VariantResult(variant.name, trace, score_draft(log_probs, target_log_probs, answer)),
            ),
        )
        yield finding


def with_tree_comparisons(
    finding: Ablation, variants: Sequence[Variant], config: DecodingConfig
) -> Generator[Ablation]:
    """Yield, last, the finished ablation with the trees of all sides where their drafts differ most from each other.

    Before it the unchanged finding, after each decode step. Where tokens are drawn by chance there are no trees to
    compare: a run that begins later would draw others.
    """
    if config.temperature > 0:
        yield finding
        return
    answer = finding.results[0].trace.token_ids
    comparisons = []
    for position in most_divergent(finding):
        kept = answer[: position - 1]  # the root is the token before it, decoded as the prompt's own first token
        short = replace(config, max_new_tokens=min(config.depth + 2, config.max_new_tokens - len(kept)))
        traces = []
        for variant in variants:
            lane = Lane(variant.name, short, with_prefix(variant.prompt, kept))
            traces.append((yield from run_lane(variant.pair, lane, finding, max_steps=1)))
        comparisons.append(TreeComparison(position, tuple(traces)))
    yield replace(finding, comparisons=tuple(comparisons))


def most_divergent(finding: Ablation, count: int = CLOSEUPS) -> tuple[int, ...]:
    """Return the positions where the drafts' probabilities differ most; ``APART`` apart, and none without a tree."""
    probs = [result.scores.probs for result in finding.results]
    spread = [max(column) - min(column) for column in zip(*probs, strict=True)]
    positions: list[int] = []
    for position in heapq.nlargest(len(spread), range(1, len(spread)), key=spread.__getitem__):
        if all(abs(position - other) >= APART for other in positions):
            positions.append(position)
    return tuple(positions[:count])
