"""Where the time of a step goes: functions of the loop, timed where they are called.

    python -m benchmarks.step_profile --rule entropy

Each row has all that its function calls in it, so the rows below another are parts of it. Timing a call takes a
microsecond or two, which is in the rows above it as well; cycle and floor are of answers without it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.shared.command import run_command, show_table
from specllava.bench.bare_passes import BareSteps
from specllava.bench.lanes import run_timed
from specllava.bench.toy_dialogues import toy_prompts
from specllava.core.config import DecodingConfig, RuleName
from specllava.core.growth import grow
from specllava.decoding import Request
from specllava.drafters import growing
from specllava.lane import lane_of
from specllava.pair import Pair
from specllava.runtime.engine import Engine
from specllava.runtime.passes import AttentionMasks, PassInput
from specllava.runtime.timing import now
from specllava.verification.verifier import GreedyVerifier

PARTS: tuple[tuple[Any, str, str], ...] = (
    (Request, "propose", "propose: the tree"),
    (growing, "grow", "· grow: all levels"),
    (growing.GrowingSession, "_expand", "· · expand: a level"),
    (growing.GrowingSession, "_level_input", "· · · what each node sees"),
    (growing.GrowingSession, "_guesses", "· · · the likeliest tokens, entropy"),
    (grow, "_select_tree", "· · selection of the nodes"),
    (Request, "verify", "verify: the verdict"),
    (PassInput, "of_tree", "· what each node sees"),
    (GreedyVerifier, "verify", "· the target's choices"),
    (Engine, "forward", "{model}: pass"),
    (Engine, "_through_layers", "{model}: · layers"),
    (Engine, "_score", "{model}: · head"),
    (Engine, "keep", "{model}: columns kept"),
    (AttentionMasks, "of", "masks, both models"),
)


class Profile:
    """Calls and seconds of functions by what they are called here."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self.calls: defaultdict[str, int] = defaultdict(int)
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def timed(self, function: Callable[..., Any], label: str) -> Callable[..., Any]:
        """Return a function that does the same and is timed."""

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            started = now(self._pair.device)
            result = function(*args, **kwargs)
            seconds = now(self._pair.device) - started
            named = label
            if isinstance(args[0], Engine):
                named = label.format(model="target" if args[0].model is self._pair.target else "draft")
            self.calls[named] += 1
            self.seconds[named] += seconds
            return result

        return call

    @contextmanager
    def running(self) -> Iterator[None]:
        """Time all parts."""
        with ExitStack() as patched:
            for owner, name, label in PARTS:
                own = vars(owner)[name]
                inner = own.__func__ if isinstance(own, classmethod) else own
                timed = self.timed(inner, label)
                patched.enter_context(patch.object(owner, name, type(own)(timed) if inner is not own else timed))
            yield


def main(rule: RuleName = "entropy", prompts: int = 4, rounds: int = 3) -> None:
    """Decode toy prompts, print milliseconds of a mean step, its floor, and the parts.

    Args:
        rule: how trees grow.
        prompts: held-out toy prompts.
        rounds: over all prompts, bare and again with every part timed.
    """
    pair = Pair.from_preset("toy")
    config = DecodingConfig(rule=rule)
    lanes = [lane_of(config, prompt) for prompt in toy_prompts(pair, "held-out", prompts)]
    bare, profile = BareSteps(pair), Profile(pair)
    for lane in lanes:
        run_timed(pair, lane)
    runs = [run_timed(pair, lane) for _ in range(rounds) for lane in lanes]
    steps = sum(len(run.steps) for run in runs)
    cycle, floor = sum(run.decode_seconds for run in runs), sum(map(bare.seconds, runs))
    with profile.running():
        for _ in range(rounds):
            for lane in lanes:
                run_timed(pair, lane)
    rows = [
        (label, f"{profile.calls[label] / steps:.1f}", f"{1e3 * profile.seconds[label] / steps:.2f}")
        for template in (label for _, _, label in PARTS)
        for label in dict.fromkeys(template.format(model=model) for model in ("target", "draft"))
    ]
    title = (
        f"{rule}, {steps} steps, {torch.get_num_threads()} threads: a step takes {1e3 * cycle / steps:.2f} ms, its"
        f" passes once more, bare, {1e3 * floor / steps:.2f} ms"
    )
    show_table(("part", "calls a step", "ms a step"), rows, title)


if __name__ == "__main__":
    run_command(main)
