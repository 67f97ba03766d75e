"""Files that fit nowhere or do not fit together cost one line and a few CPU seconds."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from support import checkpoints
from support.forked_cli import Ended, ForkedCli

MOST_SECONDS = 8  # of CPU more than a call with an ordinary checkpoint takes; each of these took minutes, or all memory
PICTURE = Path(__file__).parents[1] / "assets" / "examples" / "1-describe.png"
ESTIMATE = " of memory: target "  # in the line that a target that is not shipped always costs


@pytest.fixture(scope="module")
def cli() -> Iterator[ForkedCli]:
    command = ForkedCli()
    yield command
    command.close()


@pytest.fixture(scope="module")
def ordinary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.write_llava(tmp_path_factory.mktemp("ordinary") / "target")


@pytest.fixture(scope="module")
def usual(cli: ForkedCli, ordinary: Path) -> float:
    """CPU seconds of an answer."""
    ended = generate(cli, ordinary)
    assert ended.code == 0, ended
    return ended.seconds


@pytest.fixture
def target(ordinary: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(ordinary, tmp_path / "target"))


def generate(cli: ForkedCli, target: Path, prompt: str = "Hi") -> Ended:
    return cli("generate", "--target", target, "--image", PICTURE, "--prompt", prompt, "--max-new-tokens", 3)


def check_refused(ended: Ended, usual: float, *words: str) -> None:
    """One line of the program, nothing else but the estimate; and soon."""
    assert ended.code == 1, ended
    *before, line = ended.lines
    assert all(ESTIMATE in one or "has no draft" in one for one in before), ended
    assert line.startswith("specllava: ") and len(line) < 400
    assert all(word in line for word in words), line
    assert ended.seconds < usual + MOST_SECONDS, ended


def edit(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    fields = json.loads(file.read_text())
    change(fields)
    file.write_text(json.dumps(fields))


# ------------------------------------------------------------------------------------------- configurations


@pytest.mark.parametrize(
    ("part", "name", "size"),
    [
        ("text_config", "intermediate_size", 10**12),
        ("text_config", "num_attention_heads", 10**6),
        ("vision_config", "image_size", 10**6),
    ],
)
def test_a_size_that_fits_nowhere_is_refused(
    cli: ForkedCli, target: Path, usual: float, part: str, name: str, size: int
):
    edit(target / "config.json", lambda fields: fields[part].update({name: size}))
    check_refused(generate(cli, target), usual)


def test_a_configuration_of_nested_lists_is_refused(cli: ForkedCli, target: Path, usual: float):
    text = (target / "config.json").read_text().rstrip().removesuffix("}")
    (target / "config.json").write_text(text + ', "more": ' + "[" * 200_000 + "]" * 200_000 + "}")
    check_refused(generate(cli, target), usual, "recursion")


# ----------------------------------------------------------------------------------------------- tokenizers


def test_a_panic_of_the_tokenizer_is_one_line(cli: ForkedCli, target: Path, usual: float):
    """Its regular expression exceeds its limit of tries while a text is read: tokenizers panics, as Rust does."""
    pattern = {"type": "Split", "pattern": {"Regex": "(▁?(a|aa)+)+Q"}, "behavior": "Isolated", "invert": False}
    edit(target / "tokenizer.json", lambda fields: fields.update(pre_tokenizer=pattern))
    ended = generate(cli, target, "a" * 60)
    own = [line for line in ended.lines if line.startswith("specllava: ")]
    assert ended.code == 1 and len(own) == 1 and "cannot read" in own[0], ended
    assert not any("Traceback" in line for line in ended.lines), ended


# --------------------------------------------------------------------------------------------------- weights


def test_weights_of_swapped_names_are_one_line(cli: ForkedCli, target: Path, usual: float):
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
    check_refused(generate(cli, target), usual, " weights ", "of other shapes", "is expected")


# ---------------------------------------------------------------------------------------------- files of rows


def test_rows_of_nested_lists_and_of_many_megabytes_are_refused(cli: ForkedCli, usual: float, tmp_path: Path):
    data = tmp_path / "rows.jsonl"
    for text, words in (
        ('{"a":' * 200_000 + "1" + "}" * 200_000, "not JSON"),
        (json.dumps({"prompt": "why? " * 6_000_000}), "29,999,999 characters of prompt do not fit the context of 1024"),
    ):
        data.write_text(text)
        ended = cli("bench", "--data", data, "--prompts", 1, "--rounds", 1, "--max-new-tokens", 3)
        check_refused(ended, usual, words)
