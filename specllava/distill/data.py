"""Rows as batches of tensors: a pure function of the batch number, so a run can resume anywhere.

Answers may be the target's own (self-data distillation, as in MASSV, arXiv 2505.10526).
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor
from tqdm.auto import tqdm
from transformers import PretrainedConfig, ProcessorMixin

from specllava.chat import Chat
from specllava.config import DecodingConfig
from specllava.distill.losses import IGNORE, Batch
from specllava.distill.rows import Row, UnusableRowError
from specllava.models.families import family_of
from specllava.models.family import Picture, ProcessedPrompt
from specllava.models.images import open_image
from specllava.models.tokens import TextError, apply_template, beginning, bos_options, text_of
from specllava.pair import Pair
from specllava.prompt import NoRoomError

GROUP = 16  # batches sorted by length together, to reduce padding
TRIES = 100  # consecutive rows that may be unusable
UNREADABLE, CUT, TOO_LONG = "rows with an unreadable image", "rows cut", "rows with no answer in their length"
LEFT_OUT = (UNREADABLE, CUT, TOO_LONG)  # order of a batch's counts


@dataclass(frozen=True, slots=True)
class Encoded:
    """One encoded conversation for training; ``cut`` where it was longer.

    Args:
        ids: tokens, with the slots of each picture.
        labels: for each position the token to predict there, ``IGNORE`` outside of answers. It equals the token at that
            position, except after an answer whose template writes no end: there it is the end token.
        pictures: what the tower reads of each.
    """

    ids: list[int]
    labels: list[int]
    pictures: list[Picture]
    cut: bool


@dataclass(frozen=True, slots=True)
class RowEncoder:
    """Encoder of rows as tokens and pictures, the same as ``PromptBuilder.build`` gives for the same chat in decoding.

    It is pickled where worker processes do not inherit the memory of this one.

    Args:
        config: of the target.
        end: token that answers end with.
        images: directory that image paths begin in.
        length: maximum tokens of a row, pictures included.
    """

    processor: ProcessorMixin
    config: PretrainedConfig
    end: int
    images: Path
    length: int

    @classmethod
    def of(cls, pair: Pair, images: Path, length: int) -> RowEncoder:
        """Return the encoder for a pair's target. Answers end as decoding does, if possible with its eos.

        Raises:
            ValueError: a tokenizer without offsets, or nothing ends an answer.
        """
        tokenizer = pair.processor.tokenizer
        if not tokenizer.is_fast:
            raise ValueError("the target's tokenizer is a slow one, without the offsets of its tokens in the text")
        own = tokenizer.eos_token_id
        ends = pair.eos_token_ids or frozenset({own} - {None})
        if not ends:
            raise ValueError("nothing ends an answer: the target's files name no eos_token_id")
        end = own if own in ends else min(ends)
        return cls(pair.processor, pair.target.config, end, images, min(length, pair.context))

    def __call__(self, row: Row) -> Encoded:
        """Encode a row; one that is too long is cut at its end.

        Raises:
            UnusableRowError: a picture cannot be read or is cut, or no answer is left; the message is the reason.
        """
        tokenizer = self.processor.tokenizer
        pictures, written = self._read_pictures(row.images)
        text, answers = self.render(row, written)
        text = beginning(tokenizer, text, self.length)  # whose first tokens are those of the whole
        tokens = tokenizer(text, return_offsets_mapping=True, **bos_options(tokenizer, text))
        ids, offsets = list(tokens["input_ids"]), tokens["offset_mapping"]
        labels = [IGNORE] * len(ids)
        index = 0
        for (start, stop), ended in zip(answers, row.ended, strict=True):
            while index < len(offsets) and (offsets[index][0] < start or offsets[index][1] == 0):
                index += 1
            while index < len(offsets) and offsets[index][0] < stop:
                labels[index] = ids[index]
                index += 1
            if ended and stop <= len(text):
                if index == len(ids):
                    ids.append(self.end)
                    labels.append(self.end)
                labels[index] = self.end
        cut = len(ids) > self.length
        ids, labels = ids[: self.length], labels[: self.length]
        slot = tokenizer.convert_ids_to_tokens(self.config.image_token_id)
        missing_slots = cut and ids.count(self.config.image_token_id) < "".join(written).count(slot)
        if missing_slots or all(label == IGNORE for label in labels[1:]):
            raise UnusableRowError(TOO_LONG)
        return Encoded(ids, labels, pictures, cut)

    def _read_pictures(self, names: Sequence[str]) -> tuple[list[Picture], list[str]]:
        """Return what the tower reads of pictures, and the text of each: its slots and what is around them."""
        if not names:
            return [], []
        try:
            opened = [open_image(self.images / name) for name in names]
            marks = self.processor.image_token * len(opened)
            inputs = self.processor(
                images=[opened], text=marks, return_tensors="pt", return_text_replacement_offsets=True
            )
        except ValueError as error:
            raise UnusableRowError(UNREADABLE) from error
        sizes = [(one.height, one.width) for one in opened]
        read = ProcessedPrompt(self.config, self.processor, inputs, sizes)
        written = [one["replacement"] for one in inputs["text_replacement_offsets"][0]]
        return family_of(self.config).pictures(read), written

    def render(self, row: Row, pictures: Sequence[str] = ()) -> tuple[str, list[tuple[int, int]]]:
        """Return the chat's text with its pictures, and the position of each answer in it.

        Raises:
            ValueError: the chat template does not write a chat as the beginning of its continuation.
        """
        chat = messages(row)
        text = self._write(chat, pictures)
        answers = []
        for index in range(1, len(chat), 2):
            before = self._write(chat[:index], pictures, add_generation_prompt=True)
            if not text.startswith(before):
                raise ValueError("the target's chat template writes a chat otherwise once it goes on: not supported")
            answer = chat[index]["content"][0]["text"]
            answers.append((len(before), text.index(answer, len(before)) + len(answer)))
        return text, answers

    def _write(self, chat: list[dict[str, Any]], pictures: Sequence[str], add_generation_prompt: bool = False) -> str:
        written = apply_template(self.processor, chat, "the target", add_generation_prompt)
        first, *rest = written.split(self.processor.image_token)
        # The beginning of a chat has fewer pictures than the whole.
        return str(first) + "".join(picture + text for picture, text in zip(pictures, rest, strict=False))


def messages(row: Row) -> list[dict[str, Any]]:
    """Return a row as messages for a chat template, each question's pictures in front of it."""
    chat: list[dict[str, Any]] = []
    for number, text in enumerate(row.turns):
        pictures = [{"type": "image"}] * (row.images_per_question[number // 2] if number % 2 == 0 else 0)
        chat.append({"role": ("user", "assistant")[number % 2], "content": [*pictures, {"type": "text", "text": text}]})
    return chat


def split(rows: Sequence[Row], held_out: int, seed: int) -> tuple[list[Row], list[Row]]:
    """Return the training rows and the held-out rows, in a random order set by the seed.

    Raises:
        ValueError: too few rows.
    """
    if len(rows) < held_out + 1:
        raise ValueError(
            f"{len(rows)} usable rows are too few for {held_out} held out and 1 to learn from:"
            " give more data or fewer --validation-prompts"
        )
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed)).tolist()
    return [rows[number] for number in order[held_out:]], [rows[number] for number in order[:held_out]]


class RowBatches:
    """Batches by number: ``input_ids`` and ``labels`` ``[batch, length]``, and ``pictures``, a list for each row.

    ``left_out`` counts rows by the reasons of :data:`LEFT_OUT`. Each epoch has another random order of rows. Padding is
    on the right, where causal attention does not reach.
    """

    def __init__(self, rows: Sequence[Row], encode: RowEncoder, batch: int, seed: int) -> None:
        self.rows, self.encode, self.batch, self.seed = rows, encode, batch, seed

    def __call__(self, number: int) -> Batch:
        window, member = divmod(number, GROUP)
        counts = Counter[str]()
        positions = self._make_window(window)[member]
        encoded = [self._encode_at(position, counts) for position in positions]
        batch = pad_texts([(one.ids, one.labels) for one in encoded], self.encode.end)
        if any(one.pictures for one in encoded):
            batch["pictures"] = [one.pictures for one in encoded]
        return batch | {"left_out": torch.tensor([counts[reason] for reason in LEFT_OUT])}

    def row_at(self, position: int) -> Row:
        """Return the row at a position of the endless order."""
        epoch, row = divmod(position, len(self.rows))
        return self.rows[int(self._make_order(epoch)[row])]

    def frequent_answers(self, count: int, most_rows: int) -> tuple[list[int], float]:
        """Return the ``count`` most frequent answer tokens of the first rows, and their share of all answer tokens."""
        counted: Counter[int] = Counter()
        for position in range(min(most_rows, len(self.rows))):
            row = self.row_at(position)
            try:
                labels = self.encode(without_images(row)).labels
            except UnusableRowError:
                continue
            counted.update(label for label in labels if label != IGNORE)
        chosen = counted.most_common(count)
        return [token for token, _ in chosen], sum(times for _, times in chosen) / max(1, counted.total())

    def _encode_at(self, position: int, counts: Counter[str]) -> Encoded:
        """Encode the row at a position; an unusable one is counted and replaced by the next in order."""
        for candidate in range(position, position + TRIES):
            try:
                encoded = self.encode(self.row_at(candidate))
            except UnusableRowError as error:
                counts[str(error)] += 1
                continue
            counts[CUT] += encoded.cut
            return encoded
        raise ValueError(
            f"{TRIES} rows one after the other have no answer within --length {self.encode.length} or an image that"
            " cannot be read"
        )

    @lru_cache(maxsize=2)  # noqa: B019 - keeps two results and their rows alive
    def _make_order(self, epoch: int) -> Tensor:
        source = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        return torch.randperm(len(self.rows), generator=source)

    @lru_cache(maxsize=2)  # noqa: B019 - keeps two results and their rows alive
    def _make_window(self, window: int) -> list[list[int]]:
        """Return the positions of each batch of a window: rows of similar length together, batches in random order."""
        size = GROUP * self.batch
        positions = range(window * size, (window + 1) * size)
        by_length = sorted(positions, key=lambda position: sum(map(len, self.row_at(position).turns)))
        batches = [by_length[start : start + self.batch] for start in range(0, size, self.batch)]
        random.Random(f"specllava window {self.seed} {window}").shuffle(batches)
        return batches


def without_images(row: Row) -> Row:
    return replace(row, images_per_question=(0,) * len(row.images_per_question), images=())


def pad_texts(texts: Sequence[tuple[list[int], list[int]]], filler: int, step: int = 1) -> Batch:
    """Return ids and labels of texts, ``[texts, length]``, padded on the right to a multiple of ``step``."""
    length = -(-max(len(ids) for ids, _ in texts) // step) * step
    input_ids, labels = torch.full((len(texts), length), filler), torch.full((len(texts), length), IGNORE)
    for row, (ids, wanted) in enumerate(texts):
        input_ids[row, : len(ids)], labels[row, : len(ids)] = torch.tensor(ids), torch.tensor(wanted)
    return {"input_ids": input_ids, "labels": labels}


def self_generated_rows(
    pair: Pair, rows: Sequence[Row], images: Path, config: DecodingConfig, directory: Path, accelerator: Accelerator
) -> tuple[list[Row], dict[str, int]]:
    """Return rows with the target's answers in place of theirs, and the counts of those left out by reason.

    Each is on disk before the next begins, so a killed run resumes there. Several processes share the work.

    Raises:
        ValueError: the target answers none.
    """
    config = config if pair.draft is not None else replace(config, drafter="prompt-lookup")
    rank, share = accelerator.process_index, accelerator.num_processes
    files = [directory / f"answers-{part}-of-{share}.jsonl" for part in range(share)]
    directory.mkdir(parents=True, exist_ok=True)
    own = rows[rank::share]
    whole = files[rank].read_bytes().rpartition(b"\n")[0] if files[rank].is_file() else b""
    files[rank].write_bytes(whole + b"\n" if whole else b"")  # without an unfinished line that a kill left
    done = len(whole.splitlines())
    with files[rank].open("a", encoding="utf-8") as lines:
        bar = tqdm(own[done:], "the target's answers", len(own), initial=done, unit="row", disable=rank > 0)
        for row in bar:
            try:
                line = asdict(answer_row(pair, row, images, config))
            except UnusableRowError as error:
                line = {"unusable": str(error)}
            lines.write(json.dumps(line) + "\n")
            lines.flush()
    accelerator.wait_for_everyone()
    parts = [file.read_text(encoding="utf-8").splitlines() for file in files]
    read = [json.loads(parts[number % share][number // share]) for number in range(len(rows))]
    names = [field.name for field in fields(Row)]
    answered = [Row(*(tuple(one[name]) for name in names)) for one in read if "unusable" not in one]
    if not answered:
        raise ValueError(f"the target answers none of {len(rows)} rows")
    return answered, dict(Counter(one["unusable"] for one in read if "unusable" in one))


def answer_row(pair: Pair, row: Row, images: Path, config: DecodingConfig) -> Row:
    """Return a row with the target's greedy answers, each decoded after its own earlier ones.

    An answer that was cut at the limit ends the row and has no end token as a label.

    Raises:
        UnusableRowError: it has no answer; the message is the reason.
    """
    chat, ended, names = Chat(pair), list[bool](), iter(row.images)
    for question, count in zip(row.turns[::2], row.images_per_question, strict=True):
        try:
            trace = chat.ask(question, [images / next(names) for _ in range(count)], config)
        except ValueError as error:
            if ended:
                break
            why = "with an unreadable image"
            if isinstance(error, NoRoomError | TextError):
                room = isinstance(error, NoRoomError)
                why = "do not fit the context" if room else "with a special token in a question"
            raise UnusableRowError(why) from error
        if not trace.text:
            break
        ended.append(trace.finish_reason == "eos")
        if not ended[-1]:
            break
    if not ended:
        raise UnusableRowError("to which the target says nothing")
    turns = tuple(text_of(message["content"]) for message in chat.messages[: 2 * len(ended)])
    image_counts = row.images_per_question[: len(ended)]
    return Row(turns, image_counts, row.images[: sum(image_counts)], tuple(ended))
