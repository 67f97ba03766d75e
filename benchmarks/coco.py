"""Pictures of COCO as questions for ``bench``: the first experiment of Spec-LLaVA, on 50 pictures of val2017.

    python -m benchmarks.coco --output runs/coco            # downloads 241 MB of annotations, and the pictures

``--output`` may be a copy of COCO: what is there is not downloaded again.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import urllib.request
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.shared.command import run_command, show
from specllava.files import write_whole

SPLIT: Final = "val2017"
CAPTIONS: Final = f"annotations/captions_{SPLIT}.json"
ARCHIVE: Final = "http://images.cocodataset.org/annotations/annotations_trainval2017.zip"
QUESTION: Final = "Describe this image in detail."
NAME: Final = re.compile(r"\w+\.jpg")
TIMEOUT: Final = 60  # seconds without an answer


def main(output: Path, count: int = 50) -> None:
    """Put pictures and annotations there that are missing, and write a question about each picture.

    Args:
        output: directory of ``annotations/``, ``val2017/`` and ``questions.jsonl``.
        count: pictures.

    Raises:
        ValueError: too few pictures, no such annotations, or no answer from COCO's server.
    """
    captions = output / CAPTIONS
    if not captions.exists():
        download_captions(captions)
    pictures = first_pictures(json.loads(captions.read_bytes()), count)
    for name, url in pictures.items():
        if not (file := output / SPLIT / name).exists():
            download(url, file)
    rows = [{"image": name, "prompt": QUESTION, "category": "describe"} for name in pictures]
    questions = output / "questions.jsonl"
    write_whole(questions, "".join(f"{json.dumps(row)}\n" for row in rows))
    show(f"{questions}: {len(rows)} questions about pictures in {output / SPLIT}")


def first_pictures(annotations: Mapping[str, Any], count: int) -> dict[str, str]:
    """Return the addresses of the first ``count`` pictures with a caption, by their ids, under their names.

    Raises:
        ValueError: other annotations than COCO's captions, or of fewer pictures; one line.
    """
    try:
        captioned = {int(one["image_id"]) for one in annotations["annotations"]}
        images = sorted((int(one["id"]), str(one["file_name"]), str(one["coco_url"])) for one in annotations["images"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"these annotations have no captions as COCO's: {error!r}") from error
    found = {name: url for number, name, url in images if number in captioned and NAME.fullmatch(name)}
    if not 1 <= count <= len(found):
        raise ValueError(f"--count is {count}: from 1 to {len(found)} pictures have a caption")
    return dict(list(found.items())[:count])


def download_captions(file: Path) -> None:
    """Download the archive of annotations and keep the captions.

    Raises:
        ValueError: no answer, or something else than the archive; one line.
    """
    with tempfile.TemporaryDirectory() as folder:
        download(ARCHIVE, archive := Path(folder) / "annotations.zip")
        try:
            with zipfile.ZipFile(archive) as opened:
                file.parent.mkdir(parents=True, exist_ok=True)
                write_whole(file, opened.read(CAPTIONS))
        except (zipfile.BadZipFile, KeyError) as error:
            raise ValueError(f"{ARCHIVE} has no {CAPTIONS}: {error}") from error


def download(url: str, file: Path) -> None:
    """Download a file to a temporary name, then rename it.

    Raises:
        ValueError: no address of the web, or no answer; one line.
    """
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{file} is missing, and its address {url!r} is none of the web: copy it there")
    file.parent.mkdir(parents=True, exist_ok=True)
    beside = file.with_suffix(".part")
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer, beside.open("wb") as kept:
            shutil.copyfileobj(answer, kept)
            promised = int(answer.headers.get("Content-Length", kept.tell()))
            if kept.tell() != promised:
                raise OSError(f"it ended after {kept.tell():,} of {promised:,} bytes")
    except OSError as error:
        raise ValueError(f"{url} cannot be downloaded: {error}") from error
    beside.replace(file)


if __name__ == "__main__":
    run_command(main)
