"""Cards of the column with the visitor's inputs: picture, question, Run and Stop, lessons."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from visual.page import widgets
from visual.page.runs import QUICK
from visual.player.lessons import Lesson
from visual.player.recorded import Recorded

SHOWN_EXAMPLES = 6


@dataclass(frozen=True)
class PictureCard:
    """Components of the picture's card: the picture as state and as image, and where races come from."""

    state: gr.State
    shown: gr.Image
    examples: list[gr.Button]
    trace: gr.UploadButton


@dataclass(frozen=True)
class QuestionCard:
    """Components of the question's card: the question, Run and Stop."""

    question: gr.Textbox
    run: gr.Button
    stop: gr.Button


def picture_card(
    state: Any,
    image: str | None,
    races: Sequence[Recorded],
    notice: gr.HTML,
    upload: Callable[..., Any],
    scene: Callable[..., Any] | None,
) -> PictureCard:
    """Build the card with the picture and ways to another: drawn, uploaded, or with a recorded race or a race file.

    Args:
        state: of the page for the file ``image``; both ``None`` if there is no picture yet.
        upload: takes a file; returns state, image and notice.
        scene: takes whether the mix should be new to training; returns state and image. ``None``: no scenes.
    """
    picture = gr.State(state)
    with gr.Column(elem_classes="card picture-card"):
        shown = gr.Image(
            image, interactive=False, show_label=False, container=False, buttons=[],
            label="Picture", alt_text="The picture that the models look at", elem_id="picture",
        )  # fmt: skip
        with gr.Row(elem_classes="chips"):
            if scene is not None:
                new = gr.Button("New scene", size="sm", elem_classes="pill")
            file = gr.UploadButton("Upload", size="sm", file_types=["image"], elem_classes="pill", elem_id="upload")
            file.upload(upload, file, [picture, shown, notice], **QUICK)
        if scene is not None:
            mix = "with a mix never seen in training"
            unseen = gr.Checkbox(False, label=mix, container=False, elem_classes="unseen")
            new.click(scene, unseen, [picture, shown], **QUICK)
        with gr.Row(elem_classes="chips examples"):
            examples = [
                gr.Button(race.prompt, size="sm", icon=str(race.image), elem_classes="example", min_width=60)
                for race in races[:SHOWN_EXAMPLES]
            ]
            trace = gr.UploadButton(
                "Open a trace", size="sm", file_types=[".json"], elem_classes="pill", elem_id="open-trace"
            )
    return PictureCard(picture, shown, examples, trace)


def question_card(first: str, suggestions: Sequence[str], notice: gr.HTML) -> QuestionCard:
    """Build the card with the question and suggestions that fill it in."""
    with gr.Column(elem_classes="card question-card"):
        gr.HTML(**widgets.constant_arguments('<h2 class="eyebrow">Question</h2>'))
        question = gr.Textbox(
            first, label="Question", show_label=False, container=False, lines=1,
            max_lines=5, max_length=2000, placeholder="Ask about the picture", elem_id="question",
        )  # fmt: skip
        with gr.Row(elem_classes="chips"):
            for suggestion in suggestions:
                chip = gr.Button(suggestion, size="sm", elem_classes="pill")
                chip.click(None, None, question, js=f"() => {json.dumps(suggestion)}", api_visibility="private")
        with gr.Row(elem_classes="actions"):
            run = gr.Button("Run the race", variant="primary", elem_id="run")
            stop = gr.Button("Stop", interactive=False, elem_id="stop", min_width=60)
        notice.render()
    return QuestionCard(question, run, stop)


def lessons_card(lessons: Sequence[Lesson]) -> list[gr.Button]:
    """Build a card with a button per lesson, in order; nothing if there are none."""
    if not lessons:
        return []
    with gr.Column(elem_classes="card learn-card"):
        gr.HTML(**widgets.constant_arguments('<h2 class="eyebrow">Learn</h2>'))
        return [
            gr.Button(f"{number}  {lesson.text.title}", size="sm", elem_classes="teach")
            for number, lesson in enumerate(lessons, start=1)
        ]
