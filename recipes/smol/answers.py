"""Answers about scenes: of the language model, which reads the truth as text, and of the target that learns from it."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
from tqdm.auto import tqdm
from transformers import BatchEncoding, BatchFeature, LlavaForConditionalGeneration, LlavaProcessor, PreTrainedModel

from recipes.smol.questions import Task, free_task
from recipes.smol.statements import contradicts, mentions
from recipes.toy.draw import draw_scene
from recipes.toy.scene import Scene, sample_scene
from specllava.files import write_whole

SCENES: Final = 48  # of a batch
TASKS: Final = 2  # of a scene
TOKENS: Final = 72
SAMPLED: Final = {"do_sample": True, "temperature": 0.5, "top_k": 40, "top_p": 1.0}
OWN_SAMPLED: Final = {"do_sample": True, "temperature": 0.8, "top_k": 0, "top_p": 1.0}
GREEDY: Final = {"do_sample": False}
PICTURE_SIZE: Final = 128  # pixels
REPEATED: Final = 5  # words in a row that a good answer has once
SHORTEST: Final = 3  # words
WITHOUT_OBJECTS: Final = frozenset({"mood", "title", "poem", "next"})


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that was kept: ``scene`` is its number, ``instruction`` what the language model reads for it."""

    scene: int
    kind: str
    question: str
    instruction: str
    answer: str


Answered = tuple[list[Answer], Counter[str]]  # those that are kept, and how many are dropped for which reason


def write_answers(answer: Callable[[range, int], Answered], scenes: int, path: Path) -> None:
    """Write answers to two questions of each scene as JSON lines; goes on where an earlier call was ended.

    Each batch ends with a line ``{"batch": number, "dropped": {reason: count}}``.

    Args:
        answer: by the numbers of scenes and a seed.
    """
    done = 0
    if path.exists():
        lines = path.read_bytes().split(b"\n")[:-1]  # a line that was cut short has no end
        ends = [number for number, line in enumerate(lines) if line.startswith(b'{"batch"')]
        done = len(ends)
        write_whole(path, b"".join(line + b"\n" for line in lines[: ends[-1] + 1 if ends else 0]))
    for batch in tqdm(range(done, -(-scenes // SCENES)), desc=path.stem, mininterval=5.0):
        kept, dropped = answer(range(batch * SCENES, min(scenes, (batch + 1) * SCENES)), batch)
        rows = [asdict(one) for one in kept] + [{"batch": batch, "dropped": dict(dropped)}]
        with path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def read_answers(path: Path) -> list[Answer]:
    """Read the answers of a file."""
    rows = (json.loads(line) for line in path.read_text("utf-8").split("\n")[:-1])
    return [Answer(**row) for row in rows if "batch" not in row]


def truth_answers(model: PreTrainedModel, tokenizer: Any, numbers: range, seed: int) -> Answered:
    """Return answers of the language model that reads the truth, but for those that contradict it."""
    asked = [(number, sample_scene(number), task) for number in numbers for task in _tasks(number)]
    chats = [[{"role": "user", "content": task.instruction}] for _, _, task in asked]
    texts = [tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) for chat in chats]
    inputs = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False)
    kept, dropped = [], Counter[str]()
    for (number, scene, task), answer in zip(asked, generate(model, tokenizer, inputs, SAMPLED, seed), strict=True):
        reason = objection(scene, task.kind, answer)
        if reason is None:
            kept.append(Answer(number, task.kind, task.question, task.instruction, answer))
        else:
            dropped[reason.partition(":")[0]] += 1
    return kept, dropped


def target_answers(
    model: LlavaForConditionalGeneration, processor: LlavaProcessor, numbers: range, seed: int
) -> Answered:
    """Return the target's own answers about pictures, true or not: every second batch is greedy, others are sampled."""
    asked = [(number, task) for number in numbers for task in _tasks(number)]
    chats = [
        [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": task.question}]}] for _, task in asked
    ]
    inputs = processor(
        text=[processor.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) for chat in chats],
        images=[draw_scene(sample_scene(number), PICTURE_SIZE) for number, _ in asked],
        padding=True,
        padding_side="left",
        add_special_tokens=False,
        return_tensors="pt",
    )
    inputs["pixel_values"] = inputs.pixel_values.to(model.dtype)
    sampling = OWN_SAMPLED if seed % 2 else GREEDY
    texts = generate(model, processor.tokenizer, inputs, sampling, seed)
    kept = [
        Answer(number, task.kind, task.question, task.instruction, text)
        for (number, task), text in zip(asked, texts, strict=True)
        if text
    ]
    return kept, Counter(empty=len(texts) - len(kept))


def _tasks(number: int) -> Iterator[Task]:
    rng, scene, kinds = random.Random(f"smol task {number}"), sample_scene(number), set[str]()
    while len(kinds) < TASKS:
        task = free_task(scene, rng)
        if task.kind not in kinds:
            kinds.add(task.kind)
            yield task


@torch.inference_mode()
def generate(
    model: PreTrainedModel,
    tokenizer: Any,
    inputs: BatchEncoding | BatchFeature,
    sampling: Mapping[str, Any],
    seed: int,
) -> list[str]:
    """Answer prompts that are padded on their left; return whole sentences of at most 72 tokens.

    Args:
        sampling: options of transformers' ``generate``.
    """
    torch.manual_seed(seed)
    ids = model.generate(
        **inputs.to(model.device),
        **sampling,
        max_new_tokens=TOKENS,
        cache_implementation="static",
        disable_compile=True,
    )
    texts = tokenizer.batch_decode(ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return [whole_sentences(text) for text in texts]


def whole_sentences(text: str) -> str:
    """Cut a text after its last whole sentence; one line of a poem counts as one."""
    text = text.strip()
    if "\n" in text and text[-1] not in ".!?":
        text = text[: text.rindex("\n")].rstrip(" \n,")
    ends = [match.end() for match in re.finditer(r"[.!?][\"']?(?=\s|$)", text)]
    return text[: ends[-1]] if ends and "\n" not in text else text


def objection(scene: Scene, kind: str, answer: str) -> str | None:
    """Return why an answer is not learnt from; None where it is good."""
    words = re.findall(r"[a-z']+", answer.lower())
    if len(words) < SHORTEST:
        return "short"
    runs = Counter(zip(*(words[start:] for start in range(REPEATED)), strict=False))
    if runs and max(runs.values()) > 1:
        return "repeated"
    if kind not in WITHOUT_OBJECTS and not any(mention.colour for mention in mentions(answer)):
        return "no object"
    return contradicts(scene, answer)
