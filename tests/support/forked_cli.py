"""The command line in a process per call, forked from one that has imported it: each call's own CPU time is exact.

As a program it reads a JSON list of arguments a line, and answers each with a line: exit code, stderr, CPU seconds.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST_SECONDS = 60  # of CPU, after which a call is ended


@dataclass(frozen=True)
class Ended:
    """How a call ended.

    Args:
        code: its exit code, or minus the signal that ended it.
        lines: of stderr, without the one that announces loading.
        seconds: of CPU, of the call and of what it started.
    """

    code: int
    lines: tuple[str, ...]
    seconds: float


class ForkedCli:
    """The command line, imported once."""

    def __init__(self) -> None:
        command = [sys.executable, "-P", str(Path(__file__))]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __call__(self, *arguments: object) -> Ended:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps([str(one) for one in arguments]) + "\n")
        self._process.stdin.flush()
        code, errors, seconds = json.loads(self._process.stdout.readline())
        lines = tuple(line for line in errors.splitlines() if not line.startswith("loading "))
        return Ended(code, lines, seconds)

    def close(self) -> None:
        self._process.communicate()


def _call(arguments: list[str]) -> list[object]:
    with tempfile.TemporaryFile() as errors:
        child = os.fork()
        if child == 0:
            resource.setrlimit(resource.RLIMIT_CPU, (MOST_SECONDS, MOST_SECONDS))
            os.dup2(errors.fileno(), 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            from specllava.cli.main import main

            code = main(arguments)
            sys.stderr.flush()
            os._exit(code)
        _, status, used = os.wait4(child, 0)
        errors.seek(0)
        told = errors.read().decode(errors="replace")
    return [os.waitstatus_to_exitcode(status), told, used.ru_utime + used.ru_stime]


def _serve() -> None:
    import torch

    import specllava.bench
    import specllava.cli.main
    import specllava.pair  # noqa: F401 - what the calls need, imported once

    torch.set_num_threads(1)
    for line in sys.stdin:
        print(json.dumps(_call(json.loads(line))), flush=True)


if __name__ == "__main__":
    _serve()
