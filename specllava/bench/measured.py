"""All measurements of a benchmark, step by step, and their file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import TypeAdapter, ValidationError

from specllava.bench.timed_run import TimedRun
from specllava.config import one_line
from specllava.trace import TARGET_ONLY, RecordedConfig, RunInfo
from specllava.trace_fields import Count, Many, Record, Seconds

FORMAT: Final = "specllava bench steps 1"


@dataclass(frozen=True, slots=True)
class BenchPrompt(Record):
    """A prompt of the benchmark.

    Args:
        dialogue: number of the dialogue that it is a turn of; intervals draw dialogues.
        category: kind of the question.
        tokens: of the prompt.
    """

    dialogue: Count
    category: str
    tokens: Count


@dataclass(frozen=True, slots=True)
class WarmUp(Record):
    """Rounds of all lanes before the measured ones, over the first prompts.

    Args:
        rounds: that were run.
        change: share by which the lane that changed most took longer or shorter in the last round than before it;
            ``None`` with fewer than two rounds.
        agreed: whether that was at most ``within``.
    """

    rounds: Count
    change: Seconds | None
    within: Seconds
    agreed: bool


@dataclass(frozen=True, slots=True)
class Measured(Record):
    """A whole benchmark.

    Args:
        data: where the prompts are from.
        setting: models, device, precision, versions.
        config: options that all lanes share.
        machine: what the machine is.
        seed: of the order in which lanes took turns.
        prompts: in order.
        runs: by lane, those of the first round over all prompts, then those of the next round.
        margins: the target's, as ``(prompt, position, margin)``, where a lane's token differs.
        alone: lanes without guesses; speed-ups are over the fastest of them.
    """

    data: str
    setting: RunInfo
    config: RecordedConfig
    machine: dict[str, Any]
    seed: Count
    rounds: Count
    warm_up: WarmUp
    prompts: Many[BenchPrompt]
    runs: dict[str, Many[TimedRun]]
    margins: Many[tuple[int, int, float]] = ()
    alone: Many[str] = (TARGET_ONLY,)
    format: Literal["specllava bench steps 1"] = FORMAT

    def to_json(self) -> bytes:
        """Write it as :meth:`read` reads it."""
        return _ADAPTER.dump_json(self, warnings=False) + b"\n"

    @classmethod
    def read(cls, file: Path) -> Measured:
        """Read the file of ``bench --raw``.

        Raises:
            ValueError: no such file, or another one; one line that names it.
        """
        if not file.is_file():
            raise ValueError(f"no file at {file}: one that bench --raw wrote is expected")
        try:
            found = _ADAPTER.validate_json(file.read_bytes())
        except ValidationError as error:
            raise ValueError(f"{file.name} holds no steps of a benchmark: {one_line(error)}") from error
        total = found.rounds * len(found.prompts)
        for name, own in found.runs.items():
            if len(own) != total:
                raise ValueError(f"{file.name}: the lane {name} has {len(own)} runs of {total}")
        return found


_ADAPTER: TypeAdapter[Measured] = TypeAdapter(Measured)
