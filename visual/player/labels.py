"""Texts of tokens and nodes: labels, and whole words down a branch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from specllava.token_text import begins_inside, join_texts, shorten_bytes
from specllava.trace import DecodeTrace, StepTrace

# Characters that change the direction of the text around them, and so could rewrite the page's own words.
BIDI_CONTROLS: Final = dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)], "�")
VISIBLE: Final = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"}
END_MARK: Final = "end"
MARKS: Final = frozenset(".,:;!?…")
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


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


LONGEST_PATH = 80
LONGEST_WORD = 24
PIECES = 8  # of one word, in either direction


def word_at(trace: DecodeTrace, step: StepTrace, node: int) -> str:
    """Return the word that a node is part of, with the pieces before it and those that the tree has after it."""
    tree, accepted = step.tree, set(step.emitted_nodes)
    children, after, last = tree.children(), list[int](), node
    while children[last] and len(after) < PIECES:
        last = min(children[last], key=lambda child: (child not in accepted, -tree.log_probs[child]))
        after.append(tree.tokens[last])
    return _word(trace, _before(trace, step, tree.parents[node]), tree.tokens[node], after)


def word_after(trace: DecodeTrace, step: StepTrace, node: int, token: int) -> str:
    """Return the word of the token that the target said after a node, with the pieces that it went on to say."""
    at = _index(trace, step)
    after = [piece for later in trace.steps[at + 1 : at + 1 + PIECES] for piece in later.emitted]
    return _word(trace, _before(trace, step, node), token, after)


def path_text(trace: DecodeTrace, step: StepTrace, node: int, words: int = 4) -> str:
    """Join the last tokens of the branch down to ``node`` as running text that begins with a whole word."""
    pieces = _before(trace, step, node)
    start = len(pieces) - min(words, len(step.tree.path(node)))
    while start and continues_word(trace.texts[pieces[start - 1]], trace.texts[pieces[start]]):
        start -= 1
    text = strip_bidi(shorten_bytes(join_texts(trace.texts[token] for token in pieces[start:]))).strip()
    text = text if len(text) <= LONGEST_PATH else "…" + text[1 - LONGEST_PATH :]
    return text.lstrip(".,;: ") or text or token_label(trace, step.tree.tokens[node])


def _index(trace: DecodeTrace, step: StepTrace) -> int:
    """Return a step's index in the run; the number of steps where it is not one of them."""
    return next((at for at, one in enumerate(trace.steps) if one is step), len(trace.steps))


def _before(trace: DecodeTrace, step: StepTrace, node: int) -> list[int]:
    """Return the last tokens of the answer down to a node, the node's own included."""
    at = _index(trace, step)
    earlier = trace.steps[max(0, at - PIECES) : at]
    earlier_tokens = [trace.prefill.first_token, *(token for one in earlier for token in one.emitted)]
    path = [step.tree.tokens[n] for n in step.tree.path(node)]
    return [*(earlier_tokens[:-1] if earlier_tokens[-1] == step.tree.tokens[0] else []), *path]


def _word(trace: DecodeTrace, before: list[int], token: int, after: Iterable[int]) -> str:
    """Return a token's label, with the pieces of its word on both sides."""
    if token in trace.eos_token_ids:
        return token_label(trace, token)
    pieces = [token]
    for piece in reversed(before[-PIECES:]):
        if not _joined(trace, piece, pieces[0]):
            break
        pieces.insert(0, piece)
    for piece in after:
        if not _joined(trace, pieces[-1], piece):
            break
        pieces.append(piece)
    return text_label(join_texts(trace.texts[piece] for piece in pieces), LONGEST_WORD)


def _joined(trace: DecodeTrace, before: int, token: int) -> bool:
    return token not in trace.eos_token_ids and continues_word(trace.texts[before], trace.texts[token])
