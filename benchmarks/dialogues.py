"""Do later turns of a dialogue accept less, and would looking words up there help the draft?

    python -m benchmarks.dialogues --dialogues 60 --json benchmarks/results/dialogues.json

The last column asks about a drafter that would add prompt-lookup's guesses to the draft's own tree: it counts, for
every step, the longer of the two accepted branches, as if the added guesses cost nothing. That is more than such a
drafter could reach.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table
from tqdm.auto import tqdm

from benchmarks.shared.command import run_command
from specllava.cli.options import write_json
from specllava.core.config import DecodingConfig
from specllava.core.metrics import summarise
from specllava.core.trace import DecodeTrace
from specllava.drafters.lookup import continuations, merge
from specllava.lane import Lane
from specllava.pair import Pair
from specllava.runtime.chat_format import Message
from specllava.runtime.prompt import Prompt
from specllava.toyworld.dialogue import QuestionAnswer, converse
from specllava.toyworld.draw import draw_scene
from specllava.toyworld.scene import Scene, scenes
from specllava.toyworld.scene_questions import START

LOOK_FOR = 400  # samples of the corpus to find the dialogues in


def main(dialogues: int = 60, json: Path | None = None, preset: str = "toy") -> None:
    """Measure on dialogues about held-out scenes; every turn is asked after the target's own earlier answers.

    Args:
        dialogues: how many.
        json: write the rows to this file.
        preset: which pair.
    """
    pair = Pair.from_preset(preset)
    traces: defaultdict[int, list[DecodeTrace]] = defaultdict(list)
    added: defaultdict[int, int] = defaultdict(int)
    for scene, turns in tqdm(held_out_dialogues(dialogues)):
        messages: list[Message] = []
        for turn in turns:
            messages.append({"role": "user", "content": turn.question})
            prompt = pair.prompt(draw_scene(scene, 256), messages)
            trace = pair.run(Lane("speculative", DecodingConfig(), prompt))
            messages.append({"role": "assistant", "content": trace.text})
            traces[trace.turn].append(trace)
            added[trace.turn] += looked_up_more(prompt, trace)
    table = Table("turn", "answers", "tokens", "τ", "τ at most, with lookup", title=f"{dialogues} dialogues")
    rows = {}
    for turn, runs in sorted(traces.items()):
        summary = summarise(runs)
        most = summary.tau + added[turn] / summary.target_passes if summary.target_passes else summary.tau
        rows[turn + 1] = {"answers": summary.runs, "tokens": summary.tokens, "tau": summary.tau, "tau_at_most": most}
        table.add_row(str(turn + 1), str(summary.runs), str(summary.tokens), f"{summary.tau:.2f}", f"{most:.2f}")
    Console(width=80).print(table)
    write_json(json, {"turns": rows, "setting": asdict(pair.info), "dialogues": dialogues})


def held_out_dialogues(count: int) -> list[tuple[Scene, tuple[QuestionAnswer, ...]]]:
    """The first ``count`` conversations of more than one turn, about scenes that nothing else uses."""
    found = []
    for number, scene in enumerate(scenes("held-out", START + LOOK_FOR, LOOK_FOR)):
        turns = converse(scene, random.Random(number))
        if len(turns) > 1:
            found.append((scene, turns))
    if len(found) < count:
        raise ValueError(f"{count} dialogues wanted, {len(found)} found: raise LOOK_FOR")
    return found[:count]


def looked_up_more(prompt: Prompt, trace: DecodeTrace) -> int:
    """Tokens that lookup's tree would have had right beyond the draft's, summed over steps."""
    said, config = prompt.input_ids[0].tolist(), trace.config
    answer, place, more = trace.token_ids, 0, 0
    for step in trace.steps:
        found = continuations([*said, *answer[: place + 1]], config.ngram, config.depth)
        tree = merge(answer[place], found, config.nodes)
        path = [0]
        for token in answer[place + 1 :]:
            child = next((child for child in tree.children()[path[-1]] if tree.tokens[child] == token), None)
            if child is None:
                break
            path.append(child)
        more += max(0, len(path) - len(step.verification.path))
        place += len(step.emitted)
    return more


if __name__ == "__main__":
    run_command(main)
