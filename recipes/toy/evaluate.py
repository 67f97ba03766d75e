"""Evaluation of the toy target, greedily in float32: its descriptions are parsed, its answers compared with true ones.

Every true answer to a question is enumerated by the question's family.
"""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any, Final

import torch
from torch import Tensor
from tqdm.auto import tqdm

from recipes.toy.corpus import messages
from recipes.toy.dialogue import inquire
from recipes.toy.draw import draw_scene
from recipes.toy.language import QuestionAnswer, with_articles
from recipes.toy.parsed_text import PLACE_WORDS, TIME_WORDS, WEATHER_WORDS, parse_text
from recipes.toy.phrases import COLUMN_WORDS, DETAIL_PROMPTS, PLURALS, ROW_WORDS, SIZE_WORDS, read_wordings
from recipes.toy.questions import CANNOT_KNOW, FAMILIES, STRANGE, Query
from recipes.toy.scene import COLOURS, HELD_OUT, KINDS, Scene, Split, scenes
from recipes.toy.wordings import worded
from specllava.metrics import wilson

EVALUATION_START = 1_000_000  # scene numbers that no training run reaches
PICTURE_SIZE = 256
BATCH = 48
TOKENS = 160  # of an answer, at most
EACH = 4  # questions about a scene, of different families
TURNS = 3  # of a dialogue
_FAMILIES: Final = tuple(dict.fromkeys(FAMILIES))
_TELLING: Final = {
    word: word for word in (*COLOURS, *KINDS, *PLACE_WORDS, *WEATHER_WORDS, *TIME_WORDS, *(
        word for table in (COLUMN_WORDS, ROW_WORDS, SIZE_WORDS) for words in table.values() for word in words))
} | {plural: kind for kind, plural in PLURALS.items()}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Asked:
    """A question about a scene, after the turns of a dialogue."""

    scene: Scene
    question: str
    history: tuple[QuestionAnswer, ...] = ()


@torch.inference_mode()
def answer_all(model: Any, processor: Any, asked: Sequence[Asked], title: str) -> list[str]:
    """Answer every question greedily, in batches of prompts of equal length, so that nothing is padded."""
    prompts = [prompt_ids(processor, one) for one in asked]
    order = sorted(range(len(asked)), key=lambda number: len(prompts[number]))
    texts = [""] * len(asked)
    bar = tqdm(total=len(asked), desc=title, mininterval=5.0)
    for length, same in groupby(order, key=lambda number: len(prompts[number])):
        for batch in torch.tensor(list(same)).split(BATCH):
            numbers = batch.tolist()
            pixels = torch.cat([_pixels(processor.image_processor, asked[number].scene) for number in numbers])
            ids = torch.tensor([prompts[number] for number in numbers])
            generated = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), pixel_values=pixels,
                                       do_sample=False, max_new_tokens=TOKENS)  # fmt: skip
            for number, tokens in zip(numbers, generated[:, length:], strict=True):
                texts[number] = processor.tokenizer.decode(tokens, skip_special_tokens=True).strip()
            bar.update(len(numbers))
    bar.close()
    return texts


def prompt_ids(processor: Any, asked: Asked) -> list[int]:
    """Return the tokens of a prompt, with every image slot."""
    chat = messages((*asked.history, QuestionAnswer(asked.question, "")))[:-1]
    text = processor.apply_chat_template(chat, add_generation_prompt=True)
    crop = processor.image_processor.crop_size
    slots = (crop["height"] // processor.patch_size) * (crop["width"] // processor.patch_size)
    ids: list[int] = processor.tokenizer(text.replace("<image>", "<image>" * slots))["input_ids"]
    return ids


@lru_cache(maxsize=2048)
def _pixels(images: Any, scene: Scene) -> Tensor:
    pixels: Tensor = images(draw_scene(scene, PICTURE_SIZE), return_tensors="pt")["pixel_values"]
    return pixels


def score_answer(scene: Scene, text: str) -> dict[str, int]:
    """Count by name what one description of the scene has right.

    An object introduced twice must be in the scene twice; what is named again later ("the red cat", "the cat") must be
    in it too. New objects are those in a combination that training never named.
    """
    parsed = parse_text(text)
    there = Counter(thing.combination for thing in scene.things)
    named = Counter(parsed.combinations)
    right = there & named
    kinds = {thing.kind for thing in scene.things}
    invented = bool(named - there) or not set(parsed.mentions) <= set(there) or not set(parsed.kinds) <= kinds
    return {
        "scenes": 1,
        "place": parsed.place == scene.place,
        "weather": parsed.weather == scene.weather,
        "time": parsed.time == scene.time,
        "count": parsed.count == len(scene.things),
        "objects": len(scene.things),
        "objects_named": right.total(),
        "new_objects": sum(there[combination] for combination in HELD_OUT),
        "new_objects_named": sum(right[combination] for combination in HELD_OUT),
        "no_invention": not invented,
    }


def description_rates(counts: Mapping[str, int]) -> dict[str, float]:
    """Return shares by name, of scenes or objects, from the sums of what :func:`score_answer` counts."""
    shares = {name: counts[name] / counts["scenes"] for name in ("place", "weather", "time", "count")}
    shares["colour_and_kind"] = counts["objects_named"] / counts["objects"]
    shares["nothing_invented"] = counts["no_invention"] / counts["scenes"]
    if counts["new_objects"]:
        shares["held_out_combinations"] = counts["new_objects_named"] / counts["new_objects"]
    return shares


def evaluate(target: Any, processor: Any, split: Split, count: int) -> dict[str, Any]:
    """Describe ``count`` scenes of a split greedily and return the rates of correct statements."""
    shown = enumerate(scenes(split, EVALUATION_START, count))
    asked = [Asked(scene, random.Random(number).choice(DETAIL_PROMPTS)) for number, scene in shown]
    texts = answer_all(target, processor, asked, f"describing, {split}")
    scores = [score_answer(one.scene, text) for one, text in zip(asked, texts, strict=True)]
    counts = {name: sum(score[name] for score in scores) for name in scores[0]}
    return {"split": split, "scenes": count, **description_rates(counts), "counts": counts}


@dataclass(frozen=True, slots=True)
class Trial:
    """A question with its true answers; ``measure`` and ``form`` are what it counts for."""

    measure: str
    form: str
    asked: Asked
    answers: tuple[str, ...]


def trials(split: Split, count: int) -> Iterator[Trial]:
    """Yield the questions about ``count`` scenes that no training reaches."""
    tables = read_wordings()
    for number, scene in enumerate(scenes(split, EVALUATION_START, count)):
        rng = random.Random(f"specllava evaluation {number}")
        families = [_FAMILIES[(EACH * number + each) % len(_FAMILIES)] for each in range(EACH)]
        queries = [query for family in families if (query := family(scene, rng))]
        for query in queries:
            yield Trial("trained wording", query.form, Asked(scene, worded(query, rng).question), query.answers)
        for query in (one for one in queries if one.form in tables["typed"]):
            yield Trial("typed wording", query.form, Asked(scene, typed(query, rng)), query.answers)
        thing = rng.choice(scene.things)
        unknowable = tables["unknowable_typed"]
        question = unknowable[number % len(unknowable)].format(kind=thing.kind, colour=thing.colour)
        yield Trial("not in the picture", "unknowable", Asked(scene, question), CANNOT_KNOW)
        yield from later_turns(scene, rng)


def typed(query: Query, rng: random.Random) -> str:
    """Put a question into words as people type them."""
    tables, slots = read_wordings(), dict(query.slots)
    if slots.get("kind") in STRANGE:
        noun = rng.choice(tables["strange_typed"])
        slots |= {"kind": noun, "kinds": f"{noun}s"}
    return with_articles(rng.choice(tables["typed"][query.form]).format(**slots))


def later_turns(scene: Scene, rng: random.Random) -> Iterator[Trial]:
    """Yield the later questions of a dialogue that have no telling word in common with the text before them."""
    asked = inquire(scene, rng, TURNS)
    for number, (query, turn) in list(enumerate(asked))[1:]:
        history = tuple(before for _, before in asked[:number])
        earlier = telling_words(" ".join(f"{before.question} {before.answer}" for before in history))
        answers = [telling_words(answer) for answer in query.answers]
        own = set.intersection(*answers) | set.union(*answers) & {*COLOURS} | telling_words(turn.question)
        if not own & earlier:
            yield Trial("later turn", query.form, Asked(scene, turn.question, history), query.answers)


def telling_words(text: str) -> set[str]:
    """Return the words of a text that say something of a picture; plurals as singulars."""
    return {_TELLING[word] for word in re.findall(r"[a-z]+", text.lower()) if word in _TELLING}


def evaluate_questions(target: Any, processor: Any, split: Split, count: int) -> dict[str, Any]:
    """Answer the questions about ``count`` scenes; return counts by measure and form, and what was wrong."""
    tried = list(trials(split, count))
    texts = answer_all(target, processor, [trial.asked for trial in tried], f"answering, {split}")
    counts: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    wrong = []
    for trial, text in zip(tried, texts, strict=True):
        right = text in trial.answers
        for form in (trial.form, "all"):
            counts[trial.measure][form][0] += right
            counts[trial.measure][form][1] += 1
        if not right:
            wrong.append({"measure": trial.measure, "form": trial.form, "scene": trial.asked.scene.seed,
                          "question": trial.asked.question, "answer": text, "true": trial.answers[0]})  # fmt: skip
    return {"split": split, "scenes": count, "counts": counts, "wrong": wrong}


def rates(result: dict[str, Any]) -> dict[str, str]:
    """Return the rates with intervals of every measure, and of every form of those with more than one."""
    shown = {}
    for measure, forms in result["counts"].items():
        for form in ("all", *sorted(form for form in forms if form != "all" and len(forms) > 2)):
            right, total = forms[form]
            low, high = wilson(right, total)
            shown[f"{measure}: {form}"] = f"{right} of {total}, {right / total:.3f} ({low:.3f} to {high:.3f})"
    return shown
