"""Events of the player's list of turns: a turn is edited, an edit is given up, the dialogue is begun anew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gradio as gr

from visual.page.dialogue import Dialogues
from visual.page.notices import refusal_notice
from visual.page.runs import QUICK
from visual.page.upload_store import UploadStore
from visual.player.picture import data_address

KEEP, OVER = -1, -2  # in place of a turn's number: give the edit up, begin a new dialogue


def connect_dialogue(dialogues: Dialogues, uploads: UploadStore, player: gr.HTML, page: Sequence[Any]) -> None:
    """Connect the player's ``edit`` event.

    Args:
        page: the page's reference of its picture, picture, question and notice.
    """

    def edit(event: gr.EventData, request: gr.Request) -> tuple[Any, ...]:
        values = edited(dialogues, request.session_hash or "", (event._data or {}).get("turn"))
        return uploads.with_reference(request.session_hash, values)

    player.edit(edit, None, list(page), **QUICK)


def edited(dialogues: Dialogues, session: str, turn: Any) -> tuple[Any, ...]:
    """Return picture source, image, question and notice for a turn to edit; a refusal changes only the notice."""
    same = (gr.skip(), gr.skip(), gr.skip())
    if turn == OVER:
        dialogues.show(session, None)
        return *same, ""
    try:
        if not isinstance(turn, int):
            raise ValueError("the turn to edit must be a number")
        question, picture = dialogues.edit(session, None if turn == KEEP else turn)
    except ValueError as refusal:
        return *same, refusal_notice(refusal)
    if turn == KEEP:
        return *same, ""
    shown = (picture, data_address(picture.preview())) if picture else same[:2]
    return *shown, question, ""
