"""A checkpoint: a directory or an id of the hub, whose files are checked before they are read."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoProcessor,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProcessorMixin,
)
from transformers import __version__ as transformers_version
from transformers.utils import logging as transformers_logging

from specllava.files import is_panic
from specllava.models.tokens import count_prefix_tokens

TEXTS: Final = (
    "tokenizer_config.json", "tokenizer.json", "vocab.json", "added_tokens.json", "special_tokens_map.json",
    "preprocessor_config.json", "processor_config.json", "chat_template.json", "chat_template.jinja",
    "generation_config.json",
)  # fmt: skip
POINTER: Final = b"version https://git-lfs.github.com/spec/"
SINGLE, INDEX, PICKLED = "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"
OTHER_FORMATS: Final = ("pytorch_model*.bin", "consolidated*", "*.pth", "*.gguf")


ADAPTER: Final = "adapter_config.json"
Source = str | Path
Read = TypeVar("Read")
log = logging.getLogger(__name__)
HUB_ID = re.compile(r"([A-Za-z0-9][\w.-]*/[\w.-]+)(?:@([\w./-]+))?")  # and a revision of it
ALIGNMENT: Final = 64  # bytes: the addresses of PyTorch's own allocations on a CPU are multiples of it


def align_memory(tensor: Tensor) -> Tensor:
    """Return the tensor, or a copy of it at an aligned address.

    The last bit of a product over the same numbers may depend on their address. Safetensors maps a file into memory, so
    the addresses of its tensors depend on the length of its header.
    """
    return tensor if tensor.data_ptr() % ALIGNMENT == 0 else tensor.clone()


class CheckpointError(ValueError):
    """Refusal of a checkpoint's file, in one line."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model on disk or on the hub, and the only way to read one.

    Args:
        name_or_path: a directory, or an id such as ``llava-hf/llava-1.5-7b-hf``.
        local: whether it is a directory, so that no network is used.
        revision: branch, tag or commit of the hub; its main branch without one.
    """

    name_or_path: str
    local: bool
    revision: str | None = None

    @classmethod
    def at(cls, source: Source) -> Checkpoint:
        """Return the checkpoint of a user's name for it: a directory if there is one, else an id of the hub.

        An id may name a revision, as in ``lmsys/vicuna-7b-v1.3@refs/pr/4``.

        Raises:
            ValueError: neither.
        """
        directory = Path(source)
        if (directory / ADAPTER).is_file():  # with peft, transformers would load the model that it names instead
            raise CheckpointError(
                f"{source} has {ADAPTER}, of an adapter such as LoRA's: merge it into its base (merge_and_unload and"
                " save_pretrained of peft), and name the directory that this writes"
            )
        if (directory / "config.json").is_file():
            return cls(str(directory), local=True)
        match = None if isinstance(source, Path) or directory.exists() else HUB_ID.fullmatch(source)
        if match is None:
            raise ValueError(f"no model at {source}: a directory with config.json is expected")
        return cls(match[1], local=False, revision=match[2])

    @property
    def name(self) -> str:
        """Short name."""
        return Path(self.name_or_path).name

    def settings(self) -> dict[str, Any]:
        """Read config.json as it is written, of a model that transformers need not know.

        Raises:
            ValueError: as :meth:`config`.
        """
        return self._read(lambda: self._object("config.json"))

    def config(self, build: type[Any] = AutoConfig) -> PretrainedConfig:
        """Read the configuration; ``build`` reads one that transformers does not know.

        Raises:
            ValueError: it cannot be read, or the hub cannot be reached or has no such model; in one line, as all below.
        """
        if build is AutoConfig:
            self._check_layout(self.settings())
        return self._read(lambda: build.from_pretrained(self.name_or_path, **self._rules))

    def processor(self, build: type[Any] = AutoProcessor) -> ProcessorMixin:
        """Load tokenizer and image processor; fields that older files lack come from the configuration."""
        self._check_texts()
        try:
            processor = self._read(lambda: build.from_pretrained(self.name_or_path, **self._rules))
        except ValueError as error:
            if isinstance(error.__cause__, ImportError) and "Torchvision" in str(error.__cause__):
                raise ValueError(
                    f"the processor of {self.name_or_path} needs torchvision, which is not installed: install it, or"
                    " take the processor of its model's own checkpoint, which does without"
                ) from error
            raise
        if not hasattr(processor, "image_processor"):
            raise ValueError(f"{self.name_or_path} has no image processor: its files are expected beside the model")
        if getattr(processor, "patch_size", 0) is None:
            config = self.config()
            processor.patch_size = config.vision_config.patch_size
            processor.vision_feature_select_strategy = config.vision_feature_select_strategy
            processor.num_additional_image_tokens = count_prefix_tokens(config.vision_config)
        return processor

    def tokenizer(self, config: PretrainedConfig | None = None) -> PreTrainedTokenizerBase:
        """Load the tokenizer alone; ``config`` is of a language model in a draft that transformers does not know."""
        self._check_texts()
        more = {} if config is None else {"config": config}
        return self._read(lambda: AutoTokenizer.from_pretrained(self.name_or_path, **more, **self._rules))

    def load(self, build: type[PreTrainedModel], **options: Any) -> PreTrainedModel:
        """Load the model as class ``build``, with the options of ``from_pretrained``.

        Raises:
            ValueError: also if weights are missing or of another shape; they would be left at random values.
        """
        self._read(lambda: [self._names(file) for file in self._files()])  # one that is cut off is refused
        loading = {"use_safetensors": True, "output_loading_info": True, "ignore_mismatched_sizes": True}
        with _no_report():
            model, loaded = self._read(
                lambda: build.from_pretrained(self.name_or_path, **loading, **options, **self._rules)
            )
        for name, shape, wanted in sorted(loaded["mismatched_keys"]):
            raise ValueError(
                f"{self.name_or_path} has {len(loaded['mismatched_keys'])} weights of other shapes than its config.json"
                f" says, such as {name}: {list(shape)}, {list(wanted)} is expected"
            )
        missing = sorted(loaded["missing_keys"])
        if missing:
            raise ValueError(
                f"{self.name_or_path} lacks {len(missing)} weights of a {build.__name__}, such as {missing[0]}"
            )
        for weight in (*model.parameters(), *model.buffers()):
            if type(weight.data) is Tensor and weight.device.type == "cpu":
                weight.data = align_memory(weight.data)
        if unused := sorted(loaded["unexpected_keys"]):
            log.warning(
                f"{self.name} has {len(unused)} weights that a {build.__name__} does not read, such as {unused[0]}"
            )
        return model

    def names(self) -> list[str] | None:
        """List the names of all tensors; ``None`` where there is a pickled file and no safetensors.

        Raises:
            ValueError: neither, or files that cannot be read.
        """
        if self._read(self._pickled):
            return None
        return self._read(lambda: [name for file in self._files() for name in self._names(file)])

    def weights(self, most: int, notify: Callable[[str], None]) -> dict[str, Tensor]:
        """Load all weights by name at aligned addresses, from safetensors, or where there are none from a pickled file.

        A pickled file is read by torch's restricted unpickler, which makes tensors and nothing else.

        Args:
            most: bytes that a pickled file may have.
            notify: receives a line about it.

        Raises:
            ValueError: a file that cannot be read, is larger, or holds anything but tensors.
        """
        if not self._read(self._pickled):
            return self._read(
                lambda: {name: align_memory(one) for file in self._files() for name, one in load_file(file).items()}
            )
        file = Path(self._read(lambda: self._file(PICKLED)))
        if (size := file.stat().st_size) > most:
            raise ValueError(f"{self.name_or_path} has a {PICKLED} of {size} bytes, its sizes explain {most} at most")
        notify(f"{self.name} comes as {PICKLED}: torch's restricted unpickler reads it, safetensors would be better")
        loaded = self._read(lambda: torch.load(file, map_location="cpu", weights_only=True, mmap=True))
        if not isinstance(loaded, dict) or not all(isinstance(one, Tensor) for one in loaded.values()):
            raise ValueError(f"{self.name_or_path} has a {PICKLED} that is no dictionary of tensors")
        return {name: align_memory(one) for name, one in loaded.items()}

    def tensors(self, part: str) -> dict[str, Tensor]:
        """Load only the weights below ``part``, such as ``vision_tower``, and return them by the rest of their name."""
        return self._read(lambda: dict(self._parts(f"{part}.")))

    def _parts(self, part: str) -> Iterator[tuple[str, Tensor]]:
        for file in self._files(part):
            with safe_open(file, framework="pt") as weights:
                for name in weights.keys():  # noqa: SIM118
                    if part in name:
                        end = name.partition(part)[2].removeprefix("vision_model.")
                        yield end, align_memory(weights.get_tensor(name))

    def _check_texts(self) -> None:
        """Refuse files of a directory's tokenizer and processor that a library would misread."""
        for name in TEXTS if self.local else ():
            if Path(self.name_or_path, name).is_file():
                (self._object if name.endswith(".json") else self._file)(name)

    def _check_layout(self, settings: Mapping[str, Any]) -> None:
        """Refuse a configuration that is none of transformers'."""
        kind = settings.get("model_type")
        if "mm_vision_tower" in settings:
            why = f"LLaVA's own layout ({kind} with mm_vision_tower)"
        elif kind in CONFIG_MAPPING:
            return
        elif "auto_map" in settings:
            why = f"model_type {kind!r} by code of its own (auto_map), which is not run"
        else:
            why = f"model_type {kind!r}, which transformers {transformers_version} does not know"
        raise CheckpointError(
            f"{self.name_or_path} has {why}: take its files for transformers, often named -hf, such as"
            " llava-hf/llava-1.5-7b-hf"
        )

    def _pickled(self) -> bool:
        """Check for a pickled file without safetensors beside it."""
        if self.local:
            here = Path(self.name_or_path)
            return (here / PICKLED).is_file() and not any((here / name).is_file() for name in (INDEX, SINGLE))
        try:
            self._files()
        except EntryNotFoundError:
            return True
        return False

    def _files(self, part: str = "") -> list[str]:
        """List the safetensors files that hold weights with ``part`` in their name."""
        try:
            index = self._object(INDEX).get("weight_map")
        except (EntryNotFoundError, FileNotFoundError):
            index = dict.fromkeys([part], SINGLE)
        if not isinstance(index, dict):
            raise CheckpointError(f"{self.name_or_path} has a {INDEX} without weight_map, an object")
        listed = sorted({str(file) for name, file in index.items() if part in name})
        if missing := [name for name in listed if self.local and not Path(self.name_or_path, name).is_file()]:
            here = Path(self.name_or_path)
            other = sorted(file.name for pattern in OTHER_FORMATS for file in here.glob(pattern))
            convert = f"convert {other[0]}, by from_pretrained and save_pretrained of transformers" if other else ""
            count = f"{len(missing)} of {len(listed)} files of weights"
            raise CheckpointError(
                f"{self.name_or_path} lacks {count}, such as {missing[0]}: {convert or 'download them'}"
            )
        return [self._file(name) for name in listed]

    def _file(self, name: str) -> str:
        """Return a file's path; of a directory, refuse the pointer that git leaves where git-lfs is missing."""
        if not self.local:
            return str(hf_hub_download(self.name_or_path, name, revision=self.revision))
        path = Path(self.name_or_path, name)
        if not path.is_file():
            raise FileNotFoundError(f"no such file: {name}")
        with path.open("rb") as opened:
            if opened.read(len(POINTER)) == POINTER:
                raise CheckpointError(
                    f"{self.name_or_path} has a git-lfs pointer in place of {name}: run \"git lfs pull\" there, or"
                    " download it"
                )
        return str(path)

    def _object(self, name: str) -> dict[str, Any]:
        """Return the JSON object that a file holds."""
        content, why = Path(self._file(name)).read_bytes(), "it holds a value of another kind"
        try:
            loaded = json.loads(content)
        except (ValueError, RecursionError) as error:
            loaded, why = None, str(error)
        if not isinstance(loaded, dict):
            raise CheckpointError(
                f"{self.name_or_path} has a {name} of {len(content):,} bytes that is no JSON object: {why[:120]}"
            )
        return loaded

    def _names(self, file: str) -> list[str]:
        """Return the names of a file's tensors."""
        try:
            with safe_open(file, framework="pt") as weights:
                return list(weights.keys())
        except SafetensorError as error:
            raise CheckpointError(
                f"{self.name_or_path} has a {Path(file).name} of {Path(file).stat().st_size:,} bytes that is no whole"
                " safetensors file: download it again"
            ) from error

    @property
    def _rules(self) -> dict[str, Any]:
        rules: dict[str, Any] = {"local_files_only": self.local, "trust_remote_code": False}
        return rules if self.revision is None else rules | {"revision": self.revision}

    def _read(self, read: Callable[[], Read]) -> Read:
        try:
            return read()
        except CheckpointError:
            raise
        except BaseException as error:  # of damaged files, each library raises what it meets, some bare ones
            if not isinstance(error, Exception) and not is_panic(error):
                raise
            why = " ".join(str(error).split()) or type(error).__name__
            why = re.split(r"(?<=[\w'\")])\. ", why)[0][:160]
            if self.local:
                raise ValueError(f"{self.name_or_path} cannot be read: {why}") from error
            raise ValueError(f"no directory {self.name_or_path} here, and the hub gave no such model: {why}") from error


@contextmanager
def _no_report() -> Iterator[None]:
    """Keep transformers from printing its table of weights that do not fit, for which one line is enough."""
    before = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(before)
