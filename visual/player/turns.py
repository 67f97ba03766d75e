"""Turns of a dialogue as the player lists them: question, answer, tokens per target pass, columns reused and read."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from specllava.metrics import summarise
from specllava.race_file import dialogue_json, race_json
from specllava.trace import DecodeTrace
from visual.figures.labels import strip_bidi
from visual.player.encoding import packed
from visual.player.recorded import Recorded

Row = dict[str, object]
SHOWN_CHARACTERS = 120  # of a question or an answer, far more than a row has room for


@dataclass(frozen=True, slots=True)
class DialogueTurn:
    """The race of one turn.

    Args:
        image: name of the picture that came with the message; ``None``: no other than before.
    """

    target_only: DecodeTrace | None
    speculative: DecodeTrace | None
    image: str | None = None

    @property
    def lead(self) -> DecodeTrace:
        """The lane whose answer the dialogue goes on with."""
        lead = self.speculative or self.target_only
        assert lead is not None  # a turn has one lane at least
        return lead

    def row(self) -> Row:
        """Return its row in the list of turns. τ is a number, or ``None`` without a target pass."""
        lead = self.lead
        tau = summarise([lead]).tau
        return {
            "question": _shorten(lead.prompt),
            "answer": _shorten(lead.text),
            "tau": None if math.isnan(tau) else round(tau, 2),
            "reused": lead.prefill.reused_tokens,
            "prompt_tokens": lead.prefill.prompt_tokens,
            "picture": self.image is not None,
        }

    def to_json(self) -> str:
        """Write it as a race file."""
        return race_json(self.target_only, self.speculative, self.image)


@dataclass(frozen=True, slots=True)
class DialoguePosition:
    """Position of a race in a dialogue.

    Args:
        id: of the dialogue.
        before, after: the other turns.
        own_picture: a picture came with this turn's message.
    """

    id: str
    before: tuple[DialogueTurn, ...] = ()
    after: tuple[DialogueTurn, ...] = ()
    own_picture: bool = True

    def opening(self) -> Row:
        """Return the fields of a ``run`` frame."""
        rows = [turn.row() for turn in self.before]
        return {"dialogue": self.id, "turn": len(self.before), "turns": rows}

    def closing(self, target_only: DecodeTrace | None, speculative: DecodeTrace | None) -> Row:
        """Return the fields of an ``end`` frame: the rows of all turns and the file of the whole dialogue, packed."""
        turn = DialogueTurn(target_only, speculative)
        turns = [*self.before, replace(turn, image=turn.lead.image if self.own_picture else None), *self.after]
        parts = [one.to_json() for one in turns]
        file = parts[0] if len(parts) == 1 else dialogue_json(parts)
        return {"turns": [one.row() for one in turns], "file": packed(file)}


def recorded_turns(race: Recorded) -> tuple[DialogueTurn, ...]:
    """Return the turns of a race file."""
    return tuple(DialogueTurn(one.target_only, one.speculative, one.image_name or None) for one in race.turns)


def dialogue_id(turns: Sequence[DialogueTurn]) -> str:
    """Return an id of a dialogue that was recorded; the same turns have the same."""
    text = "\n".join(f"{turn.lead.prompt}\n{turn.lead.text}\n{turn.lead.prefill.target_seconds}" for turn in turns)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _shorten(text: str) -> str:
    line = " ".join(strip_bidi(text).split())
    return line if len(line) <= SHOWN_CHARACTERS else line[: SHOWN_CHARACTERS - 1] + "…"
