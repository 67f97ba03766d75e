"""Pictures of a step for slides: what a saved drawing says by itself, and the file that plays a step's phases."""

from __future__ import annotations

import io
import random
import re
import zlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from PIL import Image, ImageChops
from support.browser import SavedPages, Visit, script_page

from app import EXAMPLES
from visual.player.race_frames import race_frames
from visual.player.recorded import load_recorded

HALO = "rgb(240,180,0)"
PHASE, LAST, MOST_BYTES = 1200, 2400, 2_000_000
STILLS = """async ([sizes, colours]) => {
  const bytes = [];
  for (const [place, [width, height]] of sizes.entries()) {
    const canvas = Object.assign(document.createElement("canvas"), { width, height });
    const pen = canvas.getContext("2d", { alpha: false });
    colours[place].forEach((colour, column) => {
      pen.fillStyle = colour;
      pen.fillRect((column * width) / colours[place].length, 0, width, height);
    });
    bytes.push(await new Promise((resolve) => canvas.toBlob(resolve, "image/png")));
  }
  window.stills = await Promise.all(bytes.map(async (blob) => new Uint8Array(await blob.arrayBuffer())));
  return window.stills.map((still) => [...still]);
}"""


@pytest.fixture(scope="module")
def writer(browser: Any) -> Iterator[Any]:
    """A page in which ``script`` is the module that writes animated PNGs."""
    with script_page(browser, "apng.js") as page:
        yield page


def frames_of(data: bytes) -> list[tuple[float, Image.Image]]:
    """Milliseconds and pixels of every frame."""
    picture = Image.open(io.BytesIO(data))
    found = []
    for number in range(getattr(picture, "n_frames", 1)):
        picture.seek(number)
        found.append((picture.info["duration"], picture.convert("RGB").copy()))
    return found


def test_an_animated_png_holds_its_stills_for_as_long_as_asked(writer: Any) -> None:
    rng = random.Random(2)
    for count in (1, 2, 7):
        size = (rng.randint(1, 90), rng.randint(1, 60))
        colours = [[f"rgb({rng.randrange(256)},{rng.randrange(256)},9)" for _ in range(5)] for _ in range(count)]
        times = [rng.randint(1, 5000) for _ in range(count)]
        stills = [bytes(still) for still in writer.evaluate(STILLS, [[size] * count, colours])]
        made = "async (times) => [...new Uint8Array(await script.animated(stills, times).arrayBuffer())]"
        found = frames_of(bytes(writer.evaluate(made, times)))
        assert [round(duration) for duration, _ in found] == times
        for still, (_, shown) in zip(stills, found, strict=True):
            wanted = Image.open(io.BytesIO(still)).convert("RGB")
            assert wanted.size == shown.size == size
            assert ImageChops.difference(wanted, shown).getbbox() is None
    for data in (b"", b"IEND", bytes(range(256))):
        assert writer.evaluate("(data) => script.crc32(Uint8Array.from(data))", list(data)) == zlib.crc32(data)


def test_stills_of_two_sizes_are_no_film(writer: Any) -> None:
    writer.evaluate(STILLS, [[[4, 4], [4, 5]], [["red"], ["red"]]])
    with pytest.raises(Exception, match="frame 1 is of another size or kind than the first"):
        writer.evaluate("script.animated(stills, [9, 9])")


def opened(saved_page: SavedPages, **context: Any) -> Visit:
    """Open the first example, with everything drawn."""
    tab = saved_page(race_frames(load_recorded(EXAMPLES)[0]), **context)
    tab.page.on("console", lambda line: tab.errors.extend([line.text] if line.type == "warning" else []))
    tab.page.wait_for_selector(".tree .tracemarked .point")
    return tab


def downloaded(tab: Visit, kind: str) -> bytes:
    if not tab.page.locator(".files[open]").count():
        tab.page.click(".files summary")
    with tab.page.expect_download() as download:
        tab.page.click(f"[data-file={kind}]")
    return Path(download.value.path()).read_bytes()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (375, "dark")])
def test_a_saved_tree_has_title_sentence_and_legend_and_no_halo(
    saved_page: SavedPages, width: int, scheme: str
) -> None:
    tab = opened(saved_page, viewport={"width": width, "height": 900}, color_scheme=scheme)
    squeezed = lambda text: re.sub(r"\s", "", text)  # noqa: E731 - lines break elsewhere in a picture
    for action in ("next", "last", "first"):
        tab.page.click(f"[data-do={action}]")
        tab.page.wait_for_timeout(300)
        svg = downloaded(tab, "svg").decode()
        assert HALO not in svg and "var(" not in svg and "class=" not in svg
        root = ElementTree.fromstring(svg)
        said = squeezed("".join(text for part in root.iter() if part.tag.endswith("}text") for text in part.itertext()))
        wanted = [tab.text(".sentence"), tab.text(".step-name").lower(), tab.text(".asked")]
        for text in (*wanted, *tab.page.locator(".legend .marks li").all_inner_texts()):
            assert squeezed(text) in said, text
        names = {part.tag.split("}")[1]: "".join(part.itertext()) for part in root}
        assert squeezed(names["desc"]) == squeezed(tab.text(".sentence"))
        assert tab.text(".asked") in names["title"]
        italics = [part for part in root.iter() if part.attrib.get("font-style") == "italic"]
        assert len(italics) >= tab.page.locator(".sentence .say-em").count()
        (pruned,) = [part for part in root.iter() if (part.attrib.get("d") or "").endswith("l14,7")]
        assert pruned.attrib["stroke-dasharray"] == "none", "a stub is a slanted line, in the tree and in its key"
        picture = Image.open(io.BytesIO(downloaded(tab, "png")))
        assert picture.size == tuple(3 * int(root.attrib[side]) for side in ("width", "height"))
        left, top, right, bottom = ImageChops.difference(  # nothing touches the edge, so nothing was cut
            picture.convert("RGB"), Image.new("RGB", picture.size, picture.convert("RGB").getpixel((0, 0)))
        ).getbbox()
        assert min(left, top, picture.width - right, picture.height - bottom) > 12


def test_a_steps_phases_are_one_file_that_plays(saved_page: SavedPages) -> None:
    tab = opened(saved_page)
    before = tab.tree()
    data = downloaded(tab, "film")
    assert len(data) < MOST_BYTES
    found = frames_of(data)
    assert [round(duration) for duration, _ in found] == [PHASE] * (len(found) - 1) + [LAST]
    assert len(found) >= 6, "root, levels, prune, check, accept, keep"
    assert len({shown.size for _, shown in found}) == 1 and found[0][1].width > 1200
    for (_, shown), (_, following) in pairwise(found):
        assert ImageChops.difference(shown, following).getbbox() is not None
    assert tab.text(".menu-note") == "Saved."
    assert tab.tree() == before
    assert tab.page.locator(".picture-stage").count() == 0
