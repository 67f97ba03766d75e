"""CPU seconds of each file of tests, children included: counted in every worker wherever the file changes."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from typing import Any

import psutil
import pytest

IMPORTS, DEAREST = "imports and collection", 10
spent, counted = Counter[str](), 0.0


def used() -> float:
    """CPU seconds of this process, and of all that it has started, ended or not."""
    total = sum(os.times()[:4])
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has just ended
            total += sum(child.cpu_times()[:4])  # user, system, and the same of its own children
    return total


def count(name: str) -> None:
    """Count what was used since the last count."""
    global counted
    now = used()
    spent[name] += max(0.0, now - counted)
    counted = now


def pytest_collection_finish() -> None:
    count(IMPORTS)


@pytest.hookimpl(tryfirst=True)  # before a browser ends: it takes what it used along
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is None or nextitem.path != item.path:
        count(item.path.name)


def pytest_sessionfinish(session: pytest.Session) -> None:
    getattr(session.config, "workeroutput", {})["cpu"] = dict(spent)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    spent.update(getattr(node, "workeroutput", {}).get("cpu", {}))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if spent:
        terminalreporter.write_line(f"CPU: {sum(spent.values()):.0f} s, children included; the dearest files:")
        for name, seconds in spent.most_common(DEAREST):
            terminalreporter.write_line(f"{seconds:7.1f} s  {name}")
