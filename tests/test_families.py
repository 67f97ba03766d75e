"""Families: what comes out is their own ``generate``, whatever drafts, grows or samples, and however they attend."""

from __future__ import annotations

import copy
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from support import checkpoints, families, models
from support.cases import ALL, complaint
from support.families import AGREEMENTS, FAMILIES, KINDS, TEXTS, WORDS, Layout
from support.family_drafts import write_model
from support.family_proofs import ALONE, FAST, chat_of, check_generate, check_speculation, said
from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

from specllava.cli.main import main
from specllava.distill.new_draft import init_draft
from specllava.engine.decoders import Batch
from specllava.engine.engine import Engine
from specllava.models.checkpoint import Checkpoint
from specllava.models.drafts.draft_vlm import save
from specllava.models.drafts.eagle import fresh_feature_draft
from specllava.models.families import family_of
from specllava.models.language_model import FULL, layer_types
from specllava.models.memory import size_of
from specllava.models.options import DTypeName
from specllava.models.tokens import resize_vocabulary
from specllava.pair import Pair
from specllava.prompt import Prompt, to_device
from specllava.tree import DraftTree

# One draft resembles its target, one is smaller with a tied head; their towers cut pictures in other ways, and their
# embeddings have fewer rows than the target's, and more.
DRAFTS = {
    "near": Layout(vision=16, side=36, patch=6, padding=8),
    "tied": Layout(layers=1, hidden=32, heads=2, kv_heads=1, vision=16, padding=40, tied=True),
}
OTHER = Layout(  # and another seed
    layers=3, hidden=64, heads=4, kv_heads=1, vision=48, side=40, patch=5, padding=3, window=24
)
Made = Callable[[str], Path]
MISFIT = "the processor does not fit the model, take both from one checkpoint"
EVERY = (*checkpoints.FAMILIES, *FAMILIES, *TEXTS)


@pytest.fixture(scope="module", params=EVERY)
def any_family(request: pytest.FixtureRequest) -> str:
    """Each in turn, with all of its tests: a process that shares them out makes the checkpoints of a few."""
    return request.param


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A checkpoint by family and draft or ``other``, made when it is first asked for."""
    root = tmp_path_factory.mktemp("families")

    @cache
    def make(name: str) -> Path:
        family, _, kind = name.partition(" ")
        if not kind:
            return write_model(root / name, family)
        if kind == "other":
            return write_model(root / name, family, 7, OTHER)
        near = make(family) if kind == "near" else None
        return write_model(root / name, family, 1 + tuple(DRAFTS).index(kind), DRAFTS[kind], near)

    return make


@pytest.fixture(scope="module")
def pairs(made: Made) -> Callable[..., Pair]:
    """A pair by target, draft and precision; a target is loaded once per precision."""
    alone = cache(lambda name, dtype: Pair.load(made(name), device="cpu", dtype=dtype))

    @cache
    def pair(name: str, draft: str | None = None, dtype: DTypeName = "float64") -> Pair:
        drafted = alone(name, dtype)
        return drafted if draft is None else drafted.with_draft(made(f"{name.split()[0]} {draft}"))

    return pair


def test_target_only_is_the_familys_own_generate(pairs, made: Made, any_family: str):
    """Two of none, one and three pictures and two turns, of odd sizes; weights are those that transformers loads."""
    pair = pairs(any_family)
    auto = transformers.AutoModelForImageTextToText if pair.family.sees else transformers.AutoModelForCausalLM
    weights = auto.from_pretrained(made(any_family), dtype=torch.float64).state_dict()
    assert all(torch.equal(weight, weights[name]) for name, weight in pair.target.state_dict().items())
    check_generate(pair, range(10) if ALL else (EVERY.index(any_family) % 3, 3 + EVERY.index(any_family) % 2))
    if ALL:
        check_generate(pairs(any_family, None, "float32"), (3,))


def test_speculation_changes_no_token(pairs, any_family: str):
    """Whatever rule, drafter and temperature; the near draft is right at times, so that there is something to keep."""
    numbers = range(5) if ALL else (1,) if EVERY.index(any_family) % 5 else (0, 2)
    saved = check_speculation(lambda number: pairs(any_family, tuple(DRAFTS)[number % 3 == 2]), numbers)
    assert saved > 0 or len(numbers) == 1  # on one prompt it may be wrong throughout
    if ALL:
        check_speculation(lambda number: pairs(any_family, "near", "float32"), (1,))


def test_a_draft_that_reads_states_changes_no_token(pairs, any_family: str, tmp_path: Path):
    """Image entries lie where the target's slots do; families have other sizes, against which nothing was written."""
    pair = pairs(f"{any_family} other" if any_family in FAMILIES else any_family)
    check_generate(pair, (EVERY.index(any_family) % 3 + 1,))
    for kind in ("eagle", "eagle3") if ALL else (("eagle", "eagle3")[EVERY.index(any_family) % 2],):
        save(fresh_feature_draft(pair.target, kind), None, tmp_path / kind)
        drafted = pair.with_draft(tmp_path / kind)
        prompt = drafted.prompt(None, chat_of(pair, 4))
        assert said(drafted, prompt, FAST)[0] == said(drafted, prompt, ALONE)[0]


@pytest.mark.parametrize("family", [*checkpoints.FAMILIES, *FAMILIES])
@torch.inference_mode()
def test_reading_the_rest_is_reading_the_whole(pairs, family: str):
    """A cache is cut between pictures, never within one, though row and column tokens stand between its slots.

    What is decoded next goes on behind this text, and nothing of the one before it is left.
    """
    pair = pairs(family)

    def prompt(*shown: int, text: str = "What?") -> Prompt:
        parts = [{"type": "image", "image": checkpoints.picture(number)} for number in shown]
        return pair.prompt(None, [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}])

    first, used = prompt(1, 2, 4), Engine.of(pair.target, 1000, (1, -1))
    others = prompt(1, 2, 6), prompt(1, 5, 4), prompt(2, 1), prompt(), prompt(1, 2, 4, text="Where?"), prompt(1, 2)
    for second in others if ALL else others[FAMILIES.index(family) % 2 if family in FAMILIES else 0 :: 2]:
        fresh = Engine.of(pair.target, 1000, (1, -1))
        used.prefill(first.input_ids, first.features, first.image_keys)
        reading, whole = (
            engine.prefill(second.input_ids, second.features, second.image_keys) for engine in (used, fresh)
        )
        torch.testing.assert_close(reading.states, whole.states, rtol=0, atol=1e-9)
        after, behind = (engine.forward(Batch((20, 30, 40))) for engine in (used, fresh))
        for ours, theirs in ((reading, whole), (after, behind)):
            torch.testing.assert_close(ours.logits, theirs.logits, rtol=0, atol=1e-9)
    assert reading.reused > 0


@torch.inference_mode()
def test_a_tree_pass_scores_each_path_as_alone(pairs, family: str):
    pair = pairs(family)
    for seed in range(1, 5) if ALL else (3,):  # whose pictures take fewer positions than slots, where these differ
        prompt, plain = pair.prompt(None, checkpoints.messages(seed)), models.random_tree(seed)
        words = [len(KINDS[family].first) + token % WORDS for token in plain.tokens]
        tree = DraftTree(tuple(words), plain.parents, plain.log_probs, plain.entropies)
        reader, engine = (Engine.of(pair.target, prompt.length + room) for room in (0, len(tree)))
        reader.prefill(prompt.input_ids, prompt.features, prompt.image_keys)
        engine.copy_from(reader)  # as where a chat outgrows its cache
        logits = engine.forward(Batch.of_tree(tree, prompt.length)).logits
        for leaf in (node for node, children in enumerate(tree.children()) if not children):
            path = tree.path(leaf)
            ids = torch.cat([prompt.input_ids, torch.tensor([[words[node] for node in path]])], dim=1)
            pixels = to_device(prompt.image_inputs, pair.target, ids.device)
            named = family_of(pair.target.config).prompt_arguments(pair.target.config, ids)
            whole = pair.target(input_ids=ids, **pixels, **named, use_cache=False).logits[0, -len(path) :]
            torch.testing.assert_close(logits[list(path)], whole, rtol=0, atol=1e-9)


def test_weights_are_counted_before_they_are_loaded(pairs, made: Made, family: str):
    """Those of a tied head once."""
    for name in (family, f"{family} tied"):
        loaded, config = pairs(name, None, "float32").target, Checkpoint.at(made(name)).config()
        stored = sum(weight.nbytes for weight in loaded.parameters())
        assert size_of(type(loaded), config).weight_bytes(4) == stored


# ----------------------------------------------------------------------------------------------- processors


def without_weights(made: Path, tmp_path: Path) -> Path:
    """A copy that is refused by its small files, or not at all."""
    return Path(shutil.copytree(made, tmp_path / "odd", ignore=shutil.ignore_patterns("*.safetensors*")))


def test_a_processor_that_counts_other_slots_is_refused_before_weights_are_read(made, family, tmp_path):
    """Of each field that decides how many slots there are and what the tower reads."""
    odd = without_weights(made(family), tmp_path)
    for name in AGREEMENTS[family]:
        file = next(one for one in odd.glob("*processor_config.json") if name in json.loads(one.read_text()))
        before = file.read_text()
        fields = json.loads(before)
        sides = fields[name] if isinstance(fields[name], dict) else {}
        fields[name] = {key: 2 * side for key, side in sides.items()} or 2 * fields[name]
        file.write_text(json.dumps(fields))
        line = complaint(lambda: Pair.load(odd, device="cpu"))
        assert re.fullmatch(rf"odd: the processor's \w+ is \d+, the model's \d+: {MISFIT}", line), line
        file.write_text(before)
    fields = json.loads((odd / "config.json").read_text())
    (odd / "config.json").write_text(json.dumps(fields | {"image_token_id": 3, "image_token_index": 3}))
    line = complaint(lambda: Pair.load(odd, device="cpu"))
    assert re.fullmatch(rf"odd: the processor's image token is [\d, ]+, the model's 3: {MISFIT}", line), line


@pytest.mark.parametrize(
    ("own", "other", "why"),
    [
        ("gemma3", "idefics3", MISFIT),
        ("idefics3", "gemma3", "cannot be read"),
        ("qwen3_vl", "gemma3", "is no processor of a qwen3_vl"),
        ("gemma3", "qwen2_vl", "needs torchvision, which is not installed: install it, or take the processor of its"),
    ],
)
def test_a_processor_of_another_family_is_refused(made: Made, tmp_path: Path, own: str, other: str, why: str):
    """It has none of the fields that would be compared."""
    odd = without_weights(made(own), tmp_path)
    for file in made(other).glob("*processor*"):
        shutil.copy(file, odd)
    assert why in complaint(lambda: Pair.load(odd, device="cpu"))


def test_a_smolvlm_writes_a_picture_as_its_own_processor_would(pairs):
    """Which cannot be built without two more packages; Idefics3's writes the same."""
    processor = pairs("smolvlm").processor
    for rows, columns in ((0, 0), (1, 2), (3, 3)):
        ours = processor.replace_image_token({"rows": [[rows]], "cols": [[columns]]}, 0)
        tokens = ("<fake_token_around_image>", "<image>", "<global-img>")
        assert ours == get_image_prompt_string(rows, columns, processor.image_seq_len, *tokens)


# ----------------------------------------------------------------------------------------------- decoders


def shown(pair: Pair, *sizes: tuple[int, int]) -> Prompt:
    pictures = [checkpoints.picture(seed).resize(size) for seed, size in enumerate(sizes)]
    parts = [{"type": "image", "image": one} for one in pictures]
    return pair.prompt(None, [{"role": "user", "content": [*parts, {"type": "text", "text": "What is this?"}]}])


@torch.inference_mode()
@pytest.mark.parametrize("size", [(40, 30), (90, 30), (20, 90)])
def test_where_the_processor_pans_and_scans_each_crop_is_read(pairs, size: tuple[int, int]):
    """It is off unless the processor has it on; then a picture that is no square has slots for its crops."""
    pair = pairs("gemma3")
    scanning = replace(pair, processor=copy.copy(pair.processor))
    options = {"do_pan_and_scan": True, "pan_and_scan_min_crop_size": 8, "pan_and_scan_min_ratio_to_activate": 1.2}
    scanning.processor.images_kwargs = pair.processor.images_kwargs | options
    plain, prompt = shown(pair, size), shown(scanning, size)
    assert len(plain.image_keys) == 1 < len(prompt.image_keys) == len(prompt.image_inputs["pixel_values"])
    types = torch.eq(prompt.input_ids, pair.target.config.image_token_id).int()
    pixels = to_device(prompt.image_inputs, pair.target, types.device)
    inputs = {**pixels, "input_ids": prompt.input_ids, "token_type_ids": types}
    wanted = pair.target.generate(**inputs, do_sample=False, max_new_tokens=8)[0, prompt.length :]
    assert said(pair, prompt, ALONE)[0] == tuple(wanted.tolist())


@torch.inference_mode()
@pytest.mark.parametrize("size", [330, 400])
def test_embeddings_stay_scaled_when_rows_are_cut_or_filled(pairs, size: int):
    """A draft of another size lost the factor by which Gemma multiplies its embeddings, and guessed at random."""
    target = pairs("gemma3").target
    draft, words = copy.deepcopy(target), torch.arange(330)
    before = target.get_input_embeddings()(words)
    assert not torch.equal(before, target.get_input_embeddings().weight[:330])
    resize_vocabulary(draft, "draft", 330, size)
    assert torch.equal(draft.get_input_embeddings()(words), before)
    assert draft.get_output_embeddings()(before[0]).shape == (size,)
    line = complaint(lambda: resize_vocabulary(draft, "draft", size + 1, size))
    assert line == f"draft uses {size + 1} tokens, more than the target's {size} rows: no draft can be made of it"


@pytest.mark.parametrize("seed", range(3))
@torch.inference_mode()
def test_a_kept_branch_is_seen_through_the_window_as_its_tokens_alone(seed: int):
    """A plain decoder: pass after pass over trees, against whole passes over the kept branch."""
    config = transformers.MistralConfig(
        vocab_size=models.RECIPE.vocabulary, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, sliding_window=5,
    )  # fmt: skip
    model = models.seeded(transformers.MistralForCausalLM, config, seed).double().eval()
    engine, text = Engine.of(model, 64), list(range(3, 12))
    engine.prefill(torch.tensor([text]), None)
    for number in range(3):
        tree, base = models.random_tree(10 * seed + number), engine.cache.length
        path = tree.path(len(tree) - 1)
        logits = engine.forward(Batch.of_tree(tree, base)).logits
        engine.commit(base, path)
        text += [tree.tokens[node] for node in path]
        wanted = model(torch.tensor([text]), use_cache=False).logits[0, -len(path) :]
        torch.testing.assert_close(logits[list(path)], wanted, rtol=0, atol=1e-9)
        assert engine.cache.positions == list(range(len(text)))


def test_a_llama_has_no_window_whatever_its_configuration_carries_along():
    """Checkpoints made of a Mistral keep its ``sliding_window``, which a Llama does not heed; tree passes did."""
    config = transformers.LlamaConfig(
        vocab_size=99, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2,
        sliding_window=3,
    )  # fmt: skip
    assert layer_types(config) == (FULL,)
    engine = Engine.of(models.seeded(transformers.LlamaForCausalLM, config, 0).eval(), 32)
    ids = list(range(5, 15))
    with torch.inference_mode():
        together = engine.forward(Batch(ids)).logits
        engine.truncate(0)
        alone = torch.cat([engine.forward(Batch([token])).logits for token in ids])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)


# ----------------------------------------------------------------------------------------------- language models


def test_a_checkpoint_without_a_template_is_asked_in_vicunas_words(made: Made, tmp_path: Path):
    """As FastChat writes them: the system's sentence, USER and ASSISTANT, an end token after each answer."""
    bare = Path(shutil.copytree(made("phi3"), tmp_path / "bare"))
    (bare / "chat_template.jinja").unlink()
    pair = Pair.load(bare, device="cpu", dtype="float64")
    asked = (
        "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful,"
        " detailed, and polite answers to the user's questions."
        " USER: Where is it? ASSISTANT: On the table.</s> USER: How many cats are there? ASSISTANT:"
    )
    chat = [("user", "Where is it?"), ("assistant", "On the table."), ("user", "How many cats are there?")]
    prompt = pair.prompt(None, [{"role": role, "content": text} for role, text in chat])
    ids = transformers.AutoTokenizer.from_pretrained(bare)(asked)["input_ids"]
    assert prompt.input_ids[0].tolist() == ids and ids[0] == pair.processor.tokenizer.bos_token_id


def test_a_language_model_is_asked_without_a_picture(pairs, made: Made, tmp_path: Path, capsys: Any):
    line = complaint(lambda: pairs("llama").prompt(checkpoints.picture(1), "What?"))
    assert line == "llama is a language model, which reads no pictures: ask without one"
    models_named = ["--target", str(made("qwen2")), "--draft", str(made("qwen2 near"))]
    asked = ["--prompt", "What is there?", "--max-new-tokens", "8", "--dtype", "float64"]
    out, race = tmp_path / "out.json", tmp_path / "race.json"
    assert main(["compare", *asked, *models_named, "--json", str(out), "--trace", str(race)]) == 0
    assert json.loads(out.read_text())["identical"] is True
    assert json.loads(race.read_text())["speculative"]["image"] is None
    checkpoints.picture(1).save(tmp_path / "a.png")
    assert main(["generate", *asked, *models_named, "--image", str(tmp_path / "a.png")]) == 1
    assert capsys.readouterr().err.splitlines()[-1].endswith("reads no pictures: ask without one")


# ----------------------------------------------------------------------------------------------- refused


def test_a_draft_of_another_family_is_refused(made: Made):
    for target, draft in (
        ("internvl", "smolvlm"), ("gemma3", "llava_onevision"), ("smolvlm", "idefics3"),
    ):  # fmt: skip
        line = complaint(partial(Pair.load, made(target), made(f"{draft} near"), device="cpu"))
        assert line == (
            f"{draft} near is a {draft}, the target a {target}:"
            f" a draft that reads pictures by itself must be a {target}"
        )
    line = complaint(partial(Pair.load, made("llama"), made("llava near"), device="cpu"))
    assert line == "llava near reads pictures and the target none: take a language model as draft"


def test_a_draft_with_other_tokens_is_refused_by_number(made: Made, tmp_path: Path):
    families.write_checkpoint(tmp_path / "foreign", "internvl", also="zebras jump over xylophones " * 9)
    ours, theirs = (families.pieces(also).get_vocab() for also in ("", "zebras jump over xylophones " * 9))
    differ = len(set(ours.items()) ^ set(theirs.items())) // 2
    line = complaint(lambda: Pair.load(made("internvl"), tmp_path / "foreign", device="cpu"))
    assert line.startswith(f"the tokenizers of foreign and the target differ in {differ} of {WORDS + 7} shared ids")


@pytest.mark.parametrize(
    ("source", "target", "line"),
    [
        ("mistral", "gemma3", "the tokenizers of mistral and gemma3 differ in "),
        ("llava", "gemma3", "no draft reads a gemma3's tower, as those of llava and llava_next do: make one of a"),
        ("smolvlm", "llava", "smolvlm is a smolvlm, which drafts as it is: name it with --draft"),
        ("llama near", "llama", "llama is a language model: name llama near with --draft, it drafts as it is"),
    ],
)
def test_what_no_draft_is_made_of_or_for(made: Made, tmp_path: Path, source: str, target: str, line: str):
    assert complaint(lambda: init_draft(made(source), made(target), tmp_path / "made")).startswith(line)


LONG = {"rope_type": "longrope", "short_factor": [1.0] * 6, "long_factor": [2.0] * 6}


@pytest.mark.parametrize(
    ("kind", "changed", "why"),
    [
        ("qwen3_5", {}, "odd has linear_attention layers, which keep one state for the whole text"),
        ("llama4", {}, "odd has chunked_attention layers, which attend in chunks"),
        ("paligemma", {}, "models of type paligemma are not known as targets: llava, llava_next, llava_onevision,"),
        ("llava", {"text_config": {"model_type": "deepseek_v3"}}, "odd has a deepseek_v3 decoder, whose KV cache"),
        ("llava", {"text_config": {"model_type": "bloom"}}, "a bloom decoder is not known here"),
        ("gemma3_text", {"final_logit_softcapping": 30.0}, "odd has final_logit_softcapping 30.0: its"),
        ("phi3", {"rope_scaling": LONG, "original_max_position_embeddings": 64}, "odd has "),
    ],
)
def test_a_target_that_trees_cannot_serve_is_refused_and_says_why(made, tmp_path, kind: str, changed: Any, why: str):
    """Before its processor or a weight is looked for."""
    (tmp_path / "odd").mkdir()
    if kind in TEXTS:
        fields = json.loads((made(kind) / "config.json").read_text()) | changed
    else:
        fields = transformers.AutoConfig.for_model(kind, **changed).to_dict()
    (tmp_path / "odd" / "config.json").write_text(json.dumps(fields, default=str))
    assert why in complaint(lambda: Pair.load(tmp_path / "odd", device="cpu"))
