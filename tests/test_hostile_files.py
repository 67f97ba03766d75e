"""Files that fit nowhere or do not fit together cost one line and a few CPU seconds."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from support import checkpoints

from specllava.cli.main import main

MOST_SECONDS = 10  # of CPU: a call with an ordinary checkpoint takes one; each of these took minutes, or all memory
PICTURE = Path(__file__).parents[1] / "assets" / "examples" / "1-describe.png"


@pytest.fixture(autouse=True)
def _end_what_takes_too_long() -> Iterator[None]:
    def end(*_: object) -> None:
        raise TimeoutError("more CPU than any refusal may take")

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, 6 * MOST_SECONDS)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, before)


@pytest.fixture(scope="module")
def ordinary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = checkpoints.write_llava(tmp_path_factory.mktemp("ordinary") / "target")
    assert main(asking(target)) == 0  # imports what the calls need, before their time is taken
    return target


@pytest.fixture
def target(ordinary: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(ordinary, tmp_path / "target"))


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str]) -> Callable[[list[str]], str]:
    """The one line in which a call ends, soon."""

    def call(arguments: list[str]) -> str:
        capsys.readouterr()
        began = time.process_time()
        code, used = main(arguments), time.process_time() - began
        lines = capsys.readouterr().err.splitlines()
        (line,) = (one for one in lines if one.startswith("specllava: "))
        assert (code, line) == (1, lines[-1]) and len(line) < 400 and not any("Traceback" in one for one in lines)
        assert used < MOST_SECONDS, line
        return line

    return call


def asking(target: Path, prompt: str = "Hi") -> list[str]:
    named = ["generate", "--target", str(target), "--image", str(PICTURE), "--prompt", prompt]
    return [*named, "--max-new-tokens", "3"]


def edit(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    fields = json.loads(file.read_text())
    change(fields)
    file.write_text(json.dumps(fields))


@pytest.mark.parametrize(
    ("part", "name", "size"),
    [
        ("text_config", "intermediate_size", 10**12), ("text_config", "num_attention_heads", 10**6),
        ("vision_config", "image_size", 10**6),
    ],
)  # fmt: skip
def test_a_size_that_fits_nowhere_is_refused(refusal: Any, target: Path, part: str, name: str, size: int):
    edit(target / "config.json", lambda fields: fields[part].update({name: size}))
    assert refusal(asking(target))


def test_a_configuration_of_nested_lists_is_refused(refusal: Any, target: Path):
    text = (target / "config.json").read_text().rstrip().removesuffix("}")
    (target / "config.json").write_text(text + ', "more": ' + "[" * 200_000 + "]" * 200_000 + "}")
    assert "recursion" in refusal(asking(target))


def test_a_panic_of_the_tokenizer_is_one_line(refusal: Any, target: Path):
    """Its regular expression exceeds its limit of tries while a text is read: tokenizers panics, as Rust does."""
    pattern = {"type": "Split", "pattern": {"Regex": "(▁?(a|aa)+)+Q"}, "behavior": "Isolated", "invert": False}
    edit(target / "tokenizer.json", lambda fields: fields.update(pre_tokenizer=pattern))
    assert "cannot read" in refusal(asking(target, "a" * 60))


def test_weights_of_swapped_names_are_one_line(refusal: Any, target: Path):
    other = {"q_proj": "up_proj", "up_proj": "q_proj"}

    def swapped(name: str) -> str:
        *front, kind, end = name.split(".")
        return ".".join([*front, other.get(kind, kind), end])

    for file in target.glob("*.safetensors"):
        weights = {swapped(name): one for name, one in load_file(file).items()}
        save_file(weights, file, metadata={"format": "pt"})
    edit(
        target / "model.safetensors.index.json",
        lambda fields: fields.update(weight_map={swapped(name): file for name, file in fields["weight_map"].items()}),
    )
    assert " weights " in refusal(asking(target))


def test_rows_of_nested_lists_and_of_many_megabytes_are_refused(refusal: Any, tmp_path: Path):
    data = tmp_path / "rows.jsonl"
    for text, words in (
        ('{"a":' * 200_000 + "1" + "}" * 200_000, "not JSON"),
        (json.dumps({"prompt": "why? " * 6_000_000}), "29,999,999 characters of prompt do not fit the context of 1024"),
    ):
        data.write_text(text)
        limits = ["--prompts", "1", "--rounds", "1", "--max-new-tokens", "3"]
        assert words in refusal(["bench", "--data", str(data), *limits])
