"""What the visitors of one running page share, whose run is the latest, and what a follow-up goes on from."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from threading import Event, Lock
from typing import TYPE_CHECKING, Any, Final, Literal
from weakref import ref

from specllava.config import DecodingConfig, Limits
from specllava.models.images import open_image
from specllava.trace import DecodeTrace
from visual.player.frames import Turn
from visual.player.lessons import Lesson
from visual.player.recorded import MAX_TURNS, Recorded

if TYPE_CHECKING:
    from PIL import Image

    from specllava.chat import Chat
    from specllava.pair import Pair


MOST_CACHES: Final = 4  # chats that keep their KV caches; others read their dialogue again


@dataclass(eq=False)
class Dialogue:
    """What a visitor's next follow-up continues: a recorded race, or questions asked here.

    Args:
        picture: path of the picture of the last question.
        draft: name of the draft that guesses in ``chat``; ``None``: the page's own.
        frames: of what the stage shows of it.
    """

    recorded: Recorded | None = None
    picture: str | None = None
    chat: Chat | None = None
    draft: str | None = None
    frames: list[str] = field(default_factory=list)

    @property
    def last(self) -> Any:
        """The last turn that was run here, of a chat; ``None`` without one."""
        earlier = len(self.recorded.turns) if self.recorded is not None else 0
        return self.chat.turns[-1] if self.chat is not None and len(self.chat.turns) > earlier else None

    @property
    def turns(self) -> list[Turn]:
        """Questions and answers so far."""
        if self.chat is not None:
            return [(turn.text, turn.answer) for turn in self.chat.turns]
        return [] if self.recorded is None else [(one.prompt, one.lead.text) for one in self.recorded.turns]

    def ask(
        self, pair: Pair, draft: str | None, question: str, picture: str | None, images: Sequence[Any],
        config: DecodingConfig,
    ) -> Generator[Any]:  # fmt: skip
        """Begin the race of the next question. Return its events.

        Args:
            picture: path of the picture that the page shows; one that is not new is not sent again.
            images: that picture, opened.

        Raises:
            ValueError: bad input, or a dialogue that cannot go on.
        """
        from specllava.chat import Chat

        turns = self.turns
        if len(turns) >= MAX_TURNS:
            raise ValueError(f"the dialogue has {MAX_TURNS} turns, the most that are kept: press Run to start over")
        if self.chat is None or self.draft != draft:
            self.chat, self.draft = Chat(pair, _turns(self)), draft
        new = () if turns and picture == self.picture else tuple(images)
        events = self.chat.race(question, new, config)
        self.picture = picture
        return events


def picture_path(race: Recorded | None, turn: int = -1) -> str | None:
    """Return the path of the picture of a race, or of one turn of a dialogue."""
    picture = race.pictures[turn] if race is not None else None
    return str(picture) if picture else None


def opened_dialogue(race: Recorded | None, frames: list[str]) -> Dialogue:
    """Return the dialogue of a race that was run before, which the stage shows; ``None``: an empty one."""
    return Dialogue(race, picture_path(race), frames=frames)


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
    if race.lead.turn or any(one.image_name and one.image is None for one in race.turns):
        raise ValueError("this file lacks turns or a picture to go on from: choose a picture and press Run")
    turns = []
    for one in race.turns:
        media: tuple[Image.Image, ...] = (open_image(one.image),) if one.image else ()
        alone: DecodeTrace | None = one.target_only if one.speculative else None
        turns.append(Turn(one.prompt, media, one.lead, alone))
    return turns


log = logging.getLogger("specllava.page")
RunState = Literal["on", "stopped", "left"]
MOST_SESSIONS: Final = 10_000  # whose runs are counted; those that asked longest ago are forgotten
LentRace = Callable[..., Generator[list[str]]]


@dataclass(eq=False)
class Runs:
    """Which run of each session is its latest, and whether it was stopped. Handlers share it across threads."""

    _latest: OrderedDict[str, tuple[int, RunState]] = field(default_factory=OrderedDict)
    _count: int = 0
    _lock: Lock = field(default_factory=Lock)

    def ask(self, session: str) -> int:
        """Count a run that a session asks for, which ends the one before it. Return its number."""
        with self._lock:
            self._count += 1
            self._latest[session] = self._count, "on"
            self._latest.move_to_end(session)
            while len(self._latest) > MOST_SESSIONS:
                self._latest.popitem(last=False)
            return self._count

    def end(self, session: str, number: int) -> None:
        """Note that a run has ended, or was never begun; a newer one of the session goes on."""
        with self._lock:
            latest = self._latest.get(session)
            if latest is not None and latest[0] == number:
                del self._latest[session]

    def stop(self, session: str) -> None:
        """Stop the run of a session; what it has so far stays."""
        with self._lock:
            if session in self._latest:
                self._latest[session] = self._latest[session][0], "stopped"

    def leave(self, session: str) -> None:
        """End the run of a session that wants something else, or is gone."""
        with self._lock:
            self._latest.pop(session, None)

    def state(self, session: str, number: int) -> RunState:
        """Return what became of a run."""
        with self._lock:
            latest = self._latest.get(session)
            return latest[1] if latest is not None and latest[0] == number else "left"


@dataclass(frozen=True)
class PageState:
    """What the visitors of one page share.

    Args:
        backend: waits for the models; raises if they could not be loaded.
        recorded: races to show before anything runs; the page opens with the first.
        lessons: guided examples.
        preset: that the page was started with; "" if it is none.
        opened: a race from a file, to show before the recorded ones.
        drafts: the target with other drafts, by the draft's name.
        lent: runs a race where a GPU is lent for it, and yields frames; ``None``: it runs here.
        launched: set once the page is served.
        caches: chats that keep their KV caches while their visitors are there, asked longest ago first; one run at a
            time changes them.
    """

    backend: Callable[[], Pair]
    recorded: Sequence[Recorded] = ()
    lessons: Sequence[Lesson] = ()
    preset: str = "toy"
    opened: Recorded | None = None
    limits: Limits = field(default_factory=Limits)
    drafts: Mapping[str, Callable[[], Pair]] = field(default_factory=dict)
    lent: LentRace | None = None
    launched: Event = field(default_factory=Event)
    runs: Runs = field(default_factory=Runs)
    caches: list[ref[Chat]] = field(default_factory=list)

    @property
    def first(self) -> Recorded | None:
        """The race that the page opens with."""
        return self.opened or next(iter(self.recorded), None)

    @property
    def is_toy(self) -> bool:
        """Whether the pair has seen nothing but toy scenes."""
        return self.preset.split("-")[0] in ("toy", "smol")

    @cached_property
    def races(self) -> dict[str, Recorded]:
        """The races that a visitor may open by name: examples, and those of the lessons."""
        races = {race.name: race for lesson in self.lessons for race in lesson.races}
        return races | {race.name: race for race in self.recorded}

    def pair(self, draft: str | None) -> Any:
        """Return the loaded pair with one of ``drafts``; ``None``: with the draft that the page started with."""
        return self.backend() if draft is None else self.drafts[draft]()

    def keep_caches(self, chat: Chat) -> None:
        """Let a chat keep its KV caches, and those that were asked long ago drop theirs."""
        kept = [one for held in self.caches if (one := held()) is not None and one is not chat] + [chat]
        for one in kept[:-MOST_CACHES]:
            one.forget()
        self.caches[:] = map(ref, kept[-MOST_CACHES:])

    @cached_property
    def loading(self) -> Future[Any]:
        """The page's own pair, once it is loaded, or why it could not be; waited for on a thread of its own."""
        thread = ThreadPoolExecutor(1, "loading")
        waited = thread.submit(self._loaded)
        thread.shutdown(wait=False)
        return waited

    def _loaded(self) -> Any:
        try:
            return self.backend()
        except Exception:
            log.exception("the models could not be loaded")
            raise
