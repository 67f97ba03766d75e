"""The endpoint of the API: a question answered by the target alone and with speculative decoding."""

from __future__ import annotations

import json
import logging
import math
import time
import uuid
from pathlib import Path
from typing import Any, Final

import gradio as gr
from gradio import FileData
from gradio.events import api
from gradio_client.utils import is_http_url_like

from specllava.config import short
from specllava.metrics import compare as compare_lanes
from specllava.metrics import speedup, summarise
from specllava.race_file import race_json
from specllava.trace import SPECULATIVE, TARGET_ONLY, DecodeTrace
from visual.page.run import (
    COMPUTE,
    Bounded,
    failure_line,
    lanes_config,
    log_run,
    open_pictures,
    refusal_line,
    session_of,
)
from visual.page.settings import FIELDS, make_config, read_draft
from visual.page.state import PageState
from visual.player.recorded import check_question

log = logging.getLogger("specllava.page")
Answer = dict[str, Any]
Options = dict[str, Any]
OPTIONS: Final = "options of decoding by name, such as rule, depth or temperature; others keep their defaults"


def connect_api(page: gr.Blocks, state: PageState) -> None:
    """Register the endpoint with the page that is being built."""

    def compare(
        request: gr.Request, image: FileData | None, question: str, options: Options | None = None
    ) -> Answer:
        """Answer a question about a picture twice, by the target model alone and with speculative decoding.

        Args:
            image: the picture, as an upload to this server was answered; none where the question is about none
            question: what is asked
            options: options of decoding by name, such as rule, depth or temperature; others keep their defaults

        Returns:
            both answers, whether their tokens are equal, tau (tokens per target pass), passes, speed-up, the race file
        """
        traces = _run(state, request, question, image, options)
        alone, together = traces.get(TARGET_ONLY), traces.get(SPECULATIVE)
        same = compare_lanes(alone, together) if alone and together else None
        return {
            "target_only": _answer(alone), "speculative": _answer(together),
            "equal": None if same is None else same.identical,
            "first_difference": None if same is None else same.position,
            "speed_up": _number(speedup(summarise([alone]), summarise([together]))) if alone and together else None,
            "trace": json.loads(race_json(alone, together)),
        }  # fmt: skip

    api(compare, api_name="compare", concurrency_id=COMPUTE, concurrency_limit=1)


def _run(state: PageState, request: gr.Request, question: Any, image: Any, options: Any) -> dict[str, DecodeTrace]:
    """Run a call to its end or its deadline. Return the traces by lane.

    Raises:
        gr.Error: what can be changed, in one line.
    """
    session, number = f"{session_of(request)} {uuid.uuid4().hex}", 0
    began, outcome, traces = time.monotonic(), "refused", dict[str, DecodeTrace]()
    try:
        if not isinstance(question, str) or not question.strip():
            raise ValueError("the question is empty: send a text")
        check_question(question, state.limits.prompt_characters)
        given = _options(options)
        draft, config = read_draft(given.get("drafter")), make_config(given, state.limits)
        if draft is not None and draft not in state.drafts:
            known = ", ".join(f"draft: {name}" for name in state.drafts)
            raise ValueError(f"there is no draft {short(draft)}: known are {known or 'none'}")
        path = checked_path(image)
        number = state.runs.ask(session)
        pair = state.pair(draft)
        if state.lent is not None:
            raise ValueError("this page lends its GPU to visitors alone: it has no API")
        chosen, absent = lanes_config(pair.info, config)
        if absent:
            raise ValueError(f"drafter {config.drafter} drafts nothing here: choose another")
        images = open_pictures(path, state.limits.pixels) if pair.sees else ()
        events = pair.race(pair.lane(images, question, chosen).with_target_only())
        race = Bounded(events, state.limits.seconds_per_run, lambda: state.runs.state(session, number))
        traces = dict(pair.collect(list(race)))
        outcome = race.outcome
        return traces
    except ValueError as refusal:
        raise gr.Error(refusal_line(refusal), print_exception=False) from None
    except Exception as problem:
        outcome = "failed"
        log.exception("a call failed")
        raise gr.Error(failure_line(problem), print_exception=False) from None
    finally:
        state.runs.end(session, number)
        log_run("call", outcome, time.monotonic() - began, traces)


def _options(options: Any) -> dict[str, Any]:
    if options is None:
        return {}
    if not isinstance(options, dict):
        raise ValueError(f"options = {short(options)}: names and values are expected")
    unknown = [name for name in options if name not in FIELDS]
    if unknown:
        raise ValueError(f"there is no option {short(unknown[0])}: {OPTIONS}")
    return options


def checked_path(image: Any) -> str | None:
    """Return the path of a picture that was uploaded to this server.

    Gradio checks a path that is marked as file data; a bare one would name any file of the server.

    Raises:
        ValueError: an address, an unmarked path, or a file outside Gradio's own folder of uploads.
    """
    if image is None:
        return None
    path, meta = (image.get("path"), image.get("meta")) if isinstance(image, dict) else (None, None)
    marked = isinstance(meta, dict) and meta.get("_type") == "gradio.FileData"
    if not marked or not isinstance(path, str) or is_http_url_like(path.lower()):
        raise ValueError("no picture came: image must be file data, as an upload to this server was answered")
    from gradio.utils import get_upload_folder, is_in_or_equal

    if not is_in_or_equal(path, get_upload_folder()) or not Path(path).is_file():
        raise ValueError("no picture came: this file was not uploaded to this server, or is no longer kept")
    return path


def _answer(trace: DecodeTrace | None) -> Answer | None:
    if trace is None:
        return None
    totals = summarise([trace])
    return {
        "answer": trace.text, "tokens": totals.tokens, "passes": totals.target_passes, "tau": _number(totals.tau),
        "seconds": totals.decode_seconds, "ended": trace.finish_reason,
    }  # fmt: skip


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
