"""Synthetic runs for the page and its tests: word-like tokens, branching trees, believable clocks. No model, no torch.

``synthetic_race(seed)`` gives the two traces of one race; the same seed gives the same race on every machine.
Both lanes say the same text unless a test asks for a difference.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Generator, Sequence
from dataclasses import replace

from specllava.config import DecodingConfig
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
from specllava.tree import DraftTree

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


def _tree(
    truth: tuple[int, ...], root: int, rng: random.Random, config: DecodingConfig, lures: Sequence[int]
) -> tuple[DraftTree, list[bool]]:
    """A draft tree around the true continuation, and which nodes are on it."""
    tokens, parents, log_probs, on_truth, frontier = [root], [-1], [0.0], [True], [0]
    entropies: list[float | None] = [None]
    for depth in range(config.depth):
        grown: list[int] = []
        for node in frontier[: config.width]:
            unsure = rng.random() < 0.4
            entropy = rng.uniform(0.55, 1.9) if unsure else rng.uniform(0.01, 0.45)
            entropies[node] = round(entropy, 4)
            count = min(config.max_branches, math.ceil(math.exp(entropy))) if unsure else 1
            wanted = truth[depth] if on_truth[node] and depth + 1 < len(truth) else None
            guesses = rng.sample([token for token in lures if token != wanted], count)
            if wanted is not None and rng.random() < (0.8 if unsure else 0.92):
                guesses[rng.choice([0, 0, 1]) if count > 1 else 0] = wanted
            left = 1.0
            for token in guesses[: config.nodes + 1 - len(tokens)]:
                chance = left * rng.uniform(0.45, 0.6) if unsure else rng.uniform(0.86, 0.99)
                left -= chance
                grown.append(len(tokens))
                tokens.append(token)
                parents.append(node)
                log_probs.append(math.log(chance))
                entropies.append(None)
                on_truth.append(token == wanted)
        frontier = grown if len(tokens) < config.nodes else []
    return DraftTree(tuple(tokens), tuple(parents), tuple(log_probs), tuple(entropies)), on_truth


def _step(truth: tuple[int, ...], root: int, rng: random.Random, config: DecodingConfig) -> StepTrace:
    """One speculative step at the root; ``truth`` is what the target goes on to say."""
    if config.drafter == "none" or len(truth) < 2:
        tree, accepted = DraftTree.chain([root]), []
    else:
        ids = {text.strip(): i for i, text in vocabulary().items()}
        tree, on_truth = _tree(truth, root, rng, config, [ids[word] for word in LURES])
        accepted = [n for n in range(1, len(tree)) if on_truth[n]][: len(truth) - 1]
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


def _lane(lane: str, ids: tuple[int, ...], config: DecodingConfig, rng: random.Random) -> DecodeTrace:
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
        lane, SETTING, config, question, None, prefill, tuple(steps), ended, text, texts, (END,),
        schema_version=SCHEMA_VERSION,
    )  # fmt: skip


def synthetic_race(
    seed: int = 0, config: DecodingConfig | None = None, parted_at: int | None = None
) -> dict[str, DecodeTrace]:
    """Both lanes of one race; the speculative one decodes with ``config``, and has another word at ``parted_at``."""
    config = config or DecodingConfig()
    by_text = {text.strip(): i for i, text in vocabulary().items()}
    ids = (*(by_text[word] for word in ANSWER.split()), END)[: config.max_new_tokens]
    others = ids if parted_at is None else (*ids[:parted_at], by_text["wide"], *ids[parted_at + 1 :])
    rng = random.Random(seed)
    alone = replace(config, drafter="none")
    return {
        "target-only": _lane("target-only", ids, alone, rng),
        "speculative": _lane("speculative", others, config, rng),
    }


def hand_made(tree: DraftTree, accepted: tuple[int, ...], next_token: int) -> DecodeTrace:
    """A run of one step, with the words of ``WORDS`` and an end token 0."""
    path, nodes = (0, *accepted), len(tree)
    choices = [next_token] * nodes
    for parent, child in itertools.pairwise(path):
        choices[parent] = tree.tokens[child]
    view = TargetView(tuple(choices), (0.97,) * nodes, (3.0,) * nodes, (0.02,) * nodes, (1,) * nodes)
    emitted = clip([*(tree.tokens[n] for n in accepted), next_token], 99, frozenset({0}))
    step = StepTrace(tree, Verification(accepted, next_token), emitted, view, StepSeconds(0.001, 0.004, 0.0005))
    prefill = Prefill(10, tree.tokens[0], 1.0)
    return DecodeTrace(
        "speculative", SETTING, DecodingConfig(), "?", None, prefill, (step,), "eos", "", WORDS, (0,), schema_version=1
    )


def synthetic_grounding(config: DecodingConfig) -> Generator[DecodeTrace]:
    """The answer, then which of its tokens need the picture, then where."""
    trace, rng = synthetic_race(0, config)["speculative"], random.Random(7)
    yield trace
    probs, blank = ([round(rng.random(), 4) for _ in trace.token_ids] for _ in range(2))
    whole = Grounding(tuple(probs), tuple(blank), tuple(rng.choices(sorted(trace.texts), k=len(probs))), 2.0)
    yield replace(trace, grounding=whole)
    rows = tuple(tuple(round(rng.random(), 4) for _ in range(9)) for _ in whole.grounded)
    yield replace(trace, grounding=replace(whole, grid=4, window=2, occluded=rows))
