"""A race on the page, over models that are in memory: served to this machine alone, asked by a call for programs."""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory

from gradio_client import Client, handle_file

from benchmarks.gpu.checks import Check
from benchmarks.gpu.lanes import PICTURE, QUESTION
from benchmarks.shared.command import free_port
from specllava.models.loading.load_options import PassesName
from specllava.pair import Pair
from visual.page.app_state import AppState
from visual.page.layout import build_page
from visual.page.serving import serve

TOKENS = 64


def page_race(pair: Pair, way: PassesName) -> Check:
    """Serve the page over a pair and let it race twice, since passes are captured in the first race.

    It passes if both lanes of the second end; equality in half precision is only reported.
    """
    running = pair.running(way)
    state = AppState(lambda: running, pair="")
    page = build_page(state)
    address = serve(page, "127.0.0.1", free_port(), block=False, state=state)
    try:
        with TemporaryDirectory() as folder:
            picture = Path(folder) / "picture.png"
            PICTURE.save(picture)
            client = Client(address, verbose=False)
            for _ in range(2):
                started = time.perf_counter()
                found = client.predict(
                    handle_file(picture), QUESTION, max_new_tokens=TOKENS, min_log_prob=-50.0, api_name="/compare"
                )
                taken = time.perf_counter() - started
            client.close()
    finally:
        page.close(verbose=False)
    lanes = found["target_only"], found["speculative"]
    told = f"{found['speed_up']:.2f}×, {'equal' if found['equal'] else 'different'} answers, {taken:.1f} s for the call"
    return Check(all(lane["ended"] == "finished" for lane in lanes), told)
