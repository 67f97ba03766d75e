"""Pictures of COCO as questions for ``bench``: the first experiment of Spec-LLaVA, on 50 pictures of val2017.

    python -m benchmarks.coco --output runs/coco            # downloads 241 MB of annotations, and the pictures
    python -m benchmarks.coco --output runs/coco --drawn    # no network: toy pictures in COCO's layout, random models

``--output`` may be a copy of COCO: what is there is not downloaded again.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
import urllib.request
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from benchmarks.shared.command import run_command, show
from benchmarks.shared.random_pair import write_random
from recipes.toy.draw import draw_scene
from recipes.toy.language import caption
from recipes.toy.scene import sample_scene
from recipes.toy.scene_questions import START
from specllava.core.config import one_line
from specllava.core.files import write_whole

SPLIT: Final = "val2017"
CAPTIONS: Final = f"annotations/captions_{SPLIT}.json"
ARCHIVE: Final = "http://images.cocodataset.org/annotations/annotations_trainval2017.zip"
QUESTION: Final = "Describe this image in detail."
DRAWN_SIZE: Final = (640, 480)
TIMEOUT: Final = 60  # seconds without an answer

Name = Annotated[str, Field(pattern=r"^\w+\.jpg$")]


@checked(frozen=True, slots=True)
class Picture:
    """A picture of the annotations; their other fields are not read."""

    id: int
    file_name: Name
    coco_url: str = ""


@checked(frozen=True, slots=True)
class Caption:
    """A caption of the annotations, of which only the picture is read."""

    image_id: int


@checked(frozen=True, slots=True)
class Annotations:
    """The annotations of a split."""

    images: tuple[Picture, ...]
    annotations: tuple[Caption, ...]


_ANNOTATIONS: Final = TypeAdapter(Annotations)


@dataclass(frozen=True, slots=True)
class CocoConfig:
    """Options of the command.

    Args:
        output: directory of ``annotations/``, ``val2017/`` and ``questions.jsonl``; with ``--drawn`` of models too.
        count: pictures.
        drawn: draw toy pictures, and write a random target and a random LLaVA to make a draft of.
    """

    output: Path
    count: int = 50
    drawn: bool = False


def main(config: CocoConfig) -> None:
    """Put pictures and annotations there that are missing, and write a question about each picture.

    Raises:
        ValueError: too few pictures, no such annotations, or no answer from COCO's server.
    """
    if config.count < 1:
        raise ValueError(f"--count is {config.count}: at least 1 is needed")
    captions = config.output / CAPTIONS
    if not captions.exists():
        draw(config.output, config.count) if config.drawn else download_captions(captions)
    if config.drawn:
        write_random("toy", config.output / "target", config.output / "llava")
    pictures = chosen(captions, config.count)
    for one in pictures:
        if not (file := config.output / SPLIT / one.file_name).exists():
            download(one.coco_url, file)
    rows = [{"image": one.file_name, "prompt": QUESTION, "category": "describe"} for one in pictures]
    questions = config.output / "questions.jsonl"
    write_whole(questions, "".join(f"{json.dumps(row)}\n" for row in rows))
    show(f"{questions}: {len(rows)} questions about pictures in {config.output / SPLIT}")


def chosen(captions: Path, count: int) -> Sequence[Picture]:
    """Return the first ``count`` pictures with a caption, by their ids.

    Raises:
        ValueError: no annotations of captions, or of fewer pictures; one line.
    """
    try:
        found = _ANNOTATIONS.validate_json(captions.read_bytes())
    except ValidationError as error:
        raise ValueError(f"{captions} has no captions as COCO's: {one_line(error)}") from error
    captioned = {one.image_id for one in found.annotations}
    pictures = sorted((one for one in found.images if one.id in captioned), key=lambda one: one.id)
    if len(pictures) < count:
        raise ValueError(f"{captions} has {len(pictures)} pictures with a caption, not {count}: lower --count")
    return pictures[:count]


def download_captions(file: Path) -> None:
    """Download the archive of annotations and keep the captions.

    Raises:
        ValueError: no answer, or something else than the archive; one line.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "annotations.zip"
        download(ARCHIVE, archive)
        try:
            with zipfile.ZipFile(archive) as held:
                write_whole(file, held.read(CAPTIONS))
        except (zipfile.BadZipFile, KeyError) as error:
            raise ValueError(f"{ARCHIVE} has no {CAPTIONS}: {error}") from error


def download(url: str, file: Path) -> None:
    """Download a file to a temporary name, then rename it.

    Raises:
        ValueError: no address, or no answer; one line.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_suffix(".part")
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{file} is missing, and its address {url!r} is none of the web: copy it there")
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer, beside.open("wb") as kept:
            shutil.copyfileobj(answer, kept)
    except OSError as error:
        raise ValueError(f"{url} cannot be downloaded: {error}; --drawn needs no network") from error
    beside.replace(file)


def draw(output: Path, count: int) -> None:
    """Draw toy pictures in COCO's layout, with a caption each."""
    images: list[dict[str, Any]] = []
    captions: list[dict[str, Any]] = []
    for folder in (output / SPLIT, (output / CAPTIONS).parent):
        folder.mkdir(parents=True, exist_ok=True)
    for number in range(1, count + 1):
        scene = sample_scene(START + number, "held-out")
        name = f"{number:012d}.jpg"
        draw_scene(scene, DRAWN_SIZE[0]).resize(DRAWN_SIZE).save(output / SPLIT / name)
        width, height = DRAWN_SIZE
        images.append({"id": number, "file_name": name, "coco_url": "", "width": width, "height": height})
        text = caption(scene, random.Random(number)).answer
        captions.append({"id": number, "image_id": number, "caption": text})
    write_whole(output / CAPTIONS, json.dumps({"info": {}, "licenses": [], "images": images, "annotations": captions}))


if __name__ == "__main__":
    run_command(main, CocoConfig)
