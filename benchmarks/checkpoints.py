"""Is the text the same? The identity checks of the tests, repeated on checkpoints that people run.

    python -m benchmarks.checkpoints --target llava-hf/llava-1.5-7b-hf --draft runs/draft --dtype float32
    python -m benchmarks.checkpoints --target llava-hf/llava-v1.6-vicuna-7b-hf --draft runs/draft-next --prompts 20

Drawn scenes of odd sizes, none to three in a prompt, and one dialogue per three prompts with caches that are kept. Each
answer is decoded by the target alone, speculatively, and by transformers' own ``generate``. In float64 nothing may
differ; in float32 nothing but near-ties; in half precision the differences and the target's margins are the result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from PIL import Image
from tqdm.auto import tqdm

from benchmarks.shared.command import run_command, show_table
from benchmarks.transformers_lanes import TRANSFORMERS, transformers_lane
from recipes.toy.draw import draw_scene
from recipes.toy.scene import sample_scene
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
    rows, counts = [], {}
    for name, compared in lanes.items():
        apart = [one for one in compared if not one.identical]
        ties = sum(one.near_tie for one in apart)
        counts[name] = {"runs": len(compared), "ties": ties, "differ": len(apart) - ties}
        widest = max((one.margin for one in apart if one.margin is not None), default=None)
        counted = (len(compared), len(compared) - len(apart), ties, len(apart) - ties)
        rows.append((name, *map(str, counted), "-" if widest is None else f"{widest:.2g}"))
    heads = ("lane", "answers", "identical", "near-ties", "differ", "largest margin")
    show_table(heads, rows, str(pair.info.pair))
    write_json(json, {"lanes": counts, "setting": asdict(pair.info), "config": asdict(decoding)})
    wrong = sum(count["differ"] for count in counts.values())
    if wrong and pair.info.dtype in MUST_AGREE:
        raise ValueError(f"{wrong} answers differ in {pair.info.dtype} where the target was sure")


def run_checks(pair: Pair, prompts: int, config: DecodingConfig) -> dict[str, list[Comparison]]:
    """Compare every answer of every lane with the target alone."""
    lanes: dict[str, list[Comparison]] = {"speculative": [], "transformers": [], "speculative, in a chat": []}
    alone, fast = replace(config, drafter="none"), []
    for number in tqdm(range(prompts), desc="prompts"):
        prompt = pair.prompt(None, question(number), config.max_new_tokens)
        plain, trace = pair.run(Lane.of(alone, prompt)), pair.run(Lane.of(config, prompt))
        fast.append(trace)
        lanes["speculative"].append(compare(plain, trace))
        theirs = transformers_lane(pair, TRANSFORMERS, config)(prompt)
        lanes["transformers"].append(compare_ids(plain, theirs.token_ids))
        if number % CHAT_EVERY == 0:
            lanes["speculative, in a chat"] += [compare(*turn) for turn in chat_turns(pair, number, config)]
    print(f"tau {summarise(fast).tau:.2f} tokens per target pass")
    return lanes


def question(number: int) -> list[Message]:
    """Prompt ``number``: none, one, two or three pictures."""
    shown = [{"type": "image", "image": picture(number + one)} for one in range(number % 4)]
    return [{"role": "user", "content": [*shown, {"type": "text", "text": QUESTIONS[number % len(QUESTIONS)]}]}]


def picture(number: int) -> Image.Image:
    return draw_scene(sample_scene(number, "held-out"), 512).resize(SIZES[number % len(SIZES)])


def chat_turns(pair: Pair, number: int, config: DecodingConfig) -> Iterator[tuple[DecodeTrace, DecodeTrace]]:
    """Three turns with kept caches; each with the target alone on the whole dialogue, prefilled anew."""
    chat = Chat(pair)
    for turn, shown in enumerate(((number,), (), (number + 1, number))):
        said = chat.ask(QUESTIONS[(number + turn) % len(QUESTIONS)], [picture(one) for one in shown], config)
        asked: list[Any] = chat.messages[: 2 * turn + 1]
        yield pair.generate(None, asked, replace(config, drafter="none")), said


if __name__ == "__main__":
    run_command(main)
