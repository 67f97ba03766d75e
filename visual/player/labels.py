"""Short labels of tokens, and texts of models made safe beside the page's own words."""

from __future__ import annotations

from typing import Final

from specllava.token_text import begins_inside, shorten_bytes
from specllava.trace import DecodeTrace

# Characters that change the direction of the text around them, and so could rewrite the page's own words.
BIDI_CONTROLS: Final = dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)], "�")
VISIBLE: Final = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"}
END_MARK: Final = "end"
MARKS: Final = frozenset(".,:;!?…")
NUMBERS: Final = (
    "no",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
)
# Words that carry grammar rather than content, as far as answers about pictures use them.
FUNCTION_WORDS: Final = frozenset({
    "a", "all", "also", "an", "and", "any", "are", "as", "at", "be", "been", "behind", "being", "beside",
    "between", "both", "but", "by", "can", "could", "did", "do", "does", "each", "every", "for", "from", "had",
    "has", "have", "he", "her", "here", "his", "how", "i", "in", "into", "is", "it", "its", "may", "might",
    "must", "near", "no", "nor", "not", "of", "off", "on", "one", "onto", "or", "our", "out", "over", "shall",
    "she", "should", "so", "some", "than", "that", "the", "their", "them", "then", "there", "these", "they",
    "this", "those", "to", "under", "up", "us", "was", "we", "were", "what", "when", "where", "which", "who",
    "will", "with", "would", "yes", "you", "your",
})  # fmt: skip


def token_label(trace: DecodeTrace, token: int, max_characters: int = 24) -> str:
    """Return a token as a short label: trimmed, whitespace made visible, the end of the answer named."""
    if token in trace.eos_token_ids:
        return END_MARK
    return text_label(trace.texts[token], max_characters)


def text_label(text: str, max_characters: int = 24) -> str:
    """Return a token's text as a short label; bytes of a piece of a character as ``<E4 BD>``."""
    text = shorten_bytes(text)
    start = text.strip()[: max_characters + 1]  # a token may be long, and only this much of it is ever drawn
    if start:
        label = "".join(c if c.isprintable() else _named(c) for c in start)
    else:
        label = "".join(map(_named, text[: max_characters + 1])) or "∅"
    return label if len(label) <= max_characters else label[: max_characters - 1] + "…"


def _named(character: str) -> str:
    return VISIBLE.get(character, f"U+{ord(character):04X}")


def spelled(number: int) -> str:
    """Write a number, up to twelve as a word."""
    return NUMBERS[number] if number < len(NUMBERS) else f"{number}"


def counted(number: int, noun: str, words: bool = False) -> str:
    """Write a number, :func:`spelled` where ``words``, with its noun, in the plural where it is not 1."""
    plural = noun + ("es" if noun.endswith(("ch", "s")) else "s")
    return f"{spelled(number) if words else number} {noun if number == 1 else plural}"


def is_mark(label: str) -> bool:
    """Return whether a label is a punctuation mark alone."""
    return label in MARKS


def quoted(label: str) -> str:
    """Return a label for a sentence: a punctuation mark in quotation marks, anything else as it is."""
    return f"“{label}”" if is_mark(label) else label


def continues_word(before: str, text: str) -> bool:
    """Return whether a token's text goes on with the word that the token before it began."""
    return begins_inside(text) or (before[-1:].isalnum() and text[:1].isalnum())


def strip_bidi(text: str) -> str:
    """Replace every character of :data:`BIDI_CONTROLS` in a text by a replacement character."""
    return text.translate(BIDI_CONTROLS)
