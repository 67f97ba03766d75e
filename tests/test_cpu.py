"""The number of threads of a pass is the fastest one that was measured, and not one that was lucky once."""

from __future__ import annotations

import pytest
import torch

from specllava.engine.cpu import fastest_threads


@pytest.mark.parametrize(
    ("costs", "most", "fastest"),
    [
        ({1: 8, 2: 5, 4: 3}, 4, 4), ({1: 8, 2: 5, 4: 9}, 4, 2), ({1: 1, 2: 5, 3: 5}, 3, 1),
        ({1: 97, 2: 98, 6: 100, 4: 99}, 6, 6), ({1: 94, 2: 98, 6: 100, 4: 99}, 6, 1),
    ],
)  # fmt: skip
def test_the_fastest_number_of_threads_is_the_cheapest_one_unless_more_are_as_good(
    costs: dict[int, float], most: int, fastest: int, monkeypatch: pytest.MonkeyPatch
):
    """By a clock that counts what each step costs: every fifth one takes ten times as long, as on a busy machine."""
    clock, threads, steps = [0.0], [7], list[int]()
    monkeypatch.setattr("specllava.engine.cpu.time.perf_counter", lambda: clock[0])
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads[0])
    monkeypatch.setattr(torch, "set_num_threads", lambda count: threads.__setitem__(0, count))

    def step() -> None:
        steps.append(threads[0])
        clock[0] += costs.get(threads[0], 1000) * (10 if len(steps) % 5 == 0 else 1)

    assert fastest_threads(step, 1) == 1 and not steps  # nothing to choose from
    assert fastest_threads(step, most, seconds=5000) == fastest and threads == [7]
    assert steps[0] == 7 and steps[1 : 1 + len(costs)] == sorted(costs) and {*steps[1:]} == {*costs}
    steps.clear()
    fastest_threads(step, most, seconds=0)
    assert steps == [7, *sorted(costs)]

    def fail() -> None:
        if threads[0] != 7:
            raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        fastest_threads(fail, most)
    assert threads == [7]
