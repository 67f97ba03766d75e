"""LLaVA's published formats: drafts and how they see, and what a checkpoint need not have. Judge: transformers."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from itertools import cycle
from pathlib import Path

import pytest
import torch
from support import checkpoints
from support.cases import ALL, complaint
from support.chats import check_last
from support.checkpoints import FAMILIES
from support.family_proofs import ALONE, FAST, check_generate, said
from support.models import seeded
from transformers import CONFIG_MAPPING, AutoConfig, AutoProcessor, LlavaForConditionalGeneration

from benchmarks.checkpoints import run_checks
from specllava.chat import Chat
from specllava.distill.new_draft import init_draft
from specllava.models.drafts.draft_vlm import VisionSource
from specllava.pair import Pair

# How each draft was made, and how it comes to know a picture. All but "init" and "blind" resemble their target.
DRAFTS: dict[str, VisionSource] = {"init": "shared", "blind": "none", "same tower": "shared", "own tower": "own"}
EACH = [(family, made) for family in FAMILIES for made in DRAFTS]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Targets, what drafts are made of, and the drafts that the command makes of it."""
    root = tmp_path_factory.mktemp("checkpoints")
    for family in FAMILIES:
        target = checkpoints.write_llava(root / family, family)
        whole = checkpoints.weights_of(target)
        near = checkpoints.noisy({n: w for n, w in whole.items() if "vision_tower" not in n and w.dim() > 1}, 0.03)
        checkpoints.write_llava(root / f"{family}, same tower", family, parts=whole | near)
        checkpoints.write_llava(root / f"{family}, own tower", family, seed=1, parts=near)
        prefix = "language_model."  # of a Llama's weights; the rows of two tokens and of padding are none of its own
        words = {n.removeprefix(prefix): w[: checkpoints.WORDS] if len(w) == checkpoints.PADDED else w
                 for n, w in whole.items() if n.startswith(prefix)}  # fmt: skip
        checkpoints.write_llama(root / f"{family}, speaker", layers=2, hidden=48, parts=words)
        for made in DRAFTS:
            source = f"{family}, {made if 'tower' in made else 'speaker'}"
            init_draft(root / source, target, root / f"{family} {made}", text_only=made == "blind")
    return root


@pytest.fixture(scope="module")
def pairs(root: Path):
    alone = cache(lambda family, dtype: Pair.load(root / family, device="cpu", dtype=dtype))
    return cache(lambda family, made, dtype: alone(family, dtype).with_draft(root / f"{family} {made}"))


@pytest.mark.parametrize(("family", "made"), EACH)
def test_speculation_changes_no_token_in_float32(pairs, family: str, made: str):
    """Prompts with none, one and three pictures of odd sizes, of one and two turns."""
    pair, saved = pairs(family, made, "float32"), 0
    for number in range(25) if ALL else (0, 1, 3, 4):
        prompt = pair.prompt(None, checkpoints.messages(number))
        plain, passes = said(pair, prompt, ALONE)
        fast, fewer = said(pair, prompt, FAST)
        assert fast == plain
        saved += passes - fewer
    assert saved > 0 or "tower" not in made  # those that resemble it were right at times


@pytest.mark.parametrize("family", FAMILIES)
def test_each_tower_sees_each_picture_of_a_chat_once(pairs, family: str):
    """Pictures in several turns, some of them again."""
    chat = Chat(pairs(family, "own tower", "float64"))
    seen: list[int] = []
    hooks = [
        model.model.vision_tower.register_forward_pre_hook(lambda _, given: seen.append(len(given[0])))
        for model in (chat._pair.target, chat._pair.draft)
    ]
    for question, shown in (("What is this?", (1, 2)), ("Where?", ()), ("And here?", (2, 3))):
        seen.clear()
        chat.ask(question, [checkpoints.picture(number) for number in shown], FAST)
        assert len(seen) == (2 if shown else 0)  # one pass of each for all that is new
        check_last(chat)
    for hook in hooks:
        hook.remove()


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_draft_reads(pairs, family: str):
    """Shared: the same. Blind: the words without the slots. Own: the same words, features of its own tower."""
    for made, vision in DRAFTS.items():
        bundle = pairs(family, made, "float32")
        prompt = bundle.prompt(None, checkpoints.messages(3))
        marker = bundle.target.config.image_token_id
        words = prompt.input_ids[prompt.input_ids != marker].tolist()
        if vision == "shared":
            assert prompt.draft_prompt is None
        elif vision == "none":
            assert prompt.draft_prompt.input_ids[0].tolist() == words
            assert (prompt.draft_prompt.features, prompt.draft_prompt.image_keys) == (None, ())
        else:
            own = prompt.draft_prompt
            assert own.input_ids[own.input_ids != marker].tolist() == words
            assert len(own.features) == len(prompt.features) == 3
            assert not set(own.image_keys) & set(prompt.image_keys)
            states = [torch.as_tensor(getattr(p.features[0], "states", p.features[0])) for p in (own, prompt)]
            assert not torch.allclose(*states)


def test_the_script_that_repeats_these_checks_on_real_checkpoints(pairs):
    """``python -m benchmarks.checkpoints``, on a random one."""
    lanes = run_checks(pairs("llava", "same tower", "float64"), 3, replace(FAST, max_new_tokens=5))
    names = ("speculative", "transformers", "speculative, in a chat")
    assert {name: [one.identical for one in lane] for name, lane in lanes.items()} == dict.fromkeys(names, [True] * 3)


# And the tokens that each puts before a picture's patches.
TOWERS = {
    "clip_vision_model": 1, "siglip_vision_model": 0, "dinov2": 1, "dinov2_with_registers": 5, "vit": 1, "pixtral": 0,
}  # fmt: skip


@pytest.mark.parametrize(("tower", "strategy"), zip(TOWERS, cycle(("default", "full")), strict=False))
def test_slots_are_counted_as_the_tower_fills_them(tmp_path: Path, tower: str, strategy: str):
    """By arithmetic: patches and what stands before them, of which "default" drops the first token."""
    config = AutoConfig.from_pretrained(made := checkpoints.write_llava(tmp_path / "made"))
    config.vision_feature_select_strategy = strategy
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2}
    config.vision_config = CONFIG_MAPPING[tower](**size, image_size=checkpoints.SIDE, patch_size=checkpoints.PATCH)
    for file in (*made.glob("model*"), made / "processor_config.json"):  # which older checkpoints lack
        file.unlink()
    seeded(LlavaForConditionalGeneration, config, 3).eval().save_pretrained(made)
    pair = Pair.load(made, device="cpu", dtype="float64")
    ids = pair.prompt(checkpoints.picture(1), "What?").input_ids
    patches = (checkpoints.SIDE // checkpoints.PATCH) ** 2
    assert int((ids == checkpoints.IMAGE_ID).sum()) == patches + TOWERS[tower] - (strategy == "default")
    check_generate(pair, (1,))
    fields = {"patch_size": checkpoints.PATCH, "vision_feature_select_strategy": strategy}
    wrong = json.dumps(fields | {"num_additional_image_tokens": 3, "processor_class": "LlavaProcessor"})
    (made / "processor_config.json").write_text(wrong)
    line = complaint(lambda: Pair.load(made, device="cpu"))
    assert f"the processor's num_additional_image_tokens is 3, the model's {TOWERS[tower]}" in line


@pytest.mark.parametrize("token", ["bos_token", "pad_token"])
def test_a_special_token_that_is_blank_or_missing_refuses_no_question(tmp_path: Path, token: str):
    made = checkpoints.write_llava(tmp_path / "made")
    chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is this?"}]}]
    for value in ("", None, " "):
        for name in ("tokenizer_config.json", "special_tokens_map.json"):
            checkpoints.write(made / name, json.loads((made / name).read_text()) | {token: value})
        pair, processor = Pair.load(made, device="cpu"), AutoProcessor.from_pretrained(made)
        text = processor.apply_chat_template(chat, add_generation_prompt=True)
        wanted = processor(images=checkpoints.picture(1), text=text, return_tensors="pt")["input_ids"]
        assert pair.prompt(checkpoints.picture(1), "What is this?").input_ids.tolist() == wanted.tolist()
