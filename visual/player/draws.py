"""What a sampling verifier drew in a step, as the player shows it."""

from __future__ import annotations

from specllava.trace import DecodeTrace, Draw, StepTrace
from visual.figures.labels import token_label


def draws_of(trace: DecodeTrace, step: StepTrace) -> list[dict[str, object]]:
    """Return an entry for each number that was drawn, in order, with words instead of token ids.

    ``child`` is the node that bears the word, ``None`` where none does; ``place`` is the word's index in ``words``.
    """
    children = step.tree.children()
    return [_entry(trace, step, draw, children[draw.node]) for draw in step.draws]


def _entry(trace: DecodeTrace, step: StepTrace, draw: Draw, family: tuple[int, ...]) -> dict[str, object]:
    return {
        "node": draw.node,
        "child": next((child for child in family if step.tree.tokens[child] == draw.token), None),
        "place": draw.tokens.index(draw.token),
        "uniform": draw.uniform,
        "acceptance": draw.acceptance,
        "words": [token_label(trace, token) for token in draw.tokens],
        "guessed": [any(step.tree.tokens[child] == token for child in family) for token in draw.tokens],
        "p": draw.target_probs,
        "q": draw.draft_probs,
        "starts": draw.starts,
    }


def sampling_of(trace: DecodeTrace) -> str | None:
    """Return how guesses are judged by chance: ``best`` or ``drawn``; ``None`` without a temperature."""
    config = trace.config
    if config.temperature == 0:
        return None
    return "best" if config.keeps_tokens else "drawn"
