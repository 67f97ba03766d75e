"""Is the text the same? The identity checks of the tests, repeated on checkpoints that people run.

    python -m benchmarks.checkpoints --target llava-hf/llava-1.5-7b-hf --draft runs/draft --dtype float32
    python -m benchmarks.checkpoints --target llava-hf/llava-v1.6-vicuna-7b-hf --draft runs/draft-next --prompts 20

Drawn scenes of odd sizes, none to three in a prompt, and one dialogue per three prompts with caches that are kept. Each
answer is decoded by the target alone, speculatively, and by transformers' own ``generate``. In float64 nothing may
differ; in float32 nothing but near-ties; in half precision the differences and the target's margins are the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from PIL import Image
from tqdm.auto import tqdm

from benchmarks.shared.command import run_command, show_table
from benchmarks.transformers_lanes import TRANSFORMERS, transformers_lane
from recipes.toy.draw import draw_scene
from recipes.toy.scene import scenes
from specllava.chat import Chat
from specllava.cli.options import (
    DecodingOptions,
    PairOptions,
    check_outputs,
    load_pair,
    with_fallback_drafter,
    write_json,
)
from specllava.config import DecodingConfig
from specllava.metrics import Comparison, compare, compare_ids, summarise
from specllava.models.tokens import Message
from specllava.pair import Pair
from specllava.spec_decode.loop import Lane
from specllava.trace import DecodeTrace

SIZES = ((336, 336), (640, 480), (333, 801), (97, 64), (1024, 300), (500, 500), (71, 700))  # width, height
QUESTIONS = (
    "Describe this image in detail.",
    "What is on the left?",
    "How many objects are there?",
    "Tell me a story.",
)
CHAT_EVERY = 3
RUNNING, DECODING = PairOptions(), DecodingConfig(max_new_tokens=64)
MUST_AGREE = ("float32", "float64")


@dataclass
class Agreement:
    """Answers of one way of decoding, compared with the target alone."""

    runs: int = 0
    comparisons: list[Comparison] = field(default_factory=list)

    def add(self, one: Comparison) -> None:
        self.runs += 1
        if not one.identical:
            self.comparisons.append(one)

    @property
    def ties(self) -> int:
        return sum(one.near_tie for one in self.comparisons)

    @property
    def differ(self) -> int:
        return len(self.comparisons) - self.ties


def main(
    prompts: int = 50,
    json: Path | None = None,
    running: PairOptions = RUNNING,
    decoding: DecodingOptions = DECODING,
) -> None:
    """Compare tokens on one pair of checkpoints.

    Args:
        prompts: how many.
        json: write the counts to this file.

    Raises:
        ValueError: an answer differs that must not, after everything was compared.
    """
    check_outputs(json=json)
    if decoding.temperature:
        raise ValueError("answers are compared with greedy ones of generate: leave --decoding.temperature out")
    pair = load_pair(running)
    lanes = run_checks(pair, prompts, with_fallback_drafter(pair, decoding, fallback="prompt-lookup"))
    rows = []
    for name, lane in lanes.items():
        margins = [one.margin for one in lane.comparisons if one.margin is not None]
        widest = f"{max(margins):.2g}" if margins else "-"
        counted = (lane.runs, lane.runs - len(lane.comparisons), lane.ties, lane.differ)
        rows.append((name, *map(str, counted), widest))
    heads = ("lane", "answers", "identical", "near-ties", "differ", "largest margin")
    show_table(heads, rows, str(pair.info.pair))
    counts = {n: {"runs": lane.runs, "ties": lane.ties, "differ": lane.differ} for n, lane in lanes.items()}
    write_json(json, {"lanes": counts, "setting": asdict(pair.info), "config": asdict(decoding)})
    wrong = sum(lane.differ for lane in lanes.values())
    if wrong and pair.info.dtype in MUST_AGREE:
        raise ValueError(f"{wrong} answers differ in {pair.info.dtype} where the target was sure")


def run_checks(pair: Pair, prompts: int, config: DecodingConfig) -> dict[str, Agreement]:
    """Every prompt by every lane; differences are counted against the target alone."""
    lanes = {name: Agreement() for name in ("speculative", "transformers", "speculative, in a chat")}
    alone, fast = replace(config, drafter="none"), []
    for number in tqdm(range(prompts), desc="prompts"):
        prompt = pair.prompt(None, question(number), config.max_new_tokens)
        plain, trace = pair.run(Lane.of(alone, prompt)), pair.run(Lane.of(config, prompt))
        fast.append(trace)
        lanes["speculative"].add(compare(plain, trace))
        lanes["transformers"].add(compare_ids(plain, transformers_lane(pair, TRANSFORMERS, config)(prompt).token_ids))
        if number % CHAT_EVERY == 0:
            for reference, said in chat_turns(pair, number, config):
                lanes["speculative, in a chat"].add(compare(reference, said))
    print(f"tau {summarise(fast).tau:.2f} tokens per target pass")
    return lanes


def question(number: int) -> list[Message]:
    """Prompt ``number``: none, one, two or three pictures."""
    shown = [{"type": "image", "image": picture(number + one)} for one in range(number % 4)]
    return [{"role": "user", "content": [*shown, {"type": "text", "text": QUESTIONS[number % len(QUESTIONS)]}]}]


def picture(number: int) -> Image.Image:
    scene = next(iter(scenes("held-out", number, 1)))
    return draw_scene(scene, 512).resize(SIZES[number % len(SIZES)])


def chat_turns(pair: Pair, number: int, config: DecodingConfig) -> Iterator[tuple[DecodeTrace, DecodeTrace]]:
    """Three turns with kept caches; each with the target alone on the whole dialogue, prefilled anew."""
    chat = Chat(pair)
    for turn, shown in enumerate(((number,), (), (number + 1, number))):
        said = chat.ask(QUESTIONS[(number + turn) % len(QUESTIONS)], [picture(one) for one in shown], config)
        asked: list[Any] = chat.messages[: 2 * turn + 1]
        yield pair.generate(None, asked, replace(config, drafter="none")), said


if __name__ == "__main__":
    run_command(main)
