"""Frames of the player: one race as a growing list of JSON strings.

The list is the value of a single ``gr.HTML``. Strings are only ever appended, so that each update sends the new ones;
the browser parses them once and never asks the server while it plays. The elements, by their ``kind``:

* ``run`` (first): what ran, the ``drafter`` if it is no model, where it plays from, the scale of the entropies; the
  ``dialogue`` and number of the ``turn``, and the rows of the ``turns`` before it;
* ``prefill`` and ``step``: a lane's tokens and seconds. Steps of the lane that is drawn have more; it is the
  speculative one, where it runs. They have the headline so far. ``cached`` counts the columns of the target's KV cache
  before the step; ``picture`` is packed and holds figure, sentence and nodes;
* ``end`` (last): the final headline, the charts, the race file, packed, for saving, and the rows of all ``turns``;
  ``visual.player.race_frames`` adds the frames of the others, ``held``.
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Mapping, Sequence
from typing import Literal

from specllava.metrics import saved_tokens, summarise
from specllava.token_text import TextJoiner, shorten_bytes
from specllava.trace import SPECULATIVE, TARGET_ONLY, DecodeTrace, StepTrace
from visual.figures.charts import charts
from visual.figures.labels import strip_bidi
from visual.figures.step_layout import StepLayout
from visual.figures.charts import entropy_ceiling
from visual.figures.tree_figure import rows_with_pruned, tree_drawing
from visual.player.draws import draws_of, sampling_of
from visual.player.encoding import frame_json, packed
from visual.player.explanations import step_sentence
from visual.player.grounding import grounding_of
from visual.player.headline import Headline, RunningHeadline, headline, headline_of_one
from visual.player.node_cards import node_cards
from visual.player.summary import drafter_name, settings_summary
from visual.player.turns import DialoguePosition

SPEEDS = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02)
WATCHABLE = 0.09  # seconds that one target step should last on the screen

Ending = Literal["finished", "stopped", "deadline"]
ABSENT = {
    TARGET_ONLY: "This run has no target-only lane, so there is nothing to compare it with.",
    SPECULATIVE: "Speculation is off in this run: the target spoke alone.",
}


class FrameList:
    """The frames of one race. ``frames`` only ever grows.

    Args:
        source: words for where the run comes from, such as ``recorded run``.
        live: the race is running, so the player follows it.
        picture: what the models look at, as a data address, for the run saved as a page.
        example: name of the recorded example, for links.
        show: the step to open with, from 0; the most instructive one if it is not given.
        lesson: what the run is to teach (``visual.player.lessons.Lesson.words``).
        lanes: names of the lanes; the steps of the last are drawn.
        absent: words instead of a lane that does not run; :data:`ABSENT` if it is not given.
        position: of the race in a dialogue; without one it is a dialogue of its own.
    """

    def __init__(
        self, source: str, live: bool, picture: str | None = None, example: str | None = None, show: int | None = None,
        lesson: Mapping[str, object] | None = None, lanes: Sequence[str] = (TARGET_ONLY, SPECULATIVE),
        absent: str | None = None,
        position: DialoguePosition | None = None,
    ) -> None:  # fmt: skip
        self._opening = {"source": source, "live": live, "picture": picture, "example": example, "lesson": lesson}
        self._show, self._position = show, position or DialoguePosition(uuid.uuid4().hex)
        self._lanes, self._lead_lane = tuple(lanes), lanes[-1]
        self._absent = {lane: absent or ABSENT[lane] for lane in ABSENT if lane not in lanes}
        self._steps = dict.fromkeys(lanes, 0)
        self._clock = dict.fromkeys(lanes, 0.0)
        self._joiners = {lane: TextJoiner() for lane in lanes}
        self._totals = RunningHeadline()
        self._cached = 0  # columns of the target's KV cache before the next step of the lane that is drawn
        self.frames: list[str] = []

    def update(self, traces: Mapping[str, DecodeTrace], ending: Ending | None = None) -> list[str]:
        """Append what is new in the traces and return the whole list so far. ``ending`` closes it."""
        if any(lane not in traces for lane in self._lanes):
            return []
        if not self.frames:
            if not traces[self._lanes[0]].steps and ending is None:
                return []  # the first target step decides how slowly the run is worth watching
            self._open(traces)
        for lane in self._lanes:
            self._append_steps(lane, traces)
        if ending is not None:
            self._close(traces, ending)
        return list(self.frames)

    def _add(self, kind: str, **data: object) -> None:
        self.frames.append(frame_json({"kind": kind, **data}))

    def _open(self, traces: Mapping[str, DecodeTrace]) -> None:
        lead = traces[self._lead_lane]
        config, setting = lead.config, lead.setting
        self._add(
            "run", id=uuid.uuid4().hex, **self._opening, **self._position.opening(), prompt=strip_bidi(lead.prompt),
            led=self._lead_lane, drafter=drafter_name(lead.drafter or config.drafter),
            absent=self._absent, setting=strip_bidi(f"{setting.pair} · {setting.device} · {setting.dtype}"),
            settings=strip_bidi(
                settings_summary(config, lead.rule, lead.drafter, _draft_kind(lead), setting.generation_config)
            ),
            speed=playing_speed(traces[self._lanes[0]]),
            threshold=config.entropy_threshold if _branches_by_entropy(lead) else None, ceiling=entropy_ceiling(config),
            sampled=sampling_of(lead),
        )  # fmt: skip
        for lane in self._lanes:
            trace = traces[lane]
            token = self._words(lane, trace, (trace.prefill.first_token,), 0 if lane == SPECULATIVE else None)
            self._clock[lane] = trace.prefill.total
            self._add(
                "prefill", lane=lane, seconds=trace.prefill.total, tokens=token, ids=[trace.prefill.first_token],
                prompt_tokens=trace.prefill.prompt_tokens, reused_tokens=trace.prefill.reused_tokens,
                image_tokens=trace.prefill.image_tokens,
            )  # fmt: skip
        self._cached = lead.prefill.prompt_tokens

    def _append_steps(self, lane: str, traces: Mapping[str, DecodeTrace]) -> None:
        trace = traces[lane]
        for step in trace.steps[self._steps[lane] :]:
            self._steps[lane] += 1
            self._clock[lane] += step.seconds.total
            times = [step.seconds.draft, step.seconds.verify, step.seconds.keep]
            accepted = len(step.verification.accepted) if lane == SPECULATIVE else None
            words = self._words(lane, trace, step.emitted, accepted)
            if lane == self._lead_lane:
                totals = self._headline_at(traces, self._clock[lane])
                self._add(
                    "step", lane=lane, seconds=times, tokens=words, ids=step.emitted, totals=totals,
                    cached=self._cached, picture=packed(frame_json(picture(trace, step))),
                )  # fmt: skip
                self._cached += len(step.verification.path)
            else:
                self._add("step", lane=lane, seconds=times, tokens=words)

    def _words(self, lane: str, trace: DecodeTrace, tokens: Sequence[int], accepted: int | None) -> list[list[str]]:
        """Return ``[text, source]`` of each token; a character comes with its last piece.

        Args:
            accepted: how many come from the draft; ``None``: no draft at all.
        """
        words = []
        for position, token in enumerate(tokens):
            source = "plain" if accepted is None else "accepted" if position < accepted else "target"
            end = token in trace.eos_token_ids
            text = "" if end else shorten_bytes(self._joiners[lane].add(trace.texts[token]))
            words.append([strip_bidi(text), f"{source} end" if end else source])
        return words

    def _headline_at(self, traces: Mapping[str, DecodeTrace], clock: float) -> Headline:
        if self._absent:
            return self._totals.at_one(traces[self._lead_lane], self._lead_lane, clock)
        return self._totals.at_race(traces[TARGET_ONLY], traces[SPECULATIVE], clock)

    def _close(self, traces: Mapping[str, DecodeTrace], ending: Ending) -> None:
        alone, together, lead = traces.get(TARGET_ONLY), traces.get(SPECULATIVE), traces[self._lead_lane]
        if alone and together:
            totals = headline(alone, together, ending == "finished")
        else:
            totals = headline_of_one(lead, self._lead_lane)
        self._add(
            "end", ending=ending, totals=totals, show=instructive_step(lead) if self._show is None else self._show,
            image=lead.image, charts=[chart.as_json() for chart in charts(alone, together)],
            grounding=grounding_of(lead), **self._position.closing(alone, together),
        )  # fmt: skip


def recorded_frames(
    alone: DecodeTrace | None, together: DecodeTrace | None, source: str = "recorded run", picture: str | None = None,
    example: str | None = None, show: int | None = None, lesson: Mapping[str, object] | None = None,
    position: DialoguePosition | None = None,
) -> list[str]:  # fmt: skip
    """Make all frames of a race that was run before, finished or not; arguments as of ``FrameList``.

    Either lane may be missing, but not both.
    """
    traces = {lane: trace for lane, trace in ((TARGET_ONLY, alone), (SPECULATIVE, together)) if trace is not None}
    stopped = any(trace.finish_reason == "stopped" for trace in traces.values())
    frame_list = FrameList(source, False, picture, example, show, lesson, lanes=tuple(traces), position=position)
    return frame_list.update(traces, "stopped" if stopped else "finished")


def with_new_id(frames: Sequence[str]) -> list[str]:
    """Return the frames with a new id, at which the player begins anew."""
    run, *others = frames
    return [frame_json(json.loads(run) | {"id": uuid.uuid4().hex}), *others]


def _branches_by_entropy(trace: DecodeTrace) -> bool:
    return trace.config.drafter == "model" and trace.drafter is None and trace.rule_name == "entropy"


def _draft_kind(trace: DecodeTrace) -> str | None:
    """Return the draft's name in a summary, if it is of another kind than a model of its own."""
    return None if trace.setting.draft_reads is None else "draft that reads the target's states"


def picture(trace: DecodeTrace, step: StepTrace) -> dict[str, object]:
    """Draw one step: figure, sentence, nodes, the node to select first."""
    layout = StepLayout(trace, step)
    return {
        "figure": tree_drawing(layout),
        "pruned": rows_with_pruned(layout) if {*layout.pruned} - layout.hidden else None,
        "say": step_sentence(trace, step),
        "nodes": node_cards(layout),
        "draws": draws_of(trace, step),
        "focus": _focus(layout),
    }


def _focus(layout: StepLayout) -> int:
    """Return the node that decided a step: the end of the answer, the best rejected guess, or the bonus token."""
    step = layout.step
    if step.bonus_unused:
        return step.verification.path[len(step.emitted)]
    rivals = step.tree.children()[step.verification.path[-1]]
    return max(rivals, key=lambda node: step.tree.log_probs[node]) if rivals else layout.next_node


def instructive_step(trace: DecodeTrace) -> int:
    """Return the step to open a recorded run with: one that another branch saved, long, of a tree that forks once."""

    def interest(index: int) -> tuple[bool, bool, float]:
        step = trace.steps[index]
        forks = [node for node, children in enumerate(step.tree.children()) if len(children) > 1]
        middle = 1 - abs(2 * index / len(trace.steps) - 1)
        plain = len(forks) == 1 and forks[0] > 0  # the draft is sure first, then it wavers
        return saved_tokens(step) > 0, plain, min(len(step.verification.accepted), 8) + middle

    return max(range(len(trace.steps)), key=interest, default=0)


def playing_speed(alone: DecodeTrace) -> float:
    """Return the fastest of ``SPEEDS`` at which a target step lasts ``WATCHABLE`` seconds."""
    pace = summarise([alone]).seconds_per_token
    if math.isnan(pace):
        return 1.0
    return next((speed for speed in SPEEDS if pace / speed >= WATCHABLE), SPEEDS[-1])
