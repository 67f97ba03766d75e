"""How a pair is named, placed, stored and weighed; what cannot be loaded costs one line before anything is read."""

from __future__ import annotations

import json
import os
import resource
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
import transformers
from accelerate import disk_offload
from support import checkpoints, formats, models
from support.cases import complaint
from transformers import LlamaConfig, LlavaConfig, LlavaForConditionalGeneration, PreTrainedModel

from specllava.chat import Chat
from specllava.cli.main import main
from specllava.cli.options import with_fallback_drafter
from specllava.config import DecodingConfig
from specllava.distill.new_draft import init_draft
from specllava.models import memory as weighing
from specllava.models.checkpoint import INDEX, Checkpoint
from specllava.models.drafts.draft_vlm import save
from specllava.models.drafts.eagle import fresh_feature_draft
from specllava.models.family import Family
from specllava.models.memory import estimate, quantization_config, unquantized
from specllava.models.presets import draft_hint
from specllava.pair import Pair

SHORT = ["--max-new-tokens", "6"]
OFF = 'speculation is off because {} has no draft: make one with "specllava draft init" and name it with --draft'
CONFIG = DecodingConfig(max_new_tokens=6, min_log_prob=-50.0, entropy_threshold=0.5)
NIGHT = pytest.mark.night
DRAFTS = ["draft", pytest.param("eagle", marks=NIGHT), pytest.param("eagle3", marks=NIGHT)]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("loading")
    target = checkpoints.write_llava(root / "target")
    init_draft(checkpoints.write_llama(root / "llama"), target, root / "draft")
    model = Pair.load(target, device="cpu", dtype="float32").target
    for kind in ("eagle", "eagle3"):
        save(fresh_feature_draft(model, kind), None, root / kind, torch.float32)
    checkpoints.picture(1).save(root / "picture.png")
    return root


@pytest.fixture
def hub(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub as it is without a network: what was downloaded before, in its own cache layout, and nothing else."""
    checkpoints.store(tmp_path, "llava-hf/llava-1.5-7b-hf", root / "target")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return tmp_path


def asked(root: Path, *more: str) -> list[str]:
    return ["--image", str(root / "picture.png"), "--prompt", "What is this?", *SHORT, *more]


# ----------------------------------------------------------------------------------------------- names


def test_a_preset_of_the_hub_runs_without_a_draft_and_says_so(hub: Path, root: Path, capsys):
    assert main(["generate", "--preset", "llava-1.5-7b", *asked(root)]) == 0
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "loading llava-1.5-7b: torch and transformers first, then the weights"
    assert told[1].startswith("llava-1.5-7b needs 0.00 GB of memory: target ") and "GB free" in told[1]
    hint = draft_hint("llava-hf/llava-1.5-7b-hf", "llava", Family.draft_advice)
    assert hint.startswith("take --preset llava-1.5-7b-msd or ")
    assert told[2:] == [f"speculation is off because llava-1.5-7b has no draft: {hint}"]
    assert main(["compare", "--preset", "llava-1.5-7b", *asked(root)]) == 0
    told = capsys.readouterr()
    assert "prompt-lookup guesses because llava-1.5-7b has no draft" in told.err and "identical" in told.out


@pytest.mark.parametrize("what", ["target", "draft"])
def test_an_id_that_the_hub_does_not_give_costs_one_line(hub: Path, root: Path, capsys, what: str):
    given = {"target": str(root / "target"), "draft": str(root / "draft")} | {what: "nobody/nothing-7b"}
    options = [word for name, value in given.items() for word in (f"--{name}", value)]
    assert main(["generate", *asked(root, *options)]) == 1
    loading, told = capsys.readouterr().err.splitlines()
    assert loading.startswith("loading ") and len(told) < 300
    assert told.startswith("specllava: no directory nobody/nothing-7b here, and the hub gave no such model: ")


def test_only_a_missing_draft_changes_who_drafts(capsys):
    chosen = DecodingConfig()
    alone, whole = models.pair(None), models.pair("bad")
    assert with_fallback_drafter(whole, chosen, "none") is chosen
    lookup = replace(chosen, drafter="prompt-lookup")
    assert with_fallback_drafter(alone, lookup, "none") is lookup
    assert capsys.readouterr().err == ""
    assert with_fallback_drafter(alone, chosen, "none").drafter == "none"
    assert capsys.readouterr().err == OFF.format("tiny") + "\n"


@pytest.mark.parametrize("source", ["nowhere", "./runs/x", "/no/such/place", "a b/c"])
def test_what_is_no_directory_and_no_id_is_refused(root: Path, source: str):
    line = f"no model at {source}: a directory with config.json is expected"
    assert complaint(lambda: Pair.load(source, device="cpu")) == line
    assert complaint(lambda: Pair.load(root / "target", source, device="cpu")) == line


# ----------------------------------------------------------------------------------------------- files


def without(root: Path, tmp_path: Path, change) -> Path:
    copied = tmp_path / "copy"
    shutil.copytree(root / "target", copied)
    change(copied)
    return copied


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 14000000\n"
FIRST, SECOND = (f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
WAY = "take its files for transformers, often named -hf, such as llava-hf/llava-1.5-7b-hf"
NO_OBJECT = "bytes that is no JSON object: "
CUT = "bytes that is no whole safetensors file: download it again"
UNKNOWN = f"which transformers {transformers.__version__} does not know"


def _write(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda copy: (copy / name).write_bytes(content)


def _fields(name: str, **change: object) -> Callable[[Path], object]:
    return lambda copy: checkpoints.write(copy / name, json.loads((copy / name).read_text()) | change)


def _only(*names: str) -> Callable[[Path], object]:
    """Files in place of all weights."""

    def left(copy: Path) -> None:
        for file in copy.glob("*.safetensors*"):
            file.unlink()
        for name in names:
            torch.save({}, copy / name)

    return left


def _without(part: str) -> Callable[[Path], object]:
    def cut(copy: Path) -> None:
        weights = checkpoints.weights_of(copy)
        checkpoints.write_weights(copy, {name: one for name, one in weights.items() if part not in name})

    return cut


def _draft(layout: str) -> Callable[[Path], object]:
    return lambda copy: (shutil.rmtree(copy), formats.write_draft(copy, formats.LAYOUTS[layout]))


# What is wrong with a target's directory, and the line that says so after its name.
REFUSALS: dict[str, tuple[Callable[[Path], object], str]] = {
    **{
        f"a pointer: {name}": (
            _write(name, POINTER), f'has a git-lfs pointer in place of {name}: run "git lfs pull" there, or download it'
        )
        for name in (SECOND, INDEX, "config.json", "tokenizer.json", "preprocessor_config.json", "chat_template.jinja")
    },
    **{
        f"{content!r}: {name}": (_write(name, content), f"has a {name} of {len(content)} {NO_OBJECT}{why}")
        for name in ("config.json", "tokenizer.json", INDEX)
        for content, why in ((b"", "Expecting value: line 1"), (b"{", "Expecting property"), (b"[]", "it holds"))
    },
    "an index of nothing": (_write(INDEX, b"{}"), "has a model.safetensors.index.json without weight_map"),
    "a file cut off": (lambda copy: os.truncate(copy / SECOND, 9_000), f"has a {SECOND} of 9,000 {CUT}"),
    "a header cut off": (lambda copy: os.truncate(copy / FIRST, 5), f"has a {FIRST} of 5 {CUT}"),
    "an empty file": (_write(FIRST, b""), f"has a {FIRST} of 0 {CUT}"),
    "a page in its place": (_write(FIRST, b"<!doctype html><title>404</title>"), f"has a {FIRST} of 33 {CUT}"),
    "a missing file": (
        lambda copy: (copy / SECOND).unlink(), f"lacks 1 of 2 files of weights, such as {SECOND}: download them"
    ),
    **{
        f"an answer that ends with {end!r}": (_fields("generation_config.json", eos_token_id=end), "eos_token_id")
        for end in ("x", 2.5, [2, "</s>"], True, -1)
    },
    "missing weights": (
        _without("multi_modal_projector.linear_1"),
        "lacks 2 weights of a LlavaForConditionalGeneration, such as model.multi_modal_projector.linear_1.bias",
    ),
    "no weights": (_only(), "lacks 1 of 1 files of weights, such as model.safetensors: download them"),
    **{
        there: (_only(there), f"such as model.safetensors: convert {there}, by from_pretrained and save_pretrained")
        for there in ("pytorch_model-00001-of-00003.bin", "consolidated.00.pth", "q4.gguf")
    },
    "a LLaVA of its authors": (
        _fields("config.json", model_type="llava_llama", mm_vision_tower="clip"),
        f"has LLaVA's own layout (llava_llama with mm_vision_tower): {WAY}",
    ),
    "code of its own": (
        _fields("config.json", model_type="v", auto_map={}),
        f"has model_type 'v' by code of its own (auto_map), which is not run: {WAY}",
    ),
    "an unknown type": (_fields("config.json", model_type="v"), f"has model_type 'v', {UNKNOWN}: {WAY}"),
    "no type": (_fields("config.json", model_type=None), f"has model_type None, {UNKNOWN}: {WAY}"),
    "an adapter beside": (_write("adapter_config.json", b"{}"), "has adapter_config.json, of an adapter"),
    "an adapter alone": (
        lambda copy: (_write("adapter_config.json", b"{}")(copy), (copy / "config.json").unlink()),
        "has adapter_config.json, of an adapter such as LoRA's: merge it into its base (merge_and_unload",
    ),
    **{
        f"a draft: {name}": (change, "is a draft: name it with --draft, and its target with --target")
        for name, change in {
            "no tower": _fields("config.json", architectures=["DraftLlava"]),
            "slots": _fields("config.json", model_type="slot_draft"),
            "states": _draft("speculators"), "pickled": _draft("eagle3"),
        }.items()
    },
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSALS)
def test_a_directory_that_is_no_target_is_refused_by_what_is_wrong_in_it(root: Path, tmp_path: Path, what: str):
    """By the formats of git-lfs, JSON and safetensors."""
    damage, words = REFUSALS[what]
    copied = without(root, tmp_path, damage)
    line = complaint(lambda: Pair.load(copied, name="x", device="cpu"))
    assert line.startswith(str(copied)) and words in line


def test_two_threads_load_one_after_the_other(root: Path, monkeypatch: pytest.MonkeyPatch):
    """Loading swaps functions of all models for a while: two at once left them swapped, and heads untied."""
    inside, most, plain = [0], [0], LlavaForConditionalGeneration.from_pretrained

    def slow(*args: Any, **options: Any) -> Any:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.05)
        try:
            return plain(*args, **options)
        finally:
            inside[0] -= 1

    monkeypatch.setattr(LlavaForConditionalGeneration, "from_pretrained", slow)
    tie = PreTrainedModel.tie_weights
    threads = [Thread(target=Pair.load, args=(root / "target",), kwargs={"device": "cpu"}) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most[0] == 1 and PreTrainedModel.tie_weights is tie and torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("padding", [0, 8, 40])
def test_weights_begin_at_aligned_addresses_whatever_the_length_of_the_header(tmp_path: Path, padding: int):
    """Spaces are appended to the header: the data begins that many bytes later."""
    saved = models.target()
    saved.save_pretrained(tmp_path)
    raw = (tmp_path / "model.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header, data = raw[8 : 8 + length] + b" " * padding, raw[8 + length :]
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)
    checkpoint = Checkpoint.at(tmp_path)
    loaded, expected = checkpoint.load(type(saved), dtype=torch.float64), saved.state_dict()
    read = [*loaded.parameters(), *checkpoint.weights(0, print).values()]
    read += checkpoint.tensors("model.vision_tower").values()
    assert {weight.data_ptr() % 64 for weight in read} == {0}
    assert all(torch.equal(one, expected[name]) for name, one in loaded.state_dict().items())


def test_what_ends_an_answer_is_found_in_the_configuration_or_the_tokenizer(root: Path, tmp_path: Path):
    configured = without(root, tmp_path, _fields("generation_config.json", eos_token_id=None))
    _fields("config.json", eos_token_id=7)(configured)
    assert Pair.load(configured, device="cpu").eos_token_ids == {7}
    pair = Pair.load(root / "target", device="cpu")
    for config in (pair.target.generation_config, pair.target.config, pair.target.config.get_text_config()):
        config.eos_token_id = None
    assert pair.eos_token_ids == {pair.processor.tokenizer.eos_token_id} == {2}


def _no_merge(copy: Path) -> None:
    model = json.loads((copy / "tokenizer.json").read_text())["model"]
    _fields("tokenizer.json", model=model | {"merges": [["nobody", "knows"], *model["merges"]]})(copy)


def _text_config(**change: object) -> Callable[[Path], object]:
    text = checkpoints.text_fields(2, 48, checkpoints.PADDED)
    return _fields("config.json", text_config=text | change)


@pytest.mark.parametrize(
    "damage",
    [
        _no_merge,
        _fields("chat_template.json", chat_template="{% for x in %}"),
        _fields("chat_template.json", chat_template=5),
        _text_config(hidden_size=-8),
        _text_config(num_hidden_layers=2.5),
        _text_config(max_position_embeddings="long"),
    ],
)
def test_a_damaged_checkpoint_costs_one_line(root: Path, tmp_path: Path, capsys, damage):
    """Libraries raise bare exceptions and others that are no ``ValueError``: stack traces of up to forty lines."""
    copied = without(root, tmp_path, damage)
    assert main(["generate", "--target", str(copied), "--drafter", "none", *asked(root)]) == 1
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("specllava: ")]
    assert len(told) == 1 and 20 < len(told[0]) < 400
    assert "SPECLLAVA_DEBUG" not in told[0]  # foreseen, and told with the place


@pytest.mark.parametrize(
    ("option", "value", "line"),
    [
        *(("device", one, f"unknown device {one!r}: use auto, cpu, cuda or cuda:N") for one in ("meta", "mps", "x")),
        ("device", "cuda:99", f"device cuda:99 is not there: {torch.cuda.device_count()} GPUs are available"),
        ("dtype", "float8", "unknown dtype 'float8': choose one of auto, float32, float64, bfloat16, float16"),
        *(("context", one, f"--context is {one}: the target can hold 1 to {checkpoints.CONTEXT} tokens")
          for one in (0, -3, checkpoints.CONTEXT + 1)),
    ],
)  # fmt: skip
def test_an_option_that_cannot_be_followed_is_refused(root: Path, option: str, value: Any, line: str):
    """``meta`` was taken for a device, and failed in the middle of loading."""
    given = {"name": "x", "device": "cpu", option: value}
    assert complaint(lambda: Pair.load(root / "target", **given)) == line


def test_a_checkpoint_that_does_not_fit_on_the_disk_costs_one_line_and_leaves_nothing(root: Path, tmp_path: Path):
    """The library's own error, 35 lines, and half a directory stayed behind."""
    pair = Pair.load(root / "target", name="x", device="cpu")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))  # bytes of a file, as on a disk with no more room
    try:
        with pytest.raises(OSError, match="cannot be written") as caught:
            save(pair.target, pair.processor, tmp_path / "draft")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(tmp_path / "draft") in str(caught.value) and "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


# ----------------------------------------------------------------------------------------------- memory


@pytest.mark.parametrize(("limit", "draft"), [(None, "draft"), (200, "draft"), (None, "eagle3")])
def test_the_estimate_is_what_is_then_taken(root: Path, limit: int | None, draft: str):
    """Weights of both models, and keys, values and states as a dialogue allocates them, with the tree's columns."""
    told: list[str] = []
    pair = Pair.load(
        root / "target", root / draft, name="x", device="cpu", dtype="float32", context=limit, notify=told.append
    )
    built = [(type(model), model.config) for model in (pair.target, pair.draft)]
    needed = estimate(*built, torch.float32, "none", limit or checkpoints.CONTEXT)
    taken = [sum(one.numel() * one.element_size() for one in model.parameters()) for model in (pair.target, pair.draft)]
    assert [needed.target, needed.draft] == taken
    assert needed.context == pair.context == (limit or checkpoints.CONTEXT)
    chat = Chat(pair)
    chat.ask("What?", None, DecodingConfig(max_new_tokens=4))
    held = 0
    for engine in chat._caches._engines.values():
        kept = [*engine.cache.slabs, *([] if engine.cache.states is None else [engine.cache.states])]
        held += sum(one.numel() * one.element_size() for one in kept)
    assert needed.caches == held
    assert needed.total == sum(taken) + held
    assert len(told) == 1 and str(needed) in told[0]


def test_what_does_not_fit_is_refused_before_weights_are_looked_for(root, tmp_path, monkeypatch):
    monkeypatch.setattr(weighing, "free_bytes", lambda place, spread: 100_000)
    line = complaint(lambda: Pair.load(without(root, tmp_path, _only()), name="big", device="cpu"))
    assert line.startswith("big needs 0.00 GB of memory: target 0.00") and "cpu has 0.00 GB free" in line
    assert line.endswith("try a smaller --dtype, --quantization, --device-map or another --device")


def test_where_the_whole_context_does_not_fit_a_shorter_one_is_taken_or_proposed(root, monkeypatch):
    """Taken if it is enough. Caches for the whole context were counted, and nobody could ask for fewer tokens."""
    load = partial(Pair.load, root / "target", root / "draft", name="big", device="cpu", dtype="float32")
    whole = load()
    built = [(type(model), model.config) for model in (whole.target, whole.draft)]
    needed = estimate(*built, torch.float32, "none", checkpoints.CONTEXT)
    room, told = checkpoints.CONTEXT - 500, list[str]()
    monkeypatch.setattr(weighing, "free_bytes", lambda place, spread: int(needed.total) - 500 * needed.column)
    monkeypatch.setattr(weighing, "ENOUGH", room)
    assert load(notify=told.append).context == room
    assert told[0].endswith(f"which is enough for {room}: prompt and answer have as many at most")
    monkeypatch.setattr(weighing, "ENOUGH", room + 1)
    assert f": try --context {room}, a smaller --dtype" in complaint(load)
    assert "needs" in complaint(lambda: load(context=room + 1))
    small = load(context=room)
    assert small.context == room
    assert f"context of {room}: shorten the prompt" in complaint(lambda: small.prompt(None, "Hi", room))


def test_the_command_line_takes_a_context(root: Path, capsys):
    pair = ["--target", str(root / "target"), "--drafter", "none", "--context"]
    assert main(["generate", *asked(root, *pair, "200")]) == 0
    assert "caches for 200 tokens" in capsys.readouterr().err
    assert main(["generate", *asked(root, *pair, "20")]) == 1
    assert "do not fit the context of 20" in capsys.readouterr().err


# ----------------------------------------------------------------------------------------------- precision and place


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("dtype", ["auto", "float32", "float64", "float16", "bfloat16"])
def test_every_precision_loads_and_answers(root: Path, dtype, draft: str):
    pair = Pair.load(root / "target", root / draft, device="cpu", dtype=dtype)
    expected = "float32" if dtype == "auto" else dtype
    assert pair.info.dtype == expected == str(pair.draft.dtype).removeprefix("torch.")
    trace = pair.generate(checkpoints.picture(1), "What?", CONFIG)
    assert trace.token_ids and sum(len(step.tree.tokens) for step in trace.steps) > len(trace.steps)


@pytest.mark.night
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_positions_are_turned_in_full_precision_beside_a_half_precise_target(root: Path, dtype):
    """The draft's frequencies were rounded with its weights."""
    turned = []
    for precision in ("float32", dtype):
        draft = Pair.load(root / "target", root / "eagle3", device="cpu", dtype=precision).draft
        assert draft.rotary_emb.inv_freq.dtype == torch.float32
        turned.append(draft.rotary_emb(torch.zeros(1), torch.arange(4096)[None]))
        assert draft.rotations(torch.arange(3)[None])[0].dtype == draft.dtype == getattr(torch, precision)
    assert all(torch.equal(one, other) for one, other in zip(*turned, strict=True))


@pytest.mark.parametrize("draft", DRAFTS)
def test_a_target_that_accelerate_has_placed_says_the_same(root: Path, draft: str):
    """On one CPU ``auto`` has one device to choose; the next test tries the hooks, and none several devices."""
    answers = [
        Pair.load(root / "target", root / draft, device="cpu", dtype="float64", device_map=spread)
        .generate(checkpoints.picture(1), "What?", CONFIG).token_ids
        for spread in (False, True)
    ]  # fmt: skip
    assert answers[0] == answers[1]


@pytest.mark.parametrize("draft", DRAFTS)
def test_a_target_whose_weights_lie_on_disk_until_they_run_says_the_same(root: Path, tmp_path: Path, draft: str):
    """accelerate's hooks bring weights and move states, as between GPUs; drafts that read states use two of them."""
    pair = Pair.load(root / "target", root / draft, device="cpu", dtype="float64")
    prompt = pair.prompt(checkpoints.picture(1), "What?")
    lanes = [replace(CONFIG, drafter="none"), CONFIG, replace(CONFIG, rule="fixed", children="drawn", temperature=1.0)]
    expected = [pair.run(models.Lane("x", lane, prompt)) for lane in lanes]
    for module in (pair.target.model.language_model, pair.target.lm_head):
        disk_offload(module, tmp_path / type(module).__name__, execution_device=torch.device("cpu"))
    assert pair.target.get_input_embeddings().weight.is_meta and pair.target.lm_head.weight.is_meta
    found = [pair.run(models.Lane("x", lane, prompt)) for lane in lanes]
    assert [trace.token_ids for trace in found] == [trace.token_ids for trace in expected]
    assert [step.tree.tokens for step in found[1].steps] == [step.tree.tokens for step in expected[1].steps]


def test_quantization_that_cannot_run_here_is_refused(monkeypatch: pytest.MonkeyPatch):
    """Of LLaVA-1.5-7B the language model alone would shrink, from 14.1 GB."""
    cpu, config = torch.device("cpu"), LlavaConfig(text_config=LlamaConfig(vocab_size=32064))
    build = (LlavaForConditionalGeneration, config)
    eight, four = (estimate(build, None, torch.float16, name, 4096).target for name in ("int8", "int4"))
    assert eight == pytest.approx(7.66e9, rel=0.02) and four == pytest.approx(4.42e9, rel=0.03)
    assert unquantized(models.target()) == ["model.vision_tower", "model.multi_modal_projector", "lm_head"]
    assert quantization_config("none", cpu) is None
    for scheme in ("int8", "int4"):
        line = complaint(lambda scheme=scheme: quantization_config(scheme, cpu))
        assert line == f"quantization {scheme} needs a GPU, the device is cpu: leave --quantization out"
    monkeypatch.setattr("specllava.models.memory.find_spec", lambda name: None)
    line = complaint(lambda: quantization_config("int8", torch.device("cuda")))
    assert line == 'quantization int8 needs bitsandbytes, which is not installed: pip install bitsandbytes'
    assert "unknown quantization 'int2'" in complaint(lambda: quantization_config("int2", cpu))
