"""Imports flow one way, and what draws traces does so without torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Lower layers first: a module may use its own layer and those before it. What is not named here is a way in
# (command line, benchmark, page) and may use everything, while nothing named here may use it.
LAYERS = (
    {"config", "trace_fields", "tree", "trace", "metrics", "reasons", "findings", "shipped"},
    {"growth", "shapes", "costs", "rules", "verify", "sampling", "judges", "cache"},
    {"models", "drafters"},
    {"decoding"},
    {"pair"},
    {"chat", "lab"},
)
RECORDS = LAYERS[0]
TRAINING = {"toyworld", "distill"}
ALLOWED = {
    **{name: set().union(*LAYERS[: rank + 1]) for rank, layer in enumerate(LAYERS) for name in layer},
    "distill": {*RECORDS, "models", "distill"},
}
# Consumers of the finished pair that live beside the toy world: they may use everything, and only the command line
# and each other may use them, so that the world and its training never come to depend on decoding.
WAYS_IN = {f"specllava.toyworld.{name}" for name in ("commands", "evaluate", "examples", "lessons")}
# The same for training: what measures a draft by decoding with it, and the command around that. The toy world's recipe
# uses the parts below, and those depend on no decoding.
DISTILLING = {f"specllava.distill.{name}" for name in ("answers", "commands", "run", "validation")}
NO_TORCH = (
    "specllava", "specllava.config", "specllava.tree", "specllava.trace", "specllava.metrics", "specllava.cli.main",
    "specllava.distill.config", "specllava.models.presets",
)  # fmt: skip


def modules(package: str) -> dict[str, Path]:
    """Dotted names of a package's modules."""
    names = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


def imported(path: Path) -> set[str]:
    """Dotted names that a file imports, wherever in the file it does."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def parts_used(path: Path, package: str) -> set[str]:
    """First name below ``package`` of everything that a file imports from it."""
    return {name.split(".")[1] for name in imported(path) if name.startswith(f"{package}.")}


SOURCES = {name: path for name, path in modules("specllava").items() if name != "specllava"}  # whose names are lazy


def own_part(name: str) -> str:
    return name.split(".")[1]


@pytest.mark.parametrize("name", [n for n in SOURCES if own_part(n) in ALLOWED and n not in DISTILLING])
def test_a_module_uses_its_own_layer_and_those_below(name: str):
    assert parts_used(SOURCES[name], "specllava") <= ALLOWED[own_part(name)]


@pytest.mark.parametrize("name", [n for n in SOURCES if own_part(n) == "toyworld" and n not in WAYS_IN])
def test_the_toy_world_uses_models_and_training_only(name: str):
    assert parts_used(SOURCES[name], "specllava") <= {*RECORDS, *TRAINING, "models"}


@pytest.mark.parametrize("name", sorted(DISTILLING))
def test_what_distils_uses_decoding_and_no_toy_world(name: str):
    assert parts_used(SOURCES[name], "specllava") <= {*ALLOWED["pair"], "distill", "options"} - {"pair"}
    tops = {module.split(".")[0] for module in imported(SOURCES[name])}
    assert not tops & {"gradio", "plotly", *(set() if name.endswith(".commands") else {"visual"})}


@pytest.mark.parametrize("name", [n for n in SOURCES if n not in {*DISTILLING, "specllava.cli.main"}])
def test_only_the_command_line_uses_what_distils(name: str):
    assert not imported(SOURCES[name]) & DISTILLING


@pytest.mark.parametrize("name", [n for n in SOURCES if n not in {*WAYS_IN, "specllava.cli.main"}])
def test_only_the_command_line_uses_the_toy_worlds_ways_in(name: str):
    assert not imported(SOURCES[name]) & WAYS_IN


@pytest.mark.parametrize("name", list(SOURCES))
def test_nothing_in_the_package_uses_the_page(name: str):
    tops = {module.split(".")[0] for module in imported(SOURCES[name])}
    assert not tops & {"app", "tests", "benchmarks"}
    if own_part(name) in ALLOWED and name not in DISTILLING:
        assert not tops & {"visual", "gradio", "plotly"}


@pytest.mark.parametrize("name", list(modules("visual")))
def test_drawing_knows_traces_only(name: str):
    path = modules("visual")[name]
    assert parts_used(path, "specllava") <= RECORDS
    assert "specllava" not in {module for module in imported(path) if "." not in module}
    assert not {module.split(".")[0] for module in imported(path)} & {"torch", "transformers", "app"}


def test_no_module_imports_itself_in_a_circle():
    names = set(SOURCES)
    uses = {name: (imported(path) & names) - {name} for name, path in SOURCES.items()}
    while leaves := {name for name, needs in uses.items() if not needs}:
        uses = {name: needs - leaves for name, needs in uses.items() if name not in leaves}
    assert not uses


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
