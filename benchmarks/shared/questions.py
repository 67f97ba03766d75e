"""Held-out questions of an experiment, as a pair is asked."""

from __future__ import annotations

from collections.abc import Iterator

from recipes.smol.questions import free_questions
from recipes.toy.draw import draw_scene
from recipes.toy.scene_questions import PICTURE_SIZE, START, scene_questions
from specllava.core.question import Question


def held_out_questions(preset: str, count: int) -> Iterator[Question]:
    """Yield questions about toy scenes: free ones for the pair smol, most of them for a description for any other."""
    if preset != "smol":
        yield from scene_questions("held-out", count)
        return
    for scene, text in free_questions(START, count):
        yield Question(text, draw_scene(scene, PICTURE_SIZE))
