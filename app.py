"""Options and launch of the page. ``visual.page`` builds it, ``specllava`` loads the models.

Run ``python app.py``: the page is up at once with a recorded race, while the models load behind it.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # read when gradio is imported: no visit is reported

import tyro
from pydantic import ValidationError

from specllava.cli.options import PairOptions, load_pair
from specllava.config import one_line
from specllava.models.images import open_image
from specllava.shipped import shipped
from visual.page.app_state import AppState, Models
from visual.page.dialogue import Chat, Dialogues, TurnParts
from visual.page.experiments import Experiments
from visual.page.first_paint import FirstPaint
from visual.page.layout import build_page
from visual.page.serving import serve
from visual.player.lessons import load_lessons
from visual.player.recorded import load_recorded, read_recorded

EXAMPLES = shipped("assets") / "examples"
LESSONS = shipped("assets") / "lessons"
FIRST_PAINT = shipped("assets") / "first_paint.html"


@dataclass(frozen=True)
class Serving:
    """Watch lossless tree speculative decoding of a vision-language model."""

    running: PairOptions

    host: str = field(
        default_factory=lambda: _from("GRADIO_SERVER_NAME") or ("0.0.0.0" if _from("SPACE_ID") else "127.0.0.1")
    )
    """Who may connect: GRADIO_SERVER_NAME; without it everybody on a hosted Space, otherwise this machine alone."""

    port: int = field(default_factory=lambda: int(_from("GRADIO_SERVER_PORT", "PORT") or 7860))
    """Where the page is served: GRADIO_SERVER_PORT or PORT, 7860 without them."""

    root_path: str = field(default_factory=lambda: _from("GRADIO_ROOT_PATH"))
    """Path or whole address under which a proxy shows the page, such as /demo: GRADIO_ROOT_PATH."""

    code: str = field(default_factory=lambda: _from("SPECLLAVA_CODE") or _space_files())
    """Address of the project's files, for the links Code and Docs: SPECLLAVA_CODE, on a hosted Space its own files."""

    open: Path | None = None
    """A race file to show first, in place of an example."""


def _from(*names: str) -> str:
    """Return the first of these environment variables that is set."""
    return next((os.environ[name] for name in names if os.environ.get(name)), "")


def _space_files() -> str:
    space = _from("SPACE_ID")
    return f"https://huggingface.co/spaces/{space}/tree/main" if space else ""


def main() -> int:
    """Serve the page until it is stopped. Return the exit code; a failure is one line on stderr."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a container's stop ends like Ctrl-C, with one line
    try:
        _start(tyro.cli(Serving, description=Serving.__doc__))
    except KeyboardInterrupt:
        return _ended("stopped", 0)
    except ValidationError as error:
        return _ended(one_line(error))
    except (ValueError, OSError) as error:
        return _ended(str(error))
    except Exception as error:  # noqa: BLE001 - one line, and the process ends
        return _ended(f"{type(error).__name__}: {error}")
    return 0


def _ended(why: str, code: int = 1) -> int:
    print("app.py:", *why.split(), file=sys.stderr)
    return code


def _start(options: Serving) -> None:
    """Read the recorded races, load the models in the background, serve."""
    race = read_recorded(options.open) if options.open else None
    recorded, lessons = load_recorded(EXAMPLES), load_lessons(LESSONS)
    for one in (*([race] if race else []), *recorded, *(lesson.race for lesson in lessons)):
        if one.image:
            open_image(one.image)  # a picture that cannot be read is refused before the page is up
    loading = ThreadPoolExecutor(1, "models").submit(load_pair, options.running)
    running = options.running
    toy = running.preset.startswith("toy") and running.target is None
    others = _others(running) if toy and running == replace(PairOptions(), device=running.device) else {}
    state = AppState(
        loading.result, recorded, toy=toy, opened=race, lessons=lessons, code=options.code,
        lab=lambda: _lab(loading.result()), dialogues=Dialogues(lambda turns: _chat(loading.result(), turns)),
        others=others,
    )  # fmt: skip
    serve(build_page(state), options.host, options.port, FirstPaint(state, FIRST_PAINT), root_path=options.root_path)


def _others(running: PairOptions) -> dict[str, Models]:
    """Return the toy pair in other precisions, and with its draft as it was before distillation. Both are small."""
    before = replace(running, preset="toy-before")
    return {
        "before distillation": _models("the draft as it was before distillation", before),
        "float64": _models("both models in float64, in which nothing ties", replace(running, dtype="float64")),
        "bfloat16": _models("both models in bfloat16, as on a GPU", replace(running, dtype="bfloat16")),
    }


def _models(about: str, options: PairOptions) -> Models:
    @cache
    def pair() -> Any:
        return load_pair(options)

    return Models(about, pair, lambda: _lab(pair()), lambda turns: _chat(pair(), turns))


def _lab(pair: Any) -> Experiments:
    from specllava.lab import Lab

    return Lab(pair)


def _chat(pair: Any, turns: Sequence[TurnParts]) -> Chat:
    from specllava.chat import Chat, Turn

    return Chat(pair, [Turn(*turn) for turn in turns])


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # a model that is still being loaded is not waited for
