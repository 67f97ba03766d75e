"""A draft that reads the target's hidden states: EAGLE and what came of it (arXiv 2401.15077, 2406.16858, 2503.01840).

Entry ``i`` of its text pairs the embedding of token ``i + 1`` with the target's state ``f_i`` of token ``i``; what
its layers make of that predicts ``f_{i+1}``. After the last token with a known state, it goes on from its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

from specllava.models.drafts.compressor import ImageAdaptor, Operator, compressor_of_config, segments_of
from specllava.models.language_model import FULL
from specllava.models.options import CompressorConfig, DraftFormat
from specllava.models.tokens import slot_ids

LAST: tuple[int, ...] = (-1,)  # the target's last hidden state, after its final norm
MROPE_KEYS: Final = ("mrope_section", "mrope_interleaved")
ROPE_KEYS: Final = ("rope_scaling", "rope_parameters")  # where a configuration may say it, beside "rope_theta"
USUAL_THETA: Final = 10000.0


@strict
class FeatureDraftConfig(LlamaConfig):
    """Sizes and variant of a feature draft.

    Args:
        format: recurrence: ``eagle`` (EAGLE-1 and 2, arXiv 2401.15077), ``msd`` (2505.14260: image embeddings enter as
            they are), ``vispec`` (2509.15235: image runs are compressed); ``eagle3`` (2503.01840: several layers).
        state_layers: hidden states of the target that it reads, numbered as transformers does; -1 is the last, normed.
        target_hidden_size: of one such state; ``hidden_size`` if not given.
        draft_vocab_size: tokens that its own head scores; all of the target's if not given.
        fc_bias: ``fc``, which makes one vector of what it reads, has a bias; if not given, as its format's authors do.
        input_norm: its first layer has an input norm, as in EagleVLM (2509.11815); EAGLE has none there.
        own_embeddings: it has token embeddings of its own; the target's otherwise.
        own_head: it has a head of its own, the target's otherwise; if not given, EAGLE-3 has one.
        qkv_bias: queries, keys and values have biases, as Qwen2's have.
        qk_norm: queries and keys are normed by head, as Qwen3's are.
        mrope_section: pairs of numbers of a head that each of its target's three rows of positions rotates; plain
            positions without.
        mrope_interleaved: the three take turns, as in Qwen3-VL; else they follow one another, as in Qwen2-VL.
        queries: learnt ones of ViSpec's adaptor, which read a picture.
        norm_before_residual, norm_output: variants of EAGLE-3 in the speculators layout: the normed state is the
            residual; the normed state recurs.
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
    fc_bias: bool | None = None
    input_norm: bool = False
    own_embeddings: bool = False
    own_head: bool | None = None
    qkv_bias: bool = False
    qk_norm: bool = False
    mrope_section: list[int] | None = None
    mrope_interleaved: bool = False
    queries: int = 2
    norm_before_residual: bool = False
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
        if self.compressor is not None:
            if self.format != "eagle":
                raise ValueError(f"a draft of format {self.format} takes no compressor, only eagle does")
            self.compressor = CompressorConfig.of(self.compressor).settings()
        super().__post_init__(**kwargs)

    def validate_architecture(self) -> None:
        """Accept heads of another width than hidden size over their number, as the draft for Qwen2.5-VL-32B has."""


class EagleLayer(LlamaDecoderLayer):
    """Decoder layer of EAGLE, whose first layer has no input norm unless the configuration asks for one."""

    def __init__(self, config: FeatureDraftConfig, number: int) -> None:
        super().__init__(config, number)
        if number == 0 and not config.input_norm:
            self.input_layernorm = nn.Identity()
        if config.qk_norm:
            self.self_attn = _normed_attention(config, number)
        if config.qkv_bias:
            _replace_products(self.self_attn, config.hidden_size, bias=True)


class Eagle3Layer(LlamaDecoderLayer):
    """First decoder layer of EAGLE-3: attends over token embedding and state side by side, ``[…, 2 hidden]``."""

    def __init__(self, config: FeatureDraftConfig, number: int) -> None:
        super().__init__(config, number)
        if config.qk_norm:
            self.self_attn = _normed_attention(config, number)
        _replace_products(self.self_attn, 2 * config.hidden_size, config.qkv_bias or config.attention_bias)
        for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):  # torch's own, which keeps float64
            setattr(self, name, nn.RMSNorm(config.hidden_size, eps=config.rms_norm_eps))
        self.norm_before_residual = config.norm_before_residual

    def forward(self, hidden_states: Tensor, **arguments: Any) -> Tensor:
        """Run the layer on ``[1, tokens, 2 hidden]``; the result is ``[1, tokens, hidden]``."""
        embeds, states = hidden_states.chunk(2, -1)
        normed = self.hidden_norm(states)
        attended, _ = self.self_attn(
            hidden_states=torch.cat([self.input_layernorm(embeds), normed], dim=-1), **arguments
        )
        states = (normed if self.norm_before_residual else states) + attended
        out: Tensor = states + self.mlp(self.post_attention_layernorm(states))
        return out


def _normed_attention(config: FeatureDraftConfig, number: int) -> Qwen3Attention:
    """Return Qwen3's attention, which norms each head of queries and keys before it rotates them."""
    attention = Qwen3Attention(config, number)
    for name in ("q_norm", "k_norm"):  # torch's own, which keeps float64
        setattr(attention, name, nn.RMSNorm(attention.head_dim, eps=config.rms_norm_eps))
    return attention


def _replace_products(attention: nn.Module, width: int, bias: bool) -> None:
    """Let queries, keys and values be made of ``width`` numbers."""
    for name in ("q_proj", "k_proj", "v_proj"):
        setattr(attention, name, nn.Linear(width, getattr(attention, name).out_features, bias=bias))


def rotary_settings(name: str, settings: Mapping[str, Any], in_rows: bool) -> dict[str, Any]:
    """Return the rotary settings of any ``config.json`` by the names of ``FeatureDraftConfig``.

    With ``in_rows`` the draft reads its target's three rows of positions, if the settings have sections for them.

    Raises:
        ValueError: settings that are no JSON object, or sections that are not three numbers.
    """
    given: dict[str, Any] = {"rope_theta": settings.get("rope_theta")}
    for key in ROPE_KEYS:
        one = settings.get(key) or {}
        if not isinstance(one, Mapping):
            raise ValueError(f"{name} has {key} {one!r}, which is no JSON object")
        given |= one
    kind = given.pop("type", None)
    kind = given.pop("rope_type", None) or kind or "default"
    rope = {key: value for key, value in given.items() if key not in MROPE_KEYS}
    rope |= {"rope_type": "default" if kind == "mrope" else kind, "rope_theta": rope["rope_theta"] or USUAL_THETA}
    section = given.get(MROPE_KEYS[0])
    if section is None or not in_rows:
        return {"rope_parameters": rope}
    if not isinstance(section, list) or len(section) != 3 or not all(isinstance(one, int) for one in section):
        raise ValueError(f"{name} has mrope_section {section!r}, which are not three whole numbers")
    return {"rope_parameters": rope, "mrope_section": section, "mrope_interleaved": bool(given.get(MROPE_KEYS[1]))}


def rotary_axes(section: Sequence[int], interleaved: bool) -> list[int]:
    """Return the row of positions that each pair of numbers of a head is rotated by: 0 time, 1 height, 2 width.

    Args:
        section: pairs of each row; the rows follow one another, or take turns as far as they go.
    """
    if not interleaved:
        return [row for row, count in enumerate(section) for _ in range(count)]
    return [pair % 3 if pair < 3 * section[pair % 3] else 0 for pair in range(sum(section))]


@dataclass(frozen=True, slots=True)
class SharedEmbeddings:
    """The target's token embeddings and head, which a feature draft shares."""

    embeddings: nn.Module
    head: nn.Module
    dtype: torch.dtype

    def __deepcopy__(self, _: dict[int, Any]) -> SharedEmbeddings:
        return self  # a copy of a draft shares its target


@dataclass(frozen=True, slots=True)
class DraftInputs:
    """Inputs of a feature draft's layers for a text.

    Args:
        inputs: ``[entries, width]``.
        positions: of each entry in the text; a compressed picture leaves gaps.
        sources: of each entry: the number of its token in the text, or a picture's number below zero, from -1.
        image: of the last picture, what ViSpec adds to every later entry, ``[hidden]``; ``None`` without.
        bias: added to the attention scores of each entry, ``[entries]``, where a gate in training weighs several
            compressions; ``None`` otherwise.
        choice: name of the operator that pictures go through, the gate's choice if there is a gate.
        rows: instead of ``positions``, for a draft that rotates by its target's rows of positions. Those of the token
            whose state each entry reads, and of the next entry, ``[3, entries + 1]``; ``None`` without.
    """

    inputs: Tensor
    positions: tuple[int, ...]
    sources: tuple[int, ...]
    image: Tensor | None = None
    bias: Tensor | None = None
    choice: str | None = None
    rows: Tensor | None = None


class FeatureDraft(PreTrainedModel):
    """A feature draft. :meth:`bind` gives it the embeddings and the head of its target before use.

    Weights bear the names of the published checkpoints; EAGLE-3's ``midlayer`` is ``layers.0``.
    """

    config_class = FeatureDraftConfig
    config: FeatureDraftConfig
    shared: SharedEmbeddings  # of the target that it is bound to
    base_model_prefix = ""
    _supports_sdpa = True

    def __init__(self, config: FeatureDraftConfig) -> None:
        super().__init__(config)
        width = config.hidden_size
        wide = len(config.state_layers) * int(config.target_hidden_size or width)
        eagle3 = config.format == "eagle3"
        self.fc = nn.Linear(wide if eagle3 else width + wide, width, bias=bool(config.fc_bias))
        first, *rest = range(config.num_hidden_layers)
        self.layers = nn.ModuleList([(Eagle3Layer if eagle3 else EagleLayer)(config, first)])
        self.layers.extend(EagleLayer(config, number) for number in rest)
        self.rotary_emb = LlamaRotaryEmbedding(config=config)
        if config.own_embeddings:
            self.embed_tokens = nn.Embedding(config.vocab_size, width)
        if eagle3:
            self.norm = nn.RMSNorm(width, eps=config.rms_norm_eps)
        if config.own_head:
            self.lm_head = nn.Linear(width, int(config.draft_vocab_size or config.vocab_size), bias=False)
            self.register_buffer("d2t", torch.zeros(self.lm_head.out_features, dtype=torch.int64))
        if config.format == "vispec":
            self.img_fc = nn.Linear(2 * width, width, bias=bool(config.fc_bias))
            self.imadpt = ImageAdaptor(config.queries, width, config.num_attention_heads, config.qkv_bias)
        self.compressor = compressor_of_config(config)
        self.post_init()

    def bind(self, target: PreTrainedModel) -> FeatureDraft:
        """Use the token embeddings and the head of ``target`` from now on; returns the draft."""
        self.shared = SharedEmbeddings(target.get_input_embeddings(), target.get_output_embeddings(), target.dtype)
        self.slot_ids = slot_ids(target.config)
        return self

    def embed(self, tokens: Tensor) -> Tensor:
        """Return embeddings of tokens, ``[…, hidden]``."""
        table = self.embed_tokens if self.config.own_embeddings else self.shared.embeddings
        embeds: Tensor = table(tokens)
        return embeds.to(self.dtype)

    def inputs(self, embeds: Tensor, states: Tensor, guessed: bool = False, image: Tensor | None = None) -> Tensor:
        """Fuse token embeddings ``[…, hidden]`` with states to what the layers read, ``[…, width]``.

        States are the target's, ``[…, layers * hidden]``, or ``guessed``: the draft's own, ``[…, hidden]``.
        """
        states = states.to(self.dtype)
        if self.config.format == "eagle3":
            return torch.cat([embeds, states if guessed else self.fc(states)], dim=-1)
        if self.config.format == "vispec":
            image = torch.zeros_like(states[..., :1, :]) if image is None else image
            states = self.img_fc(torch.cat([states, image.expand_as(states)], dim=-1))
        fused: Tensor = self.fc(torch.cat([embeds, states], dim=-1))
        return fused

    def entries(self, tokens: Tensor, embeds: Tensor, states: Tensor, question: Tensor) -> DraftInputs:
        """Return the layers' inputs for a text whose states are known.

        Args:
            tokens: ``[length]``: token 1 to token ``length`` of the text.
            embeds: of them, ``[length, hidden]``, with projected picture features in image slots.
            states: the target's, of token 0 to ``length - 1``, ``[length, layers * hidden]``.
            question: the target's state of the prompt's last token, which a compressor's gate reads.
        """
        slots = torch.isin(tokens, tokens.new_tensor(self.slot_ids))
        kind, embeds = self.config.format, embeds.to(self.dtype)
        if kind == "eagle3" or self.config.own_embeddings:
            embeds = self.embed(tokens)
        if kind == "vispec" or self.compressor is not None:
            return self._compress(embeds, states, slots, question)
        inputs = self.inputs(embeds, states)
        if kind == "msd":
            inputs = torch.where(slots[:, None], embeds, inputs)
        positions = tuple(range(len(tokens)))
        return DraftInputs(inputs, positions, positions)

    def forward(
        self,
        inputs: Tensor,
        rotations: tuple[Tensor, Tensor],
        mask: Tensor | None = None,
        cache: Any = None,
    ) -> Tensor:
        """Run the layers on ``[batch, entries, width]``; returns states ``[batch, entries, hidden]``, which recur.

        Args:
            rotations: cosines and sines of the entries' positions, ``[batch, entries, size of a head]``.
            mask: added to the scores; causal without it.
        """
        states = inputs
        for layer in self.layers:
            states = layer(states, attention_mask=mask, position_embeddings=rotations, past_key_values=cache)
        if self.config.norm_output:
            states = self.norm(states)
        return states

    def rotations(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and sines of positions ``[batch, entries]``, or of their rows ``[3, batch, entries]``."""
        if positions.dim() == 3:
            axes = rotary_axes(self.config.mrope_section or (), self.config.mrope_interleaved)
            angles = positions[axes].float() * self.rotary_emb.inv_freq.float()[:, None, None]
            angles = angles.permute(1, 2, 0).repeat(1, 1, 2)  # [batch, entries, size of a head]
            scaling = self.rotary_emb.attention_scaling
            return (angles.cos() * scaling).to(self.dtype), (angles.sin() * scaling).to(self.dtype)
        cosines, sines = self.rotary_emb(positions.new_empty(0, dtype=self.dtype), position_ids=positions)
        return cosines, sines

    def logits(self, states: Tensor) -> Tensor:
        """Score next tokens from the draft's states ``[…, hidden]``: ``[…, vocab]``, -inf for what it cannot guess."""
        if self.config.format == "eagle3" and not self.config.norm_output:
            states = self.norm(states)
        if not self.config.own_head:
            logits: Tensor = self.shared.head(states.to(self.shared.dtype))
            return logits.to(states.device)  # the target's head may lie on another
        own: Tensor = self.lm_head(states)
        ids = self.guessable
        if ids is None:
            return own
        scattered = own.new_full((*own.shape[:-1], self.config.vocab_size), -torch.inf)
        scattered[..., ids] = own
        return scattered

    @property
    def guessable(self) -> Tensor | None:
        """Ids that its own head scores, ``[draft vocabulary]``; ``None`` for all of the target's."""
        if not self.config.own_head or len(self.d2t) == self.config.vocab_size:
            return None
        target_ids: Tensor = self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)
        return target_ids

    def _compress(self, embeds: Tensor, states: Tensor, slots: Tensor, question: Tensor | None) -> DraftInputs:
        """Return entries of which each run of ``slots [length]`` has become a few, at the run's last positions."""
        image: Tensor | None = None
        inputs: list[Tensor] = []
        bias: list[Tensor] = []
        positions: list[int] = []
        sources: list[int] = []
        chosen = {} if self.compressor is None else self.compressor.choose(question)
        for begin, end, run in segments_of(slots):
            here = slice(begin, end)
            if not run:
                made = [self.inputs(embeds[here], states[here], image=image)]
            elif self.compressor is None:  # ViSpec: the last of its adaptor's outputs goes on
                gathered = self.imadpt(embeds[here])  # [queries, hidden]
                made, image = [gathered[:-1]], gathered[-1]
            else:
                operators = (self.compressor.operator(name) for name in chosen)
                made = [self._apply_operator(one, embeds[here], states[here]) for one in operators]
            for one, weight in zip(made, chosen.values() if run and chosen else [None], strict=True):
                inputs.append(one)
                bias.append((one.new_zeros(()) if weight is None else weight).expand(len(one)))
                positions += range(end - len(one), end)
                sources += [-run] * len(one) if run else range(begin, end)
        weighted = any(weight is not None for weight in chosen.values())
        choice = next(iter(chosen)) if len(chosen) == 1 else None
        return DraftInputs(
            torch.cat(inputs) if inputs else self.inputs(embeds, states),
            tuple(positions),
            tuple(sources),
            image,
            torch.cat(bias) if weighted else None,
            choice,
        )

    def _apply_operator(self, operator: Operator, embeds: Tensor, states: Tensor) -> Tensor:
        """Return the entries ``[kept, hidden]`` that an operator makes of a run; fused are only as many as need be."""
        both = torch.cat([embeds, states.to(self.dtype)], dim=-1)
        made: Tensor = self.fc(operator(both)) if operator.commutes else operator(self.fc(both))
        return made


SIZES: Final = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "max_position_embeddings",
    "vocab_size", "initializer_range",
)  # fmt: skip


def fresh_feature_draft(
    target: PreTrainedModel,
    kind: DraftFormat = "eagle",
    input_norm: bool = True,
    guessable: Sequence[int] | None = None,
    seed: int = 0,
    heads: int = 0,
    intermediate_size: int = 0,
) -> FeatureDraft:
    """Return a new draft of one layer for ``target``, in float32 and bound to it.

    Args:
        input_norm: norm in front of the layer, as in EagleVLM; not for EAGLE-3, which has norms of its own.
        guessable: ids that the head of an EAGLE-3 draft scores; all without.
        heads: of its attention, keys and values included, each as wide as the target's; 0 for as many as the target.
        intermediate_size: of its MLP; 0 for the target's.

    Raises:
        ValueError: more heads than the target's.
    """
    text = target.config.get_text_config()
    rotations = text.rope_parameters
    sizes = {name: getattr(text, name) for name in SIZES}
    sizes |= rotary_settings("the target", {"rope_parameters": rotations.get(FULL, rotations)}, in_rows=False)
    sizes |= {"hidden_act": "silu"}  # whatever the target's: engines have no other in a draft's layer
    sizes |= {"rms_norm_eps": getattr(text, "rms_norm_eps", None) or text.layer_norm_eps}  # as Cohere names it
    if heads > text.num_attention_heads:
        raise ValueError(f"{heads} heads for a draft of a target with {text.num_attention_heads}: ask for no more")
    sizes["head_dim"] = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    sizes["intermediate_size"] = intermediate_size or text.intermediate_size
    if heads:
        sizes |= {"num_attention_heads": heads, "num_key_value_heads": heads}
    count, eagle3 = int(text.num_hidden_layers), kind == "eagle3"
    ids = None if guessable is None else sorted(set(guessable))
    config = FeatureDraftConfig(
        **sizes,
        format=kind,
        state_layers=[min(2, count), count // 2, max(0, count - 3)] if eagle3 else LAST,
        draft_vocab_size=len(ids) if eagle3 and ids is not None else None,
        input_norm=input_norm and not eagle3,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        draft = FeatureDraft(config)
    with torch.no_grad():
        if eagle3:
            _take_over_head(draft, target, ids)
        else:  # begin with the sum of embedding and state
            width = draft.fc.out_features
            draft.fc.weight += torch.eye(width).repeat(1, draft.fc.in_features // width)
    return draft.bind(target)


def _take_over_head(draft: FeatureDraft, target: PreTrainedModel, ids: Sequence[int] | None) -> None:
    """Begin with the target's final norm and the rows of its head that score ``ids``."""
    norm = target.get_decoder().norm
    signs = torch.ones_like(norm.weight)
    signs[1::2] = -1.0  # of mean 0 and mean square 1, so that any norm leaves its scale, however it is stored
    draft.norm.weight.copy_(signs * norm(signs))
    rows = target.get_output_embeddings().weight
    if ids is None:
        draft.lm_head.weight.copy_(rows)
        return
    chosen = torch.tensor(ids)
    draft.lm_head.weight.copy_(rows[chosen.to(rows.device)])
    draft.d2t.copy_(chosen - torch.arange(len(ids)))
