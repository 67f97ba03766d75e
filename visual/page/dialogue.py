"""Dialogues of the page's visitors: what each goes on from, and KV caches that all of them share a bounded memory for.

A visitor has one dialogue at a time: the race on show, recorded or run here, and the follow-up questions after it. It
stays until the visitor begins another or leaves. Dialogues and the KV caches of both lanes are kept within bounds of
bytes: those of the visitors who asked longest ago are dropped. A dropped KV cache is filled again with the next
question; a follow-up to a dropped dialogue is refused. No tensors here: whoever serves the page makes the chats.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

import gradio as gr
from PIL import Image

from specllava.config import DecodingConfig
from specllava.trace import TARGET_ONLY, DecodeTrace
from specllava.models.images import open_image, open_media
from visual.page.notices import refusal_notice
from visual.page.pictures import Picture, PictureSource, address_of, image_bytes
from visual.page.runs import QUICK
from visual.page.uploads import UploadStore
from visual.player.recorded import MAX_TURNS, Recorded
from visual.player.turns import DialoguePosition, DialogueTurn, dialogue_id, recorded_turns

if TYPE_CHECKING:
    from specllava.chat import Chat, Turn

MOST_DIALOGUE_BYTES: Final = 2**29  # of words, pictures and traces
MOST_CACHE_BYTES: Final = 2**30  # of KV caches that wait for a follow-up, the latest dialogue's apart
DIALOGUE_BYTES: Final = 4096  # of a dialogue besides its turns
STEP_BYTES, NODE_BYTES = 1200, 300  # of a trace in memory, measured on the shipped examples
LOST: Final = "your dialogue is no longer kept: press Run to begin another"
NONE_YET: Final = "there is no dialogue to go on with: press Run the race first"
KEEP, OVER = -1, -2  # instead of a turn's number: give the edit up, begin a new dialogue

TurnParts = tuple[str, tuple[Image.Image, ...], DecodeTrace, DecodeTrace | None]


@dataclass(eq=False)
class Dialogue:
    """The dialogue that a visitor's next follow-up continues.

    Args:
        id: as the player knows it.
        recorded: the race or dialogue that is on show, until the first follow-up.
        chat: questions and answers given here.
        past: its turns, while no models are held for it.
        edited: number of the turn that the next question replaces, from 0.
        sources: the picture of each turn, as the page knows it; ``None`` without one.
        models: name of the models of the chat.
        own: whether the recorded race is this visitor's alone, not one that the page shows to all.
    """

    id: str
    recorded: Recorded | None = None
    chat: Chat | None = None
    edited: int | None = None
    sources: list[PictureSource | None] = field(default_factory=list)
    models: str = ""
    own: bool = False
    counted: int = field(default=0, init=False)  # bytes, when it was last stored

    @property
    def turns(self) -> Sequence[Turn]:
        """The questions and answers given here."""
        return () if self.chat is None else self.chat.turns

    @property
    def empty(self) -> bool:
        """Whether there is nothing to go on from."""
        return self.recorded is None and self.chat is None

    @property
    def nbytes(self) -> int:
        """Bytes of words, pictures and traces, about."""
        traces = [trace for turn in self.turns for trace in (turn.trace, turn.alone) if trace is not None]
        if self.recorded is not None and self.own:
            traces += [trace for one in self.recorded.turns for trace in one.traces]
        media = [one for turn in self.turns for one in turn.media]
        pictures = sum(one.nbytes for one in self.sources if one is not None) + sum(map(image_bytes, media))
        return DIALOGUE_BYTES + sum(map(_trace_bytes, traces)) + pictures

    def edit(self, turn: int) -> tuple[str, PictureSource | None]:
        """Let the next question replace a turn. Return that turn's question and picture.

        Raises:
            ValueError: there is no such turn.
        """
        asked = [one.prompt for one in self.recorded.turns] if self.recorded else []
        if self.chat is not None:
            asked = [one.text for one in self.turns]
        if not 0 <= turn < len(asked):
            raise ValueError(f"the dialogue has {len(asked)} turns, and no turn {turn + 1} to edit")
        self.edited = turn
        return asked[turn], self.sources[turn] if turn < len(self.sources) else None

    def resume(self, make: Callable[[Sequence[TurnParts]], Chat], models: str) -> Chat:
        """Return the chat, made of the recorded turns if there is none yet, and anew for other models than before.

        Raises:
            ValueError: a race that cannot be gone on from.
        """
        if self.chat is None:
            self.chat = make([] if self.recorded is None else _turn_parts(self.recorded))
        elif models != self.models:
            self.chat = make([(turn.text, turn.media, turn.trace, turn.alone) for turn in self.turns])
        self.models = models
        return self.chat

    def ask(
        self, chat: Chat, picture: PictureSource, question: str, config: DecodingConfig, turns: int
    ) -> tuple[Generator[Any], DialoguePosition]:
        """Begin the race of the next question; return its events and its position in the dialogue.

        Pictures other than the last ones come with it.

        Args:
            turns: of a dialogue that are kept.

        Raises:
            ValueError: bad input, or more turns than are kept.
        """
        turn = len(chat.turns) if self.edited is None else self.edited
        if turn >= turns:
            raise ValueError(f"the dialogue has {turn} turns, the most that are kept: edit one of them, or start over")
        before, media = chat.turns[:turn], open_media(picture.open())
        last = next((one.media for one in reversed(before) if one.media), None)
        new = () if last == media else media
        events = chat.race(question, new, config, turn if turn < len(chat.turns) else None)
        self.edited = None
        self.sources = [*self.sources[:turn], picture]
        return events, DialoguePosition(self.id, tuple(map(_to_dialogue_turn, before)), own_picture=bool(new))


class Dialogues:
    """The dialogues of one page, at most one per session. Handlers share it across threads.

    Args:
        make: makes a chat of turns that were written down.
        most_bytes: of dialogues, without their KV caches, that are kept.
        most_cache_bytes: of KV caches that are kept, the latest dialogue's apart.
        turns: of a dialogue that are kept.
    """

    def __init__(
        self,
        make: Callable[[Sequence[TurnParts]], Chat],
        most_bytes: int = MOST_DIALOGUE_BYTES,
        most_cache_bytes: int = MOST_CACHE_BYTES,
        turns: int = MAX_TURNS,
    ) -> None:
        self._make, self._turns = make, turns
        self._most_bytes, self._most_cache_bytes = most_bytes, most_cache_bytes
        self._dialogues: OrderedDict[str, Dialogue] = OrderedDict()  # the one that was asked longest ago comes first
        self._lock = Lock()

    def show(self, session: str, race: Recorded | None, own: bool = False) -> None:
        """Let a session's next follow-up go on from a race that was run before; without one there is nothing to.

        Args:
            own: as of :class:`Dialogue`.
        """
        if race is None:
            self._put(session, Dialogue(""))
            return
        sources: list[PictureSource | None] = [Picture(file=str(file)) if file else None for file in race.pictures]
        turns = () if race.a else recorded_turns(race)
        self._put(session, Dialogue(dialogue_id(turns), race, sources=sources, own=own))

    def begin(
        self, session: str, picture: PictureSource, question: str, config: DecodingConfig, follow: bool,
        models: str = "", make: Callable[[Sequence[TurnParts]], Chat] | None = None, system: str | None = None,
    ) -> tuple[Generator[Any], DialoguePosition]:  # fmt: skip
        """Begin the race of a follow-up or, unless ``follow``, of a new dialogue; return its events and position.

        Args:
            models: name of the models that answer.
            make: makes a chat of these models, instead of the page's own.
            system: text of the system turn, from this question on.

        Raises:
            ValueError: bad input, or nothing to go on from.
        """
        with self._lock:
            held = self._dialogues.get(session)
            if follow and (held is None or held.empty):
                raise ValueError(LOST if held is None else NONE_YET)
            if held is None:
                held = self._dialogues[session] = Dialogue("")
            self._dialogues.move_to_end(session)
        dialogue = held if follow else Dialogue(uuid.uuid4().hex)
        chat = dialogue.resume(make or self._make, models)
        chat.system = system
        self._make_room(session)
        begun = dialogue.ask(chat, picture, question, config, self._turns)
        self._put(session, dialogue, held)
        return begun

    def edit(self, session: str, turn: int | None) -> tuple[str, PictureSource | None]:
        """Let the next follow-up replace a turn, or none; return that turn's question and picture.

        Raises:
            ValueError: there is no such turn.
        """
        with self._lock:
            dialogue = self._dialogues.get(session)
        if dialogue is None or dialogue.empty:
            raise ValueError(LOST)
        if turn is None:
            dialogue.edited = None
            return "", None
        return dialogue.edit(turn)

    def leave(self, session: str) -> None:
        """Forget the dialogue of a session."""
        with self._lock:
            self._dialogues.pop(session, None)

    @property
    def nbytes(self) -> int:
        """Bytes of all KV caches that are kept."""
        with self._lock:
            return sum(map(_nbytes, self._dialogues.values()))

    def _put(self, session: str, dialogue: Dialogue, before: Dialogue | None = None) -> None:
        """Store a session's dialogue; with ``before``, only if that is still the session's.

        Reading pictures takes seconds, in which the visitor may open another race, or leave.
        """
        with self._lock:
            if before is not None and self._dialogues.get(session) is not before:
                return
            self._dialogues[session] = dialogue
            self._dialogues.move_to_end(session)
            dialogue.counted = dialogue.nbytes
            kept = sum(one.counted for one in self._dialogues.values())
            while kept > self._most_bytes and len(self._dialogues) > 1:
                kept -= self._dialogues.popitem(last=False)[1].counted

    def _make_room(self, session: str) -> None:
        """Drop the oldest KV caches of dialogues other than this session's."""
        with self._lock:
            waiting = [dialogue for holder, dialogue in self._dialogues.items() if holder != session]
            kept = sum(map(_nbytes, waiting))
            for dialogue in waiting:
                if kept <= self._most_cache_bytes:
                    break
                if dialogue.chat is not None:
                    kept -= dialogue.chat.nbytes
                    dialogue.chat.forget()


def _nbytes(dialogue: Dialogue) -> int:
    return 0 if dialogue.chat is None else dialogue.chat.nbytes


def _trace_bytes(trace: DecodeTrace) -> int:
    nodes = sum(len(step.tree) - 1 + len(step.pruned) for step in trace.steps)
    return STEP_BYTES * len(trace.steps) + NODE_BYTES * nodes


def _turn_parts(race: Recorded) -> list[TurnParts]:
    """Return the turns of a recorded race as a chat takes them up."""
    if race.a is not None:
        raise ValueError("a comparison of A and B has two answers to go on from: run one of them first")
    if race.lead.turn:
        raise ValueError(f"this run is turn {race.lead.turn + 1} of a dialogue whose other turns are not in its file")
    parts: list[TurnParts] = []
    for one in race.turns:
        if one.image_name and one.image is None:
            raise ValueError("this run came without its picture: choose a picture and press Run the race")
        media = (open_image(one.image),) if one.image else ()
        alone = one.target_only if one.speculative else None
        parts.append((one.prompt, media, one.lead, alone))
    return parts


def _to_dialogue_turn(turn: Turn) -> DialogueTurn:
    image = turn.trace.image if turn.media else None
    if turn.trace.lane == TARGET_ONLY:
        return DialogueTurn(turn.trace, None, image)
    return DialogueTurn(turn.alone, turn.trace, image)


def connect_dialogue(dialogues: Dialogues, uploads: UploadStore, player: gr.HTML, page: Sequence[Any]) -> None:
    """Connect the player's ``edit`` event.

    Args:
        page: the page's reference of its picture, picture, question and notice.
    """

    def edit(event: gr.EventData, request: gr.Request) -> tuple[Any, ...]:
        values = edited(dialogues, request.session_hash or "", (event._data or {}).get("turn"))
        return uploads.with_reference(request.session_hash, values)

    player.edit(edit, None, list(page), **QUICK)


def edited(dialogues: Dialogues, session: str, turn: Any) -> tuple[Any, ...]:
    """Return picture source, image, question and notice for a turn to edit; a refusal changes only the notice."""
    same = (gr.skip(), gr.skip(), gr.skip())
    if turn == OVER:
        dialogues.show(session, None)
        return *same, ""
    try:
        if not isinstance(turn, int):
            raise ValueError("the turn to edit must be a number")
        question, picture = dialogues.edit(session, None if turn == KEEP else turn)
    except ValueError as refusal:
        return *same, refusal_notice(refusal)
    if turn == KEEP:
        return *same, ""
    shown = (picture, address_of(picture)) if picture else same[:2]
    return *shown, question, ""
