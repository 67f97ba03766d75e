"""Training of the pair smol's target: SmolLM2 learns to give to a picture the answers that it gives to its truth."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch
from accelerate import Accelerator
from safetensors.torch import load_model, save_file, save_model
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaForCausalLM,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerBase,
)

from recipes.smol.answers import Answer, read_answers, truth_answers, write_answers
from recipes.smol.checkpoint import SETTINGS, WEIGHTS, assemble, llava_config, smol_processor
from recipes.smol.language_model import fetch_language_model
from recipes.smol.losses import naming_losses, talking_losses
from recipes.smol.rows import SmolBatches
from recipes.smol.sight import SCALE, Sight
from recipes.toy.corpus import draw_pixels
from recipes.toy.draw import shown_at
from recipes.toy.hints import first_tokens
from recipes.toy.phrases import NUMBERS
from recipes.toy.scene import Scene, sample_any_scene
from specllava.distill.config import LoopConfig, Objective
from specllava.distill.losses import Batch, Losses
from specllava.distill.train import fit
from specllava.files import whole_directory, write_whole
from specllava.models.presets import ASSETS

PATCHES: Final = 8  # in a row and in a column
SEED_STRIDE: Final = 1 << 20  # batches of a seed, more than any run reads


@dataclass(frozen=True, slots=True)
class SmolRecipe:
    """Sizes, steps and seeds of the pair's target.

    Args:
        seed: of the first weights, and of the scenes and questions that ``looking`` and ``talking`` read.
    """

    seed: int = 0
    scenes: int = 1200
    rank: int = 16
    naming_batch: int = 16
    batch: int = 4
    kl_weight: float = 0.5
    naming: LoopConfig = field(default_factory=lambda: LoopConfig(600, 3e-3, warmup=20, weight_decay=0.0))
    looking: LoopConfig = field(
        default_factory=lambda: LoopConfig(200, 1e-3, warmup=20, weight_decay=0.0, checkpoint_every=25, seed=1)
    )
    talking: LoopConfig = field(
        default_factory=lambda: LoopConfig(800, 7e-4, warmup=20, weight_decay=0.0, checkpoint_every=25, seed=2)
    )


class NamedPatches:
    """Batches by number: ``pixel_values [b, 3, h, w]`` and the words of each patch, ``words [b, patches, 5]``."""

    def __init__(self, processor: Any, batch: int) -> None:
        self.processor, self.batch = processor, batch

    def __call__(self, number: int) -> dict[str, Tensor]:
        scenes = [sample_any_scene(index) for index in range(number * self.batch, (number + 1) * self.batch)]
        words = torch.tensor([self._words(scene) for scene in scenes])
        return {"pixel_values": draw_pixels(self.processor.image_processor, scenes), "words": words}

    def _words(self, scene: Scene) -> list[list[int]]:
        whole = (scene.place, scene.weather, scene.time, NUMBERS[min(4, len(scene.things))], "background")
        named = [
            (thing.size, thing.colour, thing.kind, thing.column, thing.row) if thing else whole
            for thing in shown_at(scene, PATCHES)
        ]
        tokens = first_tokens(self.processor.tokenizer, {word for words in named for word in words})
        return [[tokens[word] for word in words] for words in named]


def train_target(output: Path, recipe: SmolRecipe, notify: Callable[[str], None]) -> None:
    """Make the pair's target of SmolLM2 and the toy pair's tower; may be killed and repeated.

    Args:
        output: directory of the run. ``sight`` is what ships, ``target`` the checkpoint that it makes.

    Raises:
        ValueError: the language model cannot be had, or the directory holds a run of another recipe; one line.
        FloatingPointError: the loss is not finite; the last checkpoint is kept.
    """
    _claim(output, recipe)
    if (output / "target").exists():
        notify(f"{output / 'target'} is there already")
        return
    language = output / "language"
    if not language.exists():
        with TemporaryDirectory() as scratch, whole_directory(language) as beside:
            fetched = fetch_language_model("auto", Path(scratch), notify)
            fetched.model.bfloat16().save_pretrained(beside)
            fetched.tokenizer.save_pretrained(beside)
    model = AutoModelForCausalLM.from_pretrained(language, dtype=torch.bfloat16).eval()
    tokenizer = AutoTokenizer.from_pretrained(language)
    write_answers(partial(truth_answers, model, tokenizer), recipe.scenes, output / "answers.jsonl")
    llava, processor = untrained(model, tokenizer, recipe.seed)
    sight = Sight(llava, recipe.rank)
    for stage in stages(llava, processor, read_answers(output / "answers.jsonl"), recipe):
        _run(stage, sight, output)
    export_sight(sight, llava, output / "sight")
    with whole_directory(output / "target") as beside:
        assemble(model.float(), tokenizer, output / "sight", beside)


def _claim(output: Path, recipe: SmolRecipe) -> None:
    """Write the recipe to the run's directory, or check that the one there is the same."""
    written, ours = output / "recipe.json", asdict(recipe)
    theirs = json.loads(written.read_text("utf-8")) if written.exists() else ours
    names = [name for name in ours if theirs.get(name) != ours[name]]
    if differ := [f"{name} {theirs.get(name)} there, {ours[name]} here" for name in names]:
        raise ValueError(f"{output} holds a run of another recipe ({', '.join(differ)}): choose another --output")
    write_whole(written, json.dumps(ours, indent=1))


def untrained(
    language_model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, seed: int = 0
) -> tuple[LlavaForConditionalGeneration, LlavaProcessor]:
    """Return a LLaVA of the language model and the toy target's tower, with a random projector, in bfloat16."""
    toy = LlavaForConditionalGeneration.from_pretrained(ASSETS / "toy" / "target", dtype=torch.float32)
    vision = toy.config.vision_config
    processor = smol_processor(tokenizer, vision.image_size, vision.patch_size)
    torch.manual_seed(seed)
    model = LlavaForConditionalGeneration(llava_config(language_model, processor, {"vision_config": vision.to_dict()}))
    model.model.vision_tower = toy.model.vision_tower
    model.model.language_model.load_state_dict(language_model.model.state_dict())
    model.lm_head.load_state_dict(language_model.lm_head.state_dict())
    model.tie_weights()
    for weight in model.parameters():  # not its buffers: rotary frequencies stay exact
        weight.data = weight.data.bfloat16()
    return model.eval(), processor


@dataclass(frozen=True, slots=True)
class Stage:
    """One training stage: what is minimised on which batches, for how long."""

    name: str
    losses: Callable[[Sight, Batch], Losses]
    batches: Callable[[int], Batch]
    loop: LoopConfig


def stages(
    model: LlavaForConditionalGeneration, processor: LlavaProcessor, answers: Sequence[Answer], recipe: SmolRecipe
) -> tuple[Stage, ...]:
    """Return the stages: patches get names, questions of fact are answered, then all questions."""
    naming, named = partial(naming_losses, model=model), NamedPatches(processor, recipe.naming_batch)
    talking = partial(talking_losses, model=model, objective=Objective(recipe.kl_weight))
    batches = partial(SmolBatches, processor, recipe.batch, first=recipe.seed * SEED_STRIDE)
    facts, chats = batches(), batches(answers=answers)
    return (
        Stage("naming", naming, named, recipe.naming),
        Stage("looking", talking, facts, recipe.looking),
        Stage("talking", talking, chats, recipe.talking),
    )


def _run(stage: Stage, sight: Sight, output: Path) -> None:
    """Train one stage, unless its weights are there already."""
    done = output / f"{stage.name}.safetensors"
    if done.exists():
        load_model(sight, done)
        return
    accelerator = Accelerator(mixed_precision="bf16", cpu=True)
    log = fit(stage.name, sight, stage.losses, stage.batches, stage.loop, output / stage.name, accelerator)
    write_whole(output / f"{stage.name}.json", json.dumps(log.curve))
    beside = done.with_suffix(".writing")
    save_model(sight, str(beside))
    beside.replace(done)


def export_sight(sight: Sight, model: LlavaForConditionalGeneration, output: Path) -> None:
    """Write ``sight.safetensors`` and ``sight.json``, which :func:`assemble` reads."""
    tower = {
        f"model.vision_tower.{name}": one.bfloat16().contiguous()
        for name, one in model.model.vision_tower.state_dict().items()
    }
    output.mkdir(parents=True, exist_ok=True)
    save_file(tower | sight.exported(), output / WEIGHTS)
    settings = {"vision_config": model.config.vision_config.to_dict(), "adapter_scale": SCALE}
    (output / SETTINGS).write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
