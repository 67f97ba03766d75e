"""Runs of the shipped pair with what came of them: token ids, trees and verdicts that no change may alter.

``recorded_runs.json`` holds prompts, settings and outcomes, so a replay depends on no default and on no generator of
settings. Only ``run`` and ``load`` know how the project is called.

``python -m tests.support.recorded_runs all`` records everything anew, ``… cost-aware`` only
the trees of the cost-aware rule, whose learning may be changed on purpose, and refuses other token ids.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from specllava.core.trace import DecodeTrace
from specllava.pair import Pair

RECORD: Final = Path(__file__).with_suffix(".json")
FIRST_SCENE: Final = 5_000_000
SIDE: Final = 128  # pixels of a scene: what the tower reads, so that nothing is resized
QUESTIONS: Final = (
    "Describe this image in detail.", "Tell me a story about this picture.", "How many objects are there?",
    "Describe this picture like an art critic.", "What is on the left?", "Tell me a story about this picture.",
    "Describe this image in detail.", "Is there a dog?", "Describe this picture like an art critic.",
)  # fmt: skip
CHATS: Final = (
    ("Describe this image in detail.", "Here is a calm scene with a few things in it.", "How many objects are there?"),
    ("What is the weather like?", "It is a clear day.", "Describe this image in detail."),
    ("Tell me a story about this picture.", "Once upon a time there was a small red cat.", "Tell me a story again."),
    ("What is on the left?", "There is a tree on the left.", "What is on the right?"),
)
WITHOUT_PICTURE: Final = "Tell me a story about a red cat and a blue boat."
GREEDY: Final = {"entropy": 64, "chain": 40, "fixed": 44, "topk": 48, "sequoia": 44, "prompt-lookup": 18, "none": 12}
SAMPLED: Final = {"entropy": 6, "chain": 4, "fixed": 4, "topk": 4, "sequoia": 4, "prompt-lookup": 3, "none": 3}
DRAWN: Final = ("fixed", "sequoia")  # each with both verifiers
DRAWN_RUNS: Final = 8
COST_AWARE: Final = {"greedy": 30, "sampled": 6}


def load() -> Pair:
    """The shipped pair in the precision of the record."""
    return Pair.from_preset("toy", device="cpu", dtype="float64")


def run(pair: Pair, prompt: dict[str, Any], config: dict[str, Any]) -> DecodeTrace:
    """One run. Costs are fixed, nothing is known from earlier runs and no time that passes is learnt from."""
    from dataclasses import replace

    from recipes.toy.draw import draw_scene
    from recipes.toy.scene import sample_scene
    from specllava.core.config import DecodingConfig
    from specllava.core.growth.cost_model import CostModel, Costs
    from specllava.lane import lane_of

    costs = Costs(
        verify=tuple(1.0 + 0.0625 * more for more in range(64)),
        draft=tuple(0.125 + 0.015625 * more for more in range(8)),
    )
    fresh = replace(pair, costs=costs)  # shares the models and nothing that was learnt
    picture = None if prompt["scene"] is None else draw_scene(sample_scene(prompt["scene"], prompt["split"]), SIDE)
    chosen = DecodingConfig(**config)
    with patch.object(CostModel, "observe", lambda *_, **__: None):
        return fresh.run(lane_of(chosen, fresh.prompt(picture, prompt["messages"])))


def outcome(trace: bytes) -> dict[str, Any]:
    """What a trace's JSON document says of the run, floats left out: a digest of everything, and the plain token ids.

    ``steps`` has four hex digits for each step, so that the first one that differs can be named.
    """
    document = json.loads(trace)
    first = document["prefill"]["first_token"]
    steps = [
        [
            step["tree"]["tokens"], step["tree"]["parents"], step["verification"]["accepted"],
            step["verification"]["next_token"], step["emitted"],
        ]
        for step in document["steps"]
    ]  # fmt: skip
    return {
        "digest": _digest([first, steps, document["finish_reason"]], 16),
        "steps": "".join(_digest(step, 4) for step in steps),
        "finish": document["finish_reason"],
        "tokens": [first, *(token for step in document["steps"] for token in step["emitted"])],
    }


def difference(recorded: dict[str, Any], now: dict[str, Any]) -> str:
    """Where a run parts from its record, in one line with both answers; empty if it does not."""
    if all(recorded[key] == now[key] for key in now):
        return ""
    before, after = (_fours(one["steps"]) for one in (recorded, now))
    places = (place for place, pair in enumerate(zip(before, after, strict=False), start=1) if pair[0] != pair[1])
    shorter = min(len(before), len(after))
    step = next(places, None if len(before) == len(after) else shorter + 1)
    if recorded["tokens"][0] != now["tokens"][0]:
        where = "the first token differs"
    elif step is None:
        where = f"it finishes by {now['finish']!r} and was recorded as {recorded['finish']!r}, or a digest hides a step"
    else:
        where = f"step {step} differs (recorded: {len(before)} steps, now: {len(after)})"
    equal = recorded["tokens"] == now["tokens"]
    ids = "the same token ids" if equal else f"token ids {recorded['tokens']} became {now['tokens']}"
    return f"{recorded['name']}: {where}; {ids}; config {recorded['config']}, prompt {recorded['prompt']}"


def _digest(content: object, length: int) -> str:
    return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()[:length]


def _fours(digits: str) -> list[str]:
    return [digits[place : place + 4] for place in range(0, len(digits), 4)]


def plan() -> dict[str, Any]:
    """Prompts and settings to record, always the same ones."""
    prompts: list[dict[str, Any]] = [
        {"scene": FIRST_SCENE + number, "split": ("train", "held-out")[number % 2], "messages": question}
        for number, question in enumerate(QUESTIONS * 3)
    ]
    prompts.append({"scene": None, "split": None, "messages": WITHOUT_PICTURE})
    for number, texts in enumerate(CHATS):
        roles = zip(("user", "assistant", "user"), texts, strict=True)
        messages = [{"role": role, "content": text} for role, text in roles]
        prompts.append({"scene": FIRST_SCENE + 100 + number, "split": "train", "messages": messages})
    rng = random.Random("recorded runs")
    kinds = [(kind, {}) for kind, count in GREEDY.items() for _ in range(count)]
    kinds += [(kind, _chance(rng)) for kind, count in SAMPLED.items() for _ in range(count)]
    for kind in DRAWN:
        for verifier in ("token", "traversal"):
            kinds += [(kind, {**_chance(rng), "children": "drawn", "verifier": verifier}) for _ in range(DRAWN_RUNS)]
    runs = [_planned(rng, number, kind, more, prompts) for number, (kind, more) in enumerate(kinds)]
    kinds = [("cost-aware", {}) for _ in range(COST_AWARE["greedy"])]
    kinds += [("cost-aware", _chance(rng)) for _ in range(COST_AWARE["sampled"])]
    learning = [_planned(rng, number, kind, more, prompts) for number, (kind, more) in enumerate(kinds)]
    return {"prompts": prompts, "runs": runs, "cost_aware": learning}


def _planned(
    rng: random.Random, number: int, kind: str, more: dict[str, Any], prompts: list[dict[str, Any]]
) -> dict[str, Any]:
    told = len(QUESTIONS) * 3  # the prompts behind these repeat words, which is what a lookup needs
    place = rng.randrange(told if kind == "prompt-lookup" else 0, len(prompts))
    how = "-".join(filter(None, ["sampled" * bool(more), more.get("children"), more.get("verifier")])) or "greedy"
    return {"name": f"{kind} {how} {number}", "prompt": place, "config": _settings(rng, kind) | more}


def _chance(rng: random.Random) -> dict[str, Any]:
    return {
        "temperature": rng.choice((0.5, 0.8, 1.0, 1.3)), "top_p": rng.choice((1.0, 1.0, 0.9)),
        "top_k": rng.choice((0, 0, 20)), "seed": rng.randrange(1000), "children": "best", "verifier": "token",
    }  # fmt: skip


def _settings(rng: random.Random, kind: str) -> dict[str, Any]:
    """Every option that matters to this kind of run, so that a default may change."""
    length = {"max_new_tokens": rng.choice((1, 2, 12, 16, 20, 24, 28, 32, 32, 36)), "temperature": 0.0}
    if kind == "none":
        return {"drafter": "none", **length}
    size = {"depth": rng.choice((1, 2, 2, 3, 3, 4, 5, 6, 8, 10, 12)), "nodes": rng.randint(1, 32)}
    if kind == "prompt-lookup":
        return {"drafter": kind, **length, **size, "ngram": rng.randint(1, 4)}
    width, most = rng.randint(1, 6), rng.randint(1, 6)
    floor = {"min_log_prob": rng.choice((-50.0, -8.0, -5.0, -2.0, -1.0))}
    of_rule: dict[str, dict[str, Any]] = {
        "entropy": {"width": width, "max_branches": most, "entropy_threshold": round(rng.uniform(0, 2), 2), **floor},
        "chain": floor,
        "fixed": {"branching": [rng.randint(1, 3) for _ in range(rng.randint(1, 6))]},
        "topk": {"width": width},
        "sequoia": {"rank_acceptance": rng.choice(([0.891, 0.082, 0.017, 0.004], [0.6, 0.2, 0.1], [0.4, 0.3, 0.2]))},
        "cost-aware": {"width": width, "max_branches": most},
    }
    return {"drafter": "model", "rule": kind, **length, **size, **of_rule[kind]}


def write(record: dict[str, Any]) -> None:
    """One line for each prompt and run."""
    parts = []
    for name, rows in record.items():
        lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
        parts.append(f'"{name}":[\n{lines}\n]')
    RECORD.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def main(what: str) -> None:
    """Record ``all``, or ``cost-aware`` alone.

    Raises:
        ValueError: neither of them, or the cost-aware rule gives other token ids than were recorded.
    """
    if what not in ("all", "cost-aware"):
        raise ValueError(f"what shall be recorded is all or cost-aware, not {what!r}")
    record = plan() if what == "all" else json.loads(RECORD.read_text(encoding="utf-8"))
    pair = load()
    for section in ("runs", "cost_aware") if what == "all" else ("cost_aware",):
        for row in record[section]:
            new = outcome(run(pair, record["prompts"][row["prompt"]], row["config"]).to_json())
            if what == "cost-aware" and new["tokens"] != row["tokens"]:
                raise ValueError(f"{row['name']} gives other token ids: {difference(row, new)}")
            row.update(new)
    write(record)


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]))
