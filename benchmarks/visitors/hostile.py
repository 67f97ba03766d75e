"""Requests that nobody's browser sends, one after the other: what does each cost the server, and who waits meanwhile?

    python -m benchmarks.load --hostile --json benchmarks/results/hostile.json

Cost is the processor time and the peak of resident memory of the server's process. Meanwhile another visitor asks for
``/health`` again and again. The peak is Linux's, which can be reset; on other systems memory is not read.
"""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
from PIL import Image

from specllava.core.limits import MIB, Limits

MOST_SECONDS: Final = 0.5  # of the processor, for one request
MOST_BYTES: Final = 50_000_000  # of memory beyond what was resident before it
BYTES_PER_PIXEL, SECONDS_PER_PIXEL = 15, 1 / 16_000_000  # beyond that, of a picture that is decoded, one at a time
MOST_WAIT: Final = 1.0  # seconds, for another visitor
PATIENCE: Final = 120.0  # seconds, for an answer
SIDE: Final = 4000  # pixels of a picture
BURST: Final = 20  # requests at once


@dataclass(frozen=True, slots=True)
class Cost:
    """What a request, or several at once, cost.

    Args:
        size: bytes of each body.
        answer: status of the last one; 0 if there was none in time.
        processor: seconds of the server's process.
        memory: bytes of its peak beyond what was resident before; ``None`` where that is not known.
        health: seconds of the longest wait of another visitor.
        together, pixels: of the request.
    """

    name: str
    size: int
    answer: int
    processor: float
    memory: int | None
    health: float
    together: int = 1
    pixels: int = 0

    @property
    def fits(self) -> bool:
        """Whether it stayed within bounds, each of several at once."""
        seconds = self.together * (MOST_SECONDS + self.pixels * SECONDS_PER_PIXEL)
        memory = MOST_BYTES + self.pixels * BYTES_PER_PIXEL
        return self.processor <= seconds and (self.memory or 0) <= memory and self.health <= MOST_WAIT


@dataclass(frozen=True, slots=True)
class Hostile:
    """A request: its method, its path below ``gradio_api/``, and what it sends.

    Args:
        together: how many of them are sent at once.
        pixels: of the picture that it opens.
        chunked: send the body without its length.
    """

    name: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    method: str = "POST"
    together: int = 1
    pixels: int = 0
    chunked: bool = False

    def send(self, address: str) -> int:
        """Send it and return the status of the answer; an event stream is left after its first line."""
        body: Any = (self.body[at : at + 65536] for at in range(0, len(self.body), 65536)) if self.chunked else None
        with httpx.Client(timeout=PATIENCE) as client:
            target = f"{address}gradio_api/{self.path}"
            with client.stream(self.method, target, content=body or self.body, headers=self.headers) as answer:
                next(answer.iter_raw(), b"")
                return answer.status_code


def hostile(address: str, process: psutil.Process) -> list[Cost]:
    """Send every request to a page whose models are loaded. Return the cost of each."""
    config = httpx.get(f"{address}config", timeout=PATIENCE).json()
    ids = {part["props"].get("elem_id"): part["id"] for part in config["components"]}
    calls = [call for call in config["dependencies"] if call["backend_fn"]]
    upload = next(call["id"] for call in calls if call["inputs"] == [ids["upload"]])
    begin = next(call for call in calls if [ids["run"], "click"] in call["targets"])
    kept = httpx.post(f"{address}gradio_api/upload", files={"files": ("a.png", _picture(SIDE))}, timeout=PATIENCE)
    file = {"path": kept.json()[0], "meta": {"_type": "gradio.FileData"}}
    question = begin["inputs"].index(ids["question"])
    sent = [*_bodies(upload, begin, question, file), *_uploads()]
    opened = Hostile("a picture of 16 million pixels", "run/predict", _call(upload, [[file]]), JSON, pixels=SIDE**2)
    sent += [
        opened,
        replace(opened, name=f"{BURST} pictures at once", together=BURST),
        Hostile(f"{BURST} heartbeats at once", "heartbeat/*", method="GET", together=BURST),
    ]
    return [measure(address, process, one) for one in sent]


JSON: Final = {"Content-Type": "application/json"}


def _call(handler: int, data: list[Any], **more: Any) -> bytes:
    return json.dumps({"fn_index": handler, "data": data, "session_hash": "hostile"} | more).encode()


def _repeated(start: bytes, item: bytes, end: bytes, size: int = MIB) -> bytes:
    """Fill a list up to a size."""
    count = max(1, (size - len(start) - len(end)) // (len(item) + 1))
    return start + b",".join([item] * count) + end


def _bodies(upload: int, begin: Mapping[str, Any], place: int, file: Mapping[str, Any]) -> Iterator[Hostile]:
    """Yield bodies of JSON: long lists, deep ones, many keys, long texts and names."""
    known = json.dumps(file).encode()
    start = b'{"fn_index":%d,"session_hash":"hostile","data":[' % upload
    for item in (b"{}", b"[]", b"0", known):
        yield Hostile(f"a list of {item[:12].decode()}", "run/predict", _repeated(start + b"[", item, b"]]}"), JSON)
    event = start + b'null],"event_data":{"given":['
    yield Hostile("a long event", "run/predict", _repeated(event, b"[{}]", b"]}}"), JSON)
    yield Hostile("a deep list", "run/predict", b"[" * (MIB // 2) + b"]" * (MIB // 2), JSON)
    keys = ",".join(f'"{number}":0' for number in range(MIB // 12))
    yield Hostile("many keys", "run/predict", f"{{{keys}}}".encode(), JSON)
    data: list[Any] = [None] * len(begin["inputs"])
    for character in ("w", "\U0001f600", "\x00"):
        data[place] = character * (MIB // len(json.dumps(character)))
        yield Hostile(f"a question of {character!r}", "run/predict", _call(begin["id"], data), JSON)
    yield Hostile("a session's name", "run/predict", _call(begin["id"], [], session_hash="s" * MIB), JSON)
    pictures = b'{"image":%s,"question":"What?","more_images":[' % known
    yield Hostile("pictures of a call", "call/v2/generate", _repeated(pictures, known, b"]}"), JSON)
    yield Hostile("names of a call", "call/v2/generate", b'{"%s":1}' % (b"n" * MIB), JSON)


def _uploads() -> Iterator[Hostile]:
    mark = b"-" * 40
    sent_as = {"Content-Type": f"multipart/form-data; boundary={mark.decode()}"}
    head = b"--" + mark + b'\r\nContent-Disposition: form-data; name="files"'
    named, end = head + b'; filename="a.png"\r\n\r\n', b"\r\n--" + mark + b"--\r\n"
    large = named + b"x" * (Limits().upload_bytes - MIB)
    yield Hostile("an upload of many files", "upload", b"\r\n".join([named + b"x"] * 1000) + end, sent_as)
    yield Hostile("an upload of a field", "upload", head + b"\r\n\r\n" + b"x" * (40 * MIB) + end, sent_as)
    yield Hostile("an upload of many fields", "upload", b"\r\n".join([head + b"\r\n\r\nx"] * 9000) + end, sent_as)
    yield Hostile("an upload of line ends", "upload", named + b"\r\n" * (10 * MIB - 400) + end, sent_as)
    yield Hostile("an upload without its length", "upload", b"\r\n".join([large] * 8) + end, sent_as, chunked=True)
    for path in ("component_server", "process_recording"):
        yield Hostile(f"a form for {path}", path, large + end, sent_as)


def _picture(side: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (side, side), "red").save(file, "PNG")
    return file.getvalue()


def measure(address: str, process: psutil.Process, one: Hostile) -> Cost:
    """Send a request as often as it says, at once, and read what the server's process took for it."""
    answers: list[int] = []
    before = process.memory_info().rss if reset_resident_peak(process.pid) else None
    spent = process.cpu_times()

    def send(number: int) -> None:
        try:
            sent = replace(one, path=one.path.replace("*", f"n{number}-{time.monotonic_ns()}"))
            answers.append(sent.send(address))
        except httpx.HTTPError:
            answers.append(0)

    with _watched(address) as waits:
        senders = [threading.Thread(target=send, args=(number,)) for number in range(one.together)]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
        time.sleep(0.3)  # for what a closed stream leaves to do
    now = process.cpu_times()
    memory = None if before is None else max(0, resident_peak(process.pid) - before)
    processor = now.user + now.system - spent.user - spent.system
    return Cost(one.name, len(one.body), answers[-1], processor, memory, max(waits), one.together, one.pixels)


@contextmanager
def _watched(address: str) -> Iterator[list[float]]:
    """Ask for ``/health`` until the end, and note how many seconds each answer took."""
    waits, over = [0.0], threading.Event()

    def watch() -> None:
        with httpx.Client(timeout=2 * PATIENCE) as client:
            while not over.wait(0.05):
                began = time.monotonic()
                client.get(f"{address}health")
                waits.append(time.monotonic() - began)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield waits
    finally:
        over.set()
        watcher.join()


def reset_resident_peak(process: int) -> bool:
    """Reset a process's peak of resident memory; return whether the system can."""
    try:
        Path(f"/proc/{process}/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def resident_peak(process: int) -> int:
    """Return a process's peak of resident memory in bytes, where it can be reset."""
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])
