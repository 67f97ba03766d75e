"""Costs of passes that were measured before on this machine, so that nobody waits for them a second time."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Final

import torch
from transformers import PreTrainedModel

from specllava.core.files import write_whole
from specllava.core.growth.cost_model import Costs, read_costs
from specllava.models.checkpoints.device import input_device

DIRECTORY: Final = "specllava/costs"  # of a user's caches


def kept_costs(key: str, measure: Callable[[], Costs]) -> Costs:
    """Return the costs that are kept under a key; measure them, and keep them where that can be written, if none are.

    They are what a cost model begins with, and every step corrects it. What is reported as measured is measured.
    """
    if (kept := costs_of_before(key)) is not None:
        return kept
    costs = measure()
    with contextlib.suppress(OSError, RuntimeError):
        file = _file(key)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps(asdict(costs)))
    return costs


def costs_of_before(key: str) -> Costs | None:
    """Return the costs that are kept under a key, ``None`` if none are."""
    with contextlib.suppress(ValueError, RuntimeError):
        return read_costs(_file(key))
    return None


def _file(key: str) -> Path:
    """Return the path of a key's costs.

    Raises:
        RuntimeError: the user has no home, as in a container may be.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / DIRECTORY / f"{key}.json"


def costs_key(target: PreTrainedModel, draft: PreTrainedModel, *kind: object) -> str:
    """Return a key of what the time of passes depends on: machine, device, threads, versions, shapes and precision.

    Args:
        kind: what else tells passes apart, such as how weights are stored.
    """
    device = input_device(target)
    facts = [
        *platform.uname(), device.type if device.type == "cpu" else torch.cuda.get_device_name(device),
        torch.get_num_threads(), torch.__version__,
        *((type(model).__name__, str(model.dtype), model.config.to_json_string()) for model in (target, draft)), *kind,
    ]  # fmt: skip
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]
