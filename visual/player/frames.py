"""Frames of the player: one race as a growing list of JSON strings.

The list is the value of a single ``gr.HTML``. Strings are only ever appended, so that each update sends the new ones;
the browser parses them once and never asks the server while it plays. The elements, by their ``kind``:

* ``run`` (first): what is asked and what runs; without any other frame it is a picture that waits for its question;
* ``prefill`` and ``step``: a lane's words and seconds. Steps of the lane that is drawn, the speculative one where it
  runs, also have the ``tree`` (``visual.player.tree``), the four ``phases`` in words, and a line about each node;
* ``end``: the headline, the beats of the tour where there is one, the files for saving;
* ``grounding``: which words needed the picture; after ``end``, if it was measured.
"""

from __future__ import annotations

import base64
import io
import json
import uuid
from collections.abc import Mapping, Sequence
from itertools import product
from statistics import fmean, median
from typing import Any, Literal

from PIL import Image

from specllava.metrics import compare
from specllava.race_file import dialogue_json, race_json
from specllava.token_text import TextJoiner, shorten_bytes
from specllava.trace import SPECULATIVE, TARGET_ONLY, DecodeTrace, Draw, Grounding, StepTrace
from visual.player.labels import counted, strip_bidi, token_label
from visual.player.recorded import Recorded
from visual.player.sentences import announcement, headline, milliseconds, node_words, phase_words
from visual.player.tour import Tour, tour_step
from visual.player.tree import StepTree, nodes_csv

Ending = Literal["finished", "stopped", "deadline"]
Turn = tuple[str, str]  # question and answer
LONGEST_SIDE = 768  # pixels of a picture in a page
ABSENT = {
    TARGET_ONLY: "This run has no target-only lane, so there is nothing to compare it with.",
    SPECULATIVE: "Speculation is off in this run: the large model spoke alone.",
}
LOCAL = 0.5  # of what the strongest tile loses: most tiles lose less where a part of the picture decides
FEWEST_TOUR_STEPS = 3  # of a run that is told in beats


class FrameList:
    """The frames of one race. ``frames`` only ever grows.

    Args:
        live: the race is running, so the player follows it.
        picture: what the models look at, as a data address.
        name: of the recorded race, for links.
        lanes: names of the lanes; the steps of the last are drawn.
        absent: a sentence instead of a lane that does not run; :data:`ABSENT` if it is not given.
        before: earlier turns of the dialogue.
        turn: number of the turn in a recorded dialogue.
        toured: the run begins with its beats.
    """

    def __init__(
        self, live: bool, picture: str | None = None, name: str | None = None,
        lanes: Sequence[str] = (TARGET_ONLY, SPECULATIVE), absent: str | None = None, before: Sequence[Turn] = (),
        turn: int | None = None, toured: bool = False,
    ) -> None:  # fmt: skip
        self._opening = {"live": live, "picture": picture, "race": name, "turn": turn}
        self._lanes, self._lead, self._before, self._toured = tuple(lanes), lanes[-1], tuple(before), toured
        self._absent = next((absent or ABSENT[lane] for lane in ABSENT if lane not in lanes), "")
        self._steps = dict.fromkeys(lanes, 0)
        self._joiners = {lane: TextJoiner() for lane in lanes}
        self._cached = 0  # columns of the target's KV cache before the next step of the lane that is drawn
        self.frames: list[str] = []

    def update(self, traces: Mapping[str, DecodeTrace], ending: Ending | None = None) -> list[str]:
        """Append what is new in the traces and return the whole list so far. ``ending`` closes it."""
        if any(lane not in traces for lane in self._lanes):
            return []
        if not self.frames:
            self._open(traces)
        for lane in self._lanes:
            self._append_steps(lane, traces)
        if ending is not None:
            self._close(traces, ending)
        return list(self.frames)

    def _add(self, kind: str, **data: object) -> None:
        self.frames.append(frame_json({"kind": kind, **data}))

    def _open(self, traces: Mapping[str, DecodeTrace]) -> None:
        lead = traces[self._lead]
        self._add(
            "run", id=uuid.uuid4().hex, **self._opening, question=strip_bidi(lead.prompt), lanes=self._lanes,
            before=[[strip_bidi(question), strip_bidi(answer)] for question, answer in self._before],
        )  # fmt: skip
        for lane in self._lanes:
            prefill = traces[lane].prefill
            words = self._words(lane, traces[lane], (prefill.first_token,), 0 if lane == SPECULATIVE else None)
            self._add("prefill", lane=lane, words=words)
        self._cached = lead.prefill.prompt_tokens

    def _append_steps(self, lane: str, traces: Mapping[str, DecodeTrace]) -> None:
        trace = traces[lane]
        for number in range(self._steps[lane], len(trace.steps)):
            step = trace.steps[number]
            times = [step.seconds.draft, step.seconds.verify, step.seconds.keep]
            accepted = len(step.verification.accepted) if lane == SPECULATIVE else None
            words = self._words(lane, trace, step.emitted, accepted)
            drawn = self._drawn(traces, step) if lane == self._lead else {}
            self._add("step", lane=lane, seconds=times, words=words, **drawn)
        self._steps[lane] = len(trace.steps)

    def _drawn(self, traces: Mapping[str, DecodeTrace], step: StepTrace) -> dict[str, object]:
        trace = traces[self._lead]
        tree, cached = StepTree(trace, step), self._cached
        self._cached += len(step.verification.path)
        alone = traces.get(TARGET_ONLY) if self._lead != TARGET_ONLY else None
        return {
            "tree": tree.data(), "phases": phase_words(trace, step, alone),
            "lines": node_words(tree), "cached": cached, "draws": [_draw(trace, draw) for draw in step.draws],
        }  # fmt: skip

    def _words(self, lane: str, trace: DecodeTrace, tokens: Sequence[int], accepted: int | None) -> list[list[str]]:
        """Return ``[text, source]`` of each token; a character comes with its last piece.

        Args:
            accepted: how many come from the draft; ``None``: no draft at all.
        """
        words = []
        for position, token in enumerate(tokens):
            source = "alone" if accepted is None else "small" if position < accepted else "large"
            end = token in trace.eos_token_ids
            text = "" if end else shorten_bytes(self._joiners[lane].add(trace.texts[token]))
            words.append([strip_bidi(text), f"{source} end" if end else source])
        return words

    def _close(self, traces: Mapping[str, DecodeTrace], ending: Ending) -> None:
        alone, together, lead = traces.get(TARGET_ONLY), traces.get(SPECULATIVE), traces[self._lead]
        live = bool(self._opening["live"])
        words = headline(alone, together, ending, live, self._absent)
        same = compare(alone, together) if alone and together else None
        parted = same is not None and same.position is not None and same.position < same.tokens
        beats = None
        if alone and together and same and same.identical and self._toured and ending == "finished":
            has_tour = len(together.steps) >= FEWEST_TOUR_STEPS
            beats = Tour(alone, together, tour_step(together)).beats() if has_tour else None
        self._add(
            "end", ending=ending, headline=words.data(), announce=strip_bidi(announcement(words, together)),
            parted=same.position if parted and same else None, beats=beats,
            file=race_json(alone, together, lead.image), csv=nodes_csv(lead),
            took={lane: milliseconds(traces[lane].decode_seconds) for lane in self._lanes},
        )  # fmt: skip
        self.frames += grounding_frames(lead)


def grounding_frames(trace: DecodeTrace) -> list[str]:
    """Return the frame of which words needed the picture; none where it was not measured."""
    grounding = grounding_of(trace)
    return [] if grounding is None else [frame_json({"kind": "grounding", **grounding})]


def waiting_frames(picture: str | None, question: str, sentence: str) -> list[str]:
    """Make the frames of a picture that waits for its question: the stage without a run."""
    return [frame_json({
        "kind": "run", "id": uuid.uuid4().hex, "live": False, "picture": picture, "race": None,
        "turn": None, "question": strip_bidi(question), "lanes": [], "before": [], "waits": sentence,
    })]  # fmt: skip


def race_frames(
    race: Recorded, pictures: Sequence[str | None] = (), name: str | None = None, turn: int | None = None,
    toured: bool = False,
) -> list[str]:  # fmt: skip
    """Make all frames of a race file, of a dialogue those of one turn.

    Args:
        pictures: picture of each turn, as data addresses.
        turn: of a dialogue, from 0; the last one if it is not given.
    """
    turns = race.turns
    shown = len(turns) - 1 if turn is None else turn
    one = turns[shown]
    named = (TARGET_ONLY, one.target_only), (SPECULATIVE, one.speculative)
    lanes = {lane: trace for lane, trace in named if trace is not None}
    stopped = any(trace.finish_reason == "stopped" for trace in lanes.values())
    before = [(earlier.prompt, earlier.lead.text) for earlier in turns[:shown]]
    picture = pictures[shown] if shown < len(pictures) else None
    made = FrameList(False, picture, name, tuple(lanes), before=before, turn=turn, toured=toured)
    frames = made.update(lanes, "stopped" if stopped else "finished")
    if len(turns) > 1:
        end = next(number for number, frame in enumerate(frames) if frame.startswith('{"kind":"end"'))
        files = [race_json(each.target_only, each.speculative, each.image_name or None) for each in turns]
        frames[end] = frame_json(json.loads(frames[end]) | {"file": dialogue_json(files)})
    return frames


# --- parts --------------------------------------------------------------------------------------


def frame_json(data: dict[str, Any]) -> str:
    """Write a frame as the list holds it."""
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def data_address(picture: Image.Image) -> str:
    """Encode a picture as a ``data:`` address, scaled down where a side is longer than ``LONGEST_SIDE`` pixels."""
    small = picture.copy()
    small.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    buffer = io.BytesIO()
    small.convert("RGB").save(buffer, format="JPEG", quality=88)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def with_id(frame: str, run_id: str) -> str:
    """Return the first frame of a race with another id."""
    return frame_json(json.loads(frame) | {"id": run_id})


def _draw(trace: DecodeTrace, draw: Draw) -> dict[str, object]:
    """Return a number that a sampling verifier drew, with words instead of token ids."""
    word = token_label(trace, draw.token)
    if draw.acceptance is None:
        say = f"The large model drew {draw.uniform:.2f}, which falls on “{word}”."
    else:
        outcome = "kept" if draw.accepted else "refused"
        less = "below" if draw.accepted else "not below"
        say = f"“{word}”: the number drawn was {draw.uniform:.2f}, {less} {draw.acceptance:.2f}, so it is {outcome}."
    return {
        "word": word, "uniform": draw.uniform, "keeps": draw.acceptance, "say": say,
        "shares": [[token_label(trace, token), start, p] for token, start, p in
                   zip(draw.tokens, draw.starts, draw.target_probs, strict=False)],
    }  # fmt: skip


def grounding_of(trace: DecodeTrace) -> dict[str, object] | None:
    """Return an entry for each token that needed the picture; ``None`` where nothing was measured.

    ``seen`` and ``grey`` are its probability with the picture and with a grey one, ``instead`` the word that the target
    then finds likeliest. ``lost`` has, for each tile of the picture, the share of its probability that the token loses,
    in percent: the mean of all places of the grey square over the tile. ``local``: a part of the picture decides it.
    """
    grounding = trace.grounding
    if grounding is None:
        return None
    words = []
    for row, at in enumerate(grounding.grounded):
        choice, lost = grounding.blank_choices[at], _lost_by_tile(grounding, row) if grounding.grid else []
        weight = (grounding.probs[at] - grounding.blank_probs[at]) * (max(lost) - median(lost) if lost else 1)
        words.append({
            "at": at, "word": token_label(trace, trace.token_ids[at], 12), "seen": f"{grounding.probs[at]:.2f}",
            "grey": f"{grounding.blank_probs[at]:.2f}",
            "instead": "the same" if choice == trace.token_ids[at] else token_label(trace, choice, 12),
            "lost": lost, "local": bool(lost) and median(lost) < LOCAL * max(lost),
            "weight": round(weight, 3),
        })  # fmt: skip
    count = counted(len(words), "token")
    needed = "needs" if len(words) == 1 else "need"
    less = f"at least {grounding.factor:.0f} times less likely with a grey one"
    say = f"{count} of {len(trace.token_ids)} {needed} the picture: {less}."
    return {"grid": grounding.grid, "words": words, "say": say}


def _lost_by_tile(grounding: Grounding, row: int) -> list[int]:
    seen, places, window = grounding.probs[grounding.grounded[row]], grounding.places, grounding.window
    lost = [100 * max(0.0, 1 - prob / seen) for prob in grounding.occluded[row]]

    def over(tile: int) -> range:
        return range(max(0, tile - window + 1), min(places, tile + 1))

    return [
        round(fmean(lost[down * places + across] for down, across in product(over(line), over(column))))
        for line, column in product(range(grounding.grid), repeat=2)
    ]
