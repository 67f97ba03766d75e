"""Families that read videos as such: what comes out is their own ``generate``, whoever watches how many frames."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from support import checkpoints, families
from support.chats import check_last, talker
from support.clips import clip
from support.family_configs import Layout
from support.family_drafts import write_draft, write_target
from support.family_kinds import QWEN3S, QWENS, FamilyName
from support.family_proofs import FAST, check_tree_pass, said
from support.video_proofs import READERS, chat, check_generate, check_speculation, generated

from specllava.bench.vision_time import with_vision_time
from specllava.chat import Chat
from specllava.models.loading.load_options import DTypeName
from specllava.models.media.media import Video
from specllava.pair import Pair
from specllava.runtime.prompt_builder import NoRoomError

NEAR = Layout(vision=16, side=36, patch=6, padding=8)
LONG: list[tuple[FamilyName, Video]] = [
    ("qwen2_vl", clip(120)),
    ("qwen2_5_vl", clip(8, slow=10.0)),
    ("qwen2_5_vl", clip(4, slow=40.0)),
    ("qwen3_vl", clip(40, slow=40.0)),
]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory):
    root = tmp_path_factory.mktemp("videos")

    @cache
    def pair(family: FamilyName, dtype: DTypeName) -> Pair:
        target, draft = root / family, root / f"{family} near"
        if not target.exists():
            families.write_checkpoint(target, family)
            families.write_checkpoint(draft, family, 1, NEAR, target)
        return Pair.load(target, draft, device="cpu", dtype=dtype)

    return pair


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("family", READERS)
def test_target_only_is_the_familys_own_generate(pairs, family: FamilyName, dtype: DTypeName):
    check_generate(pairs(family, dtype))


@pytest.mark.parametrize("family", READERS)
def test_speculation_about_a_video_changes_no_token(pairs, family: FamilyName):
    """The draft, with a tower of its own, watches all frames or fewer."""
    assert check_speculation(pairs(family, "float64")) > 0


@pytest.mark.parametrize("family", READERS)
def test_later_turns_keep_the_caches_of_a_video(pairs, family: FamilyName):
    talk, reused = Chat(pairs(family, "float64")), 0
    for text, shown in (("What?", clip(4, 2)), ("Where?", ()), ("And this?", [checkpoints.picture(2), clip(4, 1, 3)])):
        trace = talk.ask(text, shown, FAST)
        assert trace.prefill.reused_tokens >= reused
        reused = trace.prefill.reused_tokens
        check_last(talk)
    assert reused > 0


@pytest.mark.parametrize("family", READERS)
def test_a_tree_pass_behind_a_video_scores_each_path_as_alone(pairs, family: FamilyName):
    pair = pairs(family, "float64")
    check_tree_pass(pair, family, (pair.prompt(None, chat(number)) for number in (1, 2)))


@pytest.mark.parametrize(("family", "video"), LONG)
def test_an_answer_about_a_long_video_is_generates_own(pairs, family: FamilyName, video: Video):
    """Its positions in time exceed those of the words after it, which the answer goes on from, and not from the time.

    The logits are those of the cache-free forward as well.
    """
    pair = pairs(family, "float64")
    messages = [{"role": "user", "content": [{"type": "video", "video": video}, {"type": "text", "text": "What?"}]}]
    check_generate(pair, [messages])
    prompt = pair.prompt(None, messages)
    assert said(pair, prompt, FAST)[0] == generated(pair, messages)
    check_tree_pass(pair, family, [prompt])


@pytest.mark.parametrize(("family", "video"), LONG)
def test_later_turns_behind_a_long_video_are_generates_own(pairs, family: FamilyName, video: Video):
    """Both lanes keep their caches, whose answers have the positions that the whole chat gives them."""
    pair = pairs(family, "float64")
    talk, read = Chat(pair), 0
    for text, shown in (("What?", video), ("Where?", ()), ("And here?", checkpoints.picture(2)), ("Why?", ())):
        for _ in talk.race(text, shown, FAST):
            pass
        last, wanted = talk.turns[-1], generated(pair, talk.messages[:-1])
        assert last.alone is not None
        for trace in (last.trace, last.alone):
            assert trace.token_ids == wanted
            assert trace.prefill.reused_tokens >= read
        read = last.trace.prefill.prompt_tokens  # the next turn reads none of it again


@pytest.mark.parametrize("family", READERS)
def test_frames_that_do_not_fit_are_told_with_how_many_do(pairs, family: FamilyName):
    """Where two share their slots, one more may take as many slots as two or none."""
    pair, video = pairs(family, "float64"), clip(8)
    least, length = (pair.prompt(one, "What?").length for one in (replace(video, draft_frames=1).for_draft(), video))
    for lacking in range(1, length - least + 1, (length - least) // 6):
        short = replace(pair, context_limit=length - lacking)
        with pytest.raises(NoRoomError) as caught:
            short.prompt(video, "What?")
        fits = int(str(caught.value).partition("take ")[2].split()[0])
        assert short.prompt(replace(video, draft_frames=fits).for_draft(), "What?").length <= length - lacking


def test_the_draft_pays_for_frames_that_the_target_did_not_encode_so(pairs, tmp_path: Path):
    """Where a video is read as such, fewer of its frames are another video; where it is pictures, none is new."""
    own = pairs("video_llava", "float64")
    target = write_target(tmp_path / "target", "video_llava")
    draft = write_draft(tmp_path / "draft", "video_llava", "vlm", target)
    for pair, new in ((own, True), (Pair.load(target, draft, device="cpu", dtype="float64"), True), (talker(), False)):
        prompt = pair.prompt(clip(4, 2), "What?")
        assert prompt.draft_prompt is not None and prompt.draft_prompt.vision_seconds > 0
        timed = with_vision_time(pair, prompt)
        assert timed.vision_seconds > 0
        assert (timed.draft_prompt.vision_seconds > 0) == new


@pytest.mark.parametrize("family", QWENS)
def test_frames_that_stand_still_give_the_patches_of_pictures(pairs, family: FamilyName):
    """Which a Qwen's picture processor doubles in time; an odd frame at the end is doubled too."""
    processor = pairs(family, "float64").processor
    one, other = clip(2).frames
    text = "<|vision_start|><|video_pad|><|vision_end|>"
    times = [{"total_num_frames": 3, "fps": 1, "frames_indices": [0, 1, 2]}]
    made = processor(text=text, videos=[[one, one, other]], video_metadata=times, return_tensors="pt")
    most = processor.image_processor.size["longest_edge"]
    plain = processor.image_processor(
        [one, other], size={"shortest_edge": most, "longest_edge": most}, return_tensors="pt"
    )
    assert made["pixel_values_videos"].equal(plain["pixel_values"])
    assert made["video_grid_thw"].tolist() == [[2, *plain["image_grid_thw"][0, 1:].tolist()]]
    slots = int(plain["image_grid_thw"][0].prod()) // processor.image_processor.merge_size ** 2
    assert ("second_per_grid_ts" in made) == (family == "qwen2_5_vl")
    assert made.get("second_per_grid_ts", torch.tensor([2.0])).tolist() == [2.0]
    step = "{}<|vision_start|>" + "<|video_pad|>" * slots + "<|vision_end|>"
    whole = text.replace("<|video_pad|>", "<|video_pad|>" * 2 * slots)
    wanted = step.format("<0.5 seconds>") + step.format("<2.0 seconds>") if family in QWEN3S else whole
    assert processor.tokenizer.decode(made["input_ids"][0]) == wanted
