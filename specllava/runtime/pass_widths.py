"""The widths of a model's passes, counted while it decodes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from transformers import PreTrainedModel

from specllava.models.feature_draft import FeatureDraft


@contextmanager
def pass_widths(model: PreTrainedModel) -> Iterator[list[int]]:
    """Append the number of scored tokens of every pass of ``model`` to the list that is yielded; it may be cleared.

    Every pass ends in the model's head, with a row for each token that is scored; a feature draft has none of its own.
    """
    widths: list[int] = []
    head = model.scored if isinstance(model, FeatureDraft) else model.get_output_embeddings()
    hook = head.register_forward_pre_hook(lambda _, given: widths.append(given[0].shape[0]))
    try:
        yield widths
    finally:
        hook.remove()
