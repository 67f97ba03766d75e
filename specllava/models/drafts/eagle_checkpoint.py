"""Feature drafts as they are published: recognised by keys and configuration, checked against their target.

Layouts: EAGLE-1 and 2, MSD and ViSpec (``fc``, ``layers.0``), EAGLE-3 as its authors, SpecForge and SGLang write it
(``midlayer``), and as speculators does (``transformer_layer_config``). Our own is EAGLE's with a
complete configuration.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from specllava.models.checkpoint import Checkpoint
from specllava.models.drafts.eagle import LAST, FeatureDraft, FeatureDraftConfig, rotary_settings
from specllava.models.language_model import FULL, input_device
from specllava.models.options import DraftFormat, DraftReading

PADDING = 128  # rows that a draft's vocabulary may lack: of LLaVA's 32,064 Vicuna has 32,000, of Qwen's 152,064 151,936
LAYER_CONFIG, AUX_LAYERS = "transformer_layer_config", "eagle_aux_hidden_state_layer_ids"
LAYER_SEMANTICS: Final = "eagle_aux_layer_semantics"  # whose numbers these are: "vllm" or "sglang"
METHOD: Final = "speculators_model_type"
EAGLES: Final = ("eagle", "eagle3")
STATE_OFFSETS: Final = {"vllm": 0, "sglang": 1}  # hidden state, less the number that is written for it
VARIANTS: Final = ("norm_before_residual", "norm_output")
SIZES: Final = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "rms_norm_eps", "max_position_embeddings", "hidden_act",
)  # fmt: skip
NUMBERS: Final = ("vocab_size", "draft_vocab_size", "target_hidden_size", *SIZES[:6])
UNUSED: Final = ("t2d", "rotary_emb.inv_freq")  # what d2t says again, and what follows from the configuration
HIDDEN_NORM: Final = "layers.0.hidden_norm.weight"  # of EAGLE-3 alone
P_EAGLE_TENSOR: Final = "mask_hidden"  # of P-EAGLE (arXiv 2602.01469), which guesses several tokens in one pass
EMBEDDINGS_COPY: Final = "weight"  # the embeddings once more, which MMSpec's trainer leaves in some files


def is_feature_draft(checkpoint: Checkpoint) -> bool:
    """Check whether a checkpoint is a feature draft, by its configuration and the names of its tensors."""
    settings = checkpoint.settings()
    if settings.get("model_type") == FeatureDraftConfig.model_type or LAYER_CONFIG in settings:
        return True
    # ViSpec and MSD name the target's type, some MSD with its tower; a whole model has more layers, or nests them.
    single = settings.get("num_hidden_layers") == 1 and "text_config" not in settings
    if settings.get("model_type") not in ("llama", None) and not single:
        return False
    names = checkpoint.names()
    if names is None:  # a pickled file, which only feature drafts may be
        return single or "vision_config" not in settings
    return not {"fc.weight", HIDDEN_NORM}.isdisjoint(map(plain_name, names))


def sizes_of(checkpoint: Checkpoint, target: PretrainedConfig) -> FeatureDraftConfig:
    """Return a configuration with a feature draft's sizes, to estimate its memory before its weights are read."""
    settings, text = checkpoint.settings(), target.get_text_config()
    if settings.get("model_type") == FeatureDraftConfig.model_type:
        return _own_config(checkpoint.name, settings)
    sizes = _sizes(checkpoint.name, settings)
    given_sizes = {key: sizes[key] for key in SIZES if sizes.get(key) is not None}
    if not {LAYER_CONFIG, "eagle_config", "draft_vocab_size"}.isdisjoint(settings):  # EAGLE-3, most likely
        named = settings.get(AUX_LAYERS) or _eagle_config(settings).get(AUX_LAYERS)
        states = [0] * (len(named) if isinstance(named, list) else 3)
        given_sizes |= {"format": "eagle3", "state_layers": states, "draft_vocab_size": sizes.get("draft_vocab_size")}
    with _fields_of(checkpoint.name):
        return FeatureDraftConfig(**{"hidden_size": text.hidden_size, **given_sizes}, vocab_size=text.vocab_size)


def _own_config(name: str, settings: Mapping[str, Any]) -> FeatureDraftConfig:
    """Read the configuration of a draft that this project saved."""
    with _fields_of(name):
        config: FeatureDraftConfig = FeatureDraftConfig.from_dict(dict(settings))
        return config


@contextmanager
def _fields_of(name: str) -> Iterator[None]:
    """Refuse fields of a ``config.json`` that have another type than the draft's."""
    try:
        yield
    except StrictDataclassError as error:
        raise ValueError(f"{name} has a config.json that does not fit: {' '.join(str(error).split())}") from error


def load_feature_draft(
    checkpoint: Checkpoint,
    target: PreTrainedModel,
    asked: DraftReading | None = None,
    notify: Callable[[str], None] = lambda line: None,
) -> FeatureDraft:
    """Load a feature draft for a target, on its device and in its precision; see :func:`read_feature_draft`."""
    draft = read_feature_draft(checkpoint, target.config, asked, notify)
    device = input_device(target)
    draft.to(device, target.dtype).eval()
    draft.rotary_emb = LlamaRotaryEmbedding(config=draft.config).to(device)  # its frequencies stay in float32
    return draft.bind(target)


def read_feature_draft(
    checkpoint: Checkpoint,
    target: PretrainedConfig,
    asked: DraftReading | None = None,
    notify: Callable[[str], None] = lambda line: None,
) -> FeatureDraft:
    """Read a feature draft for a target of which the configuration is enough: in main memory, as it is stored.

    Args:
        asked: what its files leave open; by default keys and configuration decide.
        notify: receives a line if weights must be unpickled.

    Raises:
        ValueError: keys that are missing, or of no known format; another target's hidden size, layers or vocabulary;
            layer numbers that may be counted in two ways. One line with names and numbers.
    """
    settings = checkpoint.settings()
    most = _most_bytes(_sizes(checkpoint.name, settings), target)
    weights = {plain_name(name): one for name, one in checkpoint.weights(most, notify).items()}
    mask = weights.get("t2d")
    weights = {name: one for name, one in weights.items() if name != EMBEDDINGS_COPY and not name.endswith(UNUSED)}
    config = _checked_config(checkpoint.name, settings, weights, target, asked or DraftReading())
    if not config.own_embeddings:
        weights.pop("embed_tokens.weight", None)  # a copy of the target's
    with torch.device("meta"):
        draft = FeatureDraft(config)
    if "d2t" in weights:
        weights["d2t"] = weights["d2t"].to(torch.int64)
    elif config.own_head:
        weights["d2t"] = torch.zeros(int(config.draft_vocab_size or 0), dtype=torch.int64)
    _check_keys(checkpoint.name, draft, weights)
    if "d2t" in weights:
        _check_token_map(checkpoint.name, weights["d2t"], mask, config.vocab_size)
    draft.load_state_dict(weights, assign=True)
    draft.rotary_emb = LlamaRotaryEmbedding(config=config)
    return draft


def _checked_config(
    name: str, settings: Mapping[str, Any], weights: Mapping[str, Tensor], target: PretrainedConfig, asked: DraftReading
) -> FeatureDraftConfig:
    """Return the configuration of a checkpoint, checked against its target; see :func:`read_feature_draft`."""
    if settings.get("model_type") == FeatureDraftConfig.model_type:
        config = _own_config(name, settings)
        _check_supported(name, settings, settings, config.num_hidden_layers, weights)
        layers, count = list(asked.draft_state_layers or config.state_layers), len(config.state_layers)
        if len(layers) != count:
            raise ValueError(f"{name} reads {count} hidden states, not the {len(layers)} of {layers}")
        config.state_layers = layers
        _check_target(name, config, target)
    else:
        with _fields_of(name):
            config = _published_config(name, settings, weights, target, asked)
    if asked.draft_rope_theta is not None:
        if not 0 < asked.draft_rope_theta < math.inf:
            raise ValueError(f"--draft-rope-theta is {asked.draft_rope_theta:g}: a number above 0 is needed")
        config.rope_parameters = {**config.rope_parameters, "rope_theta": float(asked.draft_rope_theta)}
    return config


def _published_config(
    name: str, settings: Mapping[str, Any], weights: Mapping[str, Tensor], target: PretrainedConfig, asked: DraftReading
) -> FeatureDraftConfig:
    """Return the configuration of a draft as others publish it; see :func:`read_feature_draft`."""
    sizes = _sizes(name, settings)
    kind = _format(name, weights, asked.draft_format)
    eagle3 = kind == "eagle3"
    count = 1 + max((int(name.split(".")[1]) for name in weights if name.startswith("layers.")), default=0)
    _check_supported(name, settings, sizes, count, weights)
    named = asked.draft_state_layers is not None or AUX_LAYERS in settings or AUX_LAYERS in _eagle_config(settings)
    text, fusion = target.get_text_config(), weights.get("fc.weight")
    if fusion is None:
        raise ValueError(f"{name} has no fc.weight, so it is no feature draft: {len(weights)} other tensors are there")
    layers = list(asked.draft_state_layers or LAST)
    if asked.draft_state_layers is None and eagle3:
        layers = _state_layers(name, settings, int(text.num_hidden_layers))
    read = fusion.shape[1] - (0 if eagle3 else len(fusion))
    head = weights.get("lm_head.weight") if eagle3 else None
    # Where the layout of speculators is silent about norm_before_residual, vLLM takes it for granted.
    variants = dict.fromkeys(VARIANTS, False) | {VARIANTS[0]: LAYER_CONFIG in settings}
    config = FeatureDraftConfig(
        **{key: sizes[key] for key in SIZES if sizes.get(key) is not None} | {"num_hidden_layers": count},
        **rotary_settings(name, sizes, in_rows=eagle3),
        attention_bias="layers.0.self_attn.o_proj.bias" in weights,
        qkv_bias="layers.0.self_attn.q_proj.bias" in weights,
        qk_norm="layers.0.self_attn.q_norm.weight" in weights,
        vocab_size=int(text.vocab_size),
        format=kind,
        state_layers=layers,
        target_hidden_size=_target_width(name, read, layers, text.hidden_size if named else 0),
        draft_vocab_size=None if head is None else len(head),
        fc_bias="fc.bias" in weights,
        input_norm=not eagle3 and "layers.0.input_layernorm.weight" in weights,
        own_embeddings=eagle3 and len(weights.get("embed_tokens.weight", ())) == text.vocab_size,  # else a copy
        own_head=head is not None,
        queries=len(weights["imadpt.q"]) if kind == "vispec" else 2,
        tie_word_embeddings=False,
        **({key: bool(settings.get(key, usual)) for key, usual in variants.items()} if eagle3 else {}),
    )
    _check_target(name, config, target)
    _check_vocabulary(name, config, sizes, weights, text.vocab_size)
    return config


def _check_supported(
    name: str, settings: Mapping[str, Any], sizes: Mapping[str, Any], layers: int, weights: Mapping[str, Tensor]
) -> None:
    """Refuse drafts of other methods, sliding windows, and a norm for each state that a draft reads.

    A ``sliding_window`` alone, as Qwen's configurations carry it along, is none: no engine goes by it.
    """
    method = settings.get(METHOD, EAGLES[0])
    if method not in EAGLES or P_EAGLE_TENSOR in weights:
        what = f"{METHOD} {method!r}" if method not in EAGLES else f"a tensor {P_EAGLE_TENSOR}, of P-EAGLE"
        raise ValueError(
            f"{name} has {what}: it guesses several tokens in one pass, and only drafts that go on from their own"
            " state are read here (EAGLE-1 to 3, MSD, ViSpec)"
        )
    types = sizes.get("layer_types") or []
    own = types[:layers] if isinstance(types, list) else [types]
    if sizes.get("use_sliding_window") is not False and any(one != FULL for one in own):
        raise ValueError(f"{name} has layer_types {own!r}: drafts with {FULL} alone are read here")
    if sizes.get("fc_norm") or _eagle_config(settings).get("fc_norm"):
        raise ValueError(f"{name} has fc_norm: drafts that norm each state before the fusion are not read here")


def _eagle_config(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of the settings that SpecForge, SGLang and NVIDIA write for an EAGLE-3 head."""
    own = settings.get("eagle_config")
    return own if isinstance(own, Mapping) else {}


def _sizes(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration's settings with those that speculators nests; a size that is no number is refused."""
    nested = settings.get(LAYER_CONFIG, {})
    if not isinstance(nested, Mapping):
        raise ValueError(f"{name} has {LAYER_CONFIG} {nested!r}, which is no JSON object")
    sizes = {**settings, **nested}
    for key in NUMBERS:
        if not isinstance(sizes.get(key, 0), int | None):
            raise ValueError(f"{name} has {key} {sizes[key]!r}, which is no whole number")
    return sizes


def _most_bytes(sizes: Mapping[str, Any], target: PretrainedConfig) -> int:
    """Return the bytes that a pickled file may have: float32, embeddings and head of its own, and as much again."""
    text = target.get_text_config()
    width, inner = int(sizes.get("hidden_size") or 0), int(sizes.get("intermediate_size") or 0)
    rows = 2 * int(text.vocab_size) + 16 * width + 3 * inner + 3 * int(text.hidden_size)
    return 2 * 4 * rows * width + 2**20


def plain_name(name: str) -> str:
    """Return a tensor's name without what trainers put in front, EAGLE-3's layer as layer 0."""
    name = name.removeprefix("module.").removeprefix("model.")
    return "layers.0." + name.removeprefix("midlayer.") if name.startswith("midlayer.") else name


def _format(name: str, weights: Mapping[str, Tensor], asked: DraftFormat | None) -> DraftFormat:
    detected: DraftFormat = "eagle"
    if HIDDEN_NORM in weights:
        detected = "eagle3"
    elif any(one.startswith("imadpt.") for one in weights):
        detected = "vispec"
    if asked is None or asked == detected or (asked, detected) == ("msd", "eagle"):
        return asked or detected
    raise ValueError(f"{name} has the keys of format {detected}, not of {asked}: leave --draft-format out")


def _state_layers(name: str, settings: Mapping[str, Any], count: int) -> list[int]:
    """Return the hidden states that an EAGLE-3 head reads, as transformers numbers them.

    speculators and vLLM write those numbers; ``eagle_config``, of SpecForge and SGLang, the layers whose output they
    are, which is one less. ``eagle_aux_layer_semantics`` names the counting. Without any list they are
    [2, n // 2, n - 3] of n layers.
    """
    usual = [2, count // 2, count - 3]
    ours, theirs = settings.get(AUX_LAYERS), _eagle_config(settings).get(AUX_LAYERS)
    counting = settings.get(LAYER_SEMANTICS)
    for ids in (ours, theirs):
        if ids is not None and (not isinstance(ids, list) or not all(isinstance(one, int) for one in ids)):
            raise ValueError(f"{name} has {AUX_LAYERS} {ids!r}, which are no whole numbers")
    if counting is not None and counting not in STATE_OFFSETS:
        raise ValueError(f"{name} has {LAYER_SEMANTICS} {counting!r}: {' and '.join(STATE_OFFSETS)} are known")
    if theirs is not None and counting is None:
        agreed = ours is not None and [one - 1 for one in ours] == theirs
        if theirs == usual and not agreed:
            raise ValueError(
                f"{name} has eagle_config.{AUX_LAYERS} {theirs}, which are outputs of layers by SGLang's counting and"
                f' hidden states by vLLM\'s: write "{AUX_LAYERS}": {usual} (hidden states) into its config.json instead'
            )
        counting, ours = "sglang", None
    listed, offset = theirs if ours is None else ours, STATE_OFFSETS[counting or "vllm"]
    layers = usual if listed is None else [one + offset for one in listed]
    if not layers or any(not 0 <= one <= count for one in layers):
        raise ValueError(f"{name} reads hidden states {layers} of a target with {count} layers")
    return layers


def _target_width(name: str, read: int, layers: Sequence[int], hidden: int) -> int:
    """Return the width of one of a target's states, of which a draft reads ``read`` numbers side by side.

    Args:
        hidden: the target's width, if the states are named: then their number may be what is wrong; else 0.

    Raises:
        ValueError: another number of states than are named, or none of one width.
    """
    width, rest = divmod(read, len(layers))
    if rest or (hidden and width != hidden and read % hidden == 0):
        raise ValueError(
            f"{name} reads {read} numbers of the target's states, and they are not those of the {len(layers)} hidden"
            f' states {list(layers)}: write the ones that it reads into its config.json as "{AUX_LAYERS}"'
        )
    return width


def _check_vocabulary(
    name: str, config: FeatureDraftConfig, sizes: Mapping[str, Any], weights: Mapping[str, Tensor], size: int
) -> None:
    """Refuse a draft of another vocabulary; rows that the target has for padding may be missing."""
    embeddings = weights.get("embed_tokens.weight")
    rows = len(embeddings) if embeddings is not None else int(sizes.get("vocab_size") or size)
    if not size - PADDING <= rows <= size:
        raise ValueError(f"{name} was made for a vocabulary of {rows} tokens, the target has {size}")
    own, mapped = int(config.draft_vocab_size or size), weights.get("d2t")
    if config.format != "eagle3":
        return
    declared = sizes.get("draft_vocab_size")
    if config.own_head and declared is not None and own != declared:
        raise ValueError(f"{name} has draft_vocab_size {declared} in config.json, and {own} rows in lm_head.weight")
    if not config.own_head and (mapped is not None or int(sizes.get("draft_vocab_size") or size) < size - PADDING):
        raise ValueError(f"{name} lacks lm_head.weight: the target's head would score all {size} tokens, not its own")
    if mapped is None and own < size - PADDING:
        raise ValueError(f"{name} scores {own} of {size} tokens and lacks d2t, which says which")


def _check_token_map(name: str, offsets: Tensor, mask: Tensor | None, size: int) -> None:
    """Refuse offsets that name no different tokens of the target, or others than the mask of the same file.

    A token of the draft and its offset in ``d2t`` make the target's. The mask ``t2d`` is true there.
    """
    own = len(offsets)
    ids = offsets + torch.arange(own)
    if int(ids.min()) < 0 or int(ids.max()) >= size or len(ids.unique()) != own:
        raise ValueError(
            f"{name} maps {own} tokens to ids {int(ids.min())} to {int(ids.max())}, not to different ones of the"
            f" target's {size}"
        )
    if own == size and bool(offsets.any()):
        raise ValueError(f"{name} scores all {size} tokens, and its d2t orders them anew: leave d2t out")
    named = ids.sort().values if mask is None else mask.flatten().nonzero()[:, 0]
    if not torch.equal(ids.sort().values, named):
        raise ValueError(
            f"{name} has {own} tokens in d2t and {len(named)} in t2d, which are not the same: export it again"
        )


def _check_target(name: str, config: FeatureDraftConfig, target: PretrainedConfig) -> None:
    """Refuse a draft of another target."""
    text = target.get_text_config()
    made, count = int(config.target_hidden_size or config.hidden_size), int(text.num_hidden_layers)
    if made != text.hidden_size:
        raise ValueError(f"{name} was made for a target of hidden size {made}, this one's is {text.hidden_size}")
    if config.vocab_size != text.vocab_size:
        raise ValueError(
            f"{name} was made for a vocabulary of {config.vocab_size} tokens, the target has {text.vocab_size}"
        )
    if config.hidden_size != made and not config.own_embeddings:
        raise ValueError(
            f"{name} has hidden size {config.hidden_size} and no embeddings of its own, the target's are {made} wide"
        )
    section = config.mrope_section
    if section is not None and 2 * sum(section) != config.head_dim:
        raise ValueError(
            f"{name} has mrope_section {section}, which rotate {2 * sum(section)} numbers of a head, and heads of"
            f" {config.head_dim}"
        )
    if any(not -count - 1 <= one <= count for one in config.state_layers):
        raise ValueError(f"{name} reads hidden states {list(config.state_layers)} of a target with {count} layers")


def _check_keys(name: str, draft: FeatureDraft, weights: Mapping[str, Tensor]) -> None:
    """Refuse weights that are missing, unknown, or of other shapes."""
    wanted = draft.state_dict()
    missing, unknown = sorted(wanted.keys() - weights.keys()), sorted(weights.keys() - wanted.keys())
    kind = draft.config.format
    if missing:
        raise ValueError(f"{name} lacks {len(missing)} tensors of format {kind}, such as {missing[0]}")
    if unknown:
        raise ValueError(f"{name} has {len(unknown)} tensors that format {kind} does not know, such as {unknown[0]}")
    for key, one in wanted.items():
        if one.shape != weights[key].shape:
            raise ValueError(f"{name} has {key} of shape {list(weights[key].shape)}, {list(one.shape)} is expected")
