"""Is a draft of every kind made, taught, loaded and exported for a target of every family?

    PYTHONPATH=tests python -m benchmarks.family_drafts --json benchmarks/results/family_drafts.json

Targets are small random checkpoints in the published layouts, and the data file a few sentences. So the numbers show
that each draft learns, not what one is worth. Families that are not named keep their entry in the file.
"""

from __future__ import annotations

import json as json_format
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_args

import torch
import transformers
from support import family_drafts, models
from support.family_drafts import KINDS, AnyFamily, Kind

from benchmarks.shared.command import run_command
from specllava.cli.options import write_json
from specllava.core.config import DecodingConfig
from specllava.distill.config import DistillConfig
from specllava.distill.export_draft import export_draft
from specllava.distill.job import Job
from specllava.distill.run import distil_files
from specllava.models.drafts.draft_reading import LayoutName
from specllava.pair import Pair

ROWS, LENGTH, HELD_OUT = 30, 600, 3
LAYERS = 4  # of the target, enough for the three whose states engines hand to EAGLE-3
HEATS: tuple[dict[str, float], ...] = ({}, {"temperature": 0.8, "seed": 3})
LAYOUTS: dict[Kind, tuple[LayoutName, ...]] = {
    "vlm": (), "eagle": ("eagle-sglang",), "eagle3": ("eagle3", "speculators"),
}  # fmt: skip
FAMILIES: tuple[AnyFamily, ...] = tuple(name for part in get_args(AnyFamily) for name in get_args(part))


@dataclass(frozen=True, slots=True)
class Taught:
    """Result of teaching one draft.

    Args:
        losses, kl: mean loss of the first and last fifth of the steps, and KL before and after, in nats per token.
        tokens, passes: of answers over all rules, greedy and sampled, every one of them the target's own.
        exported: layouts that were written and, read again, gave the same answers in as many passes.
    """

    losses: tuple[float, float]
    kl: tuple[float, float]
    tokens: int
    passes: int
    exported: tuple[LayoutName, ...]


def main(
    steps: int = 20,
    families: tuple[AnyFamily, ...] = FAMILIES,
    kinds: tuple[Kind, ...] = KINDS,
    json: Path | None = None,
) -> None:
    """Teach drafts and check them.

    Args:
        steps: of training.
        families: of the targets.
        kinds: of the drafts.
        json: write the results to this file.
    """
    known: dict[str, Any] = {}
    if json is not None and json.is_file():
        known = json_format.loads(json.read_text(encoding="utf-8"))["families"]
    for family in families:
        with tempfile.TemporaryDirectory() as made:
            root = Path(made)
            family_drafts.write_data(root, ROWS)
            target = family_drafts.write_target(root / "target", family, LAYERS)
            found = {kind: taught(root, family, target, kind, steps) for kind in kinds}
        known[family] = known.get(family, {}) | {kind: asdict(one) for kind, one in found.items()}
        versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        write_json(json, {"versions": versions, "steps": steps, "families": known})
        for kind, one in found.items():
            loss, kl = (" to ".join(f"{value:.3f}" for value in values) for values in (one.losses, one.kl))
            print(f"{family}, {kind}: loss {loss}, KL {kl}, {one.tokens} tokens in {one.passes} passes")


def taught(root: Path, family: AnyFamily, target: Path, kind: Kind, steps: int) -> Taught:
    """Make, teach, load and export one draft.

    Raises:
        AssertionError: a token that is not the target's, or an exported draft that guesses otherwise.
    """
    begin = family_drafts.write_draft(root / f"{kind} draft", family, kind, target)
    output = root / f"{kind} run"
    training = DistillConfig(
        drafter=kind, steps=steps, batch=2, learning_rate=0.01, warmup=3, kl_weight=1.0, length=LENGTH,
        validation_prompts=HELD_OUT, validate_every=0,
    )  # fmt: skip
    job = Job(
        target=str(target), draft=begin, data=root / "data.json", images=root / "images", output=output,
        features=root / "features", device="cpu", dtype="float32", context=None, training=training,
        decoding=DecodingConfig(max_new_tokens=8),
    )  # fmt: skip
    report = distil_files(job, print)
    assert report is not None
    losses, few = [point["loss"] for point in report.curve], max(1, steps // 5)
    tokens, passes = _checked(target, output / "last")
    layouts = () if (family, kind) == ("gemma3", "eagle") else LAYOUTS[kind]  # whose embeddings engines do not scale
    for layout in layouts:
        export_draft(output / "last", target, root / f"{layout} layout", layout)
        assert _checked(target, root / f"{layout} layout") == (tokens, passes), layout
    return Taught(
        (sum(losses[:few]) / few, sum(losses[-few:]) / few),
        (report.checks[0].kl, report.checks[-1].kl),
        tokens,
        passes,
        layouts,
    )


def _checked(target: Path, draft: Path) -> tuple[int, int]:
    pair = replace(Pair.load(target, draft, device="cpu", dtype="float64"), costs=models.COSTS)
    found: tuple[int, int] = family_drafts.check_identity(pair, HEATS)
    return found


if __name__ == "__main__":
    run_command(main)
