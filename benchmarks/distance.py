"""Away from what a draft was distilled on: τ and KL on other scenes, questions, dialogues and pictures.

    python -m benchmarks.distance --json benchmarks/results/distance.json \\
        --requests docs/science-distance-requests.svg --pictures docs/science-distance-pictures.svg

Nothing is trained. Target and draft see the same picture, and the target answers for itself on each. Kinds differ in
the length of answers, which bounds τ, so KL and agreement stand beside it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image
from tqdm.auto import tqdm

from benchmarks.shared.command import run_command, show_table
from benchmarks.shared.guessing import (
    Guessing,
    GuessingConfig,
    alone,
    cells,
    draw_rates,
    guess,
    over,
    rates,
    write_rates,
)
from specllava.core.config import DecodingConfig
from specllava.core.trace import DecodeTrace
from specllava.pair import Pair
from specllava.runtime.prompt import Prompt
from specllava.toyworld.dialogue import ask
from specllava.toyworld.draw import draw_scene
from specllava.toyworld.phrases import DETAIL_PROMPTS
from specllava.toyworld.scene import Split, sample_scene
from specllava.toyworld.scene_questions import PICTURE_SIZE, START

FIRST_SCENE: Final = START + 20_000  # nothing else measures these
TURNS: Final = 3  # of a dialogue, of which the last one counts
UNKNOWN: Final = (  # such as the pair never read
    "Please write a short poem about the photograph!", "Was ist auf dem Bild zu sehen?",
    "List every animal, sorted by weight.", "Why is the sky blue, and who painted it?",
)  # fmt: skip
NAMES: Final = ("tau", "acceptance", "entropy", "kl", "agreement", "length")
Change = Callable[[Image.Image], Image.Image]


def noisy(spread: float) -> Change:
    """Return a change that adds noise to every pixel; 1 is from black to white."""

    def change(picture: Image.Image) -> Image.Image:
        pixels = np.asarray(picture, dtype=np.float64)
        noise = np.random.default_rng(0).normal(scale=255 * spread, size=pixels.shape)
        return Image.fromarray((pixels + noise).clip(0, 255).astype(np.uint8))

    return change


def recoloured(picture: Image.Image) -> Image.Image:
    """Return a picture whose red, green and blue have changed places."""
    red, green, blue = picture.convert("RGB").split()
    return Image.merge("RGB", (green, blue, red))


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of question, each number of which is about the same scene.

    Args:
        asks: ``describe``, a short ``question``, the last turn of a ``dialogue``, or an ``unknown`` request.
        change: of the picture.
    """

    asks: str = "describe"
    split: Split = "held-out"
    change: Change = lambda picture: picture


BASE: Final = "held-out"
REQUESTS: Final[dict[str, Kind]] = {
    "known": Kind(split="train"), BASE: Kind(), "question": Kind("question"), "dialogue": Kind("dialogue"),
    "unknown": Kind("unknown"),
}  # fmt: skip
PICTURES: Final[dict[str, Kind]] = {
    "mirrored": Kind(change=lambda one: one.transpose(Image.Transpose.FLIP_LEFT_RIGHT)),
    "recoloured": Kind(change=recoloured),
    "noise 0.1": Kind(change=noisy(0.1)),
    "noise 1.0": Kind(change=noisy(1.0)),
    "turned": Kind(change=lambda one: one.rotate(180)),
}
KINDS: Final = REQUESTS | PICTURES
PANEL: Final = 520  # pixels of a panel, for its names


@dataclass(frozen=True, slots=True, kw_only=True)
class DistanceConfig(GuessingConfig):
    """Options of the experiment.

    Args:
        prompts: of each kind.
        requests, pictures: files for figures by what is asked, and by what is seen.
    """

    requests: Path | None = None
    pictures: Path | None = None


def main(config: DistanceConfig) -> None:
    """Measure every kind, and draw."""
    pair = config.load_pair()
    answers: dict[str, list[Guessing]] = {kind: [] for kind in KINDS}
    for number in tqdm(range(config.prompts), "prompts"):
        for name, kind in KINDS.items():
            prompt, own = asked(pair, kind, number, config.decoding)
            answers[name].append(guess(pair, prompt, config.decoding, own))
    found = rows_of(answers)
    heads = ("kind", "tokens", "τ", "over held-out", "acceptance", "agreement", "entropy, nats", "KL, nats",
             "over held-out")  # fmt: skip
    lines = [
        (name, *cells(row, "length", "tau", "tau_over_base", "acceptance", "agreement"),
         *cells(row, "entropy", "kl", digits=3), *cells(row, "kl_over_base"))
        for name, row in found.items()
    ]  # fmt: skip
    show_table(heads, lines)
    write_rates(config.json, pair, config, found)
    for path, names, across in (
        (config.requests, [*REQUESTS], "scene and request"), (config.pictures, [BASE, *PICTURES], "picture"),
    ):  # fmt: skip
        rows = {f"{pair.name} pair": [found[name] for name in names]}
        draw_rates(path, rows, ("kl", "tau", "agreement"), names, across, joined=False, width=PANEL)


def asked(pair: Pair, kind: Kind, number: int, config: DecodingConfig) -> tuple[Prompt, DecodeTrace]:
    """Return a prompt of a kind, and the target's own answer to it."""
    scene = sample_scene(FIRST_SCENE + number, kind.split)
    picture = kind.change(draw_scene(scene, PICTURE_SIZE))
    chat: list[dict[str, str]] = []
    for text in _texts(kind, number):
        chat.append({"role": "user", "content": text})
        prompt = pair.prompt(picture, chat)
        own = alone(pair, prompt, config)
        chat.append({"role": "assistant", "content": own.text})
    return prompt, own


def _texts(kind: Kind, number: int) -> Sequence[str]:
    """Return the user's messages of a prompt, one after the other."""
    rng = random.Random(number)
    if kind.asks == "describe":
        return [rng.choice(DETAIL_PROMPTS)]
    if kind.asks == "unknown":
        return [UNKNOWN[number % len(UNKNOWN)]]
    scene = sample_scene(FIRST_SCENE + number, kind.split)
    return [ask(scene, rng).question for _ in range(TURNS if kind.asks == "dialogue" else 1)]


def rows_of(answers: dict[str, list[Guessing]]) -> dict[str, dict[str, Any]]:
    """Return a row for each kind: its rates, also as multiples of those of descriptions of held-out scenes."""
    return {
        name: rates([[one] for one in done], NAMES)
        | {f"{rate}_over_base": over(rate, answers[BASE], done) for rate in ("tau", "kl")}
        for name, done in answers.items()
    }


if __name__ == "__main__":
    run_command(main, DistanceConfig)
