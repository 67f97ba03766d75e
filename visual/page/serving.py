"""Serving of a page that was built: limits, files and looks that Gradio gets at its launch."""

from __future__ import annotations

import gradio as gr
from starlette.middleware import Middleware

from visual.page import widgets
from visual.page.first_paint import FirstPaint, FirstPaintMiddleware
from visual.page.link_preview import LinkPreview
from visual.player import markup

WAITING = 16  # runs, over all visitors; who comes behind them is told to come again
SESSIONS = 100  # whose last frames and pictures are kept, at up to 10 MB each; the one longest away is forgotten


def serve(
    page: gr.Blocks, host: str, port: int, paint: FirstPaint | None = None, block: bool = True, root_path: str = ""
) -> str:
    """Serve the page to everybody who can reach ``host`` and return its address.

    Args:
        page: the whole page.
        host, port: where to listen.
        paint: markup of the document before any script has run.
        block: return only when the server has been stopped.
        root_path: path or address under which a proxy shows the page.
    """
    preview = LinkPreview(root_path)
    document = [Middleware(FirstPaintMiddleware, paint=paint, preview=preview)] if paint else []
    page.queue(max_size=WAITING, api_open=False)  # nobody comes past the one slot for what computes
    _, address, _ = page.launch(
        server_name=host, server_port=port, root_path=root_path, prevent_thread_lock=not block, quiet=not block,
        show_error=False, ssr_mode=False, run_history=False, enable_monitoring=False, footer_links=[],
        state_session_capacity=SESSIONS, max_file_size="20mb", favicon_path=str(markup.FAVICON),
        theme=widgets.page_theme(), css=markup.stylesheet(), head=widgets.HEAD,
        app_kwargs={"middleware": document},
    )  # fmt: skip
    return address
