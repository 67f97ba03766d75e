"""Whatever cannot work is refused before any work, in one line that says what is wrong, with its numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support import checkpoints, models
from transformers import LlavaProcessor

from recipes.toy.build import build_processor, special_ids
from recipes.toy.recipe import ToyRecipe
from specllava.config import DecodingConfig
from specllava.models.drafts.draft_vlm import DraftLlava, save
from specllava.models.language_model import parse_device
from specllava.models.loading import check_pair
from specllava.models.memory import kept_whole
from specllava.models.presets import presets
from specllava.pair import Pair
from specllava.prompt import merge_features


def complaint(action: Callable[[], Any]) -> str:
    """The one line of the ValueError that ``action`` must raise."""
    with pytest.raises(ValueError, match=r".") as caught:
        action()
    line = str(caught.value)
    assert "\n" not in line
    assert 10 < len(line) < 300
    return line


# --------------------------------------------------------------------------------------------- prompts


@pytest.mark.parametrize("question", ["", " ", "\n\t "])
def test_an_empty_prompt_is_refused(tiny: Pair, question: str):
    pair = tiny
    assert complaint(lambda: pair.prompt(None, question)) == "the prompt is empty"
    assert complaint(lambda: pair.prompt(models.picture(0), question)) == "the prompt is empty"


@pytest.mark.parametrize("question", ["<image>", "What is in <image> here?", "a<image><image>"])
def test_an_image_marker_in_the_text_is_refused(tiny: Pair, question: str):
    assert "contains <image>" in complaint(lambda: tiny.prompt(None, question))


@pytest.mark.parametrize("token", ["<pad>", "<s>", "</s>"])
def test_a_special_token_in_the_text_is_refused_by_its_name(tiny: Pair, token: str):
    line = complaint(lambda: tiny.prompt(models.picture(0), f"What is {token} here?"))
    assert line == f"the prompt contains {token}: special tokens are set by the chat, not in the text"
    chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": f"a{token}b"}, *models.messages(1)]
    assert complaint(lambda: tiny.prompt(None, chat)).startswith(f"message 1 contains {token}: ")


def test_special_tokens_of_another_tokenizer_are_refused_too(tmp_path: Path):
    pair = Pair.load(checkpoints.write_llava(tmp_path / "target"), name="x", device="cpu")
    for token in ("<unk>", "<s>", "</s>", "<pad>"):
        assert f"contains {token}: special" in complaint(lambda token=token: pair.prompt(None, f"What{token}?"))
    assert pair.prompt(None, "a < s > b </p> <0x41>").text == "a < s > b </p> <0x41>"


def test_half_a_character_is_refused(tiny: Pair):
    line = complaint(lambda: tiny.prompt(None, "caf\udce9"))
    assert line == "the prompt is no UTF-8 text: '\\udce9' at character 4 is none"


PICTURE = {"type": "image", "image": models.picture(0)}
TURNS = ("user", "assistant", "user")


@pytest.mark.parametrize(
    ("chat", "words"),
    [
        (
            [{"role": "user", "content": "Hi"}, {"role": "user", "content": "Hi"}],
            "message 1 is the user's: the user begins, and the two take turns",
        ),
        ([{"role": "assistant", "content": "Hi"}, {"role": "user", "content": "Hi"}], "message 0 is the assistant's"),
        ([], "must end with a message of the user"),
        ([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}], "must end with a message"),
        ([*models.messages(2)[:1], {"role": "system", "content": "Hi"}, *models.messages(1)], "message 1 is the sys"),
        ([{"role": "user", "content": None}], "message 0 needs a role (system, user or assistant) and its text"),
        ([{"role": "user"}], "message 0 needs a role"),
        ([{"role": "tool", "content": "Hi"}, *models.messages(1)], "needs a role (system, user or assistant)"),
        (["Hi", *models.messages(1)], "message 0 needs a role"),
        ([{"role": "user", "content": " "}, {"role": "user", "content": "Hi"}], "message 0 is empty"),
        ([{"role": "user", "content": "<image>"}, {"role": "user", "content": "Hi"}], "contains <image>"),
        ([{"role": "user", "content": []}], "the prompt is empty"),
        ([{"role": "user", "content": [PICTURE]}], "the prompt is empty"),
        ([{"role": "user", "content": [{"type": "text"}]}], "neither a text nor a picture of the user"),
        ([{"role": "user", "content": [{"type": "image", "image": None}]}], "neither a text nor a picture"),
        ([{"role": "user", "content": [{"type": "image", "image": "nowhere.png"}]}], "no image file at nowhere.png"),
        ([{"role": "user", "content": [{"type": "text", "text": "a <image>"}]}], "contains <image>"),
        (
            [{"role": role, "content": part} for role, part in zip(TURNS, ("Hi", [PICTURE], "Hi"), strict=True)],
            "message 1 has a part",
        ),
    ],
)
def test_a_malformed_chat_is_refused(tiny: Pair, chat: list[dict[str, Any]], words: str):
    assert words in complaint(lambda: tiny.prompt(None, chat))


def test_a_prompt_that_does_not_fit_is_refused_with_numbers_and_a_way_out(tiny: Pair):
    prompt = models.prompt(0)
    free = tiny.context - prompt.length
    line = complaint(lambda: models.decode(tiny, prompt, DecodingConfig(max_new_tokens=free + 1)))
    assert f"{prompt.length} prompt tokens and {free + 1} new ones" in line
    assert f"context of {tiny.context}" in line
    assert f"ask for {free} at most" in line


def test_a_prompt_that_just_fits_is_read(tiny: Pair):
    prompt = models.prompt(0)
    free = tiny.context - prompt.length
    assert free > 500
    events = tiny.stream(models.picture(0), models.messages(0), DecodingConfig(max_new_tokens=free))
    assert next(events).prompt_tokens == prompt.length


def test_a_prompt_longer_than_the_context_is_refused(tiny: Pair):
    line = complaint(lambda: tiny.generate(None, "why? " * 2_000, DecodingConfig(max_new_tokens=1)))
    assert f"do not fit the context of {tiny.context}: shorten the prompt" in line


@pytest.mark.parametrize("limit", [0, -1, 1.5])
def test_a_limit_that_is_none_is_refused(limit: int):
    with pytest.raises(ValueError, match=r"max_new_tokens"):
        DecodingConfig(max_new_tokens=limit)


def test_drafting_without_a_draft_is_refused():
    line = complaint(lambda: models.decode(models.pair(None), models.prompt(0), DecodingConfig()))
    assert 'the pair tiny has no draft: use drafter "prompt-lookup" or "none"' in line


# -------------------------------------------------------------------------------------------- pictures


@pytest.mark.parametrize("slots", [0, 3, 5])
def test_image_slots_must_match_the_features(slots: int):
    model = models.target()
    ids = torch.tensor([[1, *[model.config.image_token_id] * slots, 9]])
    line = complaint(lambda: merge_features(model, ids, torch.zeros(1, 4, 32, dtype=torch.float64)))
    assert line.startswith(f"{slots} image slots in the prompt but 4 vision features: the processor ")
    if slots:
        assert "but 0 vision features" in complaint(lambda: merge_features(model, ids, None))


# ----------------------------------------------------------------------------------------------- pairs


def other_draft(recipe: ToyRecipe, processor: LlavaProcessor) -> DraftLlava:
    return DraftLlava(recipe.llava_config(1, recipe.draft_hidden, special_ids(processor)))


def recipe_with(**changes: Any) -> ToyRecipe:
    return ToyRecipe(**{name: getattr(models.RECIPE, name) for name in models.RECIPE.__slots__} | changes)


def test_a_fitting_draft_is_let_through():
    check_pair(models.target(), models.draft("bad"), models.processor(), models.processor())


def test_a_draft_with_another_tokenizer_is_refused():
    other = build_processor(recipe_with(tokenizer_conversations=40))
    ours, theirs = (set(p.tokenizer.get_vocab().items()) for p in (models.processor(), other))
    line = complaint(lambda: check_pair(models.target(), models.draft("bad"), models.processor(), other))
    assert line == f"the draft's tokenizer is not the target's: {len(ours ^ theirs)} entries differ"


def test_a_draft_with_another_vocabulary_is_refused():
    draft = other_draft(recipe_with(vocabulary=300), models.processor())
    line = complaint(lambda: check_pair(models.target(), draft, models.processor(), models.processor()))
    assert line == "draft vocabulary 300 does not cover the target's 280"


def test_a_draft_for_other_vision_features_is_refused():
    draft = other_draft(recipe_with(vision_hidden=64), models.processor())
    line = complaint(lambda: check_pair(models.target(), draft, models.processor(), models.processor()))
    assert line == (
        'the draft reads vision features of size 64, the target\'s tower gives 32: run "specllava draft init"'
    )


def test_a_draft_for_another_vision_layer_is_refused():
    draft = copy.copy(models.draft("bad"))
    draft.config = copy.deepcopy(draft.config)
    draft.config.vision_feature_layer = -2
    line = complaint(lambda: check_pair(models.target(), draft, models.processor(), models.processor()))
    assert line == 'the draft reads vision layer -2, the target layer -1: run "specllava draft init"'


def test_a_projector_of_another_name_is_no_matter():
    target, draft = copy.deepcopy(models.target()), copy.deepcopy(models.draft("bad"))
    for model in (target, draft):
        model.model.bridge = model.model._modules.pop("multi_modal_projector")
    check_pair(target, draft, models.processor(), models.processor())
    assert target.model.bridge.linear_1.in_features == 32
    assert kept_whole(target) == ["model.vision_tower", "model.bridge", "lm_head"]
    draft.config.vision_config.hidden_size = 64
    line = complaint(lambda: check_pair(target, draft, models.processor(), models.processor()))
    assert "vision features of size 64, the target's tower gives 32" in line


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny target, a draft that fits it, and one that does not."""
    root = tmp_path_factory.mktemp("pair")
    save(copy.deepcopy(models.target()), models.processor(), root / "target")
    save(copy.deepcopy(models.draft("bad")), models.processor(), root / "draft")
    recipe = recipe_with(vocabulary=300)
    processor = build_processor(recipe)
    save(other_draft(recipe, processor), processor, root / "stranger")
    return root


def test_a_saved_pair_loads_and_answers(on_disk: Path):
    pair = Pair.load(on_disk / "target", on_disk / "draft", name="saved", device="cpu", dtype="float64")
    traces = pair.compare(models.picture(0), "What?", DecodingConfig(max_new_tokens=8))
    assert traces["target-only"].token_ids == traces["speculative"].token_ids
    assert pair.info.dtype == "float64"


def test_a_saved_target_answers_without_a_draft(on_disk: Path):
    pair = Pair.load(on_disk / "target", name="alone", device="cpu", dtype="float32")
    assert pair.info.draft == "none"
    assert pair.generate(None, "What?", DecodingConfig(drafter="none", max_new_tokens=4)).token_ids


def test_a_pair_that_does_not_fit_is_refused_when_it_is_loaded(on_disk: Path):
    line = complaint(lambda: Pair.load(on_disk / "target", on_disk / "stranger", name="odd", device="cpu"))
    assert "the draft's tokenizer is not the target's" in line


def test_a_missing_model_is_refused_by_its_place(on_disk: Path):
    for target, draft in (("nowhere", "draft"), ("target", "nowhere")):
        line = complaint(lambda t=target, d=draft: Pair.load(on_disk / t, on_disk / d, name="x", device="cpu"))
        assert line == f"no model at {on_disk / 'nowhere'}: a directory with config.json is expected"


def test_a_device_without_float64_is_refused_before_anything_is_loaded(
    on_disk: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("mps"))
    line = complaint(lambda: parse_device("mps"))
    assert line == "device mps computes no float64, which answers are chosen in: use cpu"
    assert parse_device("auto").type in ("cpu", "cuda")


@pytest.mark.parametrize("device", ["banana", "cuda:99"])
def test_a_device_that_is_not_there_is_refused(on_disk: Path, device: str):
    assert device in complaint(lambda: Pair.load(on_disk / "target", on_disk / "draft", name="x", device=device))


def test_an_unknown_preset_is_refused_with_the_known_ones():
    line = complaint(lambda: Pair.from_preset("smolvlm"))
    near, rest = line.removeprefix("unknown preset 'smolvlm': ").split(" or ")
    assert set(near.split(", ")) <= set(presets()) and "smolvlm2-2.2b-256m" in near
    assert rest == f"another of the {len(presets())} that specllava presets lists"
    assert "toy, " in complaint(lambda: Pair.from_preset("?"))
