"""Options and launch of the page. ``visual.page`` builds it, ``specllava`` loads the models.

Run ``python app.py``: the page is up at once with a recorded race, while the models load.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Final

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # read when gradio is imported: no visit is reported
if os.environ.get("SPACES_ZERO_GPU"):
    import spaces  # before torch, which it makes believe that there is a GPU

import tyro

from specllava.cli.options import PageOptions, PairOptions, load_pair
from specllava.files import shipped
from specllava.models.images import open_image
from specllava.models.options import DTypeName
from specllava.models.presets import Preset, preset_named, presets
from visual.page.page import build_page
from visual.page.run import lent_race, refusal_line
from visual.page.serve import serve
from visual.page.state import PageState
from visual.player.lessons import load_lessons
from visual.player.recorded import read_recorded

if TYPE_CHECKING:
    from specllava.pair import Pair

EXAMPLES = shipped("assets") / "examples"
LESSONS = shipped("assets") / "lessons"
TOY_DRAFTS: Final = {  # by preset: what its draft is called on the page
    "toy": "draft VLM",
    "toy-eagle": "EagleVLM",
    "toy-eagle-compressed": "EagleVLM, compressed",
    "toy-before": "before distillation",
}
ZERO_GPU_DEVICE = "cuda"  # without a number: the one that is lent


def main() -> int:
    """Serve the page until it is stopped. Return the exit code; a failure is one line on stderr."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a container's stop ends like Ctrl-C, with one line
    _print_runs()
    try:
        _start(tyro.cli(PageOptions, description=PageOptions.__doc__))
    except KeyboardInterrupt:
        return _fail("stopped", 0)
    except (ValueError, OSError) as error:
        return _fail(refusal_line(error))
    except Exception as error:  # noqa: BLE001 - one line, and the process ends
        return _fail(f"{type(error).__name__}: {error}")
    return 0


def _print_runs() -> None:
    """Let every run that is over print its line to stdout."""
    printed = logging.StreamHandler(sys.stdout)
    printed.setFormatter(logging.Formatter("%(message)s"))
    runs = logging.getLogger("specllava.runs")
    runs.handlers, runs.propagate = [printed], False
    runs.setLevel(logging.INFO)


def _fail(why: str, code: int = 1) -> int:
    print("app.py:", *why.split(), file=sys.stderr)
    return code


def _start(options: PageOptions) -> None:
    """Read the recorded races, load the models, serve."""
    os.environ["FORWARDED_ALLOW_IPS"] = options.trusted_proxies  # read by the server that gradio starts
    launched = Event()
    try:
        state = make_state(options, launched)
        serve(build_page(state), options.host, options.port, state, root_path=options.root_path)
    finally:
        launched.set()


def make_state(options: PageOptions, launched: Event | None = None) -> PageState:
    """Read the recorded races and load the models: in the background, unless ZeroGPU wants them now.

    Args:
        launched: to be set once the page is up. To load before would slow the launch, which Gradio gives few seconds.
    """
    race = read_recorded(options.open) if options.open else None
    recorded = [read_recorded(path) for path in sorted(EXAMPLES.glob("*.json"))]
    lessons = load_lessons(LESSONS)
    if bare := [one.name for one in recorded if one.image is None]:
        raise ValueError(f"{bare[0]}.json has no picture beside it")
    for one in (*([race] if race else []), *recorded, *(race for lesson in lessons for race in lesson.races)):
        if one.image:
            open_image(one.image)  # a picture that cannot be read is refused before the page is up
    preset = options.running.preset if options.running.target is None else ""
    shared: dict[str, Any] = {
        "recorded": recorded, "lessons": lessons, "preset": preset, "opened": race, "limits": options.limits,
        "launched": launched or Event(),
    }  # fmt: skip
    if os.environ.get("SPACES_ZERO_GPU"):
        spaces.GPU(_nothing)  # a Space that decorates nothing is ended, and the toy pair needs no GPU
        if preset.split("-")[0] != "toy":
            pair = _lent_pair(options.running)
            return PageState(lambda: pair, lent=lent_race(pair, spaces.GPU, options.limits.pixels), **shared)
        running = options.running
        options = replace(options, running=replace(running, loading=replace(running.loading, device="cpu")))
    loading = ThreadPoolExecutor(1, "models").submit(_load, options.running, launched)
    drafts = {name: cache(lambda one=one: _with_draft(loading.result(), one)) for name, one in _drafts(options).items()}
    return PageState(loading.result, drafts=drafts, **shared)


def _load(running: PairOptions, launched: Event | None) -> Pair:
    if launched is not None:
        launched.wait()
    return load_pair(running)


def _lent_pair(running: PairOptions) -> Pair:
    """Load a pair for the GPUs that ZeroGPU lends: in this thread, on the CPU, and only then to "the GPU"."""
    dtype: DTypeName = "bfloat16" if running.loading.dtype == "auto" else running.loading.dtype
    pair = load_pair(replace(running, loading=replace(running.loading, device="cpu", dtype=dtype)))
    target, draft = (None if one is None else one.to(ZERO_GPU_DEVICE) for one in (pair.target, pair.draft))
    # A worker is often new, so it would capture and not replay.
    return replace(pair, target=target, draft=draft, passes="eager")


def _nothing() -> None:
    """Be decorated; nobody calls this."""


def _drafts(options: PageOptions) -> dict[str, Preset]:
    """Return the drafts to choose from besides the page's own, by what they are called.

    Raises:
        ValueError: two of one name, or one without a draft for this target.
    """
    running, known = options.running, presets()
    started = running.preset if running.target is None and running.draft is None else ""
    names = [
        name for name in TOY_DRAFTS if name != started and name in known and Path(str(known[name].draft)).is_dir()
    ]
    drafts = {TOY_DRAFTS[name]: known[name] for name in names} if started in TOY_DRAFTS else {}
    own = preset_named(running.preset) if running.target is None else Preset(running.target)
    for name in options.drafts:
        called = name if Path(name).name in drafts else Path(name).name
        if called in drafts:
            raise ValueError(f"two drafts are called {called}: name each of --drafts once")
        drafts[called] = known.get(name) or Preset(own.target, name)
        if drafts[called].target != own.target or drafts[called].draft is None:
            raise ValueError(f"the preset {name} has no draft for {own.target}")
    return drafts


def _with_draft(pair: Pair, preset: Preset) -> Pair:
    assert preset.draft is not None  # as checked
    return pair.with_draft(preset.draft, **asdict(preset.reading))


def leave(code: int) -> None:
    """End the process at once: a model that is still being loaded is not waited for, and no worker is left."""
    for worker in multiprocessing.active_children():
        worker.kill()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main())
