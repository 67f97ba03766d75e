"""Costs of passes are measured once on a machine, and never taken for those of another pair, precision or machine."""

from __future__ import annotations

import platform
import pwd
from collections.abc import Generator
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from support import models

from specllava.core.config import DecodingConfig
from specllava.core.growth.cost_model import Costs
from specllava.core.question import Question
from specllava.lab import Lab
from specllava.pair import Pair
from specllava.runtime.engine import Engine
from specllava.runtime.timing import DIRECTORY, costs_key, kept_costs

OTHER = Costs((2.0, 3.0), (0.5, 0.6))


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / DIRECTORY


def test_what_was_measured_once_is_not_measured_again(caches: Path) -> None:
    measure = Mock(side_effect=[models.COSTS, OTHER])
    assert kept_costs("a", measure) == kept_costs("a", measure) == models.COSTS
    assert kept_costs("b", measure) == OTHER and measure.call_count == 2
    assert {file.name for file in caches.iterdir()} == {"a.json", "b.json"}


@pytest.mark.parametrize("text", ["", "[]", '{"verify": [1.0]}', '{"verify": [0.0], "draft": [1.0]}', "\x00"])
def test_a_damaged_file_is_measured_anew_and_replaced(caches: Path, text: str) -> None:
    caches.mkdir(parents=True)
    (caches / "a.json").write_text(text)
    assert kept_costs("a", lambda: OTHER) == OTHER
    assert kept_costs("a", Mock(side_effect=AssertionError)) == OTHER


def test_a_directory_that_cannot_be_written_costs_a_measurement_and_no_more(tmp_path: Path) -> None:
    (tmp_path / "specllava").write_text("a file is in the way")
    assert kept_costs("a", lambda: OTHER) == OTHER


def test_a_pair_begins_with_kept_costs_and_reports_measured_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    measure = Mock(side_effect=[Mock(finish=lambda: models.COSTS), Mock(finish=lambda: OTHER)])
    monkeypatch.setattr("specllava.pair.CostMeasurement", measure)
    first, second = (replace(models.pair("mixed"), costs=None) for _ in range(2))
    assert first.expected_costs == second.expected_costs == models.COSTS and measure.call_count == 1
    assert second.measured_costs == OTHER, "a report never says measured of what was kept"
    assert replace(first, costs=OTHER).expected_costs == OTHER, "given ones come first"


@pytest.mark.parametrize("run", ["race", "against", "sweep", "drafters", "ablation", "forced token"])
def test_a_measurement_can_be_stopped_after_every_pass_and_goes_on_from_there(
    run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long a pass takes: between any two yields there is one."""
    pair = replace(models.pair("mixed"), costs=None)
    picture, question = models.picture(0), "What is this?"
    config = DecodingConfig(rule="cost-aware", max_new_tokens=4, depth=2, nodes=3)
    timed, plain = list[int](), Engine.forward
    monkeypatch.setattr(Engine, "forward", lambda *given: timed.append(1) or plain(*given))

    def begin() -> Generator[object]:
        lab, chain = Lab(pair), replace(config, rule="chain")
        if run == "race":
            return pair.preparing(config)
        if run == "against":
            return lab.compare([Question(question, picture)], 1, config, chain)
        if run == "ablation":
            return lab.image_ablation(picture, question, models.picture(1), config)
        if run == "forced token":
            return lab.forced_token(picture, question, config=config)
        if run == "sweep":
            return lab.sweep(picture, question, "depth", chain)
        return lab.drafters(picture, question, {"one": lab, "two": Lab(replace(pair, costs=None))}, chain)

    seen, starts, passes = list[int](), 0, 2 + 7 * (12 + 4)  # two contexts, and seven rounds of both ladders
    while sum(seen) < passes and starts < passes:
        starts += 1
        with closing(begin()) as findings:  # a run that is stopped after a few events
            for _ in islice(findings, 20):
                seen.append(len(timed))
                timed.clear()
                if sum(seen) >= passes:
                    break
    assert sum(seen) == passes and max(seen) == 2 and starts in (6, 7)
    assert pair.expected_costs and not timed
    again = replace(pair)
    assert list(again.measuring()) == [] and again.expected_costs == pair.expected_costs


def test_a_configuration_that_goes_by_no_costs_measures_none() -> None:
    pair = replace(models.pair("mixed"), costs=None)
    for config in (DecodingConfig(rule="chain"), DecodingConfig(rule="cost-aware", drafter="none")):
        assert list(pair.preparing(config)) == []
    assert list(replace(models.pair(None), costs=None).preparing(DecodingConfig(rule="cost-aware"))) == []


def test_everything_that_changes_a_pass_changes_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    def key(pair: Pair, *kind: object) -> str:
        assert pair.draft is not None
        return costs_key(pair.target, pair.draft, *kind)

    pair, other = models.pair("mixed"), models.pair("bad")
    found = [key(pair, "none"), key(other, "none"), key(pair, "int8")]
    assert key(models.pair("mixed"), "none") == found[0], "the same again"
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    found.append(key(pair, "none"))
    torch.set_num_threads(threads)
    monkeypatch.setattr(platform, "uname", lambda: ("another machine",))
    found.append(key(pair, "none"))
    assert len(set(found)) == len(found)


def test_a_user_without_a_home_costs_a_measurement_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's user may have neither HOME nor a line in the list of users."""
    for name in ("XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", Mock(side_effect=KeyError("uid not found")))
    with pytest.raises(RuntimeError):
        Path.home()
    assert kept_costs("a", lambda: OTHER) == OTHER
