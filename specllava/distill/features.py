"""Vision features of pictures on disk: computed once by the target's vision tower, read from memory-mapped shards.

The tower is frozen, so its features of a picture never change. A cache belongs to one tower and one images
directory and may serve any number of runs.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from tqdm.auto import tqdm
from transformers import PreTrainedModel, ProcessorMixin

from specllava.distill.batches import Pixels
from specllava.models.family import shared_tower_of, tower_features
from specllava.models.images import read_size

SHARD = 256 * 2**20  # bytes, approximately
AT_ONCE = 16  # pictures per forward pass of the tower


@dataclass(frozen=True)
class FeatureCache:
    """Feature cache by picture path, ``[tiles, patches, vision_hidden]`` each; in LLaVA-1.5 a picture is one tile.

    Args:
        directory: holds ``features-NNNNN.safetensors``, whose tensors are named by their pictures' paths.
    """

    directory: Path
    _open: dict[str, Any] = field(default_factory=dict, repr=False)  # shards mapped by this process

    def __reduce__(self) -> tuple[type[FeatureCache], tuple[Path]]:
        """Pickle the cache by its directory: a worker process maps the shards for itself."""
        return FeatureCache, (self.directory,)

    @cached_property
    def _shard_of(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for shard in sorted(self.directory.glob("features-?????.safetensors")):
            with safe_open(shard, framework="pt") as tensors:
                found |= dict.fromkeys(tensors.keys(), shard.name)
        return found

    def __len__(self) -> int:
        return len(self._shard_of)

    def __call__(self, names: Sequence[str]) -> Tensor:
        """Return features ``[tiles of all, patches, vision_hidden]``; only their own pages are read.

        Raises:
            ValueError: a picture that could not be read when the cache was made.
        """
        return torch.cat([self._one(name) for name in names])

    def _one(self, name: str) -> Tensor:
        shard = self._shard_of.get(name)
        if shard is None:
            raise ValueError(f"there are no features of {name} in {self.directory}")
        if shard not in self._open:
            self._open[shard] = safe_open(self.directory / shard, framework="pt")
        features: Tensor = self._open[shard].get_tensor(name)
        return features


def size_of(target: PreTrainedModel, tiles: int) -> int:
    """Return the size in bytes of the features of ``tiles`` tiles."""
    vision = target.config.vision_config
    patches = (vision.image_size // vision.patch_size) ** 2 + (target.config.vision_feature_select_strategy == "full")
    width = target.model.multi_modal_projector.linear_1.in_features
    return int(tiles * patches * width * target.dtype.itemsize)


def make_features(
    directory: Path,
    target: PreTrainedModel,
    processor: ProcessorMixin,
    images: Path,
    names: Sequence[str],
    accelerator: Accelerator,
) -> FeatureCache:
    """Compute the features of the pictures ``names`` that a cache lacks; several processes share the work.

    Shards are written to a temporary name and renamed, so after a kill the next call resumes at the unfinished shard.

    Raises:
        ValueError: not enough disk, or a cache of another tower or images directory.
    """
    _check_owner(directory, {"tower": fingerprint(target), "images": str(images.resolve())}, accelerator)
    there = FeatureCache(directory)._shard_of
    missing = [name for name in sorted(set(names)) if name not in there]
    needed = size_of(target, sum(_tiles(target, images / name) for name in missing))
    _check_disk(directory, needed, len(missing), accelerator)
    in_each = max(1, SHARD * len(missing) // max(1, needed))
    parts = [missing[start : start + in_each] for start in range(0, len(missing), in_each)]
    used = [int(shard.stem.removeprefix("features-")) for shard in directory.glob("features-?????.safetensors")]
    numbered = list(enumerate(parts, start=max(used, default=-1) + 1))
    mine = numbered[accelerator.process_index :: accelerator.num_processes]
    accelerator.wait_for_everyone()  # no process writes before all have listed the existing shards
    see = Pixels(processor, target.config, images)
    for number, part in tqdm(mine, desc="vision features", unit="shard", disable=not accelerator.is_main_process):
        shard = directory / f"features-{number:05d}.safetensors"
        beside = shard.with_suffix(".writing")
        save_file(_computed(target, part, see), beside)
        beside.replace(shard)
    accelerator.wait_for_everyone()
    return FeatureCache(directory)


def _tiles(target: PreTrainedModel, path: Path) -> int:
    try:
        return shared_tower_of(target.config).num_tiles(target.config, read_size(path))
    except ValueError:  # no features either
        return 0


@torch.inference_mode()
def _computed(target: PreTrainedModel, names: Sequence[str], see: Any) -> dict[str, Tensor]:
    """Return features by name; a picture that cannot be decoded has none, and its rows are counted when read."""
    found: dict[str, Tensor] = {}
    for start in range(0, len(names), AT_ONCE):
        readable = {}
        for name in names[start : start + AT_ONCE]:
            try:
                readable[name] = see([name])
            except ValueError:
                continue
        if readable:
            seen = torch.cat(list(readable.values())).to(target.device, target.dtype)
            features = tower_features(target, seen).cpu().split([len(tiles) for tiles in readable.values()])
            found |= {name: one.clone() for name, one in zip(readable, features, strict=True)}
    return found


def fingerprint(target: PreTrainedModel) -> str:
    """Return what features depend on: the tower's weights, which of its layers is read and how, and the tiles."""
    read = " ".join(str(getattr(target.config, name)) for name in shared_tower_of(target.config).shared)
    digest = hashlib.sha256(read.encode())
    for name, weight in sorted(target.model.vision_tower.state_dict().items()):
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
