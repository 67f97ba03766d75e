"""A dialogue, whose earlier turns are not read again."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass

from PIL import Image

from specllava.config import DecodingConfig
from specllava.engine.pool import KVCaches
from specllava.models.family import ImageFeatures
from specllava.models.images import Pictures, open_media
from specllava.models.tokens import Message, escape_special_tokens, special_tokens
from specllava.pair import Pair
from specllava.spec_decode.loop import Event, Lane, RaceEvent, run_lanes
from specllava.trace import DecodeTrace


@dataclass(frozen=True, slots=True)
class Turn:
    """A message of the user and its answer.

    Args:
        media: the pictures that came with this message.
        trace: how it was answered; ``trace.turn`` is the turn's number, so tau per turn is ``summarise`` of its traces.
        alone: how the target alone answered beside it, where the turn was a race.
    """

    text: str
    media: tuple[Image.Image, ...]
    trace: DecodeTrace
    alone: DecodeTrace | None = None

    @property
    def answer(self) -> str:
        return self.trace.text


class Chat:
    """A dialogue with a pair. Every answer is that of ``pair.generate(None, chat.messages)``, without a whole prefill.
    Caches and features of pictures are reused as far as the new prompt equals the last one.

    A turn that fails, or is refused, leaves the chat as it was. One that is stopped (its generator closed) is kept
    with its text so far; a new question stops the answer before it. Earlier answers are read back as text, so a chat
    can be saved and resumed. Where the text has other tokens than were emitted, the prefill starts there.

    A turn may be a race (:meth:`race`). The target alone then has KV caches of its own, so each lane reuses its own
    text. The dialogue goes on with the answer of the lane that ``config`` describes.

    For the memory that caches take see :class:`~specllava.engine.pool.KVCaches`. Not for two threads.

    Args:
        turns: of a saved dialogue; the next question reads them again.
        system: text of the system turn, if there is one. It may be changed: the next question reads all again.
    """

    def __init__(self, pair: Pair, turns: Sequence[Turn] = (), system: str | None = None) -> None:
        self._pair, self.system = pair, system
        self.turns: tuple[Turn, ...] = tuple(turns)
        self._running: Generator[RaceEvent] | None = None
        self.forget()

    @property
    def messages(self) -> list[Message]:
        """The dialogue so far, as ``Pair`` reads it when a question is added."""
        special = special_tokens(self._pair.processor.tokenizer)
        messages: list[Message] = [] if self.system is None else [{"role": "system", "content": self.system}]
        for turn in self.turns:
            # A model that spells a special token must not open an image slot, or end its turn.
            answer = escape_special_tokens(turn.answer, special)
            messages += [_message(turn.text, turn.media), {"role": "assistant", "content": answer}]
        return messages

    def forget(self) -> None:
        """Free the caches and keep the turns: the next question reads the dialogue again."""
        self._caches = KVCaches(self._pair.engines)
        self._beside = KVCaches(self._pair.engines)  # of the target alone beside the lane that answers
        self._features: dict[str, ImageFeatures] = {}  # of the last prompt's pictures, by key

    def ask(self, text: str, image: Pictures = None, config: DecodingConfig | None = None) -> DecodeTrace:
        """Ask a question and return the answer's trace; ``.text`` is the answer.

        Raises:
            ValueError: the chat and ``config.max_new_tokens`` do not fit the context, or bad input; in one line, before
                any computing.
        """
        for _ in self.stream(text, image, config):
            pass
        return self.turns[-1].trace

    def stream(self, text: str, image: Pictures = None, config: DecodingConfig | None = None) -> Generator[Event]:
        """``ask``, step by step: a ``Prefill``, then a ``StepTrace`` per target pass. Close it to stop."""
        return _items(self._begin(text, image, config, alone=False))

    def race(self, text: str, image: Pictures = None, config: DecodingConfig | None = None) -> Generator[RaceEvent]:
        """``stream`` as a race of target-only against ``config``, each with KV caches that it keeps between turns.

        If ``config`` drafts nothing, target-only runs by itself. A race that is stopped before both lanes have read the
        prompt leaves the chat as it was.

        Raises:
            ValueError: as ``ask``.
        """
        return self._begin(text, image, config, alone=True)

    def _begin(self, text: str, image: Pictures, config: DecodingConfig | None, alone: bool) -> Generator[RaceEvent]:
        if self._running is not None:
            self._running.close()
        chosen, media = config or DecodingConfig(), open_media(image)
        messages = [*self.messages, _message(text, media)]
        prompt = self._pair.prompt(None, messages, chosen.max_new_tokens, self._features)
        self._features = prompt.features_by_key
        lane = Lane.of(chosen, prompt)
        self._running = self._answer(lane.with_target_only() if alone else [lane], media)
        return self._running

    def _answer(self, lanes: Sequence[Lane], media: tuple[Image.Image, ...]) -> Generator[RaceEvent]:
        """Run the lanes of a turn, the last of which answers it."""
        past: list[RaceEvent] = []
        caches = [self._beside, self._caches][-len(lanes) :]
        requests = [self._pair.request(*one) for one in zip(lanes, caches, strict=True)]
        with closing(run_lanes(requests)) as events:
            try:
                for event in events:
                    past.append(event)
                    yield event
            except GeneratorExit:
                self._keep(lanes, media, past)
                raise
        self._keep(lanes, media, past)

    def _keep(self, lanes: Sequence[Lane], media: tuple[Image.Image, ...], events: Sequence[RaceEvent]) -> None:
        traces = self._pair.collect(events)
        *alone, trace = (traces.get(lane.name) for lane in lanes)
        if trace is not None:
            self.turns = (*self.turns, Turn(lanes[-1].prompt.text, media, trace, *alone))


def _items(events: Generator[RaceEvent]) -> Generator[Event]:
    with closing(events):
        for event in events:
            yield event.item


def _message(text: str, media: Sequence[Image.Image]) -> Message:
    parts = [{"type": "image", "image": one} for one in media]
    return {"role": "user", "content": [*parts, {"type": "text", "text": text}]}
