"""The dialogues of the page's visitors: what is kept and for how long, and that nobody goes on from another's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from support.dialogues import COLUMNS, FakeChat
from support.visual_traces import FakeBackend, synthetic_recorded
from test_bad_input import complaint

from specllava.config import DecodingConfig
from visual.page.dialogue import KEEP, LOST, OVER, Dialogues, edited
from visual.page.pictures import Picture
from visual.page.uploads import MediaList
from visual.player.recorded import MAX_TURNS, Recorded
from visual.player.turns import DialoguePosition

CONFIG = DecodingConfig(max_new_tokens=8)
PICTURES = [Picture(upload=Image.new("RGB", (4, 4), colour)) for colour in ("red", "green")]


class Store:
    """A store over stand-ins, with every chat that it made."""

    def __init__(self, **bounds: int) -> None:
        self.backend, self.made = FakeBackend(), list[FakeChat]()
        self.dialogues = Dialogues(self._make, **bounds)

    def _make(self, turns: Any) -> FakeChat:
        self.made.append(FakeChat(self.backend, turns))
        return self.made[-1]

    def ask(self, session: str, text: str = "What?", picture: int = 0, follow: bool = True) -> DialoguePosition:
        events, position = self.dialogues.begin(session, PICTURES[picture], text, CONFIG, follow)
        list(events)
        return position


@pytest.mark.parametrize("visitors", [2, 5, 9])
@pytest.mark.parametrize("room", [0, 1000, 2500, 10_000])
def test_caches_of_all_visitors_stay_within_the_room_and_the_latest_asked_keep_theirs(visitors: int, room: int) -> None:
    store = Store(most_cache_bytes=room)
    for turn in range(3):
        for visitor in range(visitors):
            store.ask(f"visitor {visitor}", follow=turn > 0)
            assert store.dialogues.nbytes <= room + 1000  # of the one that just ran
    kept = [chat.nbytes > 0 for chat in store.made]
    assert kept == sorted(kept) and sum(kept) == min(visitors, room // 1000 + 1)
    assert [len(chat.turns) for chat in store.made] == [3] * visitors  # what was said is never dropped


def test_a_dialogue_whose_caches_were_dropped_goes_on_and_reuses_nothing() -> None:
    store = Store(most_cache_bytes=0)
    for visitor in ("a", "b"):
        store.ask(visitor, "One?", follow=False)
    position = store.ask("a", "Two?")
    assert store.made[0].forgotten == 1
    assert [turn.lead.prompt for turn in position.before] == ["One?"]
    assert [turn.trace.prefill.reused_tokens for turn in store.made[0].turns] == [0, 0]
    store.ask("a", "Three?")
    assert store.made[0].turns[-1].trace.prefill.reused_tokens == 2 * COLUMNS


def test_no_visitor_goes_on_from_the_dialogue_of_another_and_one_who_leaves_frees_theirs() -> None:
    store = Store()
    for visitor in ("a", "b"):
        store.ask(visitor, f"{visitor} asks?", follow=False)
    assert [turn.lead.prompt for turn in store.ask("b").before] == ["b asks?"]
    assert store.dialogues.nbytes == 2000
    store.dialogues.leave("a")
    assert store.dialogues.nbytes == 1000
    assert complaint(lambda: store.ask("a")) == "your dialogue is no longer kept: press Run to begin another"


def test_dialogues_are_kept_for_their_bytes_and_who_asked_longest_ago_is_told_that_theirs_is_not() -> None:
    large = Picture(upload=Image.new("RGB", (1000, 1000)))
    store = Store(most_bytes=10_000_000)
    store.dialogues.begin("a", large, "What?", CONFIG, follow=False)
    for visitor in range(300):
        store.dialogues.show(f"visitor {visitor}", None)
    assert complaint(lambda: store.ask("a", " ")) != LOST
    for visitor in "bcd":
        store.dialogues.begin(visitor, large, "What?", CONFIG, follow=False)
    assert complaint(lambda: store.ask("a")) == LOST
    assert complaint(lambda: store.dialogues.edit("a", 0)) == LOST
    assert complaint(lambda: store.ask("visitor 0")) == LOST, "asked before the others"
    store.ask("c")


def test_a_race_that_all_visitors_share_is_nobodys_bytes_and_a_visitors_own_is(tmp_path: Path) -> None:
    race = synthetic_recorded(tmp_path)[0]
    shared, own = Store(most_bytes=100_000), Store(most_bytes=100_000)
    for visitor in range(20):
        shared.dialogues.show(f"{visitor}", race)
        own.dialogues.show(f"{visitor}", race, own=True)
    assert shared.dialogues.edit("0", 0)[0] == own.dialogues.edit("19", 0)[0] == race.prompt
    assert complaint(lambda: own.dialogues.edit("0", 0)) == LOST


class Slow(Picture):
    """A picture that takes so long to read that something else happens meanwhile."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        super().__init__(upload=PICTURES[0].upload)
        object.__setattr__(self, "meanwhile", meanwhile)

    def open(self) -> Image.Image:
        self.meanwhile()  # type: ignore[attr-defined]
        return super().open()


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("asked_before", [False, True])
def test_a_run_that_is_slow_to_begin_takes_no_place_from_what_was_opened_meanwhile(
    follow: bool, asked_before: bool, tmp_path: Path
) -> None:
    race, store = synthetic_recorded(tmp_path)[0], Store()
    if asked_before or follow:
        store.ask("a", "One?", follow=False)
    slow = Slow(lambda: store.dialogues.show("a", race))
    events, _ = store.dialogues.begin("a", slow, "Two?", CONFIG, follow)
    list(events)
    assert [turn.lead.prompt for turn in store.ask("a", "Three?").before] == [race.prompt]


@pytest.mark.parametrize("asked_before", [False, True])
def test_who_left_while_a_run_began_holds_nothing(asked_before: bool) -> None:
    store = Store()
    if asked_before:
        store.ask("a", "One?", follow=False)
    list(store.dialogues.begin("a", Slow(lambda: store.dialogues.leave("a")), "Two?", CONFIG, follow=False)[0])
    assert complaint(lambda: store.ask("a")) == LOST
    assert store.dialogues.nbytes == 0


def test_a_refused_question_leaves_the_dialogue_as_it_was() -> None:
    store = Store()
    store.ask("a", "One?", follow=False)
    for follow in (True, False):
        assert "empty" in complaint(lambda: store.ask("a", " ", follow=follow))  # noqa: B023 - called at once
    assert [turn.lead.prompt for turn in store.ask("a", "Two?").before] == ["One?"]


@pytest.mark.parametrize("stopped_after", [1, 3, 8])
def test_a_run_in_the_midst_of_which_the_dialogue_is_dropped_or_stopped_leaves_it_whole(stopped_after: int) -> None:
    store = Store()
    store.ask("a", "One?", follow=False)
    events, _ = store.dialogues.begin("a", PICTURES[0], "Two?", CONFIG, follow=True)
    for _ in range(stopped_after):
        next(events)
    store.made[0].forget()
    events.close()
    assert [turn.lead.prompt for turn in store.ask("a", "Three?").before] == ["One?", "Two?"]
    events, _ = store.dialogues.begin("a", PICTURES[0], "Four?", CONFIG, follow=True)
    next(events)
    store.dialogues.leave("a")
    events.close()
    assert "no longer kept" in complaint(lambda: store.ask("a"))


def test_an_edited_turn_replaces_itself_and_what_follows_with_its_own_picture() -> None:
    store = Store()
    store.ask("a", "One?", 0, follow=False)
    store.ask("a", "Two?", 1)
    store.ask("a", "Three?", 1)
    assert [len(turn.media) for turn in store.made[0].turns] == [1, 1, 0]  # a picture comes once, with its message
    assert store.dialogues.edit("a", 1) == ("Two?", PICTURES[1])
    store.dialogues.edit("a", None)
    assert len(store.ask("a", "Four?", 1).before) == 3
    store.dialogues.edit("a", 1)
    position = store.ask("a", "Two again?", 0)
    assert ([turn.lead.prompt for turn in position.before], position.own_picture) == (["One?"], False)
    assert complaint(lambda: store.dialogues.edit("a", 5)) == "the dialogue has 2 turns, and no turn 6 to edit"


def test_several_pictures_come_with_the_message_that_they_are_new_to_and_stay_with_it() -> None:
    store, parts = Store(), tuple(one.open() for one in PICTURES)
    for number, source in enumerate([MediaList(parts), MediaList(parts * 2), MediaList(parts[::-1])]):
        for again in range(2):
            events, _ = store.dialogues.begin("a", source, "What?", CONFIG, follow=bool(number or again))
            list(events)
            assert store.made[0].turns[-1].media == (() if again else source.parts)
            assert store.dialogues.edit("a", 2 * number + again) == ("What?", source)
            store.dialogues.edit("a", None)
    assert len(store.ask("a", "And of the first alone?", 0).before) == 6
    assert len(store.made[0].turns[-1].media) == 1


def test_a_dialogue_has_no_more_turns_than_its_file_may_have() -> None:
    store = Store()
    for turn in range(MAX_TURNS):
        store.ask("a", follow=turn > 0)
    assert complaint(lambda: store.ask("a")).endswith("the most that are kept: edit one of them, or start over")


def test_a_recorded_race_is_gone_on_from_unless_something_of_it_is_missing(tmp_path: Path) -> None:
    race, store = synthetic_recorded(tmp_path)[0], Store()
    store.dialogues.show("a", race)
    position = store.ask("a", "And now?", 1)
    assert [turn.lead.prompt for turn in position.before] == [race.prompt]
    assert store.made[0].turns[0].media and position.own_picture
    bare = Recorded("bare", None, race.target_only, race.speculative, image_name="gone.png")
    store.dialogues.show("a", bare)
    assert "without its picture" in complaint(lambda: store.ask("a"))
    store.dialogues.show("a", None)
    assert "no dialogue" in complaint(lambda: store.ask("a"))


def test_the_list_of_turns_asks_for_an_edit_or_a_new_dialogue_and_nothing_else() -> None:
    store = Store()
    store.ask("a", "One?", follow=False)
    picture, _, question, notice = edited(store.dialogues, "a", 0)
    assert (picture, question, notice) == (PICTURES[0], "One?", "")
    for odd in (None, "1", 1.5, 7, -9):
        assert json.loads(edited(store.dialogues, "a", odd)[-1])["kind"] == "error"
    assert edited(store.dialogues, "a", KEEP)[-1] == ""
    assert edited(store.dialogues, "a", OVER)[-1] == ""
    assert "no longer kept" in edited(store.dialogues, "a", 0)[-1]
