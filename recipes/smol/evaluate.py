"""Evaluation of the pair smol's target: truth of its free answers, and fluency."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F
from PIL import Image
from tqdm.auto import tqdm
from transformers import AutoModelForCausalLM, PreTrainedModel

from recipes.smol.plain import CHARACTERS, measured_texts
from recipes.smol.questions import free_questions
from recipes.smol.statements import NUMBER_WORDS, loose_words, mentions
from recipes.toy.draw import draw_scene
from recipes.toy.evaluate import EVALUATION_START
from recipes.toy.phrases import PLURALS
from recipes.toy.scene import Scene
from specllava.config import DecodingConfig
from specllava.models.presets import ASSETS
from specllava.pair import Pair

SIZE: Final = 256  # pixels of a drawn scene
DOCUMENTS: Final = ASSETS.parent / "docs"  # of a checkout
WINDOW: Final = 512  # tokens of a text that perplexity is measured on at a time


@dataclass(frozen=True, slots=True)
class Truth:
    """Counts over the answers of one kind of picture; ``loose`` are colours of nothing that the parser knows."""

    answers: int
    mentions: int
    right: int
    counts: int
    counted_right: int
    loose: Counter[str]

    def rates(self) -> dict[str, Any]:
        return {
            "answers": self.answers,
            "mentions": self.mentions,
            "mentions_right": self.right / max(1, self.mentions),
            "counts_right": self.counted_right / max(1, self.counts),
            "not_parsed": dict(self.loose.most_common(20)),
        }


def evaluate_truth(pair: Pair, count: int, config: DecodingConfig, blind: bool = False) -> Truth:
    """Ask about ``count`` held-out scenes one free question and one of number each.

    Args:
        blind: the model is shown grey; what it then gets right is chance.
    """
    named = right = counted = 0
    loose = Counter[str]()
    for number, (scene, asked) in enumerate(tqdm(free_questions(EVALUATION_START, count), "scenes", count)):
        picture = Image.new("RGB", (SIZE, SIZE), (128, 128, 128)) if blind else draw_scene(scene, SIZE)
        text = pair.generate(picture, asked, config).text
        objects = [mention for mention in mentions(text) if mention.colour and not mention.negated]
        named += len(objects)
        right += sum(mention.fits(scene) for mention in objects)
        loose.update(loose_words(text))
        question, wanted = count_question(scene, number)
        counted += read_number(pair.generate(picture, question, config).text) == wanted
    return Truth(count, named, right, count, counted, loose)


def count_question(scene: Scene, number: int) -> tuple[str, int]:
    """Return a question of number, about all objects or one kind, and its answer."""
    if number % 2:
        return "How many objects are there?", len(scene.things)
    kind = scene.things[0].kind
    return f"How many {PLURALS[kind]} are there?", sum(thing.kind == kind for thing in scene.things)


def read_number(text: str) -> int | None:
    """Return the first number of an answer; an indefinite article counts as one."""
    words = text.lower().replace(",", " ").replace(".", " ").split()
    articles = dict.fromkeys(("a", "an", "single"), 1)
    return next((number for word in words if (number := (NUMBER_WORDS | articles).get(word)) is not None), None)


@torch.inference_mode()
def perplexity(model: PreTrainedModel, tokenizer: Any, texts: Iterable[str]) -> float:
    """Return the perplexity of plain texts, in windows of 512 tokens; the first token of each is given."""
    total, tokens = 0.0, 0
    for text in texts:
        ids = tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids[0].to(model.device)
        for part in ids.split(WINDOW):
            if len(part) < 2:
                continue
            logits = model(input_ids=part[None]).logits[0, :-1].float()
            total += float(F.cross_entropy(logits, part[1:], reduction="sum"))
            tokens += len(part) - 1
    if not tokens:
        raise ValueError("no text of two tokens or more to measure perplexity on")
    return math.exp(total / tokens)


def compare_fluency(pair: Pair, plain: Path) -> dict[str, dict[str, float]]:
    """Return the perplexities of the target and of the language model as it was on Python's and this project's words.

    Args:
        plain: directory of the language model.

    Raises:
        OSError, ValueError: no model there.
    """
    documents = [file.read_text(encoding="utf-8")[:CHARACTERS] for file in sorted(DOCUMENTS.glob("*.md"))]
    texts = {"python": measured_texts(), "documents": documents}
    before = AutoModelForCausalLM.from_pretrained(plain, dtype=pair.target.dtype).eval()
    models, tokenizer = {"target": pair.target, "plain": before}, pair.processor.tokenizer
    return {
        kind: {name: perplexity(model, tokenizer, own) for name, model in models.items()}
        for kind, own in texts.items() if own
    }  # fmt: skip
