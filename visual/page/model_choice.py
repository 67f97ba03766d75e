"""Which models run for a visitor: the page's pair, with another draft, or in another precision; or another pair.

The form's setting ``drafter`` names a drafter, or another draft after :data:`DRAFT`; ``precision`` names a precision,
``pair`` another pair, which has neither.

Another pair is loaded when it is first chosen. That takes minutes and may begin with a download, so it runs on a thread
of its own. Runs on loaded models go on, and the visitor sees the progress. Whoever serves the page loads and weighs
pairs; no models are imported here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from threading import Lock
from typing import Any, Final, TypeVar

from specllava.core.config import short
from visual.page.notices import NotYet

PRECISION: Final = "precision"  # the setting that is no option of decoding
PAIR: Final = "pair"  # likewise
DRAFT: Final = "draft: "  # before the name of a draft, in the setting that is otherwise a drafter's name
OWN, AS_STARTED = "model", "as started"  # the draft and the precision that the page was started with
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Chosen:
    """The models of a request: a draft and a precision, or another pair, each by its name."""

    draft: str = OWN
    precision: str = AS_STARTED
    pair: str = AS_STARTED

    def __str__(self) -> str:
        if self.pair != AS_STARTED:
            return self.pair
        changed = (self.draft if self.draft != OWN else "", self.precision if self.precision != AS_STARTED else "")
        return ", ".join(filter(None, changed)) or AS_STARTED


@dataclass(frozen=True, slots=True)
class ModelChoices:
    """What a page offers beside the models that it was started with.

    Args:
        own: name of the draft that it was started with; "" where there is none.
        about: what that draft is.
        drafts, precisions: the others by name, and what they are.
        pairs: says which other pairs there are, as :meth:`visual.page.model_choice.OtherPairs.offers`; not without any.
        tree: options of decoding with which others measured its own pair, which form and calls begin with.
    """

    own: str = ""
    about: str = ""
    drafts: Mapping[str, str] = field(default_factory=dict)
    precisions: Mapping[str, str] = field(default_factory=dict)
    pairs: Callable[[], list[dict[str, Any]]] | None = None
    tree: Mapping[str, Any] = field(default_factory=dict)

    def all_drafts(self) -> dict[str, str]:
        """Return all drafts by what they are called, in order: how :class:`Chosen` names each."""
        return ({self.own: OWN} if self.own else {}) | {name: name for name in self.drafts}


def read_models(settings: Mapping[str, Any] | None) -> Chosen:
    """Return the models that settings choose; they may be anything that a browser sent."""
    given = settings or {}
    pair = str(given.get(PAIR, AS_STARTED))
    if pair != AS_STARTED:
        return Chosen(pair=pair)
    drafter = str(given.get("drafter", OWN))
    draft = drafter.removeprefix(DRAFT) if drafter.startswith(DRAFT) else OWN
    return Chosen(draft, str(given.get(PRECISION, AS_STARTED)))


def chosen_models(others: Mapping[Chosen, Item], chosen: Chosen) -> Item | None:
    """Return the value of the chosen models; ``None``: the page's own.

    Raises:
        ValueError: there are none of that name.
    """
    if chosen == Chosen():
        return None
    if chosen not in others:
        names = "; ".join(map(str, (Chosen(), *others)))
        raise ValueError(f"there are no models {short(str(chosen))}: choose {names}")
    return others[chosen]


@dataclass(frozen=True, slots=True)
class PairOffer:
    """A pair as it can be chosen.

    Args:
        about: its models, the memory that they take and what is downloaded.
        why: why it cannot be loaded here; "" if it can.
        tree: options of decoding with which others measured it, which choosing it sets.
    """

    name: str
    about: str
    why: str = ""
    tree: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Held:
    """A pair that is there, or being loaded since a moment of ``time.monotonic``."""

    pair: Future[Any]
    since: float

    @property
    def failed(self) -> bool:
        return self.pair.done() and self.pair.exception() is not None

    def progress_line(self, name: str) -> str:
        """Return the time for which it has been loading, in words."""
        seconds = time.monotonic() - self.since
        return f"{name} is being loaded, for {seconds:.0f} seconds by now; runs on other models go on meanwhile."


class OtherPairs:
    """The pairs beside the page's own. Handlers share it across threads.

    Args:
        names: of the pairs that may be loaded.
        load: loads one of them; a ``ValueError`` says what is wrong.
        weigh: describes them with the memory that is free by now, and that pairs it is given would make free.
        drop: lets go of whatever else holds a pair; a pair that was chosen before then makes room for the next. Without
            it all stay: others may be using them.
    """

    def __init__(
        self,
        names: Sequence[str],
        load: Callable[[str], Any],
        weigh: Callable[[Sequence[str]], list[PairOffer]],
        drop: Callable[[str], None] | None = None,
    ) -> None:
        self.names = tuple(names)
        self._load, self._weigh, self._drop = load, weigh, drop
        self._held: dict[str, _Held] = {}
        self._lock = Lock()
        self._thread = ThreadPoolExecutor(1, "pairs")

    def get(self, name: str) -> Any:
        """Return a pair that is loaded; of one that is not, loading begins.

        Raises:
            NotYet: it is being loaded.
            ValueError: it cannot be, or another one is at the moment.
            Exception: whatever else loading failed with, such as too little memory.
        """
        with self._lock:
            held = self._held.get(name) or self._begin(name)
        if not held.pair.done():
            raise NotYet(held.progress_line(name), lambda: self._progress(name))
        if held.failed:
            with self._lock:
                if self._held.get(name) is held:
                    del self._held[name]  # the next choice tries again
        try:
            return held.pair.result()
        except ValueError as refusal:
            raise ValueError(f"{name} cannot be loaded: {refusal}") from refusal

    def offers(self) -> list[dict[str, Any]]:
        """Return all pairs as data for ``static/pair_choice.js``, those that are there or on their way first."""
        with self._lock:
            held = {name: one.pair.done() for name, one in self._held.items() if not one.failed}
        states = {name: "is loaded" if done else "is being loaded" for name, done in held.items()}
        given = self._weigh([name for name, done in held.items() if done] if self._drop else [])
        offers = [asdict(offer) | {"state": states.get(offer.name, "")} for offer in given]
        return sorted(offers, key=lambda offer: (not offer["state"], bool(offer["why"])))

    def _begin(self, name: str) -> _Held:
        busy = next((other for other, one in self._held.items() if not one.pair.done()), None)
        if busy is not None:
            raise ValueError(f"{busy} is being loaded, and pairs are loaded one at a time: try again in a minute")
        if self._drop is not None:
            for other in tuple(self._held):
                del self._held[other]
                self._drop(other)
        self._held[name] = _Held(self._thread.submit(self._load, name), time.monotonic())
        return self._held[name]

    def _progress(self, name: str) -> str | None:
        """Return the progress of loading in words; ``None`` once it is over."""
        held = self._held.get(name)
        return None if held is None or held.pair.done() else held.progress_line(name)
