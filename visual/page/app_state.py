"""State that the visitors of one running page share, with the models that answer them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from threading import Event
from typing import TYPE_CHECKING

from specllava.config import Limits
from specllava.trace import RunInfo
from visual.page.dialogue import Dialogues, TurnParts
from visual.page.model_choice import DraftChoices, chosen_models
from visual.page.run_requests import RunRequests
from visual.page.uploads import UploadStore
from visual.player.lessons import Lesson
from visual.player.recorded import Recorded

if TYPE_CHECKING:
    from specllava.chat import Chat
    from specllava.lab import Lab
    from specllava.pair import Pair
    from visual.page.run import ZeroGPUPair

log = logging.getLogger("specllava.page")


@dataclass(frozen=True)
class Models:
    """The target with another draft that a visitor may choose; each part is made at its first use.

    Args:
        backend, lab, chat: as of :class:`AppState` and its dialogues.
    """

    backend: Callable[[], Pair | ZeroGPUPair]
    lab: Callable[[], Lab]
    chat: Callable[[Sequence[TurnParts]], Chat]


@dataclass(frozen=True)
class AppState:
    """What the visitors of one page share: the models, the recorded races, and the runs that visitors have asked for.

    Args:
        backend: waits for the models; raises if they could not be loaded.
        recorded: races to show before anything runs; the first is what the page opens with.
        pair: preset that the page was started with; "" if it is none.
        requests: races and experiments that wait or run.
        opened: a race from a file, to show before the recorded ones.
        lessons: guided examples.
        code: address of the project's files, for links; empty if none is known.
        lab: waits for the models; without it the page has no lab.
        dialogues: of the visitors; without them no question is a follow-up.
        others: the target with other drafts, by the draft's name.
        choices: what these are called.
        launched: set once the page is served.
        uploads: of the visitors.
    """

    backend: Callable[[], Pair | ZeroGPUPair]
    recorded: Sequence[Recorded] = ()
    pair: str = "toy"
    requests: RunRequests = field(default_factory=RunRequests)
    opened: Recorded | None = None
    lessons: Sequence[Lesson] = ()
    code: str = ""
    lab: Callable[[], Lab] | None = None
    dialogues: Dialogues | None = None
    others: Mapping[str, Models] = field(default_factory=dict)
    choices: DraftChoices = field(default_factory=DraftChoices)
    launched: Event = field(default_factory=Event)
    uploads: UploadStore = field(default_factory=UploadStore)

    @property
    def limits(self) -> Limits:
        """What runs and files are held to."""
        return self.requests.limits

    def backend_with(self, draft: str) -> Pair | ZeroGPUPair:
        """Return the pair with the draft that was chosen, once it is loaded.

        Raises:
            ValueError: there is none of that name.
        """
        models = chosen_models(self.others, draft)
        return (models.backend if models else self.backend)()

    def lab_with(self, draft: str) -> Lab:
        """Return the experiments with the draft that was chosen; otherwise as :meth:`backend_with`."""
        models = chosen_models(self.others, draft)
        lab = models.lab if models else self.lab
        assert lab is not None  # a page without a lab has no experiment to run
        return lab()

    def labs(self) -> dict[str, Lab]:
        """Return the experiments with each draft of the target, by its name."""
        return {name: self.lab_with(draft) for name, draft in self.choices.all_drafts().items()}

    @property
    def first(self) -> Recorded | None:
        """The race that the page opens with."""
        return self.opened or next(iter(self.recorded), None)

    @cached_property
    def loading(self) -> Future[RunInfo]:
        """What runs, once the models are loaded, or why they could not be; waited for on a thread of its own."""
        thread = ThreadPoolExecutor(1, "loading")
        waited = thread.submit(self._loaded)
        thread.shutdown(wait=False)
        return waited

    def _loaded(self) -> RunInfo:
        try:
            return self.backend().info
        except Exception:
            log.exception("the models could not be loaded")
            raise
