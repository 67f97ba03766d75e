"""Definite names of objects, and relations between two of them, in words that are true of the scene."""

from __future__ import annotations

from recipes.toy import phrases
from recipes.toy.scene import COLUMNS, Scene, Thing


def name(scene: Scene, thing: Thing) -> str:
    """Return a definite name that fits only this object: with its colour, its size or its position where needed."""
    kindred = [other for other in scene.things if other.kind == thing.kind and other != thing]
    if not kindred:
        return f"the {thing.kind}"
    twins = [other for other in kindred if other.colour == thing.colour]
    if not twins:
        return f"the {thing.colour} {thing.kind}"
    if all(other.size != thing.size for other in twins):
        return f"the {thing.size} {thing.colour} {thing.kind}"
    if all(other.column != thing.column for other in twins):
        return f"the {thing.colour} {thing.kind} {phrases.COLUMN_PHRASES[thing.column][0]}"
    if all(other.row != thing.row for other in twins):
        return f"the {thing.colour} {thing.kind} {phrases.ROW_PHRASES[thing.row][0]}"
    return (f"the {thing.colour} {thing.kind} {phrases.ROW_PHRASES[thing.row][0]} "
            f"{phrases.COLUMN_PHRASES[thing.column][0]}")  # fmt: skip


def relation(thing: Thing, other: Thing) -> tuple[str, ...]:
    """Return every true relation of the first object to the second, as verb phrases before its name."""
    relations: list[str] = []
    step = COLUMNS.index(thing.column) - COLUMNS.index(other.column)
    if step:
        relations.append("is to the left of" if step < 0 else "is to the right of")
        if abs(step) == 1 and thing.row == other.row:
            relations += ["is next to", "is right beside"]
    elif thing.row == "front":
        relations += ["is in front of", "stands in front of"]
    else:
        relations += ["is behind", "is hidden a little behind"]
    if thing.size != other.size:
        relations.append("is larger than" if thing.size == "large" else "is smaller than")
    if thing.colour == other.colour:
        relations += ["has the same colour as", "shares its colour with"]
    return tuple(relations)


def step_between(thing: Thing, before: Thing) -> str:
    """Return how one object lies from another; some ways are keys of ``phrases.STEPS``."""
    step = COLUMNS.index(thing.column) - COLUMNS.index(before.column)
    if step == 0:
        return "behind" if thing.row == "back" else "in front"
    if abs(step) == 1 and thing.row == before.row:
        return "next"
    return "right" if step > 0 else "left"
