"""Variants of a setting say what the target says; scores and groundings are by hand and by transformers."""

from __future__ import annotations

import math
import random
from collections.abc import Generator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from PIL import Image
from support import models
from support.visual_traces import synthetic_grounding

from specllava.config import RULES, SWEEP_VALUES, DecodingConfig
from specllava.engine.engine import Engine
from specllava.pair import Pair
from specllava.scoring import GRID, WINDOW, ground, score_draft
from specllava.trace import TARGET_ONLY, DecodeTrace, Grounding
from specllava.variants import LOOKUP, Variant, draft_variants, race_variants, rule_variants, sweep_variants
from visual.player.frames import grounding_of

SHORT = DecodingConfig(max_new_tokens=16, depth=4, nodes=8)
QUESTION = "Describe this."


def finished(race: Generator[None, None, Any]) -> Any:
    """What a race of variants returns."""
    while True:
        try:
            next(race)
        except StopIteration as end:
            return end.value


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_rule_is_run_once_and_says_what_the_target_says(tiny: Pair, temperature: float):
    config = replace(SHORT, temperature=temperature, seed=3)
    traces = finished(race_variants(rule_variants(tiny, config), models.picture(0), QUESTION))
    assert list(traces) == [TARGET_ONLY, *RULES]
    assert {trace.token_ids for trace in traces.values()} == {traces[TARGET_ONLY].token_ids}
    assert all(traces[rule].config == replace(config, rule=rule) for rule in RULES)
    if not temperature:
        assert traces[TARGET_ONLY].token_ids == models.expected(0, 0, 16)


def test_pictures_are_encoded_once_for_all_variants_of_a_pair(tiny: Pair, monkeypatch: pytest.MonkeyPatch):
    asked, prompt = list[Pair](), Pair.prompt
    monkeypatch.setattr(Pair, "prompt", lambda pair, *given: asked.append(pair) or prompt(pair, *given))
    finished(race_variants(rule_variants(tiny, SHORT), models.picture(0), QUESTION))
    assert asked == [tiny]


@pytest.mark.parametrize("option", list(SWEEP_VALUES))
def test_the_present_setting_is_a_point_on_the_curve(tiny: Pair, option: str):
    config = replace(SHORT, entropy_threshold=0.7, max_branches=5, depth=5, nodes=7)
    variants = sweep_variants(tiny, config, option)
    values = [getattr(one.config, option) for one in variants]
    assert values == sorted({*SWEEP_VALUES[option], getattr(config, option)}) == [float(one.name) for one in variants]
    assert {replace(one.config, **{option: getattr(config, option)}) for one in variants} == {config}


def test_drafts_of_one_target_are_raced_with_prompt_lookup():
    first = models.pair("bad")
    pairs = {kind: replace(models.pair(kind), target=first.target) for kind in models.KINDS}
    variants = draft_variants(pairs, SHORT)
    traces = finished(race_variants(variants, models.picture(0), QUESTION))
    assert list(traces) == [TARGET_ONLY, *pairs, LOOKUP]
    assert {trace.token_ids for trace in traces.values()} == {models.expected(0, 0, 16)}
    assert len(traces["perfect"].steps) < len(traces["bad"].steps)
    assert [traces[kind].setting.draft for kind in pairs] == [pair.draft_name for pair in pairs.values()]
    assert traces[LOOKUP].config.drafter == "prompt-lookup"


@pytest.mark.parametrize(
    ("variants", "words"),
    [
        (lambda pair: sweep_variants(pair, SHORT, "width"), "cannot be swept"),
        (lambda pair: sweep_variants(pair, replace(SHORT, rule="chain"), "entropy_threshold"), "does not use"),
        (lambda pair: rule_variants(pair, replace(SHORT, rule="fixed", temperature=1.0, children="drawn")), "to best"),
        (lambda pair: rule_variants(pair, replace(SHORT, drafter="prompt-lookup")), "set it to model"),
        (lambda pair: draft_variants({"one": pair}, SHORT), "no second draft"),
        (lambda pair: draft_variants({"one": pair, "two": models.pair("mixed", 1)}, SHORT), "several"),
        (lambda pair: finished(race_variants(rule_variants(pair, SHORT), None, " ")), "the prompt is empty"),
    ],
)
def test_what_cannot_be_compared_is_refused(tiny: Pair, variants: Any, words: str):
    with pytest.raises(ValueError, match=words):
        variants(tiny)


def test_a_race_of_variants_can_be_stopped_between_any_two_decode_steps(tiny: Pair, monkeypatch: pytest.MonkeyPatch):
    """So that Stop and the deadline are seen within a step."""
    made, between, forward = list[int](), list[int](), Engine.forward
    monkeypatch.setattr(Engine, "forward", lambda *given: made.append(1) or forward(*given))
    for _ in race_variants([Variant("one", tiny, SHORT), Variant("two", tiny, SHORT)], models.picture(0), QUESTION):
        between.append(len(made))
        made.clear()
    assert max(between) <= SHORT.depth + 1 and sum(between) > 4 * (SHORT.depth + 1)


def test_a_reading_by_hand():
    half, sure = math.log(0.5), math.log(0.25)
    draft = torch.tensor([[half, half, -math.inf], [sure, math.log(0.75), -math.inf]], dtype=torch.float64)
    target = torch.tensor([[half, half, -math.inf], [half, half, -math.inf]], dtype=torch.float64)
    found = score_draft(draft, target)
    assert found.divergences == pytest.approx((0.0, 0.5 * math.log(2) + 0.5 * math.log(2 / 3)))
    assert found.guesses[1] == 1


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
    assert [word["seen"] for word in view["words"]] == [f"{found.probs[at]:.2f}" for at in grounded]
    assert [word["grey"] for word in view["words"]] == [f"{found.blank_probs[at]:.2f}" for at in grounded]
    assert view["say"].startswith(f"{len(grounded)} token")
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
