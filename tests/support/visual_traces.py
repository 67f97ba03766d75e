"""Synthetic runs for the page and its tests: word-like tokens, branching trees, believable clocks. No model, no torch.

``synthetic_race(seed)`` gives the two traces of one race; the same seed gives the same race on every machine.
Both lanes say the same text unless a test asks for a difference.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import time
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from recipes.toy.draw import draw_scene
from recipes.toy.scene import sample_scene
from specllava.config import DecodingConfig
from specllava.models.images import Pictures, open_media
from specllava.spec_decode.loop import clip
from specllava.trace import (
    SCHEMA_VERSION,
    DecodeTrace,
    FinishReason,
    Grounding,
    Prefill,
    RunInfo,
    StepSeconds,
    StepTrace,
    TargetView,
    Verification,
)
from specllava.tree import DraftTree, Pruned
from visual.player.recorded import Recorded, read_recorded

ANSWER = (
    "The picture shows a quiet beach under a clear sunset sky . There are three objects here . On the left side "
    "near the front stands a small red cat , and behind it you can see a large white boat . A green umb rella "
    "leans on the right side of the picture . It is a calm and lovely scene ."
)
LURES = (
    "big", "tiny", "of", "in", "with", "blue", "dog", "wide", "bright", "shore", "sits", "one", "an", "is", "to",
    "view", "there", "near", "bus", "tree", "also", "but", "which", "cold", "old",
)  # fmt: skip
END = 2
WORDS = {0: "", 1: " left", 2: " side", 3: " of", 4: " and", 5: " big", 6: " ", 7: "\n", 8: " a"}
SETTING = RunInfo("synthetic pair", "target 8 x 384", "draft 1 x 256", "cpu", "float32", 2)


def vocabulary() -> dict[int, str]:
    """Token id to text: words carry their leading space, as subword tokenizers give them."""
    words = dict.fromkeys([*ANSWER.split(), *LURES])
    glued = {".", ",", "rella"}
    texts = {END: ""}
    texts.update({i: word if word in glued else f" {word}" for i, word in enumerate(words, start=3)})
    return texts


@dataclass
class _Grower:
    """Draws one draft tree around the true continuation."""

    truth: tuple[int, ...]
    rng: random.Random
    config: DecodingConfig
    lures: tuple[int, ...]
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    entropies: list[float | None] = field(default_factory=list)
    on_truth: list[bool] = field(default_factory=list)

    def add(self, token: int, parent: int, probability: float, on_truth: bool) -> int:
        self.tokens.append(token)
        self.parents.append(parent)
        self.log_probs.append(math.log(probability) if parent >= 0 else 0.0)
        self.entropies.append(None)
        self.on_truth.append(on_truth)
        return len(self.tokens) - 1

    def grow(self, root: int) -> DraftTree:
        frontier = [self.add(root, -1, 1.0, True)]
        for depth in range(self.config.depth):
            grown: list[int] = []
            for node in frontier[: self.config.width]:
                unsure = self.rng.random() < 0.4
                entropy = self.rng.uniform(0.55, 1.9) if unsure else self.rng.uniform(0.01, 0.45)
                self.entropies[node] = round(entropy, 4)
                count = min(self.config.max_branches, math.ceil(math.exp(entropy))) if unsure else 1
                grown += self._children(node, depth, count, unsure)
            frontier = [n for n in grown if len(self.tokens) < self.config.nodes]
        return DraftTree(tuple(self.tokens), tuple(self.parents), tuple(self.log_probs), tuple(self.entropies))

    def _children(self, node: int, depth: int, count: int, unsure: bool) -> list[int]:
        wanted = self.truth[depth] if self.on_truth[node] and depth + 1 < len(self.truth) else None
        lures = self.rng.sample([i for i in self.lures if i != wanted], count)
        right = wanted is not None and self.rng.random() < (0.8 if unsure else 0.92)
        place = self.rng.choice([0, 0, 1]) if right and count > 1 else 0
        probability, left, made = 0.0, 1.0, []
        for i in range(min(count, self.config.nodes + 1 - len(self.tokens))):
            probability = left * self.rng.uniform(0.45, 0.6) if unsure else self.rng.uniform(0.86, 0.99)
            left -= probability
            here = right and i == place
            made.append(self.add(wanted if here and wanted is not None else lures[i], node, probability, here))
        return made


def _step(truth: tuple[int, ...], root: int, rng: random.Random, config: DecodingConfig) -> StepTrace:
    """One speculative step at the root; ``truth`` is what the target goes on to say."""
    if config.drafter == "none" or len(truth) < 2:
        tree, accepted = DraftTree.only_root(root), []
    else:
        ids = {text.strip(): i for i, text in vocabulary().items()}
        grower = _Grower(truth, rng, config, tuple(ids[word] for word in LURES))
        tree = grower.grow(root)
        accepted = [n for n in range(1, len(tree)) if grower.on_truth[n]][: len(truth) - 1]
    view = _view(tree, truth, accepted, rng)
    verdict = Verification(tuple(accepted), truth[len(accepted)])
    levels = 0 if len(tree) == 1 else max(tree.depths())
    clock = StepSeconds(0.0005 * levels, 0.0049 + 0.00016 * len(tree), 0.0004 * rng.uniform(0.8, 1.2))
    return StepTrace(tree, verdict, (*(tree.tokens[n] for n in accepted), truth[len(accepted)]), view, clock)


def _view(tree: DraftTree, truth: tuple[int, ...], accepted: list[int], rng: random.Random) -> TargetView:
    path, depths = {0, *accepted}, tree.depths()
    choices = tuple(truth[depths[n]] if n in path else tree.tokens[max(0, n - 1)] for n in range(len(tree)))
    probs = tuple(round(rng.uniform(0.7, 0.995), 4) for _ in choices)
    right = [
        n == 0 or (tree.parents[n] in path and choices[tree.parents[n]] == tree.tokens[n]) for n in range(len(tree))
    ]
    seen = tuple(
        1.0 if n == 0 else probs[tree.parents[n]] if right[n] else round((1 - probs[tree.parents[n]]) * 0.6, 4)
        for n in range(len(tree))
    )
    ranks = tuple(0 if right[n] else 1 + n % 4 for n in range(len(tree)))
    return TargetView(choices, probs, tuple(round(rng.uniform(0.8, 6.0), 4) for _ in choices), seen, ranks)


def _lane(
    lane: str, ids: tuple[int, ...], config: DecodingConfig, rng: random.Random, image: str | None
) -> DecodeTrace:
    prefill = Prefill(92, ids[0], 3.2, 0.006, 0.013, 0.002 if lane == "speculative" else 0.0)
    steps, said = [], 1
    while said < len(ids):
        steps.append(_step(ids[said:], ids[said - 1], rng, config))
        said += len(steps[-1].emitted)
    texts = vocabulary()
    text = "".join(texts[i] for i in ids).strip()
    ended: FinishReason = "eos" if ids[-1] == END else "length"
    question = "Describe this image in detail."
    return DecodeTrace(
        lane, SETTING, config, question, image, prefill, tuple(steps), ended, text, texts, (END,),
        schema_version=SCHEMA_VERSION,
    )  # fmt: skip


def synthetic_race(
    seed: int = 0, config: DecodingConfig | None = None, image: str | None = None, answer: str = ANSWER,
    parted_at: int | None = None,
) -> dict[str, DecodeTrace]:  # fmt: skip
    """Both lanes of one race; the speculative one decodes with ``config``, and has another word at ``parted_at``."""
    config = config or DecodingConfig()
    by_text = {text.strip(): i for i, text in vocabulary().items()}
    ids = (*(by_text[word] for word in answer.split()), END)[: config.max_new_tokens]
    others = ids if parted_at is None else (*ids[:parted_at], by_text["wide"], *ids[parted_at + 1 :])
    rng = random.Random(seed)
    alone = replace(config, drafter="none")
    return {
        "target-only": _lane("target-only", ids, alone, rng, image),
        "speculative": _lane("speculative", others, config, rng, image),
    }


def hand_made(
    tree: DraftTree, accepted: tuple[int, ...], next_token: int, choice_prob: float = 0.97, room: int = 99
) -> DecodeTrace:
    """A run of one step, with the words of ``WORDS`` and an end token 0, that may emit ``room`` tokens."""
    path, nodes = (0, *accepted), len(tree)
    choices = [next_token] * nodes
    for parent, child in itertools.pairwise(path):
        choices[parent] = tree.tokens[child]
    view = TargetView(tuple(choices), (choice_prob,) * nodes, (3.0,) * nodes, (0.02,) * nodes, (1,) * nodes)
    emitted = clip([*(tree.tokens[n] for n in accepted), next_token], room, frozenset({0}))
    step = StepTrace(tree, Verification(accepted, next_token), emitted, view, StepSeconds(0.001, 0.004, 0.0005))
    prefill = Prefill(10, tree.tokens[0], 1.0)
    return DecodeTrace(
        "speculative", SETTING, DecodingConfig(), "?", None, prefill, (step,), "eos", "", WORDS, (0,), schema_version=1
    )


def pruned_after_root(step: StepTrace) -> StepTrace:
    """The step with two guesses after its root that were not sent."""
    unused = [token for token in vocabulary() if token not in step.tree.tokens][-2:]
    return replace(step, pruned=tuple(Pruned(0, token, math.log(0.03)) for token in unused))


def first_steps(trace: DecodeTrace, count: int) -> DecodeTrace:
    """The run as it stood after ``count`` steps."""
    return replace(trace, steps=trace.steps[:count], finish_reason="stopped")


def retexted(trace: DecodeTrace, texts: dict[int, str]) -> DecodeTrace:
    """The same run with other words for some token ids: hostile ones, for instance."""
    return replace(trace, texts={**trace.texts, **texts})


@dataclass(frozen=True)
class FakeEvent:
    """What a race yields: the fields of a ``RaceEvent``, plus the whole run it belongs to."""

    lane: str
    item: Prefill | StepTrace
    clock: float
    finished: bool
    whole: DecodeTrace


class FakeLane(NamedTuple):
    """What a race is made of: its prompt, its options, whether the target alone runs beside it."""

    image: Pictures
    messages: str
    config: DecodingConfig
    both: bool = False

    def with_target_only(self) -> list[FakeLane]:
        return [self._replace(both=True)]


@dataclass(frozen=True)
class FakeBackend:
    """Races synthetic runs: the prompt chooses the seed, ``pace`` is the seconds that one event takes.

    NoDraft drafts where the configuration says so. Empty prompts are refused as by the real one.
    """

    pace: float = 0.0
    info: RunInfo = SETTING
    nodes: int | None = None
    sees: bool = True
    closed: list[str] = field(default_factory=list)

    def lane(self, image: Pictures, messages: str, config: DecodingConfig) -> FakeLane:
        return FakeLane(image, messages, config)

    def race(self, lanes: Sequence[FakeLane]) -> Generator[FakeEvent]:
        image, messages, config, both = lanes[0]
        if not messages.strip():
            raise ValueError("the prompt is empty")
        sizes = [f"{one.width} x {one.height} pixels" for one in open_media(image)]
        runs = synthetic_race(sum(map(ord, messages)), config, ", ".join(sizes))
        runs = {name: replace(run, prompt=messages) for name, run in runs.items()}
        if config.drafter == "none":
            del runs["speculative"]
        elif not both:
            del runs["target-only"]
        return self._events(runs, messages)

    def _events(self, lanes: dict[str, DecodeTrace], prompt: str) -> Generator[FakeEvent]:
        clocks = dict.fromkeys(lanes, 0.0)
        left: dict[str, list[Prefill | StepTrace]] = {name: [run.prefill, *run.steps] for name, run in lanes.items()}
        try:
            while left:
                name = min(left, key=clocks.__getitem__)
                item = left[name].pop(0)
                clocks[name] += item.total if isinstance(item, Prefill) else item.seconds.total
                time.sleep(self.pace)
                finished = not left[name]
                if finished:
                    del left[name]
                yield FakeEvent(name, item, clocks[name], finished, lanes[name])
        finally:
            self.closed.append(prompt)

    def collect(self, events: Iterable[FakeEvent]) -> dict[str, DecodeTrace]:
        runs: dict[str, list[FakeEvent]] = {}
        for event in events:
            runs.setdefault(event.lane, []).append(event)
        return {name: first_steps(run[0].whole, len(run) - 1) for name, run in runs.items()}


def synthetic_recorded(folder: Path, count: int = 1) -> list[Recorded]:
    """Recorded races with their pictures, written to ``folder`` as the real ones lie in ``assets/examples``."""
    made = []
    for seed in range(count):
        path = folder / f"race-{seed}.png"
        draw_scene(sample_scene(seed + 3), 256).save(path)
        lanes = synthetic_race(seed + 1, image=path.name)
        drawn = tuple(pruned_after_root(step) for step in lanes["speculative"].steps)
        lanes["speculative"] = replace(lanes["speculative"], steps=drawn)
        parts = {"image": path.name, "target_only": json.loads(lanes["target-only"].to_json()),
                 "speculative": json.loads(lanes["speculative"].to_json())}  # fmt: skip
        path.with_suffix(".json").write_text(json.dumps(parts))
        made.append(read_recorded(path.with_suffix(".json")))
    return made


def synthetic_grounding(config: DecodingConfig) -> Generator[DecodeTrace]:
    """The answer, then which of its tokens need the picture, then where."""
    trace, rng = synthetic_race(0, config)["speculative"], random.Random(7)
    yield trace
    probs, blank = ([round(rng.random(), 4) for _ in trace.token_ids] for _ in range(2))
    whole = Grounding(tuple(probs), tuple(blank), tuple(rng.choices(sorted(trace.texts), k=len(probs))), 2.0)
    yield replace(trace, grounding=whole)
    rows = tuple(tuple(round(rng.random(), 4) for _ in range(9)) for _ in whole.grounded)
    yield replace(trace, grounding=replace(whole, grid=4, window=2, occluded=rows))
