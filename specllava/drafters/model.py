"""Drafting with a small vision-language model that shares the target's vision features."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from specllava.core.config import DecodingConfig
from specllava.core.growth.rule import GrowthRule
from specllava.drafters.drafter import DraftContext, Drafter, DraftSession
from specllava.drafters.growing import GrowingSession
from specllava.runtime.engine import Engine
from specllava.runtime.passes import PassInput, PassOutput
from specllava.runtime.prompt import Prompt
from specllava.verification.answer_settings import AnswerSettings
from specllava.verification.sampling import RandomSource


class ModelDrafter(Drafter):
    """Drafter that grows trees with the pair's draft model."""

    name = "model"
    needs_draft = grows = True

    def open(self, context: DraftContext) -> DraftSession:
        if context.draft is None or context.rule is None:
            raise ValueError("the model drafter needs a draft model and a tree rule")
        own = context.prompt.draft_prompt  # a tower of its own may take more slots for a picture
        longer = 0 if own is None else max(0, own.length - context.prompt.length)
        engine = context.caches.engine(context.draft, context.config.draft_columns(context.length) + longer)
        answer = context.config, context.random, context.rule, context.settings
        return ModelSession(engine, context.prompt, *answer)


class ModelSession(GrowingSession):
    """Session of the draft model for one answer; an engine that serves several answers reads only what is new.

    The draft's cache holds the context up to the last root, then the nodes of the growing tree in the order of their
    expansion. A leaf was never run through the draft: if it is accepted, it is read together with the next root.
    """

    def __init__(
        self,
        engine: Engine,
        prompt: Prompt,
        config: DecodingConfig,
        random: RandomSource,
        rule: GrowthRule,
        settings: AnswerSettings,
    ) -> None:
        super().__init__(engine, config, random, rule, settings)
        self._engine = engine
        read = prompt.draft_prompt or prompt
        self._engine.prefill(read.input_ids, read.features, read.image_keys)
        self._prepare(engine)

    def _read_root(self, root: int) -> PassOutput:
        return self._engine.forward(PassInput([*self._unread, root], last=1), self._reduction)

    def _read_level(self, batch: PassInput, nodes: Sequence[int], parents: Sequence[int]) -> PassOutput:
        return self._engine.forward(batch, self._reduction)

    def _keep(self, path: Sequence[int], states: Tensor | None) -> None:
        columns = [column for node in path if (column := self._kept_columns[node]) is not None]
        if columns:  # the root was read, and everything emitted before it
            self._engine.keep(columns[0], [column - columns[0] for column in columns])
            self._unread = []
        self._unread += [self._tree.tokens[node] for node in path if self._kept_columns[node] is None]
