"""Questions about the surroundings of the objects: the weather, the time of day and the place."""

from __future__ import annotations

import random
from collections.abc import Sequence

from specllava.toyworld import phrases
from specllava.toyworld.exchange import Exchange, worded
from specllava.toyworld.scene import PLACES, TIMES, WEATHERS, Scene


def weather(scene: Scene, rng: random.Random) -> Exchange:
    named = rng.choice(phrases.WEATHER_NAMES[scene.weather])
    sky = rng.choice(phrases.SKIES[scene.weather, scene.time])
    if rng.random() < 0.5:
        questions: Sequence[str] = ("What is the weather like?", "How is the weather?", "Describe the weather.")
        return Exchange(worded(rng, questions, (f"the weather is {named}", f"it is {named}", sky)))
    asked = scene.weather if rng.random() < 0.5 else rng.choice(WEATHERS)
    questions = {
        "clear": ("Is the sky clear?", "Is the weather clear?"),
        "cloudy": ("Is it cloudy?", "Is the sky cloudy?"),
        "rainy": ("Is it raining?", "Is there any rain?"),
        "snowy": ("Is it snowing?", "Is there any snow?"),
    }[asked]
    word = "yes" if asked == scene.weather else "no"
    return Exchange(
        worded(rng, questions, (f"{word}, the weather is {named}", f"{word}, {sky}", f"{word}, it is {named}"))
    )


def time(scene: Scene, rng: random.Random) -> Exchange:
    hour = phrases.HOURS[scene.time]
    phrase = rng.choice(phrases.TIME_PHRASES[scene.time])
    if rng.random() < 0.6:
        questions: Sequence[str] = (
            "What time of day is it?",
            "At what time of day is the scene set?",
            "Is it day, evening or night?",
        )
        return Exchange(worded(rng, questions, (f"it is {hour}", f"the scene is set {phrase}")))
    asked = scene.time if rng.random() < 0.5 else rng.choice(TIMES)
    word = "yes" if asked == scene.time else "no"
    questions = (f"Is it {phrases.HOURS[asked]}?", f"Is the scene set {rng.choice(phrases.TIME_PHRASES[asked])}?")
    return Exchange(worded(rng, questions, (f"{word}, it is {hour}", f"{word}, the scene is set {phrase}")))


def place(scene: Scene, rng: random.Random) -> Exchange:
    named = rng.choice(phrases.PLACE_NAMES[scene.place])
    mood = rng.choice(phrases.WEATHER_MOODS[scene.weather])
    in_place = rng.choice(phrases.PLACE_PHRASES[scene.place]).format(mood=mood)
    if rng.random() < 0.6:
        questions: Sequence[str] = (
            "Where are we?",
            "What kind of place is this?",
            "What place does this picture show?",
        )
        answers = (f"this picture shows {named}", f"the scene is set {in_place}", f"we are {in_place}")
        return Exchange(worded(rng, questions, answers))
    asked = scene.place if rng.random() < 0.5 else rng.choice(PLACES)
    word = "yes" if asked == scene.place else "no"
    questions = (f"Does the picture show {phrases.PLACE_NAMES[asked][0]}?", f"Is this {phrases.PLACE_NAMES[asked][0]}?")
    if asked == "mountains":
        questions = ("Does the picture show the mountains?", "Are we in the mountains?")
    answers = (
        f"{word}, the picture shows {named}",
        f"{word}, we are {in_place}",
        f"{word}, the scene is set {in_place}",
    )
    return Exchange(worded(rng, questions, answers))
