"""Answers of the language model itself, which reads a scene's truth as text: what the model with eyes learns from."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from specllava.smol.questions import Task, free_task
from specllava.smol.statements import contradicts, mentions
from specllava.toyworld.scene import Scene, sample_scene

SCENES: Final = 48  # of a batch
TASKS: Final = 2  # of a scene
TOKENS: Final = 72
TEMPERATURE: Final = 0.5
TOP_K: Final = 40
REPEATED: Final = 5  # words in a row that a good answer has once
SHORTEST: Final = 3  # words
WITHOUT_OBJECTS: Final = frozenset({"mood", "title", "poem", "next"})


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that was kept: ``scene`` is its number, ``instruction`` what the language model read."""

    scene: int
    kind: str
    question: str
    instruction: str
    answer: str


def write_answers(model: PreTrainedModel, tokenizer: Any, scenes: int, path: Path) -> None:
    """Write answers to two questions of each scene as JSON lines; goes on where an earlier call was ended.

    Each batch ends with a line ``{"batch": number, "dropped": {reason: count}}``.
    """
    done = 0
    if path.exists():
        lines = path.read_text().splitlines()
        ends = [number for number, line in enumerate(lines) if line.startswith('{"batch"')]
        done = len(ends)
        path.write_text("".join(f"{line}\n" for line in lines[: ends[-1] + 1 if ends else 0]))
    for batch in tqdm(range(done, -(-scenes // SCENES)), desc="answers", mininterval=5.0):
        kept, dropped = _batch(model, tokenizer, range(batch * SCENES, min(scenes, (batch + 1) * SCENES)), batch)
        rows = [asdict(answer) for answer in kept] + [{"batch": batch, "dropped": dict(dropped)}]
        with path.open("a") as file:
            file.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def read_answers(path: Path) -> list[Answer]:
    """Read the answers of a file."""
    rows = (json.loads(line) for line in path.read_text().splitlines())
    return [Answer(**row) for row in rows if "batch" not in row]


def _batch(model: PreTrainedModel, tokenizer: Any, numbers: range, seed: int) -> tuple[list[Answer], Counter[str]]:
    asked = [(number, sample_scene(number), task) for number in numbers for task in _tasks(number)]
    kept, dropped = [], Counter[str]()
    texts = generate(model, tokenizer, [task.instruction for _, _, task in asked], seed)
    for (number, scene, task), text in zip(asked, texts, strict=True):
        answer = whole_sentences(text)
        reason = objection(scene, task.kind, answer)
        if reason is None:
            kept.append(Answer(number, task.kind, task.question, task.instruction, answer))
        else:
            dropped[reason.partition(":")[0]] += 1
    return kept, dropped


def _tasks(number: int) -> Iterator[Task]:
    rng, scene, kinds = random.Random(f"smol task {number}"), sample_scene(number), set[str]()
    while len(kinds) < TASKS:
        task = free_task(scene, rng)
        if task.kind not in kinds:
            kinds.add(task.kind)
            yield task


@torch.inference_mode()
def generate(model: PreTrainedModel, tokenizer: Any, instructions: Sequence[str], seed: int) -> list[str]:
    """Sample an answer to each instruction as a chat of one turn."""
    texts = [
        tokenizer.apply_chat_template([{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True)
        for text in instructions
    ]
    inputs = tokenizer(texts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False)
    torch.manual_seed(seed)
    ids = model.generate(
        **inputs.to(model.device),
        max_new_tokens=TOKENS,
        do_sample=True,
        temperature=TEMPERATURE,
        top_k=TOP_K,
        top_p=1.0,
        cache_implementation="static",
        disable_compile=True,
    )
    answers: list[str] = tokenizer.batch_decode(ids[:, inputs.input_ids.shape[1] :], skip_special_tokens=True)
    return answers


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
