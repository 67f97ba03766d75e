"""Options and launch of the page. ``visual.page`` builds it, ``specllava`` loads the models.

Run ``python app.py``: the page is up at once with a recorded race, while the models load.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Final

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # read when gradio is imported: no visit is reported
if os.environ.get("SPACES_ZERO_GPU"):
    import spaces  # before torch, which it makes believe that there is a GPU

import tyro
from pydantic import ValidationError

from specllava.cli.options import PairOptions, load_pair
from specllava.cli.page_options import PageOptions
from specllava.config import one_line
from specllava.files import shipped
from specllava.models.options import DTypeName
from specllava.models.presets import Preset, preset_named, presets
from specllava.models.images import open_image
from visual.page.app_state import AppState, Models
from visual.page.dialogue import Dialogues, TurnParts
from visual.page.layout import build_page
from visual.page.model_choice import DraftChoices
from visual.page.pictures import family_of
from visual.page.run_requests import RunRequests
from visual.page.serving import give_back_freed_memory, serve
from visual.page.run import ZeroGPUPair
from visual.player.lessons import load_lessons
from visual.player.recorded import load_recorded, read_recorded

if TYPE_CHECKING:
    from specllava.chat import Chat
    from specllava.lab import Lab
    from specllava.pair import Pair

EXAMPLES = shipped("assets") / "examples"
LESSONS = shipped("assets") / "lessons"
TOY_DRAFTS: Final = {  # by preset: what its draft is called on the page, and what it is
    "toy": ("draft VLM", "a small vision-language model of its own, distilled from the target"),
    "toy-eagle": ("EagleVLM", "one layer that reads the target's own states (SpecVLM)"),
    "toy-eagle-compressed": ("EagleVLM, compressed", "the same, and it reads fewer tokens of the picture"),
    "toy-before": ("before distillation", "the draft VLM as it was before it learnt from the target"),
}
ZERO_GPU_DEVICE = "cuda"  # without a number: the one that is lent


def main() -> int:
    """Serve the page until it is stopped. Return the exit code; a failure is one line on stderr."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a container's stop ends like Ctrl-C, with one line
    _print_runs()
    give_back_freed_memory()
    try:
        _start(tyro.cli(PageOptions, description=PageOptions.__doc__))
    except KeyboardInterrupt:
        return _fail("stopped", 0)
    except ValidationError as error:
        return _fail(one_line(error))
    except (ValueError, OSError) as error:
        return _fail(str(error))
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


def make_state(options: PageOptions, launched: Event | None = None) -> AppState:
    """Read the recorded races and load the models: in the background, unless ZeroGPU wants them now.

    Args:
        launched: to be set once the page is up. To load before would slow the launch, which Gradio gives few seconds.
    """
    race = read_recorded(options.open) if options.open else None
    recorded, lessons = load_recorded(EXAMPLES), load_lessons(LESSONS)
    for one in (*([race] if race else []), *recorded, *(lesson.race for lesson in lessons)):
        if one.image:
            open_image(one.image)  # a picture that cannot be read is refused before the page is up
    pair = options.running.preset if options.running.target is None else ""
    shared: dict[str, Any] = {
        "recorded": recorded, "pair": pair, "opened": race, "lessons": lessons, "code": options.code,
        "requests": RunRequests(options.limits), "launched": launched or Event(),
    }  # fmt: skip
    if os.environ.get("SPACES_ZERO_GPU"):
        spaces.GPU(_nothing)  # a Space that decorates nothing is ended, and the toy pair needs no GPU
        if family_of(pair) != "toy":
            loaded = _lent_pair(options.running)
            return AppState(loaded.result, **shared)  # races alone: a dialogue's caches would go with the worker
        options = replace(options, running=replace(options.running, device="cpu"))
    loading = ThreadPoolExecutor(1, "models").submit(_load, options.running, launched)
    drafts = _drafts(options)
    dialogues = Dialogues(lambda turns: _chat(loading.result(), turns), turns=options.limits.turns)
    choices = _choices(options, drafts)
    others = {name: _models(_with_draft(loading.result, drafts[name])) for name in choices.drafts}
    return AppState(
        loading.result, **shared,
        lab=lambda: _lab(loading.result()), dialogues=dialogues, others=others, choices=choices,
    )  # fmt: skip


def _load(running: PairOptions, launched: Event | None) -> Pair:
    if launched is not None:
        launched.wait()
    return load_pair(running)


def _lent_pair(running: PairOptions) -> Future[ZeroGPUPair]:
    """Load a pair for the GPUs that ZeroGPU lends: in this thread, on the CPU, and only then to "the GPU"."""
    loaded = Future[ZeroGPUPair]()
    dtype: DTypeName = "bfloat16" if running.dtype == "auto" else running.dtype
    try:
        pair = load_pair(replace(running, device="cpu", dtype=dtype)).to(ZERO_GPU_DEVICE)
        pair = replace(pair, passes="eager")  # a worker is often new, so it would capture and not replay
        loaded.set_result(ZeroGPUPair(pair, spaces.GPU))
    except Exception as error:  # noqa: BLE001 - the page starts without the models, and says so
        loaded.set_exception(error)
    return loaded


def _nothing() -> None:
    """Be decorated; nobody calls this."""


def _drafts(options: PageOptions) -> dict[str, Preset]:
    """Return the drafts to choose from by what they are called; the one that the page was started with comes first.

    Raises:
        ValueError: two of one name.
    """
    running, known = options.running, presets()
    own = preset_named(running.preset) if running.target is None else Preset(running.target)
    source, reading = own.chosen(running.draft, running.reading)
    started = running.preset if running.target is None and running.draft is None else ""
    listed = [started] if started in TOY_DRAFTS else []
    there = [name for name in TOY_DRAFTS if name in known and Path(str(known[name].draft)).is_dir()]
    listed += [name for name in there if listed and name != started]
    drafts = {TOY_DRAFTS[name][0]: known[name] for name in listed}
    drafts = drafts or {"" if source is None else Path(source).name: Preset(own.target, source, reading=reading)}
    for name in options.drafts:
        called = Path(name).name
        if called in drafts:
            raise ValueError(f"two drafts are called {called}: name each of --drafts once")
        drafts[called] = known.get(name) or Preset(own.target, name)
        if drafts[called].target != own.target or drafts[called].draft is None:
            raise ValueError(f"the preset {name} has no draft for {own.target}")
    return drafts


def _choices(options: PageOptions, drafts: Mapping[str, Preset]) -> DraftChoices:
    """Return the drafts that visitors choose among, and what each is."""
    known = dict(TOY_DRAFTS.values())
    about = {name: known.get(name, "a draft of the same target") for name in drafts}
    own, *_ = drafts
    about_own = known.get(own, "the draft that this page was started with")
    del about[own]
    return DraftChoices(own, about_own, about, tree=options.running.tree)


def _with_draft(base: Callable[[], Any], preset: Preset) -> Callable[[], Any]:
    return cache(lambda: base().with_draft(preset.draft, **asdict(preset.reading)))


def _models(pair: Callable[[], Any]) -> Models:
    return Models(pair, lambda: _lab(pair()), lambda turns: _chat(pair(), turns))


def _lab(pair: Any) -> Lab:
    from specllava.lab import Lab

    return Lab(pair)


def _chat(pair: Any, turns: Sequence[TurnParts]) -> Chat:
    from specllava.chat import Chat, Turn

    return Chat(pair, [Turn(*turn) for turn in turns])


def leave(code: int) -> None:
    """End the process at once: a model that is still being loaded is not waited for, and no worker is left."""
    for worker in multiprocessing.active_children():
        worker.kill()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main())
