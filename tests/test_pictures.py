"""Pictures in every form: the pixels of transformers' own conversion, or what the format's specification says."""

from __future__ import annotations

import io
import struct
import zlib
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import ExifTags, Image, ImageOps, PngImagePlugin
from support.cases import complaint
from transformers.image_transforms import convert_to_rgb

from specllava.models.images import JPEG_PIXELS, MAX_PIXELS, is_animated, open_image, open_media, read_size
from specllava.pair import Pair

Pixels = npt.NDArray[Any]
SIZES = (1, 1), (20, 1), (33, 41)
RNG = np.random.default_rng(51)
DEEP = RNG.integers(0, 2**16, (41, 33))


def rgb_of(grey: Pixels) -> Pixels:
    return np.repeat(grey.astype(np.uint8)[..., None], 3, -1)


def rescaled(grey: Pixels, white: float) -> Pixels:
    """Rescale sample depth as the PNG specification has it (13.12): ``floor(sample * 255 / white + 0.5)``."""
    return rgb_of(np.floor(grey.astype(np.float64) * 255 / white + 0.5))


def by_transformers(picture: Image.Image) -> Pixels:
    return np.asarray(convert_to_rgb(ImageOps.exif_transpose(picture), return_numpy=True))


def refusal(source: Any, **limits: int) -> str:
    """Return the one line with which a picture is refused."""
    return complaint(lambda: open_image(source, **limits))


def noise(mode: str, size: tuple[int, int] = (33, 41)) -> Image.Image:
    """Random samples, a palette and a transparent colour where the mode has them."""
    data = RNG.integers(0, 256, size[0] * size[1] * 4, np.uint8).tobytes()
    picture = Image.frombytes(mode, size, data[: len(Image.new(mode, size).tobytes())])
    if mode in ("P", "PA"):
        picture.putpalette(RNG.integers(0, 256, 768, np.uint8).tobytes())
    return picture


MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")


def test_modes_of_pillow_are_read_as_transformers_reads_them(tiny: Pair) -> None:
    for mode, size in product(MODES, SIZES):
        picture = noise(mode, size)
        before = picture.tobytes()
        seen = open_image(picture)
        assert seen.mode == "RGB" and np.array_equal(np.asarray(seen), by_transformers(picture)), mode
        assert picture.tobytes() == before and picture.mode == mode
        assert tiny.prompt(picture, "What?").image_sizes == (size,)


def png(depth: int, kind: int, row: bytes, hidden: bytes, width: int, height: int = 1) -> bytes:
    """Write a PNG of one row, of a depth that Pillow does not write or of a size that is not true."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)
    parts = chunk(b"IHDR", header), chunk(b"tRNS", hidden), chunk(b"IDAT", zlib.compress(b"\0" + row))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts) + chunk(b"IEND", b"")


def claiming(width: int, height: int) -> bytes:
    """Write a PNG that claims a size and holds next to nothing: whoever decodes it complains of something else."""
    return png(8, 2, b"", b"\0" * 6, width, height)


def encoded(picture: Image.Image, kind: str, **how: Any) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind, **how)
    return buffer.getvalue()


def turned(orientation: int = 6) -> Image.Exif:
    made = Image.Exif()
    made[ExifTags.Base.Orientation] = orientation
    return made


def xmp() -> PngImagePlugin.PngInfo:
    info = PngImagePlugin.PngInfo()
    info.add_itxt("XML:com.adobe.xmp", '<x:xmpmeta><a tiff:Orientation="8"/></x:xmpmeta>')
    return info


FILES: dict[str, tuple[bytes, Pixels | None]] = {  # without pixels transformers says what they are
    "rgba.png": (encoded(noise("RGBA"), "PNG"), None),
    "grey-alpha.png": (encoded(noise("LA"), "PNG"), None),
    "palette-one.png": (encoded(noise("P"), "PNG", transparency=3), None),
    "palette-alpha.png": (encoded(noise("P"), "PNG", transparency=bytes(range(256))), None),
    "grey.png": (png(8, 0, b"\7\x0b\7", b"\0\7", 3), rgb_of(np.array([[255, 11, 255]]))),
    "colour.png": (png(8, 2, bytes(range(6)), b"\0\0\0\1\0\2", 2), np.array([[[255] * 3, [3, 4, 5]]])),
    "ramp-16.png": (encoded(Image.fromarray(DEEP.astype(np.uint16)), "PNG"), rescaled(DEEP, 65535)),
    "alpha.webp": (encoded(noise("RGBA"), "WEBP", lossless=True, exact=True), None),
    "lossy.webp": (encoded(noise("RGBA"), "WEBP", exif=turned()), None),
    "frames.gif": (encoded(noise("P"), "GIF", save_all=True, append_images=[noise("P")], transparency=3), None),
    "frames.webp": (encoded(noise("RGB"), "WEBP", save_all=True, append_images=[noise("RGB")], lossless=True), None),
    "ink.jpg": (encoded(noise("CMYK"), "JPEG"), None),
    "phone.jpg": (encoded(noise("RGB"), "MPO", save_all=True, append_images=[noise("L")], exif=turned()), None),
    "turned.png": (encoded(noise("LA"), "PNG", exif=turned(5)), None),
    "turned-xmp.png": (encoded(noise("RGB"), "PNG", pnginfo=xmp()), None),
    **{f"turned-{number}.jpg": (encoded(noise("RGB"), "JPEG", exif=turned(number)), None) for number in range(1, 9)},
}


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize("name", FILES)
def test_a_file_shows_what_transformers_reads_of_it_however_it_is_given(tiny: Pair, name: str, tmp_path: Path) -> None:
    data, pixels = FILES[name]
    file = tmp_path / name
    file.write_bytes(data)
    expected = by_transformers(Image.open(file)) if pixels is None else pixels
    with file.open("rb") as opened:
        for source in (file, str(file), data, bytearray(data), memoryview(data), io.BytesIO(data), opened, opened,
                       Image.open(file)):  # fmt: skip
            seen = open_image(source)
            assert np.asarray(seen).tolist() == expected.tolist(), type(source).__name__
            assert open_image(seen).tobytes() == seen.tobytes(), "an upright picture is turned no further"
        assert not opened.closed
    if pixels is None:
        shown = [ImageOps.exif_transpose(Image.open(file))]
        asked = tiny.processor.image_processor(shown, return_tensors="pt")["pixel_values"]
        parts = [{"type": "image", "image": data}, {"type": "text", "text": "What?"}]
        for prompt in (tiny.prompt(data, "What?"), tiny.prompt(None, [{"role": "user", "content": parts}])):
            assert torch.equal(prompt.image_inputs["pixel_values"].float(), asked.float())
    assert read_size(file) == expected.shape[:2]
    assert is_animated(file) == name.startswith("frames")


@pytest.mark.parametrize("progressive", [False, True])
def test_a_photo_of_many_pixels_is_decoded_at_a_part_of_its_size(tmp_path: Path, progressive: bool):
    file = tmp_path / "photo.jpg"
    Image.new("RGB", (6000, 4000), "red").save(file, exif=turned(6), progressive=progressive)
    assert MAX_PIXELS < 6000 * 4000
    assert open_image(file).size == (2000, 3000) and read_size(file) == (3000, 2000)
    assert open_image(file, longest=1344).size == (896, 1344)
    Image.new("RGB", (400, 300)).save(file)
    assert open_image(file, most=30_000).size == (200, 150)
    assert open_image(file, longest=200).size == (200, 150) and open_image(file, longest=900).size == (400, 300)
    assert "at most 116,000 in all" in refusal(file, most=29_000)
    huge = tmp_path / "huge.jpg"
    Image.new("L", (8100, 8000)).save(huge)
    assert f"at most {JPEG_PIXELS * MAX_PIXELS:,} in all" in refusal(huge)


BYTES = RNG.integers(0, 256, (41, 33, 4), np.uint8)
ARRAYS: list[tuple[Any, Pixels]] = [
    (BYTES[..., 0], rgb_of(BYTES[..., 0])),
    (BYTES[..., :1], rgb_of(BYTES[..., 0])),
    (BYTES[..., 2:], by_transformers(Image.fromarray(BYTES[..., 2:]))),
    (BYTES, by_transformers(Image.fromarray(BYTES))),
    (BYTES[::-2, ::2, :3], BYTES[::-2, ::2, :3]),
]


def test_an_array_is_a_picture() -> None:
    for array, expected in ARRAYS:
        assert np.asarray(open_image(array)).tolist() == expected.tolist()
        assert [one.size for one in open_media([array, None, array])] == [expected.shape[1::-1]] * 2
        assert [one.size for one in open_media(array)] == [expected.shape[1::-1]]


TEXT = PngImagePlugin.PngInfo()
TEXT.add_text("Comment", "x" * 3_000_000, zip=True)
NO_PICTURE = "the image is not a readable image: use one of PNG, JPEG"
NUMBERS = "bytes (uint8) for height, width and 1 to 4 channels are read"
ADDRESSES = (
    "https://example.org/a.png", "http://[::1", "file:///etc/a.png", "ftp://x/a", "s3://x/a", "data:image/png;base64,",
)  # fmt: skip


@pytest.mark.parametrize(
    ("source", "line"),
    [
        *((kind(one), f"{one} is an address, and none is opened: save the picture and give its path")
          for one in ADDRESSES for kind in (str, Path)),
        ("no.png", "no image file at no.png"),
        (Path("/tmp"), "no image file at /tmp"),
        ("a\0b", "no image file at a\0b"),
        (17, "a picture cannot be of the type int: give a path, bytes, a binary file, an array or Pillow's"),
        (io.StringIO("x"), "a picture cannot be of the type StringIO: give a path, bytes, a binary file"),
        (b"", NO_PICTURE),
        (b"%PDF-1.4 ...", NO_PICTURE),
        (b"\x89PNG\r\n\x1a\n", "the image "),
        (claiming(40, 40), "the image cannot be read as an image"),
        (encoded(noise("RGB"), "PNG", pnginfo=TEXT), "the image cannot be read as an image: Decompressed data too"),
        (claiming(4_001, 4_000), "the image has 4001 x 4000 pixels: at least 1 and at most 16,000,000 in all are read"),
        (claiming(7_000, 7_000), "the image has 7000 x 7000 pixels: at least 1 and at most 16,000,000 in all are read"),
        (claiming(10**5, 10**5), "the image has far too many pixels: at most 16,000,000 in all are read"),
        *((narrow, f"the image has {size[0]} x {size[1]} pixels: one side may be 20 times the other")
          for size in ((1, 21), (21, 1), (4, 900)) for narrow in (Image.new("RGB", size), claiming(*size))),
        (np.zeros(9), f"the image is an array of float64 with the shape (9,): {NUMBERS}"),
        (np.zeros((0, 9)), f"the image is an array of float64 with the shape (0, 9): {NUMBERS}"),
        (np.zeros((8, 8, 5), np.uint8), f"the image is an array of uint8 with the shape (8, 8, 5): {NUMBERS}"),
    ],
)  # fmt: skip
def test_what_is_no_picture_is_refused_in_one_line(source: Any, line: str, tmp_path: Path) -> None:
    assert refusal(source).startswith(line)
    if isinstance(source, bytes):
        (tmp_path / "x.png").write_bytes(source)
        assert refusal(tmp_path / "x.png").startswith(line.replace("the image", "x.png"))
