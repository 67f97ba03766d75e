"""A drafter for each question: what a perfect choice among three would bring over the best fixed one, and a simple one.

    python -m benchmarks.choice --json benchmarks/results/choice.json --picture docs/science-choice.svg

The simple choice lets every drafter draft some steps in turn. The one with the most tokens for its passes goes on to
the end. Passes are counted and priced; what the trial costs is in its speed. Questions are of ten kinds.

With ``--run DIRECTORY`` (of ``smol train``) its target and drafts answer. Prices are then measured before the answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from tqdm.auto import tqdm

from benchmarks.distance import KINDS, asked
from benchmarks.shared.command import run_command, show_table
from benchmarks.shared.guessing import DifferError, cells, draw_rates, interval, write_rates
from benchmarks.shared.prices import GUESS, LEVEL, Price, time_passes
from specllava.core.config import DecodingConfig
from specllava.core.trace import DecodeTrace, Prefill, StepTrace
from specllava.decoding import stream
from specllava.findings.bootstrap import pooled_rate, pooled_ratio
from specllava.lane import Lane
from specllava.models.loading.presets import presets
from specllava.pair import Pair
from specllava.runtime.prompt import Prompt, with_prefix

LOOKUP: Final = "prompt lookup"
FIXED: Final = ("draft VLM", "EagleVLM", LOOKUP)
PERFECT, TRIED, TRIED_DRAFTS = "perfect choice", "chosen by first steps", "the same without lookup"
ALL: Final = "all questions"
EAGLE_LEVEL: Final = 0.48 / 0.39  # of the toy pair, by milliseconds of both, docs/notes/toy-drafts.md


@dataclass(frozen=True, slots=True)
class ChoiceConfig:
    """Options of the experiment.

    Args:
        questions: of each kind.
        trial: steps of each drafter before one is chosen.
        repeats: timed passes of each model and number of tokens, where prices are measured.
    """

    decoding: DecodingConfig = field(default_factory=lambda: DecodingConfig(max_new_tokens=96))
    questions: int = 8
    trial: int = 1
    run: Path | None = None
    repeats: int = 20
    json: Path | None = None
    picture: Path | None = None

    def __post_init__(self) -> None:
        if self.trial < 1:
            raise ValueError(f"--trial {self.trial}: a drafter is judged by at least one step")


@dataclass(frozen=True, slots=True)
class Drafting:
    """One drafter of a pair.

    Args:
        level: price of one of its levels, in target passes over one token.
        guess: price of one more guess in a target pass.
    """

    pair: Pair
    drafter: str
    level: float
    guess: float = GUESS


@dataclass(frozen=True, slots=True)
class Part:
    """Steps of an answer, one after the other.

    Args:
        emitted: their tokens.
        cost: in target passes over one token.
        ended: whether the answer ended with them.
    """

    emitted: tuple[int, ...]
    cost: float
    ended: bool

    def __add__(self, other: Part) -> Part:
        return Part(self.emitted + other.emitted, self.cost + other.cost, other.ended)

    @property
    def speed(self) -> float:
        return len(self.emitted) / self.cost


NOTHING: Final = Part((), 0.0, False)


def main(config: ChoiceConfig) -> None:
    """Answer every question with every drafter and with the choice, and draw."""
    drafters = load_drafters(config)
    answers = measure(drafters, config)
    found = rows_of(answers)
    names = (*FIXED, PERFECT, TRIED, TRIED_DRAFTS)
    chosen = [f"{name}, over best fixed" for name in (PERFECT, TRIED, TRIED_DRAFTS)]
    lines = [(kind, row["best"], *cells(row, *names, *chosen)) for kind, row in found.items()]
    prices = {name: {"level": one.level, "guess": one.guess} for name, one in drafters.items()}
    title = "; ".join(f"{name}: a level {one.level:.3f}, a guess {one.guess:.3f}" for name, one in drafters.items())
    show_table(("questions", "best fixed", *names, *chosen), lines, title)
    pair = drafters[FIXED[0]].pair
    write_rates(config.json, pair, config, {"kinds": found, "cheapest": cheapest(answers), "prices": prices})
    series = {name: [{"priced": row[name]} for row in found.values()] for name in names if name != LOOKUP}
    draw_rates(config.picture, series, ("priced",), list(found), "kind of question", joined=False, width=560)


def load_drafters(config: ChoiceConfig) -> dict[str, Drafting]:
    """Load the toy pair at stated prices, or the target of a run with its drafts at measured ones."""
    run = config.run
    if run is None:
        pair, eagle = Pair.from_preset("toy", dtype="float32"), presets()["toy-eagle"].draft
        assert eagle is not None
        drafts = [Drafting(pair, "model", LEVEL), Drafting(pair.with_draft(eagle), "model", LEVEL * EAGLE_LEVEL)]
    else:
        pair = Pair.load(run / "target", run / "vlm" / "draft", dtype="float32")
        pairs = (pair, pair.with_draft(run / "eagle" / "draft"))
        target, *passes = time_passes([pair.target, *(one.draft for one in pairs if one.draft)], config.repeats)
        prices = [Price.measured(target, own) for own in passes]
        drafts = [Drafting(one, "model", *astuple(price)) for one, price in zip(pairs, prices, strict=True)]
    return dict(zip(FIXED, (*drafts, Drafting(pair, "prompt-lookup", 0.0, drafts[0].guess)), strict=True))


def measure(drafters: Mapping[str, Drafting], config: ChoiceConfig) -> dict[str, list[dict[str, Part]]]:
    """Answer questions of every kind; for each, the steps of every drafter and of the choice."""
    pair = next(iter(drafters.values())).pair
    answers: dict[str, list[dict[str, Part]]] = {kind: [] for kind in KINDS}
    for number in tqdm(range(config.questions), "questions of each kind"):
        for kind, about in KINDS.items():
            prompt, own = asked(pair, about, number, config.decoding)
            first = own.token_ids[:1]
            found = {name: steps(one, prompt, config.decoding, first) for name, one in drafters.items()}
            found[TRIED] = choose(drafters, prompt, config, first)
            drafts = {name: one for name, one in drafters.items() if name != LOOKUP}
            found[TRIED_DRAFTS] = choose(drafts, prompt, config, first)
            for name, part in found.items():
                check(name, first + part.emitted, own)
            answers[kind].append(found)
    return answers


def choose(drafters: Mapping[str, Drafting], prompt: Prompt, config: ChoiceConfig, first: tuple[int, ...]) -> Part:
    """Let each drafter draft ``config.trial`` steps in turn, then the one with the most tokens for its passes the rest.

    Args:
        first: token of the answer, which the target's prefill gave.
    """
    whole, speeds = NOTHING, {}
    for name, drafting in drafters.items():
        part = steps(drafting, prompt, config.decoding, first + whole.emitted, config.trial)
        whole += part
        if whole.ended:
            return whole
        speeds[name] = part.speed
    best = drafters[max(speeds, key=speeds.__getitem__)]
    return whole + steps(best, prompt, config.decoding, first + whole.emitted)


def steps(
    drafting: Drafting, prompt: Prompt, config: DecodingConfig, done: tuple[int, ...], most: int | None = None
) -> Part:
    """Go on with an answer.

    Args:
        done: its tokens so far, at least one; the last of them begins the first step.
        most: steps; without it the answer is brought to its end.
    """
    start = with_prefix(prompt, done[:-1]) if len(done) > 1 else prompt
    left = replace(config, drafter=drafting.drafter, max_new_tokens=config.max_new_tokens - len(done) + 1)
    request = drafting.pair.request(Lane("part", left, start), record=False)
    emitted: list[int] = []
    cost, taken = 0.0, 0
    for event in stream(request):
        ended = event.finished is not None
        if isinstance(event, Prefill):
            check("prefill", (*done[:-1], event.first_token), done)
        if isinstance(event, StepTrace):
            taken += 1
            emitted += event.emitted
            cost += 1 + drafting.level * len(request.draft_pass_tokens) + drafting.guess * event.tree.drafted
        if taken == most:
            break
    return Part(tuple(emitted), cost, ended)


def check(name: str, tokens: Sequence[int], own: DecodeTrace | Sequence[int]) -> None:
    """Refuse an answer, or its beginning, that is not the target's own.

    Raises:
        DifferError: it is another.
    """
    expected = own.token_ids if isinstance(own, DecodeTrace) else own
    if tuple(tokens) != tuple(expected):
        raise DifferError(f"{name} changed an answer: {list(tokens)} in place of {list(expected)}")


def rows_of(answers: Mapping[str, Sequence[Mapping[str, Part]]]) -> dict[str, dict[str, Any]]:
    """Return the speeds of all questions, those of a number together, then of each kind."""
    numbers = list(zip(*answers.values(), strict=True))
    return {ALL: row_of(numbers)} | {kind: row_of([[one] for one in done]) for kind, done in answers.items()}


def row_of(clusters: Sequence[Sequence[Mapping[str, Part]]]) -> dict[str, Any]:
    """Return the speed of every fixed drafter and of every choice, these also over the best fixed drafter's.

    Args:
        clusters: answers that belong together; the bootstrap draws them whole.
    """
    whole = [[{**one, PERFECT: min((one[name] for name in FIXED), key=_cost)} for one in each] for each in clusters]
    parts = {
        name: [(sum(len(one[name].emitted) for one in each), sum(one[name].cost for one in each)) for each in whole]
        for name in (*FIXED, PERFECT, TRIED, TRIED_DRAFTS)
    }
    speeds = {name: pooled_rate(done) for name, done in parts.items()}
    best = max(FIXED, key=lambda name: speeds[name].value)
    gains = {name: pooled_ratio(parts[best], parts[name]) for name in (PERFECT, TRIED, TRIED_DRAFTS)}
    return {
        "answers": sum(map(len, clusters)), "best": best, **{name: interval(speed) for name, speed in speeds.items()},
        **{f"{name}, over best fixed": interval(gain) for name, gain in gains.items()},
    }  # fmt: skip


def _cost(part: Part) -> float:
    return part.cost


def cheapest(answers: Mapping[str, Sequence[Mapping[str, Part]]]) -> dict[str, dict[str, int]]:
    """Count by kind for how many questions each drafter is the cheapest."""
    least = {kind: [min(FIXED, key=lambda name: one[name].cost) for one in done] for kind, done in answers.items()}
    return {kind: {name: names.count(name) for name in FIXED} for kind, names in least.items()}


if __name__ == "__main__":
    run_command(main, ChoiceConfig)
