"""A notebook without Jupyter: cells run in one namespace, outputs are kept as IPython's ``display`` would show them."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@dataclass
class Outputs:
    """HTML of every output, in the order of time."""

    history: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, monkeypatch: pytest.MonkeyPatch) -> Outputs:
        """Take what ``IPython.display.display`` is given."""
        outputs, package, module = cls(), ModuleType("IPython"), ModuleType("IPython.display")
        module.display = outputs.display  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "IPython", package)
        monkeypatch.setitem(sys.modules, "IPython.display", module)
        return outputs

    def display(self, data: dict[str, str], raw: bool) -> None:
        assert raw and data.keys() == {"text/html", "text/plain"}
        self.history.append(data["text/html"])

    def run(self, notebook: Path, instead: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Run the code cells; a cell's last expression is shown where it has HTML. Returns the namespace.

        Args:
            instead: texts that stand in place of others, such as a directory in place of an id; each must be there.
        """
        space: dict[str, Any] = {"__name__": "__main__"}
        text = notebook.read_text(encoding="utf-8")
        for old, new in (instead or {}).items():
            assert old in text
            text = text.replace(old, new)
        for cell in json.loads(text)["cells"]:
            if cell["cell_type"] != "code":
                continue
            body = ast.parse("".join(cell["source"])).body
            last = body.pop() if isinstance(body[-1], ast.Expr) else None
            exec(compile(ast.Module(body, []), cell["id"], "exec"), space)
            value = None if last is None else eval(compile(ast.Expression(last.value), cell["id"], "eval"), space)
            markup = value._repr_html_() if hasattr(value, "_repr_html_") else None
            if markup is not None:
                self.display({"text/html": markup, "text/plain": ""}, raw=True)
        return space

    def export(self, style: str = "") -> str:
        """The notebook as a page."""
        return f"<!doctype html><meta charset=utf-8><body style='{style}'>" + "".join(self.history)
