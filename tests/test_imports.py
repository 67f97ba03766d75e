"""What draws traces does so without torch, which only a fresh interpreter tells.

The direction of imports is a matter of contracts of import-linter in ``pyproject.toml``, which ``make lint`` checks.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NO_TORCH = (
    "specllava", "specllava.config", "specllava.tree", "specllava.metrics",
    "specllava.cli.main", "specllava.distill.config", "specllava.models.presets",
)  # fmt: skip


def modules(package: str) -> list[str]:
    """Dotted names of a package's modules."""
    paths = (path.relative_to(ROOT).with_suffix("") for path in sorted((ROOT / package).rglob("*.py")))
    return [".".join(path.parts).removesuffix(".__init__") for path in paths]


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
    names = (*modules("visual/figures"), *modules("visual/player"), "specllava.cli.commands", "visual.notebook")
    assert not loaded_after(*names) & {"gradio", "torch", "transformers"}


def test_the_lazy_names_are_there():
    import specllava

    assert all(getattr(specllava, name) is not None for name in specllava.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Sponge'"):
        specllava.Sponge  # noqa: B018 - the access is the test
