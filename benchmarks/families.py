"""The proofs of the families on checkpoints that nothing was written against: random layouts, weights and pictures.

    PYTHONPATH=tests python -m benchmarks.families --json benchmarks/results/families.json

Each seed draws sizes of decoder and tower, heads, grouped keys and values, a tied head, a window, rows of padding and
two drafts. It runs what ``tests/test_families.py`` runs. For families that read videos as such, it also runs the first
tests of ``tests/test_video_families.py``. Families that are not named keep their entry in the file.
"""

from __future__ import annotations

import json as json_format
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, get_args

import torch
import transformers
from support import checkpoints, family_proofs, models, video_proofs
from support.families import write_checkpoint
from support.family_configs import Layout
from support.family_kinds import FAMILIES, FamilyName
from support.video_proofs import READERS
from tqdm.auto import tqdm

from benchmarks.shared.command import run_command
from specllava.cli.options import write_json
from specllava.models.loading.load_options import DTypeName
from specllava.pair import Pair

DTYPES: Final[tuple[DTypeName, ...]] = get_args(DTypeName)[1:3]  # those in which no token may differ
TEXTS: Final = range(40, 45)  # chats of zero to three pictures and of two turns, which no test reads
FAILURES: Final = (AssertionError, LookupError, RuntimeError, TypeError, ValueError)


@dataclass(slots=True)
class Proofs:
    """Proofs of one family.

    Args:
        layouts: checkpoints of a target, each with two drafts.
        held: how often each proof held, by its name and precision.
        failed: seed, proof and what was raised.
        saved: target passes that guesses made unnecessary.
    """

    layouts: list[dict[str, Any]] = field(default_factory=list)
    held: dict[str, int] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    saved: int = 0


def main(
    seeds: tuple[int, ...] = tuple(range(10)), families: tuple[FamilyName, ...] = FAMILIES, json: Path | None = None
) -> None:
    """Run the proofs of each family on one random layout per seed.

    Args:
        seeds: of layouts and weights.
        families: whose proofs to run.
        json: write what held to this file.

    Raises:
        ValueError: a proof failed, after all were run.
    """
    known: dict[str, Any] = {}
    if json is not None and json.is_file():
        known = json_format.loads(json.read_text(encoding="utf-8"))["families"]
    broken = []
    for family in families:
        proofs = Proofs()
        for seed in tqdm(seeds, desc=family):
            prove(proofs, family, seed)
        broken += [f"{family}, {one}" for one in proofs.failed]
        known[family] = asdict(proofs)
        versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        write_json(json, {"versions": versions, "families": known})
        print(f"{family}: {sum(proofs.held.values())} proofs held, {len(proofs.failed)} failed, {proofs.saved} saved")
    if broken:
        raise ValueError(f"{len(broken)} proofs failed, first {broken[0]}")


def prove(proofs: Proofs, family: FamilyName, seed: int) -> None:
    """Run all proofs of a family on the layout of a seed, and note which held."""
    layout, *drafts = drawn(family, seed)
    proofs.layouts.append(asdict(layout))

    @contextmanager
    def proof(name: str) -> Iterator[None]:
        try:
            yield
        except FAILURES as error:
            proofs.failed.append(f"seed {seed}, {name}: {' '.join(f'{type(error).__name__} {error}'.split())[:300]}")
        else:
            proofs.held[name] = proofs.held.get(name, 0) + 1

    with tempfile.TemporaryDirectory() as made:
        root = Path(made)
        target = write_checkpoint(root / "target", family, seed, layout)
        beside = [
            write_checkpoint(root / f"draft-{number}", family, 1000 * (number + 1) + seed, sizes, near)
            for number, (sizes, near) in enumerate(zip(drafts, (target, None), strict=True))
        ]
        for dtype in DTYPES:
            pair = replace(Pair.load(target, device="cpu", dtype=dtype), costs=models.COSTS)
            pairs = [replace(pair.with_draft(draft), costs=models.COSTS) for draft in beside]
            with proof(f"generate {dtype}"):
                family_proofs.check_generate(pair, TEXTS)
            with proof(f"speculation {dtype}"):
                proofs.saved += family_proofs.check_speculation(_either(pairs), TEXTS)
            if family in READERS:
                with proof(f"videos, generate {dtype}"):
                    video_proofs.check_generate(pair)
                with proof(f"videos, speculation {dtype}"):
                    proofs.saved += video_proofs.check_speculation(pairs[0])
            if dtype == "float64":
                with proof("lane of transformers"):
                    family_proofs.check_lane(pair, TEXTS[3:4])
                with proof("settings of the checkpoint"):
                    family_proofs.check_settings(pairs[0], TEXTS)
                with proof("tree pass"):
                    prompts = (pair.prompt(None, checkpoints.messages(number)) for number in TEXTS[1:4:2])
                    family_proofs.check_tree_pass(pair, family, prompts)
                if family in READERS:
                    with proof("videos, tree pass"):
                        watched = (pair.prompt(None, video_proofs.chat(number)) for number in video_proofs.CHATS)
                        family_proofs.check_tree_pass(pair, family, watched)
                with proof("chat"):
                    family_proofs.check_chat(pairs[0])
                with proof("reading the rest"):
                    family_proofs.check_rest(pair)
                with proof("drafts that read states"):
                    family_proofs.check_state_drafts(pair, root)


def _either(pairs: list[Pair]) -> Callable[[int], Pair]:
    return lambda number: pairs[number % 3 == 2]


def drawn(family: FamilyName, seed: int) -> tuple[Layout, Layout, Layout]:
    """Draw the layouts of a target, of a draft with its decoder's sizes, and of a small one."""
    source = random.Random(f"{family} {seed}")

    def tower() -> dict[str, int]:
        halved = family in ("internvl", "llava_next_video")  # sides of a picture, or of a frame
        patch, scale = source.randint(4, 8), source.choice((2, 2 if halved else 3))
        vision = source.choice((16, 32, 48))
        return {"vision": vision, "patch": patch, "scale": scale, "side": patch * scale * source.choice((2, 3))}

    def decoder(most: int) -> dict[str, Any]:
        heads, size = source.choice((2, 4, 6)), source.choice((8, 12, 16))
        shared = source.choice([one for one in range(1, heads + 1) if heads % one == 0])
        return {
            "layers": source.randint(1, most), "hidden": heads * size, "heads": heads, "kv_heads": shared,
            "padding": source.randint(0, 40), "tied": source.random() < 0.5, "window": source.choice((0, 5, 16, 40)),
        }  # fmt: skip

    target = Layout(**decoder(4), **tower())
    near = replace(target, padding=source.randint(0, 40), **tower())
    return target, near, Layout(**decoder(2), **tower())


if __name__ == "__main__":
    run_command(main)
