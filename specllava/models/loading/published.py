"""Sizes of the published models that presets name, so that a pair is weighed before anything of it is downloaded.

Nothing here is more than what memory follows from; ``tests/test_preset_sizes.py`` counts the same on models without
storage, of the configurations as they are published.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from specllava.models.loading.model_size import ModelSize

LLAVA_EMBEDDINGS, LLAVA_13B_EMBEDDINGS = 32064 * 4096, 32064 * 5120
QWEN_3B_EMBEDDINGS, QWEN_7B_EMBEDDINGS = 151936 * 2048, 152064 * 3584


@dataclass(frozen=True, slots=True)
class Published:
    """A model of the hub.

    Args:
        stored: bytes of a weight in its files.
        copied: numbers in its files that are not held: a copy of the target's embeddings.
    """

    size: ModelSize
    stored: int = 2
    copied: int = 0

    @property
    def download(self) -> int:
        """Bytes of its weights' files, about."""
        return self.stored * (self.size.weights + self.copied)


PUBLISHED: Final[Mapping[str, Published]] = {
    "llava-hf/llava-1.5-7b-hf": Published(ModelSize(7_063_427_072, 32, 32, 128, 6_476_005_376)),
    "llava-hf/llava-1.5-13b-hf": Published(ModelSize(13_351_494_656, 40, 40, 128, 12_687_769_600)),
    "llava-hf/llava-v1.6-vicuna-7b-hf": Published(ModelSize(7_063_431_168, 32, 32, 128, 6_476_005_376)),
    "llava-hf/llava-v1.6-vicuna-13b-hf": Published(ModelSize(13_351_499_776, 40, 40, 128, 12_687_769_600)),
    "HuggingFaceTB/SmolVLM2-256M-Video-Instruct": Published(ModelSize(256_484_928, 30, 3, 64), stored=4),
    "HuggingFaceTB/SmolVLM2-500M-Video-Instruct": Published(ModelSize(507_482_304, 32, 5, 64), stored=4),
    "HuggingFaceTB/SmolVLM2-2.2B-Instruct": Published(ModelSize(2_246_784_880, 24, 32, 64, 1_610_612_736), stored=4),
    "Qwen/Qwen2-VL-7B-Instruct": Published(ModelSize(8_291_375_616, 28, 4, 128, 6_525_288_448)),
    "Qwen/Qwen2.5-VL-3B-Instruct": Published(ModelSize(3_754_622_976, 36, 2, 128, 2_774_532_096)),
    "Qwen/Qwen2.5-VL-7B-Instruct": Published(ModelSize(8_292_166_656, 28, 4, 128, 6_525_288_448)),
    "Qwen/Qwen2.5-VL-32B-Instruct": Published(ModelSize(33_452_718_336, 64, 8, 128, 31_205_621_760)),
    "Qwen/Qwen2.5-VL-72B-Instruct": Published(ModelSize(73_410_777_344, 80, 8, 128, 70_212_648_960)),
    "Qwen/Qwen3-VL-2B-Instruct": Published(ModelSize(2_127_532_032, 28, 8, 128, 1_409_286_144)),
    "Qwen/Qwen3-VL-4B-Instruct": Published(ModelSize(4_437_815_808, 36, 8, 128, 3_633_315_840)),
    "Qwen/Qwen3-VL-8B-Instruct": Published(ModelSize(8_767_123_696, 36, 8, 128, 6_945_767_424)),
    "Qwen/Qwen3-VL-32B-Instruct": Published(ModelSize(33_357_390_064, 64, 8, 128, 31_205_621_760)),
    "Qwen/Qwen3-VL-30B-A3B-Instruct": Published(ModelSize(31_070_754_032, 48, 4, 128, 905_969_664)),
    "OpenGVLab/InternVL3-1B-hf": Published(ModelSize(938_119_296, 24, 2, 64)),
    "OpenGVLab/InternVL3-8B-hf": Published(ModelSize(7_944_300_032, 28, 4, 128, 6_525_288_448)),
    "google/gemma-3-4b-it": Published(ModelSize(4_300_079_472, 34, 4, 256)),
    "google/gemma-3-12b-it": Published(ModelSize(12_187_325_040, 48, 8, 256, 10_758_389_760)),
    "google/gemma-3-27b-it": Published(ModelSize(27_432_406_640, 62, 16, 128, 25_598_361_600)),
    "llava-hf/llava-onevision-qwen2-0.5b-ov-hf": Published(ModelSize(893_675_552, 24, 2, 64)),
    "llava-hf/llava-onevision-qwen2-7b-ov-hf": Published(ModelSize(8_030_807_584, 28, 4, 128, 6_525_288_448)),
    "llava-hf/llava-onevision-qwen2-72b-ov-hf": Published(ModelSize(73_181_570_592, 80, 8, 128, 70_212_648_960)),
    "Cloudriver/MSD-LLaVA1.5-7B": Published(
        ModelSize(235_937_792, 1, 32, 128, states=4096), copied=LLAVA_EMBEDDINGS
    ),
    "lucylyn/MSD-LLaVA1.5-7B": Published(ModelSize(235_937_792, 1, 32, 128, states=4096), copied=LLAVA_EMBEDDINGS),
    "Cloudriver/ViSpec-LLaVA1.5-7B": Published(
        ModelSize(319_836_160, 1, 32, 128, states=4096), copied=LLAVA_EMBEDDINGS
    ),
    "JLKang/ViSpec-llava-1.5-7b-hf": Published(
        ModelSize(319_836_160, 1, 32, 128, states=4096), copied=LLAVA_EMBEDDINGS
    ),
    "Cloudriver/EAGLE-LLaVA-1.5-7B": Published(
        ModelSize(235_937_792, 1, 32, 128, states=4096), copied=LLAVA_EMBEDDINGS
    ),
    "Cloudriver/EAGLE3-LLaVA1.5-7B": Published(ModelSize(434_388_992, 1, 32, 128, states=3 * 4096)),
    "lucylyn/MSD-LLaVA1.5-13B": Published(
        ModelSize(369_633_280, 1, 40, 128, states=5120), copied=LLAVA_13B_EMBEDDINGS
    ),
    "JLKang/ViSpec-llava-v1.6-vicuna-7b-hf": Published(
        ModelSize(319_836_160, 1, 32, 128, states=4096), copied=LLAVA_EMBEDDINGS
    ),
    "JLKang/ViSpec-llava-v1.6-vicuna-13b-hf": Published(
        ModelSize(500_720_640, 1, 40, 128, states=5120), copied=LLAVA_13B_EMBEDDINGS
    ),
    "JLKang/ViSpec-Qwen2.5-VL-3B-Instruct": Published(
        ModelSize(113_780_736, 1, 16, 128, states=2048), copied=QWEN_3B_EMBEDDINGS
    ),
    "JLKang/ViSpec-Qwen2.5-VL-7B-Instruct": Published(
        ModelSize(344_999_424, 1, 28, 128, states=3584), copied=QWEN_7B_EMBEDDINGS
    ),
    "lucylyn/MSD-Qwen2VL-7B-Instruct": Published(
        ModelSize(258_743_296, 1, 4, 128, states=3584), copied=QWEN_7B_EMBEDDINGS
    ),
    "Cloudriver/MSD-Qwen2.5-VL-7B-Instruct": Published(
        ModelSize(258_743_296, 1, 4, 128, states=3584), copied=QWEN_7B_EMBEDDINGS
    ),
    "Cloudriver/ViSpec-Qwen2.5-VL-7B-Instruct": Published(
        ModelSize(322_979_328, 1, 4, 128, states=3584), copied=QWEN_7B_EMBEDDINGS
    ),
    "Cloudriver/EAGLE-Qwen2.5-VL-7B-Instruct": Published(
        ModelSize(258_743_296, 1, 4, 128, states=3584), copied=QWEN_7B_EMBEDDINGS
    ),
    "Cloudriver/EAGLE3-Qwen2.5-VL-7B-Instruct": Published(ModelSize(402_798_592, 1, 4, 128, states=3 * 3584)),
    "Rayzl/qwen2.5-vl-7b-eagle3-sgl": Published(ModelSize(402_798_592, 1, 4, 128, states=3 * 3584)),
    "AngelSlim/Qwen3-VL-2B-Instruct_eagle3": Published(ModelSize(136_847_360, 1, 8, 128, states=3 * 2048)),
    "taobao-mnn/Qwen3-VL-2B-Instruct-Eagle3": Published(ModelSize(136_847_360, 1, 8, 128, states=3 * 2048)),
    "taobao-mnn/Qwen3-VL-8B-Instruct-Eagle3": Published(ModelSize(399_523_840, 1, 8, 128, states=3 * 4096)),
    "AngelSlim/Qwen3-VL-4B-Instruct_eagle3": Published(ModelSize(218_245_120, 1, 8, 128, states=3 * 2560)),
    "AngelSlim/Qwen3-VL-30B-A3B-Instruct_eagle3": Published(ModelSize(145_235_968, 1, 4, 128, states=3 * 2048)),
}
