"""What README and guides print and name is there; the examples run, and the one file is the package, tree by tree."""

import inspect
import re
import runpy
import shlex
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.utils import logging

from specllava.cli import main

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text(encoding="utf-8")
USE, TRANSFORMERS = (DOCS / "use.md").read_text(encoding="utf-8").split("## Inside transformers\n")


def _blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README + USE, flags=re.DOTALL)


def test_the_python_examples_run_as_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    program = tmp_path / "examples.py"
    program.write_text("\n".join(_blocks("python")), encoding="utf-8")
    runpy.run_path(str(program), run_name="__main__")
    said = capsys.readouterr().out
    assert "target passes instead of" in said and "StepTrace(" in said


def test_every_printed_command_is_understood():
    """What they do is for test_cli and the tests of recipes."""
    lines = [line.split("  #")[0].strip() for block in _blocks("bash") for line in block.splitlines()]
    commands, ended = [line for line in lines if line.startswith(("python -m specllava", "python -m recipes."))], {}
    for command in commands:
        _, _, module, *words = shlex.split(command)
        program = import_module(f"{module}.__main__" if module.startswith("recipes.") else "specllava.cli.main")
        try:
            kind = program.Fetch if module == "recipes.smol" else program.Command
            assert callable(main._parse(words, kind, module, None).run)
        except SystemExit as stop:
            ended[command] = stop.code
    assert len(commands) >= 12 and ended == {one: 0 for one in commands if one.endswith("--help")}


GUIDES = [*sorted(DOCS.rglob("*.md")), *(ROOT / name for name in ("CONTRIBUTING.md", "README.md", "SECURITY.md"))]
GUIDES += [ROOT / folder / "README.md" for folder in ("assets/smol", "assets/toy", "benchmarks")]
ROOMS = (ROOT, ROOT / "specllava", ROOT / "visual")  # paths are written from one of these
TOPS = {path.name for room in ROOMS for path in room.iterdir() if path.is_dir()}


def _anchors(guide):
    """Anchors of a guide's headings, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", guide.read_text(encoding="utf-8"), flags=re.DOTALL)
    heads = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.strip().lower()).replace(" ", "-") for head in heads}


def test_what_a_guide_names_exists():
    missing = []
    for guide in GUIDES:
        text = guide.read_text(encoding="utf-8")
        for link in re.findall(r"\]\(((?!http)[^)]+)\)", text):
            path, _, anchor = link.partition("#")
            named = guide.parent / path if path else guide
            if not named.exists() or (anchor and anchor not in _anchors(named)):
                missing.append((guide.name, link))
        for path, name in re.findall(r"`(\w+/[\w./-]*?)(?::([\w.]+))?`", text):
            if path.split("/")[0] not in TOPS:
                continue
            places = [room / path for room in ROOMS if (room / path).exists()]
            if not places:
                missing.append((guide.name, path))
            elif name:
                inside = places[0] / "__init__.py" if places[0].is_dir() else places[0]
                source = inside.read_text(encoding="utf-8")
                missing += [(guide.name, name) for part in name.split(".") if not re.search(rf"\b{part}\b", source)]
    assert missing == []


def test_the_readme_opens_as_a_space_does():
    front = README.split("---\n")[1]
    assert "sdk: gradio" in front and "app_file: app.py" in front
    version = re.search(r"sdk_version: (\S+)", front)[1]
    assert f"gradio=={version}\n" in (ROOT / "requirements.txt").read_text(encoding="utf-8")
    assert re.search(r'python_version: "(\S+)"', front)[1] == "3.12"  # what hosted GPUs run; transformers needs 3.11
    assert len(re.search(r"short_description: (.*)", front)[1]) <= 60, "longer ones are refused"


def test_the_guide_to_transformers_runs_as_printed(tmp_path, monkeypatch):
    """The repository too, by the loader of transformers."""
    monkeypatch.chdir(ROOT)
    names = {}
    blocks = re.findall(r"```python\n(.*?)```", TRANSFORMERS, re.DOTALL)
    for block in blocks:
        exec(block, names)
    model, inputs, ideal, blind = names["model"], names["inputs"], -(-names["tokens"] // 6), len(names["passes"])
    assert len(names["fast"].trace.steps) < ideal + 1 < blind / 2, "if this fails, mend docs/use.md"
    names["counting"].remove()  # a hook that decoding would skip is refused

    package, folder = tmp_path / "site" / "specllava-0.1.0.dist-info", tmp_path / "tree-speculation" / "custom_generate"
    for directory in (package, folder):
        directory.mkdir(parents=True)
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: specllava\nVersion: 0.1.0\n")
    monkeypatch.syspath_prepend(package.parent)
    (folder / "generate.py").write_text(next(block for block in blocks if "def generate(" in block))
    (folder / "requirements.txt").write_text("specllava\n")
    asked = {**inputs, "do_sample": False, "max_new_tokens": 60, "custom_generate": str(folder.parent)}
    asked |= {"trust_remote_code": True, "draft": "assets/toy/draft"}
    assert model.generate(**asked, rule="topk").tolist() == names["plain"].tolist()
    with pytest.raises(ValueError, match="does not follow num_beams = 2"):
        model.generate(**asked, num_beams=2)


EXAMPLES = ROOT / "examples"
SHIPPED = {"1-describe": "Describe this image in detail.", "3-count": "How many objects are there?"}


@pytest.fixture(autouse=True)
def _verbosity() -> Any:
    """An example may silence transformers."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    yield
    logging.set_verbosity(before)


@pytest.mark.parametrize("name", SHIPPED)
def test_one_file_gives_the_tokens_and_the_trees_of_the_package(name: str, shipped, monkeypatch, capsys) -> None:
    image, question = ROOT / "assets" / "examples" / f"{name}.png", SHIPPED[name]
    alone = runpy.run_path(str(EXAMPLES / "spec_llava.py"))
    steps = list(alone["answer"](image, question, torch.float64))
    trace = shipped("float64").generate(image, question)
    assert [token for _, _, tokens in steps for token in tokens] == list(trace.token_ids)
    assert len(steps) == 1 + len(trace.steps)
    for (tree, path, tokens), step in zip(steps[1:], trace.steps, strict=True):
        assert (tree.tokens, tree.parents) == (list(step.tree.tokens), list(step.tree.parents))
        assert (path, tokens) == (list(step.verification.path), list(step.emitted))
        assert tree.scores == pytest.approx(step.tree.scores(), abs=1e-4)
    if len(steps) > 2:  # one token is left after the first step
        limit = 2 + len(trace.steps[0].emitted)
        with monkeypatch.context() as patch:
            patch.setitem(inspect.unwrap(alone["answer"]).__globals__, "ANSWER", limit)
            shorter = [token for _, _, tokens in alone["answer"](image, question, torch.float64) for token in tokens]
        assert shorter == list(trace.token_ids[:limit])
    if name == "3-count":
        monkeypatch.setattr(sys, "argv", ["spec_llava.py", "--image", str(image), "--question", question])
        alone["main"]()
        line = f"{len(trace.token_ids)} tokens in {len(trace.steps)} passes of the target"
        assert capsys.readouterr().out.splitlines()[-1] == line


@pytest.mark.parametrize(("script", "line"), [("own_rule.py", "equal: True"), ("own_model.py", "the same tokens")])
@pytest.mark.usefixtures("pair")
def test_an_example_runs(script: str, line: str, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", [script])
    runpy.run_path(str(EXAMPLES / script), run_name="__main__")
    assert line in capsys.readouterr().out.splitlines()[-1]
