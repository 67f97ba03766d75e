"""Drafting with a small vision-language model that shares the target's vision features."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from specllava.core.config import DecodingConfig
from specllava.core.growth.rule import GrowthRule
from specllava.drafters.drafter import DraftContext, Drafter, DraftSession
from specllava.drafters.growing import Expansion, GrowingSession
from specllava.models.loading.memory import draft_columns
from specllava.runtime.engine import Engine
from specllava.runtime.passes import LogitsReduction, PassInput, PassOutput
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
        return ModelSession(
            context.caches.engine(context.draft, _columns(context)),
            context.prompt,
            context.config,
            context.random,
            context.rule,
            context.settings,
        )


def _columns(context: DraftContext) -> int:
    """Count the columns of the draft's KV cache; a tower of its own may take more slots for a picture."""
    own = context.prompt.draft_prompt
    longer = 0 if own is None else max(0, own.length - context.prompt.length)
    return draft_columns(context.length, context.config) + longer


class ModelSession(GrowingSession):
    """Session of the draft model for one answer; an engine that serves several answers reads only what is new.

    The draft's cache holds the context up to the last root and, behind it, the nodes of the growing tree in
    the order in which they were expanded. A leaf was never run through the draft: if it is accepted, it is
    fed together with the next root.
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
        super().__init__(config, random, rule, settings)
        self._engine = engine
        read = prompt.draft_prompt or prompt
        self._engine.prefill(read.input_ids, read.features, read.image_keys)
        self._unfed: list[int] = []  # emitted tokens that the cache lacks

    def _expansion(self, root: int) -> Expansion:
        scorer = _ModelScorer(self._engine, [*self._unfed, root])
        return Expansion(scorer, self._rule.max_children, self._top_tokens, self._processing)

    def _keep(self, path: Sequence[int], states: Tensor | None) -> None:
        columns = [column for node in path if (column := self._columns[node]) is not None]
        if columns:  # the root was fed, and everything emitted before it
            self._engine.keep(columns[0], [column - columns[0] for column in columns])
            self._unfed = []
        self._unfed += [self._tree.tokens[node] for node in path if self._columns[node] is None]


class _ModelScorer:
    """Scorer of nodes by the draft model.

    Args:
        context: emitted tokens that the KV cache lacks, the root last.
    """

    def __init__(self, engine: Engine, context: Sequence[int]) -> None:
        self._engine, self._context = engine, context

    @property
    def cached(self) -> int:
        return self._engine.cache.length

    def root(self, reduction: LogitsReduction | None) -> PassOutput:
        return self._engine.forward(PassInput(self._context, last=1), reduction)

    def level(
        self, batch: PassInput, nodes: Sequence[int], parents: Sequence[int], reduction: LogitsReduction | None
    ) -> PassOutput:
        return self._engine.forward(batch, reduction)
