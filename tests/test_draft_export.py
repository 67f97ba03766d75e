"""Export of feature drafts: keys and shapes are those that engines load, and what is read back drafts the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support import checkpoints, families, family_configs, family_kinds
from support.checkpoints import PADDED, WORDS
from support.engine_loaders import EngineName, served
from test_bad_input import complaint
from torch import Tensor

from specllava.cli.main import main
from specllava.distill.export import export_draft
from specllava.models.checkpoint import Checkpoint
from specllava.models.drafts.draft_vlm import save
from specllava.models.drafts.eagle import FeatureDraft, FeatureDraftConfig, fresh_feature_draft
from specllava.models.drafts.eagle_checkpoint import load_feature_draft, read_feature_draft
from specllava.models.loading import LoadedTarget, load_target
from specllava.models.options import LoadOptions

HIDDEN, INNER, HEADS, KV, LAYERS = 48, 64, 3, 1, 8
WIDTH = HIDDEN // HEADS
GUESSABLE = 100
USUAL = [2, LAYERS // 2, LAYERS - 3]
SIZES = {
    "hidden_size": HIDDEN, "intermediate_size": INNER, "num_attention_heads": HEADS, "num_key_value_heads": KV,
    "vocab_size": PADDED, "rms_norm_eps": 1e-5, "max_position_embeddings": 512, "initializer_range": 0.2,
}  # fmt: skip
EAGLE3 = {"format": "eagle3", "state_layers": USUAL, "draft_vocab_size": GUESSABLE}
LAYER = {
    "self_attn.q_proj.weight": (HEADS * WIDTH, HIDDEN),
    "self_attn.k_proj.weight": (KV * WIDTH, HIDDEN),
    "self_attn.v_proj.weight": (KV * WIDTH, HIDDEN),
    "self_attn.o_proj.weight": (HIDDEN, HEADS * WIDTH),
    "mlp.gate_proj.weight": (INNER, HIDDEN),
    "mlp.up_proj.weight": (INNER, HIDDEN),
    "mlp.down_proj.weight": (HIDDEN, INNER),
    "post_attention_layernorm.weight": (HIDDEN,),
}
LAYER3 = {name: (rows[0], 2 * HIDDEN) if name.split(".")[-2][:1] in "qkv" else rows for name, rows in LAYER.items()} | {
    "hidden_norm.weight": (HIDDEN,),
    "input_layernorm.weight": (HIDDEN,),
}
VLLM_KEYS = {"fc.weight": (HIDDEN, 2 * HIDDEN)} | {f"layers.0.{name}": shape for name, shape in LAYER.items()}
EAGLE_KEYS = VLLM_KEYS | {"embed_tokens.weight": (PADDED, HIDDEN), "fc.bias": (HIDDEN,)}
EAGLE3_KEYS = {"fc.weight": (HIDDEN, 3 * HIDDEN), "norm.weight": (HIDDEN,), "lm_head.weight": (GUESSABLE, HIDDEN)}
MAPS = {"d2t": (GUESSABLE,), "t2d": (PADDED,)}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("export")
    checkpoints.write_llava(root / "target", layers=LAYERS, hidden=HIDDEN)
    return root


@pytest.fixture(scope="module")
def target(root: Path) -> LoadedTarget:
    options = LoadOptions(device="cpu", dtype="float32")
    return load_target("random", root / "target", None, options, lambda line: None)


def written(directory: Path, seed: int = 0, dtype: torch.dtype = torch.float32, **variant: Any) -> Path:
    """A random feature draft, in this project's own layout."""
    torch.manual_seed(seed)
    draft = FeatureDraft(FeatureDraftConfig(**SIZES | variant))
    for name, weight in draft.named_parameters():
        if weight.dim() == 1:  # gains and biases, which begin at ones and zeros
            torch.nn.init.normal_(weight, mean=float("norm" in name), std=0.2)
    if draft.config.format == "eagle3":
        ids = torch.randperm(PADDED)[: len(draft.d2t)].sort().values
        draft.d2t.copy_(ids - torch.arange(len(ids)))
    draft.to(dtype).save_pretrained(directory)
    return directory


def exported(tmp_path: Path, root: Path, **made: Any) -> Path:
    draft = written(tmp_path / "draft", **made)
    export_draft(draft, root / "target", tmp_path / "out")
    return tmp_path / "out"


def shapes_of(directory: Path) -> dict[str, tuple[int, ...]]:
    return {name: tuple(one.shape) for name, one in checkpoints.weights_of(directory).items()}


def settings_of(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "config.json").read_text())


@torch.inference_mode()
def drafted(directory: Path, target: LoadedTarget) -> tuple[Tensor, Tensor]:
    """Logits of a draft for a text whose states are known, and of the same tokens behind guessed states."""
    draft = load_feature_draft(Checkpoint.at(directory), target.model)
    source = torch.Generator().manual_seed(11)
    tokens = torch.randint(3, WORDS, (9,), generator=source)
    states = torch.randn(9, draft.config.target_hidden_size * len(draft.config.state_layers), generator=source)
    places = torch.arange(9)
    plain = draft.config.mrope_section is None
    rotations = draft.rotations(places[None] if plain else torch.stack([places, places // 2, places % 3])[:, None])
    known = draft(draft.entries(tokens, draft.embed(tokens), states).inputs[None], rotations)[0]
    guessed = draft(draft.inputs(draft.embed(tokens), known, guessed=True)[None], rotations)[0]
    return draft.logits(known), draft.logits(guessed)


VARIANTS = {
    "eagle3": EAGLE3,
    "other rotations": EAGLE3 | {"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "all tokens": EAGLE3 | {"draft_vocab_size": None},
    "own embeddings": EAGLE3 | {"own_embeddings": True},
    "other layers": EAGLE3 | {"state_layers": [1, 3, 7]},
    "layers whose outputs have the usual numbers": EAGLE3 | {"state_layers": [one + 1 for one in USUAL]},
    "rows of positions": EAGLE3 | {"mrope_section": [2, 3, 3]},
    "rows in turn": EAGLE3 | {"mrope_section": [4, 2, 2], "mrope_interleaved": True},
}
ENGINES: tuple[EngineName, ...] = ("vllm", "sglang")


@pytest.mark.parametrize("name", VARIANTS)
def test_what_is_read_back_drafts_the_same(name: str, root: Path, target: LoadedTarget, tmp_path: Path) -> None:
    out = exported(tmp_path, root, **VARIANTS[name])
    for ours, theirs in zip(drafted(tmp_path / "draft", target), drafted(out, target), strict=True):
        assert torch.equal(ours, theirs)
        assert ours.isfinite().any(-1).all() and ours[ours.isfinite()].std() > 0.01


@pytest.mark.parametrize("name", VARIANTS)
def test_each_engine_loads_the_draft_whole(name: str, root: Path, tmp_path: Path) -> None:
    """Class, fields, names and shapes by a port of its loader; nothing is dropped and nothing is left at random."""
    out = exported(tmp_path, root, **VARIANTS[name])
    draft = read_feature_draft(Checkpoint.at(tmp_path / "draft"), Checkpoint.at(root / "target").config())
    own = draft.config
    for engine in ENGINES:
        held = served(out, engine)
        assert held.states == tuple(own.state_layers)
        for name_, one in draft.named_parameters():
            at = name_.replace("layers.0.", "midlayer.") if engine == "sglang" else name_
            assert torch.equal(held.weights[at], one)
        if len(draft.d2t) < PADDED:
            assert held.ids == tuple((draft.d2t + torch.arange(GUESSABLE)).tolist())
        for field in ("rope_parameters", "rms_norm_eps", "hidden_act", "head_dim", "num_hidden_layers"):
            ours, theirs = getattr(own, field), getattr(held.config, field)
            if field == "rope_parameters" and own.mrope_section is not None:
                ours = ours | {"mrope_section": own.mrope_section, "mrope_interleaved": own.mrope_interleaved}
            assert theirs == ours, field


def test_eagle3_has_the_published_keys_and_counts_layers_as_each_engine_does(root: Path, tmp_path: Path) -> None:
    out = exported(tmp_path, root, **EAGLE3)
    assert shapes_of(out) == EAGLE3_KEYS | MAPS | {f"midlayer.{name}": shape for name, shape in LAYER3.items()}
    weights, settings = checkpoints.weights_of(out), settings_of(out)
    ids = (weights["d2t"] + torch.arange(GUESSABLE)).tolist()
    assert weights["t2d"].nonzero()[:, 0].tolist() == ids and weights["t2d"].dtype == torch.bool
    assert weights["d2t"].dtype == torch.int64
    assert settings["architectures"] == ["LlamaForCausalLMEagle3"]
    assert (settings["draft_vocab_size"], settings["target_hidden_size"]) == (GUESSABLE, HIDDEN)
    assert settings["eagle_aux_hidden_state_layer_ids"] == USUAL
    assert settings["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [one - 1 for one in USUAL]
    assert settings["eagle_aux_layer_semantics"] == "vllm"


@pytest.mark.parametrize("family", ["smolvlm", "qwen2_5_vl", "gemma3"])
def test_a_draft_for_any_family_is_exported(family: family_kinds.FamilyName, tmp_path: Path) -> None:
    """With the embeddings that the target's decoder reads, which Gemma's multiplies and an engine's draft does not."""
    place = families.write_checkpoint(tmp_path / "target", family, layout=family_configs.Layout(layers=4))
    target = load_target("random", place, None, LoadOptions(device="cpu", dtype="float32"), lambda line: None)
    with torch.inference_mode():
        read = target.model.get_input_embeddings()(torch.arange(target.model.config.get_text_config().vocab_size))
    draft, out = tmp_path / "draft", tmp_path / "out"
    save(fresh_feature_draft(target.model, "eagle3"), None, draft, torch.float32)
    export_draft(draft, place, out)
    for ours, theirs in zip(drafted(draft, target), drafted(out, target), strict=True):
        torch.testing.assert_close(ours, theirs)
    held = checkpoints.weights_of(out).get("embed_tokens.weight")
    assert (held is not None) == (family == "gemma3")
    if held is not None:
        torch.testing.assert_close(held, read)
    settings = settings_of(out)
    assert (settings["target_model_type"], settings["hidden_act"]) == (family, "silu")


@pytest.mark.parametrize(
    ("variant", "told"),
    [
        ({}, "its format is eagle: distil one with --drafter eagle3"),
        ({"compressor": {"kind": "pool"}}, "its format is eagle: distil one with --drafter eagle3"),
        ({"format": "msd"}, "its format is msd: distil one with --drafter eagle3"),
        ({"format": "vispec"}, "its format is vispec: distil one with --drafter eagle3"),
        (EAGLE3 | {"hidden_act": "gelu"}, "engines have silu alone: distil one"),
        (EAGLE3 | {"qkv_bias": True}, "have biases, which engines leave out: distil one"),
        (EAGLE3 | {"attention_bias": True}, "have biases, which engines leave out: distil one"),
        (EAGLE3 | {"mlp_bias": True}, "have biases, which engines leave out: distil one"),
        (EAGLE3 | {"num_hidden_layers": 2}, "it has 2 layers: hand on the files"),
        (EAGLE3 | {"norm_before_residual": True, "norm_output": True}, "norm_before_residual and norm_output: hand on"),
        (EAGLE3 | {"norm_before_fc": True}, "it has norm_before_fc: hand on the files"),
        (EAGLE3 | {"state_layers": [2, 4]}, "3 of the hidden states 1 to 7, and it reads [2, 4]: distil one"),
        (EAGLE3 | {"state_layers": [2, 4, 8]}, "3 of the hidden states 1 to 7, and it reads [2, 4, 8]: distil one"),
    ],
)
def test_what_the_layout_cannot_hold_is_refused_with_the_way_out(
    variant: dict[str, Any], told: str, root: Path, tmp_path: Path
) -> None:
    line = complaint(lambda: exported(tmp_path, root, **variant))
    assert line.startswith("the layout of engines cannot hold draft: ") and told in line
    assert not (tmp_path / "out").exists()


def test_only_drafts_that_read_states_are_exported(root: Path, tmp_path: Path) -> None:
    checkpoints.write_llama(tmp_path / "llama", hidden=HIDDEN)
    line = complaint(lambda: export_draft(tmp_path / "llama", root / "target", tmp_path / "out"))
    assert "does not read the target's states" in line


def test_two_ways_to_count_layers_are_agreed_or_refused(root: Path, target: LoadedTarget, tmp_path: Path) -> None:
    """Numbers that fit both ways are settled by the other list, if the two say the same layers."""
    out = exported(tmp_path, root, **EAGLE3 | {"state_layers": [one + 1 for one in USUAL]})
    settings = settings_of(out)
    assert settings["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == USUAL
    draft = load_feature_draft(Checkpoint.at(out), target.model)
    assert list(draft.config.state_layers) == [one + 1 for one in USUAL]
    del settings["eagle_aux_hidden_state_layer_ids"], settings["eagle_aux_layer_semantics"]
    checkpoints.write(out / "config.json", settings)
    assert "eagle_config" in complaint(lambda: load_feature_draft(Checkpoint.at(out), target.model))


def test_a_full_disk_leaves_nothing_behind(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    draft = written(tmp_path / "draft", **EAGLE3)
    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr("specllava.distill.export.save_file", full)
    with pytest.raises(OSError, match=r"out cannot be written: .*No space left"):
        export_draft(draft, root / "target", tmp_path / "out")
    assert sorted(tmp_path.iterdir()) == before


def test_the_command_writes_and_refuses_in_one_line(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, out = str(root / "target"), tmp_path / "out"
    asked = ["draft", "export", "--target", target, "--output", str(out), "--draft"]
    assert main([*asked, str(written(tmp_path / "eagle"))]) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("specllava: the layout of engines cannot hold eagle: ")
    draft = str(written(tmp_path / "draft", **EAGLE3))
    assert main([*asked, draft]) == 0
    assert f"{out}: a draft of" in capsys.readouterr().out.replace("\n", "")
    assert main([*asked, draft]) == 1
    assert "exists already" in capsys.readouterr().err
