"""Batches of tensors from rows of a data file: a pure function of the batch number, so a run can resume anywhere."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from specllava.distill.chats import ChatEncoder, Encoded
from specllava.distill.loop import COUNT, Batch
from specllava.distill.losses import IGNORE
from specllava.distill.pictures import batch_entries
from specllava.distill.rows import Rows
from specllava.models.families.interface import Picture, Size
from specllava.models.images import read_size

GROUP = 16  # batches sorted by length together, to reduce padding
TRIES = 100  # consecutive rows that may be unusable
CACHED = 2  # windows: batches are requested in order, so the current one, and the next where one ends
UNREADABLE, CUT, ANSWERLESS = "rows with an image that breaks off", "rows cut", "rows with no answer in their length"

Sample = tuple[Encoded, list[Picture], list[Size]]
Made = TypeVar("Made")


def split(rows: Rows, held_out: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return the numbers of the training rows and of the held-out rows, in a random order set by the seed.

    Raises:
        ValueError: too few rows.
    """
    if len(rows) < held_out + 1:
        raise ValueError(
            f"{len(rows)} usable rows are too few for {held_out} held out and 1 to learn from:"
            " give more data or fewer --validation-prompts"
        )
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    return order[held_out:], order[:held_out]


class RowBatches:
    """Batches by number: ``input_ids`` and ``labels`` ``[batch, length]``, and the pictures in slot order.

    Pictures are entries of :func:`batch_entries`; ``image_sizes`` ``[images, 2]`` has height and width of each, and
    ``images`` ``[batch]`` how many of the entries are each row's.
    Each epoch has another random order of rows. Padding is on the right, where causal attention does not reach.

    The object is pickled whole where worker processes do not inherit the memory of this one.

    Args:
        numbers: of the training rows.
        read_pictures: paths of a row's pictures, and how many, to what the tower reads of each.
        images: directory that the paths are relative to.
    """

    def __init__(
        self,
        rows: Rows,
        numbers: Tensor,
        encode: ChatEncoder,
        batch: int,
        seed: int,
        read_pictures: Callable[[Sequence[str], int], list[Picture]],
        images: Path,
    ) -> None:
        self.rows, self.numbers, self.encode, self.batch, self.seed = rows, numbers, encode, batch, seed
        self.read_pictures, self.images = read_pictures, images
        self._orders: dict[int, Tensor] = {}
        self._windows: dict[int, list[list[int]]] = {}

    def __call__(self, number: int) -> Batch:
        window, member = divmod(number, GROUP)
        counts = dict.fromkeys((UNREADABLE, CUT, ANSWERLESS), 0)
        samples = [
            self._sample(position, counts) for position in lru_get(self._windows, window, self._make_window)[member]
        ]
        batch = pad_texts([(encoded.ids, encoded.labels) for encoded, _, _ in samples], self.encode.end)
        if any(seen for _, seen, _ in samples):
            batch["images"] = torch.tensor([len(seen) for _, seen, _ in samples])
            batch["image_sizes"] = torch.tensor([size for _, _, sizes in samples for size in sizes])
            batch |= batch_entries([picture for _, seen, _ in samples for picture in seen])
        return batch | {f"{COUNT}{key}": torch.tensor(value) for key, value in counts.items()}

    def row_at(self, position: int) -> int:
        """Return the number of the row at a position of the endless order."""
        time_round, row = divmod(position, len(self.numbers))
        return int(self.numbers[lru_get(self._orders, time_round, self._make_order)[row]])

    def frequent_answers(self, count: int, most_rows: int) -> tuple[list[int], float]:
        """Return the ``count`` most frequent answer tokens of the first rows, and their share of all answer tokens."""
        counted: Counter[int] = Counter()
        for position in range(min(most_rows, len(self.numbers))):
            row = self.rows[self.row_at(position)].without_images()
            counted.update(label for label in self.encode(row, []).labels if label != IGNORE)
        chosen = counted.most_common(count)
        return [token for token, _ in chosen], sum(times for _, times in chosen) / counted.total()

    def _sample(self, position: int, counts: dict[str, int]) -> Sample:
        """Return the row at a position; an unusable one is counted and replaced by the next in order."""
        for candidate in range(position, position + TRIES):
            row = self.rows[self.row_at(candidate)]
            try:
                sizes = [read_size(self.images / name) for name in row.images]
            except ValueError:
                counts[UNREADABLE] += 1
                continue
            encoded = self.encode(row, sizes)
            if all(label == IGNORE for label in encoded.labels[1:]):
                counts[ANSWERLESS] += 1
                continue
            try:
                seen = self.read_pictures(row.images, encoded.images) if encoded.images else []
            except ValueError:
                counts[UNREADABLE] += 1
                continue
            counts[CUT] += encoded.cut
            return encoded, seen, sizes[: encoded.images]
        raise ValueError(
            f"{TRIES} rows one after the other have no answer within --length {self.encode.length} or an image that"
            " cannot be read"
        )

    def _make_order(self, time_round: int) -> Tensor:
        source = torch.Generator().manual_seed(self.seed * 1_000_003 + time_round)
        return torch.randperm(len(self.numbers), generator=source)

    def _make_window(self, window: int) -> list[list[int]]:
        """Return the positions of each batch of a window: rows of similar length together, batches in random order."""
        size = GROUP * self.batch
        positions = range(window * size, (window + 1) * size)
        by_length = sorted(positions, key=lambda position: self.rows.size(self.row_at(position)))
        batches = [by_length[start : start + self.batch] for start in range(0, size, self.batch)]
        random.Random(f"specllava window {self.seed} {window}").shuffle(batches)
        return batches


def pad_texts(texts: Sequence[tuple[list[int], list[int]]], filler: int, step: int = 1) -> Batch:
    """Return ids and labels of texts as ``input_ids`` and ``labels`` ``[texts, length]``, padded on the right.

    Args:
        step: the length is a multiple of it.
    """
    length = -(-max(len(ids) for ids, _ in texts) // step) * step
    input_ids, labels = torch.full((len(texts), length), filler), torch.full((len(texts), length), IGNORE)
    for row, (ids, wanted) in enumerate(texts):
        input_ids[row, : len(ids)], labels[row, : len(ids)] = torch.tensor(ids), torch.tensor(wanted)
    return {"input_ids": input_ids, "labels": labels}


def lru_get(cache: dict[int, Made], number: int, make: Callable[[int], Made]) -> Made:
    """Return the result for ``number`` from a plain dictionary, which can be pickled; make it if absent."""
    if number not in cache:
        made = make(number)
        while len(cache) >= CACHED:
            del cache[next(iter(cache))]
        cache[number] = made
    return cache[number]
