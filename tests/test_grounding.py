"""Which words need the picture: probabilities are the target's own, and the lit part is where the object is."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from PIL import Image
from support import models
from support.visual_traces import synthetic_grounding

from recipes.toy.draw import draw_scene, shown_at
from recipes.toy.scene import COLOURS, KINDS, sample_scene
from specllava.config import DecodingConfig
from specllava.pair import Pair
from specllava.scoring import GRID, WINDOW, ground
from specllava.trace import DecodeTrace, Grounding
from visual.player.frames import grounding_of

SHORT = DecodingConfig(max_new_tokens=12, depth=4, nodes=8)
QUESTION = models.CHATS[0][1][0]
GREY = (128, 128, 128)


def own_probs(shown: Image.Image, answer: tuple[int, ...]) -> torch.Tensor:
    """Probabilities of the tiny target after each token of an answer, by one pass of transformers alone."""
    inputs = models.plain_inputs(0)
    pixels = models.processor().image_processor(shown, return_tensors="pt")["pixel_values"].double()
    ids = torch.cat([inputs["input_ids"], torch.tensor([answer])], dim=1)
    with torch.inference_mode():
        logits = models.target(0)(input_ids=ids, pixel_values=pixels, use_cache=False).logits[0]
    return logits[-1 - len(answer) : -1].softmax(-1)


def grounded(pair: Pair, media: Any, question: str, config: DecodingConfig) -> DecodeTrace:
    *_, last = ground(pair, media, question, pair.generate(media, question, config))
    return last


@pytest.fixture(scope="module")
def measured(tiny: Pair) -> DecodeTrace:
    return grounded(tiny, (models.picture(0),), QUESTION, SHORT)


def test_probabilities_with_and_without_the_picture_are_those_of_transformers(measured: DecodeTrace):
    found, answer = measured.grounding, measured.token_ids
    assert found is not None and answer == models.expected(0, 0, SHORT.max_new_tokens)
    assert DecodeTrace.from_json(measured.to_json()) == measured
    assert b"grounding" not in replace(measured, grounding=None).to_json()
    own = models.picture(0)
    blank = own_probs(Image.new("RGB", own.size, GREY), answer)
    for mine, probs in ((found.probs, own_probs(own, answer)), (found.blank_probs, blank)):
        assert mine == tuple(pytest.approx(float(probs[at, token]), abs=6e-5) for at, token in enumerate(answer))
    assert found.blank_choices == tuple(blank.argmax(-1).tolist())
    assert {measured.texts[token] for token in found.blank_choices}


def test_each_place_of_the_grey_square_is_a_pass_of_transformers(tiny: Pair):
    """On pictures whose sides are no multiple of the tiles."""
    own = Image.effect_noise((51, 37), 90).convert("RGB")
    trace = tiny.generate(own, QUESTION, SHORT)
    shaken = replace(trace, prefill=replace(trace.prefill, first_token=5))  # any tokens can be scored
    *_, last = ground(tiny, (own,), QUESTION, shaken)
    found = last.grounding
    assert found is not None
    assert found.grounded, "no token of this answer needs the picture: choose another seed"
    for place in (0, 7, found.places**2 - 1):
        row, column = divmod(place, found.places)
        left, right = column * 51 // GRID, (column + WINDOW) * 51 // GRID
        top, bottom = row * 37 // GRID, (row + WINDOW) * 37 // GRID
        occluded = own.copy()
        for x, y in product(range(left, right), range(top, bottom)):
            occluded.putpixel((x, y), GREY)
        probs = own_probs(occluded, shaken.token_ids)
        mine = [tiles[place] for tiles in found.occluded]
        assert mine == [pytest.approx(float(probs[at, shaken.token_ids[at]]), abs=6e-5) for at in found.grounded]


@pytest.mark.night
def test_what_the_toy_names_is_lit_where_it_is_drawn(shipped: Callable[[str], Pair]):
    """Against the scene that was drawn: kinds and colours that only one object has."""
    pair, hits = shipped("float32"), []
    for seed in range(5_000_000, 5_000_005):
        scene = sample_scene(seed)
        picture = draw_scene(scene, 256)
        trace = grounded(pair, (picture,), "Describe this image in detail.", DecodingConfig())
        shown, view = shown_at(scene, GRID), grounding_of(trace)
        assert view is not None
        for word in view["words"]:
            name = trace.texts[trace.token_ids[word["at"]]].strip()
            named = [thing for thing in scene.things if name in (thing.kind, thing.colour)]
            if name not in (*KINDS, *COLOURS) or len(named) != 1 or max(word["lost"]) < 50:
                continue
            brightest = [at for at, lost in enumerate(word["lost"]) if lost == max(word["lost"])]
            around = {
                (at // GRID + down) * GRID + at % GRID + across
                for at in brightest for down, across in product((-1, 0, 1), repeat=2) if 0 <= at % GRID + across < GRID
            }  # fmt: skip
            hits.append(any(shown[at] is named[0] for at in around if 0 <= at < GRID**2))
    assert len(hits) >= 8 and sum(hits) >= 0.8 * len(hits), hits


@pytest.mark.parametrize("seed", range(8))
def test_a_tile_has_the_mean_of_all_squares_over_it(seed: int):
    rng = random.Random(seed)
    *_, trace = synthetic_grounding(replace(SHORT, max_new_tokens=rng.randint(1, 20)))
    found = trace.grounding
    grid, window = rng.randint(1, 7), 0
    window = rng.randint(1, grid)
    places = grid - window + 1
    rows = tuple(tuple(rng.random() for _ in range(places**2)) for _ in found.grounded)
    view = grounding_of(replace(trace, grounding=replace(found, grid=grid, window=window, occluded=rows)))
    pairs = list(zip(found.probs, found.blank_probs, strict=True))
    grounded = [at for at, (one, grey) in enumerate(pairs) if one >= found.factor * grey > 0]
    assert [word["at"] for word in view["words"]] == grounded
    for word, row in zip(view["words"], rows, strict=True):
        over: list[list[float]] = [[] for _ in range(grid**2)]
        for place, prob in enumerate(row):
            for down, across in product(range(window), repeat=2):
                tile = (place // places + down) * grid + place % places + across
                over[tile].append(100 * max(0.0, 1 - prob / found.probs[word["at"]]))
        assert word["lost"] == [pytest.approx(sum(one) / len(one), abs=0.51) for one in over]


def test_several_pictures_are_greyed_as_a_whole_and_none_is_refused(tiny: Pair):
    several = grounded(tiny, (models.picture(0), models.picture(1)), QUESTION, SHORT)
    assert several.grounding is not None and several.grounding.grid == 0
    with pytest.raises(ValueError, match="without a picture"):
        grounded(tiny, (), QUESTION, SHORT)


def test_a_grounding_that_no_run_makes_is_refused():
    *_, trace = synthetic_grounding(SHORT)
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"probs": (0.5,)}, "one entry per token in each list: 1, "),
        ({"grid": 2, "window": 3}, "a square of 3 tiles a side does not fit a picture of 2"),
        ({"grid": 5}, "needs 16 probabilities for each of"),
        ({"occluded": ()}, "probabilities for each of"),
    )
    for change, words in cases:
        with pytest.raises(ValueError, match=words):
            replace(trace.grounding, **change)
    short = Grounding((0.5,), (0.1,), trace.grounding.blank_choices[:1], 10.0)
    strange = replace(trace.grounding, blank_choices=(999_999, *trace.grounding.blank_choices[1:]))
    told = f"grounding: 1 probabilities for {len(trace.token_ids)} tokens"
    for wrong, words in ((short, told), (strange, "no text for token ids")):
        with pytest.raises(ValueError, match=words):
            DecodeTrace.from_json(replace(trace, grounding=wrong).to_json())
