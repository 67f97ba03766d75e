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

NAMES = 6  # maximum words of one slot
PRONOUNS: Final = ("it", "its", "they", "their", "them")
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
        self.digits: dict[tuple[Column, Row], int] = dict(zip(CELLS, digits, strict=True))
        self.none = self.tokens[NUMBERS[0]]
        self.pronouns = set(first_tokens(tokenizer, PRONOUNS).values())
        self.yes, self.no = first_tokens(tokenizer, ("Yes", "No")).values()
        # Words that begin the next object of an answer.
        self.openers = {*self.indefinite, *first_tokens(tokenizer, ("one", "One", "other")).values()}
        self.of, self.it = first_tokens(tokenizer, ("of", "it")).values()
        self.openers.add(tokenizer.encode("x;", add_special_tokens=False)[-1])
        named = {word: word for word in (*PLACES, *WEATHERS, *TIMES)} | ASKED_AS
        self.scenery = dict(zip(first_tokens(tokenizer, named).values(), named.values(), strict=True))
        self.judged = {*self.looks, *self.scenery} - self.kinds  # what "Yes" and "No" are about
        positions = {word: self.tokens[one] for one, words in (COLUMN_WORDS | ROW_WORDS).items() for word in words}
        # Words of questions, and how name_patches names the slots that show what they ask for.
        self.shown = {word: word for word in self.looks} | {self.tokens[word]: name for word, name in positions.items()}
        shown = [word for word, token in self.tokens.items() if token in self.shown]
        asked = [*shown, *named, *PRONOUNS, *SIZES, "big"]
        first = first_tokens(tokenizer, asked) | {"big": self.tokens["large"]}
        plurals = {str(kind): plural for kind, plural in PLURALS.items()}
        # The tokens of a word, behind the picture or a space; a plural is its singular's word.
        self.spellings = {
            tuple(tokenizer.encode(before + form, add_special_tokens=False)): first[word]
            for word in asked for one in (word, plurals.get(word, word))
            for form in (one, one.capitalize()) for before in ("\n", " ")
        }  # fmt: skip

    def name_patches(self, scene: Scene) -> Tensor:
        """Return the words of each slot, ``[patches, NAMES]``, padded with ``IGNORE``.

        An object's kind, colour, size, cell, column and row; without an object the scene's place, weather, time and
        number.
        """
        whole = (scene.place, scene.weather, scene.time, NUMBERS[len(scene.things)])
        scenery = [*(self.tokens[word] for word in whole), IGNORE, IGNORE]
        named = []
        for thing in shown_at(scene, self.side):
            if thing is None:
                named.append(scenery)
                continue
            looks = (thing.kind, thing.colour, thing.size, thing.column, thing.row)
            named.append([self.digit(thing), *(self.tokens[word] for word in looks)])
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
        """Return the cells that a conversation refers to, in answers and questions.

        The last token before an answer announces the first object that it refers to, the one before that the second or
        "no". Before an answer that refers to none, the last announces "Yes" where the answer begins with it, else "no".
        In the answer, the last word about an object announces the next object, or "no".
        """
        named, words = self.name_cells(scene, labels), self.words_of_questions(ids, labels)
        digits, last, begin = [IGNORE] * len(ids), list[Thing](), 1
        for start, end in answers_in(labels):
            asked = self._read_question(scene, ids, words, range(begin, start), last, digits)
            digits[start - 1 :] = [IGNORE] * (len(ids) - start + 1)
            last = self._read_answer(scene, ids, named, range(start, end), asked, digits)
            begin = end
        digits = [other if name == IGNORE else name for name, other in zip(named, digits, strict=True)]
        for start, end in answers_in(labels):
            referred = list(dict.fromkeys(digit for digit in digits[start - 1 : end] if digit in self.digits.values()))
            if referred:
                digits[start - 1], digits[start - 2] = [*referred, self.none][:2]
                self._announce_next(digits, start, end)
            else:
                digits[start - 1] = self.yes if labels[start] == self.yes else self.none
        return digits

    def _announce_next(self, digits: list[int], start: int, end: int) -> None:
        """Announce, with the last word about each object of an answer, the next object or "no"."""
        later = self.none
        for index in range(end - 2, start - 2, -1):
            if digits[index] in self.digits.values():
                if digits[index] != later and digits[index + 1] == IGNORE:
                    digits[index + 1] = later
                later = digits[index]

    def name_cells(self, scene: Scene, labels: Sequence[int]) -> list[int]:
        """Return the cell of the object referred to, where its colour or kind is next; ``IGNORE`` elsewhere.

        That is the object whose position was named last; or, after "the", or "a" without a position, the only one that
        the name fits. "It" ends a position, as in "in front of it".

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
            if token in (IGNORE, self.it):
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

    def _read_question(
        self,
        scene: Scene,
        ids: Sequence[int],
        words: dict[int, tuple[int, int]],
        span: range,
        last: list[Thing],
        digits: list[int],
    ) -> list[Thing]:
        """Write the cells that a question asks for, from the word that decides on; return these objects.

        That is where a question names a kind, a colour or a position, or refers to the ``last`` turn with a pronoun.
        Before a kind its colour and size must fit as well, and after it the kind. A position follows "the". Where it
        names a place, weather or time, "Yes" or "no".
        """
        asked: list[Thing] = []
        kind: set[int] = set()
        for index in span:
            start, word = words.get(index, (index, IGNORE))
            if word in self.scenery:
                true = self.scenery[word] in (scene.place, scene.weather, scene.time)
                digits[index] = self.yes if true else self.none
            if word in self.pronouns and last and not asked and not kind:
                self._list(last, digits, index)
                asked = last
                continue
            if word not in self.shown or (word not in self.looks and ids[start - 1] not in self.definite):
                continue
            first, before = words.get(start - 1, (start, IGNORE))
            _, size = words.get(first - 1, (first, IGNORE))
            looks = {word, before} & self.looks if word in self.kinds else {word} | kind
            looks |= {size} & self.sizes if before in self.looks else set()
            among = asked if kind and word not in self.looks else scene.things
            fitting = [thing for thing in among if looks <= self.words(thing) | self.spots(thing)]
            self._list(fitting, digits, index)
            if word in self.kinds or not kind or word not in self.looks:
                asked = fitting
            kind = {word} if word in self.kinds else kind
        return asked

    def _read_answer(
        self, scene: Scene, ids: Sequence[int], named: Sequence[int], span: range, asked: list[Thing], digits: list[int]
    ) -> list[Thing]:
        """Write the cell of the object asked for that an answer has come to; return the referents of a next pronoun.

        "A", "one", "other" and ";" begin the next object. The cell is written before each word that fits the object.
        """
        by_digit = {self.digit(thing): thing for thing in scene.things}
        stated: list[Thing] = []
        number = int(ids[span.start] in self.looks)  # a bare look-up
        for index in span:
            token = ids[index]
            number += token in self.openers
            if stated and token == self.it:
                asked = []
            about = asked[number - 1 : number] if number else (stated or asked)[-1:] if asked else []
            if any(token in self.words(thing) | self.spots(thing) for thing in about) and ids[index + 1] != self.of:
                digits[index - 1] = self.digit(about[0])
                stated = [*stated, *about]
            elif named[index - 1] in by_digit:
                stated = [*stated, by_digit[named[index - 1]]]
        return asked or stated[-1:]

    def _list(self, things: Sequence[Thing], digits: list[int], index: int) -> None:
        """Write the objects' cells from ``index`` on, one a token, and then "no"."""
        cells = [*map(self.digit, things), self.none]
        digits[index : index + len(cells)] = cells[: len(digits) - index]

    def digit(self, thing: Thing) -> int:
        """Return the token of an object's cell."""
        return self.digits[thing.column, thing.row]

    def words(self, thing: Thing) -> set[int]:
        """Return the tokens of an object's appearance."""
        return {self.tokens[thing.colour], self.tokens[thing.kind]}

    def spots(self, thing: Thing) -> set[int]:
        """Return the tokens of an object's size, column and row."""
        position = (*COLUMN_WORDS[thing.column], *ROW_WORDS[thing.row])
        return {self.tokens[word] for word in (thing.size, *position)}


def answers_in(labels: Sequence[int]) -> list[tuple[int, int]]:
    """Return first position, and the one after the last, of each answer."""
    starts = [at for at in range(1, len(labels)) if labels[at - 1] == IGNORE != labels[at]]
    ends = [at for at in range(1, len(labels) + 1) if labels[at - 1] != IGNORE and (*labels, IGNORE)[at] == IGNORE]
    return list(zip(starts, ends, strict=True))


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
