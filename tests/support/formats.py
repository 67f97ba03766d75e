"""Small random drafts that read the target's states, and targets for them, on disk as the real ones are published.

Layouts: EAGLE-1 and 2 as SafeAILab/EAGLE writes them, Lyn-Lucy/MSD (``EAGLE/eagle/train/qwen2vl_config.json``),
KangJialiang/ViSpec (``vispec/train/qwen2.5_vl_7B_config.json``), MMSpec's EAGLE, EAGLE-3 as its authors, SpecForge
(``configs/qwen2-5-vl-7b-eagle3.json``), AngelSlim (``…/qwen3-vl-4b-eagle3-mrope.json``) and MMSpec write it, and
vllm-project/speculators. Only the sizes are small. Weights are float16.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from specllava.models.options import DraftFormat
from support import checkpoints, families
from support.checkpoints import PADDED, WORDS
from support.families import KINDS

LAYERS, HIDDEN, INNER, HEADS, SIZE = 7, 48, 96, 3, 16
USUAL = [2, LAYERS // 2, LAYERS - 3]  # hidden states that an EAGLE-3 head reads if nothing else is said
SMALL = 96  # tokens of a draft vocabulary
CALM = 0.004  # of a target's layers: its next token follows mostly from the last one
LOUD = 4.0  # of an embedding that passes for a state: its guesses are surer


@dataclass(frozen=True)
class Layout:
    """How one draft is published."""

    format: DraftFormat  # its recurrence
    file: str = "safetensors"  # or bin
    front: str = ""  # what its trainer left in front of every name
    layer: str = "layers.0."  # name of its decoder layer
    rows: int | None = PADDED  # of its copy of the token embeddings; None without one
    head: int = PADDED  # tokens that an EAGLE-3 head scores
    kv: int = HEADS  # key and value heads
    bias: bool = True  # of fc
    input_norm: bool = False  # of its layer, as EagleVLM's
    queries: int = 2  # of ViSpec's adaptor
    ids: dict[str, Any] = field(default_factory=dict)  # layers that it names, as config.json says it
    states: tuple[int, ...] = (-1,)  # hidden states that these are
    flags: dict[str, bool] | None = None  # of the speculators layout, whose configuration is nested
    width: int = HIDDEN  # its hidden size
    qkv_bias: bool = False
    theta: float = 10000.0  # base of its rotary embeddings
    section: tuple[int, int, int] | None = None  # pairs rotated by time, height and width; None for plain positions
    interleaved: bool = False  # these take turns
    again: bool = False  # its embeddings are there once more, as weight
    qk_norm: bool = False  # queries and keys are normed by head, as Qwen3's are
    own_head: bool = True
    variants: dict[str, bool] | None = None  # of its layer, where config.json has other words for it than flags
    says: dict[str, Any] = field(default_factory=dict)  # what else its config.json says

    @property
    def eagle3(self) -> bool:
        return self.format == "eagle3"

    @property
    def does(self) -> dict[str, bool]:
        """Variants of EAGLE-3 that it is trained with."""
        return (self.flags or {}) if self.variants is None else self.variants


IDS = "eagle_aux_hidden_state_layer_ids"
EAGLE3 = Layout("eagle3", layer="midlayer.", rows=None, head=SMALL, kv=1, bias=False, states=tuple(USUAL))
SPECULATORS = replace(EAGLE3, layer="layers.0.", rows=PADDED, ids={IDS: [1, 4, 6]}, states=(1, 4, 6), flags={})
LAYOUTS: dict[str, Layout] = {
    "eagle": Layout("eagle"),
    "eagle, no bias": Layout("eagle", file="bin", front="model.", rows=WORDS, bias=False),
    "eagle, input norm": Layout("eagle", input_norm=True),
    "msd": Layout("msd", file="bin", rows=WORDS),
    "vispec": Layout("vispec", file="bin"),
    "vispec, 4 queries": Layout("vispec", front="module.", queries=4),
    "eagle3": replace(EAGLE3, file="bin"),
    "eagle3, numbered": replace(EAGLE3, ids={"eagle_config": {IDS: [0, 2, 5]}}, states=(1, 3, 6), rows=WORDS),
    "eagle3, all tokens": replace(EAGLE3, front="module.", layer="layers.0.", rows=PADDED, head=PADDED, kv=HEADS),
    "speculators": replace(SPECULATORS, flags={"norm_before_residual": True}),
    "speculators, normed output": replace(SPECULATORS, flags={"norm_output": True}),
    "speculators, silent": replace(SPECULATORS, variants={"norm_before_residual": True}),
    "speculators, qwen3": replace(SPECULATORS, qk_norm=True, says={"model_type": "qwen3"}),
    "speculators, 4 states": replace(SPECULATORS, ids={IDS: [1, 3, 4, 7]}, states=(1, 3, 4, 7)),
    "speculators, by sglang": replace(SPECULATORS, ids={IDS: [0, 3, 5], "eagle_aux_layer_semantics": "sglang"}),
    "eagle3, biased": replace(EAGLE3, bias=True),
    "eagle3, the target's head": replace(EAGLE3, head=PADDED, own_head=False),
}  # fmt: skip
QWEN: dict[str, Any] = {"max_window_layers": 28, "sliding_window": 32768, "use_sliding_window": False}
# Drafts for other decoders, widths and positions than a LLaVA's, by the family that they are for.
FAMILY_LAYOUTS: dict[str, tuple[str, Layout]] = {
    "vispec, qwen": ("qwen2_5_vl", Layout(
        "vispec", file="bin", qkv_bias=True, theta=1e6,
        says={**QWEN, "architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl",
              "qkv_bias": True, "rope_theta": 1e6},
    )),
    "msd, qwen": ("qwen2_vl", Layout(
        "msd", file="bin", kv=1, qkv_bias=True, input_norm=True, theta=1e6,
        says={**QWEN, "architectures": ["Qwen2VLForConditionalGeneration"], "model_type": "qwen2_vl",
              "rope_theta": 1e6, "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
              "vision_config": {"depth": 32, "embed_dim": 1280, "patch_size": 14}},
    )),
    "eagle, twice": ("llava_onevision", Layout(
        "eagle", file="bin", kv=1, front="module.", again=True, says={"model_type": None},
    )),
    "specforge": ("qwen2_5_vl", replace(
        EAGLE3, theta=1e6, section=(2, 3, 3),
        says={**QWEN, "attention_bias": False, "head_dim": 16, "rope_theta": 1000000,
              "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}, "target_model_type": "qwen2_5_vl"},
    )),
    "angelslim": ("qwen3_vl", replace(
        EAGLE3, theta=5e6, section=(4, 2, 2), interleaved=True,
        says={"architectures": ["Eagle3LlamaForCausalLM"], "head_dim": 16, "modal_type": "VLM", "rope_theta": 5000000,
              "rope_scaling": {"type": "default", "rope_type": "default", "mrope_interleaved": True,
                               "mrope_section": [4, 2, 2]},
              "target_model_type": "qwen3_vl", "tie_word_embeddings": True},
    )),
    "speculators, qwen": ("qwen3_vl", replace(
        SPECULATORS, theta=5e6, flags={"norm_before_residual": True},
        says={"rope_parameters": {"rope_type": "default", "rope_theta": 5e6}},
    )),
    "wide": ("internvl", replace(
        EAGLE3, width=64, rows=PADDED, head=PADDED, qkv_bias=True,
        says={"attention_bias": True, "head_dim": 16, "target_hidden_size": HIDDEN},
    )),
}  # fmt: skip


def write_target(directory: Path, family: str = "llava", seed: int = 0) -> Path:
    """A random target of :data:`LAYERS` layers, and calm: its next token follows mostly from the last one."""
    if family in checkpoints.FAMILIES:
        checkpoints.write_llava(directory, family, seed, layers=LAYERS, hidden=HIDDEN)
    else:
        padding = PADDED - families.WORDS - len(KINDS[family].first) - len(KINDS[family].last)
        sizes = families.Layout(layers=LAYERS, hidden=HIDDEN, heads=HEADS, kv_heads=1, padding=padding)
        families.write_checkpoint(directory, family, seed, sizes)
    weights = checkpoints.weights_of(directory)
    for file in directory.glob("*.safetensors*"):
        file.unlink()
    adding = ("self_attn.o_proj.weight", "mlp.down_proj.weight")
    calm = {name: CALM * one for name, one in weights.items() if name.endswith(adding) and "vision" not in name}
    checkpoints.write_weights(directory, weights | calm)
    return directory


def write_draft(directory: Path, layout: Layout, seed: int = 0, agrees_with: Path | None = None) -> Path:
    """A random draft for the targets of :func:`write_target`.

    Args:
        agrees_with: a target, whose next token it guesses from the last one, as the target nearly does.
    """
    directory.mkdir(parents=True)
    if agrees_with is not None and layout.eagle3:
        layout = replace(layout, kv=HEADS)
    checkpoints.write(directory / "config.json", settings(layout))
    weights = random_weights(layout, seed)
    if agrees_with is not None:
        weights |= _agreeing(layout, weights, checkpoints.weights_of(agrees_with))
    named = published(layout, weights)
    if layout.file == "bin":
        torch.save(named, directory / "pytorch_model.bin")
    else:
        save_file({name: one.contiguous() for name, one in named.items()}, directory / "model.safetensors")
    return directory


def read_weights(directory: Path, layout: Layout) -> dict[str, Tensor]:
    if layout.file == "bin":
        held = torch.load(directory / "pytorch_model.bin")
    else:
        held = load_file(directory / "model.safetensors")
    return {name.removeprefix(layout.front).replace(layout.layer, "layers.0."): one for name, one in held.items()}


def settings(layout: Layout) -> dict[str, Any]:
    sizes = {
        "architectures": ["LlamaForCausalLMEagle3" if layout.eagle3 else "LlamaForCausalLM"],
        "hidden_act": "silu", "hidden_size": layout.width, "intermediate_size": INNER, "max_position_embeddings": 2048,
        "model_type": "llama", "num_attention_heads": HEADS, "num_hidden_layers": 1, "num_key_value_heads": layout.kv,
        "rms_norm_eps": 1e-06, "tie_word_embeddings": False, "torch_dtype": "float16",
        "vocab_size": PADDED if layout.rows is None else layout.rows,
    }  # fmt: skip
    if layout.flags is None:
        return sizes | ({"draft_vocab_size": layout.head} if layout.eagle3 else {}) | layout.ids | layout.says
    nested = {**sizes, "head_dim": SIZE, "attention_bias": False, "rope_theta": 10000.0} | layout.says
    del nested["architectures"]
    return {
        "architectures": ["Eagle3Speculator"], "draft_vocab_size": layout.head, "speculators_model_type": "eagle3",
        "target_hidden_size": None, "torch_dtype": "float16", "transformer_layer_config": nested,
        **({} if layout.variants is not None else {"norm_before_residual": False}), **layout.ids, **layout.flags,
    }  # fmt: skip


def random_weights(layout: Layout, seed: int) -> dict[str, Tensor]:
    """Its tensors by their plain names, the decoder layer's below ``layers.0.``."""
    source = torch.Generator().manual_seed(1000 + seed)

    def drawn(*shape: int, std: float = 0.25) -> Tensor:
        return (std * torch.randn(shape, generator=source)).half()

    def gains(width: int) -> Tensor:
        return (0.5 + torch.rand(width, generator=source)).half()

    width = layout.width
    wide = 2 * width if layout.eagle3 else width
    weights = {
        "fc.weight": drawn(width, len(layout.states) * HIDDEN if layout.eagle3 else width + HIDDEN),
        "layers.0.self_attn.q_proj.weight": drawn(HEADS * SIZE, wide),
        "layers.0.self_attn.k_proj.weight": drawn(layout.kv * SIZE, wide),
        "layers.0.self_attn.v_proj.weight": drawn(layout.kv * SIZE, wide),
        "layers.0.self_attn.o_proj.weight": drawn(width, HEADS * SIZE),
        "layers.0.mlp.gate_proj.weight": drawn(INNER, width),
        "layers.0.mlp.up_proj.weight": drawn(INNER, width),
        "layers.0.mlp.down_proj.weight": drawn(width, INNER),
        "layers.0.post_attention_layernorm.weight": gains(width),
    }
    if layout.qkv_bias:
        rows = {"q": HEADS, "k": layout.kv, "v": layout.kv}
        weights |= {f"layers.0.self_attn.{name}_proj.bias": drawn(count * SIZE) for name, count in rows.items()}
    if layout.input_norm:
        weights["layers.0.input_layernorm.weight"] = gains(width)
    if layout.bias:
        weights["fc.bias"] = drawn(width)
    if layout.rows is not None:
        weights["embed_tokens.weight"] = drawn(layout.rows, width)
    if layout.again:
        weights["weight"] = weights["embed_tokens.weight"]
    if layout.format == "vispec":
        weights |= {
            "imadpt.q": drawn(layout.queries, HEADS, SIZE),
            "imadpt.k_proj.weight": drawn(width, width),
            "imadpt.v_proj.weight": drawn(width, width),
            "imadpt.o_proj.weight": drawn(width, width),
            "img_fc.weight": drawn(width, 2 * width),
            "img_fc.bias": drawn(width),
        }
        if layout.qkv_bias:
            weights |= {f"imadpt.{name}_proj.bias": drawn(width) for name in "kv"}
    if layout.eagle3:
        weights |= {
            "layers.0.hidden_norm.weight": gains(width),
            "layers.0.input_layernorm.weight": gains(width),
            "norm.weight": gains(width),
            "lm_head.weight": drawn(layout.head, width, std=1.0),
        }
        if layout.head < PADDED:
            kept = torch.randperm(WORDS, generator=source)[: layout.head].sort().values
            weights["d2t"] = kept - torch.arange(layout.head)
            weights["t2d"] = torch.zeros(PADDED, dtype=torch.bool)
            weights["t2d"][kept] = True
    if layout.qk_norm:
        weights |= {f"layers.0.self_attn.{name}_norm.weight": gains(SIZE) for name in "qk"}
    if not layout.own_head:
        del weights["lm_head.weight"]
    return weights


def published(layout: Layout, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {layout.front + name.replace("layers.0.", layout.layer): one for name, one in weights.items()}


def _agreeing(layout: Layout, weights: dict[str, Tensor], target: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights in place of random ones: a token's embedding is its state, and nearly nothing is added to it."""
    faint = {name: 0.05 * weights[name] for name in ("layers.0.mlp.down_proj.weight", "fc.weight") if name in weights}
    one, nothing = torch.eye(HIDDEN), torch.zeros(HIDDEN, HIDDEN)
    if not layout.eagle3:
        passing = {"fc.weight": LOUD * torch.cat([one, nothing], 1) + faint["fc.weight"]}
        passing["layers.0.self_attn.o_proj.weight"] = 0.1 * weights["layers.0.self_attn.o_proj.weight"]
    else:  # the embedding gets in by attention alone: each entry attends to itself
        head, table = (
            next(tensor for name, tensor in target.items() if name.endswith(end))
            for end in ("lm_head.weight", "embed_tokens.weight")
        )
        passing = {f"layers.0.self_attn.{name}_proj.weight": torch.cat([4 * one, nothing], 1) for name in "qkv"}
        passing["layers.0.self_attn.o_proj.weight"] = one
        passing |= {name: torch.ones(HIDDEN) for name in ("layers.0.input_layernorm.weight", "norm.weight")}
        ids = torch.arange(layout.head) + weights.get("d2t", torch.zeros(layout.head, dtype=torch.int64))
        if layout.own_head:
            passing["lm_head.weight"] = head[ids]
        if "embed_tokens.weight" in weights:
            passing["embed_tokens.weight"] = table[: len(weights["embed_tokens.weight"])]
    return {name: tensor.half() for name, tensor in (faint | passing).items()}
