"""The guided examples: what is read, what is refused, and that the shipped ones say what their races show."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from support.visual_traces import synthetic_recorded

from specllava.metrics import pass_ratio, speedup, summarise
from specllava.trace import DecodeTrace
from visual.figures.labels import token_label
from visual.player.lessons import Lesson, load_lessons
from visual.player.link import follow_link

SHIPPED = load_lessons(Path(__file__).resolve().parent.parent / "assets" / "lessons")


def by_name(name: str) -> Lesson:
    return next(lesson for lesson in SHIPPED if lesson.text.name == name)


CLASS = ("why", "chain", "wrong", "doubt", "tree", "pass", "cache", "coin", "pays")
MORE = ("easy", "blank", "picture", "before", "after", "states", "perfect")


def test_the_lessons_of_a_class_are_shipped_in_order_and_then_some_more() -> None:
    assert tuple(lesson.text.name for lesson in SHIPPED) == (*CLASS, *MORE)
    assert [(lesson.number, lesson.count) for lesson in SHIPPED] == [(n, len(SHIPPED)) for n in range(1, 17)]
    assert all(lesson.text.question.endswith("?") and len(lesson.text.answer) > 100 for lesson in SHIPPED)


@pytest.mark.parametrize("lesson", SHIPPED, ids=lambda lesson: lesson.text.name)
def test_both_lanes_of_a_lesson_say_the_same_unless_guesses_are_drawn(lesson: Lesson) -> None:
    trace = lesson.race.speculative
    if trace.config.keeps_tokens:  # guesses that were drawn keep the distribution, not the words
        assert lesson.race.target_only.token_ids == trace.token_ids
    else:
        assert lesson.text.place == "coin"
    assert lesson.race.image is not None


@pytest.mark.parametrize("lesson", SHIPPED, ids=lambda lesson: lesson.text.name)
def test_words_that_a_lesson_quotes_are_in_its_step(lesson: Lesson) -> None:
    trace = lesson.race.speculative
    step = trace.steps[lesson.text.step]
    seen = {token_label(trace, token) for token in (*step.tree.tokens, step.verification.bonus_token)}
    quoted = re.findall("“([^”]+)”", lesson.text.question + lesson.text.answer)
    emitted = "".join(trace.texts[token] for token in step.emitted)
    if lesson.text.place == "grounding":  # it is about the whole answer
        emitted = trace.text
    assert all(words in seen or words in emitted for words in quoted)


def test_the_easy_stretch_is_long() -> None:
    easy = by_name("easy")
    step = easy.race.speculative.steps[easy.text.step]
    assert f"{len(step.verification.accepted)} of its guesses" in easy.text.question


def test_lessons_about_a_tree_share_a_step_whose_favourite_lost_to_another_branch() -> None:
    shared = [by_name(name) for name in ("why", "doubt", "tree", "pass", "cache", "pays")]
    assert len({(id(lesson.race), lesson.text.step, lesson.text.node) for lesson in shared}) == 1
    trace, parent = shared[0].race.speculative, shared[0].text.node
    step = trace.steps[shared[0].text.step]
    family, doubt = step.tree.children()[parent], step.tree.entropies[parent]
    (taken,) = {*family} & {*step.verification.accepted}
    assert step.tree.sibling_ranks()[taken] > 0
    assert doubt > trace.config.entropy_threshold
    assert f"{doubt:.2f} nats" in by_name("doubt").text.answer
    assert f"{len(step.verification.path)} of {len(step.tree)}" in by_name("cache").text.answer


def test_the_chain_has_no_branch_and_loses_what_stands_behind_its_wrong_guess() -> None:
    chain = by_name("chain")
    step = chain.race.speculative.steps[chain.text.step]
    assert chain.race.speculative.rule_name == "chain"
    assert all(len(family) <= 1 for family in step.tree.children())
    assert f"The {step.tree.drafted - len(step.verification.accepted) - 1} guesses behind" in chain.text.answer


def test_before_and_after_are_the_same_question_on_the_same_picture() -> None:
    before, after = by_name("before").race, by_name("after").race
    assert before.speculative.token_ids == after.speculative.token_ids
    assert (before.speculative.setting.draft, after.speculative.setting.draft) == ("draft-before", "draft")
    assert len(before.speculative.steps) > len(after.speculative.steps)


def test_the_lesson_about_states_is_a_run_of_the_shipped_draft_that_reads_them() -> None:
    lesson = by_name("states")
    trace = lesson.race.speculative
    assert (trace.setting.draft, trace.setting.draft_reads) == ("eagle", "states")
    step, after = trace.steps[lesson.text.step : lesson.text.step + 2]
    assert not step.verification.accepted and step.tree.parents[lesson.text.node] == 0
    below = sum(lesson.text.node in step.tree.path(node)[:-1] for node in range(len(step.tree)))
    assert f"the {below} guesses below" in lesson.text.answer
    assert f"gets {len(after.verification.accepted)} guesses right" in lesson.text.answer
    assert f"it is {summarise([trace]).tau:.1f} tokens out of a target pass" in lesson.text.answer


def test_the_lesson_about_the_picture_counts_what_its_run_measured() -> None:
    lesson = by_name("picture")
    trace = lesson.race.speculative
    found, total = trace.grounding, len(trace.token_ids)
    needed = [at for at in range(total) if found.probs[at] >= 10 * found.blank_probs[at]]
    assert f"{len(needed)} of {total} needed the picture" in lesson.text.answer
    word, seen, blank = re.search("“(.+?)” falls from (.+?) to (.+?) then", lesson.text.answer).groups()
    row, at = next((row, at) for row, at in enumerate(needed) if trace.texts[trace.token_ids[at]].strip() == word)
    assert (seen, blank) == (f"{found.probs[at]:.2f}", f"{found.blank_probs[at]:.2f}")
    assert f"and to {min(found.occluded[row]):.2f} where only one part" in lesson.text.answer
    assert 10 * min(found.occluded[row]) < found.probs[at]


def drafting_in(trace: DecodeTrace, share: float) -> DecodeTrace:
    """The run, with a share of the time that its draft took."""
    cheaper = (replace(one, seconds=replace(one.seconds, draft=share * one.seconds.draft)) for one in trace.steps)
    return replace(trace, steps=tuple(cheaper))


def test_the_lesson_of_a_perfect_draft_tells_what_its_race_would_gain_from_cheaper_drafting() -> None:
    lesson = by_name("perfect")
    trace, alone = lesson.race.speculative, summarise([lesson.race.target_only])
    depth = trace.config.depth
    assert trace.setting.draft == trace.setting.target and trace.rule_name == "chain"
    assert {len(step.emitted) for step in trace.steps[:-1]} == {depth + 1}
    assert f"checks {depth} guesses, all of them are right, and it brings {depth + 1} tokens" in lesson.text.question
    assert f"so τ is {summarise([trace]).tau:.1f}" in lesson.text.answer
    whole, tenth, free = (speedup(alone, summarise([drafting_in(trace, share)])) for share in (1, 0.1, 0))
    assert whole < 1 < pass_ratio(alone, summarise([trace]))
    assert f"this answer would come {tenth:.1f} times as fast" in lesson.text.answer
    assert f"took none, {free:.1f} times" in lesson.text.answer


def test_lessons_that_cannot_be_read_are_refused_by_name(tmp_path: Path) -> None:
    assert load_lessons(tmp_path) == ()
    (race,) = synthetic_recorded(tmp_path)
    told = {"name": race.name, "title": "t", "question": "q?", "answer": "a", "step": 0}
    index = tmp_path / "lessons.json"
    index.write_text(json.dumps([told]))
    assert load_lessons(tmp_path)[0].words == {
        "title": "t", "question": "q?", "answer": "a", "place": "tree", "phase": None, "node": None, "number": 1,
        "count": 1, "step": 0,
    }  # fmt: skip
    for wrong, why in (
        ({"step": 999}, r"race-0 is about step 999 of a race of \d+ steps"),
        ({"node": 999}, r"race-0 is about node 999 of a tree of \d+ nodes"),
        ({"race": "gone"}, r"gone.json cannot be read: No such file"),
        ({"place": "moon"}, "lessons.json is not a list of lessons"),
    ):
        index.write_text(json.dumps([told | wrong]))
        with pytest.raises(ValueError, match=why):
            load_lessons(tmp_path)
    index.write_text(json.dumps([told, told | {"name": "again", "race": race.name}]))
    first, again = load_lessons(tmp_path)
    assert (first.race is again.race, again.number, again.count) == (True, 2, 2)


def test_a_link_to_a_lesson_is_followed_or_says_which_there_are() -> None:
    link = follow_link({"lesson": "3"}, (), SHIPPED)
    assert (link.lesson, link.show, link.notice) == (SHIPPED[2], SHIPPED[2].text.step, "")
    for number in ("0", "99", "", "-1", "²", "1e1", "<b>"):
        link = follow_link({"lesson": number}, (), SHIPPED)
        assert link.lesson is SHIPPED[0]
        assert f"lessons 1 to {len(SHIPPED)}" in link.notice


def test_an_unfinished_entry_is_refused(tmp_path: Path) -> None:
    (race,) = synthetic_recorded(tmp_path)
    index = tmp_path / "lessons.json"
    index.write_text(json.dumps([{"name": race.name}]))
    with pytest.raises(ValueError, match=r"lessons.json is not a list of lessons"):
        load_lessons(tmp_path)
