"""A ZeroGPU Space: the real ``spaces`` package with its fork, queues and pickling, over a fake of its device API."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import models

from specllava.cli.options import PairOptions
from specllava.cli.page_options import PageOptions
from specllava.config import RULE_CHOICES, DecodingConfig
from specllava.config import Limits
from visual.page.run import Grant

ROOT = Path(__file__).resolve().parents[1]


def seen_by(page: str, **variables: str) -> dict[str, Any]:
    """What a page's process saw; the page is made and asked in ``support.zero_gpu_space``."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    command = [sys.executable, "-m", "support.zero_gpu_space", page]
    variables |= {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}  # a fork must not inherit a pool of threads
    environment = os.environ | variables
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(json.loads(done.stdout.splitlines()[-1])) | {"log": done.stderr}


@pytest.fixture(scope="module")
def lent() -> dict[str, Any]:
    return seen_by("lent")


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = str(tmp_path_factory.mktemp("machine"))
    own = {
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": folder,
        "TMPDIR": folder,
        "GRADIO_TEMP_DIR": folder,
        "TORCHINDUCTOR_CACHE_DIR": folder,
    }
    return seen_by("toy", **own) | {"folder": folder}


@pytest.mark.night
def test_a_space_writes_to_its_temporary_files_alone_and_asks_no_other_host(toy: dict[str, Any]) -> None:
    """So its checkout may be read-only, its user unprivileged, and its network away."""
    assert [path for path in toy["written"] if not path.startswith((toy["folder"], "/dev/"))] == []
    assert set(toy["hosts"]) <= {"127.0.0.1", "localhost"}


@pytest.mark.night
def test_the_toy_pair_runs_on_the_cpu_of_the_main_process_and_asks_for_no_gpu(toy: dict[str, Any]) -> None:
    """CUDA seems to be there on ZeroGPU; and a Space in which nothing is decorated is ended at its start."""
    assert toy["device"] == "cpu" and toy["lab"]
    assert toy["asked"] == ["/startup-report"]
    assert toy["race"]["ending"] == "finished" and len(toy["race"]["tokens"]) == 23


@pytest.mark.night
def test_the_space_reports_its_start(lent: dict[str, Any]) -> None:
    assert lent["launch"] == [["/startup-report", {}]]
    assert lent["preset"] == ["assets/toy/target", "assets/toy/draft"]


@pytest.mark.night
def test_a_race_in_the_worker_is_the_race_here(lent: dict[str, Any]) -> None:
    assert lent["first"] == {"words": "", "tokens": lent["here"], "ending": "finished"}
    names = [name for name, _ in lent["first asked"]]
    assert names == ["/schedule", "/allow", "/release"]
    (_, schedule), (_, allow), _ = lent["first asked"]
    assert int(allow["pid"]) != lent["own pid"]
    assert int(schedule["durationSeconds"]) == Grant(token=2.0).seconds(DecodingConfig(max_new_tokens=24)) == 54


@pytest.mark.night
def test_a_worker_is_used_again_and_outlives_stop_refusals_and_failures(lent: dict[str, Any]) -> None:
    assert lent["second"] == lent["after"] == lent["first"]
    assert len(lent["workers"]) == 1
    scheduled, released = lent["releases"]
    assert scheduled == released == 6


@pytest.mark.night
def test_stop_ends_the_worker_within_a_step_and_keeps_what_is_there(lent: dict[str, Any]) -> None:
    assert lent["stopped"]["ending"] == "stopped" and lent["stopped"]["words"].startswith("Stopped.")
    assert 0 < len(lent["stopped"]["tokens"]) < 399
    assert lent["seconds to stop"] < 20  # the whole race takes minutes where a race of 24 tokens takes seconds


@pytest.mark.night
@pytest.mark.parametrize(
    ("which", "words"),
    [
        ("refused", "This cannot run: 78 prompt tokens and 4096 new ones do not fit the context of 1024"),
        ("failed", "Something went wrong and the race was stopped. Please try again."),
        ("no gpu", "This cannot run: No GPU was available"),
        ("out of time", "The GPU was lent for 0 seconds, which are over. What is shown so far stays here."),
        ("killed", "ZeroGPU took the GPU back: GPU task aborted. What is shown so far stays here."),
    ],
)
def test_what_goes_wrong_in_the_worker_is_said_in_words(which: str, words: str, lent: dict[str, Any]) -> None:
    """``spaces`` hands on the name of an exception's class alone."""
    assert lent[which]["words"].startswith(words)
    assert "secret" not in json.dumps({name: value for name, value in lent.items() if name != "log"})


@pytest.mark.night
def test_a_worker_that_was_killed_keeps_what_it_sent_and_the_next_run_has_another(lent: dict[str, Any]) -> None:
    assert lent["killed"]["ending"] == "deadline" and lent["killed"]["tokens"]
    assert lent["after killed"] == lent["first"]
    assert "a secret path" in lent["log"]  # for whoever runs the Space


# --- what crosses, and for how long ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", models.KINDS)
@pytest.mark.parametrize("rule", RULE_CHOICES)
def test_events_of_a_race_cross_a_process_without_a_tensor(kind: models.DraftKind, rule: str) -> None:
    """A tensor on a GPU cannot be read where there is none."""
    pair, config = models.pair(kind), DecodingConfig(rule=rule, max_new_tokens=12)  # type: ignore[arg-type]
    events = list(pair.race(models.picture(0), models.messages(0), config))
    crossed = [pickle.dumps(event) for event in events]
    assert not any(b"torch" in one for one in crossed)
    assert pair.collect_race([pickle.loads(one) for one in crossed]) == pair.collect_race(events)


def test_a_grant_grows_with_the_answer_and_ends_before_the_pages_own_limit() -> None:
    granted = [Grant().seconds(DecodingConfig(max_new_tokens=tokens)) for tokens in range(1, 4097)]
    assert granted == sorted(granted)
    assert Grant().start < granted[0] and granted[-1] == Grant().most
    assert granted[-1] + 60 <= Limits().seconds_per_run  # 60 seconds are the longest that ZeroGPU lets a visitor wait


# --- settings of a Space --------------------------------------------------------------------------------------------


def test_the_environment_names_the_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PRESET", "TARGET", "DRAFT"):
        monkeypatch.delenv(f"SPECLLAVA_{name}", raising=False)
    assert PageOptions().running == PairOptions()
    monkeypatch.setenv("SPECLLAVA_PRESET", "llava-1.5-7b-msd")
    monkeypatch.setenv("SPECLLAVA_DRAFT", "me/draft")
    assert PageOptions().running == PairOptions("llava-1.5-7b-msd", None, "me/draft")
    monkeypatch.setenv("SPECLLAVA_TARGET", "me/target")
    assert PageOptions().running.target == "me/target"
