"""Clips of the toy world: one object moves and nothing else changes, answers are true, rows are what models read."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from accelerate.utils import set_seed
from transformers import LlavaForConditionalGeneration

from benchmarks.clips.batches import ClipBatches
from benchmarks.clips.clip import FRAMES, beside, sample_clip
from benchmarks.clips.questions import CLIP_FAMILIES
from benchmarks.shared.draft_training import packed_draft_losses
from specllava.distill.losses import IGNORE
from specllava.models.drafts.draft_classes import DraftLlava
from specllava.models.families.interface import tower_features
from specllava.runtime.vision import merge_features
from specllava.toyworld.build import build_processor, special_ids
from specllava.toyworld.corpus import draw_pixels, encode_chat
from specllava.toyworld.draw import draw_scene, shown_at
from specllava.toyworld.hints import first_tokens
from specllava.toyworld.packed_losses import packed_states
from specllava.toyworld.phrases import NUMBERS
from specllava.toyworld.recipe import ToyRecipe
from specllava.toyworld.scene import CELLS, HELD_OUT, SPLITS

COUNT = 1500
CLIPS = [(split, seed, sample_clip(seed, split)) for split in SPLITS for seed in range(COUNT)]


def test_one_object_moves_from_cell_to_cell_and_nothing_else_changes():
    ways = set()
    for split, seed, clip in CLIPS:
        frames = clip.frames(FRAMES)
        assert clip == sample_clip(seed, split) and frames[0] == clip.scene and len(frames) == FRAMES
        for scene, cell in zip(frames, clip.path, strict=True):
            cells = [CELLS.index((thing.column, thing.row)) for thing in scene.things]
            assert cells == sorted(set(cells))
            looks = [(thing.combination, thing.size, thing.jitter) for thing in scene.things]
            (there,) = [thing for thing in scene.things if thing.combination == clip.moving.combination]
            assert (there.column, there.row) == cell
            assert sorted(looks) == sorted((thing.combination, thing.size, thing.jitter) for thing in clip.scene.things)
            stay = {(thing.combination, thing.column, thing.row) for thing in scene.things if thing != there}
            assert stay == {
                (thing.combination, thing.column, thing.row) for thing in clip.scene.things if thing != clip.moving
            }
            assert (scene.place, scene.weather, scene.time, scene.seed) == (
                clip.scene.place, clip.scene.weather, clip.scene.time, clip.scene.seed
            )  # fmt: skip
        assert 2 <= len(clip.stops) <= 3
        assert all(after in beside(before) for before, after in zip(clip.stops, clip.stops[1:], strict=False))
        ways.add((len(clip.stops), clip.stops[0] == clip.stops[-1]))
    assert ways == {(2, False), (3, True), (3, False)}


def test_fewer_frames_are_some_of_the_clips_frames_from_its_first_to_its_last():
    for _, _, clip in CLIPS[:100]:
        whole = clip.frames(FRAMES)
        assert clip.frames(1) == whole[:1] and clip.frames(2) == (whole[0], whole[-1])
        assert clip.frames(3)[::2] == clip.frames(2)


def test_answers_are_true_of_the_clip_and_judged_by_what_they_state():
    for split, seed, clip in CLIPS:
        said = {name: one.ask(clip, random.Random(seed)) for name, one in CLIP_FAMILIES.items()}
        stated = {name: one.statement(said[name].answer) for name, one in CLIP_FAMILIES.items()}
        way = []
        for (column, row), (next_column, next_row) in zip(clip.stops, clip.stops[1:], strict=False):
            ends = (column, next_column) if column != next_column else (row, next_row)
            way += ends if not way else [ends[1]]
        if clip.stops[0] == clip.stops[-1]:
            way[-1] = "returns"
        assert stated["where it goes"] == tuple(way)
        assert stated["what moves"] == clip.moving.combination
        assert stated["what happens"] == (*clip.moving.combination, *way)
        assert stated["how many"] == (NUMBERS[len(clip.scene.things)],)
        named = f"the {clip.moving.colour} {clip.moving.kind}" in said["whether it moves"].question
        assert stated["whether it moves"] == (("yes" if named else "no"),)
        if split == "train":
            text = " ".join(turn.question + turn.answer for turn in said.values())
            assert not any(f"{colour} {kind}" in text for colour, kind in HELD_OUT)
        assert CLIP_FAMILIES["where it goes"].statement("It goes to the centre.") == ("middle",)


@pytest.fixture(scope="module")
def processor():
    return build_processor(ToyRecipe.tiny())


def test_rows_are_what_the_chat_template_gives_for_several_pictures(processor):
    batches = ClipBatches(processor, 2, 4, (1, 2, 4))
    for number, count in enumerate((1, 2, 4)):
        batch = batches(number)
        assert batch["pixel_values"].shape[0] == 2 * count and batch["patch_names"].shape[:2] == (2, 4 * count)
        for row, index in enumerate((2 * number, 2 * number + 1)):
            clip = sample_clip(index)
            pictures = [draw_scene(scene, 32) for scene in clip.frames(count)]
            start: list[int] = batch["input_ids"][row][batch["segments"][row] == 0].tolist()
            for segment, (name, family) in enumerate(CLIP_FAMILIES.items(), 1):
                turn = family.ask(clip, random.Random(f"specllava clip talk {index} {name}"))
                chat = [
                    {"role": "user", "content": [*({"type": "image"} for _ in pictures), text(turn.question)]},
                    {"role": "assistant", "content": [text(turn.answer)]},
                ]
                read = processor(images=pictures, text=processor.apply_chat_template(chat), return_tensors="pt")
                mine = batch["segments"][row] == segment
                assert start + batch["input_ids"][row][mine].tolist() == read["input_ids"][0].tolist()
                answer = batch["labels"][row][mine]
                assert processor.tokenizer.decode(answer[answer != IGNORE]) == f" {turn.answer}</s>"


def test_a_packed_clip_teaches_what_its_talks_teach_alone(processor):
    set_seed(5)
    config = ToyRecipe.tiny().llava_config(2, 64, special_ids(processor), tied=True)
    model = LlavaForConditionalGeneration(config).to(torch.float64).eval()
    batch = ClipBatches(processor, 2, 4, (4, 2))(1)
    batch["pixel_values"] = batch["pixel_values"].double()
    states = packed_states(model, batch, model)[-1]  # [rows, length, hidden]
    for row, index in enumerate((2, 3)):
        clip = sample_clip(index)
        features = tower_features(model, draw_pixels(processor.image_processor, clip.frames(2)).double())
        for segment, (name, family) in enumerate(CLIP_FAMILIES.items(), 1):
            turn = family.ask(clip, random.Random(f"specllava clip talk {index} {name}"))
            ids, _ = encode_chat(processor.tokenizer, (turn,), 4, pictures=2)
            embeds = merge_features(model, torch.tensor([ids]), features)
            alone = model.get_decoder()(inputs_embeds=embeds, use_cache=False).last_hidden_state[0]
            mine = batch["segments"][row] == segment
            assert torch.allclose(states[row][mine], alone[-int(mine.sum()) :], atol=1e-9)


@pytest.mark.parametrize("number", range(3))
def test_a_draft_that_is_its_target_has_only_the_targets_own_doubt_to_learn(processor, number):
    set_seed(number)
    config = ToyRecipe.tiny().llava_config(2, 64, special_ids(processor), tied=True)
    target = LlavaForConditionalGeneration(config).to(torch.float64).eval()
    same, other = (DraftLlava(config).to(torch.float64).eval() for _ in range(2))
    same.load_state_dict(target.state_dict(), strict=False)
    batch = ClipBatches(processor, 2, 4, (1, 2, 4))(number)
    batch["pixel_values"] = batch["pixel_values"].double()
    own, far = (packed_draft_losses(draft, batch, target, 0.5, 0.1) for draft in (same, other))
    assert 0 <= own["kl"] < 1e-6 < far["kl"]
    for found in (own, far):
        total = 0.5 * found["answers"] + 0.5 * found["kl"] + found["naming"]
        assert found["loss"].item() == pytest.approx(total.item())
    states = packed_states(target, batch, target)[-1]
    labels = batch["labels"][:, 1:].flatten()
    entropy = F.cross_entropy(target.lm_head(states)[:, :-1].flatten(0, 1).float(), labels, ignore_index=IGNORE)
    assert own["answers"].item() == pytest.approx(entropy.item(), rel=1e-5)


def test_slots_say_whether_their_object_has_moved_since_the_frame_before(processor):
    batches = ClipBatches(processor, 1, 64, (FRAMES,))
    moves, stays = first_tokens(processor.tokenizer, ("moves", "stays")).values()
    assert moves != stays
    cells = set(batches.hints.digits.values())
    for seed in range(60):
        clip = sample_clip(seed)
        *_, marks, named = batches.name_patches(clip, FRAMES).view(FRAMES, 64, -1).unbind(-1)
        own = [set(one.tolist()) for one in marks]
        assert all(len(one) == 1 for one in own) and len(set.union(*own) - cells) == FRAMES
        for number, scene in enumerate(clip.frames(FRAMES)):
            moved = number > 0 and clip.path[number] != clip.path[number - 1]
            for thing, last in zip(shown_at(scene, 8), named[number].tolist(), strict=True):
                is_mover = thing is not None and thing.combination == clip.moving.combination
                assert last == (IGNORE if thing is None else moves if moved and is_mover else stays)


def text(said):
    return {"type": "text", "text": said}
