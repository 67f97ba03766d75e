"""Dialogues of the visitors: what each goes on from, kept for those who asked last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from specllava.config import DecodingConfig
from specllava.models.images import open_image
from specllava.trace import DecodeTrace
from visual.player.recorded import MAX_TURNS, Recorded

if TYPE_CHECKING:
    from PIL import Image

    from specllava.chat import Chat
    from specllava.pair import Pair

MOST_DIALOGUES: Final = 64
MOST_CACHES: Final = 4  # of them keep their KV caches; others read their dialogue again
LOST: Final = "your dialogue is no longer kept: press Run to begin another"
NONE_YET: Final = "there is no dialogue to go on with: press Run first"
Turn = tuple[str, str]  # question and answer


@dataclass(eq=False)
class Dialogue:
    """The dialogue that a visitor's next follow-up continues: a recorded race, or questions asked here.

    Args:
        picture: path of the picture of the last question.
        draft: name of the draft that guesses in ``chat``; ``None``: the page's own.
        frames: of the last run here.
    """

    recorded: Recorded | None = None
    chat: Chat | None = None
    picture: str | None = None
    draft: str | None = None
    frames: list[str] = field(default_factory=list)

    @property
    def trace(self) -> DecodeTrace:
        """The last answer that was given here."""
        assert self.chat is not None  # frames come of a run
        return self.chat.turns[-1].trace

    @property
    def media(self) -> tuple[Any, ...]:
        """The pictures of the last question."""
        assert self.chat is not None  # as above
        return self.chat.turns[-1].media

    @property
    def turns(self) -> list[Turn]:
        """Questions and answers so far."""
        if self.chat is not None:
            return [(turn.text, turn.answer) for turn in self.chat.turns]
        return [] if self.recorded is None else [(one.prompt, one.lead.text) for one in self.recorded.turns]


@dataclass(eq=False)
class Chats:
    """The dialogues of one page, one per session. Handlers share it across threads."""

    _dialogues: OrderedDict[str, Dialogue] = field(default_factory=OrderedDict)  # asked longest ago first
    _lock: Lock = field(default_factory=Lock)

    def show(self, session: str, race: Recorded | None) -> None:
        """Let a session's next follow-up go on from a race that was run before; ``None``: from nothing."""
        picture = str(race.pictures[-1]) if race is not None and race.pictures[-1] else None
        self._put(session, Dialogue(race, picture=picture))

    def held(self, session: str) -> Dialogue | None:
        """Return the dialogue of a session; ``None`` where it is no longer kept."""
        with self._lock:
            return self._dialogues.get(session)

    def keep_frames(self, session: str, frames: list[str]) -> None:
        """Note the frames of a session's last run."""
        if (dialogue := self.held(session)) is not None:
            dialogue.frames = frames

    def leave(self, session: str) -> None:
        """Forget the dialogue of a session."""
        with self._lock:
            self._dialogues.pop(session, None)

    def begin(
        self, session: str, pair: Pair, draft: str | None, question: str, picture: str | None, images: Sequence[Any],
        config: DecodingConfig, follow: bool,
    ) -> tuple[Generator[Any], list[Turn]]:  # fmt: skip
        """Begin the race of a follow-up or of a new dialogue. Return its events and the turns before it.

        Args:
            picture: path of the picture that the page shows; one that is not new is not sent again.
            images: that picture, opened.

        Raises:
            ValueError: bad input, or nothing to go on from.
        """
        from specllava.chat import Chat

        held, dialogue = self.held(session), Dialogue()
        if follow:
            if held is None or not held.turns:
                raise ValueError(LOST if held is None else NONE_YET)
            dialogue = held
            if len(held.turns) >= MAX_TURNS:
                raise ValueError(f"the dialogue has {MAX_TURNS} turns, the most that are kept: press Run to start over")
        before = dialogue.turns
        if dialogue.chat is None or dialogue.draft != draft:
            dialogue.chat, dialogue.draft = Chat(pair, _turns(dialogue)), draft
        new = () if follow and picture == dialogue.picture else tuple(images)
        events = dialogue.chat.race(question, new, config)
        dialogue.picture = picture
        self._put(session, dialogue)
        return events, before

    def _put(self, session: str, dialogue: Dialogue) -> None:
        with self._lock:
            self._dialogues[session] = dialogue
            self._dialogues.move_to_end(session)
            while len(self._dialogues) > MOST_DIALOGUES:
                self._dialogues.popitem(last=False)
            with_caches = [one for one in self._dialogues.values() if one.chat is not None]
            for one in with_caches[:-MOST_CACHES]:
                assert one.chat is not None  # as filtered
                one.chat.forget()


def _turns(dialogue: Dialogue) -> list[Any]:
    """Return the turns of a dialogue as a chat takes them up.

    Raises:
        ValueError: a race that cannot be gone on from.
    """
    from specllava.chat import Turn

    if dialogue.chat is not None:
        return list(dialogue.chat.turns)
    race = dialogue.recorded
    if race is None:
        return []
    if race.a is not None:
        raise ValueError("a comparison of A and B has two answers to go on from: run one of them first")
    if race.lead.turn:
        raise ValueError(f"this run is turn {race.lead.turn + 1} of a dialogue whose other turns are not in its file")
    turns = []
    for one in race.turns:
        if one.image_name and one.image is None:
            raise ValueError("this run came without its picture: choose a picture and press Run")
        media: tuple[Image.Image, ...] = (open_image(one.image),) if one.image else ()
        alone: DecodeTrace | None = one.target_only if one.speculative else None
        turns.append(Turn(one.prompt, media, one.lead, alone))
    return turns
