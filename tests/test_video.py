"""Videos as frames: what a model reads of one, what a draft that watches fewer reads, and that no token changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from PIL import Image
from support import models
from support.chats import ALONE, SHORT, check_last, talker
from test_bad_input import complaint
from transformers import LlamaForCausalLM

from specllava.chat import Chat
from specllava.core.growth.rules import RULE_INFOS
from specllava.models.drafts.fresh_feature_draft import fresh_feature_draft
from specllava.models.families.llava import Llava
from specllava.models.media.media import Video, evenly
from specllava.pair import Pair
from specllava.runtime.prompt_builder import NoRoomError

COUNTS = ((8, 8), (8, 4), (8, 3), (7, 2), (5, 1), (1, 1))  # frames, and those that the draft watches


def clip(count: int, sparse: int | None = None, seed: int = 0) -> Video:
    frames = tuple(models.picture(100 * seed + number) for number in range(count))
    return Video(frames, tuple(number / 2 for number in range(count)), sparse)


def said(pair: Pair, prompt, config) -> tuple[int, ...]:
    return models.decode(pair, prompt, config).token_ids


def test_frames_are_the_first_of_equal_parts():
    for total in range(1, 40):
        for count in range(1, total + 1):
            chosen = evenly(total, count)
            assert len(set(chosen)) == count and chosen[0] == 0 and chosen[-1] < total
            assert chosen == tuple(sorted(chosen))
            if total % count == 0:
                assert chosen == tuple(range(0, total, total // count))


def test_frames_are_several_pictures_where_a_family_reads_no_video():
    pair, video = models.pair("mixed"), clip(5)
    seen, frames = pair.prompt(video, "What?"), pair.prompt(video.frames, "What?")
    assert seen.input_ids.equal(frames.input_ids) and seen.image_keys == frames.image_keys
    assert seen.features is not None and seen.features.equal(frames.features)
    assert seen.draft_prompt is None


@pytest.mark.parametrize(("count", "watched"), COUNTS)
def test_a_draft_that_watches_fewer_frames_changes_no_token(count: int, watched: int, monkeypatch: pytest.MonkeyPatch):
    """It reads the slots of every k-th frame, whose features the target's pass of the tower left it."""
    encoded = []
    encode = Llava.encode
    monkeypatch.setattr(Llava, "encode", lambda self, *given: encoded.append(len(given[1])) or encode(self, *given))
    pair, video = models.pair("mixed", seed=count % 2), clip(count, watched)
    prompt = pair.prompt(video, "What?")
    assert encoded == [count]
    thin = pair.prompt(tuple(video.frames[place] for place in evenly(count, watched)), "What?")
    assert prompt.draft_prompt is not None
    assert prompt.draft_prompt.input_ids.equal(thin.input_ids) and prompt.draft_prompt.image_keys == thin.image_keys
    plain = said(pair, prompt, ALONE)
    assert plain == said(pair, pair.prompt(replace(video, draft_frames=None), "What?"), ALONE)
    rules = [*RULE_INFOS]
    for rule in rules[count % 2 :: 2]:
        for heat in ({}, {"temperature": 0.9, "seed": count}):
            assert said(pair, prompt, replace(SHORT, rule=rule, **heat)) == said(pair, prompt, replace(ALONE, **heat))


def test_a_draft_with_a_tower_of_its_own_encodes_only_the_frames_that_it_watches():
    pair = replace(models.pair(None), draft=models.target(1), draft_processor=models.processor())
    prompt = pair.prompt([models.picture(9), clip(6, 2)], "What?")
    assert prompt.draft_prompt is not None
    assert (len(prompt.image_keys), len(prompt.draft_prompt.image_keys)) == (7, 3)
    assert said(pair, prompt, SHORT) == said(pair, prompt, ALONE)


def test_later_turns_keep_the_caches_of_a_video():
    """The draft goes on from its fewer frames, the target from all; a picture may come behind them."""
    chat = Chat(talker())
    video = clip(4, 2)
    chat.ask("What is this?", video, SHORT)
    check_last(chat)
    later = (("Where?", ()), ("And here?", models.picture(3)), ("And now?", [models.picture(0), clip(2, 1)]))
    for text, shown in later:
        trace = chat.ask(text, shown, SHORT)
        assert trace.prefill.reused_tokens > 4 * models.RECIPE.image_tokens
        check_last(chat)
    assert chat.turns[0].media == (video,) and len(chat.turns[3].images) == 1


# ----------------------------------------------------------------------------------------------- refused


def test_a_draft_that_sees_no_frames_cannot_see_fewer():
    blind = LlamaForCausalLM(models.target().config.text_config)
    drafts = {
        "there is no draft model": None,
        "the draft reads words alone": blind,
        "the draft reads the target's states, which hold every frame": fresh_feature_draft(models.target(), "eagle"),
    }
    for why, draft in drafts.items():
        pair = replace(models.pair(None), draft=draft)
        line = complaint(lambda pair=pair: pair.prompt(clip(4, 2), "What?"))
        assert line == f"no fewer frames for the draft than for the target: {why}"


def test_more_frames_than_the_context_holds_are_refused_with_the_number_that_fits():
    pair = replace(models.pair("mixed"), context_limit=150)
    with pytest.raises(NoRoomError) as caught:
        pair.prompt(clip(20), "What?", 32)
    fits = int(str(caught.value).partition("take ")[2].split()[0])
    assert pair.prompt(clip(fits), "What?", 32).length <= pair.context - 32
    with pytest.raises(NoRoomError, match=f"take {fits} frames at most"):
        pair.prompt(clip(fits + 1), "What?", 32)


def test_more_pictures_than_the_context_holds_are_refused_with_the_number_that_fits():
    """Also behind an earlier turn; the pictures of that are not counted."""
    earlier = [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hello."}]
    pair = replace(models.pair("mixed"), context_limit=150)
    for before in ([], earlier):
        asked = lambda count, before=before: [*before, pictured(count)]  # noqa: E731
        line = complaint(lambda asked=asked: pair.prompt(None, asked(20), 32))
        fits = int(line.partition("take ")[2].split()[0])
        assert "\n" not in line and f"take {fits} picture" in line
        assert pair.prompt(None, asked(fits), 32).length <= pair.context - 32
        assert f"take {fits} picture" in complaint(lambda asked=asked: pair.prompt(None, asked(fits + 1), 32))  # noqa: B023
    small = replace(pair, context_limit=40)
    assert "shorten the prompt" in complaint(lambda: small.prompt(None, [pictured(2)], 32))


def pictured(count):
    parts = [{"type": "image", "image": models.picture(number)} for number in range(count)]
    return {"role": "user", "content": [*parts, {"type": "text", "text": "What?"}]}


@pytest.mark.parametrize(
    ("frames", "seconds", "draft", "why"),
    [
        ((), (), None, "at least one frame"),
        (((4, 4), (4, 5)), (0.0, 1.0), None, "have one size, these have 2"),
        (((4, 4), (4, 4)), (0.0,), None, "a video of 2 frames needs as many times, in order: 1 are given"),
        (((4, 4), (4, 4)), (1.0, 0.0), None, "in order: 2 are given"),
        (((4, 4), (4, 4)), (0.0, 1.0), 3, "the draft can watch 1 to 2 frames of a video of 2, not 3"),
        (((4, 4),), (0.0,), 0, "not 0"),
    ],
)
def test_a_video_that_is_none(frames, seconds, draft, why):
    assert why in complaint(lambda: Video(tuple(Image.new("RGB", size) for size in frames), seconds, draft))
