"""The card with the lessons, as widgets. Imports gradio, not torch."""

from __future__ import annotations

from collections.abc import Sequence

import gradio as gr

from visual.page import widgets as pieces
from visual.player.lessons import Lesson


def lessons_card(lessons: Sequence[Lesson]) -> list[gr.Button]:
    """A button per lesson, in order; nothing if there are none."""
    if not lessons:
        return []
    with gr.Column(elem_classes="card learn-card"):
        gr.HTML(**pieces.constant_arguments('<h2 class="eyebrow">Learn</h2>'))
        return [
            gr.Button(f"{number}  {lesson.told.title}", size="sm", elem_classes="teach")
            for number, lesson in enumerate(lessons, start=1)
        ]
