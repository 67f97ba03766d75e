"""Does tree speculation carry over to video? τ and the draft's entropy on clips of 1, 2 and 4 frames.

    python -m benchmarks.video --json benchmarks/results/video.json --picture docs/science-video.svg

In every clip one object moves. The toy pair is first taught to watch clips (``benchmarks.clip_pair``), unless it is
there. The draft sees what the target sees, or every second frame of it; the target, and so the answer, is the same.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from tqdm.auto import tqdm

from benchmarks.clip_pair import ClipTraining, train_clip_pair
from benchmarks.guessing import Guessing, alone, guess, rates, told, write_found
from benchmarks.intervals import Panel, interval_figure
from benchmarks.markdown import markdown
from benchmarks.svg import write_svg
from specllava.core.config import DecodingConfig
from specllava.models.media.video import Video
from specllava.pair import Pair
from specllava.runtime.prompt import Prompt
from specllava.toyworld.clip import Clip, sample_clip
from specllava.toyworld.clip_questions import CLIP_FAMILIES
from specllava.toyworld.draw import draw_scene
from specllava.toyworld.scene_questions import PICTURE_SIZE, START

DENSE, SPARSE = "the draft sees every frame", "the draft sees every second frame"
ALL = "all questions"


@dataclass(frozen=True, slots=True)
class VideoConfig:
    """What is measured.

    Args:
        clips: held-out ones; each is asked about once by every family of questions.
        frames: of a clip, by the target.
    """

    training: ClipTraining = field(default_factory=ClipTraining)
    decoding: DecodingConfig = field(default_factory=lambda: DecodingConfig(max_new_tokens=96))
    clips: int = 30
    frames: tuple[int, ...] = (1, 2, 4)
    json: Path | None = None
    picture: Path | None = None


def main(config: VideoConfig) -> None:
    """Train what is missing, measure, and draw."""
    train_clip_pair(config.training)
    pair = Pair.load(config.training.output / "target", config.training.output / "draft", name="toy, taught clips")
    found = {
        name: {family: rates(clusters) for family, clusters in families.items()}
        for name, families in measure(pair, config).items()
    }
    Console().print(table(found), markup=False, highlight=False, soft_wrap=True)
    write_found(config.json, pair, config, {"rows": found})
    if config.picture is not None:
        draw(found, config)


def measure(pair: Pair, config: VideoConfig) -> Mapping[str, Mapping[str, list[list[Guessing]]]]:
    """Answer every question about every clip at every number of frames; by lane and family, a list for each clip."""
    found: defaultdict[str, defaultdict[str, list[list[Guessing]]]] = defaultdict(lambda: defaultdict(list))
    for number in tqdm(range(config.clips), "clips"):
        clip = sample_clip(START + number, "held-out")
        whole: defaultdict[str, list[Guessing]] = defaultdict(list)
        for name, family in CLIP_FAMILIES.items():
            asked = family.ask(clip, random.Random(f"specllava measured clip {number} {name}"))
            for count in config.frames:
                prompts = lanes(pair, clip, count, asked.question)
                own = alone(pair, prompts[lane_name(count, DENSE)], config.decoding)
                right = family.statement(own.text) == family.statement(asked.answer)
                for lane, prompt in prompts.items():
                    one = guess(pair, prompt, config.decoding, own, right)
                    found[lane][name].append([one])
                    whole[lane].append(one)
        for lane, answers in whole.items():
            found[lane][ALL].append(answers)
    return found


def lanes(pair: Pair, clip: Clip, count: int, question: str) -> dict[str, Prompt]:
    """Return the prompt of each lane: the draft watches all frames, or every second one; of one there is no second."""
    frames = tuple(draw_scene(scene, PICTURE_SIZE) for scene in clip.frames(count))
    video = Video(frames, tuple(map(float, range(count))))
    found = {lane_name(count, DENSE): pair.prompt(video, question)}
    if count > 1:
        found[lane_name(count, SPARSE)] = pair.prompt(replace(video, draft_frames=count // 2), question)
    return found


def lane_name(count: int, seen: str) -> str:
    return f"{count} {'frame' if count == 1 else 'frames'}, {seen}"


def table(found: dict[str, dict[str, Any]]) -> str:
    """Return all rates, a row for each lane and family."""
    heads = ("lane", "questions", "true", "τ", "entropy, nats", "KL, nats")
    lines = [
        (lane, family, *(told(row[name]) for name in ("right", "tau")),
         *(told(row[name], 3) for name in ("entropy", "kl")))
        for lane, families in found.items()
        for family, row in families.items()
    ]  # fmt: skip
    return markdown(heads, lines)


def draw(found: dict[str, dict[str, Any]], config: VideoConfig) -> None:
    """Draw all questions: whether answers are true, τ and entropy against frames."""
    assert config.picture is not None
    titles = {
        "right": "true answers of the target, share", "tau": "τ, tokens per target pass",
        "entropy": "entropy of the draft, nats",
    }  # fmt: skip
    panels = []
    for rate, title in titles.items():
        series = {
            seen: [found.get(lane_name(count, seen), {}).get(ALL, {}).get(rate) for count in config.frames]
            for seen in ((DENSE,) if rate == "right" else (DENSE, SPARSE))
        }
        panels.append(Panel(title, series))
    places = [str(count) for count in config.frames]
    write_svg(interval_figure(panels, places, "frames that the target sees"), config.picture)


if __name__ == "__main__":
    main(tyro.cli(VideoConfig, description=__doc__))
