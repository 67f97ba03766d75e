"""The wheel: what it holds, and that it works where there is no checkout."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import zipfile
from email import message_from_string
from functools import partial
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from support.served_page import answer_of, free_port

ROOT = Path(__file__).resolve().parents[1]
PAGE = {"gradio", "plotly", "networkx"}
MAIN = "from specllava.cli.main import main; sys.exit(main({}))"
BLOCKED = "import sys; sys.modules.update(dict.fromkeys(('gradio', 'plotly', 'networkx')))\n"  # their import fails
MODELS = """
import torch
from transformers import AutoModelForImageTextToText, AutoProcessor
from specllava import speculative_generate
from specllava.files import shipped

toy = shipped("assets") / "toy"
model = AutoModelForImageTextToText.from_pretrained(toy / "target", dtype=torch.float64)
processor = AutoProcessor.from_pretrained(toy / "target")
chat = [{"role": "user", "content": [{"type": "text", "text": "How many objects are there?"}]}]
text = processor.apply_chat_template(chat, add_generation_prompt=True)
inputs = processor(text=text, return_tensors="pt", add_special_tokens=False)
asked = {**inputs, "do_sample": False, "max_new_tokens": 12}
fast = model.generate(**asked, custom_generate=speculative_generate, draft=str(toy / "draft"))
assert torch.equal(fast, model.generate(**asked)), (fast, model.generate(**asked))

from specllava import Pair
assert Pair.from_preset("toy").compare(None, "Hi")._repr_html_() is None

from specllava.cli.main import main
assert not main(["generate", "--prompt", "What is a circle?"])
assert not main(["bench", "--prompts", "1", "--rounds", "1", "--lanes", "chain", "--max-new-tokens", "8"])
"""
SOURCES = ("specllava", "visual", "recipes", "assets", "app.py", "setup.py", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds what ``pip install .`` would put beside other packages; built without a network."""
    folder = tmp_path_factory.mktemp("install")
    source, wheels, target = folder / "source", folder / "wheels", folder / "site"
    source.mkdir()
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*build, "--wheel-dir", str(wheels), str(source)], check=True)
    (wheel,) = wheels.glob("specllava-*.whl")
    zipfile.ZipFile(wheel).extractall(target)
    return target


def environment(installed: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(installed), "HF_HUB_OFFLINE": "1"}


def test_the_wheel_holds_the_models_the_examples_and_the_page(installed: Path) -> None:
    """Only the Python files were in it: the toy pair, the default, was looked for in a checkout."""
    shipped = installed / "specllava" / "shipped"
    assets = {path.relative_to(ROOT) for path in (ROOT / "assets").rglob("*") if path.is_file()}
    smol = {path for path in assets if path.is_relative_to("assets/smol")}
    assert len(assets) > 330 and len(smol) > 3
    assert {path.relative_to(shipped) for path in (shipped / "assets").rglob("*") if path.is_file()} == assets - smol
    assert (shipped / "app.py").read_bytes() == (ROOT / "app.py").read_bytes()
    static = {path.name for path in (ROOT / "visual" / "static").iterdir()}
    assert {path.name for path in (installed / "visual" / "static").iterdir()} == static
    tops = {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")}
    assert tops == {"specllava", "visual"}, "nothing else may be put among other people's packages"


def test_what_draws_is_an_extra_and_the_pins_are_what_both_need(installed: Path) -> None:
    (metadata,) = installed.glob("specllava-*.dist-info/METADATA")
    message = message_from_string(metadata.read_text(encoding="utf-8"))
    needed = [Requirement(line) for line in message.get_all("Requires-Dist")]
    plain = {one.name for one in needed if one.marker is None}
    page = {one.name for one in needed if one.marker is not None and one.marker.evaluate({"extra": "page"})}
    smol = {one.name for one in needed if one.marker is not None and one.marker.evaluate({"extra": "smol"})}
    assert "page" in message.get_all("Provides-Extra") and page == PAGE and not PAGE & plain
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    assert {line.partition("==")[0] for line in lines if not line.startswith("#")} == plain | page | smol


@pytest.mark.night
@pytest.mark.parametrize(
    ("program", "code", "said"),
    [
        (MODELS, 0, ""),
        (
            MAIN.format("['trace', 'export', 'log.json', '--html', 'a.html']"),
            1,
            'specllava: this draws, and what draws is not installed: pip install "specllava[page]"\n',
        ),
    ],
    ids=["models", "export"],
)
def test_without_what_draws_everything_else_works(
    installed: Path, tmp_path: Path, program: str, code: int, said: str
) -> None:
    (tmp_path / "log.json").write_text('{"per_step_accepted": [1, 2], "per_step_drafted": [3, 3]}')
    command, where = [sys.executable, "-c", BLOCKED + program], environment(installed)
    run = subprocess.run(command, cwd=tmp_path, env=where, capture_output=True, text=True)
    assert run.returncode == code and run.stderr.endswith(said), run.stderr


@pytest.mark.night
def test_the_toy_pair_answers_where_it_was_installed(installed: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "specllava", "generate", "--prompt", "What is there?", "--max-new-tokens", "8"]
    picture = ROOT / "assets" / "examples" / "3-count.png"
    run = subprocess.run(
        [*command, "--image", str(picture)], cwd=tmp_path, env=environment(installed), capture_output=True, text=True
    )
    assert run.returncode == 0 and run.stdout.strip(), run.stderr


@pytest.mark.night
def test_the_page_shows_a_race_where_it_was_installed(installed: Path, tmp_path: Path) -> None:
    race = tmp_path / "race.json"
    shutil.copy(ROOT / "assets" / "examples" / "3-count.json", race)
    port = free_port()
    command = [sys.executable, "-m", "specllava", "trace", "view", str(race), "--port", str(port)]
    view = subprocess.Popen(
        command, cwd=tmp_path, env=environment(installed), start_new_session=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores Ctrl-C
    )  # fmt: skip
    try:
        page = answer_of(f"http://127.0.0.1:{port}/config", view).decode()
        assert "from race.json" in page and '"lessons":[{' in page
    finally:
        os.killpg(view.pid, signal.SIGINT)
        view.wait(60)
