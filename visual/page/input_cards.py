"""Cards of the column with the visitor's inputs: picture, question, Run and Stop, lessons."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import gradio as gr

from specllava.config import Limits
from specllava.files import Split
from visual.page import widgets
from visual.page.controls import settings_drawer
from visual.page.model_choice import DraftChoices
from visual.page.notices import notice_arguments
from visual.page.pictures import SEEN, Picture, address_of, family_of, new_scene
from visual.page.runs import QUICK
from visual.page.uploads import NONE, UploadStore, read_upload, upload_hint
from visual.player.lessons import Lesson
from visual.player.recorded import Recorded, titles

SHOWN_EXAMPLES = 8
SCENES: Final[dict[str, Split]] = {"New scene": "train", "Strange scene": "held-out"}
CLOSE_LESSONS = "() => document.querySelector('.learn-card button.label-wrap.open')?.click()"
# Run waits for a question; while Stop is on, Run stays off.
ASKED = """
(question) => ({ __type__: "update", interactive: /\\S/.test(question) && document.querySelector("#stop").disabled })
"""


@dataclass(frozen=True)
class PictureCard:
    """Components of the picture's card: its reference, its image, where races come from, and a notice."""

    reference: gr.HTML
    shown: gr.HTML
    examples: list[gr.Button]
    race_file: gr.UploadButton
    notice: gr.HTML


@dataclass(frozen=True)
class QuestionCard:
    """Components of the question's card: the question, Run and Stop, the settings; ``follow`` where dialogues are."""

    question: gr.Textbox
    run: gr.Button
    stop: gr.Button
    settings: gr.HTML
    follow: gr.Button | None


def picture_card(
    first: Picture | None,
    races: Sequence[Recorded],
    pair: str,
    limits: Limits | None = None,
    uploads: UploadStore | None = None,
) -> PictureCard:
    """Build the card with the picture and ways to another: a recorded race, a drawn scene, an upload, a race file.

    Args:
        first: the picture that the page opens with.
        pair: as of :class:`visual.page.app_state.AppState`.
        limits: on uploads.
        uploads: where uploads are kept.
    """
    limits, store = limits or Limits(), uploads or UploadStore()
    reference = gr.HTML(**widgets.held_arguments(store.reference("", first)))
    with gr.Column(elem_classes="card picture-card"):
        shown = gr.HTML(**widgets.picture_arguments(address_of(first) if first else None), elem_id="picture")
        without = gr.Button("No picture", size="sm", elem_classes="pill", elem_id="no-picture")
        shown_races = races[:SHOWN_EXAMPLES]
        with gr.Row(elem_classes="chips examples"):
            examples = [
                gr.Button(title, size="sm", icon=str(race.image), elem_classes="example", min_width=40)
                for title, race in zip(titles(shown_races), shown_races, strict=True)
            ]
    with gr.Column(elem_classes="card sources-card"):
        with gr.Row(elem_classes="chips"):
            scenes = [gr.Button(name, size="sm", elem_classes="pill") for name in SCENES if family_of(pair) in SEEN]
            upload = gr.UploadButton(
                "Upload", size="sm", file_types=["image"], file_count="multiple", elem_classes="pill", elem_id="upload"
            )
            race_file = gr.UploadButton(
                "Open a race file", size="sm", file_types=[".json"], elem_classes="pill", elem_id="open-race"
            )
        hint = f"{upload_hint(limits)} {SEEN.get(family_of(pair), '')}".strip()
        gr.HTML(**widgets.constant_arguments(f'<p class="hint">{html.escape(hint)}</p>'))
        notice = gr.HTML(**notice_arguments(), elem_id="picture-notice")
    changed = [reference, shown, notice]

    def read(paths: Sequence[str] | None, request: gr.Request) -> tuple[Any, ...]:
        return store.with_reference(request.session_hash, read_upload(paths, limits))

    def drawing(split: Split) -> Callable[[gr.Request], tuple[Any, ...]]:
        def draw(request: gr.Request) -> tuple[Any, ...]:
            return store.with_reference(request.session_hash, new_scene(split))

        return draw

    without.click(lambda: (NONE, None, ""), None, changed, **QUICK)
    upload.upload(read, upload, changed, **QUICK)
    for button, split in zip(scenes, SCENES.values(), strict=False):
        button.click(drawing(split), None, changed, **QUICK)
    return PictureCard(reference, shown, examples, race_file, notice)


def question_card(
    first: str,
    suggestions: Mapping[str, str],
    notice: gr.HTML,
    follow_id: str | None = None,
    drafts: DraftChoices | None = None,
    limits: Limits | None = None,
) -> QuestionCard:
    """Build the card with the question, suggestions that fill it in, and the settings.

    Args:
        suggestions: questions by what their button says.
        follow_id: id of the button that asks a follow-up; without one there is no such button.
        drafts, limits: as of :func:`visual.page.controls.settings_drawer`.
    """
    with gr.Column(elem_classes="card question-card"):
        question = gr.Textbox(
            first, label="Question", show_label=False, container=False, lines=1,
            max_lines=5, max_length=(limits or Limits()).prompt_characters, placeholder="Ask about the picture",
            elem_id="question",
        )  # fmt: skip
        with gr.Row(elem_classes="chips suggestions"):
            for name, suggestion in suggestions.items():
                chip = gr.Button(name, size="sm", elem_classes="pill")
                chip.click(None, None, question, js=f"() => {json.dumps(suggestion)}", api_visibility="private")
        with gr.Row(elem_classes="actions"):
            run = gr.Button("Run", variant="primary", elem_id="run", min_width=60)
            follow = gr.Button("Follow up", elem_id=follow_id, min_width=60) if follow_id else None
            stop = gr.Button("Stop", interactive=False, elem_id="stop", min_width=50)
            settings = settings_drawer("#run", drafts, limits)
        notice.render()
    question.change(None, question, run, js=ASKED, api_visibility="private")
    return QuestionCard(question, run, stop, settings, follow)


def lessons_card(lessons: Sequence[Lesson]) -> list[gr.Button]:
    """Build a menu with a button per lesson, in order; nothing if there are none. A click closes it."""
    if not lessons:
        return []
    with gr.Accordion("Lessons", open=False, elem_classes="card learn-card"):
        buttons = [
            gr.Button(f"{number}  {lesson.text.title}", size="sm", elem_classes="teach")
            for number, lesson in enumerate(lessons, start=1)
        ]
    for button in buttons:
        button.click(None, None, None, js=CLOSE_LESSONS, api_visibility="private")
    return buttons
