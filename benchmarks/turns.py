"""Is speculation worth as much in later turns? τ, the draft's entropy and KL by turn, with one picture and with two.

    python -m benchmarks.turns --json benchmarks/results/turns.json --picture docs/science-turns.svg

Every turn of the dialogues asks the same four questions equally often: the order rotates from dialogue to dialogue. So
turns differ by what stands before them and not by what they ask. Between two turns stands the target's own answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from PIL import Image
from tqdm.auto import tqdm

from benchmarks.shared.command import run_command, show_table
from benchmarks.shared.guessing import Guessing, alone, cells, draw_rates, guess, over, rates, write_rates
from specllava.core.config import DecodingConfig
from specllava.pair import Pair
from specllava.toyworld.draw import draw_scene
from specllava.toyworld.scene import sample_scene
from specllava.toyworld.scene_questions import PICTURE_SIZE, START

QUESTIONS: Final = (  # such as the pair knows from any turn, whose answers are as long in each
    "What is on the left?", "How many objects are there?", "What is the weather like?", "What is on the right?",
)  # fmt: skip
TURNS: Final = len(QUESTIONS)
CHANGED: Final = 2  # turn, counted from 0, that shows another picture
FIRST_SCENE: Final = START + 10_000  # nothing else measures these
ONE, TWO = "one picture, in turn 1", "another picture in turn 3"
NAMES: Final = ("tau", "acceptance", "entropy", "kl", "agreement", "length")
Turns = list[list[Guessing]]  # by turn, one answer for each dialogue


@dataclass(frozen=True, slots=True)
class TurnsConfig:
    """Options of the experiment.

    Args:
        dialogues: of four turns each.
    """

    decoding: DecodingConfig = field(default_factory=lambda: DecodingConfig(max_new_tokens=64))
    dialogues: int = 60
    preset: str = "toy"
    json: Path | None = None
    picture: Path | None = None


def main(config: TurnsConfig) -> None:
    """Measure both kinds of dialogue, and draw."""
    pair = Pair.from_preset(config.preset, dtype="float32")
    measured: dict[str, Turns] = {lane: [[] for _ in range(TURNS)] for lane in (ONE, TWO)}
    for number in tqdm(range(config.dialogues), "dialogues"):
        chat: list[dict[str, Any]] = []
        begun = ask(pair, number, range(CHANGED), chat, False, config.decoding)
        for lane, turns in measured.items():
            rest = ask(pair, number, range(CHANGED, TURNS), [*chat], lane == TWO, config.decoding)
            for turn, one in enumerate(begun + rest):
                turns[turn].append(one)
    found = {lane: [row_of(turns, turn) for turn in range(TURNS)] for lane, turns in measured.items()}
    heads = ("pictures", "turn", "tokens", "τ", "over turn 1", "entropy, nats", "KL, nats", "over turn 1")
    lines = [
        (lane, str(turn), *cells(row, "length", "tau", "tau_over_first"), *cells(row, "entropy", "kl", digits=3),
         *cells(row, "kl_over_first"))
        for lane, rows in found.items()
        for turn, row in enumerate(rows, 1)
    ]  # fmt: skip
    show_table(heads, lines)
    write_rates(config.json, pair, config, found)
    places = [str(turn + 1) for turn in range(TURNS)]
    draw_rates(config.picture, found, ("tau", "entropy", "kl"), places, "turn of the dialogue")


def ask(
    pair: Pair, number: int, turns: range, chat: list[dict[str, Any]], changed: bool, config: DecodingConfig
) -> list[Guessing]:
    """Ask the questions of some turns of a dialogue, one answer after the other.

    Args:
        chat: messages so far; it grows.
        changed: whether turn :data:`CHANGED` shows another picture, which it and later turns are then about.
    """
    answers = []
    for turn in turns:
        shown = []
        if turn == 0 or (changed and turn == CHANGED):
            shown = [{"type": "image", "image": picture(2 * number + (turn > 0))}]
        asked = {"type": "text", "text": QUESTIONS[(number + turn) % TURNS]}
        chat.append({"role": "user", "content": [*shown, asked]})
        prompt = pair.prompt(None, chat, config.max_new_tokens)
        own = alone(pair, prompt, config)
        answers.append(guess(pair, prompt, config, own))
        chat.append({"role": "assistant", "content": own.text})
    return answers


def picture(number: int) -> Image.Image:
    return draw_scene(sample_scene(FIRST_SCENE + number, "held-out"), PICTURE_SIZE)


def row_of(turns: Turns, turn: int) -> dict[str, Any]:
    """Return a turn's rates, and its τ and KL as multiples of the first turn's of the same dialogues."""
    ratios = {f"{name}_over_first": over(name, turns[0], turns[turn]) for name in ("tau", "kl")}
    return rates([[one] for one in turns[turn]], NAMES) | ratios


if __name__ == "__main__":
    run_command(main, TurnsConfig)
