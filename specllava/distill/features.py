"""Vision features of pictures on disk: computed once by the target's vision tower, read from memory-mapped shards.

The tower is frozen, so its features of a picture never change. A cache belongs to one tower and one images
directory and may serve any number of runs.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from tqdm.auto import tqdm
from transformers import PreTrainedModel, ProcessorMixin

from specllava.distill.pictures import Pixels, written_picture
from specllava.models.families.family import family_of
from specllava.models.families.interface import FEATURES, Picture, SharedTower, Size
from specllava.models.media.images import read_size
from specllava.runtime.vision import to_device

SHARD = 256 * 2**20  # bytes, approximately
AT_ONCE = 16  # pictures per forward pass of the tower
PART = "\n"  # between a picture's name and the name of a tensor
AMONG = "/among others"  # after the name of a picture that is one of several; no file has such a name
ELSEWHERE = ("text_config", "transformers_version")  # fields of a configuration that no feature depends on


@dataclass(frozen=True)
class FeatureCache:
    """Feature cache by picture path, as the family stores them.

    A LLaVA's are ``[tiles, patches, vision_hidden]``. Other families store the embeddings of a picture's slots,
    ``[slots, hidden]``, and whatever else they need.

    Args:
        directory: holds ``features-NNNNN.safetensors``, whose tensors are named by their pictures' paths and, but for
            ``FEATURES``, by what they are.
        several_differ: of the family.
    """

    directory: Path
    several_differ: bool = False
    _open: dict[str, Any] = field(default_factory=dict, repr=False)  # shards mapped by this process

    def __reduce__(self) -> tuple[type[FeatureCache], tuple[Path, bool]]:
        """Pickle the cache by its directory: a worker process maps the shards for itself."""
        return FeatureCache, (self.directory, self.several_differ)

    @cached_property
    def parts(self) -> dict[str, dict[str, tuple[str, str]]]:
        """Shard and name of each tensor of each picture."""
        parts: dict[str, dict[str, tuple[str, str]]] = {}
        for shard in sorted(self.directory.glob("features-?????.safetensors")):
            with safe_open(shard, framework="pt") as tensors:
                for key in tensors.keys():  # noqa: SIM118
                    name, _, part = key.partition(PART)
                    parts.setdefault(name, {})[part or FEATURES] = shard.name, key
        return parts

    def __len__(self) -> int:
        return len(self.parts)

    def __call__(self, names: Sequence[str], shown: int | None = None) -> list[Picture]:
        """Return the features of the first ``shown`` pictures of one row, or of all; only their own pages are read.

        Raises:
            ValueError: a picture that could not be read when the cache was made.
        """
        return [self._one(name) for name in kept_names(names, self.several_differ)[:shown]]

    def _one(self, name: str) -> Picture:
        if name not in self.parts:
            raise ValueError(f"there are no features of {name} in {self.directory}")
        return {part: self._tensor(shard, key) for part, (shard, key) in self.parts[name].items()}

    def _tensor(self, shard: str, key: str) -> Tensor:
        if shard not in self._open:
            self._open[shard] = safe_open(self.directory / shard, framework="pt")
        features: Tensor = self._open[shard].get_tensor(key)
        return features


def size_of(target: PreTrainedModel, tiles: int) -> int:
    """Return the size in bytes of the features of ``tiles`` tiles."""
    vision = target.config.vision_config
    patches = (vision.image_size // vision.patch_size) ** 2 + (target.config.vision_feature_select_strategy == "full")
    width = family_of(target.config).slot_width(target.config)
    return int(tiles * patches * width * target.dtype.itemsize)


def kept_names(names: Sequence[str], several_differ: bool) -> list[str]:
    """Return the names under which the features of a row's pictures are kept."""
    among = several_differ and len(names) > 1
    return [f"{name}{AMONG}" if among else name for name in names]


def make_features(
    directory: Path,
    target: PreTrainedModel,
    processor: ProcessorMixin,
    images: Path,
    names: Sequence[str],
    accelerator: Accelerator,
) -> FeatureCache:
    """Compute the features that a cache lacks of ``names``, which are :func:`kept_names`; processes share the work.

    Shards are written to a temporary name and renamed, so after a kill the next call resumes at the unfinished shard.

    Raises:
        ValueError: not enough disk, or a cache of another tower or images directory.
    """
    _check_owner(directory, {"tower": fingerprint(target), "images": str(images.resolve())}, accelerator)
    cache = FeatureCache(directory, family_of(target.config).several_differ)
    missing = [name for name in sorted(set(names)) if name not in cache.parts]
    needed = sum(_sizes(target, processor, images, missing))
    _check_disk(directory, needed, len(missing), accelerator)
    in_each = max(1, SHARD * len(missing) // max(1, needed))
    parts = [missing[start : start + in_each] for start in range(0, len(missing), in_each)]
    used = [int(shard.stem.removeprefix("features-")) for shard in directory.glob("features-?????.safetensors")]
    numbered = list(enumerate(parts, start=max(used, default=-1) + 1))
    mine = numbered[accelerator.process_index :: accelerator.num_processes]
    accelerator.wait_for_everyone()  # no process writes before all have listed the existing shards
    read_pictures = Pixels(processor, target.config, images)
    for number, part in tqdm(mine, desc="vision features", unit="shard", disable=not accelerator.is_main_process):
        shard = directory / f"features-{number:05d}.safetensors"
        beside = shard.with_suffix(".writing")
        save_file(_compute(target, part, read_pictures), beside)
        beside.replace(shard)
    accelerator.wait_for_everyone()
    return FeatureCache(directory, cache.several_differ)


def _sizes(target: PreTrainedModel, processor: ProcessorMixin, images: Path, names: Sequence[str]) -> Iterator[int]:
    """Yield the bytes of the features of each picture; of one that cannot be read there are none."""
    family, known = family_of(target.config), dict[tuple[Size, bool], int]()
    slot = processor.tokenizer.convert_ids_to_tokens(target.config.image_token_id)
    for name in names:
        among = name.endswith(AMONG)
        try:
            size = read_size(images / name.removesuffix(AMONG))
        except ValueError:
            continue
        if (size, among) not in known:
            if isinstance(family, SharedTower):
                known[size, among] = size_of(target, family.num_tiles(target.config, size))
            else:
                slots = written_picture(processor, size, among).count(slot)
                known[size, among] = slots * family.slot_width(target.config) * target.dtype.itemsize
        yield known[size, among]


@torch.inference_mode()
def _compute(target: PreTrainedModel, names: Sequence[str], read_pictures: Pixels) -> dict[str, Tensor]:
    """Return features by name; a picture that cannot be decoded has none, and its rows are counted when read."""
    family, kept = family_of(target.config), dict[str, Tensor]()
    for start in range(0, len(names), AT_ONCE):
        readable = {}
        for name in names[start : start + AT_ONCE]:
            times = 2 if name.endswith(AMONG) else 1
            try:
                seen = read_pictures([name.removesuffix(AMONG)] * times, 1)
            except ValueError:
                continue
            readable[name] = [to_device(one, target, target.device) for one in seen]
        if readable:
            features = iter(family.encode(target, [one for seen in readable.values() for one in seen]))
            for name, seen in readable.items():
                own: list[Any] = list(islice(features, len(seen)))
                for part, tensor in family.store(own[0] if len(own) == 1 else torch.cat(own)).items():
                    kept[name if part == FEATURES else f"{name}{PART}{part}"] = tensor.cpu().clone()
    return kept


def fingerprint(target: PreTrainedModel) -> str:
    """Hash what features depend on: weights and settings of all that reads a picture before the decoder does."""
    family = family_of(target.config)
    if isinstance(family, SharedTower):
        weights = target.model.vision_tower.state_dict()
        read = " ".join(str(getattr(target.config, name)) for name in family.shared)
    else:
        spoken = [target.get_decoder(), target.get_output_embeddings()]
        others = {weight.data_ptr() for module in spoken for weight in module.parameters()}
        weights = {name: one for name, one in target.state_dict().items() if one.data_ptr() not in others}
        fields = target.config.to_dict()
        kept = {name: one for name, one in fields.items() if name not in ELSEWHERE and not name.startswith("_")}
        read = json.dumps(kept, sort_keys=True, default=str)
    digest = hashlib.sha256(read.encode())
    for name, weight in sorted(weights.items()):
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
        digest.update(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _check_owner(directory: Path, owner: dict[str, str], accelerator: Accelerator) -> None:
    """Check that a cache belongs to this tower and images directory; mark a new one."""
    mark = directory / "features.json"
    if mark.is_file():
        written = json.loads(mark.read_text(encoding="utf-8"))
        differ = [name for name in owner if written.get(name) != owner[name]]
        if differ:
            raise ValueError(
                f"the features at {directory} are those of another {' and '.join(differ)}: choose another --features"
            )
    elif accelerator.is_main_process:
        directory.mkdir(parents=True, exist_ok=True)
        mark.write_text(json.dumps(owner, indent=1) + "\n", encoding="utf-8")
    accelerator.wait_for_everyone()


def _check_disk(directory: Path, needed: int, pictures: int, accelerator: Accelerator) -> None:
    free = shutil.disk_usage(directory).free
    accelerator.print(f"vision features of {pictures} pictures: {_size(needed)} at {directory}, {_size(free)} are free")
    if needed > free:
        raise ValueError(
            f"the vision features of {pictures} pictures need {_size(needed)} of disk, {_size(free)} are free at"
            f" {directory}: choose another --features, or leave it out"
        )


def _size(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**28 else f"{count / 2**20:.1f} MiB"
