"""Checkpoints in a directory or on the Hugging Face hub: safetensors only, never code that comes with them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoProcessor,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProcessorMixin,
)

from specllava.models.hub_cache import INDEX, PICKLED, SINGLE

Source = str | Path
Read = TypeVar("Read")
SHARD: Final = "model_{}.safetensors"
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model on disk or on the hub, and the only way to read one.

    Args:
        place: a directory, or an id such as ``llava-hf/llava-1.5-7b-hf``.
        local: whether it is a directory, so that no network is used.
    """

    place: str
    local: bool

    @classmethod
    def at(cls, source: Source) -> Checkpoint:
        """Return the checkpoint of a user's name for it: a directory if there is one, else an id of the hub.

        Raises:
            ValueError: neither.
        """
        directory = Path(source)
        if (directory / "config.json").is_file():
            return cls(str(directory), local=True)
        if isinstance(source, Path) or directory.exists() or not HUB_ID.fullmatch(source):
            raise ValueError(f"no model at {source}: a directory with config.json is expected")
        return cls(source, local=False)

    @property
    def name(self) -> str:
        """Short name."""
        return Path(self.place).name

    def settings(self) -> dict[str, Any]:
        """Read config.json as it is written, of a model that transformers need not know.

        Raises:
            ValueError: as :meth:`config`.
        """
        found = self._read(lambda: json.loads(Path(self._file("config.json")).read_text(encoding="utf-8")))
        if not isinstance(found, dict):
            raise ValueError(f"{self.place} has a config.json that is no JSON object")
        return found

    def config(self, build: type[Any] = AutoConfig) -> PretrainedConfig:
        """Read the configuration.

        Args:
            build: class whose ``from_pretrained`` reads one that transformers does not know.

        Raises:
            ValueError: it cannot be read, or the hub cannot be reached or has no such model; in one line, as all below.
        """
        return self._read(lambda: build.from_pretrained(self.place, **self._rules))

    def processor(self, build: type[Any] = AutoProcessor) -> ProcessorMixin:
        """Load tokenizer and image processor; fields that older files lack come from the configuration.

        Args:
            build: class whose ``from_pretrained`` reads them, as the model's family says.
        """
        try:
            processor = self._read(lambda: build.from_pretrained(self.place, **self._rules))
        except ValueError as error:
            if isinstance(error.__cause__, ImportError) and "Torchvision" in str(error.__cause__):
                raise ValueError(
                    f"the processor of {self.place} reads videos, which that of its model does not:"
                    " the processor does not fit the model, take both from one checkpoint"
                ) from error
            raise
        if not hasattr(processor, "image_processor"):
            raise ValueError(f"{self.place} has no image processor: files of a processor are expected beside the model")
        if getattr(processor, "patch_size", 0) is None:
            config = self.config()
            processor.patch_size = config.vision_config.patch_size
            processor.vision_feature_select_strategy = config.vision_feature_select_strategy
            processor.num_additional_image_tokens = 1  # the class token that a CLIP tower puts in front
        return processor

    def tokenizer(self, config: PretrainedConfig | None = None) -> PreTrainedTokenizerBase:
        """Load the tokenizer alone.

        Args:
            config: of the language model, if :meth:`config` is one that transformers does not know.
        """
        more = {} if config is None else {"config": config}
        return self._read(lambda: AutoTokenizer.from_pretrained(self.place, **more, **self._rules))

    def load(self, build: type[PreTrainedModel], **options: Any) -> PreTrainedModel:
        """Load the model as class ``build``, with the options of ``from_pretrained``.

        Raises:
            ValueError: also if weights are missing, which would otherwise be left at random values.
        """
        model, found = self._read(
            lambda: build.from_pretrained(
                self.place, use_safetensors=True, output_loading_info=True, **options, **self._rules
            )
        )
        missing = sorted(found["missing_keys"])
        if missing:
            raise ValueError(f"{self.place} lacks {len(missing)} weights of a {build.__name__}, such as {missing[0]}")
        return model

    def names(self) -> list[str] | None:
        """List the names of all tensors; ``None`` where there is a pickled file and no safetensors.

        Raises:
            ValueError: neither, or files that cannot be read.
        """
        if self._pickled():
            return None
        return self._read(lambda: [name for file in self._files() for name in _names(file)])

    def weights(self, most: int, tell: Callable[[str], None]) -> dict[str, Tensor]:
        """Load all weights by name, from safetensors, or where there are none from a pickled file.

        A pickled file is read by torch's restricted unpickler, which makes tensors and nothing else.

        Args:
            most: bytes that a pickled file may have.
            tell: receives a line about it.

        Raises:
            ValueError: a file that cannot be read, is larger, or holds anything but tensors.
        """
        if not self._pickled():
            return self._read(lambda: {name: one for file in self._files() for name, one in load_file(file).items()})
        file = Path(self._read(lambda: self._file(PICKLED)))
        if (size := file.stat().st_size) > most:
            raise ValueError(f"{self.place} has a {PICKLED} of {size} bytes, its sizes explain {most} at most")
        tell(f"{self.name} comes as {PICKLED}: it is read by torch's restricted unpickler, safetensors would be better")
        found = self._read(lambda: torch.load(file, map_location="cpu", weights_only=True, mmap=True))
        if not isinstance(found, dict) or not all(isinstance(one, Tensor) for one in found.values()):
            raise ValueError(f"{self.place} has a {PICKLED} that is no dictionary of tensors")
        return found

    def tensors(self, part: str) -> dict[str, Tensor]:
        """Load only the weights below ``part``, such as ``vision_tower``, and return them by the rest of their name."""
        return self._read(lambda: dict(self._parts(f"{part}.")))

    def _parts(self, part: str) -> list[tuple[str, Tensor]]:
        found = []
        for file in self._files(part):
            with safe_open(file, framework="pt") as weights:
                for name in weights.keys():  # noqa: SIM118
                    _, here, end = name.partition(part)
                    if here:
                        found.append((end.removeprefix("vision_model."), weights.get_tensor(name)))
        return found

    def _pickled(self) -> bool:
        """Check for a pickled file without safetensors beside it."""
        if self.local:
            here = Path(self.place)
            return (here / PICKLED).is_file() and not any((here / name).is_file() for name in (INDEX, SINGLE))
        try:
            self._files()
        except EntryNotFoundError:
            return True
        return False

    def _files(self, part: str = "") -> list[str]:
        """List the safetensors files that hold weights with ``part`` in their name."""
        try:
            index = json.loads(Path(self._file(INDEX)).read_text(encoding="utf-8"))["weight_map"]
        except (EntryNotFoundError, FileNotFoundError):
            return [self._file(SINGLE), *self._more()]
        return [self._file(name) for name in sorted({file for name, file in index.items() if part in name})]

    def _more(self) -> Iterator[str]:
        """Yield the files that accelerate writes beside the first, without an index: model_1, model_2 and so on."""
        for number in count(1):
            try:
                yield self._file(SHARD.format(number))
            except (EntryNotFoundError, FileNotFoundError):
                return

    def _file(self, name: str) -> str:
        if not self.local:
            return str(hf_hub_download(self.place, name))
        path = Path(self.place, name)
        if not path.is_file():
            raise FileNotFoundError(f"no such file: {name}")
        return str(path)

    @property
    def _rules(self) -> dict[str, Any]:
        return {"local_files_only": self.local, "trust_remote_code": False}

    def _read(self, read: Callable[[], Read]) -> Read:
        try:
            return read()
        except Exception as error:  # of damaged files, each library raises what it meets, some bare ones
            why = " ".join(str(error).split()) or type(error).__name__
            why = re.split(r"(?<=[\w'\")])\. ", why)[0][:160]
            if self.local:
                raise ValueError(f"{self.place} cannot be read: {why}") from error
            raise ValueError(f"no directory {self.place} here, and the hub gave no such model: {why}") from error


def _names(file: str) -> list[str]:
    with safe_open(file, framework="pt") as weights:
        return list(weights.keys())
