"""What the page's events do: open a recorded race, show a picture that waits, run, stop, measure what needed it."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import gradio as gr

from specllava.files import SPLITS, scene_images
from specllava.models.images import is_animated, open_image
from visual.page.run import PICTURE_PIXELS, Asked, refusal_line, run_frames, session_of
from visual.page.settings import FIELDS, read_draft, read_settings
from visual.page.state import PageState
from visual.player.frames import data_address, grounding_frames, race_frames, waiting_frames
from visual.player.recorded import Recorded, read_recorded

FIRST_QUESTION: Final = "Describe this image in detail."
STRANGE: Final = (
    "A strange scene: it has a thing in a colour in which training never showed it. Ask about it, and press Run."
)
NEW: Final = "A scene that neither model has answered about. Ask about it, and press Run."
PHOTO: Final = (
    "Your picture. These models have seen nothing but toy scenes, so they will talk nonsense about it; watch that both"
    " talk the same nonsense. Press Run."
)
OWN_PICTURE: Final = "Your picture. Ask about it, and press Run."
Shown = tuple[Any, ...]  # values of player, picture and question


@cache
def _drawn(path: Path) -> str:
    return data_address(open_image(path))


def picture_path(race: Recorded | None, turn: int = -1) -> str | None:
    """Return the path of the picture of a race, or of one turn of a dialogue."""
    picture = race.pictures[turn] if race is not None else None
    return str(picture) if picture else None


def shown_frames(state: PageState, race: Recorded, turn: int | None = None) -> list[str]:
    """Make the frames of a race that was run before; the page's first example is told in beats first."""
    own = state.races.get(race.name) is race
    pictures = [_drawn(picture) if picture else None for picture in race.pictures]
    source = "recorded run" if own else f"from {race.name}.json"
    toured = race is next(iter(state.recorded), None)
    return race_frames(race, source, pictures, race.name if own else None, turn, toured)


@dataclass(frozen=True)
class Handlers:
    """Handlers of one page's events. Gradio gives the request by its annotation."""

    state: PageState
    made: dict[tuple[str, int | None], list[str]] = field(default_factory=dict)  # frames of recorded races

    def begin(self, request: gr.Request) -> None:
        """Let a new visitor's follow-up go on from the race that the page opens with."""
        self.state.chats.show(request.session_hash or "", self.state.first)

    def leave(self, request: gr.Request) -> None:
        """Forget a visitor who is gone."""
        self.state.runs.leave(request.session_hash or "")
        self.state.chats.leave(request.session_hash or "")

    def opened(self, event: gr.EventData, request: gr.Request) -> Shown:
        """Open the recorded race, and the turn, that the player asks for."""
        asked = event._data if isinstance(event._data, dict) else {}
        return self._open(str(asked.get("race", "")), asked.get("turn"), request)

    def example(self, name: str) -> Callable[[gr.Request], Shown]:
        """Return the handler of a thumbnail."""

        def show(request: gr.Request) -> Shown:
            return self._open(name, None, request)

        return show

    def _open(self, name: str, turn: Any, request: gr.Request) -> Shown:
        race = self.state.races.get(name)
        if race is None:
            raise gr.Error(f"There is no recorded run {name[:40]!r}.", print_exception=False)
        turns = len(race.turns)
        at = min(max(turn, 0), turns - 1) if isinstance(turn, int) else turns - 1
        key = (name, at if turns > 1 and turn is not None else None)
        if key not in self.made:
            self.made[key] = shown_frames(self.state, race, key[1])
        self._replace(request, race)
        return self.made[key], picture_path(race, at), race.turns[at].prompt

    def _replace(self, request: gr.Request, race: Recorded | None) -> None:
        """End a visitor's run and let the next follow-up go on from a race, ``None``: from nothing."""
        self.state.runs.leave(request.session_hash or "")
        self.state.chats.show(request.session_hash or "", race)

    def new_scene(self, request: gr.Request) -> Shown:
        """Show one of the scenes that ship."""
        split = random.choice(SPLITS)
        path = str(random.choice(scene_images(split)))
        return self._waits(request, path, "", STRANGE if split == "held-out" else NEW)

    def uploaded(self, path: str | None, asked: str, request: gr.Request) -> Shown:
        """Show an uploaded picture, or a race file; what cannot be used is said and changes nothing."""
        try:
            return self._read(path, asked, request)
        except ValueError as refusal:
            gr.Warning(f"This file cannot be used: {refusal}")
            return gr.skip(), gr.skip(), gr.skip()

    def _read(self, path: str | None, asked: str, request: gr.Request) -> Shown:
        if path is None:
            raise ValueError("no file came")
        file, limits = Path(path), self.state.limits
        if file.suffix.lower() == ".json":
            race = read_recorded(file, limits.trace_bytes)
            frames = shown_frames(self.state, race)
            self._replace(request, race)
            if race.filled:
                gr.Info(race.filled)
            return frames, picture_path(race), race.turns[-1].prompt
        size = file.stat().st_size
        if size > limits.upload_bytes:
            raise ValueError(f"it has {size:,} bytes, and at most {limits.upload_bytes:,} are read: make it smaller")
        if is_animated(file):
            gr.Info("The picture is animated: the models see its first frame.")
        return self._waits(request, path, asked, PHOTO if self.state.is_toy else OWN_PICTURE)

    def _waits(self, request: gr.Request, path: str, asked: str, sentence: str) -> Shown:
        """Show a picture that waits for its question; the run before it ends, and so does its dialogue."""
        address = data_address(open_image(path, PICTURE_PIXELS, self.state.limits.pixels))
        self._replace(request, None)
        question = asked if asked.strip() else FIRST_QUESTION
        return waiting_frames(address, question, sentence, "picture"), path, question

    def ask(self, request: gr.Request) -> tuple[Any, ...]:
        """Count a run that a visitor asks for, past the queue: it ends the one before. Run turns to Stop."""
        number = self.state.runs.ask(session_of(request))
        return number, gr.update(visible=False), gr.update(visible=True)

    def run(self, follow: bool) -> Callable[..., Generator[Any]]:
        """Return the handler of Run, or of Follow up."""

        def race(
            request: gr.Request, number: int, path: str | None, asked: str | None, *values: Any
        ) -> Generator[Any]:
            session = session_of(request)
            try:
                draft = read_draft(values[list(FIELDS).index("drafter")])
                config = read_settings(values, self.state.limits)
                if not (asked or "").strip():
                    raise ValueError("the question is empty")
            except ValueError as refusal:
                self.state.runs.end(session, number)
                gr.Warning(f"This cannot run: {refusal_line(refusal)}")
                return
            asked_run = Asked(session, number, path, (asked or "").strip(), config, draft, follow)
            yield from run_frames(self.state, asked_run)

        return race

    def finish(self, request: gr.Request) -> tuple[Any, ...]:
        """Turn Stop to Run, unless a newer run is on."""
        on = self.state.runs.is_on(request.session_hash or "")
        return gr.update(visible=not on), gr.update(visible=on)

    def stop(self, request: gr.Request) -> None:
        """Stop a visitor's run; what it has so far stays."""
        self.state.runs.stop(request.session_hash or "")

    def refuse(self, request: gr.Request) -> tuple[Any, ...]:
        """Say that the queue is full: only the browser learns of it."""
        self.state.runs.leave(request.session_hash or "")
        line = f"This did not run: {self.state.limits.waiting} runs are waiting already. Try again in a minute."
        return gr.update(visible=True), gr.update(visible=False), line

    def needed(self, request: gr.Request) -> Generator[Any]:
        """Measure which words of the run on the stage needed the picture."""
        from specllava.scoring import ground

        dialogue, measured = self.state.chats.dialogue(request.session_hash or ""), None
        try:
            if dialogue is None or not dialogue.frames or len(dialogue.turns) != 1:
                raise ValueError("it is measured of the first question of a dialogue that was run here")
            pair, question = self.state.pair(dialogue.draft), dialogue.turns[0][0]
            for trace in ground(pair, dialogue.media, question, dialogue.trace):
                measured = trace
                yield gr.skip()
        except ValueError as refusal:
            gr.Warning(f"This cannot be measured: {refusal}")
            return
        if measured is not None:
            yield [*dialogue.frames, *grounding_frames(measured)]
