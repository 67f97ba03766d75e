"""Does tree speculation carry over to video? τ and the draft's entropy on clips of 1, 2 and 4 frames.

    python -m benchmarks.video --json benchmarks/results/video.json --picture docs/science-video.svg

In every clip one object moves. The toy pair is first taught to watch clips (``benchmarks.clips.training``) unless it is
there. The draft sees what the target sees, or every second frame of it; the target, and so the answer, is the same.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tqdm.auto import tqdm

from benchmarks.clips.clip import Clip, sample_clip
from benchmarks.clips.questions import CLIP_FAMILIES
from benchmarks.clips.training import ClipTraining, train_clip_pair
from benchmarks.shared.command import run_command, show_table
from benchmarks.shared.guessing import Guessing, alone, cells, draw_rates, guess, rates, write_rates
from specllava.core.config import DecodingConfig
from specllava.models.media.media import Video
from specllava.pair import Pair
from specllava.runtime.prompt import Prompt
from specllava.toyworld.draw import draw_scene
from specllava.toyworld.scene_questions import PICTURE_SIZE, START

DENSE, SPARSE = "the draft sees every frame", "the draft sees every second frame"
ALL = "all questions"


@dataclass(frozen=True, slots=True)
class VideoConfig:
    """Options of the experiment.

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
    lines = [
        (lane, family, *cells(row, "right", "tau"), *cells(row, "entropy", "kl", digits=3))
        for lane, families in found.items()
        for family, row in families.items()
    ]
    show_table(("lane", "questions", "true", "τ", "entropy, nats", "KL, nats"), lines)
    write_rates(config.json, pair, config, found)
    every, second = (
        [found.get(lane_name(count, seen), {}).get(ALL, {}) for count in config.frames] for seen in (DENSE, SPARSE)
    )
    # Answers are the target's own, and so as true in both lanes.
    series = {DENSE: every, SPARSE: [{name: row[name] for name in row if name != "right"} for row in second]}
    places = [str(count) for count in config.frames]
    draw_rates(config.picture, series, ("right", "tau", "entropy"), places, "frames that the target sees")


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


if __name__ == "__main__":
    run_command(main, VideoConfig)
