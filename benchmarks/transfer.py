"""One draft for several targets: the toy target, quantised to int4, fine-tuned on other words, and of another seed.

    python -m benchmarks.transfer --json benchmarks/results/transfer.json --picture docs/science-transfer.svg

Each target gives its own answers. The draft VLM and EagleVLM guess as they ship, and the draft VLM once more after
some steps of distillation on the target. Targets and drafts in ``--work`` are not trained again.

With ``--run DIRECTORY`` (of ``smol train``) the same for its target and drafts. ``--other`` is another such run, with
another seed: its target is one more. The draft VLM is then taught on the first target's answers.
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
from transformers import LlavaProcessor

from benchmarks.quantised import SCHEMES, quantised
from benchmarks.shared.command import run_command, show, show_table
from benchmarks.shared.draft_training import UNREAD, load_target, teach_draft, training_accelerator, with_loop
from benchmarks.shared.guessing import Guessing, alone, cells, draw_rates, guess, over, rates, write_rates
from benchmarks.shared.questions import held_out_questions
from specllava.core.config import DecodingConfig
from specllava.distill.config import LoopConfig, Objective
from specllava.distill.loop import fit
from specllava.distill.run import distil_files
from specllava.models.drafts.draft_classes import DraftLlava, save
from specllava.models.loading.presets import presets
from specllava.pair import Pair
from specllava.smol.drafts import DraftsRecipe, draft_job
from specllava.smol.losses import fact_losses
from specllava.smol.rows import SmolBatches
from specllava.toyworld.corpus import TALKING, content_ids
from specllava.toyworld.language import QuestionAnswer
from specllava.toyworld.packed_losses import target_losses
from specllava.toyworld.packing import PackedBatches, Questioner
from specllava.toyworld.recipe import ToyRecipe
from specllava.toyworld.scene import Scene
from specllava.toyworld.train import PROCESSOR, TARGET, TOWER, train

SHIPPED, QUANTISED, WORDED, SEED = "shipped", "int4", "other words", "another seed"
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
        seed: of the first weights and the scenes of one more toy target.
        seeded: its training on conversations; by default three eighths of the steps of the shipped target's.
        worded: fine-tuning of the target on other words.
        taught: distillation of the shipped draft on each target.
        batch: rows of a step, each a picture with several conversations.
        prompts: held-out ones, most of them for a description, or free questions.
    """

    work: Path = Path("runs/transfer")
    seed: int = 1
    seeded: LoopConfig = field(default_factory=lambda: replace(ToyRecipe().target, steps=1_200))
    worded: LoopConfig = field(default_factory=lambda: LoopConfig(500, 2e-4, 20, checkpoint_every=50, seed=41))
    taught: LoopConfig = field(default_factory=lambda: LoopConfig(80, 5e-4, 10, checkpoint_every=50, seed=43))
    batch: int = 2
    decoding: DecodingConfig = field(default_factory=lambda: DecodingConfig(max_new_tokens=96))
    prompts: int = 30
    run: Path | None = None
    other: Path | None = None
    json: Path | None = None
    picture: Path | None = None

    def __post_init__(self) -> None:
        if self.other is not None and self.run is None:
            raise ValueError(f"--other {self.other} is compared with a run: give --run as well")


def reworded(talk: Questioner, scene: Scene, rng: Random) -> tuple[QuestionAnswer, ...]:
    """Return a conversation whose answers have other words for the same."""
    return in_other_words(talk(scene, rng))


def in_other_words(turns: Sequence[QuestionAnswer]) -> tuple[QuestionAnswer, ...]:
    return tuple(replace(turn, answer=_WORDS.sub(_other, turn.answer)) for turn in turns)


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


def seeded_target(config: TransferConfig, pair: Pair) -> Path:
    """Train a target of another seed with the shipped tokenizer and tower, unless that is done; return its directory.

    Drafts read the tower, so a target with another tower would blind them.
    """
    directory = config.work / f"seed-{config.seed}"
    if not (directory / TOWER).exists():
        pair.processor.save_pretrained(directory / PROCESSOR)
        load_target(presets()["toy"].target).model.vision_tower.save_pretrained(directory / TOWER)
    train(directory, ToyRecipe(seed=config.seed, target=config.seeded), last=TARGET)
    return directory / TARGET


class OtherWords(SmolBatches):
    """Rows of the pair smol about facts, whose answers have other words for the same."""

    def _talk(self, turns: Sequence[QuestionAnswer]) -> tuple[list[int], list[int]]:
        return super()._talk(in_other_words(turns))


def smol_targets(config: TransferConfig, run: Path) -> dict[str, Path]:
    """Return the directories of a run's target, of it quantised and fine-tuned, and of another run's.

    What is missing is made. Fine-tuning changes all weights of the language model.
    """
    shipped, found = run / "target", {SHIPPED: run / "target"}
    for name in (QUANTISED, WORDED):
        found[name] = config.work / f"smol-{name.replace(' ', '-')}"
        if found[name].exists():
            continue
        target, processor = load_target(shipped), LlavaProcessor.from_pretrained(shipped)
        if name == QUANTISED:
            scheme = SCHEMES[QUANTISED]
            assert scheme is not None
            save(quantised(target, scheme), processor, found[name], torch.float32)
            continue
        target.model.vision_tower.requires_grad_(False)
        losses = partial(fact_losses, tower_model=target, objective=Objective())
        rows, checkpoints = OtherWords(processor, config.batch), config.work / "checkpoints" / found[name].name
        fit(found[name].name, target.train(), losses, rows, config.worded, checkpoints, training_accelerator())
        save(target, processor, found[name], torch.float32)
    return found if config.other is None else found | {SEED: config.other / "target"}


def smol_drafts(config: TransferConfig, run: Path, name: str, target: Path) -> dict[str, Pair]:
    """Return a target with every draft of a run, and teach the draft VLM that is missing."""
    directory, vlm = config.work / f"smol-draft-{name.replace(' ', '-')}", run / "vlm" / "draft"
    recipe = DraftsRecipe()
    precision = training_accelerator().mixed_precision
    training = replace(with_loop(recipe.trainings["vlm"], config.taught, config.batch), precision=precision)
    distil_files(replace(draft_job(run, target, directory, vlm, training, recipe.validation), device="cpu"), show)
    pair = Pair.load(target, vlm, name=name, dtype="float32")
    return {VLM: pair, EAGLE: pair.with_draft(run / "eagle" / "draft"), TAUGHT: pair.with_draft(directory / "last")}


def targets(config: TransferConfig, pair: Pair) -> dict[str, Pair]:
    """Return the shipped draft with every target."""
    scheme = SCHEMES[QUANTISED]
    assert scheme is not None
    quantised_pair = replace(pair, target=quantised(pair.target, scheme))
    trained = {WORDED: worded_target(config, pair), SEED: seeded_target(config, pair)}
    loaded = {
        name: Pair.load(target, presets()["toy"].draft, name=name, dtype="float32") for name, target in trained.items()
    }
    return {SHIPPED: pair, QUANTISED: quantised_pair, **loaded}


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
    if config.run is None:
        toy = targets(config, Pair.from_preset("toy", dtype="float32"))
        pairs = {name: drafts(config, name, one) for name, one in toy.items()}
    else:
        smol = smol_targets(config, config.run)
        pairs = {name: smol_drafts(config, config.run, name, target) for name, target in smol.items()}
    found = rows_of(measure(pairs, config))
    heads = ("draft", "target", "KL, nats", "over shipped", "agreement", "τ", "over shipped", "same answer")
    lines = [
        (draft, row["target"], *cells(row, "kl", digits=3),
         *cells(row, "kl_over_shipped", "agreement", "tau", "tau_over_shipped", "right"))
        for draft, rows in found.items() for row in rows
    ]  # fmt: skip
    show_table(heads, lines)
    write_rates(config.json, pairs[SHIPPED][VLM], config, found)
    draw_rates(config.picture, found, ("kl", "agreement", "tau"), list(pairs), "target", joined=False, width=420)


def measure(pairs: Mapping[str, Mapping[str, Pair]], config: TransferConfig) -> dict[str, dict[str, list[Guessing]]]:
    """Answer every prompt with every target and draft; ``right`` counts answers that are the shipped target's own."""
    answers: dict[str, dict[str, list[Guessing]]] = {
        name: {target: [] for target in pairs} for name in (VLM, EAGLE, TAUGHT)
    }
    questions = held_out_questions("toy" if config.run is None else "smol", config.prompts)
    for asked in tqdm(questions, "prompts", config.prompts):
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
