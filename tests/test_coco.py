"""The paper's first experiment in four commands: from COCO's annotations to a table, on drawn pictures."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest
from PIL import Image

from benchmarks import coco
from benchmarks.coco import CAPTIONS, SPLIT, CocoConfig, main
from specllava.bench import rounds

GUIDE = Path(__file__).resolve().parents[1] / "docs" / "llava.md"
COUNT = 3


def commands() -> list[str]:
    section = GUIDE.read_text(encoding="utf-8").split("## 7.")[1]
    return re.findall(r"```bash\n(.*?)```", section, flags=re.DOTALL)[0].strip().splitlines()


def write(folder: Path, captions: object) -> Path:
    file = folder / CAPTIONS
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(captions))
    return file


def test_the_printed_commands_lead_from_annotations_to_a_table(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(rounds, "MOST_WARM_UPS", 1)
    replaced = {
        "llava-hf/llava-1.5-7b-hf": "runs/coco/target", "mjbooo/lvlm160m-bf16": "runs/coco/llava",
        "runs/coco": str(tmp_path / "coco"), "--prompts 50": "--prompts 2 --rounds 1 --max-new-tokens 6",
    }  # fmt: skip
    more = [f" --drawn --count {COUNT}", "", "", ""]
    assert len(commands()) == 4
    for command, own in zip(commands(), more, strict=True):
        for old, new in replaced.items():
            command = command.replace(old, new)
        module, *words = shlex.split(command + own)[2:]
        monkeypatch.setattr(sys, "argv", [module, *words])
        monkeypatch.delitem(sys.modules, module, raising=False)
        with pytest.raises(SystemExit) as ended:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        assert not ended.value.code
    printed = capsys.readouterr().out
    assert "| chain |" in printed.replace("`", "") and "| entropy |" in printed.replace("`", "")
    report = json.loads((tmp_path / "coco" / "bench.json").read_text())
    assert report["prompts"] == 2


def test_drawn_pictures_are_in_cocos_layout(tmp_path):
    coco.draw(tmp_path, COUNT)
    found = json.loads((tmp_path / CAPTIONS).read_text())
    assert set(found) == {"info", "licenses", "images", "annotations"}
    ids = [one["id"] for one in found["images"]]
    assert ids == [one["image_id"] for one in found["annotations"]] and len(set(ids)) == COUNT
    for one in found["images"]:
        assert one["file_name"] == f"{one['id']:012d}.jpg"
        assert Image.open(tmp_path / SPLIT / one["file_name"]).size == (one["width"], one["height"])
    assert all(one["caption"].endswith(".") for one in found["annotations"])


def test_the_first_captioned_pictures_by_id_are_asked_about(tmp_path):
    images = [{"id": number, "file_name": f"{number:012d}.jpg", "licence": 1} for number in (9, 2, 5, 7)]
    captions = [{"id": 1, "image_id": number, "caption": "x"} for number in (7, 9, 9, 2)]
    file = write(tmp_path, {"info": {}, "images": images, "annotations": captions})
    assert [one.id for one in coco.chosen(file, 2)] == [2, 7]
    with pytest.raises(ValueError, match="has 3 pictures with a caption, not 4: lower --count"):
        coco.chosen(file, 4)


@pytest.mark.parametrize(
    ("image", "complaint"),
    [
        ({"id": 1, "file_name": "../1.jpg"}, "no captions as COCO's: images.0.file_name"),
        ({"id": "x", "file_name": "1.jpg"}, "no captions as COCO's: images.0.id"),
        ({"id": 1, "file_name": "1.jpg", "coco_url": "file:///etc/hostname"}, "is missing, and its address"),
        ({"id": 1, "file_name": "1.jpg", "coco_url": "http://127.0.0.1:1/1.jpg"}, "cannot be downloaded"),
    ],
)
def test_annotations_that_cannot_be_used_cost_one_line(tmp_path, image, complaint):
    write(tmp_path, {"images": [image], "annotations": [{"image_id": 1}]})
    with pytest.raises(ValueError, match=complaint) as told:
        main(CocoConfig(tmp_path, 1))
    assert "\n" not in str(told.value)
    assert not (tmp_path / SPLIT / "1.jpg").exists()
