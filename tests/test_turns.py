"""Of each visitor the latest wish counts, whether it waits, runs, or is over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from visual.turns import Turn, Turns, Wanted


def turn(question: str = "What?") -> Turn:
    return Turn(None, question, ())


def counted(turn: Turn, wanted: Wanted) -> Iterator[str]:
    """A run that goes on for as long as it is wanted, and tells why it ended."""
    while (wish := wanted()) == "on":
        yield turn.question
    yield wish


def test_what_is_wanted_runs_until_it_is_stopped_and_is_over_then() -> None:
    turns = Turns()
    assert turns.enter("me", turn()) == 0
    run = turns.take("me", counted, "never begun")
    assert [next(run), next(run)] == ["What?", "What?"]
    assert turns.stop("me") and turns.wish("me") == "stopped"
    assert list(run) == ["stopped"]
    assert turns.latest("me") is None and not turns.stop("me")


def test_what_was_stopped_or_left_before_its_turn_does_not_begin() -> None:
    turns = Turns()
    turns.enter("me", turn())
    turns.stop("me")
    assert list(turns.take("me", counted, "never begun")) == ["never begun"]
    turns.enter("me", turn())
    turns.leave("me")
    assert list(turns.take("me", counted, "never begun")) == []
    assert turns.latest("me") is None


def test_the_latest_wish_ends_the_one_before_and_stays() -> None:
    turns = Turns()
    turns.enter("me", turn("first"))
    run = turns.take("me", counted, "never begun")
    assert next(run) == "first"
    turns.enter("me", later := turn("second"))
    assert list(run) == ["left"]
    assert turns.latest("me") is later and turns.wish("me", later) == "on"
    assert next(turns.take("me", counted, "never begun")) == "second"


def test_a_wish_made_while_waiting_runs_in_place_of_the_stopped_one() -> None:
    turns = Turns()
    turns.enter("me", turn("first"))
    turns.stop("me")
    turns.enter("me", turn("second"))
    assert next(turns.take("me", counted, "never begun")) == "second"


def test_a_run_that_fails_or_is_closed_is_over() -> None:
    def failing(turn: Turn, wanted: Wanted) -> Iterator[str]:
        yield from ()
        raise RuntimeError(turn.question)

    turns = Turns()
    turns.enter("me", turn("fails"))
    with pytest.raises(RuntimeError, match="fails"):
        list(turns.take("me", failing, "never begun"))
    assert turns.latest("me") is None
    turns.enter("me", turn())
    run = turns.take("me", counted, "never begun")
    next(run)
    run.close()  # type: ignore[attr-defined]
    assert turns.latest("me") is None


def test_others_are_counted_while_they_want_something_and_never_touched() -> None:
    turns = Turns()
    for session in ("one", "two", "three"):
        turns.enter(session, turn(session))
    turns.stop("three")
    assert turns.enter("me", turn()) == 2
    assert turns.enter("me", turn()) == 2
    turns.leave("me")
    assert [turns.wish(session) for session in ("one", "two", "three", "me")] == ["on", "on", "stopped", "left"]
