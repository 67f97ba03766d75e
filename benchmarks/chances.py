"""Do answers drawn with a draft have the target's distribution? Chi-square of many short ones against the exact one.

    python -m benchmarks.chances --runs 20000 --json benchmarks/results/chances.json

Only guesses that are drawn from the draft need statistics. Under the draft's best guesses an answer is the target's
own for every seed, which ``bench --temperature`` and the tests check token by token.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import torch
from tqdm.auto import tqdm

from benchmarks.shared.command import run_command, show_table
from specllava.cli.options import write_json
from specllava.core.config import DecodingConfig
from specllava.decoding import stream
from specllava.lane import Lane
from specllava.pair import Pair
from specllava.runtime.engine import Engine
from specllava.runtime.kv_caches import KVCaches
from specllava.runtime.passes import PassInput
from specllava.runtime.prompt import Prompt
from specllava.toyworld.draw import draw_scene
from specllava.toyworld.scene import sample_scene
from specllava.verification.answer_settings import warpers
from specllava.verification.sampling import warp

LENGTH = 4  # two levels for the first tree: with one, both ways of judging are the same
DRAWN = DecodingConfig(
    rule="fixed", branching=(2, 2), temperature=2.5, top_k=3, children="drawn", max_new_tokens=LENGTH
)
WAYS = {"token by token": DRAWN, "traversal": replace(DRAWN, verifier="traversal")}
EXPECTED = 5.0  # the least that a cell must expect; rarer answers share one


def main(runs: int = 20_000, json: Path | None = None, preset: str = "toy") -> None:
    """Draw, count, and compare.

    Args:
        runs: answers in all, half of them for each way of judging.
        json: write the rows to this file.
        preset: which pair.
    """
    pair = Pair.from_preset(preset)
    prompt = pair.prompt(draw_scene(sample_scene(3, "held-out"), 256), "Describe this image in detail.")
    exact = distribution(pair, prompt)
    lines, rows = [], {}
    for name, config in WAYS.items():
        seen = drawn_answers(pair, prompt, config, runs // len(WAYS))
        statistic, degrees = chi_square(seen, exact)
        p = float(torch.special.gammaincc(torch.tensor(degrees / 2), torch.tensor(statistic / 2)))
        rows[name] = {"runs": seen.total(), "chi_square": statistic, "degrees": degrees, "p": p}
        lines.append((name, str(seen.total()), str(len(seen)), f"{statistic:.1f}", str(degrees), f"{p:.3f}"))
    show_table(("judged", "runs", "answers", "chi-square", "degrees", "p"), lines, f"{LENGTH} tokens each")
    write_json(json, {"ways": rows, "setting": asdict(pair.info), "length": LENGTH})


@torch.inference_mode()
def distribution(pair: Pair, prompt: Prompt) -> dict[tuple[int, ...], float]:
    """Every answer that the target alone can draw, with its probability; one that ends early is shorter."""
    engine = Engine(pair.target, prompt.length + LENGTH)
    first = engine.prefill(prompt.input_ids, prompt.features, prompt.image_keys).logits
    found: dict[tuple[int, ...], float] = {}
    growing: list[tuple[tuple[int, ...], float, torch.Tensor]] = [((), 1.0, first)]
    while growing:
        answer, chance, logits = growing.pop()
        probs = warp(logits[None], warpers(DRAWN.temperature, DRAWN.top_p, DRAWN.top_k))[0]
        for token in probs.nonzero().squeeze(1).tolist():
            longer, likely = (*answer, token), chance * float(probs[token])
            if len(longer) == LENGTH or token in pair.eos_token_ids:
                found[longer] = likely
                continue
            growing.append((longer, likely, engine.forward(PassInput(longer, last=1)).logits[0]))
            engine.cache.keep(prompt.length, [])
    return found


def drawn_answers(pair: Pair, prompt: Prompt, config: DecodingConfig, runs: int) -> Counter[tuple[int, ...]]:
    """One answer for each seed; the prompt is read once."""
    memory, seen = KVCaches(), Counter[tuple[int, ...]]()
    for seed in tqdm(range(runs)):
        lane = Lane("speculative", replace(config, seed=seed), prompt)
        seen[pair.collect(lane, stream(pair.request(lane, memory))).token_ids] += 1
    return seen


def chi_square(seen: Counter[tuple[int, ...]], exact: dict[tuple[int, ...], float]) -> tuple[float, int]:
    """The statistic and its degrees of freedom.

    Raises:
        ValueError: an answer that the target cannot draw.
    """
    if impossible := set(seen) - set(exact):
        raise ValueError(f"{len(impossible)} answers were drawn that the target gives no probability, as {impossible}")
    runs = seen.total()
    common = [answer for answer, chance in exact.items() if runs * chance >= EXPECTED]
    cells = [(seen[answer], runs * exact[answer]) for answer in common]
    rest = runs - sum(observed for observed, _ in cells), runs - sum(expected for _, expected in cells)
    if rest[1] >= EXPECTED:
        cells.append(rest)
    return sum((observed - expected) ** 2 / expected for observed, expected in cells), len(cells) - 1


if __name__ == "__main__":
    run_command(main)
