"""What the stage says of a run, recomputed from the trace: every number and every clause, over random runs and shipped
ones. The oracle counts on its own: it walks trees, lists and texts, and calls nothing that the sentences call.
"""

from __future__ import annotations

import csv
import io
import math
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise
from statistics import fmean
from typing import Any

import pytest
from support.shipped_races import ASSETS, end_of, frames_of, shipped_races
from support.visual_traces import hand_made, synthetic_race

from specllava.config import RULES, DecodingConfig
from specllava.trace import DecodeTrace, StepTrace
from specllava.tree import DraftTree
from visual.figures import EDGES, Doubts, doubt_chart, doubt_words, reach_chart
from visual.page import pays
from visual.player.lessons import LESSONS, OLDER, Example, Lesson, LessonRecord, load_lessons
from visual.player.recorded import Recorded
from visual.player.tree import COLUMNS

NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
RUNS = range(60)


@cache
def race(seed: int) -> dict[str, DecodeTrace]:
    """By some rule, every third one with a temperature."""
    rng = random.Random(seed)
    warm = {"temperature": 0.8, "seed": seed} if seed % 3 == 2 else {}
    sizes = {"depth": rng.randint(2, 8), "nodes": rng.randint(4, 24), "max_branches": 3}
    return synthetic_race(seed, DecodingConfig(rule=RULES[seed % len(RULES)], **sizes, **warm))


def recorded(lanes: dict[str, DecodeTrace]) -> Recorded:
    return Recorded("race", None, lanes.get("target-only"), lanes.get("speculative"))


@cache
def shown(seed: int) -> list[dict[str, Any]]:
    return frames_of(recorded(race(seed)))


def drawn(frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [frame for frame in frames if "tree" in frame]


def text(segments: list[list[str]]) -> str:
    return "".join(part for _, part in segments)


def spelled(number: int) -> str:
    return NUMBERS[number] if number < len(NUMBERS) else str(number)


def counts(number: int, noun: str) -> str:
    return f"{spelled(number)} {noun}{'' if number == 1 else 'es' if noun.endswith(('s', 'ch')) else 's'}"


def children(step: StepTrace, node: int) -> list[int]:
    found = [child for child, parent in enumerate(step.tree.parents) if parent == node]
    return sorted(found, key=lambda child: -step.tree.log_probs[child])


def chance(step: StepTrace, node: int) -> float:
    return math.exp(step.tree.log_probs[node])


def torn(step: StepTrace, node: int) -> bool:
    family = children(step, node)
    return len(family) > 1 and chance(step, family[0]) <= 0.75 and chance(step, family[1]) >= 0.05


def depth(step: StepTrace, node: int) -> int:
    return 0 if node == 0 else 1 + depth(step, step.tree.parents[node])


def word(trace: DecodeTrace, token: int) -> str:
    return "end" if token in trace.eos_token_ids else trace.texts[token].strip()


def through_second(step: StepTrace) -> int:
    """Tokens that would not have come with the first choices alone."""
    taken = step.verification.accepted[: len(step.emitted)]
    for at, node in enumerate(taken):
        if children(step, step.tree.parents[node])[0] != node:
            return max(0, len(step.emitted) - at - 1)
    return 0


@pytest.mark.parametrize("seed", RUNS)
def test_trees_are_those_of_the_trace(seed: int) -> None:
    trace = race(seed)["speculative"]
    for frame, step in zip(drawn(shown(seed)), trace.steps, strict=True):
        tree, size = frame["tree"], len(step.tree)
        used = len(step.emitted) > len(step.verification.accepted)
        assert tree["parent"] == [*step.tree.parents, *([step.verification.path[-1]] if used else [])]
        taken = step.verification.accepted[: len(step.emitted)]
        judged = {0, *taken[: len(step.emitted) - 1 if not used else None]} if taken else {0}
        for node in range(1, size):
            parent = step.tree.parents[node]
            kind = "a" if node in taken else "r" if parent in judged and parent in (0, *taken) else "u"
            assert tree["kind"][node] == kind, node
            assert tree["small"][node] == f"{chance(step, node):.2f}"
            assert tree["large"][node] == f"{step.view.token_probs[node]:.2f}"
            assert tree["first"][node] == int(children(step, parent)[0] == node)
            ended = any(step.tree.tokens[above] in trace.eos_token_ids for above in step.tree.path(parent))
            wish = None if ended else word(trace, step.view.choices[parent])
            assert (tree["wish"][node] or "").strip("“”") == (wish or "")
            assert tree["same"][node] == int(not ended and step.view.choices[parent] == step.tree.tokens[node])
        assert tree["path"] == list(taken)
        for node, nats in enumerate(step.tree.entropies):
            if nats is not None and step.tree.tokens[node] not in trace.eos_token_ids:
                assert tree["doubt"][node] == pytest.approx(0.94 * min(1, nats / 1.6), abs=0.006)


@pytest.mark.parametrize("seed", RUNS)
def test_rows_hold_one_node_each_and_the_trunk_runs_straight(seed: int) -> None:
    for frame, step in zip(drawn(shown(seed)), race(seed)["speculative"].steps, strict=True):
        tree = frame["tree"]
        for rows in (tree["open"], tree["done"]):
            depths = [depth(step, node) if node < len(step.tree) else -1 for node in range(len(rows))]
            places = [(at, row) for at, row in zip(depths, rows, strict=True) if at >= 0]
            assert len(set(places)) == len(places)
        for node in range(1, len(step.tree)):
            first = children(step, step.tree.parents[node])[0] == node
            assert (tree["open"][node] == tree["open"][step.tree.parents[node]]) == first
        assert all(tree["done"][node] == 0 for node in step.verification.accepted[: len(step.emitted)])


def expected_guess(trace: DecodeTrace, step: StepTrace) -> Iterator[str]:
    """Every clause of the first phase."""
    if step.tree.drafted == 0:
        yield "Nothing was guessed here: the large model goes on alone."
        return
    unsure = [node for node in range(len(step.tree)) if torn(step, node)]
    if not unsure:
        leaves = [node for node in range(len(step.tree)) if not children(step, node)]
        if len(leaves) > 1:
            yield f"guesses {counts(step.tree.drafted, 'word')} ahead, on {counts(len(leaves), 'branch')}."
        else:
            yield f"it guesses {counts(step.tree.drafted, 'word')} ahead, one after the other."
        return
    family = children(step, min(unsure, key=lambda node: depth(step, node)))
    for guess in family[:3]:
        yield f" ({chance(step, guess):.2f})"
    yield f"So it follows {'both' if len(family) == 2 else 'all ' + spelled(len(family))}"


def expected_accept(trace: DecodeTrace, step: StepTrace) -> Iterator[str]:
    """Every clause of the verdict."""
    taken = step.verification.accepted[: len(step.emitted)]
    if step.tree.drafted == 0:
        yield "The large model writes "
        return
    for node in taken:
        family = children(step, step.tree.parents[node])
        if len(family) > 1 and family[0] != node:
            break
    else:
        unsure = (node for node in taken if torn(step, step.tree.parents[node]))
        node = next(unsure, -1)
        family = [] if node < 0 else children(step, step.tree.parents[node])
    right = "was accepted" if trace.config.temperature else "was right"
    if family and node >= 0 and len(family) > 1 and (family[0] != node or torn(step, step.tree.parents[node])):
        if torn(step, step.tree.parents[node]):
            yield "Torn between "
            named = family[: 3 if len(family) == 3 else 2]
            yield f"tried {'both' if len(family) == 2 else 'all ' + spelled(len(family))}."
        else:
            yield "The first choice was "
            named = [family[0], node]
        for one in named:
            yield f" ({chance(step, one):.2f})"
        yield f"{right}. {counts(len(taken), 'guess').capitalize()} stay{'s' if len(taken) == 1 else ''}."
    elif len(taken) == step.tree.drafted > 1:
        yield f"All {counts(len(taken), 'guess')} agree with the large model and stay."
    else:
        yield f"{counts(len(taken), 'guess').capitalize()} stay{'s' if len(taken) == 1 else ''}."
    yield from expected_ending(trace, step)


def expected_ending(trace: DecodeTrace, step: StepTrace) -> Iterator[str]:
    """Why the branch ended."""
    if len(step.emitted) <= len(step.verification.accepted):
        ended = step.emitted[-1] in trace.eos_token_ids
        yield "the answer was complete" if ended else f"had the {trace.config.max_new_tokens} tokens"
        return
    last, bonus = step.verification.path[-1], step.verification.bonus_token
    family = children(step, last)
    sure = f" ({step.view.choice_probs[last]:.2f})" if bonus == step.view.choices[last] else ""
    if bonus in trace.eos_token_ids and not family:
        yield "the large model ended the answer."
    elif not family:
        yield f"{sure}, which comes free."
    else:
        assert bonus not in (step.tree.tokens[node] for node in family)
        yield f" ({chance(step, family[0]):.2f}); the large model {'drew' if trace.config.temperature else 'wanted'} "
        yield f"{sure}."


@pytest.mark.parametrize("seed", RUNS)
def test_every_clause_of_a_step_is_recomputed(seed: int) -> None:
    trace, alone = race(seed)["speculative"], race(seed)["target-only"]
    one = math.fsum(step.seconds.verify for step in alone.steps) / len(alone.steps)
    for frame, step in zip(drawn(shown(seed)), trace.steps, strict=True):
        guess, check, accept, keep = (text(phase["say"]) + " " + text(phase["more"]) for phase in frame["phases"])
        for clause in expected_guess(trace, step):
            assert clause in guess, (clause, guess)
        if step.tree.drafted:
            count = step.tree.drafted
            assert ("reads this guess" if count == 1 else f"reads all {count} guesses at once") in check
            assert f"This pass over {count + 1} tokens took {milliseconds(step.seconds.verify)}" in check
            assert f"over one token {milliseconds(one)}." in check
        for clause in expected_accept(trace, step):
            assert clause in accept, (clause, accept)
        assert f"{counts(len(step.emitted), 'token').capitalize()} from this one pass." in keep
        second = through_second(step)
        assert (f"{counts(second, 'token').capitalize()} came through a second branch." in keep) == (second > 0)
        kept = 1 + len(step.verification.accepted)
        assert f"The cache keeps what the large model computed for {kept} of {len(step.tree)} tokens" in keep
        numbers = re.findall(r"\((\d\.\d\d)\)", guess + accept)
        known = {f"{chance(step, node):.2f}" for node in range(1, len(step.tree))}
        known |= {f"{p:.2f}" for p in step.view.choice_probs}
        assert set(numbers) <= known
        family = children(step, step.verification.path[-1])
        if family and len(step.emitted) > len(step.verification.accepted):
            # Which guess ended the step, and what the large model wrote there.
            parts = [part for part in (frame["phases"][2]["more"], frame["phases"][2]["say"]) if part]
            segments = next(part for part in parts if any(style == "refused" for style, _ in part))
            refused, own = (next(said for style, said in segments if style == which) for which in ("refused", "large"))
            assert word(trace, step.tree.tokens[family[0]]) in refused
            assert word(trace, step.verification.bonus_token) in own


def milliseconds(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{1000 * seconds:.1f} ms" if seconds < 0.01 else f"{1000 * seconds:.0f} ms"


@pytest.mark.parametrize("seed", RUNS)
def test_the_headline_counts_passes_and_tokens(seed: int) -> None:
    lanes = race(seed)
    alone, together = lanes["target-only"], lanes["speculative"]
    words = end_of(shown(seed))["headline"]
    same = "Same seed, same draws: the same" if together.config.temperature else "The same"
    passes = f"{len(together.steps)} pass{'' if len(together.steps) == 1 else 'es'}"
    assert text(words["say"]) == f"{passes} instead of {len(alone.steps)}. {same} {len(together.token_ids)} tokens."
    before, after = (math.fsum(step.seconds.total for step in lane.steps) for lane in (alone, together))
    steps = [sum(len(step.emitted) for step in lane.steps) for lane in (alone, together)]
    ratio = (before / steps[0]) / (after / steps[1])
    more = text(words["more"])
    if f"{ratio:.1f}" == "1.0":
        assert more.startswith("As fast as alone")
    elif ratio > 1:
        assert more.startswith(f"{ratio:.1f} times as fast")
        assert f"{milliseconds(after)} instead of {milliseconds(before)}. Guessing takes time" in more
    if ratio < 0.95 or ratio >= 1.05:
        mean, one = (fmean(step.seconds.verify for step in lane.steps) for lane in (together, alone))
        width = round(sum(len(step.tree) - 1 for step in together.steps) / len(together.steps)) + 1
        assert f"a pass over {width} token{'s' * (width > 1)} costs {mean / one:.1f} times one over a single" in more
    if ratio < 0.95:
        assert f"{ratio:.1f} times as fast" in more and words["link"] == "pay"


def test_answers_that_part_say_where() -> None:
    lanes = synthetic_race(4, parted_at=7)
    end = end_of(frames_of(recorded(lanes)))
    assert end["parted"] == 7 and "The answers part at token 8." in text(end["headline"]["say"])
    for name, trace in synthetic_race(4).items():
        lanes[name] = replace(trace, steps=trace.steps[:3], finish_reason="stopped")
    end = end_of(frames_of(recorded(lanes)))
    assert end["ending"] == "stopped" and text(end["headline"]["say"]).startswith("Stopped after 3 passes:")
    assert end["beats"] is None and end["parted"] is None


def test_words_and_clocks_of_both_lanes_are_those_of_the_traces() -> None:
    lanes = synthetic_race(5)
    frames = frames_of(recorded(lanes))
    for name, trace in lanes.items():
        own = [frame for frame in frames if frame.get("lane") == name]
        assert "".join(part for frame in own for part, _ in frame["words"]).strip() == trace.text
        times = [[step.seconds.draft, step.seconds.verify, step.seconds.keep] for step in trace.steps]
        assert [frame["seconds"] for frame in own[1:]] == times
    sources = [source for frame in drawn(frames) for _, source in frame["words"]]
    steps = lanes["speculative"].steps
    taken = [at < len(step.verification.accepted) for step in steps for at in range(len(step.emitted))]
    assert [source.startswith("small") for source in sources] == taken


def test_the_tour_is_about_one_step_of_the_opening_example() -> None:
    first = next(one for one in shipped_races() if one.name == "1-describe")
    beats = end_of(frames_of(first, toured=True))["beats"]
    assert len(beats) == 6 and len({beat["step"] for beat in beats}) == 1
    step = first.lead.steps[beats[0]["step"]]
    said = [text(beat["say"]) + " " + text(beat["more"]) for beat in beats]
    assert f"This answer takes {len(first.target_only.steps)} passes." in said[0]
    fork = beats[2]["view"]["halo"]
    assert torn(step, fork) and beats[2]["view"]["probs"] == children(step, fork)
    assert all(f"({chance(step, node):.2f})" in said[2] for node in children(step, fork)[:3])
    assert f"reads all {step.tree.drafted} guesses at once" in said[3]
    grounding = first.lead.grounding
    start = 1 + sum(len(one.emitted) for one in first.lead.steps[: beats[0]["step"]])
    needing = [
        node for at, node in enumerate(step.verification.accepted, start)
        if 0 < grounding.probs[at] >= 10 * grounding.blank_probs[at]
    ]  # fmt: skip
    assert beats[4]["view"]["lit"] == needing and all(word(first.lead, step.tree.tokens[n]) in said[4] for n in needing)
    assert f"{len(first.speculative.steps)} passes instead of {len(first.target_only.steps)}." in said[5]
    ratio = first.target_only.decode_seconds / first.speculative.decode_seconds
    assert f"brings {counts(len(step.emitted), 'token')}. By the clock {ratio:.1f} times as fast" in said[5]
    favourite, *rest = children(step, fork)
    (taken,) = [node for node in rest if node in step.verification.accepted]
    refused, won = (word(first.lead, step.tree.tokens[node]) for node in (favourite, taken))
    assert f"First choices would have ended at {refused}; the branch of {won} brings" in said[5]


def test_the_lessons_say_what_their_races_show() -> None:
    lessons = load_lessons(ASSETS / "lessons")
    assert [lesson.title for lesson in lessons] == list(LESSONS) and len(lessons) == 10
    named = {number: lessons[now - 1].title for number, now in OLDER.items()}
    assert named[11] == named[12] == "what the picture decides"
    assert named[13] == named[14] == "before and after distillation" and named[16] == "does it pay?"
    texts = {
        lesson.title: [(text(stop["question"]["say"]), text(stop["answer"]["say"])) for stop in lesson.data()["stops"]]
        for lesson in lessons
    }
    for lesson in lessons:
        for (question, answer), example in zip(texts[lesson.title], lesson.examples, strict=True):
            assert len(question) <= 190 and len(answer) <= 190
            trace, step = example.trace, example.step
            known = {f"{chance(step, node):.2f}" for node in range(1, len(step.tree))}
            known |= {f"{p:.2f}" for p in step.view.choice_probs} | {f"{e:.2f}" for e in step.tree.entropies if e}
            drawn_numbers = [(draw.uniform, draw.acceptance or 0, draw.target_prob) for draw in step.draws]
            known |= {f"{value:.2f}" for numbers in drawn_numbers for value in numbers}
            known |= {f"{p:.2f}" for p in (trace.grounding.probs if trace.grounding else ())}
            known |= {f"{p:.2f}" for p in (trace.grounding.blank_probs if trace.grounding else ())}
            assert set(re.findall(r"\d\.\d\d", question + answer)) <= known
    titled = {lesson.title: lesson for lesson in lessons}
    ((pays_question, pays_answer),) = texts["does it pay?"]
    trace = titled["does it pay?"].examples[0].trace
    drafting = math.fsum(step.seconds.draft for step in trace.steps) / trace.decode_seconds
    assert f"{100 * drafting:.0f} % of the time" in pays_answer
    alone = titled["does it pay?"].examples[0].race.target_only
    rates = [(len(one.token_ids) - 1) / math.fsum(step.seconds.total for step in one.steps) for one in (trace, alone)]
    assert f"times as fast but {rates[0] / rates[1]:.1f} times." in pays_question
    (_, (_, after)) = texts["before and after distillation"]
    taus = [
        sum(len(step.emitted) for step in one.trace.steps) / len(one.trace.steps)
        for one in titled["before and after distillation"].examples
    ]
    assert f"{taus[1]:.1f} tokens a pass instead of {taus[0]:.1f}" in after


def test_a_lesson_whose_race_does_not_show_it_is_refused_by_name() -> None:
    race = Recorded("a", None, None, synthetic_race(1)["speculative"])
    lesson = Lesson("any", (Example(LessonRecord("picture", "a", 0, None), race),))
    with pytest.raises(ValueError, match="the lesson picture needs a run whose words were marked"):
        lesson.data()


def test_every_node_is_a_row_with_full_precision_and_its_blanks() -> None:
    lanes = synthetic_race(6)
    trace = lanes["speculative"]
    rows = list(csv.DictReader(io.StringIO(end_of(frames_of(recorded(lanes)))["csv"])))
    assert tuple(rows[0]) == COLUMNS
    at = 0
    for number, step in enumerate(trace.steps, start=1):
        for node in range(len(step.tree)):
            row = rows[at]
            at += 1
            assert (int(row["step"]), int(row["node"])) == (number, node)
            assert row["text"] == trace.texts[step.tree.tokens[node]]
            if node:
                assert float(row["draft_probability"]) == math.exp(step.tree.log_probs[node])
                assert float(row["target_probability"]) == step.view.token_probs[node]
        if len(step.emitted) > len(step.verification.accepted):
            own = rows[at]
            at += 1
            assert own["verdict"] == "the large model's own"
            assert float(own["target_probability"]) == step.view.choice_probs[step.verification.path[-1]]
        at += len(step.pruned)
    assert at == len(rows)


def test_marks_are_quoted_and_pieces_have_an_ellipsis() -> None:
    tree = DraftTree((8, 6, 2), (-1, 0, 1), (0.0, -0.1, -0.1), (0.1, 0.2, None))
    made = hand_made(tree, (1, 2), 5)
    trace = replace(made, texts=made.texts | {6: ",", 2: "ris"})
    (frame,) = drawn(frames_of(recorded({"speculative": trace})))
    assert frame["tree"]["text"][1] == "," and frame["tree"]["mark"][1] == 1
    assert frame["lines"][1].startswith("“,”: ")


def test_charts_count_what_the_trace_has() -> None:
    trace = race(3)["speculative"]
    guessed, accepted = (list(bar.y) for bar in reach_chart(trace).data)
    deepest = [max(depth(step, node) for node in range(len(step.tree))) for step in trace.steps]
    lengths = [len(step.verification.accepted[: len(step.emitted)]) for step in trace.steps]
    assert guessed == [sum(one >= reach for one in deepest) for reach in range(1, max(deepest) + 1)]
    assert accepted == [sum(one >= reach for one in lengths) for reach in range(1, max(deepest) + 1)]
    points = []
    for step in trace.steps:
        taken = step.verification.accepted[: len(step.emitted)]
        for at, node in enumerate((0, *taken)[: len(step.emitted)]):
            family = children(step, node)
            if family and step.tree.entropies[node] is not None:
                right = taken[at] if at < len(taken) else None
                points.append((step.tree.entropies[node], None if right is None else family.index(right) == 0))
    words = doubt_words(Doubts.of([trace]))
    for number, line in enumerate(doubt_chart(Doubts.of([trace])).data):
        binned = [[right for nats, right in points if low <= nats < high] for low, high in pairwise(EDGES)]
        hit = (lambda right: right is True) if number else (lambda right: right is not None)
        known = [(sum(map(hit, one)), len(one)) for one in binned]
        assert list(line.text) == [f"{right} of {of}" for right, of in known if of]
        assert list(line.y) == pytest.approx([right / of for right, of in known if of])
    sure, unsure = [p for p in points if p[0] <= 0.3], [p for p in points if p[0] > 0.3]
    assert f"first choice right {sum(p[1] is True for p in sure)} of {len(sure)} times" in words
    assert f"{sum(p[1] is True for p in unsure)} of {len(unsure)}; {sum(p[1] is False for p in unsure)} more" in words


@pytest.mark.parametrize(("tau", "word_"), [(3.2, "Yes"), (1.7, "Perhaps"), (1.0, "No")])
def test_whether_it_pays_is_tau_over_the_price_of_a_step(tau: float, word_: str) -> None:
    """1.1 for the pass and 0.6 for drafting: 1.7 passes a step; what nobody measured may be 20 % off."""
    known = pays.numbers("Qwen2.5-VL-7B", "A100 (80 GB)")
    assert known[1:3] == (1.1, 0.6)
    line = pays.verdict((7.0, 1.1, 0.6, tau), known)
    assert line.startswith(f"{word_}: about {tau / 1.7:.1f} times as fast")
    assert line.endswith("above 1.7 tokens a pass.")
    assert f"{1000 * tau / 1.7 / 7:.0f} instead of {1000 / 7:.0f} tokens a second" in line
    off = 1 if tau != known[3] else 0.8
    assert f"({tau * off / (1.7 * 1.2):.1f} to {tau * (2 - off) / (1.7 * 0.8):.1f})" in line
    assert " to " not in pays.verdict((7.0, 1.2, 0.5, tau + 0.01), known)
    assert known[0] == pytest.approx(1000 * 2 * 7.1e9 / 2.04e12, abs=0.05)
    assert ": yours" not in pays.assumptions("Qwen2.5-VL-7B", "A100 (80 GB)", known)
    own = pays.assumptions("Qwen2.5-VL-7B", "A100 (80 GB)", (known[0], 1.5, known[2], tau + 0.01))
    assert "over one: yours. Drafting before it, in passes over one: assumed" in own and "τ: yours." in own


def test_a_run_without_a_second_lane_says_so() -> None:
    lanes = synthetic_race(2)
    alone = end_of(frames_of(recorded({"target-only": lanes["target-only"]})))
    count = len(lanes["target-only"].steps)
    assert text(alone["headline"]["say"]).startswith(f"{count} passes for {count + 1} tokens")
    assert "Speculation is off" in text(alone["headline"]["more"])
