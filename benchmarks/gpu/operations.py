"""Operations of a pass that compute: each is a launch at least, which a GPU's short passes consist of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from specllava.models.loading.load_options import PassesName
from specllava.pair import Pair
from specllava.runtime.passes import PassInput
from specllava.runtime.timing import CONTEXT, engine_of

PADDED: PassesName = "padded"


class Operations(TorchDispatchMode):
    """Mode that counts operations; views compute nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.count: int = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        aliases = any(one.alias_info is not None and not one.alias_info.is_write for one in func._schema.returns)
        self.count += not (aliases and _shares(made, args))
        return made


def _shares(made: Any, args: tuple[Any, ...]) -> bool:
    """Return whether what may be a view is one: a cast or another shape copies where it must."""
    first, *_ = tree_leaves(made)
    return any(torch.is_tensor(arg) and arg.untyped_storage()._cdata == first.untyped_storage()._cdata for arg in args)


def count_operations(run: Callable[[], object]) -> int:
    """Return how many operations a run takes."""
    operations = Operations()
    with operations:
        run()
    return operations.count


@torch.inference_mode()
def operations_of(pair: Pair, rows: int) -> int:
    """Return how many operations a padded pass of the target over ``rows`` tokens takes."""
    engine = engine_of(pair.target, 2 * CONTEXT, pair.running(PADDED).engines)
    engine.forward(PassInput([1] * CONTEXT, last=1))
    return count_operations(lambda: engine.forward(PassInput([1] * rows)))
