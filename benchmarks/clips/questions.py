"""Questions about clips, a function for each family, and what an answer states, so that answers can be judged.

All answers are true of the whole clip, whatever frames are shown. An answer's wording depends on the moving object
alone. So a model that has seen which one moves can know every word but those of a caption.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from benchmarks.clips.clip import Clip
from specllava.toyworld.language import QuestionAnswer, caption, polish
from specllava.toyworld.phrases import COLUMN_WORDS, NUMBERS, ROW_WORDS
from specllava.toyworld.scene import COLOURS, KINDS, Thing

_SPOTS: Final = {word: place for words in (COLUMN_WORDS, ROW_WORDS) for place, all_ in words.items() for word in all_}
_WAYS: Final = frozenset({*_SPOTS, "returns"})
_LOOKS: Final = frozenset({*COLOURS, *KINDS})
_WORD: Final = re.compile(r"[a-z]+")


@dataclass(frozen=True, slots=True)
class ClipFamily:
    """A kind of question about a clip.

    Args:
        told: words by which an answer is judged: those that it has of them, in its order.
        behind: whether the first sentence is left out of that.
    """

    ask: Callable[[Clip, random.Random], QuestionAnswer]
    told: frozenset[str]
    behind: bool = False

    def statement(self, answer: str) -> tuple[str, ...]:
        """Return what an answer states; two answers to one question agree if this is equal."""
        text = answer.lower().partition(".")[2] if self.behind else answer.lower()
        return tuple(_SPOTS.get(word, word) for word in _WORD.findall(text) if word in self.told)


def way(clip: Clip) -> str:
    """Word where the moving object goes, such as "from the left to the middle and returns"."""
    words = []
    for (column, row), (next_column, next_row) in zip(clip.stops, clip.stops[1:], strict=False):
        words.append((column, next_column) if column != next_column else (row, next_row))
    said = f"from the {words[0][0]} to the {words[0][1]}"
    if len(words) == 1:
        return said
    return f"{said} and returns" if clip.stops[0] == clip.stops[-1] else f"{said}, then to the {words[1][1]}"


def _called(thing: Thing) -> str:
    return f"the {thing.colour} {thing.kind}"


def _verb(thing: Thing) -> str:
    return ("goes", "moves")[KINDS.index(thing.kind) % 2]


def _turn(rng: random.Random, questions: tuple[str, ...], answer: str) -> QuestionAnswer:
    return QuestionAnswer(polish(rng.choice(questions)), polish(answer))


def _what(clip: Clip, rng: random.Random) -> QuestionAnswer:
    name = _called(clip.moving)
    answers = (f"{name} moves", f"it is {name} that moves")
    questions = ("What moves?", "What is moving here?", "Which of them moves?")
    return _turn(rng, questions, answers[COLOURS.index(clip.moving.colour) % 2])


def _where(clip: Clip, rng: random.Random) -> QuestionAnswer:
    name = _called(clip.moving)
    return _turn(
        rng, (f"Where does {name} go?", f"Which way does {name} go?"), f"{name} {_verb(clip.moving)} {way(clip)}"
    )


def _whether(clip: Clip, rng: random.Random) -> QuestionAnswer:
    """Ask whether an object moves: as often the one that does, if others have a name of their own."""
    looks = [thing.combination for thing in clip.scene.things]
    others = [thing for thing in clip.scene.things if looks.count(thing.combination) == 1 and thing != clip.moving]
    if others and rng.random() < 0.5:
        name = _called(rng.choice(others))
        return _turn(rng, (f"Does {name} move?",), f"no, {name} stays where it is")
    name = _called(clip.moving)
    return _turn(rng, (f"Does {name} move?",), f"yes, {name} {_verb(clip.moving)} {way(clip)}")


def _total(clip: Clip, rng: random.Random) -> QuestionAnswer:
    total = len(clip.scene.things)
    noun = "object" if total == 1 else "objects"
    questions = ("How many objects are there?", "How many things can you see?", "Count the objects.")
    return _turn(rng, questions, f"there {'is' if total == 1 else 'are'} {NUMBERS[total]} {noun}")


def _happens(clip: Clip, rng: random.Random) -> QuestionAnswer:
    """Ask for a caption of the first frame and what moves in the clip."""
    questions = ("Describe what happens.", "What happens here?", "Tell me what you see and what moves.")
    moves = polish(f"{_called(clip.moving)} {_verb(clip.moving)} {way(clip)}")
    return QuestionAnswer(rng.choice(questions), f"{caption(clip.scene, rng).answer} {moves}")


CLIP_FAMILIES: Final[dict[str, ClipFamily]] = {
    "what happens": ClipFamily(_happens, _LOOKS | _WAYS, behind=True),
    "what moves": ClipFamily(_what, _LOOKS),
    "where it goes": ClipFamily(_where, _WAYS),
    "whether it moves": ClipFamily(_whether, frozenset({"yes", "no"})),
    "how many": ClipFamily(_total, frozenset(NUMBERS)),
}
