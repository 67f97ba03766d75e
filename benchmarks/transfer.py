"""One draft for several targets: the toy target, quantised to int4, and fine-tuned on other words.

    python -m benchmarks.transfer --json benchmarks/results/transfer.json --picture docs/science-transfer.svg

Each target gives its own answers. The draft VLM and EagleVLM guess as they ship, and the draft VLM once more after
some steps of distillation on the target. Targets and drafts in ``--work`` are not trained again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import torch
from tqdm.auto import tqdm

from benchmarks.quantised import SCHEMES, quantised
from benchmarks.shared.command import run_command, show_table
from benchmarks.shared.draft_training import UNREAD, load_target, teach_draft, training_accelerator
from benchmarks.shared.guessing import Guessing, alone, cells, draw_rates, guess, over, rates, write_rates
from specllava.core.config import DecodingConfig
from specllava.distill.config import LoopConfig
from specllava.distill.loop import fit
from specllava.models.drafts.draft_classes import DraftLlava, save
from specllava.models.loading.presets import presets
from specllava.pair import Pair
from specllava.toyworld.corpus import TALKING, content_ids
from specllava.toyworld.language import QuestionAnswer
from specllava.toyworld.packed_losses import target_losses
from specllava.toyworld.packing import PackedBatches, Questioner
from specllava.toyworld.recipe import ToyRecipe
from specllava.toyworld.scene import Scene
from specllava.toyworld.scene_questions import scene_questions

SHIPPED, QUANTISED, WORDED = "shipped", "int4", "other words"
VLM, EAGLE, TAUGHT = "draft VLM", "EagleVLM", "draft VLM, taught"
NAMES: Final = ("tau", "acceptance", "kl", "agreement", "right", "length")
WORDS: Final = {  # of answers, and what is written in their stead
    "in the": "inside the", "on the": "upon the", "at the": "near the", "there is": "we find",
    "there are": "we find", "large": "sizeable", "big": "hefty", "small": "slight", "little": "wee",
    "stands": "is set", "rests": "lies still", "waits": "bides its time", "looks": "seems", "feels": "seems",
    "everything": "it all", "the mood": "the feeling", "sky": "firmament", "light": "glow",
}  # fmt: skip
_WORDS: Final = re.compile(rf"\b({'|'.join(WORDS)})\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class TransferConfig:
    """Options of the experiment.

    Args:
        work: directory of the trained targets and drafts.
        worded: fine-tuning of the target on other words.
        taught: distillation of the shipped draft on each target.
        batch: rows of a step, each a picture with four conversations.
        prompts: held-out ones, most of them for a description.
    """

    work: Path = Path("runs/transfer")
    worded: LoopConfig = field(default_factory=lambda: LoopConfig(500, 2e-4, 20, checkpoint_every=50, seed=41))
    taught: LoopConfig = field(default_factory=lambda: LoopConfig(80, 5e-4, 10, checkpoint_every=50, seed=43))
    batch: int = 2
    decoding: DecodingConfig = field(default_factory=lambda: DecodingConfig(max_new_tokens=96))
    prompts: int = 30
    json: Path | None = None
    picture: Path | None = None


def reworded(talk: Questioner, scene: Scene, rng: Random) -> tuple[QuestionAnswer, ...]:
    """Return a conversation whose answers have other words for the same."""
    return tuple(replace(turn, answer=_WORDS.sub(_other, turn.answer)) for turn in talk(scene, rng))


def _other(found: re.Match[str]) -> str:
    word = WORDS[found[0].lower()]
    return word.capitalize() if found[0][0].isupper() else word


def talks_of(target: str) -> tuple[Questioner, ...]:
    """Return what a target is taught to talk of."""
    return tuple(partial(reworded, talk) for talk in TALKING) if target == WORDED else TALKING


def batches_of(config: TransferConfig, target: str, pair: Pair, first: int) -> PackedBatches:
    """Return packed rows for a target or its draft, from sample number ``first`` on."""
    return PackedBatches(pair.processor, config.batch, ToyRecipe().image_tokens, talks_of(target), first)


def worded_target(config: TransferConfig, pair: Pair) -> Path:
    """Fine-tune the shipped target on other words, but for its tower, unless that is done; return its directory."""
    directory = config.work / "other-words"
    if not directory.exists():
        target = load_target(presets()["toy"].target)
        target.model.vision_tower.requires_grad_(False)
        losses = target_losses(ToyRecipe(), content_ids(pair.processor.tokenizer))
        rows, checkpoints = batches_of(config, WORDED, pair, UNREAD), config.work / "checkpoints" / directory.name
        fit(directory.name, target.train(), losses, rows, config.worded, checkpoints, training_accelerator())
        save(target, pair.processor, directory, torch.float32)
    return directory


def targets(config: TransferConfig, pair: Pair) -> dict[str, Pair]:
    """Return the shipped draft with every target."""
    scheme = SCHEMES[QUANTISED]
    assert scheme is not None
    worded = Pair.load(worded_target(config, pair), presets()["toy"].draft, name=WORDED, dtype="float32")
    quantised_pair = replace(pair, target=quantised(pair.target, scheme), costs=None)
    return {SHIPPED: pair, QUANTISED: quantised_pair, WORDED: worded}


def drafts(config: TransferConfig, name: str, pair: Pair) -> dict[str, Pair]:
    """Return a target with every draft, and teach the one that is missing."""
    toy, eagle = presets()["toy"].draft, presets()["toy-eagle"].draft
    assert toy is not None
    assert eagle is not None
    place = config.work / f"draft-{name.replace(' ', '-')}"
    draft = DraftLlava.from_pretrained(toy, dtype=torch.float32)
    rows = batches_of(config, name, pair, UNREAD + config.batch * config.worded.steps)  # which no target has learnt
    accelerator = training_accelerator()
    teach_draft(draft, pair.target, pair.processor, rows, config.taught, ToyRecipe().kl_weight, place, accelerator)
    return {VLM: pair, EAGLE: pair.with_draft(eagle), TAUGHT: pair.with_draft(place)}


def main(config: TransferConfig) -> None:
    """Train what is missing, measure every draft with every target, and draw."""
    pair = Pair.from_preset("toy", dtype="float32")
    pairs = {name: drafts(config, name, one) for name, one in targets(config, pair).items()}
    found = rows_of(measure(pairs, config))
    heads = ("draft", "target", "KL, nats", "over shipped", "agreement", "τ", "over shipped", "same answer")
    lines = [
        (draft, row["target"], *cells(row, "kl", digits=3),
         *cells(row, "kl_over_shipped", "agreement", "tau", "tau_over_shipped", "right"))
        for draft, rows in found.items() for row in rows
    ]  # fmt: skip
    show_table(heads, lines)
    write_rates(config.json, pair, config, found)
    draw_rates(config.picture, found, ("kl", "agreement", "tau"), list(pairs), "target", joined=False, width=420)


def measure(pairs: Mapping[str, Mapping[str, Pair]], config: TransferConfig) -> dict[str, dict[str, list[Guessing]]]:
    """Answer every prompt with every target and draft; ``right`` counts answers that are the shipped target's own."""
    answers: dict[str, dict[str, list[Guessing]]] = {
        name: {target: [] for target in pairs} for name in (VLM, EAGLE, TAUGHT)
    }
    for asked in tqdm(scene_questions("held-out", config.prompts), "prompts", config.prompts):
        shipped: tuple[int, ...] = ()
        for target, by_draft in pairs.items():
            prompt = by_draft[VLM].prompt(asked.image, asked.text)
            own = alone(by_draft[VLM], prompt, config.decoding)
            shipped = shipped or own.token_ids
            for name, pair in by_draft.items():
                answers[name][target].append(guess(pair, prompt, config.decoding, own, own.token_ids == shipped))
    return answers


def rows_of(answers: Mapping[str, Mapping[str, Sequence[Guessing]]]) -> dict[str, list[dict[str, Any]]]:
    """Return for each draft a row by target: rates, also as multiples of those with the shipped target."""
    return {
        name: [
            {"target": target, **rates([[one] for one in done], NAMES)}
            | {f"{rate}_over_shipped": over(rate, by_target[SHIPPED], done) for rate in ("kl", "tau")}
            for target, done in by_target.items()
        ]
        for name, by_target in answers.items()
    }


if __name__ == "__main__":
    run_command(main, TransferConfig)
