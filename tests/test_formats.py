"""Published drafts that read the target's states: guesses are a plain reading's, tokens the target's, misfits refused.

The plain reading is written from the formats' texts (``support/format_reference.py``).
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from support import checkpoints, formats
from support.cases import ALL, complaint, sample
from support.format_reference import check_answer, scores
from support.formats import FAMILY_LAYOUTS, IDS, LAYOUTS, PADDED, SMALL, USUAL, Layout
from torch import Tensor

from benchmarks.identity import DRAFTERS, count
from specllava.chat import Chat
from specllava.cli.main import main
from specllava.config import DecodingConfig
from specllava.distill.config import DistillConfig
from specllava.distill.new_draft import check_teachable
from specllava.models.checkpoint import Checkpoint
from specllava.models.drafts.eagle_checkpoint import is_feature_draft, sizes_of
from specllava.models.options import DraftReading
from specllava.pair import Pair
from specllava.spec_decode.loop import Lane
from specllava.trace import DecodeTrace

SHAPES = (
    DecodingConfig(rule="chain", depth=4),
    DecodingConfig(rule="fixed", branching=(3, 2, 1)),
    DecodingConfig(rule="topk", width=3, depth=3, nodes=8),
    DecodingConfig(max_branches=3, entropy_threshold=0.5, min_log_prob=-50.0, nodes=9, depth=4),
)
BEAM = SHAPES[2]
LIMIT = 9


@dataclass(frozen=True)
class Case:
    layout: Layout
    family: str = "llava"
    agrees: bool = True  # its guesses are right now and then

    def load(self, target: Pair, draft: Path) -> Pair:
        """MSD's tensors have the names of EAGLE's: the user says which it is."""
        return target.with_draft(draft, draft_format="msd" if self.layout.format == "msd" else None)


NEXT = ("msd", "eagle3", "vispec", "eagle", "speculators")
FAMILY_CASES = {
    name: Case(layout, family, name in ("msd, qwen", "angelslim", "speculators, qwen"))
    for name, (family, layout) in FAMILY_LAYOUTS.items()
}
PLAIN = {name: Case(layout) for name, layout in LAYOUTS.items()}
CASES = {
    **PLAIN,
    **{f"{name}, at random": Case(layout, agrees=False) for name, layout in LAYOUTS.items()},
    **{f"{name}, llava_next": Case(LAYOUTS[name], "llava_next") for name in NEXT},
    **FAMILY_CASES,
}
TRIED = [
    *sample(tuple(PLAIN), 5), *sample([name for name in CASES if name.endswith("at random")], 2),
    *sample([name for name in CASES if name.endswith("llava_next")], 2), *FAMILY_CASES,
]  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A target by its family, or a draft by its case, made when it is first asked for."""
    root = tmp_path_factory.mktemp("formats")

    @cache
    def write(name: str) -> Path:
        if name not in CASES:
            return formats.write_target(root / name, name, len(name))
        case = CASES[name]
        return formats.write_draft(root / name, case.layout, 2 + len(name), write(case.family) if case.agrees else None)

    return write


@pytest.fixture(scope="module")
def target(made) -> Callable[..., Pair]:
    return cache(lambda family="llava", dtype="float64": Pair.load(made(family), device="cpu", dtype=dtype))


@pytest.fixture(scope="module")
def pairs(made, target) -> Callable[[str], Pair]:
    return cache(lambda name: CASES[name].load(target(CASES[name].family), made(name)))


def accepted(trace: DecodeTrace) -> int:
    return sum(len(step.verification.accepted) for step in trace.steps)


@pytest.mark.parametrize("name", TRIED)
def test_every_guess_is_what_the_format_says(pairs, made, name: str):
    """Prompts with no and three pictures and of two turns; the trees of whole answers, node by node.

    Passes of fixed shapes score as those that are read as they come.
    """
    case, at, taken = CASES[name], TRIED.index(name), 0
    pair = replace(pairs(name), passes=("eager", "padded")[at % 2])
    for number in range(5) if ALL else (0, 3 + at % 2):
        config = replace(SHAPES[(number + at) % len(SHAPES)], max_new_tokens=LIMIT)
        prompt = pair.prompt(None, checkpoints.messages(number))
        with scores() as trees:
            trace = pair.run(Lane("x", config, prompt))
        assert trace.token_ids == pair.run(Lane("x", replace(config, drafter="none"), prompt)).token_ids
        check_answer(pair, case.layout, made(name), number, trace, trees)
        taken += accepted(trace)
    assert taken > 0 or not case.agrees


@pytest.mark.night
@pytest.mark.parametrize("settings", [False, True])
def test_the_count_of_many_random_runs(settings: bool):
    """``python -m benchmarks.identity``, in short: drafts of every format."""
    *_, rows = count(2 * len(DRAFTERS), torch.float64, seed=7, settings=settings)
    assert all(row["runs"] == 2 and row["mismatches"] == row["ties"] == 0 for row in rows.values())
    if settings:
        assert sum(row["generated"] for row in rows.values()) > 10
        assert not any(row["unlike_generate"] for row in rows.values())
    else:
        assert sum(row["tokens"] for row in rows.values()) > sum(row["target_passes"] for row in rows.values())


@pytest.mark.parametrize("name", ["specforge"])
def test_a_turn_that_goes_on_drafts_what_a_fresh_reading_drafts(pairs, name: str):
    """Pictures in both turns: the draft's cache keeps what the prompts share, at the positions that it had."""
    pair = pairs(name)
    chat, config = Chat(pair), replace(BEAM, max_new_tokens=6)
    for turn, question in enumerate(("What is this?", "Where?")):
        with scores() as going:
            trace = chat.ask(question, [checkpoints.picture(turn + 1)], config)
        with scores() as fresh:
            alone = pair.generate(None, chat.messages[: 2 * turn + 1], config)
        assert (trace.prefill.reused_tokens > 0) == (turn > 0)
        assert alone.token_ids == trace.token_ids and len(going) == len(fresh) > 0
        for some, others in zip(going, fresh, strict=True):
            assert [one.path for one in some] == [one.path for one in others]
            rows = [torch.stack([one.logits for one in tree]) for tree in (some, others)]
            torch.testing.assert_close(*rows, rtol=1e-9, atol=1e-9)


# ----------------------------------------------------------------------------------------------- what is read


def test_the_command_line_names_the_format_the_states_and_the_rotary_base(made, tmp_path: Path):
    out, picture = tmp_path / "out.json", tmp_path / "picture.png"
    checkpoints.picture(1).save(picture)
    asked = ["--target", str(made("llava")), "--device", "cpu", "--dtype", "float64", "--image", str(picture)]
    asked += ["--prompt", "What?", "--max-new-tokens", "4"]
    assert main(["compare", *asked, "--draft", str(made("msd")), "--draft-format", "msd", "--json", str(out)]) == 0
    assert '"identical": true' in out.read_text(encoding="utf-8")
    typed = ["--draft", str(made("eagle")), "--draft-state-layers", "-2", "--draft-rope-theta", "5e5"]
    assert main(["generate", *asked, *typed, "--trace", str(out)]) == 0
    trace = DecodeTrace.from_json(out.read_text(encoding="utf-8"))
    assert trace.setting.draft == "eagle (states -2, rope base 500000)"
    known = DraftReading(None, (-1,), 7.0)
    assert DraftReading("msd", None, 5.0).over(known) == DraftReading("msd", (-1,), 5.0)


@pytest.mark.parametrize(
    ("of", "states", "theta"), [("eagle3", (0, 1, 2), 5e5), ("eagle", (-2,), None), ("speculators", (0, 1, 2), None)]
)
def test_what_the_files_do_not_say_is_read_as_it_is_asked_for(target, tmp_path, of, states, theta):
    """Hidden states that a draft was trained on, and a base that its configuration has another for."""
    layout = replace(LAYOUTS[of], states=states, ids={}, says={"rope_theta": 1e6 if theta else 10000.0})
    layout = replace(layout, theta=theta or layout.theta)
    directory = formats.write_draft(tmp_path / "draft", layout)
    asked = target().with_draft(directory, draft_state_layers=states, draft_rope_theta=theta)
    prompt = asked.prompt(None, checkpoints.messages(1))
    with scores() as trees:
        trace = asked.run(Lane("x", replace(BEAM, max_new_tokens=LIMIT), prompt))
    check_answer(asked, layout, directory, 1, trace, trees)
    told = f"states {' '.join(map(str, states))}"
    assert trace.setting.draft == ("draft (" + told + ("" if theta is None else ", rope base 500000") + ")")


@pytest.mark.parametrize("name", ["specforge", "wide"])
def test_memory_is_counted_for_the_tokens_that_a_head_scores(pairs, made, name: str):
    """A head for 32,000 of 152,064 tokens was counted as if it scored them all."""
    pair = pairs(name)
    sizes = sizes_of(Checkpoint.at(made(name)), pair.target.config)
    assert sizes.draft_vocab_size == pair.draft.config.draft_vocab_size == CASES[name].layout.head


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"model_type": "llava_next"}, True),
        ({"model_type": "llava", "mm_hidden_size": 1024}, True),
        ({"model_type": "qwen2_vl", "vision_config": {"depth": 32}}, True),
        ({"model_type": "qwen2_vl", "vision_config": {"depth": 32}, "num_hidden_layers": 28}, False),
        ({"model_type": "llava", "text_config": {"num_hidden_layers": 1}}, False),
    ],
)
def test_a_configuration_of_the_targets_type_is_a_drafts_if_it_has_one_layer(tmp_path: Path, settings, found: bool):
    """As ViSpec and MSD write them; drafts of type llava_next were taken for whole models."""
    draft = formats.write_draft(tmp_path / "draft", LAYOUTS["vispec"])
    checkpoints.write(draft / "config.json", formats.settings(Layout("vispec")) | settings)
    assert is_feature_draft(Checkpoint.at(draft)) is found


# ----------------------------------------------------------------------------------------------- what is refused

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Broken:
    """A published layout with one thing changed, and the line that says so."""

    layout: str
    line: str
    settings: dict[str, Any] = field(default_factory=dict)  # in place of those of its config.json
    tensors: dict[str, Tensor | None] = field(default_factory=dict)  # by their names on disk; None for a missing one
    change: Callable[[Weights], Weights] = lambda weights: weights
    asked: dict[str, Any] = field(default_factory=dict)


def narrow(weights: Weights) -> Weights:
    return {name: one[tuple(slice(size // 2) for size in one.shape)] for name, one in weights.items()}


def offset(amount: int) -> Callable[[Weights], Weights]:
    return lambda weights: weights | {"d2t": weights["d2t"] + amount}


BROKEN = (
    Broken(
        "eagle", "draft was made for a target of hidden size 24, this one's is 48", {"hidden_size": 24}, change=narrow
    ),
    Broken(
        "eagle3", "draft was made for a target of hidden size 32, this one's is 48",
        tensors={"fc.weight": torch.zeros(48, 3 * 32)},
    ),
    Broken(
        "eagle", "draft was made for a vocabulary of 300 tokens, the target has 448",
        tensors={"embed_tokens.weight": torch.zeros(300, 48)},
    ),
    Broken("eagle3", "draft was made for a vocabulary of 32000 tokens, the target has 448", {"vocab_size": 32000}),
    Broken("speculators", "draft reads hidden states [2, 18, 33] of a target with 7 layers", {IDS: [2, 18, 33]}),
    Broken(
        "eagle3",
        f"draft has eagle_config.{IDS} {USUAL}, which are outputs of layers by SGLang's counting and hidden states by"
        f' vLLM\'s: write "{IDS}": {USUAL} (hidden states) into its config.json instead',
        {"eagle_config": {IDS: USUAL}},
    ),
    Broken(
        "eagle3", f"draft has draft_vocab_size 95 in config.json, and {SMALL} rows in lm_head.weight",
        {"draft_vocab_size": 95},
    ),
    Broken("eagle3", f"scores {SMALL} of 448 tokens and lacks d2t, which says which", tensors={"d2t": None}),
    Broken("eagle3", "not to different ones of the target's 448", change=offset(400)),
    Broken("eagle3", "to ids -", change=offset(-50)),
    Broken("eagle3", f"draft maps {SMALL} tokens to ids 0 to 0", tensors={"d2t": -torch.arange(SMALL)}),
    Broken(
        "eagle3, all tokens", "scores all 448 tokens, and its d2t orders them anew",
        tensors={"d2t": torch.arange(447, -1, -1) - torch.arange(448)},
    ),
    Broken("eagle", "draft has no fc.weight", tensors={"fc.weight": None}, asked={"draft_format": "eagle"}),
    Broken(
        "vispec", "draft lacks 1 tensors of format vispec, such as imadpt.k_proj.weight",
        tensors={"imadpt.k_proj.weight": None},
    ),
    Broken(
        "msd", "draft has 1 tensors that format eagle does not know, such as hidden_norm.weight",
        tensors={"hidden_norm.weight": torch.zeros(48)},
    ),
    Broken(
        "eagle", "draft has layers.0.mlp.up_proj.weight of shape [95, 48], [96, 48] is expected",
        tensors={"layers.0.mlp.up_proj.weight": torch.zeros(95, 48)},
    ),
    Broken("eagle", "that does not fit: Validation error for field 'rms_norm_eps'", {"rms_norm_eps": "tiny"}),
    Broken("eagle", "draft has hidden_size 'wide', which is no whole number", {"hidden_size": "wide"}),
    Broken(
        "speculators", "draft has transformer_layer_config 'llama', which is no JSON object",
        {"transformer_layer_config": "llama"},
    ),
    Broken(
        "eagle3", "draft has mrope_section [16, 24, 24], which rotate 128 numbers of a head, and heads of 16",
        {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}},
    ),
    Broken(
        "eagle3", "draft has mrope_section [4, 4], which are not three whole numbers",
        {"rope_parameters": {"rope_type": "default", "mrope_section": [4, 4]}},
    ),
    Broken("vispec", "draft has rope_scaling 'mrope', which is no JSON object", {"rope_scaling": "mrope"}),
    Broken("eagle3", "has the keys of format eagle3, not of msd: leave --draft-f", asked={"draft_format": "msd"}),
    Broken(
        "eagle3", "draft has a tensor mask_hidden, of P-EAGLE: it guesses several tokens in one pass",
        tensors={"mask_hidden": torch.zeros(1, 144)},
    ),
    Broken(
        "speculators", "draft has speculators_model_type 'dflash': it guesses several tokens in one pass",
        {"speculators_model_type": "dflash"},
    ),
    Broken(
        "speculators", "draft has layer_types ['full_attention', 'sliding_attention']: drafts with full_attention",
        {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 5},
        {"layers.1.mlp.up_proj.weight": torch.zeros(96, 48)},
    ),
    Broken("eagle3", "draft has fc_norm: drafts that norm each state", {"eagle_config": {"fc_norm": True}}),
    Broken(
        "eagle3", "draft has eagle_aux_layer_semantics 'trtllm': vllm and sglang are known",
        {"eagle_aux_layer_semantics": "trtllm"},
    ),
    Broken("eagle3", f"draft has {IDS} 'all', which are no whole numbers", {IDS: "all"}),
    Broken(
        "eagle3", "reads 144 numbers of the target's states, and they are not those of the 4 hidden states [1, 2, 3",
        {IDS: [1, 2, 3, 4]},
    ),
    Broken("eagle3", "the target's head would score all 448 tokens, not its own", tensors={"lm_head.weight": None}),
    Broken("eagle3", "--draft-rope-theta is -1: a number above 0", asked={"draft_rope_theta": -1.0}),
    Broken("eagle3", "of the 2 hidden states [0, 1]: write", asked={"draft_state_layers": (0, 1)}),
)  # fmt: skip


def written(draft: Path, layout: str, weights: Any, **settings: Any) -> Path:
    """A draft with pickled weights, of which no key is read beforehand."""
    draft.mkdir()
    checkpoints.write(draft / "config.json", formats.settings(LAYOUTS[layout]) | settings)
    torch.save(weights, draft / "pytorch_model.bin")
    return draft


def weights_of(layout: str) -> Weights:
    return formats.published(LAYOUTS[layout], formats.random_weights(LAYOUTS[layout], 0))


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.line[:40])
def test_what_does_not_fit_is_refused_in_one_line(target, tmp_path: Path, broken: Broken):
    changed = broken.change(weights_of(broken.layout)) | broken.tensors
    tensors = {name: one for name, one in changed.items() if one is not None}
    draft = written(tmp_path / "draft", broken.layout, tensors, **broken.settings)
    assert broken.line in complaint(lambda: target().with_draft(draft, **broken.asked))


# What trainers have exported as d2t (offsets) and t2d (mask) of the same tokens, whose ids are given.
MAPS: dict[str, Callable[[Tensor], Weights]] = {
    "ordinals": lambda ids: {"d2t": torch.arange(len(ids))},
    "zeros": lambda ids: {"d2t": torch.zeros(len(ids), dtype=torch.int64)},
    "one further": lambda ids: {"d2t": (ids - 1) % PADDED - torch.arange(len(ids))},
    "one token": lambda ids: {"d2t": torch.cat([ids[:-1], ids[-1:] - 1]) - torch.arange(len(ids))},
    "another mask": lambda ids: {"t2d": torch.arange(PADDED) < len(ids)},
    "a mask of whole numbers": lambda ids: {"t2d": (torch.arange(PADDED) >= PADDED - len(ids)).long()},
    "a token too many": lambda ids: {"t2d": torch.isin(torch.arange(PADDED), torch.cat([ids, ids[:1] + 1]))},
    "an empty mask": lambda ids: {"t2d": torch.zeros(PADDED, dtype=torch.bool)},
}


@pytest.mark.parametrize("kind", MAPS)
def test_a_map_that_names_other_tokens_than_the_mask_is_refused(target, tmp_path: Path, kind: str):
    """By EAGLE-3's definition: token ``i`` of the draft is the target's ``i + d2t[i]``, and ``t2d`` is true there."""
    weights = weights_of("eagle3")
    ids = torch.tensor([token for token, used in enumerate(weights["t2d"].tolist()) if used])
    ids[-1] += int(ids[-1] - ids[-2] == 1)  # a gap before the last token
    weights |= {"d2t": ids - torch.arange(SMALL), "t2d": torch.isin(torch.arange(PADDED), ids)} | MAPS[kind](ids)
    words = f"draft has {SMALL} tokens in d2t and {int(weights['t2d'].sum())} in t2d, which are not the same"
    draft = written(tmp_path / "draft", "eagle3", weights)
    assert words in complaint(lambda: target().with_draft(draft))


def test_a_draft_that_rotates_by_rows_is_not_taught(pairs):
    """Its lessons would have plain positions, and its guesses have others."""
    line = complaint(lambda: check_teachable(pairs("specforge"), DistillConfig(drafter="eagle3")))
    assert line.startswith("the draft specforge rotates by three rows of positions") and "--drafter eagle3" in line


class Payload:
    """What a malicious file would have run."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def test_a_malicious_file_is_not_run(target, tmp_path: Path):
    mark = tmp_path / "it ran"
    for number, content in enumerate((weights_of("eagle") | {"more": Payload(mark)}, Payload(mark))):
        draft = written(tmp_path / f"draft {number}", "eagle", content)
        assert "cannot be read" in complaint(lambda draft=draft: target().with_draft(draft))
    bare = written(tmp_path / "bare", "eagle", {})
    (bare / "pytorch_model.bin").write_bytes(pickle.dumps(Payload(mark)))
    assert "cannot be read" in complaint(lambda: target().with_draft(bare))
    assert not mark.exists()
    torch.load(tmp_path / "draft 1" / "pytorch_model.bin", weights_only=False)
    assert mark.exists()  # it would have


@pytest.mark.parametrize("content", [{"fc.weight": 3}, {"fc.weight": {"more": torch.zeros(2)}}, [torch.zeros(2)], 5])
def test_a_file_that_holds_anything_but_tensors_is_refused(target, tmp_path: Path, content: Any):
    draft = written(tmp_path / "draft", "eagle", content)
    assert "no dictionary of tensors" in complaint(lambda: target().with_draft(draft))


def test_a_file_that_is_too_large_or_damaged_is_refused(target, tmp_path: Path):
    draft = written(tmp_path / "draft", "eagle", {})
    whole = (draft / "pytorch_model.bin").read_bytes()
    with (draft / "pytorch_model.bin").open("r+b") as file:
        file.truncate(2**30)
    line = complaint(lambda: target().with_draft(draft))
    assert "a pytorch_model.bin of 1073741824 bytes, its sizes explain" in line
    for content in (b"", b"not a file of torch's", whole[:100]):
        (draft / "pytorch_model.bin").write_bytes(content)
        assert "cannot be read" in complaint(lambda: target().with_draft(draft))


def test_safetensors_are_preferred_and_a_pickled_file_is_told_of(target, tmp_path: Path):
    told: list[str] = []
    draft = formats.write_draft(tmp_path / "draft", LAYOUTS["eagle"])
    (draft / "pytorch_model.bin").write_bytes(b"never read")
    target().with_draft(draft, notify=told.append)
    assert told == []
    target().with_draft(formats.write_draft(tmp_path / "msd", LAYOUTS["msd"]), notify=told.append)
    assert len(told) == 1 and "\n" not in told[0] and "msd comes as pytorch_model.bin" in told[0]


def test_a_directory_that_is_neither_is_refused(target, tmp_path: Path):
    """A model without weights, one that cannot draft, an ordinary draft with a format."""
    for name, settings, line in (
        ("bare", formats.settings(LAYOUTS["eagle"]), "lacks 1 of 1"),
        ("other", {"model_type": "bert", "vocab_size": 9}, "other is a bert, which cannot draft"),
    ):
        (tmp_path / name).mkdir()
        checkpoints.write(tmp_path / name / "config.json", settings)
        assert line in complaint(lambda name=name: target().with_draft(tmp_path / name))
    llama = checkpoints.write_llama(tmp_path / "llama")
    for asked, line in (
        ({"draft_format": "eagle"}, "llama is no draft of format eagle"),
        ({"draft_state_layers": (0, 1)}, "does not read the target's states: leave --draft-state-layers and"),
    ):
        assert line in complaint(lambda asked=asked: target().with_draft(llama, **asked))


