"""Families that transformers encodes: what comes out is their own ``generate``, whatever drafts, grows or samples."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import pytest
import torch
from support import checkpoints, families, models
from support.chats import check_last
from support.families import FAMILIES, KINDS, QWENS, WORDS, FamilyName, Layout
from test_bad_input import complaint
from torch import Tensor
from transformers import Llama4Config, PaliGemmaConfig, PretrainedConfig, Qwen3_5Config
from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

from specllava.bench.transformers_lanes import TRANSFORMERS, transformers_lane
from specllava.chat import Chat
from specllava.config import DecodingConfig
from specllava.growth.rules import RULE_INFOS
from specllava.lane import Lane
from specllava.models.checkpoint import Checkpoint
from specllava.models.draft_classes import save
from specllava.models.family import family_of
from specllava.models.feature_config import DraftFormat
from specllava.models.fresh_feature_draft import fresh_feature_draft
from specllava.models.loading import DTypeName
from specllava.models.make_draft import import_draft, init_draft
from specllava.models.memory_estimate import weight_bytes
from specllava.pair import Pair
from specllava.runtime.engine import Engine
from specllava.runtime.passes import PassInput
from specllava.runtime.prompt import Prompt
from specllava.tree import DraftTree

FAST = DecodingConfig(max_new_tokens=8, depth=3, nodes=6, width=2, min_log_prob=-50.0, entropy_threshold=1.0)
ALONE = replace(FAST, drafter="none")
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


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> FamilyName:
    """Each in turn, with all of its tests: a process that shares them out makes the checkpoints of a few."""
    return request.param


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A checkpoint by family and draft or ``other``, made when it is first asked for."""
    root = tmp_path_factory.mktemp("families")

    @cache
    def write(name: str) -> Path:
        family, _, kind = name.partition(" ")
        if not kind:
            return families.write_checkpoint(root / name, family)
        if kind == "other":
            return families.write_checkpoint(root / name, family, 7, OTHER)
        near = write(family) if kind == "near" else None
        return families.write_checkpoint(root / name, family, 1 + tuple(DRAFTS).index(kind), DRAFTS[kind], near)

    return write


@pytest.fixture(scope="module")
def pairs(made: Made):
    """A pair by target, draft and precision; a target is loaded once per precision."""

    @cache
    def alone(name: str, dtype: DTypeName) -> Pair:
        return replace(Pair.load(made(name), device="cpu", dtype=dtype), costs=models.COSTS)

    @cache
    def pair(name: str, draft: str | None, dtype: DTypeName) -> Pair:
        drafted = alone(name, dtype)
        if draft is None:
            return drafted
        return replace(drafted.with_draft(made(f"{name.split()[0]} {draft}")), costs=models.COSTS)

    return pair


def said(pair: Pair, prompt: Prompt, config: DecodingConfig) -> tuple[tuple[int, ...], int]:
    """Token ids of an answer, and the target's passes."""
    trace = pair.run(Lane("x", config, prompt))
    return trace.token_ids, len(trace.steps)


def own_inputs(pair: Pair, number: int) -> dict[str, Tensor]:
    """What the family's processor makes of a chat, without the code under test."""
    chat = [
        {
            "role": one["role"],
            "content": [{"type": "text", "text": one["content"]}]
            if isinstance(one["content"], str)
            else [part | {"text": part["text"].strip()} if part["type"] == "text" else part for part in one["content"]],
        }
        for one in checkpoints.messages(number)
    ]
    made = pair.processor.apply_chat_template(
        chat, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
    )
    return {name: one.to(pair.target.dtype) if one.is_floating_point() else one for name, one in made.items()}


@torch.inference_mode()
def check_generate(pair: Pair, numbers: range) -> None:
    """Target-only decoding is the family's own ``generate``, token by token; nothing that it leaves behind is read."""
    made = [own_inputs(pair, number) for number in numbers]
    wanted = [pair.target.generate(**inputs, do_sample=False, max_new_tokens=ALONE.max_new_tokens) for inputs in made]
    for number, inputs, answer in zip(numbers, made, wanted, strict=True):
        prompt = pair.prompt(None, checkpoints.messages(number))
        assert torch.equal(prompt.input_ids, inputs["input_ids"])
        assert said(pair, prompt, ALONE)[0] == tuple(answer[0, prompt.length :].tolist())


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_target_only_is_the_familys_own_generate(pairs, family: FamilyName, dtype: DTypeName):
    """None, one and three pictures of odd sizes, one and two turns."""
    check_generate(pairs(family, None, dtype), range(10))


def test_the_lane_of_transformers_reads_the_same_pictures(pairs, family: FamilyName):
    """The benchmark hands ``generate`` what the prompt was built of; a text alone has no part of one before it."""
    pair = pairs(family, None, "float64")
    for number in (2, 3, 5):
        prompt = pair.prompt(None, checkpoints.messages(number))
        assert transformers_lane(pair, TRANSFORMERS, ALONE)(prompt).token_ids == said(pair, prompt, ALONE)[0]


def test_a_checkpoint_of_other_sizes_and_seed(pairs, family: FamilyName):
    """Nothing was written against it; the draft's tower, rows and layers are not its own either."""
    pair = pairs(f"{family} other", "near", "float64")
    check_generate(pair, range(13, 17))
    for number in range(13, 17):
        prompt = pair.prompt(None, checkpoints.messages(number))
        plain = said(pair, prompt, ALONE)[0]
        assert said(pair, prompt, FAST)[0] == said(pair, prompt, replace(FAST, drafter="prompt-lookup"))[0] == plain


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_speculation_changes_no_token(pairs, family: FamilyName, dtype: DTypeName):
    """Whatever rule, drafter and temperature; the near draft is right at times, so that there is something to keep."""
    saved = 0
    rules = [name for name, info in RULE_INFOS.items() if info.compared]
    for number in range(5):
        pair = pairs(family, tuple(DRAFTS)[number % 3 == 2], dtype)
        prompt = pair.prompt(None, checkpoints.messages(number))
        for turn, heat in enumerate(({}, {"temperature": 0.8, "top_p": 0.9, "seed": number})):
            plain, passes = said(pair, prompt, replace(ALONE, **heat))
            if turn == number % 2:
                assert said(pair, prompt, replace(FAST, drafter="prompt-lookup", **heat))[0] == plain
            for rule in rules[(number + turn) % 3 :: 3]:
                fast, fewer = said(pair, prompt, replace(FAST, rule=rule, **heat))
                assert fast == plain
                saved += passes - fewer
    assert saved > 0


def test_a_draft_that_reads_states_changes_no_token(pairs, family: FamilyName, tmp_path: Path):
    """Fresh ones, whose image entries lie where the target's slots do, row and column tokens between them."""
    pair = pairs(f"{family} other", None, "float64")
    kinds: tuple[DraftFormat, ...] = ("eagle", "eagle3")
    for kind in kinds:
        save(fresh_feature_draft(pair.target, kind), None, tmp_path / kind)
        drafted = replace(pair.with_draft(tmp_path / kind), costs=models.COSTS)
        prompt = drafted.prompt(None, checkpoints.messages(4))
        assert said(drafted, prompt, FAST)[0] == said(drafted, prompt, ALONE)[0]


@torch.inference_mode()
def test_a_tree_pass_scores_each_path_as_alone(pairs, family: FamilyName):
    pair = pairs(family, None, "float64")
    for number in range(1, 5):
        prompt = pair.prompt(None, checkpoints.messages(number))
        plain = models.random_tree(number)
        words = [len(KINDS[family].first) + token % WORDS for token in plain.tokens]
        tree = DraftTree(tuple(words), plain.parents, plain.log_probs, plain.entropies)
        reader, engine = (Engine(pair.target, prompt.length + room) for room in (0, len(tree)))
        reader.prefill(prompt.input_ids, prompt.features, prompt.image_keys)
        engine.copy_from(reader)  # as where a chat outgrows its cache
        logits = engine.forward(PassInput.of_tree(tree, prompt.length)).logits
        for leaf in (node for node, children in enumerate(tree.children()) if not children):
            path = tree.path(leaf)
            ids = torch.cat([prompt.input_ids, torch.tensor([[words[node] for node in path]])], dim=1)
            named = family_of(pair.target.config).prompt_arguments(pair.target.config, ids)
            whole = pair.target(input_ids=ids, **prompt.image_inputs, **named, use_cache=False).logits[0, -len(path) :]
            torch.testing.assert_close(logits[list(path)], whole, rtol=0, atol=1e-9)


def test_a_chat_that_keeps_its_caches_says_what_a_fresh_reading_says(pairs, family: FamilyName):
    """None at first, pictures in several turns, some of them again, and an earlier turn edited."""
    chat = Chat(pairs(family, "near", "float64"))
    reused = 0
    for question, shown in (("What?", ()), ("What is this?", (1, 2)), ("Where?", ()), ("And here?", (2, 3))):
        trace = chat.ask(question, [checkpoints.picture(number) for number in shown], FAST)
        assert trace.prefill.reused_tokens >= reused
        reused = trace.prefill.reused_tokens
        check_last(chat)
    assert reused > 0
    chat.edit(2, "Why?", FAST)
    check_last(chat)


@torch.inference_mode()
def test_reading_the_rest_is_reading_the_whole(pairs, family: FamilyName):
    """A cache is cut between pictures, never within one, though row and column tokens stand between its slots."""
    pair = pairs(family, None, "float64")

    def prompt(*shown: int, text: str = "What?") -> Prompt:
        parts = [{"type": "image", "image": checkpoints.picture(number)} for number in shown]
        return pair.prompt(None, [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}])

    first, used = prompt(1, 2, 4), Engine(pair.target, 1000)
    for second in (prompt(1, 2, 6), prompt(1, 5, 4), prompt(2, 1), prompt(1, 2, 4, text="Where?"), prompt(1, 2)):
        used.prefill(first.input_ids, first.features, first.image_keys)
        reading = used.prefill(second.input_ids, second.features, second.image_keys)
        whole = Engine(pair.target, 1000).prefill(second.input_ids, second.features, second.image_keys)
        torch.testing.assert_close(reading.logits, whole.logits, rtol=0, atol=1e-9)
    assert reading.reused > 0


def test_a_picture_smaller_than_a_patch_is_read(pairs, family: FamilyName):
    """Of Mistral 3 it takes one slot, on which transformers fails."""
    pair = pairs(family, "near", "float64")
    prompt = pair.prompt(checkpoints.picture(3), "What?")
    assert said(pair, prompt, FAST)[0] == said(pair, prompt, ALONE)[0]


@pytest.mark.parametrize("family", QWENS)
def test_a_processor_of_another_model_is_refused(pairs, family: FamilyName):
    """Its patches would be read as others."""
    pair, other = pairs(family, None, "float64"), pairs(f"{family} other", None, "float64")
    line = complaint(lambda: replace(pair, processor=other.processor).prompt(checkpoints.picture(1), "What?"))
    assert line == "the processor's patch_size is 5, the model's patch_size 7: it does not fit the model"


@pytest.mark.parametrize("family", ["idefics3", "smolvlm"])
def test_tiles_are_counted_as_the_processor_cuts_them(pairs, family: FamilyName):
    """Of every shape: the count that splits a prompt's tiles into pictures is the number of tiles of each picture."""
    images = pairs(family, None, "float64").processor.image_processor
    for width, height in [(1, 1), (1, 90), (90, 1), (28, 28), (29, 28), (56, 57), (57, 56), (300, 7), (99, 98), (9, 5)]:
        cut = images([[checkpoints.picture(0).resize((width, height))]], return_tensors="pt")["pixel_values"]
        assert max(1, images.get_number_of_image_patches(height, width)[0]) == cut.shape[1]


def test_a_smolvlm_writes_a_picture_as_its_own_processor_would(pairs):
    """Which cannot be built without two more packages; Idefics3's writes the same."""
    processor = pairs("smolvlm", None, "float64").processor
    for rows, columns in ((0, 0), (1, 2), (3, 3)):
        ours = processor.replace_image_token({"rows": [[rows]], "cols": [[columns]]}, 0)
        tokens = ("<fake_token_around_image>", "<image>", "<global-img>")
        assert ours == get_image_prompt_string(rows, columns, processor.image_seq_len, *tokens)


def test_weights_are_counted_before_they_are_loaded(pairs, made: Made, family: FamilyName):
    """Those of a tied head once."""
    for name in (family, f"{family} tied"):
        loaded, config = pairs(name, None, "float32").target, Checkpoint.at(made(name)).config()
        stored = sum(weight.nbytes for weight in loaded.parameters())
        assert weight_bytes(type(loaded), config, torch.float32) == stored


# ----------------------------------------------------------------------------------------------- refused


def test_a_draft_of_another_family_is_refused(made: Made):
    for target, draft in (("internvl", "smolvlm"), ("mistral3", "llava_onevision"), ("smolvlm", "idefics3")):
        line = complaint(partial(Pair.load, made(target), made(f"{draft} near"), device="cpu"))
        assert line == (
            f"{draft} near is a {draft}, the target a {target}:"
            f" a draft that reads pictures by itself must be a {target}"
        )


def test_a_draft_with_other_tokens_is_refused_by_number(made: Made, tmp_path: Path):
    families.write_checkpoint(tmp_path / "foreign", "internvl", also="zebras jump over xylophones " * 9)
    ours, theirs = (families.pieces(also).get_vocab() for also in ("", "zebras jump over xylophones " * 9))
    differ = len(set(ours.items()) ^ set(theirs.items())) // 2
    line = complaint(lambda: Pair.load(made("internvl"), tmp_path / "foreign", device="cpu"))
    assert line.startswith(f"the tokenizers of foreign and the target differ in {differ} of {WORDS + 7} shared ids")


def test_what_no_draft_is_made_of_or_for(made: Made, tmp_path: Path):
    llama = checkpoints.write_llama(tmp_path / "llama")
    llava = checkpoints.write_llava(tmp_path / "llava")
    way = "no draft is made for a mistral3, whose tower's features a draft cannot share (llava and llava_next can)"
    assert complaint(lambda: init_draft(llama, made("mistral3"), tmp_path / "made")).startswith(way)
    assert complaint(lambda: import_draft(llava, made("mistral3"), tmp_path / "made")).startswith(way)
    line = complaint(lambda: import_draft(made("smolvlm"), llava, tmp_path / "made"))
    assert line == "smolvlm is a smolvlm, which drafts as it is: name it with --draft"


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (Qwen3_5Config, "odd has linear_attention layers, which keep one state for the whole text"),
        (Llama4Config, "odd has chunked_attention layers, which attend in chunks"),
        (PaliGemmaConfig, "models of type paligemma are not known as targets: llava, llava_next, llava_onevision,"),
    ],
)
def test_a_target_that_is_no_family_is_refused_and_says_why(tmp_path: Path, config: type[PretrainedConfig], why: str):
    """Before its processor or a weight is looked for."""
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "config.json").write_text(json.dumps(config().to_dict(), default=str))
    assert complaint(lambda: Pair.load(tmp_path / "odd", device="cpu")).startswith(why)
