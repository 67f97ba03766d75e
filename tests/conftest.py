"""What all tests share: the same examples on every machine, tiny random models, and the shipped pair.

Models are imported where they are used: the process that only hands out tests has no use for torch, and the others
start behind it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from specllava.models.loading import DTypeName
    from specllava.pair import Pair

settings.register_profile(
    "specllava",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
settings.load_profile("specllava")
if "PYTEST_XDIST_WORKER" in os.environ:
    import torch

    torch.set_num_threads(1)  # a process per core already, and so for the processes that tests start
    os.environ["OMP_NUM_THREADS"] = "1"
# Gradio names cached pictures by content: a page that closes would take those of a page in another process along.
os.environ["GRADIO_TEMP_DIR"] = tempfile.mkdtemp(prefix="specllava-tests-")


@pytest.fixture(scope="session")
def tiny() -> Pair:
    """A tiny random pair whose draft agrees with its target now and then; nothing ends an answer."""
    from support import models

    return models.pair("mixed")


@pytest.fixture(scope="session")
def shipped() -> Callable[[DTypeName], Pair]:
    """The toy pair as it ships, loaded once per precision."""
    from support import models

    from specllava.pair import Pair

    @cache
    def load(dtype: DTypeName) -> Pair:
        pair = Pair.from_preset("toy", device="cpu", dtype=dtype)
        return replace(pair, costs=models.COSTS)  # in place of a measurement, as for the tiny pairs

    return load
