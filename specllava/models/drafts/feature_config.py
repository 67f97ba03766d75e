"""Configuration of a feature draft: a drafter that reads the target's hidden states."""

from __future__ import annotations

from huggingface_hub.dataclasses import strict
from transformers import LlamaConfig

from specllava.models.checkpoints.decoder import FULL
from specllava.models.drafts.compressor_config import CompressorConfig

LAST: tuple[int, ...] = (-1,)  # the target's last hidden state, behind its final norm


@strict
class FeatureDraftConfig(LlamaConfig):
    """Sizes and variant of a feature draft.

    Args:
        format: recurrence: ``eagle`` (EAGLE-1 and 2, arXiv 2401.15077), ``msd`` (2505.14260: image embeddings enter as
            they are), ``vispec`` (2509.15235: image runs are compressed), ``eagle3`` (2503.01840: several layers).
        state_layers: hidden states of the target that it reads, numbered as transformers does; -1 is the last, normed.
        target_hidden_size: of one such state; ``hidden_size`` if not given.
        draft_vocab_size: tokens that its own head scores; all of the target's if not given.
        fusion: it has ``fc``, which makes one vector of what it reads; without, an EAGLE-3 draft reads one state as it
            is.
        fc_bias: that has a bias; if not given, as each format's authors have it.
        input_norm: its first layer has an input norm, as in EagleVLM (2509.11815); EAGLE has none there.
        own_embeddings: it has token embeddings of its own; the target's otherwise.
        own_head: it has a head of its own, the target's otherwise; if not given, EAGLE-3 has one.
        qkv_bias: queries, keys and values have biases, as Qwen2's have.
        qk_norm: queries and keys are normed by head, as Qwen3's are.
        layer_types, sliding_window: attention of each layer, and the positions that a ``sliding_attention`` layer sees,
            its own included; full attention if not given.
        mrope_section: pairs of numbers of a head that each of its target's three rows of positions rotates; plain
            positions without, see :mod:`specllava.models.drafts.feature_rotations`.
        mrope_interleaved: the three take turns, as in Qwen3-VL; else they follow one another, as in Qwen2-VL.
        queries: of ViSpec's image adaptor.
        norm_before_residual, norm_before_fc, fc_norm, norm_output: variants of EAGLE-3 in the speculators layout: the
            normed state is the residual; one norm, or one for each state, before the fusion; the normed state recurs.
        compressor: options of the visual compressor as :class:`CompressorConfig` has them, or none.

    Raises:
        ValueError: a compressor that is not known, or one of another format than ``eagle``.
    """

    model_type = "feature_draft"

    num_hidden_layers: int = 1
    format: str = "eagle"
    state_layers: list[int] | tuple[int, ...] = LAST
    target_hidden_size: int | None = None
    draft_vocab_size: int | None = None
    fusion: bool = True
    fc_bias: bool | None = None
    input_norm: bool = False
    own_embeddings: bool = False
    own_head: bool | None = None
    qkv_bias: bool = False
    qk_norm: bool = False
    layer_types: list[str] | None = None
    sliding_window: int | None = None
    mrope_section: list[int] | None = None
    mrope_interleaved: bool = False
    queries: int = 2
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    compressor: dict[str, object] | None = None

    def __post_init__(self, **kwargs: object) -> None:
        if self.target_hidden_size is None:
            self.target_hidden_size = self.hidden_size
        if self.draft_vocab_size is None:
            self.draft_vocab_size = self.vocab_size
        eagle3 = self.format == "eagle3"
        self.fc_bias = not eagle3 if self.fc_bias is None else self.fc_bias
        self.own_head = eagle3 if self.own_head is None else self.own_head
        if self.layer_types is None:
            self.layer_types = [FULL] * self.num_hidden_layers
        if self.compressor is not None:
            if self.format != "eagle":
                raise ValueError(f"a draft of format {self.format} takes no compressor, only eagle does")
            self.compressor = CompressorConfig.of(self.compressor).settings()
        super().__post_init__(**kwargs)

    def validate_architecture(self) -> None:
        """Accept heads of another width than hidden size over their number, as the draft for Qwen2.5-VL-32B has."""
