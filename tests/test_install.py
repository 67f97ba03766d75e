"""The wheel works where there is no checkout; ``app.py`` starts, stops, and ends in one line."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from email import message_from_string
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tyro
from packaging.requirements import Requirement
from support.visual_traces import SETTING

import app
from benchmarks.shared.command import free_port
from specllava.cli.options import PageOptions

ROOT = Path(__file__).resolve().parents[1]
PAGE = {"gradio", "plotly", "networkx"}
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
assert main(["trace", "export", "log.json", "--html", "a.html"]) == 1
"""
SOURCES = ("specllava", "visual", "recipes", "assets", "app.py", "setup.py", "pyproject.toml", "README.md", "LICENSE")


def answer_of(address: str, process: subprocess.Popen[Any], seconds: float = 120) -> bytes:
    """Return what an address answers, once the process serves it."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(address, timeout=5) as answer:
                return bytes(answer.read())
        except OSError:
            assert process.poll() is None and time.monotonic() < deadline, f"nothing is served at {address}"
            time.sleep(0.2)


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
def test_without_what_draws_everything_else_works_and_what_draws_is_named(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "log.json").write_text('{"per_step_accepted": [1, 2], "per_step_drafted": [3, 3]}')
    where = os.environ | {"PYTHONPATH": str(installed), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", BLOCKED + MODELS]
    run = subprocess.run(command, cwd=tmp_path, env=where, capture_output=True, text=True)
    said = 'specllava: this draws, and what draws is not installed: pip install "specllava[page]"\n'
    assert run.returncode == 0 and run.stderr.endswith(said), run.stderr


VARIABLES = ("GRADIO_SERVER_NAME", "GRADIO_SERVER_PORT", "PORT", "GRADIO_ROOT_PATH", "SPACE_ID")


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No variable of the machine's own, and its signals as they were."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def test_the_environment_says_where_to_serve_and_the_command_line_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    typed = ["--port", "5", "--host", "y", "--root-path", "/other"]
    for variables, arguments, told in (
        ({}, [], ("127.0.0.1", 7860, "")),
        ({"SPACE_ID": "me/it"}, [], ("0.0.0.0", 7860, "")),
        ({"GRADIO_SERVER_NAME": "::1", "PORT": "8080"}, [], ("::1", 8080, "")),
        ({"GRADIO_SERVER_PORT": "9", "GRADIO_ROOT_PATH": "/demo"}, [], ("::1", 9, "/demo")),
        ({}, typed, ("y", 5, "/other")),
    ):
        for name, value in variables.items():  # beside those that stand already
            monkeypatch.setenv(name, value)
        options = tyro.cli(PageOptions, args=arguments)
        assert (options.host, options.port, options.root_path) == told


def test_whatever_keeps_the_page_from_starting_is_one_line(tmp_path, monkeypatch, capsys) -> None:
    def ended(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["app.py", *arguments])
        assert app.main() == 1
        line = capsys.readouterr().err.strip()
        assert line.startswith("app.py: ") and "\n" not in line
        return line

    def fail(*_: Any, **__: Any) -> None:
        raise KeyError("one\ntwo")

    monkeypatch.setattr(app, "load_pair", lambda running: SimpleNamespace(info=SETTING))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for host, number in (("127.0.0.1", port), ("127.0.0.1", "70000"), ("192.0.2.1", "7860")):
            line = ended("--host", host, "--port", number)
            assert line.endswith(": end what listens there, or choose another --port or --host")
            assert line.startswith(f"app.py: the page cannot be served on port {number} of {host}")
    with monkeypatch.context() as patch:
        patch.setattr(app, "serve", fail)
        assert ended() == "app.py: KeyError: 'one\\ntwo'"
        patch.setenv("PORT", "http")
        assert "invalid literal for int() with base 10: 'http'" in ended()
    shutil.copy(app.EXAMPLES / "3-count.json", tmp_path)
    monkeypatch.setattr(app, "EXAMPLES", tmp_path)
    assert ended() == "app.py: 3-count.json has no picture beside it"
    (tmp_path / "3-count.png").write_bytes(b"nothing")
    assert "3-count.png is not a readable image" in ended()


@pytest.mark.night
def test_a_container_stops_the_page_as_a_keyboard_does() -> None:
    port = free_port()
    variables = {"HF_HUB_OFFLINE": "1", "PORT": str(port), "GRADIO_ROOT_PATH": "/demo", "PYTHONUNBUFFERED": "1"}
    page = subprocess.Popen(
        [sys.executable, "app.py"], cwd=ROOT, env=os.environ | variables, stderr=subprocess.PIPE, text=True
    )
    config = json.loads(answer_of(f"http://127.0.0.1:{port}/config", page))
    assert config["root"].endswith("/demo")
    page.send_signal(signal.SIGTERM)
    _, said = page.communicate(timeout=60)
    assert page.returncode == 0 and "Traceback" not in said
