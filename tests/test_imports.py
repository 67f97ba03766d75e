"""Imports flow one way, and what draws traces does so without torch.

The arrows are contracts of import-linter in ``pyproject.toml``, which ``make lint`` checks. Here: that each contract
refuses what it is there for, and what only a fresh interpreter tells.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NO_TORCH = (
    "specllava", "specllava.config", "specllava.tree", "specllava.trace", "specllava.metrics", "specllava.cli.main",
    "specllava.distill.config", "specllava.models.presets",
)  # fmt: skip
LINT = "from importlinter.cli import lint_imports_command as main; main()"
# A contract, a module, and an import that the contract refuses in it.
REFUSED = (
    ("Every module of the package has its layer", "specllava/tree.py", "specllava.trace"),
    ("Every module of the package has its layer", "specllava/growth/shapes.py", "specllava.config"),
    ("Every module of the package has its layer", "specllava/chat.py", "specllava.lab"),
    ("Every module of the package has its layer", "specllava/unplaced.py", "specllava.tree"),
    ("The list of drafters imports no drafter", "specllava/drafters/__init__.py", "specllava.drafters.lookup"),
    ("Drafters share an interface and do not import each other", "specllava/drafters/lookup.py",
     "specllava.drafters.model"),
    ("Distillation has layers", "specllava/distill/losses.py", "specllava.distill.batches"),
    ("Only the command line measures and records with the toy pair", "specllava/toyworld/train.py",
     "specllava.toyworld.evaluate"),
    ("The benchmark has layers", "specllava/bench/timed_run.py", "specllava.bench.results"),
    ("The benchmark's core knows no toy world", "specllava/bench/lanes.py", "specllava.toyworld.scene"),
    ("Only the command line distils", "specllava/toyworld/train.py", "specllava.distill.run"),
    ("Imports have no cycle", "specllava/toyworld/scene.py", "specllava.toyworld.corpus"),
    ("Training does not decode", "specllava/toyworld/corpus.py", "specllava.pair"),
    ("Training does not decode", "specllava/distill/batches.py", "specllava.runtime.prompt"),
    ("The page has layers", "visual/figures/theme.py", "visual.page.widgets"),
    ("Figures, player and page import no models and no decoding", "visual/page/runs.py", "specllava.pair"),
    ("Figures, player and page import no models and no decoding", "visual/player/frames.py", "specllava.models.images"),
    ("Figures, player and page import no models and no decoding", "visual/page/race.py", "torch"),
    ("Figures, player and page import no models and no decoding", "visual/page/race.py", "specllava"),
    ("Only three commands draw", "specllava/bench/lanes.py", "visual.figures.theme"),
    ("Only three commands draw", "specllava/cli/options.py", "plotly"),
    ("Only the page imports Gradio", "visual/player/frames.py", "gradio"),
    ("No package imports the app, the benchmarks or the tests", "visual/page/race.py", "app"),
    ("No package imports the app, the benchmarks or the tests", "specllava/bench/lanes.py", "benchmarks.worth"),
)  # fmt: skip


def modules(package: str) -> list[str]:
    """Dotted names of a package's modules."""
    paths = (path.relative_to(ROOT).with_suffix("") for path in sorted((ROOT / package).rglob("*.py")))
    return [".".join(path.parts).removesuffix(".__init__") for path in paths]


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """Check the contracts of a checkout."""
    command = [sys.executable, "-c", LINT, "--no-cache", "--no-logo"]
    wide = os.environ | {"COLUMNS": "200"}  # a contract's name and its state on one line
    return subprocess.run(command, cwd=folder, env=wide, capture_output=True, text=True)


def test_the_contracts_are_kept():
    run = lint_imports(ROOT)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize(("contract", "file", "name"), REFUSED)
def test_a_contract_refuses_what_it_is_there_for(tmp_path: Path, contract: str, file: str, name: str):
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for package in ("specllava", "visual"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__", "static"))
    with (tmp_path / file).open("a", encoding="utf-8") as source:
        source.write(f"\n\nimport {name}\n")
    run = lint_imports(tmp_path)
    assert run.returncode == 1, run.stdout + run.stderr
    assert re.search(rf"^{re.escape(contract)} BROKEN", run.stdout, re.MULTILINE), run.stdout


def test_every_contract_is_tried():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    assert {contract["name"] for contract in contracts} == {contract for contract, _, _ in REFUSED}


def loaded_after(*names: str) -> set[str]:
    """Top-level modules that a fresh interpreter holds after importing ``names``."""
    code = f"import sys, {', '.join(names)}; print(*{{name.split('.')[0] for name in sys.modules}})"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def test_reading_traces_needs_no_torch():
    assert not loaded_after(*NO_TORCH) & {"torch", "transformers", "gradio", "plotly"}


def test_drawing_traces_needs_no_torch():
    assert not loaded_after(*modules("visual")) & {"torch", "transformers"}


def test_a_race_becomes_a_page_of_its_own_without_gradio():
    """It took three seconds to start, only to write a file."""
    player = [f"visual.player.{name}" for name in ("standalone", "recorded", "frames", "picture")]
    names = (*player, "specllava.cli.trace")
    assert not loaded_after(*names) & {"gradio", "torch", "transformers"}


def test_the_lazy_names_are_there():
    import specllava

    assert all(getattr(specllava, name) is not None for name in specllava.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Sponge'"):
        specllava.Sponge  # noqa: B018 - the access is the test
