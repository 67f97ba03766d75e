"""Page of a ZeroGPU Space in a process of its own: ``python -m support.zero_gpu_space toy|lent`` prints what it saw.

``lent`` is the toy pair as one that ZeroGPU lends its GPUs to, in float32 on the CPU that plays the GPU.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from support.served_page import free_port
from support.zero_gpu import DeviceAPI, fake_zero_gpu

QUESTION, SETTINGS = "Describe this image in detail.", {"max_new_tokens": 24}


def race(state: Any, question: str = QUESTION, settings: dict[str, Any] = SETTINGS) -> Iterator[tuple[Any, str]]:
    """The updates of a race that a visitor requests: frames, and words."""
    from support.scenes import scene
    from visual.page.race import race_kind
    from visual.page.run_requests import RunRequest
    from visual.page.runs import run_updates

    key = ("me", "race")
    state.requests.request(key, RunRequest(scene(3), question, settings))
    for value, notice in run_updates(state.requests, race_kind(state), key):
        yield value, json.loads(notice)["text"] if notice else ""


def ended(updates: Iterator[tuple[Any, str]]) -> dict[str, Any]:
    """How a race ended: the words, the tokens of its steps, and what its last frame says."""
    *_, (shown, words) = updates
    frames = [json.loads(frame) for frame in shown or ()]
    said = [token for frame in frames if frame["kind"] == "step" for token in frame.get("ids", ())]
    return {"words": words, "tokens": said, "ending": frames[-1]["ending"] if frames else None}


def serve(state: Any) -> None:
    from visual.page.layout import build_page
    from visual.page.serving import serve as serve_page

    serve_page(build_page(state), "127.0.0.1", free_port(), block=False, state=state)


def toy(api: DeviceAPI) -> dict[str, Any]:
    written, hosts = watched()
    import app
    from specllava.cli.page_options import PageOptions

    state = app.make_state(PageOptions())
    serve(state)
    seen = {"device": state.loading.result().device, "race": ended(race(state)), "lab": state.lab is not None}
    return seen | {"asked": [name for name, _ in api.asked], "written": written, "hosts": hosts}


def watched() -> tuple[list[str], list[str]]:
    """What this process writes to and which hosts it connects to, from now on."""
    written: list[str] = []
    hosts: list[str] = []

    def hear(event: str, given: tuple[Any, ...]) -> None:
        opened = event == "open" and not isinstance(given[0], int) and given[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if opened or event in ("os.mkdir", "os.rename", "os.remove"):
            written.append(os.path.abspath(os.fsdecode(given[0])))
        elif event == "socket.connect":
            hosts.append(str(given[1][0] if isinstance(given[1], tuple) else given[1]))

    sys.addaudithook(hear)
    return written, hosts


def lent(api: DeviceAPI) -> dict[str, Any]:
    import app
    from specllava import DecodingConfig
    from specllava.cli.options import PairOptions
    from specllava.cli.page_options import PageOptions
    from specllava.pair import Pair
    from support.scenes import scene
    from visual.page.app_state import AppState
    from visual.page.run import Grant, ZeroGPUPair

    race_of = Pair.race

    def broken(self: Pair, image: Any, messages: Any, *rest: Any) -> Any:
        if messages == "fail":
            raise RuntimeError("a secret path")
        return race_of(self, image, messages, *rest)

    Pair.race = broken  # type: ignore[method-assign]
    app.ZERO_GPU_DEVICE = "cpu"
    app.ZeroGPUPair = partial(ZeroGPUPair, grant=Grant(token=2.0))  # a busy machine is slow
    os.environ |= {"SPECLLAVA_TARGET": "assets/toy/target", "SPECLLAVA_DRAFT": "assets/toy/draft"}
    read = PageOptions().running
    state = app.make_state(PageOptions(running=PairOptions(target=read.target, draft=read.draft, dtype="float32")))
    pair = state.backend()._pair
    brief = AppState(lambda: ZeroGPUPair(pair, app.spaces.GPU, Grant(0, 0, 0)))
    short = brief.backend()
    serve(state)
    asked = len(api.asked)
    seen: dict[str, Any] = {"preset": [read.target, read.draft], "launch": api.asked[:], "own pid": os.getpid()}
    image = scene(3).open()
    here = pair.compare(image, QUESTION, DecodingConfig(**SETTINGS))
    seen["here"] = [token for step in here["speculative"].steps for token in step.emitted]
    seen["first"], seen["first asked"] = ended(race(state)), api.asked[asked:]
    seen["second"] = ended(race(state))

    updates = race(state, settings={"max_new_tokens": 400})
    assert next(updates)[1].startswith("Getting ready")
    while not next(updates)[0]:
        pass
    state.requests.stop(("me", "race"))
    started = time.monotonic()
    seen["stopped"], seen["seconds to stop"] = ended(updates), time.monotonic() - started
    seen["refused"] = ended(race(state, settings={"max_new_tokens": 4096}))
    seen["failed"] = ended(race(state, "fail"))
    seen["after"] = ended(race(state))
    seen["workers"] = [values["pid"] for name, values in api.asked if name == "/allow"]
    seen["releases"] = [api.times("/schedule"), api.times("/release")]
    seen["out of time"] = ended(race(AppState(lambda: short)))
    api.refuse = True
    seen["no gpu"] = ended(race(state))
    api.refuse = False
    updates = race(state, settings={"max_new_tokens": 400})
    while not next(updates)[0]:
        pass
    os.kill(int(seen["workers"][-1]), signal.SIGKILL)
    seen["killed"] = ended(updates)
    seen["after killed"] = ended(race(state))
    return seen


if __name__ == "__main__":
    api = fake_zero_gpu()
    print(json.dumps({"toy": toy, "lent": lent}[sys.argv[1]](api)))
    import app

    app.leave(0)
