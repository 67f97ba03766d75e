"""The world of the toy pair: ``python -m recipes.toy COMMAND``."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from recipes.toy.scene import Split
from specllava.cli.main import main as run_command
from specllava.cli.options import DecodingOptions, PairOptions, announce_loading, check_outputs, load_pair, write_json
from specllava.config import DecodingConfig


@dataclass(frozen=True)
class Train:
    """Make the toy pair from nothing; may be killed and repeated."""

    output: Path
    """Directory of the run: target, draft and draft-before appear in it."""

    tiny: bool = False
    """The same stages at a size that takes seconds; the models learn nothing."""

    def run(self, console: Console) -> None:
        announce_loading("the toy world's recipe")
        from recipes.toy.recipe import ToyRecipe
        from recipes.toy.train import train

        self.output.mkdir(parents=True, exist_ok=True)
        train(self.output, ToyRecipe.tiny() if self.tiny else ToyRecipe())
        console.print(f"done: {self.output}")


@dataclass(frozen=True)
class Render:
    """Draw one scene and print what is in it."""

    output: Path
    """PNG file to write."""

    seed: int = 0
    """Number of the scene."""

    split: Split = "train"
    """Known combinations only, or one that training never named."""

    size: int = 512
    """Width and height in pixels."""

    def run(self, console: Console) -> None:
        from recipes.toy.draw import draw_scene
        from recipes.toy.scene import sample_scene

        if not 16 <= self.size <= 4096:
            raise ValueError(f"--size is {self.size}: 16 to 4096 pixels can be drawn")
        check_outputs(output=self.output)
        scene = sample_scene(self.seed, self.split)
        draw_scene(scene, self.size).save(self.output, format="PNG")
        console.print_json(data={"split": self.split, **asdict(scene), "count": len(scene.things)})


@dataclass(frozen=True)
class Evaluate:
    """Let the target describe scenes that it never saw, or answer questions, and count what it got right."""

    scenes: int = 500
    """Scenes of each split."""

    questions: bool = False
    """Ask questions: in the wording of training, as people type them, beyond the picture, and in dialogues."""

    json: Path | None = None
    """Write the rates, and for questions every wrong answer, to this file."""

    pair: PairOptions = field(default_factory=PairOptions)

    def run(self, console: Console) -> None:
        if self.scenes < 1:
            raise ValueError(f"--scenes is {self.scenes}: at least 1 is needed")
        check_outputs(json=self.json)
        pair = load_pair(self.pair)
        from recipes.toy.evaluate import evaluate, evaluate_questions, rates

        measure = evaluate_questions if self.questions else evaluate
        splits: tuple[Split, ...] = ("held-out", "train")
        results = [measure(pair.target, pair.processor, split, self.scenes) for split in splits]
        table = Table("measure", *(f"{split} scenes" for split in splits))
        shares = [{name: f"{one:.3f}" for name, one in result.items() if isinstance(one, float)} for result in results]
        shown = [rates(result) for result in results] if self.questions else shares
        for name in shown[0]:
            table.add_row(name, *(result.get(name, "") for result in shown))
        console.print(table)
        write_json(self.json, {"results": results, "setting": asdict(pair.info)})


@dataclass(frozen=True)
class Record:
    """Record the races that the page shows before any model is loaded: the toy's, or those of --preset smol."""

    output: Path
    """Directory for pictures and traces."""

    lessons: bool = False
    """The races of the page's lessons instead, and lessons.json."""

    pair: PairOptions = field(default_factory=PairOptions)
    decoding: DecodingOptions = field(default_factory=DecodingConfig)

    def run(self, console: Console) -> None:
        pair = load_pair(self.pair)
        from recipes.toy.record import record, record_lessons

        made = record_lessons if self.lessons else record
        for path in made(pair, self.output, self.decoding):
            console.print(str(path))


@dataclass(frozen=True)
class Export:
    """Write scenes and talk about them as a data file in LLaVA's instruction format: what distill reads."""

    output: Path
    """Directory for data.json and images/."""

    count: int = 1000
    """How many conversations, one scene each."""

    def run(self, console: Console) -> None:
        from recipes.toy.datasets import export

        if self.count < 1:
            raise ValueError(f"--count is {self.count}: at least 1 is needed")
        console.print(str(export(self.output, self.count)), soft_wrap=True)


@dataclass(frozen=True)
class Scenes:
    """Write the scenes that ship: pictures, and scenes.jsonl with questions and true answers."""

    output: Path
    """Directory for the pictures and scenes.jsonl."""

    def run(self, console: Console) -> None:
        from recipes.toy.datasets import write_scenes

        console.print(str(write_scenes(self.output)), soft_wrap=True)


Command = Train | Render | Evaluate | Record | Export | Scenes  # tyro names a command as its class


def main(arguments: list[str] | None = None) -> int:
    """Run a command, as :func:`specllava.cli.main.main`."""
    return run_command(arguments, Command, "python -m recipes.toy", __doc__)


if __name__ == "__main__":
    sys.exit(main())
