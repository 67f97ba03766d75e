"""The recipe of the toy pair: every size, step count and seed."""

from __future__ import annotations

from dataclasses import dataclass, field

from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig

from specllava.distill.config import FeatureObjective, LoopConfig
from specllava.models.options import CompressorKind


@dataclass(frozen=True, slots=True)
class ToyRecipe:
    """Sizes, steps and seeds of the pair that ``recipes.toy train`` builds from nothing.

    ``tiny`` returns the same stages at a size that trains in seconds, for tests of the recipe itself.
    """

    image_size: int = 128
    patch_size: int = 16
    vision_layers: int = 4
    vision_hidden: int = 192
    aligned_layers: int = 4
    gathering_layers: int = 2
    target_layers: int = 8
    target_hidden: int = 384
    draft_layers: int = 1
    draft_hidden: int = 256
    eagle_heads: int = 3
    eagle_intermediate: int = 256
    eagle_compressor: CompressorKind = "pool"
    vocabulary: int = 1024
    context: int = 1024
    tokenizer_conversations: int = 20_000
    vision_batch: int = 64
    align_batch: int = 8
    target_batch: int = 4
    asking_batch: int = 4
    draft_batch: int = 8
    distill_batch: int = 16
    eagle_batch: int = 8
    kl_weight: float = 0.5
    content_weight: float = 4.0
    naming_weight: float = 2.0
    scenery_weight: float = 0.1
    gathering_weight: float = 1.0
    finding_weight: float = 1.0
    judging_weight: float = 6.0
    compiled: bool = True  # tower, last target and what distils, where a C++ compiler or a GPU is there
    vision: LoopConfig = field(default_factory=lambda: LoopConfig(1_600, 1e-3, warmup=50))
    align: LoopConfig = field(default_factory=lambda: LoopConfig(400, 1e-3, warmup=50, seed=4))
    target: LoopConfig = field(default_factory=lambda: LoopConfig(3_200, 8e-4, warmup=50, seed=1))
    asking: LoopConfig = field(default_factory=lambda: LoopConfig(10_000, 6e-4, warmup=50, seed=8, checkpoint_every=50))
    draft: LoopConfig = field(default_factory=lambda: LoopConfig(700, 2e-3, warmup=50, seed=2))
    distill: LoopConfig = field(default_factory=lambda: LoopConfig(500, 1e-3, warmup=50, seed=3))
    eagle_short: LoopConfig = field(default_factory=lambda: LoopConfig(900, 2e-3, warmup=50, seed=5))
    eagle: LoopConfig = field(default_factory=lambda: LoopConfig(600, 2e-3, warmup=50, seed=6))
    eagle_compressed: LoopConfig = field(default_factory=lambda: LoopConfig(200, 1e-3, warmup=20, seed=7))
    short_rollout: FeatureObjective = field(default_factory=lambda: FeatureObjective(1.0, 0.1, rollout=4))
    long_rollout: FeatureObjective = field(default_factory=lambda: FeatureObjective(1.0, 0.1, rollout=8))

    @classmethod
    def tiny(cls, steps: int = 4) -> ToyRecipe:
        loop = LoopConfig(steps, 1e-3, warmup=2, checkpoint_every=2)
        return cls(
            image_size=32, vision_layers=1, vision_hidden=32, aligned_layers=1, gathering_layers=1, target_layers=2,
            target_hidden=32, draft_hidden=32, eagle_heads=1, vocabulary=600, tokenizer_conversations=200,
            vision_batch=4, align_batch=2, target_batch=2, asking_batch=2, draft_batch=2, distill_batch=2,
            eagle_batch=2, compiled=False,
            vision=loop, align=loop, target=loop, asking=loop, draft=loop, distill=loop, eagle_short=loop, eagle=loop,
            eagle_compressed=loop,
        )  # fmt: skip

    @property
    def image_tokens(self) -> int:
        """Patches of one picture, equal to its image slots in the prompt."""
        return (self.image_size // self.patch_size) ** 2

    def vision_config(self) -> CLIPVisionConfig:
        return CLIPVisionConfig(
            hidden_size=self.vision_hidden,
            intermediate_size=4 * self.vision_hidden,
            num_hidden_layers=self.vision_layers,
            num_attention_heads=self.vision_hidden // 32,
            image_size=self.image_size,
            patch_size=self.patch_size,
        )

    def llava_config(self, layers: int, hidden: int, special: dict[str, int], tied: bool = False) -> LlavaConfig:
        """Return the configuration of target or draft.

        Args:
            special: token names to ids.
            tied: whether the head is the embeddings' own matrix.
        """
        text = LlamaConfig(
            vocab_size=self.vocabulary,
            hidden_size=hidden,
            intermediate_size=8 * hidden // 3 // 32 * 32,
            num_hidden_layers=layers,
            num_attention_heads=max(1, hidden // 64),
            num_key_value_heads=max(1, hidden // 64),
            max_position_embeddings=self.context,
            bos_token_id=special["<s>"],
            eos_token_id=special["</s>"],
            pad_token_id=special["<pad>"],
            tie_word_embeddings=tied,
        )
        return LlavaConfig(
            vision_config=self.vision_config(),
            text_config=text,
            image_token_index=special["<image>"],
            image_seq_length=self.image_tokens,
            vision_feature_layer=-1,
            vision_feature_select_strategy="default",
            tie_word_embeddings=tied,
        )
