"""Auxiliary labels of a target's training: the content of each picture slot, and the cell that words refer to.

The text alone depends on the picture too seldom to train this quickly. Both hints are labels in the model's own
vocabulary, so they cost no tokens, and the finished model has no additional part.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from recipes.toy.draw import shown_at
from recipes.toy.phrases import COLUMN_WORDS, NUMBERS, PLURALS, ROW_WORDS
from recipes.toy.scene import CELLS, COLOURS, KINDS, PLACES, SIZES, TIMES, WEATHERS, Column, Row, Scene, Thing
from specllava.distill.losses import IGNORE

NAMES = 5  # maximum words of one slot
ASKED_AS: Final = {"evening": "sunset", "raining": "rainy", "snowing": "snowy"}


def first_tokens(tokenizer: Any, words: Iterable[str]) -> dict[str, int]:
    """Return the token that each word begins with inside a sentence."""
    return {word: tokenizer.encode(f" {word}", add_special_tokens=False)[0] for word in words}


class Hints:
    """Hints about a scene as token ids."""

    def __init__(self, tokenizer: Any, patches: int) -> None:
        self.side = math.isqrt(patches)
        columns: dict[str, Column] = {word: column for column, words in COLUMN_WORDS.items() for word in words}
        rows: dict[str, Row] = {word: row for row, words in ROW_WORDS.items() for word in words}
        looks = (*KINDS, *COLOURS, *SIZES, *columns, *rows)
        self.tokens = first_tokens(tokenizer, (*looks, *PLACES, *WEATHERS, *TIMES, *NUMBERS))
        self.columns = {self.tokens[word]: column for word, column in columns.items()}
        self.rows = {self.tokens[word]: row for word, row in rows.items()}
        self.kinds = {self.tokens[word] for word in KINDS}
        self.looks = {*self.kinds, *(self.tokens[word] for word in COLOURS)}
        self.sizes = set(first_tokens(tokenizer, SIZES).values())
        self.definite = {tokenizer.encode(word, add_special_tokens=False)[0] for word in (" the", " The", "The")}
        self.indefinite = set(first_tokens(tokenizer, ("a", "an", "A", "An")).values())
        digits = (tokenizer.encode(str(number), add_special_tokens=False)[0] for number in range(1, len(CELLS) + 1))
        self.digits = dict(zip(CELLS, digits, strict=True))
        self.none = self.tokens[NUMBERS[0]]
        self.yes, self.no = first_tokens(tokenizer, ("Yes", "No")).values()
        named = {word: word for word in (*PLACES, *WEATHERS, *TIMES)} | ASKED_AS
        self.scenery = dict(zip(first_tokens(tokenizer, named).values(), named.values(), strict=True))
        self.judged = {*self.looks, *self.scenery} - self.kinds  # what "Yes" and "No" are about
        positions = {word: self.tokens[one] for one, words in (COLUMN_WORDS | ROW_WORDS).items() for word in words}
        # Words of questions, and how name_patches names the slots that show what they ask for.
        self.shown = {word: word for word in self.looks} | {self.tokens[word]: name for word, name in positions.items()}
        asked = [word for word, token in self.tokens.items() if token in self.shown] + list(named)
        first = first_tokens(tokenizer, asked)
        plurals = {str(kind): plural for kind, plural in PLURALS.items()}
        # The tokens of a word, behind the picture or a space; a plural is its singular's word.
        self.spellings = {
            tuple(tokenizer.encode(before + form, add_special_tokens=False)): first[word]
            for word in asked for one in (word, plurals.get(word, word))
            for form in (one, one.capitalize()) for before in ("\n", " ")
        }  # fmt: skip

    def name_patches(self, scene: Scene) -> Tensor:
        """Return the words of each slot, ``[patches, NAMES]``, padded with ``IGNORE``.

        An object's kind, colour, cell, column and row; without an object the scene's place, weather, time and number.
        """
        whole = (scene.place, scene.weather, scene.time, NUMBERS[len(scene.things)])
        scenery = [*(self.tokens[word] for word in whole), IGNORE]
        named = []
        for thing in shown_at(scene, self.side):
            if thing is None:
                named.append(scenery)
                continue
            kind, colour, column, row = (
                self.tokens[word] for word in (thing.kind, thing.colour, thing.column, thing.row)
            )
            named.append([kind, colour, self.digits[thing.column, thing.row], column, row])
        return torch.tensor(named)

    def words_of_questions(self, ids: Sequence[int], labels: Sequence[int]) -> dict[int, tuple[int, int]]:
        """Return the words that questions ask for: position of the last token to that of the first, and the word."""
        longest = max(map(len, self.spellings))
        words: dict[int, tuple[int, int]] = {}
        start = 0
        while start < len(ids):
            lengths = range(min(longest, len(ids) - start), 0, -1)
            known = (one for one in lengths if tuple(ids[start : start + one]) in self.spellings)
            length = next(known, 0) if labels[start] == IGNORE else 0
            if length:
                words[start + length - 1] = start, self.spellings[tuple(ids[start : start + length])]
            start += max(1, length)
        return words

    def cells(self, scene: Scene, ids: Sequence[int], labels: Sequence[int]) -> list[int]:
        """Return the cells that a conversation refers to, in answers and questions."""
        hints = zip(self.name_cells(scene, labels), self.find_kinds(scene, ids, labels), strict=True)
        return [asked if named == IGNORE else named for named, asked in hints]

    def name_cells(self, scene: Scene, labels: Sequence[int]) -> list[int]:
        """Return the cell of the object referred to, where its colour or kind is next; ``IGNORE`` elsewhere.

        That is the object whose position was named last; or, after "the", or "a" without a position, the only one that
        the name fits.

        Args:
            labels: of one conversation; the entry at ``i`` is the token at ``i``, as in training.

        Returns:
            For the position *before* each such token the digit of the cell, the same length as ``labels``.
        """
        by_cell = {(thing.column, thing.row): thing for thing in scene.things}
        digits = [IGNORE] * len(labels)
        column: Column | None = None
        row: Row | None = None
        name: list[int] | None = None  # positions of the appearance in a definite name that has begun
        for index, token in enumerate(labels):
            if token == IGNORE:
                column = row = None
            column = self.columns.get(token, column)
            row = self.rows.get(token, row)
            if token in self.definite or (token in self.indefinite and not (column and row)):
                name = []
            elif token not in self.looks and token not in self.sizes:
                name = None
            if token not in self.looks or index == 0:
                continue
            if name is not None:
                name.append(index)
                words = {labels[each] for each in name}
                cells = [cell for cell, thing in by_cell.items() if words <= self.words(thing)]
            else:
                there = by_cell.get((column, row)) if column and row else None
                cells = [(there.column, there.row)] if there and token in self.words(there) else []
            for each in name or [index]:
                digits[each - 1] = self.digits[cells[0]] if len(cells) == 1 else IGNORE
        return digits

    def find_kinds(self, scene: Scene, ids: Sequence[int], labels: Sequence[int]) -> list[int]:
        """Return, where a question names a kind or a colour, the cell of the only object that fits, or "no" for none.

        Before a kind its colour must fit as well, and after it the kind. Where it names a place, weather or time, "Yes"
        or "no". Before each word of the answer that fits the object named last, its cell again.
        """
        digits, words = [IGNORE] * len(ids), self.words_of_questions(ids, labels)
        asked: list[Thing] = []
        kind: set[int] = set()
        for index, token in enumerate(ids[1:], 1):
            if labels[index] != IGNORE:
                if len(asked) == 1 and token in self.words(asked[0]) | self.spots(asked[0]):
                    digits[index - 1] = self.digits[asked[0].column, asked[0].row]
                continue
            if labels[index - 1] != IGNORE:
                asked, kind = [], set()
            start, word = words.get(index, (index, IGNORE))
            if word in self.scenery:
                true = self.scenery[word] in (scene.place, scene.weather, scene.time)
                digits[index] = self.yes if true else self.none
            if word not in self.looks:
                continue
            _, before = words.get(start - 1, (start, IGNORE))
            looks = {word, before} & self.looks if word in self.kinds else {word} | kind
            fitting = [thing for thing in scene.things if looks <= self.words(thing)]
            cell = self.digits[fitting[0].column, fitting[0].row] if fitting else self.none
            digits[index] = cell if len(fitting) < 2 else IGNORE
            if word in self.kinds or not kind:
                asked = fitting
            kind = {word} if word in self.kinds else kind
        return digits

    def words(self, thing: Thing) -> set[int]:
        """Return the tokens of an object's appearance."""
        return {self.tokens[thing.colour], self.tokens[thing.kind]}

    def spots(self, thing: Thing) -> set[int]:
        """Return the tokens of an object's size, column and row."""
        position = (*COLUMN_WORDS[thing.column], *ROW_WORDS[thing.row])
        return {self.tokens[word] for word in (thing.size, *position)}


def naming_loss(logits: Tensor, labels: Tensor, scenery: float) -> Tensor:
    """Return the mean cross-entropy of the words that are labels of slots, in nats per slot and word.

    Args:
        logits: at the slots, ``[slots, vocab]``.
        labels: ``[slots, NAMES]`` token ids or ``IGNORE``.
        scenery: weight of a slot without an object; one with an object has weight 1.
    """
    wanted = labels != IGNORE
    chances = F.log_softmax(logits.float(), -1).gather(-1, labels.clamp(min=0))  # [slots, NAMES]
    each = (chances * wanted).sum(-1) / wanted.sum(-1)
    weight = torch.where(wanted.all(-1), 1.0, scenery)
    return -(each * weight).sum() / weight.sum()
