"""Bounds far above the runs that ship: of a race file that is drawn in about a second, and of a question."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from specllava.config import highest
from specllava.trace import DecodeTrace, StepTrace

MAX_STEPS = 1024  # of one lane, over all turns of a dialogue, and so the next three
MAX_NODES = 6_000  # of all trees: with as many pruned guesses, about a second to draw
MAX_PRUNED = 6_000  # of all steps
MAX_DRAWS = 6_000  # of all steps
MAX_DRAW_TOKENS = 32  # that one draw names
MAX_TREE = highest("nodes") + 1  # the most that the options allow, and the root
MAX_TOKEN_CHARACTERS = 512
MAX_ANSWER_CHARACTERS = 500_000
MAX_PROMPT_CHARACTERS = highest("prompt_characters")
MAX_NAME_CHARACTERS = 200
MAX_SECONDS = 1e6
LOG_PROBS = (-1e4, 1e-6)  # nats; rounding may carry a sum a little above 0
ENTROPIES = (-1e-3, 100.0)  # nats


def check_lane(lane: str, trace: DecodeTrace) -> None:
    """Refuse a well-formed lane that holds more than can be drawn.

    Raises:
        ValueError: one line that begins with ``lane``, its name.
    """
    setting = trace.setting
    sizes = (
        *_sizes(trace.steps),
        (
            "tokens in one draw",
            max((len(draw.tokens) for step in trace.steps for draw in step.draws), default=0),
            MAX_DRAW_TOKENS,
        ),
        ("nodes in one tree", max((len(step.tree) for step in trace.steps), default=0), MAX_TREE),
        ("characters of prompt", len(trace.prompt), MAX_PROMPT_CHARACTERS),
        ("characters in one token", max(map(len, trace.texts.values()), default=0), MAX_TOKEN_CHARACTERS),
        ("characters of answer", sum(len(trace.texts[t]) for t in trace.token_ids), MAX_ANSWER_CHARACTERS),
        ("characters in a name", max(map(len, (setting.pair, setting.device, setting.dtype))), MAX_NAME_CHARACTERS),
        ("seconds", min(sum((step.seconds.total for step in trace.steps), trace.prefill.total), 1e18), MAX_SECONDS),
    )
    _check(lane, sizes)
    for number, step in enumerate(trace.steps, start=1):
        if step.target is None:
            raise ValueError(f"{lane}, step {number}: it did not record what the target thought of every node")
        guesses = (*step.tree.log_probs, *(guess.log_prob for guess in step.pruned))
        entropies = [entropy for entropy in step.tree.entropies if entropy is not None]
        for what, values, (low, high) in (
            ("a log-probability", guesses, LOG_PROBS), ("an entropy", entropies, ENTROPIES),
        ):  # fmt: skip
            odd = next((value for value in values if not low <= value <= high), None)
            if odd is not None:
                side = f"above {round(high)}" if odd > high else f"below {round(low)}"
                raise ValueError(f"{lane}, step {number}: {what} of {odd:g} is {side}")


def check_steps(whose: str, steps: Sequence[StepTrace]) -> None:
    """Refuse more steps than can be drawn, of one lane or of all turns of a dialogue.

    Raises:
        ValueError: one line that begins with ``whose``.
    """
    _check(whose, _sizes(steps))


def _sizes(steps: Sequence[StepTrace]) -> tuple[tuple[str, float, float], ...]:
    return (
        ("steps", len(steps), MAX_STEPS),
        ("tree nodes", sum(len(step.tree) for step in steps), MAX_NODES),
        ("pruned guesses", sum(len(step.pruned) for step in steps), MAX_PRUNED),
        ("draws", sum(len(step.draws) for step in steps), MAX_DRAWS),
    )


def _check(whose: str, sizes: Iterable[tuple[str, float, float]]) -> None:
    for what, count, most in sizes:
        if count > most:
            raise ValueError(f"{whose} has {count:,.0f} {what}, and at most {most:,.0f} can be shown")


def shorten_question(question: str | None) -> str:
    """Cut a question to one character beyond the bound, at which :func:`check_question` refuses it."""
    return (question or "")[: MAX_PROMPT_CHARACTERS + 1]


def check_question(question: str, most: int = MAX_PROMPT_CHARACTERS, what: str = "question") -> None:
    """Refuse a question, or what comes before it, that is too long to be read.

    Raises:
        ValueError: it has more than ``most`` characters.
    """
    if len(question) > most:
        raise ValueError(f"the {what} has more than {most:,} characters: shorten it")
