"""What the README prints runs as printed, and what it names exists."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def _commands():
    lines = [line.split("  #")[0].strip() for block in _blocks("bash") for line in block.splitlines()]
    return [line for line in lines if line.startswith("python -m specllava")]


def test_the_python_examples_run_as_printed(tmp_path):
    code = "\n".join(_blocks("python"))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "target passes instead of" in done.stdout and "StepTrace(" in done.stdout


@pytest.mark.parametrize("command", _commands())
def test_every_printed_command_is_understood(command, tmp_path):
    """The quick ones run; the long ones run small."""
    words = shlex.split(command)[3:]
    scene = tmp_path / "scene.png"
    if "--image" in words:
        render = [sys.executable, "-m", "specllava", "toyworld", "render", "--output", str(scene)]
        subprocess.run(render, cwd=ROOT, check=True, capture_output=True, timeout=120)
    race = tmp_path / "r"
    if "trace" in words[:1]:
        shutil.copy(ROOT / "assets" / "examples" / "3-count.json", race)
    small = {"100": "2", "500": "2", "scene.png": str(scene), "race.json": str(race)}
    small |= {"runs/toy": str(tmp_path / "run"), "race.html": str(tmp_path / "race.html")}
    more = {"train": "--tiny", "view": "--help"}  # a page would be served until somebody stops it
    words = [small.get(word, word) for word in words] + [more[word] for word in words if word in more]
    done = subprocess.run(
        [sys.executable, "-m", "specllava", *words], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr


def test_every_file_that_the_readme_names_exists():
    links = re.findall(r"\]\(((?!http)[^)#]+)\)", README)
    paths = re.findall(r"^\| `([^`]+)`", README, flags=re.MULTILINE)
    assert len(links) > 4 and len(paths) > 12
    assert [name for name in (*links, *paths) if not (ROOT / name).exists()] == []


def test_the_readme_opens_as_a_space_does():
    front = README.split("---\n")[1]
    assert "sdk: gradio" in front and "app_file: app.py" in front
    version = re.search(r"sdk_version: (\S+)", front)[1]
    assert f"gradio=={version}" in (ROOT / "requirements.txt").read_text()
