"""The list of mutants names lines and tests that are there: it would else prove nothing, and say so only at night."""

from __future__ import annotations

import ast
from pathlib import Path

from mutants import MUTANTS, ROOT


def names_of(file: str) -> set[str]:
    """Names of the tests in a file."""
    tree = ast.parse(Path(__file__).with_name(file).read_text(encoding="utf-8"))
    return {one.name for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)}


def test_every_mutant_has_a_name_of_its_own_changes_one_line_and_names_its_test() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 40
    for mutant in MUTANTS:
        assert (ROOT / mutant.file).read_text(encoding="utf-8").count(mutant.old) == 1 and mutant.new != mutant.old, (
            mutant
        )
        file, _, test = mutant.test.partition("::")
        assert not test or test.partition("[")[0] in names_of(file), mutant
