"""Bounds on a question, which hold for calls without a browser too."""

from __future__ import annotations

from visual.player.bounds import MAX_PROMPT_CHARACTERS

LONGEST_QUESTION = MAX_PROMPT_CHARACTERS  # a page may allow fewer characters


def shorten_question(question: str | None) -> str:
    """Cut a question to one character beyond the bound, at which :func:`check_question` refuses it."""
    return (question or "")[: LONGEST_QUESTION + 1]


def check_question(question: str, most: int = LONGEST_QUESTION) -> None:
    """Refuse a question that is too long to be read.

    Raises:
        ValueError: it has more than ``most`` characters.
    """
    if len(question) > most:
        raise ValueError(f"the question has more than {most:,} characters: shorten it")
