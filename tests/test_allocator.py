"""Memory that was freed goes back to the system, whatever was allocated between."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CHURN = """
import threading, psutil, torch
from visual.page.serve import give_back_freed_memory
assert give_back_freed_memory()
kept = []
def visit():
    for _ in range(12):
        cache = [torch.zeros(2_000_000) for _ in range(4)]
        kept.append(torch.zeros(300))
        del cache
threads = [threading.Thread(target=visit) for _ in range(8)]
before = psutil.Process().memory_info().rss
for thread in threads: thread.start()
for thread in threads: thread.join()
print(psutil.Process().memory_info().rss - before)
"""


@pytest.mark.night
def test_caches_of_many_threads_leave_nothing_behind() -> None:
    done = subprocess.run([sys.executable, "-c", CHURN], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 30e6
